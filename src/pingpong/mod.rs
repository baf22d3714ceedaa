//! `gdsync pingpong`: two sides send a message back and forth; streams ring the cards and wait for
//! them.

mod report;
mod side;
mod watch;

use crate::cli::{PingpongOptions, Process};
use crate::failure::Failure;
use crate::sides::side::play;
use crate::sides::{Channel, Measurement, Other};
use report::Report;
use side::Pingpong;

impl Measurement for PingpongOptions {
    const COMMAND: &'static str = "pingpong";
    const PEER: Process = Process::PingpongPeer;
    type Report = Report;

    fn play(&self, rank: u64, other: Other, mut channel: Channel) -> Result<Report, Failure> {
        play(Pingpong::new(self, rank, other, &mut channel), channel)
    }
}
