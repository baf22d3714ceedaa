//! The options of `gdsync pingpong`.

use super::{
    DoorbellChoice, Hosts, MAX_BATCH, MAX_EXCHANGES, MAX_SIZE, Operation, QueueChoice, Service, Trigger,
    values, word,
};
use crate::hca::{self, Hca};
use crate::placement::Layout;
use clap::Args;
use gdsync::cuda::GpuList;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Most that may be enqueued at a time on a GPU: its driver blocks the CPU once about 1000
/// operations wait, and there are four to an exchange, and twice as many exchanges under way.
const MAX_GPU_BATCH: u64 = 120;

/// Most that may be enqueued at a time where the card waits: in a queue, its waits have as much room
/// as sends.
const MAX_CARD_BATCH: u64 = 512;

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub(crate) struct PingpongOptions {
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) hosts: Hosts,
    /// Exchanges that are measured
    #[arg(long, default_value = "1000", value_parser = values::positive, allow_hyphen_values = true)]
    pub(crate) iters: u64,
    /// Exchanges before the measurement
    #[arg(long, default_value = "100", value_parser = values::count, allow_hyphen_values = true)]
    pub(crate) warmup: u64,
    /// Bytes of a message: a number, or one with K, KiB, M, MiB, G or GiB (1024 each), or kB, MB or GB (1000 each)
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = values::size, allow_hyphen_values = true)]
    pub(crate) size: u64,
    /// Bytes of the messages of a sweep, a run for each: a list such as `8,4K,1M`, or by powers of two, such as `8..64M`
    #[arg(long, value_name = "LIST", value_parser = values::sizes, conflicts_with = "size", allow_hyphen_values = true)]
    #[serde(skip)]
    pub(crate) sizes: Option<Sizes>,
    /// A sweep from 2 bytes to 8 MiB: as `--sizes 2..8M`
    #[arg(short, long = "all-sizes", conflicts_with_all = ["size", "sizes"])]
    #[serde(skip)]
    pub(crate) all_sizes: bool,
    /// Measure for so long, such as `10s`, `500ms` or `2m`, instead of a number of exchanges
    #[arg(long, value_name = "TIME", value_parser = values::duration, conflicts_with = "iters", allow_hyphen_values = true)]
    #[serde(skip)]
    pub(crate) duration: Option<Duration>,
    /// Transport service; messages of `ud` have at most the port's MTU
    #[arg(long, value_enum, default_value_t = Service::Rc)]
    pub(crate) transport: Service,
    /// How a message travels
    #[arg(long, value_enum, default_value_t = Operation::Send)]
    pub(crate) op: Operation,
    /// Processes: 2, or 1 for both sides in one
    #[arg(long, default_value = "2", value_parser = values::procs, allow_hyphen_values = true)]
    pub(crate) procs: u64,
    /// What rings the card and waits for it
    #[arg(long, value_enum, default_value_t = Trigger::Stream)]
    pub(crate) trigger: Trigger,
    /// The card: softhca0, softhca1 ... are software, others the system's [default: the first
    /// software card]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub(crate) hca: Option<Hca>,
    /// Index of the port's GID [default: on Ethernet the best RoCE v2 one, as `gdsync devices`
    /// tells]
    #[arg(long, value_name = "N", value_parser = values::gid_index, allow_hyphen_values = true)]
    pub(crate) gid_index: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both ports take]
    #[arg(long, value_name = "BYTES", value_parser = values::mtu, allow_hyphen_values = true)]
    pub(crate) mtu: Option<u32>,
    /// Keep messages in the memory of GPU N, and let a CUDA stream and kernels do the work; `N,M` has
    /// the first side on GPU N and the second on GPU M, `all` on the GPUs of a machine with one or two
    #[arg(long, value_name = "N[,M]", allow_hyphen_values = true)]
    #[serde(with = "crate::gpus")]
    pub(crate) gpu: Option<GpuList>,
    #[command(flatten)]
    pub(crate) layout: Layout,
    /// How a stream's doorbells reach the card
    #[arg(long, value_enum, default_value_t = DoorbellChoice::Auto)]
    pub(crate) doorbells: DoorbellChoice,
    /// What makes queue pairs and completion queues; `devx` needs a card of the system's
    #[arg(long, value_enum, default_value_t = QueueChoice::Verbs)]
    pub(crate) queues: QueueChoice,
    /// Exchanges that are enqueued at a time, without the CPU looking at any of them
    #[arg(long, value_name = "K", default_value = "16", value_parser = values::batch, allow_hyphen_values = true)]
    pub(crate) batch: u64,
    /// Let the software card do at random what specifications allow and real cards do: a seed, and words
    /// such as `fetch,pieces` for some of it only (docs/liberties.md); SOFTHCA_LIBERTIES does the same
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub(crate) liberties: Option<String>,
    /// Fill every message and check every byte of it [default: true]; `--check=false` only moves
    /// them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) check: bool,
    /// Draw what was measured into a file, as SVG: of a sweep latency and bandwidth by size, else a histogram
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object instead of a table; an array of them for a sweep
    #[arg(long)]
    pub(crate) json: bool,
    /// Print comma-separated values instead of a table: a line of names, and a line for each size
    #[arg(long, conflicts_with = "json")]
    #[serde(skip)]
    pub(crate) csv: bool,
}

