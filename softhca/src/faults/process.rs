//! The plan of this process, and the cards that it applies to.

use super::injector::{Faults, RuleCount};
use super::plan::FaultPlan;
use crate::setting::{self, SettingError};
use parking_lot::Mutex;
use std::sync::Once;

/// Environment variable with the plan of every card of this process, in its text form. With a
/// malformed plan no card starts.
pub const FAULTS_VARIABLE: &str = "SOFTHCA_FAULTS";

static PROCESS: Mutex<Process> = Mutex::new(Process { plan: None, cards: Vec::new(), started: 0 });
static ENVIRONMENT: Once = Once::new();

struct Process {
    plan: Option<FaultPlan>,
    /// Cards that run.
    cards: Vec<Faults>,
    /// Cards started so far.
    started: u64,
}

/// Locks [`PROCESS`]. The first call takes the plan from the environment.
fn process() -> parking_lot::MutexGuard<'static, Process> {
    let mut process = PROCESS.lock();
    // No card starts with a malformed plan, which `Card::start` refuses.
    ENVIRONMENT.call_once(|| process.plan = plan_from_environment().unwrap_or_default());
    process
}

/// The plan that the environment gives.
///
/// # Errors
/// [`SettingError::Malformed`].
pub(crate) fn plan_from_environment() -> Result<Option<FaultPlan>, SettingError> {
    let plan: Option<FaultPlan> = setting::parsed(FAULTS_VARIABLE, str::parse)?;
    Ok(plan.filter(|plan| !plan.rules.is_empty()))
}

/// Applies a plan to every card of this process, present and future. `None` ends all faults and
/// releases what was delayed. Counting starts again, and cards that
/// [`Action::Die`](super::Action::Die) silenced work again.
pub fn set_faults(plan: Option<FaultPlan>) {
    let mut process = process();
    process.plan = plan.filter(|plan| !plan.rules.is_empty());
    let plan = process.plan.clone();
    process.cards.iter().for_each(|faults| faults.set(plan.as_ref()));
}

/// The rules in force, each with the counts of all running cards of this process. Empty without a
/// plan.
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

/// Registers a card that starts, and returns its faults.
pub(crate) fn join() -> Faults {
    let mut process = process();
    let faults = Faults::new(process.started);
    process.started += 1;
    faults.set(process.plan.as_ref());
    process.cards.push(faults.clone());
    faults
}

/// Removes a card that ends.
pub(crate) fn leave(faults: &Faults) {
    process().cards.retain(|other| !other.is_same(faults));
}
