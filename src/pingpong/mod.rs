//! `gdsync pingpong`: two sides send a message back and forth; streams ring the cards and wait for
//! them.

mod report;
mod side;
mod watch;

use crate::cli::{PingpongOptions, Process, SideOptions};
use crate::failure::Failure;
use crate::sides::side::play;
use crate::sides::{Channel, Measurement, Other};
use report::Report;
use side::Pingpong;

impl Measurement for PingpongOptions {
    const COMMAND: &'static str = "pingpong";
    const PEER: Process = Process::PingpongPeer;
    type Report = Report;

    fn sides(&self) -> &SideOptions {
        &self.sides
    }

    fn sides_mut(&mut self) -> &mut SideOptions {
        &mut self.sides
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn of_size(&self, size: u64) -> Self {
        self.of_size(size)
    }

    fn refusal(&self) -> Option<String> {
        self.refusal()
    }

    fn play(&self, rank: u64, other: Other, mut channel: Channel) -> Result<Report, Failure> {
        play(Pingpong::new(self, rank, other, &mut channel), channel)
    }
}