/// Sizes of messages, in bytes. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<u64>);

impl PingpongOptions {
    /// All exchanges: the warm-up, and those that are measured. `None` where a 64-bit number does
    /// not hold them, which the parser refuses.
    pub(crate) fn exchanges(&self) -> Option<u64> {
        self.warmup.checked_add(self.iters)
    }

    /// The sizes to measure with; more than one, or one that stands in a list, are a sweep.
    pub(crate) fn swept(&self) -> Option<Vec<u64>> {
        match &self.sizes {
            Some(sizes) => Some(sizes.0.clone()),
            None => self.all_sizes.then(|| values::powers(2, 8 << 20)),
        }
    }

    /// The run for one size, whose number of exchanges is the most where its duration ends it.
    pub(crate) fn of_size(&self, size: u64) -> Self {
        let iters = if self.duration.is_some() { MAX_EXCHANGES - self.warmup } else { self.iters };
        PingpongOptions { size, iters, ..self.clone() }
    }

    /// What another host asks for: the values that count there, without what each side has for itself.
    pub(crate) fn for_other_host(&self) -> Self {
        PingpongOptions { hca: None, gid_index: None, liberties: None, json: false, ..self.clone() }
    }

    /// Why options that another host has sent cannot be used: no parser has checked their values here.
    pub(crate) fn refusal(&self) -> Option<String> {
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

    /// What does not go together.
    pub(super) fn conflict(&self) -> Option<String> {
        if let Some(conflict) = self.hosts.conflict() {
            return Some(conflict);
        }
        if self.exchanges().is_none_or(|all| all > MAX_EXCHANGES) {
            return Some(format!(
                "--warmup {} and --iters {} are together more than the {MAX_EXCHANGES} exchanges that are counted: give fewer",
                self.warmup, self.iters
            ));
        }
        if self.gpu.is_some() && self.trigger == Trigger::Cpu {
            return Some("--gpu is for streams: with --trigger cpu, no GPU has a part in it".to_owned());
        }
        if self.doorbells == DoorbellChoice::Card && self.trigger == Trigger::Cpu {
            return Some(
                "--doorbells card is for streams, which then write a word: with --trigger cpu, the CPU rings the card"
                    .to_owned(),
            );
        }
        if self.gpu.is_some() && self.batch > MAX_GPU_BATCH {
            return Some(format!(
                "--batch {} is more than the {MAX_GPU_BATCH} that --gpu allows",
                self.batch
            ));
        }
        if self.doorbells == DoorbellChoice::Card && self.batch > MAX_CARD_BATCH {
            return Some(format!(
                "--batch {} is more than the {MAX_CARD_BATCH} that --doorbells card allows",
                self.batch
            ));
        }
        if let (None, Some(option)) = (&self.gpu, self.layout.wants_gpu()) {
            return Some(format!("--{option} gpu needs --gpu N, which says whose memory"));
        }
        if self.transport == Service::Ud && self.op != Operation::Send {
            return Some(format!("--op {} is not for --transport ud, which only sends", word(&self.op)));
        }
        None
    }
}
