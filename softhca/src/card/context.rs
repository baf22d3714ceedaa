//! The resources that all queue pairs of a card share: memory regions, completion queues, diagnostics, buffers.

use super::config::{Access, Checks, PkeyTable, StoppedPeers, WaitRules};
use super::counters::CardCounters;
use super::delayed::DelayedCompletions;
use super::listeners::AwaitedWords;
use super::management::Inbox;
use super::memory::clock::Clock;
use super::memory::copy::{self, MemoryFailure, Target};
use super::memory::deferred::{DeferredWrites, HowToWrite};
use super::memory::gather::Gather;
use super::memory::peer_copies::PeerCopies;
use super::memory::region::Regions;
use super::memory::ring::{self, Entry};
use super::memory::translation::Refusal;
use super::port::{GroupMembers, Port};
use super::queue::cq::{Cq, Fires, Progress};
use super::queue::receive::{Receive, ReceiveOwner, Slot};
use super::queue::shared::{Broken, Srq, Taken};
use super::queue::wqe::each_piece;
use super::reports::{Diagnostic, Diagnostics, Event, Verdict};
use super::trace;
use super::watch::Watches;
use crate::fabric::PayloadPart;
use crate::faults::{Direction, Faults};
use crate::liberties::journal;
use crate::liberties::{Decisions, LibertyKinds, Work};
use crate::packet::PacketKind;
use crate::speed::Speed;
use gdsync_sys::prm::cqe::{Cqe64, CqeOpcode};
use gdsync_sys::prm::wqe::{DataSeg, Opcode};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The shared objects of a card.
pub(crate) struct Resources {
    pub(crate) port: Port,
    pub(crate) pkeys: PkeyTable,
    pub(crate) counters: CardCounters,
    pub(crate) speed: Speed,
    pub(crate) clock: Arc<Clock>,
    pub(crate) regions: Regions,
    pub(crate) cqs: HashMap<u32, Cq>,
    pub(crate) srqs: HashMap<u32, Srq>,
    pub(crate) events: Vec<Event>,
    pub(crate) diagnostics: Diagnostics,
    pub(crate) payload: Gather,
    pub(crate) peers: PeerCopies,
    pub(crate) faults: Faults,
    pub(crate) decisions: Decisions,
    /// Completion entries that faults or liberties delay.
    pub(crate) delayed: DelayedCompletions,
    /// Completion queues with an event that moderation holds back, by its due time.
    pub(crate) held_events: BTreeSet<(Instant, u32)>,
    pub(crate) waits: WaitRules,
    pub(crate) checks: Checks,
    pub(crate) stopped_peers: StoppedPeers,
    pub(crate) watches: Watches,
    /// Queue pairs created with `cd_slave_send`.
    pub(crate) slaves: HashSet<u32>,
    /// Executed SEND_ENs that the engine has not passed on yet.
    pub(crate) enables: Vec<Enable>,
    pub(crate) inbox: Inbox,
    pub(crate) groups: GroupMembers,
    pub(crate) awaited: AwaitedWords,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Enable {
    pub(crate) slave: u32,
    /// One past the last block that the slave may execute, modulo 2^16.
    pub(crate) until: u16,
    pub(crate) master: u32,
    /// WQE index of the SEND_EN.
    pub(crate) index: u16,
}

impl Resources {
    pub(crate) fn new(
        (port, speed): (Port, Speed),
        clock: Arc<Clock>,
        faults: Faults,
        decisions: Decisions,
        waits: WaitRules,
    ) -> Self {
        Resources {
            port,
            pkeys: PkeyTable::default(),
            counters: CardCounters::default(),
            speed,
            clock,
            regions: Regions::with(faults.clone()),
            cqs: HashMap::new(),
            srqs: HashMap::new(),
            events: Vec::new(),
            diagnostics: Diagnostics::default(),
            payload: Gather::default(),
            peers: PeerCopies::default(),
            faults,
            decisions,
            delayed: DelayedCompletions::default(),
            held_events: BTreeSet::new(),
            waits,
            checks: Checks::empty(),
            stopped_peers: StoppedPeers::default(),
            watches: Watches::default(),
            slaves: HashSet::new(),
            enables: Vec::new(),
            inbox: Inbox::default(),
            groups: GroupMembers::default(),
            awaited: AwaitedWords::default(),
        }
    }

