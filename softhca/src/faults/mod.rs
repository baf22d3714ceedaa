//! Fault injection: a reproducible plan of what networks and hosts do to programs when they fail.
//!
//! A [`FaultPlan`] is a seed and a list of [`Rule`]s, each an [`Action`] and its conditions. Its
//! text form ([docs/faults.md](https://github.com/gdsync/gdsync/blob/main/docs/faults.md)) is read by
//! [`str::parse`] and written by `Display`, so that a failed run can be repeated. [`FAULTS_VARIABLE`] in the environment applies a plan to every card
//! of the process, as [`set_faults`] does.
//!
//! Each card counts for itself, and draws its random numbers from the seed and its index among the
//! cards that the process has started: the same packets in the same order meet the same faults.

mod injector;
mod parse;
mod plan;

pub use crate::packet::PacketKind;
pub(crate) use injector::{Crossing, Fate, Faults, Refused, join, leave, plan_from_environment};
pub use injector::{FAULTS_VARIABLE, RuleCount, fault_counts, set_faults};
pub use parse::FaultPlanError;
pub use plan::{Action, Direction, FaultPlan, Kinds, Rule, Side, Which};

#[cfg(test)]
mod tests;
