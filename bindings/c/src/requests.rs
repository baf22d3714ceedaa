//! Prepared sends and waits. The C structs hold numbers, as they may be copied and thrown away;
//! what they stand for is here.

use crate::error::{CallError, stale};
use gdsync::{PreparedSend, PreparedWait};
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;

/// What a number stands for.
pub(crate) enum Pending {
    /// A list of one, as most are.
    Send(PreparedSend),
    /// A list of sends.
    Sends(Vec<PreparedSend>),
    /// A wait, and the words that the stream writes after it.
    Wait(PreparedWait, Vec<(usize, u32)>),
}

struct Place {
    /// Counts the uses of the place: a number with another generation is an old one. Never 0: a
    /// struct of zeroes names nothing.
    generation: u32,
    /// The queue pair.
    owner: usize,
    pending: Option<Pending>,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

/// A request is in the table that its queue pair's address says, so that threads with queue pairs
/// of their own rarely meet. As with gdsync's send queues, locks are released by a store, and a
/// thread that finds one taken yields: none is held for long.
static TABLES: [SpinMutex<Table, Yield>; 1 << TABLE_BITS] =
    [const { SpinMutex::new(Table { places: Vec::new(), free: Vec::new() }) }; 1 << TABLE_BITS];

const TABLE_BITS: u32 = 4;

/// The request's number names nothing, or something of another kind.
fn unknown(name: u64) -> CallError {
    let why = "was not prepared, or was posted, cancelled or destroyed with its queue pair";
    stale("the request", name as usize, why, "prepare it again, and post it once")
}

fn table_of(owner: usize) -> u32 {
    // Addresses of objects are alike in their lowest bits.
    ((owner as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - TABLE_BITS)) as u32
}

/// Generation, place and table.
fn name(generation: u32, place: u32, table: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place << TABLE_BITS | table)
}

#[inline]
fn lock(table: u32) -> SpinMutexGuard<'static, Table, Yield> {
    TABLES[table as usize].lock()
}

/// The table that a name is in.
#[inline]
fn lock_of(name: u64) -> SpinMutexGuard<'static, Table, Yield> {
    lock(name as u32 & ((1 << TABLE_BITS) - 1))
}

impl Table {
    #[inline]
    fn place(&mut self, name: u64) -> Result<(u32, &mut Place), CallError> {
        let index = name as u32 >> TABLE_BITS;
        match self.places.get_mut(index as usize) {
            Some(place) if place.generation == (name >> 32) as u32 => Ok((index, place)),
            _ => Err(unknown(name)),
        }
    }

    /// The place is free. After its last generation it stays empty: no number is given out twice.
    #[inline]
    fn free(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && let Some(next) = place.generation.checked_add(1)
        {
            place.generation = next;
            self.free.push(index);
        }
    }
}

/// Keeps something for a queue pair; returns its number.
#[inline]
pub(crate) fn keep(owner: usize, pending: Pending) -> u64 {
    let of = table_of(owner);
    let mut table = lock(of);
    if let Some(index) = table.free.pop()
        && let Some(place) = table.places.get_mut(index as usize)
    {
        (place.owner, place.pending) = (owner, Some(pending));
        return name(place.generation, index, of);
    }
    let index = table.places.len() as u32;
    table.places.push(Place { generation: 1, owner, pending: Some(pending) });
    name(1, index, of)
}

/// Takes a single send out, and uses up its number. `None` where the number names anything else,
/// and nothing has changed.
#[inline]
pub(crate) fn take_send(name: u64) -> Option<PreparedSend> {
    match take_if(name, |pending| matches!(pending, Pending::Send(_)))? {
        Pending::Send(send) => Some(send),
        _ => None,
    }
}

/// The same for a wait without words.
#[inline]
pub(crate) fn take_wait(name: u64) -> Option<PreparedWait> {
    match take_if(name, |pending| matches!(pending, Pending::Wait(_, words) if words.is_empty()))? {
        Pending::Wait(wait, _) => Some(wait),
        _ => None,
    }
}

/// Takes out what a number names and uses the number up, where it is what the caller looks for.
#[inline]
fn take_if(name: u64, is_it: impl FnOnce(&Pending) -> bool) -> Option<Pending> {
    let mut table = lock_of(name);
    let (index, place) = table.place(name).ok()?;
    let taken = place.pending.take_if(|pending| is_it(pending))?;
    table.free(index);
    Some(taken)
}

/// Takes it out. The number is used up after [`used_up`]; until then [`put_back`] undoes it.
pub(crate) fn take(name: u64, is_send: bool) -> Result<Pending, CallError> {
    let mut table = lock_of(name);
    let (_, place) = table.place(name)?;
    let is_one = place.pending.as_ref().map(|pending| !matches!(pending, Pending::Wait(..)));
    if is_one != Some(is_send) {
        return Err(unknown(name));
    }
    place.pending.take().ok_or_else(|| unknown(name))
}

/// Takes sends out for good, in their order: their number names nothing any more.
pub(crate) fn use_up_sends(name: u64) -> Result<Vec<PreparedSend>, CallError> {
    let pending = take(name, true)?;
    used_up(name);
    Ok(match pending {
        Pending::Send(send) => vec![send],
        Pending::Sends(sends) => sends,
        Pending::Wait(..) => Vec::new(),
    })
}

/// Takes a wait out for good.
pub(crate) fn use_up_wait(name: u64) -> Result<PreparedWait, CallError> {
    let Pending::Wait(wait, _) = take(name, false)? else { return Err(unknown(name)) };
    used_up(name);
    Ok(wait)
}

/// Undoes [`take`].
pub(crate) fn put_back(name: u64, pending: Pending) {
    if let Ok((_, place)) = lock_of(name).place(name) {
        place.pending = Some(pending);
    }
}

/// The number names nothing any more.
pub(crate) fn used_up(name: u64) {
    let mut table = lock_of(name);
    if let Ok((index, _)) = table.place(name) {
        table.free(index);
    }
}

/// Looks at a wait's words.
pub(crate) fn append(name: u64, word: (usize, u32), limit: usize) -> Result<u32, CallError> {
    let mut table = lock_of(name);
    let (_, place) = table.place(name)?;
    match &mut place.pending {
        Some(Pending::Wait(_, words)) if words.len() < limit => {
            words.push(word);
            Ok(words.len() as u32)
        }
        Some(Pending::Wait(_, words)) => Err(CallError::NoRoom { words: words.len() as u32 }),
        _ => Err(unknown(name)),
    }
}

/// The queue pair is being destroyed: what was prepared on it is taken back, newest first.
pub(crate) fn forget(owner: usize) {
    let mut table = lock(table_of(owner));
    let mut gone = Vec::new();
    for index in 0..table.places.len() {
        let place = &mut table.places[index];
        if place.owner == owner
            && let Some(pending) = place.pending.take()
        {
            table.free(index as u32);
            gone.push(pending);
        }
    }
    drop(table);
    drop(gone);
}
