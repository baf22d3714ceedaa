//! Application of fault plans: counts, random numbers and decisions, for the process and for each card.

use super::plan::{Action, Direction, FaultPlan, LONGEST_HOLD, Rule, Side, Which};
use crate::fabric::OWN_QPN_BITS;
use crate::liberties::{Decisions, Draw, LibertyKinds, Work};
use crate::packet::PacketKind;
use crate::random::{Random, seed_of_card};
use crate::setting::{self, SettingError};
use gdsync_sys::prm::cqe::Syndrome;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

/// A rule with its counts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuleCount {
    /// The rule.
    pub rule: Rule,
    /// Packets, requests, completions or accesses that met its conditions.
    pub matched: u64,
    /// Faults that it has injected.
    pub injected: u64,
}

impl fmt::Display for RuleCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {}", self.rule, self.injected, self.matched)
    }
}

/// A packet that passes between a card and the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    pub(crate) direction: Direction,
    pub(crate) qpn: u32,
    pub(crate) kind: Option<PacketKind>,
    pub(crate) is_reliable: bool,
    pub(crate) is_request: bool,
    pub(crate) psn: u32,
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crossing { direction, qpn, kind, psn, .. } = self;
        let named = PacketKind::ALL.iter().find(|(known, _)| Some(*known) == *kind);
        let kind = named.map_or("packet", |(_, word)| word);
        write!(
            f,
            "{kind} psn {psn:#x} {} qp {qpn:#x}",
            if *direction == Direction::In { "to" } else { "from" }
        )
    }
}

/// A decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Passes,
    Lost,
    Duplicated,
    /// It waits for this time, or until so many packets of other queue pairs have passed.
    Delayed {
        at_most: Duration,
        others: Option<u32>,
    },
    Fails(Syndrome),
}

/// How a responder refuses a request that it could execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NotReady,
    With(Syndrome),
}

/// A card's faults. Clones share their state.
#[derive(Clone)]
pub(crate) struct Faults {
    /// True if there are rules: the only check without faults.
    on: Arc<AtomicBool>,
    state: Arc<Mutex<InjectorState>>,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("on", &self.is_on()).finish_non_exhaustive()
    }
}

struct InjectorState {
    /// Index among the cards that the process has started.
    card: u64,
    rules: Vec<ActiveRule>,
    /// True if the card follows a schedule that has faults.
    is_scheduled: bool,
    dead: bool,
}

/// An active rule. Chances depend on the seed, the rule, and the number of earlier ones of the same queue pair or key: other
/// rules, and other queue pairs with their threads, do not change them.
struct ActiveRule {
    count: RuleCount,
    seed: u64,
    chances: HashMap<u32, u64>,
}

