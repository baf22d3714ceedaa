//! The engine: what the card does, step by step. It owns all state of the device and no memory of its users.

use super::context::Context;
use super::cq::Cq;
use super::error::{Diagnostic, Diagnostics, Event};
use super::gather::Gather;
use super::held::{Held, Late};
use super::link::Port;
use super::network::{Departure, Leaving, arrive};
use super::packet::Header;
use super::qp::{Qp, QpState};
use super::region::Regions;
use super::sender::PEER_MEMORY;
use super::uar::{UarPage, UarPages};
use crate::fabric::{Fabric, Node};
use crate::faults::Faults;
use gdsync_sys::prm::doorbell::{self, CqArm, Doorbell};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Packets that one step takes from the fabric.
const RECEIVE_BUDGET: usize = 32;
/// Packets that one step sends for one queue pair: then others have their turn, and commands of programs.
const SEND_BUDGET: usize = 16;
/// Queue pairs that one step serves.
const QP_BUDGET: usize = 16;

/// A page of doorbell registers, and who is rung by it.
pub(super) struct Uar {
    pub(super) page: UarPage,
    /// Registers that can be rung.
    pub(super) registers: &'static [usize],
    pub(super) qps: BTreeSet<u32>,
}

/// All state of a card.
pub(super) struct Engine {
    pub(super) port: Port,
    pub(super) fabric: Fabric,
    /// Protection domains, and how many objects are in each.
    pub(super) pds: HashMap<u32, u32>,
    pub(super) regions: Regions,
    pub(super) uars: HashMap<u32, Uar>,
    /// Behind those that use it: they are dropped first.
    pub(super) uar_pages: UarPages,
    pub(super) cqs: HashMap<u32, Cq>,
    pub(super) qps: HashMap<u32, Qp>,
    pub(super) events: Vec<Event>,
    pub(super) diagnostics: Diagnostics,
    /// Queue pairs with something to send.
    active: VecDeque<u32>,
    /// Queue pairs that found the fabric full.
    blocked: Vec<u32>,
    /// Queue pairs in the error state: their receive queues are flushed as they fill.
    failed: HashSet<u32>,
    timers: BTreeSet<(Instant, u32)>,
    pub(super) payload: Gather,
    /// See [`Context::bounce`].
    pub(super) bounce: Vec<u8>,
    pub(super) faults: Faults,
    /// Packets that faults hold back.
    pub(super) held: Held,
    /// Completion entries that faults hold back.
    pub(super) late: Late,
}

// SAFETY: `payload` holds addresses only while a packet is being made, under the engine's lock; everything else is `Send`.
unsafe impl Send for Engine {}

/// How a queue pair's turn ended.
enum Turn {
    /// Nothing more to send now.
    Idle,
    /// There is more: its turn comes again.
    More,
    /// The fabric is full.
    Blocked,
}

/// How fetching a payload from peer memory ended.
enum Fetch {
    Done,
    Failed,
    /// The fabric has no room for it.
    Full,
}

/// The engine without its queue pairs, as their context: a macro, because a method would borrow the queue pairs, too.
macro_rules! context {
    ($engine:expr, $now:expr) => {
        Context {
            now: $now,
            port: $engine.port,
            regions: &$engine.regions,
            cqs: &mut $engine.cqs,
            events: &mut $engine.events,
            diagnostics: &mut $engine.diagnostics,
            payload: &mut $engine.payload,
            bounce: &mut $engine.bounce,
            faults: &$engine.faults,
            late: &mut $engine.late,
        }
    };
}
pub(super) use context;

impl Engine {
    pub(super) fn new(fabric: Fabric, port: Port, faults: Faults) -> Self {
        Engine {
            port,
            fabric,
            pds: HashMap::new(),
            regions: Regions::with(faults.clone()),
            uars: HashMap::new(),
            uar_pages: UarPages::default(),
            cqs: HashMap::new(),
            qps: HashMap::new(),
            events: Vec::new(),
            diagnostics: Diagnostics::default(),
            active: VecDeque::new(),
            blocked: Vec::new(),
            failed: HashSet::new(),
            timers: BTreeSet::new(),
            payload: Gather::default(),
            bounce: Vec::new(),
            faults,
            held: Held::default(),
            late: Late::default(),
        }
    }

    /// Runs `work` on a queue pair, with the rest of the card as its context.
    pub(super) fn with_qp<R>(
        &mut self,
        qpn: u32,
        now: Instant,
        work: impl FnOnce(&mut Qp, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let qp = self.qps.get_mut(&qpn)?;
        let mut context = context!(self, now);
        let result = work(qp, &mut context);
        self.after(qpn);
        Some(result)
    }

    /// Keeps the lists of failed queue pairs and of timers current.
    pub(super) fn after(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        if qp.attributes.state == QpState::Err {
            self.failed.insert(qpn);
        }
        // A timer that is set too early fires for nothing and is set again: cheaper than moving it at every packet.
        if let Some(wake) = qp.sender.next_wake()
            && qp.timer.is_none_or(|timer| wake < timer)
        {
            if let Some(old) = qp.timer.replace(wake) {
                self.timers.remove(&(old, qpn));
            }
            self.timers.insert((wake, qpn));
        }
    }

    pub(super) fn schedule(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn)
            && !std::mem::replace(&mut qp.scheduled, true)
        {
            self.active.push_back(qpn);
        }
    }

