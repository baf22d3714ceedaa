//! Fault injection: reproducible failures of networks and hosts.
//!
//! A [`FaultPlan`] is a seed and a list of [`Rule`]s, each an [`Action`] and its conditions. [`str::parse`] reads and
//! `Display` writes its text form ([docs/liberties.md](https://github.com/gdsync/gdsync/blob/main/docs/liberties.md)),
//! so that a failed run can be repeated. [`FAULTS_VARIABLE`] in the environment applies a plan to every card of the
//! process, as [`set_faults`] does.
//!
//! A [schedule](crate::liberties::Schedule) names the packets that are lost, doubled or late, in place of a plan's chances.
//!
//! Each card counts for itself, and seeds its random numbers with the seed and its index among the cards
//! started by the process: the same packets in the same order meet the same faults.

mod injector;
mod parse;
mod plan;

pub use crate::packet::PacketKind;
pub(crate) use injector::{Crossing, Fate, Faults, Refused, join, leave, of_one_card, plan_from_environment};
pub use injector::{FAULTS_VARIABLE, RuleCount, fault_counts, set_faults};
pub use parse::FaultPlanError;
pub use plan::{Action, Direction, FaultPlan, Kinds, Rule, Side, Which};

#[cfg(test)]
mod tests;
