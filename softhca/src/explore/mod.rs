//! A search for the order that a program lacks: it runs a job under one schedule after another, shrinks a schedule under
//! which the job fails to the fewest decisions, and names them.
//!
//! [`explore`] searches with a closure of this process; `gdsync soft --explore` with a command.
//! [docs/missing-order.md](https://github.com/gdsync/gdsync/blob/main/docs/missing-order.md) tells what it finds.

mod census;
mod closure;
mod explain;
mod plan;
mod search;
mod shrink;
mod sights;

pub use census::{Census, Journal, read_journals};
pub use closure::explore;
pub use explain::Cause;
pub use search::{Finding, Job, Limits, Outcome, Progress, Refusal, Run, search};
pub use shrink::shrink;
pub use sights::{Sight, sights};
