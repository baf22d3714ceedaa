//! The options of `gdsync pingpong` and of `gdsync bench net`.

use super::{
    MAX_BATCH, MAX_EXCHANGES, MAX_SIZE, Operation, Service, SideOptions, SidesOptions, values, word,
};
use crate::size;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Maximum number of queue pairs of a side.
const MAX_QPS: u64 = 256;
/// Default of the messages under way on a queue pair.
const WINDOW: u64 = 64;
/// Default of the messages posted at a time.
const BATCH: u64 = 16;
/// Most bytes of the messages that are under way by default, so that a run can end soon.
const UNDER_WAY: u64 = 64 << 20;
/// Bytes of an atomic operation's operand.
const WORD: u64 = 8;
/// Default message size, in bytes, of a bandwidth measurement.
const LARGE: u64 = 64 << 10;
/// Maximum memory of one side's messages, in bytes, with one message of each queue pair.
const MAX_MEMORY: u64 = 4 << 30;

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct NetOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub sides: SideOptions,
    /// The quantity to measure
    #[arg(long, value_enum, default_value_t = NetMode::Bandwidth)]
    pub mode: NetMode,
    /// The operation that moves the messages
    #[arg(long = "op", alias = "operation", value_enum, default_value_t = NetOperation::Write)]
    pub operation: NetOperation,
    /// Bytes of a message: a number, or one with K, KiB, M, MiB, G or GiB (1024 each), or kB, MB or GB (1000 each)
    /// [default: 64K for bandwidth, else 8]
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_hyphen_values = true)]
    pub size: Option<u64>,
    /// Queue pairs of each side, 1 to 256, which have messages under way at the same time
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=MAX_QPS), allow_hyphen_values = true)]
    pub qps: u64,
    /// Messages that each queue pair has under way, 1 to 1024 [default: 64, or fewer of messages above 1 MiB]
    #[arg(long, value_name = "N", value_parser = values::batch, allow_hyphen_values = true)]
    pub window: Option<u64>,
    /// Messages that are posted at a time, by one doorbell; for latency, that are enqueued at a time, one after the other
    /// [default: 16, or the window]
    #[arg(long, value_name = "N", value_parser = values::batch, allow_hyphen_values = true)]
    pub batch: Option<u64>,
    /// Both sides begin messages, at the same time
    #[arg(long)]
    pub bidirectional: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetMode {
    /// Bytes per second: messages of 64 KiB, if no size is given
    Bandwidth,
    /// Messages per second: messages of 8 bytes, if no size is given
    Rate,
    /// The time of one message, from its post until its completion, with no other under way
    Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetOperation {
    /// Send into a posted receive
    Send,
    /// RDMA write
    Write,
    /// RDMA read
    Read,
    /// Fetch and add on a 64-bit counter of each queue pair
    FetchAdd,
    /// Compare and swap on a 64-bit counter of each queue pair
    CompareSwap,
}

impl NetOperation {
    /// True if the operation changes a word instead of moving a message.
    pub fn is_atomic(self) -> bool {
        matches!(self, NetOperation::FetchAdd | NetOperation::CompareSwap)
    }
}

/// Returns this number of messages, or fewer if they are large.
fn by_size(most: u64, size: u64) -> u64 {
    most.min(UNDER_WAY / size.max(1)).max(1)
}

impl NetOptions {
    pub fn window(&self) -> u64 {
        self.window.unwrap_or_else(|| by_size(WINDOW, self.size()).max(self.batch.unwrap_or(0)))
    }

    pub fn batch(&self) -> u64 {
        self.batch.unwrap_or_else(|| BATCH.min(self.window()))
    }

    pub(super) fn conflict(&self) -> Option<String> {
        let (operation, sides) = (word(&self.operation), &self.sides);
        if sides.warmup().checked_add(sides.iters).is_none_or(|all| all > MAX_EXCHANGES) {
            return Some(format!(
                "--warmup {} and --iters {} are together more than the {MAX_EXCHANGES} messages that are counted: give fewer",
                sides.warmup(),
                sides.iters
            ));
        }
        if let Some(option) = self.not_for_latency() {
            return Some(format!(
                "{option} is not for --mode latency, which has one message under way: give --mode rate or bandwidth"
            ));
        }
        if self.operation.is_atomic() && (sides.swept().is_some() || self.size() != WORD) {
            return Some(format!(
                "--op {operation} changes {WORD} bytes and has no other size: leave out --size, --sizes and -a"
            ));
        }
        if let (Some(batch), Some(window)) = (self.batch, self.window)
            && batch > window
        {
            return Some(format!(
                "--batch {batch} is more than the --window {window} messages that may be under way: give a larger window"
            ));
        }
        if let Some(largest) = sides.swept().unwrap_or_else(|| vec![self.size()]).into_iter().max()
            && largest.saturating_mul(self.qps) > MAX_MEMORY
        {
            return Some(format!(
                "--qps {} with messages of {} need more than {} of memory on each side: give fewer queue pairs or smaller messages",
                self.qps,
                size::text(largest),
                size::text(MAX_MEMORY)
            ));
        }
        if sides.plot.is_some() && self.mode != NetMode::Latency && sides.swept().is_none() {
            return Some(format!(
                "--plot draws a {} by size, and there is one size: give --sizes or -a",
                word(&self.mode)
            ));
        }
        sides.conflict(self.batch())
    }

    /// Returns the given option that a latency measurement does not take.
    fn not_for_latency(&self) -> Option<String> {
        if self.mode != NetMode::Latency {
            return None;
        }
        match (self.qps, self.window) {
            (1, None) => self.bidirectional.then(|| "--bidirectional".to_owned()),
            (1, Some(window)) => Some(format!("--window {window}")),
            (qps, _) => Some(format!("--qps {qps}")),
        }
    }
}

impl SidesOptions for NetOptions {
    fn sides(&self) -> &SideOptions {
        &self.sides
    }

    fn sides_mut(&mut self) -> &mut SideOptions {
        &mut self.sides
    }

    fn size(&self) -> u64 {
        let usual = if self.mode == NetMode::Bandwidth && !self.operation.is_atomic() { LARGE } else { WORD };
        self.size.unwrap_or(usual)
    }

    fn of_size(&self, size: u64) -> Self {
        NetOptions { size: Some(size), ..self.clone() }
    }

    fn refusal(&self) -> Option<String> {
        let numbers = [
            ("bytes of a message", self.size(), 0, MAX_SIZE),
            ("queue pairs", self.qps, 1, MAX_QPS),
            ("messages under way", self.window(), 1, MAX_BATCH),
            ("messages at a time", self.batch(), 1, MAX_BATCH),
            ("messages to measure", self.sides.iters, 1, MAX_EXCHANGES),
        ];
        let wrong = numbers.iter().find(|(_, value, least, most)| !(*least..=*most).contains(value));
        match wrong {
            Some((what, value, least, most)) => {
                Some(format!("{value} {what} are not from {least} to {most}"))
            }
            None => self.conflict(),
        }
    }
}

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
    /// Exchanges that are enqueued at a time, without the CPU looking at any of them [default: 16, or fewer of messages
    /// above 4 MiB]
    #[arg(long, value_name = "K", value_parser = values::batch, allow_hyphen_values = true)]
    pub batch: Option<u64>,
}

