//! The options of `gdsync bench net`.

use super::{MAX_BATCH, MAX_EXCHANGES, MAX_SIZE, SideOptions, SidesOptions, values, word};
use crate::size;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Most queue pairs of a side.
const MAX_QPS: u64 = 256;
/// Most messages under way of a queue pair, where nothing else is asked for.
const WINDOW: u64 = 64;
/// Messages that are posted at a time, where nothing else is asked for.
const BATCH: u64 = 16;
/// Bytes of what an atomic operation changes.
const WORD: u64 = 8;
/// Bytes of messages where bandwidth is measured and no size is given.
const LARGE: u64 = 64 << 10;
/// Most bytes of the memory of one side's messages, with one message of each queue pair.
const MAX_MEMORY: u64 = 4 << 30;

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct NetOptions {
    #[command(flatten)]
    #[serde(flatten)]
    pub sides: SideOptions,
    /// What is measured
    #[arg(long, value_enum, default_value_t = NetMode::Bandwidth)]
    pub mode: NetMode,
    /// What moves the messages
    #[arg(long, visible_alias = "op", value_enum, default_value_t = NetOperation::Write)]
    pub operation: NetOperation,
    /// Bytes of a message: a number, or one with K, KiB, M, MiB, G or GiB (1024 each), or kB, MB or GB (1000 each)
    /// [default: 64K for bandwidth, else 8]
    #[arg(long, value_name = "BYTES", value_parser = values::size, allow_hyphen_values = true)]
    pub size: Option<u64>,
    /// Queue pairs of each side, 1 to 256, which have messages under way at the same time
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=MAX_QPS), allow_hyphen_values = true)]
    pub qps: u64,
    /// Messages that each queue pair has under way, 1 to 1024 [default: 64]
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
    /// Whether it changes a word in place of moving a message.
    pub fn is_atomic(self) -> bool {
        matches!(self, NetOperation::FetchAdd | NetOperation::CompareSwap)
    }
}

impl NetOptions {
    /// Messages under way of a queue pair.
    pub fn window(&self) -> u64 {
        self.window.unwrap_or_else(|| WINDOW.max(self.batch.unwrap_or(0)))
    }

    /// Messages that are posted at a time.
    pub fn batch(&self) -> u64 {
        self.batch.unwrap_or_else(|| BATCH.min(self.window()))
    }

    /// What does not go together.
    pub(super) fn conflict(&self) -> Option<String> {
        let (operation, sides) = (word(&self.operation), &self.sides);
        if sides.warmup.checked_add(sides.iters).is_none_or(|all| all > MAX_EXCHANGES) {
            return Some(format!(
                "--warmup {} and --iters {} are together more than the {MAX_EXCHANGES} messages that are counted: give fewer",
                sides.warmup, sides.iters
            ));
        }
        if let Some(option) = self.not_for_latency() {
            return Some(format!(
                "{option} is not for --mode latency, which has one message under way: give --mode rate or bandwidth"
            ));
        }
        if self.operation.is_atomic() && (sides.swept().is_some() || self.size() != WORD) {
            return Some(format!(
                "--operation {operation} changes {WORD} bytes and has no other size: leave out --size, --sizes and -a"
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

    /// The option that is given and that a latency does not have.
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

#[cfg(test)]
mod tests;
