use super::*;
use std::convert::Infallible;

const HERE: HostAddr = HostAddr(0);
const SEND: Doorbell =
    Doorbell { record_at: HostAddr(0x200), record: 1, register: HostAddr(0x800), value: 2 };

/// A stream that sees host memory 0x1000 higher, and cannot reach addresses above 0x1000.
struct Shifted;

type Step = Descriptor<Doorbell, PeerOp, HostAddr, Infallible, PeerOp, (HostAddr, u64)>;

impl Driver for Shifted {
    type Send = Doorbell;
    type Wait = PeerOp;
    type ProgramWord = HostAddr;
    type Bytes = Infallible;
    type Receives = PeerOp;
    type Ticket = (HostAddr, u64);
    type Error = StreamError;

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        if addr.get() > 0x1000 {
            Err(StreamError::Unregistered { addr, len })
        } else {
            Ok(StreamAddr::new(addr.get() + 0x1000))
        }
    }

    fn address(&self, place: &HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.translate(*place, len)
    }

    fn commit_send(&self, send: &mut Doorbell) -> Result<Option<Release>, StreamError> {
        Ok(Some(Release::Ring(*send)))
    }

    fn commit_wait(&self, wait: &mut PeerOp, _fate: Fate, _point: TimelinePoint) -> Option<PeerOp> {
        Some(*wait)
    }

    fn commit_receives(&self, receives: &mut PeerOp) -> Result<PeerOp, StreamError> {
        Ok(*receives)
    }

    fn commit_ticket(&self, ticket: &mut (HostAddr, u64)) -> Result<(StreamAddr, u64), StreamError> {
        Ok((self.translate(ticket.0, 8)?, ticket.1))
    }
}

/// Lowers without merging, after point 8.
fn lower(caps: MemOpCaps, steps: &[Step]) -> Result<Vec<MemOp>, StreamError> {
    let mut ops = Vec::new();
    let timeline = HostAddr(0x100);
    let mut lowering = Lowering::new(Shifted, &caps, timeline, false, TimelinePoint(8), &mut ops);
    for step in steps {
        lowering.lower(&mut { *step }, Fate::Kept)?;
    }
    Ok(ops)
}

#[test]
fn a_send_is_record_then_register() {
    let ops = lower(MemOpCaps::FULL, &[Step::Send(SEND)]).unwrap();
    let expected = [
        MemOp::Write32 { addr: StreamAddr::new(0x1200), value: 1 },
        MemOp::Write64 { addr: StreamAddr::new(0x1800), value: 2 },
    ];
    assert_eq!(ops, expected);
}

#[test]
fn unfenced_writes_get_barriers() {
    let caps = MemOpCaps { writes_are_fenced: false, ..MemOpCaps::FULL };
    let ops = lower(caps, &[Step::Send(SEND)]).unwrap();
    assert!(matches!(
        ops[..],
        [MemOp::Barrier, MemOp::Write32 { .. }, MemOp::Barrier, MemOp::Write64 { .. }]
    ));
}

#[test]
fn receives_are_announced_by_one_write_behind_everything_before() {
    let receives = Step::Receives(PeerOp::StoreDword { addr: HostAddr(0x200), value: 7 });
    let write = MemOp::Write32 { addr: StreamAddr::new(0x1200), value: 7 };
    assert_eq!(lower(MemOpCaps::FULL, &[receives]).unwrap(), [write]);
    let caps = MemOpCaps { writes_are_fenced: false, ..MemOpCaps::FULL };
    assert_eq!(lower(caps, &[receives]).unwrap(), [MemOp::Barrier, write]);
}

#[test]
fn a_ticket_is_one_write_behind_everything_before_as_the_card_reads_it() {
    let ticket = Step::Ticket((HostAddr(0x200), 7));
    let write = MemOp::Write64 { addr: StreamAddr::new(0x1200), value: 7u64.to_be() };
    assert_eq!(lower(MemOpCaps::FULL, &[ticket]).unwrap(), [write]);
    let caps = MemOpCaps { writes_are_fenced: false, ..MemOpCaps::FULL };
    assert_eq!(lower(caps, &[ticket]).unwrap(), [MemOp::Barrier, write]);
    let caps = MemOpCaps { ops_64_bit: false, ..MemOpCaps::FULL };
    assert!(lower(caps, &[ticket]).is_err());
}

#[test]
fn a_wait_is_followed_by_its_point() {
    let wait = PeerOp::PollNor { addr: HostAddr(0x300), value: 5 };
    let ops = lower(MemOpCaps::FULL, &[Step::WaitCq(wait)]).unwrap();
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
    let word = HostAddr(0x308);
    let steps =
        [Step::WaitCq(poll), Step::Wait32(word, Condition::Eq, 1), Step::Wait64(word, Condition::Eq, 1)];
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
    for step in [Step::Send(SEND), Step::Write64(HERE, 1), Step::Wait64(HERE, Condition::Eq, 1)] {
        assert!(lower(no_64_bit, &[step]).is_err());
    }
}

#[test]
fn an_unregistered_address_is_refused() {
    let error = lower(MemOpCaps::FULL, &[Step::Write32(HostAddr(0x2000), 1)]).unwrap_err();
    assert!(matches!(error, StreamError::Unregistered { len: 4, .. }));
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
