//! Prepared sends and waits. The C structs have numbers of them, as programs may copy and discard the structs.

use crate::error::{CallError, stale};
use gdsync::{PreparedSend, PreparedWait};
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;

/// The object of a number.
pub(crate) enum Pending {
    /// A single send, the most frequent case.
    Send(PreparedSend),
    Sends(Vec<PreparedSend>),
    /// A wait, and the words that the stream writes after it.
    Wait(PreparedWait, Vec<(usize, u32)>),
}

struct RequestSlot {
    /// Counts the uses of the slot; a number of another generation is stale. Never 0, so that a zeroed struct names nothing.
    generation: u32,
    owner: usize,
    pending: Option<Pending>,
}

/// Aligned to a cache line, against false sharing.
#[derive(Default)]
#[repr(align(64))]
struct Table {
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
}

/// The tables, of which the address of a request's queue pair chooses one, so that threads with different queue pairs rarely contend.
/// Spin locks as in gdsync's send queues: a store releases them, waiters yield, and none is held for long.
static TABLES: [SpinMutex<Table, Yield>; 1 << TABLE_BITS] =
    [const { SpinMutex::new(Table { slots: Vec::new(), free: Vec::new() }) }; 1 << TABLE_BITS];

const TABLE_BITS: u32 = 4;

/// The error for a number that names nothing, or a request of the other kind.
fn unknown(name: u64) -> CallError {
    let why = "was not prepared, or was posted, cancelled or destroyed with its queue pair";
    stale("the request", name as usize, why, "prepare it again, and post it once")
}

fn table_of(owner: usize) -> u32 {
    // The lowest bits of objects' addresses are alike.
    ((owner as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TABLE_BITS)) as u32
}

fn name(generation: u32, slot: u32, table: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot << TABLE_BITS | table)
}

#[inline]
fn lock(table: u32) -> SpinMutexGuard<'static, Table, Yield> {
    TABLES[table as usize].lock()
}

#[inline]
fn lock_of(name: u64) -> SpinMutexGuard<'static, Table, Yield> {
    lock(name as u32 & ((1 << TABLE_BITS) - 1))
}

impl Table {
    #[inline]
    fn slot(&mut self, name: u64) -> Result<(u32, &mut RequestSlot), CallError> {
        let index = name as u32 >> TABLE_BITS;
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.generation == (name >> 32) as u32 => Ok((index, slot)),
            _ => Err(unknown(name)),
        }
    }

    /// Frees a slot, except after its last generation, as numbers are not reused.
    #[inline]
    fn free(&mut self, index: u32) {
        if let Some(slot) = self.slots.get_mut(index as usize)
            && let Some(next) = slot.generation.checked_add(1)
        {
            slot.generation = next;
            self.free.push(index);
        }
    }
}

/// Keeps a request of a queue pair. Returns its number.
#[inline]
pub(crate) fn keep(owner: usize, pending: Pending) -> u64 {
    let of = table_of(owner);
    let mut table = lock(of);
    if let Some(index) = table.free.pop()
        && let Some(slot) = table.slots.get_mut(index as usize)
    {
        (slot.owner, slot.pending) = (owner, Some(pending));
        return name(slot.generation, index, of);
    }
    let index = table.slots.len() as u32;
    table.slots.push(RequestSlot { generation: 1, owner, pending: Some(pending) });
    name(1, index, of)
}

/// Takes a single send, and uses up its number. `None`, without a change, if the number names anything else.
#[inline]
pub(crate) fn take_send(name: u64) -> Option<PreparedSend> {
    match take_if(name, |pending| matches!(pending, Pending::Send(_)))? {
        Pending::Send(send) => Some(send),
        _ => None,
    }
}

/// As [`take_send`], for a wait without words.
#[inline]
pub(crate) fn take_wait(name: u64) -> Option<PreparedWait> {
    match take_if(name, |pending| matches!(pending, Pending::Wait(_, words) if words.is_empty()))? {
        Pending::Wait(wait, _) => Some(wait),
        _ => None,
    }
}

/// Takes a request and uses up its number, if it is the one that the caller wants.
#[inline]
fn take_if(name: u64, is_it: impl FnOnce(&Pending) -> bool) -> Option<Pending> {
    let mut table = lock_of(name);
    let (index, slot) = table.slot(name).ok()?;
    let taken = slot.pending.take_if(|pending| is_it(pending))?;
    table.free(index);
    Some(taken)
}

/// Takes a request. [`used_up`] then uses up its number, or [`put_back`] undoes this.
pub(crate) fn take(name: u64, is_send: bool) -> Result<Pending, CallError> {
    let mut table = lock_of(name);
    let (_, slot) = table.slot(name)?;
    let is_one = slot.pending.as_ref().map(|pending| !matches!(pending, Pending::Wait(..)));
    if is_one != Some(is_send) {
        return Err(unknown(name));
    }
    slot.pending.take().ok_or_else(|| unknown(name))
}

/// Takes sends in their order, and uses up their number.
pub(crate) fn use_up_sends(name: u64) -> Result<Vec<PreparedSend>, CallError> {
    let pending = take(name, true)?;
    used_up(name);
    Ok(match pending {
        Pending::Send(send) => vec![send],
        Pending::Sends(sends) => sends,
        Pending::Wait(..) => Vec::new(),
    })
}

/// Takes a wait, and uses up its number.
pub(crate) fn use_up_wait(name: u64) -> Result<PreparedWait, CallError> {
    let Pending::Wait(wait, _) = take(name, false)? else { return Err(unknown(name)) };
    used_up(name);
    Ok(wait)
}

pub(crate) fn put_back(name: u64, pending: Pending) {
    if let Ok((_, slot)) = lock_of(name).slot(name) {
        slot.pending = Some(pending);
    }
}

pub(crate) fn used_up(name: u64) {
    let mut table = lock_of(name);
    if let Ok((index, _)) = table.slot(name) {
        table.free(index);
    }
}

/// Appends a word to a wait. Returns the number of words.
pub(crate) fn append(name: u64, word: (usize, u32), limit: usize) -> Result<u32, CallError> {
    let mut table = lock_of(name);
    let (_, slot) = table.slot(name)?;
    match &mut slot.pending {
        Some(Pending::Wait(_, words)) if words.len() < limit => {
            words.push(word);
            Ok(words.len() as u32)
        }
        Some(Pending::Wait(_, words)) => Err(CallError::NoRoom { words: words.len() as u32 }),
        _ => Err(unknown(name)),
    }
}

/// Cancels the requests of a queue pair that is being destroyed.
pub(crate) fn forget(owner: usize) {
    let mut table = lock(table_of(owner));
    let mut gone = Vec::new();
    for index in 0..table.slots.len() {
        let slot = &mut table.slots[index];
        if slot.owner == owner
            && let Some(pending) = slot.pending.take()
        {
            table.free(index as u32);
            gone.push(pending);
        }
    }
    drop(table);
    drop(gone);
}