    /// Forgets a queue pair.
    pub(super) fn remove_qp(&mut self, qpn: u32) -> Option<Qp> {
        self.settle_late(qpn, Instant::now());
        let qp = self.qps.remove(&qpn)?;
        self.failed.remove(&qpn);
        if let Some(timer) = qp.timer {
            self.timers.remove(&(timer, qpn));
        }
        if let Some(uar) = self.uars.get_mut(&qp.uar) {
            uar.qps.remove(&qpn);
        }
        Some(qp)
    }

    /// A queue pair has left the error state.
    pub(super) fn recovered(&mut self, qpn: u32) {
        self.failed.remove(&qpn);
    }

    /// Does a bounded amount of work. False where there was none.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        let mut worked = self.take_doorbells(now);
        worked |= self.take_packets(now);
        worked |= self.flush_failed(now);
        worked |= self.fire_timers(now);
        worked |= self.release_held(now);
        worked |= self.release_late(now);
        for qpn in std::mem::take(&mut self.blocked) {
            self.schedule(qpn);
        }
        for _ in 0..QP_BUDGET.min(self.active.len()) {
            let Some(qpn) = self.active.pop_front() else { break };
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.scheduled = false;
            }
            match self.turn(qpn, now) {
                Turn::Idle => worked = true,
                Turn::More => {
                    worked = true;
                    self.schedule(qpn);
                }
                Turn::Blocked => self.blocked.push(qpn),
            }
        }
        worked
    }

    /// When the next timer fires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.held.next_due(), self.late.next_due()].into_iter().flatten().min()
    }

    /// Hears every doorbell that has rung.
    pub(super) fn take_doorbells(&mut self, now: Instant) -> bool {
        let mut rung = Vec::new();
        for (id, uar) in &self.uars {
            for &offset in uar.registers {
                if let Some(raw) = uar.page.take(offset) {
                    rung.push((*id, offset, Doorbell::from_raw(raw)));
                }
            }
        }
        for (id, offset, bell) in &rung {
            if *offset == doorbell::UAR_CQ_ARM {
                self.arm(*bell);
            } else {
                self.ring(*id, *bell, now);
            }
        }
        !rung.is_empty()
    }

    /// A completion queue is armed, and perhaps others whose doorbells this one has covered. They may be of any UAR:
    /// libmlx5 rings on the page of the context.
    fn arm(&mut self, bell: Doorbell) {
        let (arm, rung) = CqArm::from_doorbell(bell.raw());
        let mut problem = (!self.cqs.contains_key(&rung))
            .then(|| format!("arms completion queue {rung:#x}, which does not exist"));
        for (&cqn, cq) in &mut self.cqs {
            let fires = if cqn != rung {
                cq.look_at_arm_record()
            } else if let Some(fires) = cq.rung(arm) {
                fires
            } else {
                problem = Some(format!("arms completion queue {cqn:#x}, but its arm record does not say so"));
                cq.arm(arm)
            };
            if fires.0 {
                self.events.push(Event::Completion { cqn });
            }
        }
        if let Some(message) = problem {
            self.diagnostics.report(Diagnostic { qpn: None, index: None, field: "arm doorbell", message });
        }
    }

    /// A doorbell rang: every queue pair of that page is served up to its record.
    fn ring(&mut self, uar: u32, bell: Doorbell, now: Instant) {
        let Some(rung) = self.uars.get(&uar) else { return };
        let is_known = rung.qps.contains(&bell.qpn());
        let qps: Vec<u32> = rung.qps.iter().copied().collect();
        if !is_known {
            let message = format!("names queue pair {:#x}, which is not on UAR {uar}", bell.qpn());
            self.diagnostics.report(Diagnostic {
                qpn: None,
                index: Some(bell.index()),
                field: "doorbell",
                message,
            });
        }
        for qpn in qps {
            self.with_qp(qpn, now, |qp, context| {
                if qpn == bell.qpn() {
                    qp.check_doorbell(bell, context);
                }
                qp.ring(context);
            });
            self.schedule(qpn);
        }
    }

    fn take_packets(&mut self, now: Instant) -> bool {
        // Handling a packet needs the whole engine, so the fabric steps out of it meanwhile.
        if self.held.is_congested() {
            return false;
        }
        let port = self.port;
        let Engine { fabric, qps, regions, cqs, events, diagnostics, payload: gather, .. } = self;
        let Engine { bounce, faults, held, late, .. } = self;
        let mut touched = Vec::new();
        let taken = fabric.poll(RECEIVE_BUDGET, |source, header, payload| {
            let mut context = Context {
                now,
                port,
                regions,
                cqs,
                events,
                diagnostics,
                payload: gather,
                bounce,
                faults,
                late,
            };
            touched.extend(arrive(held, qps, source, header, &payload, &mut context));
        });
        for qpn in touched {
            self.after(qpn);
            self.schedule(qpn);
        }
        taken > 0
    }

    fn flush_failed(&mut self, now: Instant) -> bool {
        if self.failed.is_empty() {
            return false;
        }
        let mut flushed = false;
        for qpn in self.failed.iter().copied().collect::<Vec<u32>>() {
            flushed |= self.with_qp(qpn, now, Qp::flush_receives_of_failed).unwrap_or(false);
        }
        flushed
    }

    fn fire_timers(&mut self, now: Instant) -> bool {
        let mut fired = false;
        while let Some(&(at, qpn)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let Some(qp) = self.qps.get_mut(&qpn) else { continue };
            qp.timer = None;
            let node = qp.node(self.port);
            let expired = qp.sender.deadline.is_some_and(|deadline| deadline <= now);
            let ready = qp.take_rnr_over(now);
            if expired {
                let alive = node == self.port.node() || self.fabric.is_alive(node);
                self.with_qp(qpn, now, |qp, context| qp.retry(alive, context));
            }
            self.after(qpn);
            if expired || ready {
                fired = true;
                self.schedule(qpn);
            }
        }
        fired
    }

    /// Sends what a queue pair has to send.
    fn turn(&mut self, qpn: u32, now: Instant) -> Turn {
        for _ in 0..SEND_BUDGET {
            self.payload.clear();
            let made = self.with_qp(qpn, now, |qp, context| match qp.next_response(context) {
                Some(header) => Some((header, true, qp.node(context.port))),
                None => qp.next_request(context).map(|header| (header, false, qp.request_node(context.port))),
            });
            let Some(Some((header, is_response, to))) = made else { return Turn::Idle };
            if self.payload.is_waiting() {
                match self.fetch_payload(qpn, &header, is_response, to, now) {
                    Fetch::Done => {}
                    Fetch::Failed => continue,
                    Fetch::Full => return Turn::Blocked,
                }
            }
            if self.depart(&Leaving { qpn, header, is_response, to }, now) == Departure::NoRoom {
                return Turn::Blocked;
            }
        }
        Turn::More
    }

    /// Brings in what the packet carries of peer memory. Where that fails, the request or response is refused.
    fn fetch_payload(
        &mut self,
        qpn: u32,
        header: &Header,
        is_response: bool,
        to: Node,
        now: Instant,
    ) -> Fetch {
        // Clients take their time: they are not asked again and again for a packet that cannot leave.
        if to != self.port.node() && self.fabric.is_full(to, size_of::<Header>(), self.payload.len()) {
            self.payload.clear();
            return Fetch::Full;
        }
        let Err(failure) = self.payload.fetch() else { return Fetch::Done };
        self.with_qp(qpn, now, |qp, context| {
            if is_response {
                qp.refuse_read(header.psn.get(), &failure, context);
            } else {
                qp.refuse_locally(PEER_MEMORY, failure.to_string(), context);
            }
        });
        Fetch::Failed
    }

    /// A packet is on its way.
    pub(super) fn sent(&mut self, leaving: &Leaving, now: Instant) {
        self.with_qp(leaving.qpn, now, |qp, context| {
            if leaving.is_response {
                qp.response_sent(&leaving.header, context);
            } else {
                qp.request_sent(context);
            }
        });
    }

    /// Runs `work` on all queue pairs, with the rest of the card as its context.
    #[cfg(test)]
    pub(super) fn deliver_for_test<R>(
        &mut self,
        work: impl FnOnce(&mut HashMap<u32, Qp>, &mut Context<'_>) -> R,
    ) -> R {
        let mut context = context!(self, Instant::now());
        work(&mut self.qps, &mut context)
    }

    /// Before sleeping: false where there is work after all.
    pub(super) fn prepare_sleep(&mut self, now: Instant) -> bool {
        if !self.fabric.prepare_sleep() {
            return false;
        }
        // Whoever made work before the announcement was seen: look once more.
        if self.step(now) {
            self.fabric.finish_sleep();
            return false;
        }
        true
    }
}

/// How long an engine naps that has found nothing to do for so long.
pub(super) fn nap(idle: Duration) -> Duration {
    match idle {
        idle if idle < Duration::from_millis(2) => Duration::from_micros(30),
        idle if idle < Duration::from_millis(100) => Duration::from_micros(100),
        _ => Duration::from_millis(1),
    }
}
