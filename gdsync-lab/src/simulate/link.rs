//! The two ends of a link: their queue pairs, and how they are made and connected.

use super::cards::{CardBed, Pool, Region, SLOT};
use super::driven::Driven;
use super::program::{DEPTH, KEEP, Kind, LinkPlan};
use super::rings::{ReceiveQueue, SendQueue};
use crate::soak::ledger::Ledger;
use crate::soak::plan::Random;
use gdsync_cli::failure::Failure;
use gdsync_sys::prm::wqe::Opcode;
use softhca::card::{Access, Address, Card, QpChange, QpConfig, QpState, Transport};
use std::collections::VecDeque;

const QKEY: u32 = 0x1111_1111;
pub(super) const DC_KEY: u64 = 0x1122_3344_5566_7788;

/// The parts of an end's memory, each of places of [`SLOT`] bytes: what is sent, what is received, results of reads and
/// atomics, what the peer writes, and a word for the peer's atomics.
pub(super) const OUT: usize = 0;
pub(super) const IN: usize = OUT + DEPTH * SLOT;
pub(super) const LANDING: usize = IN + DEPTH * SLOT;
pub(super) const WINDOW: usize = LANDING + DEPTH * SLOT;
pub(super) const WINDOWS: usize = 2 * DEPTH;
pub(super) const WORD: usize = WINDOW + WINDOWS * SLOT;
/// Of persistent requests, by their places: what is sent, what is received, and what the peer writes.
pub(super) const KEPT: usize = WORD + 64;
pub(super) const KEPT_IN: usize = KEPT + KEEP * SLOT;
pub(super) const KEPT_WINDOW: usize = KEPT_IN + KEEP * SLOT;
pub(super) const LENGTH: usize = KEPT_WINDOW + KEEP * SLOT;

/// The effect of a send work request that succeeds.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Nothing,
    /// The peer has everything before this message number.
    Message(u32),
    /// These bytes are in the peer's memory; and the message number, if the write has an immediate.
    Write {
        at: usize,
        bytes: Vec<u8>,
        message: Option<u32>,
    },
    /// These bytes are in the own memory.
    Read {
        at: usize,
        bytes: Vec<u8>,
    },
    /// The former value is in the own memory.
    Atomic {
        at: usize,
        former: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Posted {
    pub(super) opcode: Opcode,
    /// Bytes of its completion entry, if it has a result.
    pub(super) result: Option<u32>,
    pub(super) effect: Effect,
    /// Where its bytes are sent from.
    pub(super) out: (usize, usize),
}

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) number: u32,
    pub(super) opcode: Opcode,
    pub(super) bytes: Vec<u8>,
    pub(super) immediate: [u8; 4],
    /// Where a write with an immediate puts them.
    pub(super) at: Option<usize>,
    /// Number of the peer's next write when it was posted.
    pub(super) writes: usize,
}

/// The word of an end for the peer's atomics.
#[derive(Debug, Default)]
pub(super) struct Word {
    pub(super) certain: u64,
    /// The values after each outstanding operation.
    pub(super) coming: VecDeque<u64>,
}

#[derive(Default)]
pub(super) struct Queues {
    pub(super) send: Option<SendQueue>,
    /// `None` if receives come from a shared queue.
    pub(super) receive: Option<ReceiveQueue>,
    /// The queue pair of the library, instead of both.
    pub(super) library: Option<Driven>,
}

impl Queues {
    pub(super) fn can_send(&self) -> bool {
        self.send.is_some() || self.library.is_some() && !self.has_failed()
    }

    /// Returns whether the library knows of a failure.
    pub(super) fn has_failed(&self) -> bool {
        self.library.as_ref().is_some_and(|driven| driven.queue_pair.failure().is_some())
    }
}

