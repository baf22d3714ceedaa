//! The command line.

#![allow(rustdoc::bare_urls, reason = "these texts are the help of the command, too")]

mod accept;
mod bench;
mod lab;
mod measurements;
mod run;
mod sides;
mod soft;
mod values;

pub use accept::AcceptOptions;
pub use bench::{BenchOptions, Benchmark, Between, Memory};
pub use lab::{LabOptions, SimulateOptions, SoakOptions};
pub use measurements::{NetMode, NetOperation, NetOptions, PingpongOptions};
pub use run::RunOptions;
pub use sides::{Address, Hosts, Layout, SideOptions, SidesOptions, Where};
pub use soft::SoftOptions;
pub use values::{
    Connections, DoorbellChoice, NO_FAULTS, Operation, QueueChoice, Service, Sizes, Trigger, soak_faults,
};

use self::lab::Lab;
use crate::tools;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use gdsync::advanced::mapped::MappingBackend;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum message size in bytes: 1 GiB, the most that a port allows.
pub const MAX_SIZE: u64 = 1 << 30;
/// Maximum number of exchanges of a run, and of posts of a benchmark: more than any machine performs, and small enough
/// that sums and products fit 64 bits.
pub const MAX_EXCHANGES: u64 = 1 << 48;
/// Maximum number of exchanges enqueued at a time; their work requests must fit a queue.
pub const MAX_BATCH: u64 = 1024;

/// Output of `gdsync` without arguments: the main commands.
pub const BRIEF: &str = "\
gdsync: RDMA driven from CUDA streams, on a real card or on a software one.
  gdsync doctor                   what of this machine works for GPUDirect, and how to mend the rest
  gdsync devices                  the cards, software ones and the system's
  gdsync pingpong                 messages between two streams, every byte checked
  gdsync bench net                bandwidth, message rate and latency, on one host or two
  gdsync explain --example halo   what a batch becomes on a stream
  gdsync run -n 4 PROGRAM         start the ranks of a team
  gdsync soft COMMAND             run a program on the software card
All commands: gdsync help. One of them: gdsync help COMMAND.
";

/// RDMA driven from streams, on a real card or on a software one.
#[derive(Debug, Parser)]
#[command(name = "gdsync", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The request of a command line.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a process makes one of them")]
pub enum Invocation {
    /// Nothing: no word follows the program's name.
    Bare,
    Command(Command),
    Process(Process),
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what of this machine works for GPUDirect, what does not, and what to do about it
    Doctor(DoctorOptions),
    /// List cards, software and system
    Devices(DevicesOptions),
    /// Exchange messages between two sides, each send and each receive driven by a stream, and check every byte
    Pingpong(PingpongOptions),
    /// Measure between two sides (`net`), or by a benchmark that `gdsync lab bench --help` lists
    Bench(BenchOptions),
    /// Start the ranks of a job, on this host or on several, and end all of them when one fails
    Run(RunOptions),
    /// Run a command on the software card, through the machine's own libibverbs and libmlx5
    Soft(SoftOptions),
    /// Show what runs on this host: cards, queue pairs, rates, faults, and which process waits for which
    Top(TopOptions),
    /// Run a command and write the timeline of all its processes, which https://ui.perfetto.dev opens
    Trace(TraceOptions),
    /// Say what a batch becomes on a stream: memory operations, plain and merged, and the GPU time they take
    Explain(ExplainOptions),
    /// Try a card step by step, compare it with the software card, and write one file to send back
    Accept(AcceptOptions),
    /// Check that CPU mappings of GPU memory work as they should
    Sanity(MappedOptions),
    /// How fast the CPU copies into and out of GPU memory that it has mapped, beside cuMemcpy and libc's memcpy
    Copybw(CopyOptions),
    /// How long the CPU takes to copy a little into and out of GPU memory that it has mapped,
    /// beside cuMemcpy and libc's memcpy
    Copylat(CopyOptions),
    /// What gdsync's maintainers measure and try: benchmarks, random work, simulations
    Lab(LabOptions),
    /// As `lab soak`
    #[command(hide = true)]
    Soak(SoakOptions),
    /// As `lab simulate`
    #[command(hide = true)]
    Simulate(SimulateOptions),
    /// Print the completions of a shell; `scripts/install.sh` installs them
    Completions(CompletionsOptions),
    /// Print a manual page; `scripts/install.sh` installs them
    Man(ManOptions),
}