impl Faults {
    pub(super) fn new(card: u64) -> Self {
        let state = InjectorState { card, rules: Vec::new(), is_scheduled: false, dead: false };
        Faults { on: Arc::default(), state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn is_same(&self, other: &Faults) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Applies a plan; `None` ends all faults.
    pub(crate) fn set(&self, plan: Option<&FaultPlan>) {
        let mut state = self.state.lock();
        let seed = seed_of_card(plan.map_or(0, |plan| plan.seed), state.card);
        let rules = plan.map_or(&[][..], |plan| &plan.rules).iter().enumerate();
        let active = rules.map(|(index, rule)| ActiveRule {
            count: RuleCount { rule: rule.clone(), matched: 0, injected: 0 },
            seed: Random::new(seed, index as u64).next(),
            chances: HashMap::new(),
        });
        state.rules = active.collect();
        state.dead = false;
        self.update(&state);
    }

    /// Injects the faults of a card's schedule, too.
    pub(crate) fn follow(&self, decisions: &Decisions) {
        let mut state = self.state.lock();
        state.is_scheduled = !decisions.faults().is_empty();
        self.update(&state);
    }

    fn update(&self, state: &InjectorState) {
        self.on.store(!state.rules.is_empty() || state.is_scheduled, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Vec<RuleCount> {
        self.state.lock().rules.iter().map(|active| active.count.clone()).collect()
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Decides about a packet. `work` is its name for a schedule, if it has one.
    pub(crate) fn crosses(&self, packet: &Crossing, work: Option<Work>, decisions: &mut Decisions) -> Fate {
        let mut state = self.state.lock();
        if state.dead {
            return Fate::Lost;
        }
        let mut offered = Offered::of(decisions, work);
        let outgoing_request = packet.is_request && packet.direction == Direction::Out;
        let action = state.decide(own_number(packet.qpn), packet, |rule| {
            let concerns = match rule.action {
                Action::Drop | Action::Delay(_) | Action::Hold(_) | Action::Die => true,
                Action::Duplicate => packet.is_reliable,
                Action::Fail(_) => outgoing_request,
                _ => false,
            };
            concerns
                && rule.concerns(packet.direction, packet.qpn, packet.kind)
                && !offered.takes(rule, decisions)
        });
        match action {
            None => offered.fate(packet.is_reliable, decisions),
            Some(Action::Drop) => Fate::Lost,
            Some(Action::Duplicate) => Fate::Duplicated,
            Some(Action::Delay(at_most)) => Fate::Delayed { at_most, others: None },
            Some(Action::Hold(others)) => Fate::Delayed { at_most: LONGEST_HOLD, others: Some(others) },
            Some(Action::Fail(syndrome)) => Fate::Fails(syndrome),
            Some(Action::Die) => {
                state.dead = true;
                Fate::Lost
            }
            _ => Fate::Passes,
        }
    }

    /// Decides whether a responder refuses a request of a reliable connection that has arrived in order.
    pub(crate) fn refuses(
        &self,
        qpn: u32,
        kind: PacketKind,
        work: Work,
        decisions: &mut Decisions,
    ) -> Option<Refused> {
        if !self.is_on() {
            return None;
        }
        let mut offered = Offered::of(decisions, Some(work));
        let action = self.state.lock().decide(own_number(qpn), &work, |rule| {
            matches!(rule.action, Action::Rnr | Action::Fail(_))
                && rule.concerns(Direction::In, qpn, Some(kind))
                && !offered.takes(rule, decisions)
        });
        match action {
            Some(Action::Fail(syndrome)) => Some(Refused::With(syndrome)),
            Some(_) => Some(Refused::NotReady),
            None => offered.meets(LibertyKinds::RNR, decisions).map(|_| Refused::NotReady),
        }
    }

    pub(crate) fn completion_delay(
        &self,
        direction: Direction,
        qpn: u32,
        kind: Option<PacketKind>,
    ) -> Option<Duration> {
        let action = self.state.lock().decide(
            own_number(qpn),
            &format_args!("completion of qp {qpn:#x}"),
            |rule| {
                let is_meant = rule.direction.is_none_or(|wanted| wanted == direction);
                matches!(rule.action, Action::Late(_)) && is_meant && rule.is_about(qpn, kind)
            },
        )?;
        if let Action::Late(time) = action { Some(time) } else { None }
    }

    /// Decides whether an access to memory finds no region with its key.
    pub(crate) fn is_gone(&self, key: u32, side: Side) -> bool {
        let mut state = self.state.lock();
        let action = state.decide(key, &format_args!("key {key:#x}"), |rule| {
            let is_meant =
                rule.key.is_none_or(|wanted| wanted == key) && rule.side.is_none_or(|wanted| wanted == side);
            rule.action == Action::Gone && is_meant
        });
        action.is_some()
    }
}

/// Faults that some work may meet by the decision of a schedule.
struct Offered {
    kinds: LibertyKinds,
    work: Option<Work>,
}

impl Offered {
    /// Begins with the kinds for which the schedule has rules.
    fn of(decisions: &Decisions, work: Option<Work>) -> Self {
        Offered { kinds: decisions.faults(), work }
    }

    /// Takes the place of a rule's chance, if the schedule decides about faults of its kind.
    fn takes(&mut self, rule: &Rule, decisions: &Decisions) -> bool {
        let named = rule.decided_as().filter(|_| self.work.is_some());
        let Some(kind) = named.filter(|kind| decisions.chooses(*kind)) else { return false };
        self.kinds |= kind;
        true
    }

    fn meets(&self, kind: LibertyKinds, decisions: &mut Decisions) -> Option<Draw> {
        self.work.filter(|_| self.kinds.contains(kind)).and_then(|work| decisions.meets(kind, work))
    }

    /// Decides about a packet. All kinds are decided about at its first crossing.
    fn fate(&self, is_reliable: bool, decisions: &mut Decisions) -> Fate {
        let kinds = [LibertyKinds::DROP, LibertyKinds::DUPLICATE, LibertyKinds::DELAY];
        match kinds.map(|kind| self.meets(kind, decisions)) {
            [Some(_), ..] => Fate::Lost,
            [_, Some(_), _] if is_reliable => Fate::Duplicated,
            [_, _, Some(mut draw)] => Fate::Delayed { at_most: draw.pause(), others: None },
            _ => Fate::Passes,
        }
    }
}

/// Returns the part of a queue pair's number that is the same in every run: the rest is the card's.
fn own_number(qpn: u32) -> u32 {
    qpn & ((1 << OWN_QPN_BITS) - 1)
}

impl InjectorState {
    /// Returns the action of the first rule that applies among those that `concerns` selects. All of these
    /// count the event. `of`: the queue pair or key that it is about. `event`: its
    /// name in the log.
    fn decide(
        &mut self,
        of: u32,
        event: &dyn fmt::Display,
        mut concerns: impl FnMut(&Rule) -> bool,
    ) -> Option<Action> {
        let mut decided = None;
        for active in self.rules.iter_mut().filter(|active| concerns(&active.count.rule)) {
            let applies = active.count(of);
            if applies && decided.is_none() {
                active.count.injected += 1;
                let RuleCount { rule, matched, injected } = &active.count;
                tracing::info!(card = self.card, %rule, %event, matched, injected, "a fault is injected");
                decided = Some(rule.action);
            }
        }
        decided
    }
}

impl ActiveRule {
    /// Counts an event, and returns whether the rule applies to it.
    fn count(&mut self, of: u32) -> bool {
        let RuleCount { rule, matched, injected } = &mut self.count;
        *matched += 1;
        let is_chosen = match rule.which {
            Which::Nth(n) => *matched == n,
            // Never, if a caller of the API passed 0.
            Which::Every(n) => matched.checked_rem(n) == Some(0),
            Which::Chance(p) => {
                let number = self.chances.entry(of).or_default();
                let mut random = Random::new(self.seed, u64::from(of) << 32 ^ *number);
                *number += 1;
                random.next_fraction() < p
            }
        };
        is_chosen && rule.times.is_none_or(|times| *injected < times)
    }
}

impl Rule {
    fn concerns(&self, direction: Direction, qpn: u32, kind: Option<PacketKind>) -> bool {
        self.direction_or_usual() == direction && self.is_about(qpn, kind)
    }

    fn is_about(&self, qpn: u32, kind: Option<PacketKind>) -> bool {
        self.qpn.is_none_or(|wanted| wanted == qpn) && self.kinds.allow(kind)
    }
}

/// Environment variable with the plan of every card of this process, in text form. If it is malformed, no card starts.
pub const FAULTS_VARIABLE: &str = "SOFTHCA_FAULTS";

static PROCESS: Mutex<Process> = Mutex::new(Process { plan: None, cards: Vec::new(), started: 0 });
static ENVIRONMENT: Once = Once::new();

struct Process {
    plan: Option<FaultPlan>,
    cards: Vec<Faults>,
    /// Number of cards started so far.
    started: u64,
}

/// Locks [`PROCESS`]. The first call reads the plan from the environment.
fn process() -> parking_lot::MutexGuard<'static, Process> {
    let mut process = PROCESS.lock();
    // `Card::start` refuses a malformed plan.
    ENVIRONMENT.call_once(|| process.plan = plan_from_environment().unwrap_or_default());
    process
}

/// Returns the plan that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn plan_from_environment() -> Result<Option<FaultPlan>, SettingError> {
    let plan: Option<FaultPlan> = setting::parsed(FAULTS_VARIABLE, str::parse)?;
    Ok(plan.filter(|plan| !plan.rules.is_empty()))
}

/// Applies a plan to every card of this process, present and future. `None` ends all faults and releases what
/// was delayed. Counting starts again, and cards that [`Action::Die`] silenced work again.
pub fn set_faults(plan: Option<FaultPlan>) {
    let mut process = process();
    process.plan = plan.filter(|plan| !plan.rules.is_empty());
    let plan = process.plan.clone();
    process.cards.iter().for_each(|faults| faults.set(plan.as_ref()));
}

/// Returns the active rules, each with the counts of all running cards of this process. Empty without a plan.
pub fn fault_counts() -> Vec<RuleCount> {
    let process = process();
    let Some(plan) = &process.plan else { return Vec::new() };
    let mut counts: Vec<RuleCount> =
        plan.rules.iter().map(|rule| RuleCount { rule: rule.clone(), matched: 0, injected: 0 }).collect();
    for faults in &process.cards {
        for (sum, count) in counts.iter_mut().zip(faults.counts()) {
            // A card may have its own plan.
            if sum.rule == count.rule {
                sum.matched += count.matched;
                sum.injected += count.injected;
            }
        }
    }
    counts
}

/// Returns the faults of a card that the process's plan does not concern. `card` is its index among those that have its
/// plan.
pub(crate) fn of_one_card(card: u64) -> Faults {
    Faults::new(card)
}

pub(crate) fn join() -> Faults {
    let mut process = process();
    let faults = Faults::new(process.started);
    process.started += 1;
    faults.set(process.plan.as_ref());
    process.cards.push(faults.clone());
    faults
}

pub(crate) fn leave(faults: &Faults) {
    process().cards.retain(|other| !other.is_same(faults));
}