    #[inline]
    pub(crate) fn context(&mut self, now: Instant) -> Context<'_> {
        Context {
            now,
            port: self.port,
            pkeys: &self.pkeys,
            counters: &mut self.counters,
            speed: self.speed,
            clock: &self.clock,
            regions: &self.regions,
            cqs: &mut self.cqs,
            srqs: &mut self.srqs,
            events: &mut self.events,
            diagnostics: &mut self.diagnostics,
            payload: &mut self.payload,
            peers: &mut self.peers,
            faults: &self.faults,
            decisions: &mut self.decisions,
            delayed: &mut self.delayed,
            held_events: &mut self.held_events,
            waits: self.waits,
            checks: self.checks,
            stopped_peers: self.stopped_peers,
            watches: &mut self.watches,
            slaves: &self.slaves,
            enables: &mut self.enables,
            inbox: &mut self.inbox,
            groups: &self.groups,
            awaited: &mut self.awaited,
        }
    }
}

/// The resources of a card, borrowed for one step of a queue pair.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) port: Port,
    pub(crate) pkeys: &'a PkeyTable,
    pub(crate) counters: &'a mut CardCounters,
    pub(crate) speed: Speed,
    pub(crate) clock: &'a Clock,
    pub(crate) regions: &'a Regions,
    cqs: &'a mut HashMap<u32, Cq>,
    srqs: &'a mut HashMap<u32, Srq>,
    events: &'a mut Vec<Event>,
    diagnostics: &'a mut Diagnostics,
    pub(crate) payload: &'a mut Gather,
    peers: &'a mut PeerCopies,
    pub(crate) faults: &'a Faults,
    pub(crate) decisions: &'a mut Decisions,
    delayed: &'a mut DelayedCompletions,
    held_events: &'a mut BTreeSet<(Instant, u32)>,
    pub(crate) waits: WaitRules,
    pub(crate) checks: Checks,
    pub(crate) stopped_peers: StoppedPeers,
    pub(crate) watches: &'a mut Watches,
    slaves: &'a HashSet<u32>,
    enables: &'a mut Vec<Enable>,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) groups: &'a GroupMembers,
    pub(crate) awaited: &'a mut AwaitedWords,
}

/// A shared receive queue is broken for good. A diagnostic gives the reason.
pub(crate) struct SharedQueueBroken;

/// The reason why payload cannot be copied to a list of segments.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScatterError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Memory(#[from] MemoryFailure),
}

impl ScatterError {
    /// Returns the field of its diagnostic: `key` for a refused segment.
    pub(crate) fn field(&self, key: &'static str) -> &'static str {
        match self {
            ScatterError::Refused(_) => key,
            ScatterError::Memory(failure) => failure.field(),
        }
    }
}

impl Context<'_> {
    /// Reports something that a card would not accept.
    pub(crate) fn report(&mut self, qpn: u32, index: Option<u16>, field: &'static str, message: String) {
        let (verdict, qpn) = (Verdict::Refused, Some(qpn));
        self.diagnostics.report(Diagnostic { verdict, qpn, index, field, message });
    }

    /// Reports something that a card would accept, but that works by luck only or is unusual.
    pub(crate) fn advise(&mut self, qpn: u32, index: Option<u16>, field: &'static str, message: String) {
        let (verdict, qpn) = (Verdict::Accepted, Some(qpn));
        self.diagnostics.report(Diagnostic { verdict, qpn, index, field, message });
    }