impl Command {
    /// Returns the command itself, for one that is also known without `lab`.
    fn without_lab(self) -> Self {
        match self {
            Command::Lab(LabOptions { what: Lab::Bench(options) }) => Command::Bench(options),
            Command::Lab(LabOptions { what: Lab::Soak(options) }) => Command::Soak(options),
            Command::Lab(LabOptions { what: Lab::Simulate(options) }) => Command::Simulate(options),
            other => other,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Clone, Debug, Args)]
pub struct ManOptions {
    /// The command whose page it is [default: gdsync itself]
    pub command: Option<String>,
    /// Write the pages of all commands into this folder instead, which exists
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub all: Option<PathBuf>,
}

impl Cli {
    /// Parses a command line and refuses options that contradict each other.
    ///
    /// # Errors
    /// Wrong usage, or a request for help or the version.
    pub fn parse_words<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Invocation, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        if words.len() < 2 {
            return Ok(Invocation::Bare);
        }
        if let Some(process) = Process::of(&words) {
            return Ok(Invocation::Process(process));
        }
        let parsed = Self::from_arg_matches(&Self::here().try_get_matches_from(words)?)?;
        let command = parsed.command.without_lab();
        let conflict = match &command {
            Command::Pingpong(options) => options.conflict().map(|text| (&["pingpong"][..], text)),
            Command::Bench(BenchOptions { between: Some(Between::Net(options)), .. }) => {
                options.conflict().map(|text| (&["bench", "net"][..], text))
            }
            Command::Bench(options) => options.conflict().map(|text| (&["bench"][..], text)),
            _ => None,
        };
        match conflict {
            Some((names, text)) => Err(Self::refusal(names, text)),
            None => Ok(Invocation::Command(command)),
        }
    }

    /// Returns the command line; verbs whose programs are not installed parse, but are hidden.
    pub fn here() -> clap::Command {
        let is_absent =
            |verb: &str| tools::of_verb(verb).is_some_and(|tool| tools::installed(tool).is_none());
        Self::command().mut_subcommands(|verb| {
            // `bench net` works without the other benchmarks' program.
            let hide = verb.is_hide_set() || verb.get_name() != "bench" && is_absent(verb.get_name());
            match verb.get_name() {
                "pingpong" => sides::with_server(verb),
                "bench" => verb
                    .mut_arg("what", |what| {
                        what.hide_possible_values(true)
                            .help("The benchmark: `gdsync lab bench --help` lists them")
                    })
                    .mut_subcommand("net", sides::with_server),
                "lab" => verb.mut_subcommands(|inner| match inner.get_name() {
                    "bench" => inner.mut_subcommand("net", |net| sides::with_server(net).hide(true)),
                    _ => inner,
                }),
                _ => verb,
            }
            .hide(hide)
        })
    }

    /// Returns a shell's completions for the visible verbs; clap would also complete hidden ones.
    pub(crate) fn completions(options: &CompletionsOptions) -> Vec<u8> {
        let whole = Self::here();
        let verbs: Vec<_> = whole.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
        let about = whole.get_about().cloned().unwrap_or_default();
        let listed = clap::Command::new("gdsync").version(env!("CARGO_PKG_VERSION")).about(about);
        let mut script = Vec::new();
        clap_complete::generate(options.shell, &mut listed.subcommands(verbs), "gdsync", &mut script);
        script
    }

    /// Returns the error of a command whose options contradict each other, with its usage.
    fn refusal(names: &[&str], text: String) -> clap::Error {
        let mut command = Self::here();
        command.build();
        for name in names {
            command = command.find_subcommand(name).cloned().unwrap_or(command);
        }
        command.error(ErrorKind::ArgumentConflict, text)
    }
}

#[derive(Clone, Debug, Args)]
pub struct TopOptions {
    /// Print one table, and end: rates are those of one interval
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object instead of the table
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::interval)]
    pub interval: Duration,
}

