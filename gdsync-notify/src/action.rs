//! What a queue does at a rank, with what it needs, so that it can be done again.

use gdsync::{RemoteMemory, Slice, WorkRequest};

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Writes a slice.
    Write(Slice, RemoteMemory),
    /// Sets a notification.
    Set([u8; 4], RemoteMemory),
    /// Reads into a slice.
    Read(Slice, RemoteMemory),
    /// Adds a number, and fetches the old one.
    FetchAdd(Slice, RemoteMemory, u64),
    /// Replaces a number where it is the first of these by the second, and fetches the old one.
    CompareSwap(Slice, RemoteMemory, [u64; 2]),
    /// Asks whether the card answers: an empty write.
    Probe,
}

impl Action {
    pub(crate) fn request(&self) -> WorkRequest<'_> {
        match self {
            Action::Write(slice, to) => WorkRequest::write(std::slice::from_ref(slice), *to),
            Action::Set(value, to) => WorkRequest::write_inline(value, *to),
            Action::Read(into, from) => WorkRequest::read(std::slice::from_ref(into), *from),
            Action::FetchAdd(into, at, add) => WorkRequest::fetch_add(into, *at, *add),
            Action::CompareSwap(into, at, [compare, swap]) => {
                WorkRequest::compare_swap(into, *at, *compare, *swap)
            }
            Action::Probe => WorkRequest::write_inline(&[], RemoteMemory { addr: 0, len: 0, rkey: 0 }),
        }
    }
}

/// The newest requests that later ones may overtake.
///
/// A card keeps the order of requests, but for what stands behind a read or an atomic (IB specification,
/// 10.8.3.3, ordering of work requests): a write and a change by an atomic may be performed before a read in
/// front of them is, and may be taken from memory that the read has still to fill. Such a request is given a
/// fence: it starts when reads and atomics before it have finished. Reads are not held up, nor atomics by
/// atomics.
///
/// Numbers of requests are compared with what has completed, and nothing is noted of fences: one that was
/// prepared may never be posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetches {
    read: u64,
    atomic: u64,
}

impl Fetches {
    /// Whether the next request needs a fence, where those up to `completed` have completed. None is one
    /// that only completes, and does so behind all others.
    pub(crate) fn need_fence(&self, action: Option<&Action>, completed: u64) -> bool {
        let newest = match action {
            Some(Action::Read(..)) => 0,
            Some(Action::FetchAdd(..) | Action::CompareSwap(..)) => self.read,
            Some(Action::Write(..) | Action::Set(..) | Action::Probe) | None => self.read.max(self.atomic),
        };
        newest > completed
    }

    /// A request was given a number.
    pub(crate) fn note(&mut self, action: &Action, number: u64) {
        match action {
            Action::Read(..) => self.read = number,
            Action::FetchAdd(..) | Action::CompareSwap(..) => self.atomic = number,
            Action::Write(..) | Action::Set(..) | Action::Probe => {}
        }
    }
}

/// The request, with a fence where it needs one.
pub(crate) fn fenced(request: WorkRequest<'_>, is_needed: bool) -> WorkRequest<'_> {
    if is_needed { request.fence() } else { request }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};

    #[test]
    fn what_may_overtake_a_read_or_an_atomic_gets_a_fence() {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let region = MemoryRegion::allocate(&pd, 8, Access::LOCAL_WRITE).unwrap();
        let (slice, at) = (region.slice(..).unwrap(), region.remote());
        let [write, set] = [Action::Write(slice.clone(), at), Action::Set([1; 4], at)];
        let read = Action::Read(slice.clone(), at);
        let [add, swap] = [Action::FetchAdd(slice.clone(), at, 1), Action::CompareSwap(slice, at, [1, 2])];
        let all = |fetches: &Fetches, completed| {
            [Some(&write), Some(&set), Some(&Action::Probe), None, Some(&add), Some(&swap), Some(&read)]
                .map(|action| fetches.need_fence(action, completed))
        };
        let mut fetches = Fetches::default();
        assert_eq!(all(&fetches, 0), [false; 7]);
        fetches.note(&write, 1);
        assert_eq!(all(&fetches, 0), [false; 7]);
        fetches.note(&add, 2);
        assert_eq!(all(&fetches, 1), [true, true, true, true, false, false, false]);
        fetches.note(&read, 3);
        assert_eq!(all(&fetches, 2), [true, true, true, true, true, true, false]);
        fetches.note(&swap, 4);
        assert_eq!(all(&fetches, 3), [true, true, true, true, false, false, false]);
        assert_eq!(all(&fetches, 4), [false; 7]);
    }
}
