//! Lanes: how the CPU learns what a stream has passed.
//!
//! Every stream has a lane, one 32-bit progress word in pinned memory. Each wait that is posted on the stream takes a
//! *ticket*, the lane's next number, and the stream writes a ticket into the word after the waits it covers. Tickets are
//! handed out and written in stream order, so a word that has reached a ticket proves that everything posted up to that
//! ticket is past. Comparisons are cyclic: at most 2^31 tickets may be outstanding.

use crate::memory::HostAddr;
use crate::memory::arena::{Arena, Line};
use crate::sync::atomic::{AtomicBool, Ordering};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A position in a stream's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ticket(pub(crate) u32);

impl Ticket {
    /// The number that the stream writes.
    pub fn get(self) -> u32 {
        self.0
    }

    pub(crate) fn next(self) -> Ticket {
        Ticket(self.0.wrapping_add(1))
    }
}

/// The progress word of one stream.
#[derive(Debug)]
pub(crate) struct Lane {
    id: u64,
    /// Number of the device context whose stream it is.
    device: u64,
    line: Line,
    /// Set when the stream will never touch memory again, whatever the word says.
    dead: AtomicBool,
    /// The last ticket that the stream was given to write, or is about to be.
    expected: AtomicU32,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Lane {
    /// The lane of a stream of that device.
    pub(crate) fn new(device: u64) -> io::Result<Arc<Lane>> {
        Ok(Self::on(device, Line::new()?))
    }

    /// A lane whose word lies in that arena.
    pub(crate) fn of(device: u64, arena: &Arc<Arena>) -> io::Result<Arc<Lane>> {
        Ok(Self::on(device, Line::of(arena)?))
    }

    fn on(device: u64, line: Line) -> Arc<Lane> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Arc::new(Lane { id, device, line, dead: AtomicBool::new(false), expected: AtomicU32::new(0) })
    }

    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    pub(crate) fn word(&self) -> HostAddr {
        self.line.addr(0)
    }

    /// The last ticket that the stream wrote.
    ///
    /// Acquire: whoever reuses memory because of this value must not have its writes seen by the stream's earlier
    /// operations, nor miss their effects.
    pub(crate) fn progress(&self) -> Ticket {
        Ticket(self.line.word32().load(Ordering::Acquire))
    }

    pub(crate) fn has_passed(&self, ticket: Ticket) -> bool {
        let distance = self.progress().0.wrapping_sub(ticket.0);
        distance <= i32::MAX as u32 || self.is_dead()
    }

    /// Says that a ticket is about to be posted, before it is.
    pub(crate) fn expect(&self, ticket: Ticket) {
        self.expected.store(ticket.0, Ordering::Release);
    }

    /// The stream has passed all that was posted: to be asked where each submission writes its ticket.
    pub(crate) fn is_quiet(&self) -> bool {
        self.has_passed(Ticket(self.expected.load(Ordering::Acquire)))
    }

    /// Declares everything passed. For a stream that has drained, or that failed and will touch nothing any more.
    pub(crate) fn declare_passed(&self, ticket: Ticket) {
        self.line.word32().store(ticket.0, Ordering::Release);
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// The stream will never touch memory again.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn blocked_on(&self, ticket: Ticket) -> Blocked {
        Blocked { lane: self.id, ticket, progress: self.progress() }
    }
}

/// What stands in the way: a stream that has not reached a ticket yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// Number of the stream's lane, unique in the process.
    pub lane: u64,
    /// The ticket it has to reach.
    pub ticket: Ticket,
    /// The ticket it had reached.
    pub progress: Ticket,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} is at ticket {} and must reach {}", self.lane, self.progress.0, self.ticket.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_compare_cyclically() {
        let lane = Lane::new(0).unwrap();
        assert!(lane.has_passed(Ticket(0)) && !lane.has_passed(Ticket(1)));
        lane.declare_passed(Ticket(u32::MAX));
        assert!(
            lane.has_passed(Ticket(u32::MAX - 5))
                && !lane.has_passed(Ticket(0))
                && !lane.has_passed(Ticket(9))
        );
        lane.declare_passed(Ticket(2));
        assert!(
            lane.has_passed(Ticket(u32::MAX)) && lane.has_passed(Ticket(2)) && !lane.has_passed(Ticket(3))
        );
    }

    #[test]
    fn a_lane_is_quiet_once_it_has_passed_what_is_expected_of_it() {
        let lane = Lane::new(0).unwrap();
        assert!(lane.is_quiet());
        lane.expect(Ticket(2));
        lane.declare_passed(Ticket(1));
        assert!(!lane.is_quiet());
        lane.declare_passed(Ticket(2));
        assert!(lane.is_quiet());
    }

    #[test]
    fn a_dead_lane_has_passed_everything() {
        let lane = Lane::new(0).unwrap();
        assert!(lane.blocked_on(Ticket(4)).to_string().contains("at ticket 0 and must reach 4"));
        lane.kill();
        assert!(lane.has_passed(Ticket(4)));
    }
}
