//! From steps to memory operations, one to one. Pure: no I/O, no locks, no FFI.

use crate::memop::{Condition, MemOp, MemOpCaps, Site, StreamError};
use crate::memory::timeline::TimelinePoint;
use crate::memory::{HostAddr, StreamAddr};
use crate::queue::doorbell::{Doorbell, PeerOp};

/// A descriptor, other than a send, with everything resolved that its lowering needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait for a completion entry, then tell the CPU that the stream has seen it.
    WaitCq(PeerOp, TimelinePoint),
    /// Wait for a word.
    Wait32(Site, Condition, u32),
    /// Wait for a word.
    Wait64(Site, Condition, u64),
    /// Write a word.
    Write32(Site, u32),
    /// Write a word.
    Write64(Site, u64),
    /// Make everything before visible to everybody before anything after.
    Barrier,
    /// Make visible what cards wrote before the last wait was satisfied.
    Flush,
    /// Tell the CPU how far the stream has come.
    Progress(TimelinePoint),
}

/// Whose memory an operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The library's: rings, records, registers, timelines. Nothing else shares their pages.
    Library,
    /// The program's: words.
    Program,
}

/// Lowers steps for one backend.
pub(crate) struct Lowering<'a, T> {
    pub(crate) caps: &'a MemOpCaps,
    /// The timeline's progress word.
    pub(crate) timeline: HostAddr,
    /// From host to stream addresses: address, length in bytes, whose.
    pub(crate) translate: T,
}

