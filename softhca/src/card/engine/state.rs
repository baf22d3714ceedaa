//! The state of an engine, and the operations that the rest of it is built on.

use super::ahead::Ahead;
use super::schedule::Schedule;
use crate::card::context::{Context, Resources};
use crate::card::counters;
use crate::card::delayed::DelayedPackets;
use crate::card::memory::clock::Clock;
use crate::card::memory::uar::{Register, UarPage, UarPages};
use crate::card::port::Port;
use crate::card::told::Told;
use crate::card::transport::qp::Qp;
use crate::card::waits::WaitRules;
use crate::fabric::Fabric;
use crate::faults::Faults;
use crate::liberties::Dice;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// A page of doorbell registers, and the queue pairs that it rings.
pub(crate) struct Uar {
    pub(crate) page: UarPage,
    /// The registers to poll.
    pub(crate) registers: Vec<Register>,
    pub(crate) qps: BTreeSet<u32>,
}

impl Uar {
    /// Adds a register to those that are polled.
    pub(crate) fn poll_also(&mut self, register: Register) {
        if !self.registers.contains(&register) {
            self.registers.push(register);
        }
    }
}

/// An XRC domain.
#[derive(Debug)]
pub(crate) struct XrcDomain {
    /// Device and inode of the file that names it.
    pub(crate) file: Option<(u64, u64)>,
    /// How often it is open.
    pub(crate) openers: u32,
    /// Queue pairs and shared receive queues in it.
    pub(crate) users: u32,
}

/// All state of a card.
pub(crate) struct Engine {
    pub(crate) fabric: Fabric,
    /// Protection domains, each with the number of objects in it.
    pub(crate) pds: HashMap<u32, u32>,
    pub(crate) xrcds: HashMap<u32, XrcDomain>,
    pub(crate) uars: BTreeMap<u32, Uar>,
    /// The memory of the pages in `uars`; declared after them, so that it is dropped later.
    pub(crate) uar_pages: UarPages,
    pub(crate) qps: HashMap<u32, Qp>,
    pub(crate) resources: Resources,
    pub(super) schedule: Schedule,
    pub(super) ahead: Ahead,
    /// Time before which steps poll no doorbells, because of a liberty.
    pub(super) look_at: Option<Instant>,
    /// The page at which the next poll in turn begins.
    pub(super) next_page: u32,
    /// When a card with many pages next polls pages in turn.
    pub(super) next_turn: Option<Instant>,
    /// Announced doorbell pages: the next poll begins with them.
    pub(crate) told: Arc<Told>,
    /// Buffer for the pages taken from `told`.
    pub(super) told_pages: Vec<u32>,
    /// Pages on which completion queues are armed.
    pub(crate) arming: BTreeSet<u32>,
    /// Packets that faults delay.
    pub(crate) delayed: DelayedPackets,
    /// Where packets are counted.
    pub(crate) counters: counters::Port,
    pub(crate) rest: Rest,
}

/// The threads that do the card's work.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// True if the card's own thread sleeps.
    pub(crate) asleep: bool,
    /// Number of other threads that do the work while they wait for the card.
    pub(crate) helpers: u32,
    /// True if no other thread may work: because the card uses memory of a peer-memory client, which is called from the
    /// card's thread only, or because the card is dropped and its memory may be gone.
    pub(crate) own_thread_only: bool,
}

impl Engine {
    pub(crate) fn new(fabric: Fabric, port: Port, faults: Faults, dice: Dice, waits: WaitRules) -> Self {
        let (clock, speed) = (Arc::<Clock>::default(), fabric.speed());
        Engine {
            rest: Rest::default(),
            next_page: 0,
            next_turn: None,
            told: Arc::default(),
            told_pages: Told::list(),
            arming: BTreeSet::new(),
            fabric,
            pds: HashMap::new(),
            xrcds: HashMap::new(),
            uars: BTreeMap::new(),
            uar_pages: UarPages::showing(clock.clone()),
            qps: HashMap::new(),
            resources: Resources::new((port, speed), clock, faults, dice, waits),
            schedule: Schedule::default(),
            ahead: Ahead::default(),
            look_at: None,
            delayed: DelayedPackets::default(),
            counters: counters::Port::default(),
        }
    }

    /// Runs `work` on a queue pair.
    pub(crate) fn with_qp<R>(
        &mut self,
        qpn: u32,
        now: Instant,
        work: impl FnOnce(&mut Qp, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(&qpn)?;
        let result = work(qp, &mut self.resources.context(now));
        self.schedule.update(qp);
        Some(result)
    }

    /// Adds a queue pair to those with something to send.
    pub(crate) fn activate(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            self.schedule.activate(qp);
        }
    }

    /// Reschedules a queue pair that a packet was delivered to.
    pub(super) fn touched(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            self.schedule.update(qp);
            self.schedule.activate(qp);
        }
    }

    /// Removes a queue pair that has left ERR from the failed ones.
    pub(crate) fn recovered(&mut self, qpn: u32) {
        self.schedule.recovered(qpn);
    }

    /// Performs all deferred writes, before memory is deregistered.
    pub(crate) fn write_parked(&mut self) {
        self.qps.values_mut().for_each(|qp| qp.endpoint.parked.write_all());
    }

    /// Runs `work` on all queue pairs.
    #[cfg(test)]
    pub(crate) fn with_qps<R>(
        &mut self,
        work: impl FnOnce(&mut HashMap<u32, Qp>, &mut Context<'_>) -> R,
    ) -> R {
        work(&mut self.qps, &mut self.resources.context(Instant::now()))
    }
}