    /// Reports what a check has found: a card would accept it, and the program works by luck.
    pub(crate) fn found(&mut self, qpn: u32, index: Option<u16>, field: &'static str, message: String) {
        let diagnostic = Diagnostic { verdict: Verdict::Accepted, qpn: Some(qpn), index, field, message };
        if let Some(journal) = self.decisions.journal() {
            journal.write(&journal::Entry::Found { text: diagnostic.to_string() });
        }
        self.diagnostics.found(diagnostic);
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Reports that a queue pair takes no more from its shared receive queue and that all its receives have completed,
    /// once no delayed entry of it is left.
    pub(crate) fn last_receive(&mut self, qpn: u32) {
        if self.delayed.last_receive(qpn) {
            self.emit(Event::LastReceive { qpn });
        }
    }

    /// Returns the fill level of a completion queue; `None` if it does not exist.
    pub(crate) fn progress(&self, cqn: u32) -> Option<Progress> {
        self.cqs.get(&cqn).map(Cq::progress)
    }

    /// Returns whether a completion queue has entries that its program has not consumed yet.
    pub(crate) fn has_unconsumed(&self, cqn: u32) -> bool {
        self.delayed.holds(cqn) || self.cqs.get(&cqn).is_some_and(Cq::has_unconsumed)
    }

    /// Returns the stride of a completion queue, if its entries have room for `data` bytes inside.
    pub(crate) fn stride_for(&self, cqn: Option<u32>, data: usize) -> Option<u32> {
        let stride = self.cqs.get(&cqn?)?.ring.stride;
        (1..=ring::room(stride)).contains(&data).then_some(stride)
    }

    /// Releases sends of another queue pair. Returns false if that is no slave.
    pub(crate) fn enable(&mut self, enable: Enable) -> bool {
        let is_slave = self.slaves.contains(&enable.slave);
        if is_slave {
            self.enables.push(enable);
        }
        is_slave
    }

    /// Returns the protection domain of a shared receive queue in an XRC domain.
    pub(crate) fn xrc_domain(&self, srqn: u32, xrcd: u32) -> Option<u32> {
        let srq = self.srqs.get(&srqn).filter(|srq| srq.xrc.is_some_and(|xrc| xrc.xrcd == xrcd))?;
        Some(srq.pdn)
    }

    /// Returns whether a shared receive queue has a posted receive.
    pub(crate) fn has_shared(&mut self, srqn: u32) -> bool {
        self.srqs.get_mut(&srqn).is_some_and(Srq::has_receive)
    }

    /// Takes a receive of a shared queue for a queue pair. It completes for `owner`, unless the queue is an XRC one.
    pub(crate) fn take_shared(
        &mut self,
        srqn: u32,
        qpn: u32,
        owner: ReceiveOwner,
    ) -> Result<Option<Receive>, SharedQueueBroken> {
        let Some(srq) = self.srqs.get_mut(&srqn) else { return Ok(None) };
        let owner = srq.owner(owner);
        match srq.take() {
            Ok(None) => Ok(None),
            Ok(Some(Taken { index, segments, below_limit })) => {
                if below_limit {
                    self.emit(Event::SrqLimit { srqn });
                }
                Ok(Some(Receive { slot: Slot { index, owner }, segments, filled: 0 }))
            }
            Err(Broken { first, message }) => {
                if first {
                    self.report(qpn, None, "shared receive queue", message);
                    self.emit(Event::SrqError { srqn });
                }
                Err(SharedQueueBroken)
            }
        }
    }

    /// Copies payload to targets that `keys` name.
    ///
    /// # Errors
    /// As [`copy::copy`]. Memory that the program has unmapped is no error: what is written there is lost.
    ///
    /// # Safety
    /// The parts are the payload of the packet that is being handled. The targets were resolved just now, to registered
    /// memory with write access.
    pub(crate) unsafe fn write(
        &mut self,
        (deferred, work): (&mut DeferredWrites, Work),
        payload: &[PayloadPart],
        targets: &[Target<'_>],
        keys: impl IntoIterator<Item = u32>,
    ) -> Result<(), MemoryFailure> {
        let copied = if !self.decisions.is_on() {
            // SAFETY: the caller guarantees this; no region is removed while the engine is locked. The fabric keeps the
            // payload of a packet whose copies may end later.
            unsafe { copy::copy(payload, targets, self.peers, &mut deferred.lost) }
        } else {
            let is_relaxed = keys.into_iter().all(|key| self.regions.is_relaxed(key));
            let (decisions, watches) = (&mut *self.decisions, &mut *self.watches);
            let how = HowToWrite { work, is_relaxed, decisions, watches, now: self.now };
            // SAFETY: as above; deferred writes are performed before a region is removed.
            unsafe { deferred.copy(payload, targets, self.peers, how) }
        };
        self.report_lost(deferred);
        copied
    }

    /// Reports memory that was gone when bytes for it were written.
    fn report_lost(&mut self, deferred: &mut DeferredWrites) {
        let Some(gone) = deferred.lost.take() else { return };
        if self.regions.is_first_loss(gone.addr) {
            let lost = self.regions.describe(&gone.into());
            let message = format!("a write is lost, as the program has changed registered memory: {lost}");
            let (verdict, field) = (Verdict::Accepted, "host memory");
            self.diagnostics.report(Diagnostic { verdict, qpn: None, index: None, field, message });
        }
    }

    /// Copies payload to a list of segments, from byte `offset` on.
    pub(crate) fn scatter(
        &mut self,
        deferred: (&mut DeferredWrites, Work),
        pdn: u32,
        segments: &[DataSeg],
        offset: u32,
        payload: &[PayloadPart],
    ) -> Result<(), ScatterError> {
        let length: usize = payload.iter().map(|part| part.1).sum();
        let regions = self.regions;
        let mut places: Vec<Target<'_>> = Vec::new();
        each_piece(segments, offset, length as u32, |range| {
            places.extend(regions.resolve(range, pdn, Access::LOCAL_WRITE)?);
            Ok::<(), Refusal>(())
        })?;
        let keys = segments.iter().map(DataSeg::lkey);
        // SAFETY: the caller guarantees the payload; the places were resolved just now with local write access.
        Ok(unsafe { self.write(deferred, payload, &places, keys) }?)
    }

    /// Writes a completion entry of some work, and before it the deferred writes of its queue pair. Faults and liberties may delay
    /// both. Returns false if the queue has overrun.
    pub(crate) fn complete(
        &mut self,
        cqn: u32,
        entry: Entry,
        work: Work,
        deferred: &mut DeferredWrites,
    ) -> bool {
        let waits = self.delayed.holds(cqn);
        let fault = if self.faults.is_on() { self.completion_delay(&entry.cqe) } else { None };
        let pause = || self.decisions.pause(LibertyKinds::COMPLETIONS, work);
        // Bytes that are held back would be written before the entry.
        let held = || deferred.due().map(|due| due.saturating_duration_since(self.now));
        let delay = fault.or_else(pause).or_else(held);
        if !self.cqs.contains_key(&cqn) || delay.is_none() && !waits {
            deferred.write_all();
            self.report_lost(deferred);
            return self.write_completion(cqn, entry);
        }
        self.delayed.push(cqn, self.now + delay.unwrap_or_default(), entry);
        true
    }

    fn completion_delay(&self, cqe: &Cqe64) -> Option<Duration> {
        let opcode = cqe.opcode().ok()?;
        let direction = match opcode {
            CqeOpcode::Requester | CqeOpcode::RequesterError => Direction::Out,
            _ => Direction::In,
        };
        let kind = match opcode {
            CqeOpcode::Requester | CqeOpcode::RequesterError => requested(cqe.wqe_opcode()),
            CqeOpcode::RespWriteImm => Some(PacketKind::Write),
            CqeOpcode::ResponderError => None,
            _ => Some(PacketKind::Send),
        };
        self.faults.completion_delay(direction, cqe.qpn(), kind)
    }

    /// Writes a completion entry. Returns false if the queue has overrun.
    pub(crate) fn write_completion(&mut self, cqn: u32, entry: Entry) -> bool {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return false };
        trace::completed(self.port, cqn, &entry.cqe);
        let (cqe, now) = (entry.cqe, self.clock.read());
        match cq.complete(entry.map(|cqe| cqe.with_timestamp(now)), self.now) {
            Ok(Fires(fires)) => {
                if let Some(due) = cq.due() {
                    self.held_events.insert((due, cqn));
                }
                if fires {
                    self.emit(Event::Completion { cqn });
                }
                true
            }
            Err(overrun) => {
                if overrun.first {
                    self.report(
                        cqe.qpn(),
                        None,
                        "completion queue",
                        format!("{cqn:#x} overran: {cqe} has no place"),
                    );
                    self.emit(Event::CqError { cqn });
                }
                false
            }
        }
    }
}

fn requested(wqe_opcode: u8) -> Option<PacketKind> {
    Some(match Opcode::try_from(wqe_opcode).ok()? {
        Opcode::Send | Opcode::SendImm | Opcode::SendInval => PacketKind::Send,
        Opcode::RdmaWrite | Opcode::RdmaWriteImm => PacketKind::Write,
        Opcode::RdmaRead => PacketKind::Read,
        Opcode::AtomicCs | Opcode::AtomicMaskedCs => PacketKind::CompareSwap,
        Opcode::AtomicFa | Opcode::AtomicMaskedFa => PacketKind::FetchAdd,
        _ => return None,
    })
}