pub(super) struct End {
    pub(super) card: usize,
    /// 0: there is none.
    pub(super) qpn: u32,
    /// Number of its queue pairs so far.
    pub(super) life: u32,
    pub(super) queues: Queues,
    pub(super) region: Region,
    pub(super) ledger: Ledger<Posted>,
    /// The indices of the outstanding requests.
    pub(super) indices: VecDeque<u16>,
    /// The places of the posted receives, by their indices.
    pub(super) posted: VecDeque<(u16, usize)>,
    pub(super) receives: usize,
    /// Messages to this end that have not come.
    pub(super) coming: VecDeque<Message>,
    /// Number of the next message to this end, of the next that comes, and of the first that is not acknowledged.
    pub(super) sent: u32,
    pub(super) received: u32,
    pub(super) acknowledged: u32,
    /// Effects that failed requests may have had.
    pub(super) uncertain: Vec<Effect>,
    pub(super) word: Word,
    /// Number of the peer's next write.
    pub(super) writes: usize,
    /// Content of the window when all posted writes are done.
    pub(super) future: Vec<u8>,
    /// True after a failure of any of its requests, and after one of a send.
    pub(super) failed: bool,
    pub(super) flushes: bool,
}

pub(super) struct Link {
    pub(super) plan: LinkPlan,
    pub(super) ends: [End; 2],
    /// How often it was connected.
    connections: u8,
    /// True if its failure needs no other reason.
    pub(super) may_fail: bool,
    /// True if a failure for lack of retries needs none.
    pub(super) uses_up_retries: bool,
    /// True after the end of one of its cards.
    pub(super) is_dead: bool,
}

impl End {
    fn new(card: usize) -> Result<Self, Failure> {
        Ok(End {
            card,
            qpn: 0,
            life: 0,
            queues: Queues::default(),
            region: Region::new(LENGTH)?,
            ledger: Ledger::default(),
            indices: VecDeque::new(),
            posted: VecDeque::new(),
            receives: 0,
            coming: VecDeque::new(),
            sent: 0,
            received: 0,
            acknowledged: 0,
            uncertain: Vec::new(),
            word: Word::default(),
            writes: 0,
            future: vec![0; WINDOWS * SLOT],
            failed: false,
            flushes: false,
        })
    }

    fn transport(kind: Kind, side: usize) -> Transport {
        match (kind, side) {
            (Kind::Rc, _) => Transport::Rc,
            (Kind::Uc, _) => Transport::Uc,
            (Kind::Ud | Kind::Group, _) => Transport::Ud,
            (Kind::Xrc, 0) => Transport::XrcInitiator,
            (Kind::Xrc, _) => Transport::XrcTarget,
            (Kind::Dc, 0) => Transport::DcInitiator,
            (Kind::Dc, _) => Transport::DcTarget,
        }
    }

    /// Returns whether a completion or the library has told of a failure.
    pub(super) fn has_failed(&self) -> bool {
        self.failed || self.queues.has_failed()
    }

    /// Makes the queue pair of an end.
    fn make(&mut self, plan: &LinkPlan, side: usize, bed: &CardBed) -> Result<(), Failure> {
        self.life += 1;
        if let Some(by) = plan.library {
            let bench = bed.bench.as_ref().ok_or("the library has not opened this card")?;
            let receives = bed.pools.get(plan.pool()).and_then(Pool::library).filter(|_| plan.shared);
            let memory = (self.region.memory.clone(), self.life);
            let driven = Driven::new(plan, by[side], memory, (bench, receives))?;
            (self.qpn, self.region.key) = (driven.queue_pair.number(), driven.region.rkey());
            self.queues = Queues { library: Some(driven), ..Queues::default() };
            return Ok(());
        }
        let transport = Self::transport(plan.kind, side);
        let mut config = QpConfig::new(transport);
        let is_target = matches!(transport, Transport::XrcTarget | Transport::DcTarget);
        let is_initiator = matches!(transport, Transport::XrcInitiator | Transport::DcInitiator);
        let mut queues = Queues::default();
        if transport == Transport::XrcTarget {
            config.xrcd = Some(bed.xrcd);
        } else {
            config.pdn = Some(bed.pdn);
        }
        if !is_target {
            config.send_cq = Some(bed.sends.cqn);
            let send = SendQueue::new(&bed.card, 4 * DEPTH as u32, &mut config)?;
            if !is_initiator && !plan.shared {
                queues.receive = Some(ReceiveQueue::new(DEPTH as u32, &send, &mut config)?);
            }
            queues.send = Some(send);
        }
        if !is_initiator && transport != Transport::XrcTarget {
            config.recv_cq = Some(bed.receives.cqn);
            config.srq = plan.shared.then_some(bed.pools[0].srqn);
        }
        config.dc_key = DC_KEY;
        // SAFETY: an episode drops its cards before the queues of its links.
        self.qpn = unsafe { bed.card.create_qp(&config) }?;
        self.queues = queues;
        self.region.register(bed, plan.relaxed)?;
        Ok(())
    }
}

