//! The options common to measurements between two sides, `gdsync pingpong` and `gdsync bench net`.

use super::values::{self, Sizes};
use super::{DoorbellChoice, QueueChoice, Trigger};
use crate::hca::{self, Hca};
use clap::{Args, ValueEnum};
use gdsync::cuda::{GpuList, Placement, QueuePlacement};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum batch on a GPU: its driver blocks the CPU once about 1000 operations are queued; an exchange has four, and
/// two batches are under way.
const MAX_GPU_BATCH: u64 = 120;

/// Maximum batch if the card waits: its waits take as much room in a queue as the sends.
const MAX_CARD_BATCH: u64 = 512;

/// Options that each side has for itself: its address, its hardware and its output format.
const OF_EACH_SIDE: [&str; 9] =
    ["host", "server", "listen", "port", "hca", "gid_index", "gpu", "liberties", "json"];

/// Makes a server refuse all other options: its client decides them.
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
    /// As many before the measurement [default: 100, or as many as fit a second]
    #[arg(long, value_parser = values::count, allow_hyphen_values = true)]
    pub warmup: Option<u64>,
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
    /// The agent that rings doorbells and waits for completions
    #[arg(long, value_enum, default_value_t = Trigger::Stream)]
    pub trigger: Trigger,
    /// The card: softhca0, softhca1 ... are software, others the system's [default: the first software card]
    #[arg(long, value_name = "NAME[:PORT]", value_parser = hca::parse)]
    pub hca: Option<Hca>,
    /// Index of the port's GID [default: on Ethernet the best RoCE v2 one, as `gdsync devices` tells]
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
    /// The interface that makes queue pairs and completion queues; `devx` needs a card of the system's
    #[arg(long, value_enum, default_value_t = QueueChoice::Verbs)]
    pub queues: QueueChoice,
    /// Let the software card do at random what specifications allow and real cards do: a seed, and words
    /// such as `fetch,pieces` for some of it only (docs/liberties.md); SOFTHCA_LIBERTIES does the same
    #[arg(long, value_name = "SEED[ KINDS]", value_parser = values::liberties, allow_hyphen_values = true)]
    pub liberties: Option<String>,
    /// Fill every message and check every byte of it [default: true]; `--check=false` only moves them
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

/// The options of a measurement between two sides.
pub trait SidesOptions: Sized {
    fn sides(&self) -> &SideOptions;
    fn sides_mut(&mut self) -> &mut SideOptions;
    /// Message size in bytes, without a sweep.
    fn size(&self) -> u64;
    /// Returns the options of the run for one size.
    fn of_size(&self, size: u64) -> Self;
    /// Returns why options received from another host cannot be used; this host's parser has not checked them.
    fn refusal(&self) -> Option<String>;
}

/// Default of the exchanges or messages before a measurement, and the longest time that they take then.
const WARM_UP: u64 = 100;
const WARM_UP_TIME: Duration = Duration::from_secs(1);

impl SideOptions {
    /// Returns the number of exchanges or messages before the measurement.
    pub fn warmup(&self) -> u64 {
        self.warmup.unwrap_or(WARM_UP)
    }

    /// Returns the time after which the measurement begins, unless the user has chosen a number.
    pub(crate) fn warm_up_time(&self) -> Option<Duration> {
        self.warmup.is_none().then_some(WARM_UP_TIME)
    }

    /// Returns the sizes of a sweep. A list is a sweep even if it has one size.
    pub fn swept(&self) -> Option<Vec<u64>> {
        match &self.sizes {
            Some(sizes) => Some(sizes.0.clone()),
            None => self.all_sizes.then(|| values::powers(2, 8 << 20)),
        }
    }

    /// Returns the options of the run that a client requests with these, on a server with the options `own`: those of
    /// `OF_EACH_SIDE` are the server's.
    ///
    /// # Errors
    /// The options have no JSON form.
    pub fn on_server(&self, own: &Self) -> serde_json::Result<Self> {
        let (mut run, mut own) = (serde_json::to_value(self)?, serde_json::to_value(own)?);
        for id in OF_EACH_SIDE {
            if let Some(value) = own.get_mut(id) {
                run[id] = value.take();
            }
        }
        serde_json::from_value(run)
    }

    /// Returns why the options contradict each other with this batch size, if they do.
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

/// Default TCP port of the server: perftest's.
const DEFAULT_PORT: u16 = 18515;

#[derive(Clone, Debug, Default, Args)]
pub struct Hosts {
    /// Measure with the same command and --server on this host. The server does what the options here say, but for
    /// --hca, --gid-index, --liberties and the number of --gpu, which each side has for itself
    #[arg(value_name = "HOST[:PORT]", value_parser = address, conflicts_with_all = ["server", "procs"])]
    pub host: Option<Address>,
    /// Wait for one client, which is the same command with HOST, measure with it as its options say, and end. What the
    /// client decides cannot be given here
    #[arg(long)]
    pub server: bool,
    /// Where the server waits; port 0 is one that is free [default: all addresses of this host]
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = address, requires = "server")]
    pub listen: Option<Address>,
    /// TCP port of the server, on either side [default: 18515]
    #[arg(short, long, value_name = "N", value_parser = port, allow_hyphen_values = true)]
    pub port: Option<NonZeroU16>,
}

