//! The options that every measurement between two sides has: `gdsync pingpong` and `gdsync bench net`.

use super::{DoorbellChoice, Hosts, QueueChoice, Trigger, values};
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

/// What each side has for itself: where it waits, its own hardware, and how it prints.
const OF_EACH_SIDE: [&str; 9] =
    ["host", "server", "listen", "port", "hca", "gid_index", "gpu", "liberties", "json"];

/// Has the server of a measurement refuse everything else: its client decides that.
pub(super) fn with_server(command: clap::Command) -> clap::Command {
    let all = command.get_arguments().map(|argument| argument.get_id().clone());
    let of_client: Vec<clap::Id> = all.filter(|id| !OF_EACH_SIDE.contains(&id.as_str())).collect();
    command.mut_arg("server", |server| server.conflicts_with_all(of_client))
}

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct SideOptions {
    #[command(flatten)]
    #[serde(skip)]
    pub hosts: Hosts,
    /// Exchanges or messages that are measured, of each size and each side that begins them
    #[arg(long, default_value = "1000", value_parser = values::positive, allow_hyphen_values = true)]
    pub iters: u64,
    /// As many before the measurement
    #[arg(long, default_value = "100", value_parser = values::count, allow_hyphen_values = true)]
    pub warmup: u64,
    /// Bytes of the messages of a sweep, a run for each: a list such as `8,4K,1M`, or by powers of two, such as `8..64M`
    #[arg(long, value_name = "LIST", value_parser = values::sizes, conflicts_with = "size", allow_hyphen_values = true)]
    #[serde(skip)]
    pub sizes: Option<Sizes>,
    /// A sweep from 2 bytes to 8 MiB: as `--sizes 2..8M`
    #[arg(short, long = "all-sizes", conflicts_with_all = ["size", "sizes"])]
    #[serde(skip)]
    pub all_sizes: bool,
    /// Measure for so long, such as `10s`, `500ms` or `2m`, instead of a number of exchanges or messages
    #[arg(long, value_name = "TIME", value_parser = values::duration, conflicts_with = "iters", allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    /// Processes: 2, or 1 for both sides in one
    #[arg(long, default_value = "2", value_parser = values::procs, allow_hyphen_values = true)]
    pub procs: u64,
    /// What rings the card and waits for it
    #[arg(long, value_enum, default_value_t = Trigger::Stream)]
    pub trigger: Trigger,
    /// The card: softhca0, softhca1 ... are software, others the system's [default: the first
    /// software card]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub hca: Option<Hca>,
    /// Index of the port's GID [default: on Ethernet the best RoCE v2 one, as `gdsync devices`
    /// tells]
    #[arg(long, value_name = "N", value_parser = values::gid_index, allow_hyphen_values = true)]
    pub gid_index: Option<u32>,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both ports take]
    #[arg(long, value_name = "BYTES", value_parser = values::mtu, allow_hyphen_values = true)]
    pub mtu: Option<u32>,
    /// Keep messages in the memory of GPU N, and let a CUDA stream and kernels do the work; `N,M` has
    /// the first side on GPU N and the second on GPU M, `all` on the GPUs of a machine with one or two
    #[arg(long, value_name = "N[,M]", allow_hyphen_values = true)]
    #[serde(serialize_with = "values::gpus_as_text", deserialize_with = "values::gpus_of_text")]
    pub gpu: Option<GpuList>,
    #[command(flatten)]
    pub layout: Layout,
    /// How a stream's doorbells reach the card
    #[arg(long, value_enum, default_value_t = DoorbellChoice::Auto)]
    pub doorbells: DoorbellChoice,
    /// What makes queue pairs and completion queues; `devx` needs a card of the system's
    #[arg(long, value_enum, default_value_t = QueueChoice::Verbs)]
    pub queues: QueueChoice,
    /// Let the software card do at random what specifications allow and real cards do: a seed, and words
    /// such as `fetch,pieces` for some of it only (docs/liberties.md); SOFTHCA_LIBERTIES does the same
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub liberties: Option<String>,
    /// Fill every message and check every byte of it [default: true]; `--check=false` only moves
    /// them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true",
          default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub check: bool,
    /// Draw what was measured into a file, as SVG: a sweep by size, latencies of one size as a histogram
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub plot: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values instead of a table: a line of names, and a line for each size
    #[arg(long, conflicts_with = "json")]
    #[serde(skip)]
    pub csv: bool,
}

/// Sizes of messages, in bytes. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

impl SideOptions {
    /// The sizes to measure with; more than one, or one that stands in a list, are a sweep.
    pub fn swept(&self) -> Option<Vec<u64>> {
        match &self.sizes {
            Some(sizes) => Some(sizes.0.clone()),
            None => self.all_sizes.then(|| values::powers(2, 8 << 20)),
        }
    }

    /// What another host asks for: the values that count there, without what each side has for itself.
    pub fn for_other_host(&self) -> Self {
        SideOptions { hca: None, gid_index: None, liberties: None, json: false, ..self.clone() }
    }

    /// What does not go together, where so many are enqueued at a time.
    pub(super) fn conflict(&self, batch: u64) -> Option<String> {
        if let Some(conflict) = self.hosts.conflict() {
            return Some(conflict);
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
        if self.gpu.is_some() && batch > MAX_GPU_BATCH {
            return Some(format!("--batch {batch} is more than the {MAX_GPU_BATCH} that --gpu allows"));
        }
        if self.doorbells == DoorbellChoice::Card && batch > MAX_CARD_BATCH {
            return Some(format!(
                "--batch {batch} is more than the {MAX_CARD_BATCH} that --doorbells card allows"
            ));
        }
        let option = self.layout.wants_gpu().filter(|_| self.gpu.is_none())?;
        Some(format!("--{option} gpu needs --gpu N, which says whose memory"))
    }
}
