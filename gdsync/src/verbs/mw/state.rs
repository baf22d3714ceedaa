//! What a memory window is bound to, in the order in which changes were prepared, and the regions that
//! the card may still reach through it.

use super::WindowError;
use std::collections::VecDeque;

/// A part of a region.
#[derive(Clone, Debug)]
pub(super) struct Binding<R> {
    /// First address, as the remote side names it.
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) region: R,
}

#[derive(Debug)]
enum Phase<R> {
    Closed,
    Bound(Binding<R>),
    /// Bound or not.
    Unknown,
}

/// A bind or an invalidation that has not completed.
#[derive(Debug)]
struct Change<R> {
    number: u64,
    qpn: u32,
    phase: Phase<R>,
}

/// Why a window does not take a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    InUse { by: u32 },
    OtherQueuePair { owner: u32 },
    NotBound,
    Unknown,
}

impl Refusal {
    /// The error of a window with that key, for a queue pair.
    pub(super) fn of(self, rkey: u32, qpn: u32) -> WindowError {
        match self {
            Refusal::InUse { by } => WindowError::InUse { rkey, qpn: by },
            Refusal::OtherQueuePair { owner } => WindowError::OtherQueuePair { rkey, owner, qpn },
            Refusal::NotBound => WindowError::NotBound { rkey },
            Refusal::Unknown => WindowError::Unknown { rkey },
        }
    }
}

/// The state of a window; `R` keeps a region.
#[derive(Debug)]
pub(super) struct WindowState<R> {
    /// The last 8 bits of the newest key.
    tag: u8,
    /// Number of the next change.
    next: u64,
    /// After the newest change that has completed.
    settled: Phase<R>,
    /// The queue pair of that change.
    settled_qpn: u32,
    pending: VecDeque<Change<R>>,
    /// Regions of binds that may have been performed, and of which no later change is known to have
    /// been, with the numbers of the binds; 0 for the settled one.
    held: Vec<(u64, R)>,
}

impl<R> WindowState<R> {
    pub(super) fn new(tag: u8) -> Self {
        WindowState {
            tag,
            next: 0,
            settled: Phase::Closed,
            settled_qpn: 0,
            pending: VecDeque::new(),
            held: Vec::new(),
        }
    }

    pub(super) fn tag(&self) -> u8 {
        self.tag
    }

    /// What it is after all changes, and the queue pair of the newest.
    fn newest(&self) -> (&Phase<R>, u32) {
        self.pending.back().map_or((&self.settled, self.settled_qpn), |change| (&change.phase, change.qpn))
    }

    /// The last 8 bits of its key, and what it is bound to.
    pub(super) fn bound(&self) -> Option<(u8, &Binding<R>)> {
        match self.newest().0 {
            Phase::Bound(binding) => Some((self.tag, binding)),
            Phase::Closed | Phase::Unknown => None,
        }
    }

    /// Whether a queue pair may bind it. Changes of one queue pair are performed in their order; the
    /// order of several is not known.
    pub(super) fn check_closed(&self, qpn: u32) -> Result<(), Refusal> {
        match self.newest() {
            (Phase::Unknown, _) => Err(Refusal::Unknown),
            (Phase::Closed, by) if self.pending.is_empty() || by == qpn => Ok(()),
            (_, by) => Err(Refusal::InUse { by }),
        }
    }

    /// Whether a queue pair may close it.
    pub(super) fn check_bound_by(&self, qpn: u32) -> Result<(), Refusal> {
        match self.newest() {
            (Phase::Bound(_), owner) if owner == qpn => Ok(()),
            (Phase::Bound(_), owner) => Err(Refusal::OtherQueuePair { owner }),
            (Phase::Closed, _) => Err(Refusal::NotBound),
            (Phase::Unknown, _) => Err(Refusal::Unknown),
        }
    }

    /// Appends a bind, under a new key. Returns its number.
    pub(super) fn bind(&mut self, qpn: u32, binding: Binding<R>) -> u64 {
        self.tag = self.tag.wrapping_add(1);
        self.append(qpn, Phase::Bound(binding))
    }

    /// Appends an invalidation. Returns its number.
    pub(super) fn close(&mut self, qpn: u32) -> u64 {
        self.append(qpn, Phase::Closed)
    }

    fn append(&mut self, qpn: u32, phase: Phase<R>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.pending.push_back(Change { number, qpn, phase });
        number
    }

    /// The card has performed a change, and so all before it: what they had opened is closed.
    pub(super) fn finish(&mut self, number: u64) {
        let Some(position) = self.position(number) else { return };
        if let Some(change) = self.pending.drain(..=position).next_back() {
            (self.settled, self.settled_qpn) = (change.phase, change.qpn);
        }
        self.held.retain(|(bind, _)| *bind >= number);
    }

    /// The card may have performed a change or not.
    pub(super) fn doubt(&mut self, number: u64) {
        if self.position(number).is_none() {
            return;
        }
        let settled = std::mem::replace(&mut self.settled, Phase::Unknown);
        let phases = self.pending.drain(..).map(|change| (change.number, change.phase));
        for (bind, phase) in std::iter::once((0, settled)).chain(phases) {
            if let Phase::Bound(binding) = phase {
                self.held.push((bind, binding.region));
            }
        }
    }

    /// A change was taken back. If it is not gone from the queue, the card may have looked at it.
    pub(super) fn cancel(&mut self, number: u64, gone: bool) {
        let change = self.position(number).and_then(|position| self.pending.remove(position));
        if let Some(Change { phase: Phase::Bound(binding), .. }) = change
            && !gone
        {
            self.held.push((number, binding.region));
        }
    }