impl Hosts {
    /// True if the two sides are started separately.
    pub fn are_named(&self) -> bool {
        self.server || self.host.is_some()
    }

    /// Returns the port of an address, or else the server's.
    pub fn port_of(&self, address: Option<&Address>) -> u16 {
        let own = address.and_then(|address| address.port);
        own.or(self.port.map(NonZeroU16::get)).unwrap_or(DEFAULT_PORT)
    }

    fn conflict(&self) -> Option<String> {
        let address = self.host.as_ref().or(self.listen.as_ref());
        match (address, self.port) {
            (_, Some(port)) if !self.are_named() => {
                Some(format!("--port {port} is that of a server: give HOST, or --server"))
            }
            (Some(address @ Address { port: Some(_), .. }), Some(port)) => {
                Some(format!("{address} and --port {port} both name a port: give one"))
            }
            _ if self.host.as_ref().is_some_and(|host| host.port == Some(0)) => {
                Some("the port of HOST is 0: give that of the server, which it has printed".to_owned())
            }
            _ => None,
        }
    }
}

/// A host's name or address, and optionally a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: Option<u16>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        match port {
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
            None => f.write_str(host),
        }
    }
}

/// Parses `HOST`, `HOST:PORT`, `[IPv6]`, `[IPv6]:PORT`, or an IPv6 address without a port.
fn address(text: &str) -> Result<Address, String> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(""))),
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.map(|port| port.parse().ok().filter(|_| digits(port)));
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "[]/".contains(c));
    match number {
        Some(None) => Err(format!("the port of {text} is not a number up to 65535")),
        _ if !is_host => {
            Err(format!("{text} names no host: give a name or an address, such as node7 or node7:18515"))
        }
        number => Ok(Address { host: host.to_owned(), port: number.flatten() }),
    }
}

fn port(text: &str) -> Result<NonZeroU16, String> {
    text.parse().map_err(|_| format!("{text} is not a port from 1 to 65535"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// The host's memory
    #[default]
    Host,
    /// The memory of the GPU that --gpu names
    Gpu,
    /// The host's, treated as if it were a GPU's
    StandIn,
}

/// The memory that holds the queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub struct Layout {
    /// The memory that holds completion queues
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub cq: Where,
    /// The memory that holds doorbell records
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub dbrec: Where,
    /// The memory that holds send and receive queues
    #[arg(long, value_name = "WHERE", value_enum, default_value_t = Where::Host)]
    pub wq: Where,
}

impl Layout {
    fn parts(&self) -> [(&'static str, Where); 3] {
        [("cq", self.cq), ("dbrec", self.dbrec), ("wq", self.wq)]
    }

    /// Returns the first option that asks for GPU memory, if any.
    pub fn wants_gpu(&self) -> Option<&'static str> {
        self.parts().iter().find(|(_, place)| *place == Where::Gpu).map(|(name, _)| *name)
    }

    /// `gpu`: the GPU's number, if there is one.
    pub fn placement(&self, gpu: Option<u32>) -> QueuePlacement {
        let place = |place| match place {
            Where::Host => Placement::Host,
            Where::Gpu => gpu.map_or(Placement::Host, Placement::Gpu),
            Where::StandIn => Placement::StandIn,
        };
        QueuePlacement { work: place(self.wq), completions: place(self.cq), records: place(self.dbrec) }
    }
}

impl fmt::Display for Layout {
    /// Writes what is not in host memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, place) in self.parts() {
            match place {
                Where::Host => {}
                Where::Gpu => write!(f, ", {name} in the GPU's memory")?,
                Where::StandIn => write!(f, ", {name} in a stand-in for a GPU's memory")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_maybe_a_port() {
        for (text, host, port) in [
            ("node7", "node7", None),
            ("node7:99", "node7", Some(99)),
            ("10.0.0.1:0", "10.0.0.1", Some(0)),
            ("fe80::1", "fe80::1", None),
            ("[::1]", "::1", None),
            ("[::1]:99", "::1", Some(99)),
        ] {
            let read = address(text).unwrap();
            assert_eq!((read.host.as_str(), read.port), (host, port), "{text}");
            assert_eq!(address(&read.to_string()).unwrap(), read, "{text}");
        }
        for text in ["", ":99", "a b", "/etc", "[]:1", "[::1"] {
            assert!(address(text).unwrap_err().contains("names no host"), "{text}");
        }
        for text in ["node7:", "node7:x", "node7:65536", "node7:+1", "[::1]99", "[::1]:"] {
            assert!(address(text).unwrap_err().contains("is not a number up to 65535"), "{text}");
        }
    }
}