impl Link {
    pub(super) fn new(plan: LinkPlan) -> Result<Self, Failure> {
        let [one, other] = plan.cards.map(End::new);
        let ends = [one?, other?];
        Ok(Link { plan, ends, connections: 0, may_fail: false, uses_up_retries: false, is_dead: false })
    }

    /// Makes the queue pairs that are missing, and connects them.
    pub(super) fn connect(&mut self, cards: &[CardBed], random: &mut Random) -> Result<(), Failure> {
        for (side, end) in self.ends.iter_mut().enumerate() {
            if end.qpn == 0 {
                end.make(&self.plan, side, &cards[end.card])?;
            }
        }
        if self.plan.library.is_some() {
            return self.connect_library();
        }
        self.connections = self.connections.wrapping_add(1);
        // Often just before the numbers wrap.
        let psns = [0; 2].map(|_| match random.below(2) {
            0 => 0xff_ffff - random.below(64) as u32,
            _ => random.next() as u32 & 0xff_ffff,
        });
        for side in 0..2 {
            let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
            let (own, other) = (&cards[end.card].card, &cards[peer.card].card);
            self.bring_up(own, side, Address { dlid: other.lid(), gid: None }, psns)?;
        }
        Ok(())
    }

    /// Returns the Q_Key of its datagrams. Each connection has another: the card drops a datagram of a former one that
    /// faults have held back.
    pub(super) fn qkey(&self) -> u32 {
        QKEY + u32::from(self.connections)
    }

    /// Returns the GID of its multicast group. Each connection has another: a datagram of a former one may still be on its
    /// way, and finds no member.
    pub(super) fn group(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[14], gid[15]) = (0xff, 0x12, self.connections, self.plan.number);
        gid
    }

    fn bring_up(&self, card: &Card, side: usize, address: Address, psns: [u32; 2]) -> Result<(), Failure> {
        let (qpn, dest) = (self.ends[side].qpn, self.ends[1 - side].qpn);
        let (sq_psn, rq_psn) = (Some(psns[side]), Some(psns[1 - side]));
        let LinkPlan { timeout, rnr_timer, .. } = self.plan;
        let to = |state| QpChange { state: Some(state), ..QpChange::default() };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let init = QpChange { pkey_index: Some(0), port: Some(1), ..to(QpState::Init) };
        let rtr = QpChange { path_mtu: Some(3), ..to(QpState::Rtr) };
        let answers = |rtr: QpChange| QpChange { min_rnr_timer: Some(rnr_timer), ..rtr };
        let connected =
            |rtr: QpChange| QpChange { address: Some(address), dest_qpn: Some(dest), rq_psn, ..rtr };
        let patient = QpChange {
            timeout: Some(timeout),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(4),
            sq_psn,
            ..to(QpState::Rts)
        };
        let reads = |rtr: QpChange| QpChange { max_dest_rd_atomic: Some(4), ..rtr };
        let allows = QpChange { access: Some(access), ..init };
        let (init, rtr, rts) = match End::transport(self.plan.kind, side) {
            Transport::Rc => (allows, reads(answers(connected(rtr))), Some(patient)),
            Transport::Uc => {
                let allows = QpChange { access: Some(Access::REMOTE_WRITE), ..init };
                (allows, connected(rtr), Some(QpChange { sq_psn, ..to(QpState::Rts) }))
            }
            Transport::Ud => {
                let init = QpChange { qkey: Some(self.qkey()), ..init };
                (init, to(QpState::Rtr), Some(QpChange { sq_psn, ..to(QpState::Rts) }))
            }
            Transport::XrcInitiator => (allows, connected(rtr), Some(patient)),
            Transport::XrcTarget => (allows, reads(answers(connected(rtr))), None),
            Transport::DcInitiator => (init, rtr, Some(patient)),
            Transport::DcTarget => (allows, QpChange { address: Some(address), ..answers(rtr) }, None),
        };
        card.modify_qp(qpn, &init)?;
        card.modify_qp(qpn, &rtr)?;
        rts.map_or(Ok(()), |rts| card.modify_qp(qpn, &rts))?;
        if self.plan.kind == Kind::Group {
            card.attach_multicast(qpn, &self.group())?;
        }
        Ok(())
    }
}
