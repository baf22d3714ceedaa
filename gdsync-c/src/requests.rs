//! Prepared sends and waits. The C structs hold numbers, as they may be copied and thrown away; what they stand for is here.

use crate::fault::Fault;
use gdsync::{PreparedSend, PreparedWait};
use parking_lot::Mutex;

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
    /// Counts who has had the place: a number with another generation is an old one.
    generation: u32,
    /// The queue pair.
    owner: usize,
    pending: Option<Pending>,
}

#[derive(Default)]
struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { places: Vec::new(), free: Vec::new() });

const STALE: Fault = Fault::Stale {
    what: "the request was not prepared, or was posted, cancelled or destroyed with its queue pair",
};

/// Generation, and place plus 1: a struct of zeroes names nothing.
fn name(generation: u32, place: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place + 1)
}

impl Table {
    fn place(&mut self, name: u64) -> Result<(u32, &mut Place), Fault> {
        let index = (name as u32).checked_sub(1).ok_or(STALE)?;
        let place = self.places.get_mut(index as usize).ok_or(STALE)?;
        if place.generation != (name >> 32) as u32 { Err(STALE) } else { Ok((index, place)) }
    }
}

/// Keeps something for a queue pair; returns its number.
pub(crate) fn keep(owner: usize, pending: Pending) -> u64 {
    let mut table = TABLE.lock();
    if let Some(index) = table.free.pop()
        && let Some(place) = table.places.get_mut(index as usize)
    {
        (place.owner, place.pending) = (owner, Some(pending));
        return name(place.generation, index);
    }
    let index = table.places.len() as u32;
    table.places.push(Place { generation: 1, owner, pending: Some(pending) });
    name(1, index)
}

/// Takes it out. The number is used up once [`used_up`] is told; until then [`put_back`] undoes it.
pub(crate) fn take(name: u64, is_send: bool) -> Result<Pending, Fault> {
    let mut table = TABLE.lock();
    let (_, place) = table.place(name)?;
    let is_one = place.pending.as_ref().map(|pending| !matches!(pending, Pending::Wait(..)));
    if is_one != Some(is_send) {
        return Err(STALE);
    }
    place.pending.take().ok_or(STALE)
}

/// Nothing has come of [`take`].
pub(crate) fn put_back(name: u64, pending: Pending) {
    let mut table = TABLE.lock();
    if let Ok((_, place)) = table.place(name) {
        place.pending = Some(pending);
    }
}

/// The number names nothing any more.
pub(crate) fn used_up(name: u64) {
    let mut table = TABLE.lock();
    let Ok((index, place)) = table.place(name) else { return };
    place.generation = place.generation.wrapping_add(1);
    table.free.push(index);
}

/// Looks at a wait's words.
pub(crate) fn append(name: u64, word: (usize, u32), limit: usize) -> Result<u32, Fault> {
    let mut table = TABLE.lock();
    let (_, place) = table.place(name)?;
    match &mut place.pending {
        Some(Pending::Wait(_, words)) if words.len() < limit => {
            words.push(word);
            Ok(words.len() as u32)
        }
        Some(Pending::Wait(_, words)) => Err(Fault::NoRoom { words: words.len() as u32 }),
        _ => Err(STALE),
    }
}

/// The queue pair goes: what was prepared on it is taken back, newest first.
pub(crate) fn forget(owner: usize) {
    let mut table = TABLE.lock();
    let mut gone = Vec::new();
    for index in 0..table.places.len() {
        let place = &mut table.places[index];
        if place.owner == owner
            && let Some(pending) = place.pending.take()
        {
            place.generation = place.generation.wrapping_add(1);
            table.free.push(index as u32);
            gone.push(pending);
        }
    }
    drop(table);
    drop(gone);
}
