//! Faults on purpose: what a network and its hosts do to a program on a bad day, from a plan that can be written down.
//!
//! A [`FaultPlan`] is a seed and a list of [`Rule`]s, each an [`Action`] and the conditions for it. Its text form
//! (`docs/faults.md`) is read by [`str::parse`] and given back by `Display`, so that a run that failed can be run again.
//! [`FAULTS_VARIABLE`] in the environment applies a plan to every card of the process, as [`set_faults`] does.
//!
//! Each card counts for itself, and draws its random numbers from the seed and its place among the cards that the process has
//! started: the same packets in the same order meet the same faults.

mod injector;
mod parse;
mod plan;

pub use injector::RuleCount;
pub(crate) use injector::{Crossing, Fate, Faults, Refused};
pub use parse::FaultPlanError;
pub use plan::{Action, Direction, FaultPlan, Kinds, LONGEST_HOLD, PacketKind, Rule, Side, Which};

use parking_lot::Mutex;
use std::sync::Once;

/// Environment variable with the plan of every card of this process, in its text form. What makes no sense is said in the log,
/// and no fault is injected then.
pub const FAULTS_VARIABLE: &str = "SOFTHCA_FAULTS";

/// The plan of this process, and the cards that it applies to: those that run, and how many have been started.
static PROCESS: Mutex<Process> = Mutex::new(Process { plan: None, cards: Vec::new(), started: 0 });
static ENVIRONMENT: Once = Once::new();

struct Process {
    plan: Option<FaultPlan>,
    cards: Vec<Faults>,
    started: u64,
}

/// The plan in the environment is taken once, before anything else is asked of [`PROCESS`].
fn process() -> parking_lot::MutexGuard<'static, Process> {
    let mut process = PROCESS.lock();
    ENVIRONMENT.call_once(|| process.plan = plan_from_environment());
    process
}

fn plan_from_environment() -> Option<FaultPlan> {
    let text = std::env::var_os(FAULTS_VARIABLE)?.to_string_lossy().into_owned();
    match text.parse::<FaultPlan>() {
        Ok(plan) => Some(plan).filter(|plan| !plan.rules.is_empty()),
        Err(error) => {
            tracing::error!(%error, "{FAULTS_VARIABLE} is not understood: no fault is injected");
            None
        }
    }
}

/// Applies a plan to every card of this process, those that run and those to come; `None` ends all faults, and what was held
/// back goes on at once. Counting starts again. Cards that are dead ([`Action::Die`]) stay so until then.
pub fn set_faults(plan: Option<FaultPlan>) {
    let mut process = process();
    process.plan = plan.filter(|plan| !plan.rules.is_empty());
    let plan = process.plan.clone();
    process.cards.iter().for_each(|faults| faults.set(plan.as_ref()));
}

/// The rules in force, with what the running cards of this process have counted for each. Empty where there is no plan.
pub fn fault_counts() -> Vec<RuleCount> {
    let process = process();
    let Some(plan) = &process.plan else { return Vec::new() };
    let mut counts: Vec<RuleCount> =
        plan.rules.iter().map(|rule| RuleCount { rule: rule.clone(), matched: 0, injected: 0 }).collect();
    for faults in &process.cards {
        for (sum, count) in counts.iter_mut().zip(faults.counts()) {
            // A card may have a plan of its own.
            if sum.rule == count.rule {
                sum.matched += count.matched;
                sum.injected += count.injected;
            }
        }
    }
    counts
}

/// The faults of a card that starts.
pub(crate) fn join() -> Faults {
    let mut process = process();
    let faults = Faults::new(process.started);
    process.started += 1;
    faults.set(process.plan.as_ref());
    process.cards.push(faults.clone());
    faults
}

/// A card ends.
pub(crate) fn leave(faults: &Faults) {
    process().cards.retain(|other| !other.is_same(faults));
}

#[cfg(test)]
mod tests;
