//! The options of `gdsync pingpong`.

use super::{
    MAX_BATCH, MAX_EXCHANGES, MAX_SIZE, Operation, Service, SideOptions, SidesOptions, values, word,
};
use clap::Args;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct PingpongOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub sides: SideOptions,
    /// Bytes of a message: a number, or one with K, KiB, M, MiB, G or GiB (1024 each), or kB, MB or GB (1000 each)
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = values::size, allow_hyphen_values = true)]
    pub size: u64,
    /// Transport service; messages of `ud` have at most the port's MTU
    #[arg(long, value_enum, default_value_t = Service::Rc)]
    pub transport: Service,
    /// How a message travels
    #[arg(long, value_enum, default_value_t = Operation::Send)]
    pub op: Operation,
    /// Exchanges that are enqueued at a time, without the CPU looking at any of them
    #[arg(long, value_name = "K", default_value = "16", value_parser = values::batch, allow_hyphen_values = true)]
    pub batch: u64,
}

impl PingpongOptions {
    /// All exchanges: the warm-up, and those that are measured. `None` where a 64-bit number does
    /// not hold them, which the parser refuses.
    pub fn exchanges(&self) -> Option<u64> {
        self.sides.warmup.checked_add(self.sides.iters)
    }

    /// What does not go together.
    pub(super) fn conflict(&self) -> Option<String> {
        if self.exchanges().is_none_or(|all| all > MAX_EXCHANGES) {
            return Some(format!(
                "--warmup {} and --iters {} are together more than the {MAX_EXCHANGES} exchanges that are counted: give fewer",
                self.sides.warmup, self.sides.iters
            ));
        }
        if self.transport == Service::Ud && self.op != Operation::Send {
            return Some(format!("--op {} is not for --transport ud, which only sends", word(&self.op)));
        }
        self.sides.conflict(self.batch)
    }
}

impl SidesOptions for PingpongOptions {
    fn sides(&self) -> &SideOptions {
        &self.sides
    }

    fn sides_mut(&mut self) -> &mut SideOptions {
        &mut self.sides
    }

    fn size(&self) -> u64 {
        self.size
    }

    /// The number of exchanges is the most where its duration ends it.
    fn of_size(&self, size: u64) -> Self {
        let mut one = PingpongOptions { size, ..self.clone() };
        if one.sides.duration.is_some() {
            one.sides.iters = MAX_EXCHANGES - one.sides.warmup;
        }
        one
    }

    fn refusal(&self) -> Option<String> {
        if self.size > MAX_SIZE {
            return Some(format!(
                "messages of {} bytes are more than the {MAX_SIZE} that there can be",
                self.size
            ));
        }
        if self.batch == 0 || self.batch > MAX_BATCH {
            return Some(format!("{} exchanges at a time are not from 1 to {MAX_BATCH}", self.batch));
        }
        self.conflict()
    }
}