impl<T: Fn(HostAddr, usize, Owner) -> Result<StreamAddr, StreamError>> Lowering<'_, T> {
    /// Appends the memory operations of a step.
    #[inline]
    pub(crate) fn lower(&self, step: Step, ops: &mut Vec<MemOp>) -> Result<(), StreamError> {
        match step {
            Step::WaitCq(op, point) => {
                self.peer_op(op, ops)?;
                self.flush(ops);
                self.write32(self.library(self.timeline, 4)?, point.0, ops);
            }
            Step::Wait32(site, condition, value) => {
                self.wait32(self.program(site, 4)?, condition, value, ops)?;
                self.flush(ops);
            }
            Step::Wait64(site, condition, value) => {
                self.check_condition(condition)?;
                self.check_64_bit()?;
                let addr = self.program(site, 8)?;
                ops.push(MemOp::Wait64 { addr, condition, value });
                self.flush(ops);
            }
            Step::Write32(site, value) => self.write32(self.program(site, 4)?, value, ops),
            Step::Write64(site, value) => self.write64(self.program(site, 8)?, value, ops)?,
            Step::Barrier => ops.push(MemOp::Barrier),
            Step::Flush if self.caps.flush_remote => ops.push(MemOp::FlushRemote),
            Step::Flush => return Err(StreamError::Unsupported { what: "flushing what cards wrote" }),
            Step::Progress(point) => {
                // Whoever sees it takes everything before for done.
                self.peer_op(PeerOp::Fence, ops)?;
                self.write32(self.library(self.timeline, 4)?, point.0, ops);
            }
        }
        Ok(())
    }

    /// Appends the memory operations that ring the card.
    #[inline(always)]
    pub(crate) fn send(&self, doorbell: Doorbell, ops: &mut Vec<MemOp>) -> Result<(), StreamError> {
        let [before, record, between, register] = doorbell.peer_ops();
        self.peer_op(before, ops)?;
        self.peer_op(record, ops)?;
        self.peer_op(between, ops)?;
        self.peer_op(register, ops)
    }

    #[inline(always)]
    pub(super) fn peer_op(&self, op: PeerOp, ops: &mut Vec<MemOp>) -> Result<(), StreamError> {
        match op {
            // A write that carries its own system fence needs none in front of it.
            PeerOp::Fence if self.caps.writes_are_fenced => Ok(()),
            PeerOp::Fence => {
                ops.push(MemOp::Barrier);
                Ok(())
            }
            PeerOp::StoreDword { addr, value } => {
                self.write32(self.library(addr, 4)?, value, ops);
                Ok(())
            }
            // Never two 32-bit stores: the card takes the doorbell when it sees the first.
            PeerOp::StoreQword { addr, value } => self.write64(self.library(addr, 8)?, value, ops),
            PeerOp::PollAnd { addr, value } => {
                self.wait32(self.library(addr, 4)?, Condition::And, value, ops)
            }
            PeerOp::PollNor { addr, value } => {
                self.wait32(self.library(addr, 4)?, Condition::Nor, value, ops)
            }
        }
    }

    #[inline]
    fn library(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        (self.translate)(addr, len, Owner::Library)
    }

    #[inline]
    fn program(&self, site: Site, len: usize) -> Result<StreamAddr, StreamError> {
        match site {
            Site::Host(addr) => (self.translate)(addr, len, Owner::Program),
            Site::Stream(addr) => Ok(addr),
        }
    }

    /// A word that a card has written may be seen before the data that it wrote earlier.
    pub(super) fn flush(&self, ops: &mut Vec<MemOp>) {
        if self.caps.flush_after_wait {
            ops.push(MemOp::FlushRemote);
        }
    }

    #[inline]
    fn write32(&self, addr: StreamAddr, value: u32, ops: &mut Vec<MemOp>) {
        ops.push(MemOp::Write32 { addr, value });
    }

    #[inline]
    fn write64(&self, addr: StreamAddr, value: u64, ops: &mut Vec<MemOp>) -> Result<(), StreamError> {
        self.check_64_bit()?;
        ops.push(MemOp::Write64 { addr, value });
        Ok(())
    }

    fn wait32(
        &self,
        addr: StreamAddr,
        condition: Condition,
        value: u32,
        ops: &mut Vec<MemOp>,
    ) -> Result<(), StreamError> {
        self.check_condition(condition)?;
        ops.push(MemOp::Wait32 { addr, condition, value });
        Ok(())
    }

    fn check_condition(&self, condition: Condition) -> Result<(), StreamError> {
        if condition == Condition::Nor && !self.caps.wait_nor {
            return Err(StreamError::Unsupported { what: "waiting for NOR" });
        }
        Ok(())
    }

    fn check_64_bit(&self) -> Result<(), StreamError> {
        if self.caps.ops_64_bit {
            Ok(())
        } else {
            Err(StreamError::Unsupported { what: "64-bit memory operations" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Site = Site::Host(HostAddr(0));
    const TIMELINE: HostAddr = HostAddr(0x100);
    const SEND: Doorbell =
        Doorbell { record_at: HostAddr(0x200), record: 1, register: HostAddr(0x800), value: 2 };

    /// A stream that sees host memory 0x1000 higher, and nothing above 0x1000.
    fn translate(addr: HostAddr, len: usize, _owner: Owner) -> Result<StreamAddr, StreamError> {
        if addr.get() > 0x1000 {
            Err(StreamError::Unregistered { addr, len })
        } else {
            Ok(StreamAddr::new(addr.get() + 0x1000))
        }
    }

    fn send(caps: MemOpCaps) -> Result<Vec<MemOp>, StreamError> {
        let mut ops = Vec::new();
        Lowering { caps: &caps, timeline: TIMELINE, translate }.send(SEND, &mut ops)?;
        Ok(ops)
    }

    fn lower(caps: MemOpCaps, steps: &[Step]) -> Result<Vec<MemOp>, StreamError> {
        let lowering = Lowering { caps: &caps, timeline: TIMELINE, translate };
        let mut ops = Vec::new();
        for step in steps {
            lowering.lower(*step, &mut ops)?;
        }
        Ok(ops)
    }

    #[test]
    fn a_send_is_record_then_register() {
        let ops = send(MemOpCaps::FULL).unwrap();
        let expected = [
            MemOp::Write32 { addr: StreamAddr::new(0x1200), value: 1 },
            MemOp::Write64 { addr: StreamAddr::new(0x1800), value: 2 },
        ];
        assert_eq!(ops, expected);
    }

    #[test]
    fn unfenced_writes_get_barriers() {
        let ops = send(MemOpCaps { writes_are_fenced: false, ..MemOpCaps::FULL }).unwrap();
        assert!(matches!(
            ops[..],
            [MemOp::Barrier, MemOp::Write32 { .. }, MemOp::Barrier, MemOp::Write64 { .. }]
        ));
    }

    #[test]
    fn a_wait_is_followed_by_its_point() {
        let wait = PeerOp::PollNor { addr: HostAddr(0x300), value: 5 };
        let ops = lower(MemOpCaps::FULL, &[Step::WaitCq(wait, TimelinePoint(9))]).unwrap();
        let expected = [
            MemOp::Wait32 { addr: StreamAddr::new(0x1300), condition: Condition::Nor, value: 5 },
            MemOp::Write32 { addr: StreamAddr::new(0x1100), value: 9 },
        ];
        assert_eq!(ops, expected);
    }

    #[test]
    fn waits_are_flushed_where_that_is_needed() {
        let caps = MemOpCaps { flush_after_wait: true, ..MemOpCaps::FULL };
        let poll = PeerOp::PollAnd { addr: HostAddr(0x300), value: 5 };
        let word = Site::Host(HostAddr(0x308));
        let steps = [
            Step::WaitCq(poll, TimelinePoint(9)),
            Step::Wait32(word, Condition::Eq, 1),
            Step::Wait64(word, Condition::Eq, 1),
        ];
        let ops = lower(caps, &steps).unwrap();
        assert!(matches!(
            ops[..],
            [
                MemOp::Wait32 { .. },
                MemOp::FlushRemote,
                MemOp::Write32 { .. },
                MemOp::Wait32 { .. },
                MemOp::FlushRemote,
                MemOp::Wait64 { .. },
                MemOp::FlushRemote
            ]
        ));
    }

    #[test]
    fn missing_capabilities_are_refused() {
        let nor = Step::Wait32(HERE, Condition::Nor, 0);
        let error = lower(MemOpCaps { wait_nor: false, ..MemOpCaps::FULL }, &[nor]).unwrap_err();
        assert!(matches!(error, StreamError::Unsupported { what: "waiting for NOR" }));
        let no_64_bit = MemOpCaps { ops_64_bit: false, ..MemOpCaps::FULL };
        assert!(send(no_64_bit).is_err());
        for step in [Step::Write64(HERE, 1), Step::Wait64(HERE, Condition::Eq, 1)] {
            assert!(lower(no_64_bit, &[step]).is_err());
        }
    }

    #[test]
    fn an_unregistered_address_is_refused() {
        let error = lower(MemOpCaps::FULL, &[Step::Write32(Site::Host(HostAddr(0x2000)), 1)]).unwrap_err();
        assert!(matches!(error, StreamError::Unregistered { len: 4, .. }));
    }

    #[test]
    fn memory_of_the_streams_own_device_is_named_as_it_is() {
        let site = Site::Stream(StreamAddr::new(0x9_0000));
        let ops = lower(MemOpCaps::FULL, &[Step::Write64(site, 1), Step::Wait32(site, Condition::Geq, 2)]);
        let addr = StreamAddr::new(0x9_0000);
        let wait = MemOp::Wait32 { addr, condition: Condition::Geq, value: 2 };
        assert_eq!(ops, Ok(vec![MemOp::Write64 { addr, value: 1 }, wait]));
    }

    #[test]
    fn barriers_and_flushes_are_what_they_are_called_or_refused() {
        let ops = lower(MemOpCaps::FULL, &[Step::Barrier, Step::Flush]);
        assert_eq!(ops, Ok(vec![MemOp::Barrier, MemOp::FlushRemote]));
        let none = MemOpCaps { flush_remote: false, ..MemOpCaps::FULL };
        assert!(lower(none, &[Step::Barrier]).is_ok());
        let error = lower(none, &[Step::Flush]).unwrap_err();
        assert_eq!(error.to_string(), "the stream does not support flushing what cards wrote");
    }
}