#[derive(Clone, Debug, Args)]
pub struct TraceOptions {
    /// The trace: a file for https://ui.perfetto.dev or chrome://tracing
    #[arg(short, long, value_name = "FILE", default_value = "gdsync-trace.json")]
    pub output: PathBuf,
    /// Record when GPUs perform what their streams are given, too, by events of CUDA, which take time on the GPU;
    /// GDSYNC_TRACE_GPU=1 does the same
    #[arg(long, conflicts_with = "merge")]
    pub gpu: bool,
    /// Run nothing: merge parts that processes with GDSYNC_TRACE=FOLDER/ have written; files, or such folders
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "command")]
    pub merge: Vec<PathBuf>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required_unless_present = "merge", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Debug, Args)]
pub struct DevicesOptions {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct DoctorOptions {
    /// Print the commands that would mend what is found, as a script, in place of the report; nothing is run
    #[arg(long, conflicts_with = "json")]
    pub fix: bool,
    /// Only what fails or could be better, and the verdict
    #[arg(long, conflicts_with = "fix")]
    pub problems: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// A recorded tree to look at instead of this machine, for tests: folders as under `/`, and libraries.json
    #[arg(long, value_name = "DIR", hide = true)]
    pub root: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct MappedOptions {
    /// The GPU of the memory that is mapped
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::ordinal, allow_hyphen_values = true)]
    pub gpu: u32,
    /// Its mapping: gdrdrv, dma-buf or nvrm [default: all that work]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<MappingBackend>,
    /// No GPU: ordinary memory in its place
    #[arg(long, conflicts_with_all = ["gpu", "backend"])]
    pub stand_in: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct CopyOptions {
    #[command(flatten)]
    pub mapped: MappedOptions,
    /// Largest copy, 64 bytes to 256 MiB, such as 64K or 1MiB [default: 16MiB for copybw, 64KiB for copylat]
    #[arg(long, value_name = "BYTES", value_parser = values::copy_size, allow_hyphen_values = true)]
    pub max_size: Option<u64>,
    /// Draw what was measured by size into a file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub struct ExplainOptions {
    /// A batch in text, one descriptor to a line (docs/merging.md) [default: standard input]
    #[arg(conflicts_with = "example")]
    pub file: Option<PathBuf>,
    /// A batch that is known by name
    #[arg(long, value_enum)]
    pub example: Option<Example>,
    /// Have the card wait for runs of waits for at least so many completion queues, and the stream
    /// for one word [default: the stream waits for each; 2 for the example `card`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_hyphen_values = true)]
    pub collect_from: Option<u32>,
    /// Only what it becomes where nothing is merged
    #[arg(long)]
    pub plain: bool,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// A stencil's step: four neighbours, a send and a receive each
    Halo,
    /// A message and its answer
    Pingpong,
    /// A step among 64 peers, with a receive queue for each
    Alltoall,
    /// A step among 64 peers that the card waits for: one trigger releases all sends, and a collector
    /// waits for all completions
    Card,
}

/// Returns a value's word on the command line.
pub fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|possible| possible.get_name().to_owned()).unwrap_or_default()
}

/// Returns a value's help text.
pub fn help(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .and_then(|possible| possible.get_help().map(ToString::to_string))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;

/// A process started by a command: its name is the first word of the command line. It reads its options, if any, from
/// the first line of standard input ([`crate::child::options`]). Help, suggestions, completions and manual pages do not
/// list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Process {
    /// The second process of a pingpong
    PingpongPeer,
    /// The second process of `bench net`
    NetPeer,
    /// The process of a step of `accept`
    AcceptStep,
    /// The process of a run of `bench first`
    BenchFirst,
    /// The process of a team of `bench scale`
    BenchScale,
    /// A process of a soak
    SoakWorker,
    /// The second process of `bench exchange`
    ExchangePeer,
    /// Draws the charts that its input describes in JSON
    Draw,
    /// Removes the private folder of a killed run: the folder is the second word
    SoftWatch,
    /// Leads the process group of a job's ranks, and kills it when the launcher has ended
    RunWatch,
    /// Starts a job's ranks on another host, as its launcher tells it
    RunHost,
}

impl Process {
    /// Returns the process that a command line names, if any.
    pub(super) fn of(words: &[OsString]) -> Option<Self> {
        Self::from_str(words.get(1)?.to_str()?, false).ok()
    }
}
