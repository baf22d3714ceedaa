//! `gdsync bench net`: bandwidth, message rate and latency of what streams post, between two sides of one host or of two.
//!
//! The sides meet and agree as those of `gdsync pingpong` do ([`crate::sides`]). One of them, or both, begin messages
//! (`flow.rs`; one at a time in `side.rs`), each in a place of the other side's memory (`lanes.rs`). What arrived is
//! compared with what was sent once the time has been taken (`side.rs`).

mod flow;
mod lanes;
mod report;
mod side;

use crate::cli::{NetOptions, Process};
use crate::failure::Failure;
use crate::sides::side::play;
use crate::sides::{Channel, Measurement, Other};
use report::Report;
use side::Net;

impl Measurement for NetOptions {
    const COMMAND: &'static str = "bench net";
    const PEER: Process = Process::NetPeer;
    type Report = Report;

    fn play(&self, rank: u64, other: Other, mut channel: Channel) -> Result<Report, Failure> {
        play(Net::new(self, rank, other, &mut channel), channel)
    }
}