    /// A send of the peer has closed the window, if that is its key; the completion of the bind may not
    /// have been polled. The region stays: only the card's next change proves that.
    pub(super) fn closed_by_peer(&mut self, tag: u8) -> bool {
        let (number, phase) = match self.pending.back_mut() {
            Some(change) => (change.number, &mut change.phase),
            None => (0, &mut self.settled),
        };
        if tag != self.tag || !matches!(phase, Phase::Bound(_)) {
            return false;
        }
        if let Phase::Bound(binding) = std::mem::replace(phase, Phase::Closed) {
            self.held.push((number, binding.region));
        }
        true
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.pending.iter().position(|change| change.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    type State = WindowState<Arc<()>>;

    fn bind(state: &mut State, qpn: u32, region: &Arc<()>) -> u64 {
        state.check_closed(qpn).unwrap();
        state.bind(qpn, Binding { addr: 0, len: 1, region: region.clone() })
    }

    fn close(state: &mut State, qpn: u32) -> u64 {
        state.check_bound_by(qpn).unwrap();
        state.close(qpn)
    }

    /// Whether the state keeps a region.
    fn keeps(region: &Arc<()>) -> bool {
        Arc::strong_count(region) > 1
    }

    #[test]
    fn a_region_is_kept_until_a_later_change_has_completed() {
        let (mut state, first, second) = (State::new(0xff), Arc::default(), Arc::default());
        let opened = bind(&mut state, 1, &first);
        assert_eq!(state.bound().map(|(tag, _)| tag), Some(0), "another key");
        let closed = close(&mut state, 1);
        let again = bind(&mut state, 1, &second);
        state.finish(opened);
        assert!(keeps(&first) && keeps(&second));
        // The invalidation was unsignaled: its success is known by the bind's.
        state.finish(again);
        assert!(!keeps(&first) && keeps(&second));
        state.finish(closed);
        assert_eq!(state.bound().map(|(tag, _)| tag), Some(1));
        let closed = close(&mut state, 1);
        assert!(keeps(&second) && state.bound().is_none());
        state.finish(closed);
        assert!(!keeps(&second));
    }

    #[test]
    fn another_queue_pair_waits_for_the_invalidation() {
        let (mut state, region) = (State::new(0), Arc::default());
        let opened = bind(&mut state, 1, &region);
        assert_eq!(state.check_closed(1), Err(Refusal::InUse { by: 1 }));
        assert_eq!(state.check_bound_by(2), Err(Refusal::OtherQueuePair { owner: 1 }));
        state.finish(opened);
        let closed = close(&mut state, 1);
        assert_eq!(state.check_closed(1), Ok(()));
        assert_eq!(state.check_closed(2), Err(Refusal::InUse { by: 1 }));
        assert_eq!(state.check_bound_by(1), Err(Refusal::NotBound));
        state.finish(closed);
        assert_eq!(state.check_closed(2), Ok(()));
    }

    #[test]
    fn changes_that_were_taken_back_leave_what_was_before_in_any_order() {
        for first_first in [true, false] {
            let (mut state, region) = (State::new(0), Arc::default());
            let opened = bind(&mut state, 1, &region);
            let closed = close(&mut state, 1);
            let order = if first_first { [opened, closed] } else { [closed, opened] };
            order.into_iter().for_each(|number| state.cancel(number, true));
            assert_eq!(state.check_closed(2), Ok(()));
            assert!(!keeps(&region));
        }
    }

    #[test]
    fn a_bind_that_became_a_nop_keeps_its_region_until_a_later_change_has_completed() {
        let (mut state, first, second) = (State::new(0), Arc::default(), Arc::default());
        let opened = bind(&mut state, 1, &first);
        state.cancel(opened, false);
        assert!(keeps(&first) && state.bound().is_none());
        let again = bind(&mut state, 1, &second);
        assert!(keeps(&first));
        state.finish(again);
        assert!(!keeps(&first) && keeps(&second));
    }

    #[test]
    fn after_a_failure_the_window_takes_no_change_and_keeps_every_region() {
        let (mut state, first, second) = (State::new(0), Arc::default(), Arc::default());
        let opened = bind(&mut state, 1, &first);
        state.finish(opened);
        let closed = close(&mut state, 1);
        let again = bind(&mut state, 1, &second);
        state.doubt(closed);
        state.finish(again);
        assert!(keeps(&first) && keeps(&second));
        assert_eq!(state.check_closed(1), Err(Refusal::Unknown));
        assert_eq!(state.check_bound_by(1), Err(Refusal::Unknown));
        drop(state);
        assert!(!keeps(&first) && !keeps(&second));
    }

    #[test]
    fn a_peer_closes_only_the_newest_key() {
        let (mut state, region) = (State::new(0), Arc::default());
        assert!(!state.closed_by_peer(0), "not bound");
        let opened = bind(&mut state, 1, &region);
        state.finish(opened);
        assert!(!state.closed_by_peer(0), "another key");
        assert!(state.closed_by_peer(1) && !state.closed_by_peer(1), "once");
        assert!(keeps(&region) && state.check_closed(2) == Ok(()));
        let again = bind(&mut state, 2, &Arc::default());
        assert!(keeps(&region));
        state.finish(again);
        assert!(!keeps(&region));
    }

    #[test]
    fn a_peer_may_close_a_window_before_the_completion_of_its_bind_is_polled() {
        let (mut state, region) = (State::new(0), Arc::default());
        let opened = bind(&mut state, 1, &region);
        assert!(state.closed_by_peer(1));
        assert_eq!(state.check_closed(2), Err(Refusal::InUse { by: 1 }));
        state.finish(opened);
        assert!(keeps(&region), "the bind's own completion proves nothing");
        assert_eq!(state.check_closed(2), Ok(()));
        let again = bind(&mut state, 2, &Arc::default());
        state.finish(again);
        assert!(!keeps(&region));
    }
}