impl PingpongOptions {
    pub fn batch(&self) -> u64 {
        self.batch.unwrap_or_else(|| by_size(BATCH, self.size))
    }

    /// All exchanges: warm-up and measurement. `None` if the sum exceeds 64 bits, which the parser refuses.
    pub fn exchanges(&self) -> Option<u64> {
        self.sides.warmup().checked_add(self.sides.iters)
    }

    pub(super) fn conflict(&self) -> Option<String> {
        if self.exchanges().is_none_or(|all| all > MAX_EXCHANGES) {
            return Some(format!(
                "--warmup {} and --iters {} are together more than the {MAX_EXCHANGES} exchanges that are counted: give fewer",
                self.sides.warmup(),
                self.sides.iters
            ));
        }
        if self.transport == Service::Ud && self.op != Operation::Send {
            return Some(format!("--op {} is not for --transport ud, which only sends", word(&self.op)));
        }
        self.sides.conflict(self.batch())
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

    /// With a duration, the number of exchanges is the maximum: time ends the run.
    fn of_size(&self, size: u64) -> Self {
        let mut one = PingpongOptions { size, ..self.clone() };
        if one.sides.duration.is_some() {
            one.sides.iters = MAX_EXCHANGES - one.sides.warmup();
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
        if !(1..=MAX_BATCH).contains(&self.batch()) {
            return Some(format!("{} exchanges at a time are not from 1 to {MAX_BATCH}", self.batch()));
        }
        self.conflict()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BenchOptions, Between, Cli, Command, Invocation};
    use super::*;

    fn parse(arguments: &[&str]) -> Result<NetOptions, String> {
        match Cli::parse_words(["gdsync", "bench", "net"].iter().chain(arguments)) {
            Ok(Invocation::Command(Command::Bench(BenchOptions {
                between: Some(Between::Net(net)),
                ..
            }))) => Ok(*net),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_is_not_given_follows_from_what_is() {
        let of = |arguments: &[&str]| {
            let net = parse(arguments).unwrap();
            (net.size(), net.window(), net.batch())
        };
        assert_eq!(of(&[]), (LARGE, 64, 16));
        assert_eq!(of(&["--mode", "rate"]), (8, 64, 16));
        assert_eq!(of(&["--mode", "latency"]), (8, 64, 16));
        assert_eq!(of(&["--op", "fetch-add"]), (8, 64, 16));
        assert_eq!(of(&["--window", "4"]), (LARGE, 4, 4));
        assert_eq!(of(&["--batch", "100"]), (LARGE, 100, 100));
        assert_eq!(of(&["--size", "1k", "--window", "8", "--batch", "2"]), (1024, 8, 2));
        assert_eq!(of(&["--size", "8M"]), (8 << 20, 8, 8));
        let warm_up = |arguments: &[&str]| {
            let sides = parse(arguments).unwrap().of_size(1 << 30).sides;
            (sides.warmup(), sides.warm_up_time().is_some())
        };
        assert_eq!((warm_up(&[]), warm_up(&["--warmup", "7"])), ((100, true), (7, false)));
        assert_eq!(of(&["--size", "1G", "--batch", "3"]), (1 << 30, 3, 3));
    }

    #[test]
    fn options_that_do_not_go_together_are_refused_with_the_reason() {
        for (arguments, said) in [
            (&["--mode", "latency", "--qps", "2"][..], "--qps 2 is not for --mode latency"),
            (&["--mode", "latency", "--window", "8"], "--window 8 is not for --mode latency"),
            (&["--mode", "latency", "--bidirectional"], "--bidirectional is not for --mode latency"),
            (&["--op", "fetch-add", "--size", "16"], "--op fetch-add changes 8 bytes"),
            (&["--operation", "compare-swap", "-a"], "--op compare-swap changes 8 bytes"),
            (&["--batch", "9", "--window", "8"], "--batch 9 is more than the --window 8"),
            (&["--qps", "256", "--size", "32M"], "--qps 256 with messages of 32 MiB need more than 4 GiB"),
            (&["--qps", "8", "--sizes", "8,1G"], "--qps 8 with messages of 1 GiB need more than 4 GiB"),
            (&["--plot", "x.svg"], "--plot draws a bandwidth by size"),
            (&["--mode", "rate", "--plot", "x.svg"], "--plot draws a rate by size"),
            (&["--warmup", "281474976710656"], "more than the 281474976710656 messages"),
            (&["--gpu", "0", "--trigger", "cpu"], "--gpu is for streams"),
            (&["--gpu", "0", "--batch", "121"], "more than the 120 that --gpu allows"),
            (&["--doorbells", "card", "--batch", "513"], "more than the 512 that --doorbells card allows"),
            (&["--qps", "257"], "257 is not in 1..=256"),
            (&["--window", "1025"], "1025 is more than the 1024 that fit a queue"),
            (&["--server", "--qps", "2"], "'--server' cannot be used with '--qps <N>'"),
            (&["--server", "--plot", "x.svg"], "'--server' cannot be used with '--plot <FILE>'"),
            (&["node7", "--procs", "1"], "cannot be used with"),
            (&["--duration", "1s", "--iters", "5"], "cannot be used with"),
        ] {
            let message = parse(arguments).unwrap_err();
            assert!(message.contains(said), "{arguments:?}: {message}");
        }
        assert!(parse(&["--mode", "latency", "--plot", "x.svg"]).is_ok());
        assert!(parse(&["--operation", "fetch-add", "--size", "8"]).is_ok());
    }

    #[test]
    fn a_refusal_names_its_own_command() {
        let message = parse(&["--plot", "x.svg"]).unwrap_err();
        assert!(message.contains("Usage: gdsync bench net"), "{message}");
    }

    #[test]
    fn values_of_another_host_are_checked_here() {
        let options = parse(&[]).unwrap();
        assert_eq!(options.refusal(), None);
        for (wrong, said) in [
            (
                NetOptions { size: Some(MAX_SIZE + 1), ..options.clone() },
                "1073741825 bytes of a message are not from 0",
            ),
            (NetOptions { qps: 0, ..options.clone() }, "0 queue pairs are not from 1 to 256"),
            (
                NetOptions { window: Some(0), ..options.clone() },
                "0 messages under way are not from 1 to 1024",
            ),
            (NetOptions { batch: Some(5000), ..options.clone() }, "5000 messages under way are not"),
            (NetOptions { batch: Some(9), window: Some(8), ..options.clone() }, "--batch 9 is more than"),
        ] {
            assert!(wrong.refusal().unwrap().contains(said), "{:?}", wrong.refusal());
        }
        let mut none = options;
        none.sides.iters = 0;
        assert!(none.refusal().unwrap().contains("0 messages to measure are not from 1"));
    }
}
