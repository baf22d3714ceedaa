//! `gdsync man`: manual pages, generated from the description of the command line, and completed here by exit status,
//! environment and examples.

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, line_break, roman};
use gdsync_cli::cli::{Cli, ManOptions};
use gdsync_cli::failure::{Failure, WRONG_USAGE};
use gdsync_cli::text;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// An entry of an additional section, and the commands whose pages have it: all, if none is named.
struct Entry {
    commands: &'static str,
    term: &'static str,
    text: &'static str,
}

impl Entry {
    fn is_on(&self, command: &str) -> bool {
        self.commands.is_empty() || self.commands.split(' ').any(|one| one == command)
    }
}

/// Returns the entries of a section. In the text each has its term, with the commands after a bar, and in the next line
/// its text.
fn entries(section: &'static str) -> impl Iterator<Item = Entry> {
    let mut lines = section.lines();
    std::iter::from_fn(move || {
        let (term, text) = lines.next().zip(lines.next())?;
        let (term, commands) = term.split_once(" | ").unwrap_or((term, ""));
        Some(Entry { commands, term, text })
    })
}

const EXIT_STATUS: &str = "\
0
Everything was done. Help, and `gdsync` alone, end so, too.
1
It failed: standard error says why, once. `doctor` and `sanity` end so where a check fails, and `accept` where a step fails or a difference has no known reason.
2
The command line, GDSYNC_LOG, or the batch given to `explain` cannot be used: standard error says what is wrong.
3 | soft
With --strict: the command has succeeded, but did what a card would not accept. Standard error names it, and ends with a line of how much it was.
130 | accept pingpong bench lab-bench bench-net lab-soak lab-simulate copybw copylat
It was interrupted (SIGINT), which it says at once: it ends what is under way, and prints what was measured until then. A second SIGINT ends the process at once.
128 and the number of a signal | top
SIGINT, SIGTERM or SIGHUP has ended the live view. The terminal is as it was before.
126 | run soft trace
The command cannot be run.
127 | run soft trace
The command was not found.
others | run
`run` ends with the exit status of the rank that failed first, or with 128 and the number of the signal that ended it. 143 is SIGTERM, 130 SIGINT.
others | soft trace
`soft` and `trace` end with the exit status of COMMAND, or with 128 and the number of the signal that ended it.";

const ENVIRONMENT: &str = "\
GDSYNC_LOG
What is logged to standard error: a level (error, warn, info, debug, trace), or `target=level` with `,` between. Without it, `warn`; for `simulate`, `off`.
GDSYNC_TRACE
A file for the timeline of the process, `%p` in its name being the number of the process; or a folder with `/` behind it, for parts that `gdsync trace --merge` makes one trace of (docs/trace.md).
GDSYNC_TRACE_GPU
`1` has the timeline say when GPUs perform what their streams are given, by events of CUDA, which take time on the GPU.
GDSYNC_STATUS
`off` or `0`: the process does not answer `gdsync top`, and has no thread for that (docs/trace.md).
NO_COLOR
Nothing is colored. Without it, terminals are.
CLICOLOR_FORCE
Everything is colored, also in a pipe.
SOFTHCA_CHECKS | pingpong devices bench lab-bench bench-net lab-soak soft
What software cards check of their program beyond its requests: `use`, `watch` (docs/liberties.md).
SOFTHCA_CLOCK | pingpong devices bench lab-bench bench-net lab-soak soft
How many times as fast as hardware's the time-outs of software cards run, 1 to 20: the same in all processes of a job (docs/liberties.md).
SOFTHCA_DEVICES | pingpong devices bench lab-bench bench-net lab-soak soft
Software cards: how many, or their link layers, such as `ib,roce`.
SOFTHCA_FAULTS | pingpong devices bench lab-bench bench-net lab-soak soft
Faults that software cards inject: a plan as in docs/liberties.md.
SOFTHCA_LIBERTIES | pingpong devices bench lab-bench bench-net lab-soak soft
What software cards do at random that specifications allow: a seed, and words (docs/liberties.md).
SOFTHCA_LISTEN | pingpong devices bench lab-bench bench-net lab-soak soft
Addresses of this host's software devices, which talk over TCP, such as `192.0.2.1` (docs/clusters.md).
SOFTHCA_KEY, SOFTHCA_KEY_FILE | pingpong devices bench lab-bench bench-net lab-soak soft
The key that software cards of several hosts share, or the file that has it.
SOFTHCA_OBJECTS | pingpong devices bench lab-bench bench-net lab-soak soft
The most queue pairs, memory regions and other objects of a kind that a software card has, from 16 on (docs/liberties.md).
SOFTHCA_PKEYS | pingpong devices bench lab-bench bench-net lab-soak soft
The partition keys of software cards' InfiniBand ports, such as `0xffff,0x8001` (docs/liberties.md).
SOFTHCA_SCHEDULE | pingpong devices bench lab-bench bench-net lab-soak soft
A file with a schedule, such as the one that `gdsync soft --explore` writes: the decisions in which the software card differs from a prompt and orderly one.
SOFTHCA_STOPPED | pingpong devices bench lab-bench bench-net lab-soak soft
How time-outs of software cards treat a peer of this host that a signal has stopped: `wait` for it, as without the setting, or `expire` (docs/clusters.md).
SOFTHCA_WAITS | pingpong devices bench lab-bench bench-net lab-soak soft
What software cards wait for: `off`, `no-cd`, `errors-hold` (docs/card-trigger.md).
GDSYNC_KEY, GDSYNC_KEY_FILE | pingpong bench-net
The key that the server and the client of two hosts share, or the file that has it (docs/clusters.md).
GDSYNC_RANK, GDSYNC_SIZE, GDSYNC_JOB, GDSYNC_ROOT | pingpong bench-net
A job of two processes, if no launcher such as mpirun or srun describes it: rank 0 is the server, rank 1 the client.
GDSYNC_RANK, GDSYNC_SIZE, GDSYNC_JOB | run
Set for each rank: its number, from 0, the number of ranks, and the name of the job. GDSYNC_ROOT is not passed on.
GDSYNC_ROOT, GDSYNC_KEY, SOFTHCA_KEY, SOFTHCA_LISTEN | run
Set for each rank with --hosts: where rank 0 listens, a key of this run, and the address of the host (docs/clusters.md).
GDSYNC_RSH | run
The remote shell of --hosts and its options, as words; a host and one command follow them. Without it, ssh.
SOFTHCA_LOG | soft
The filter of the card's log under `soft`; as GDSYNC_LOG.
SOFTHCA_UVERBS_LIBRARY | soft
The library that `soft` preloads, in place of the one that is part of the command.
CUDA_DEVICE_MAX_CONNECTIONS | pingpong bench lab-bench bench-net lab-soak soft
Channels of a GPU for streams, 1 to 32. Commands set it to 32 where it is not set.
GDSYNC_MAPPING | sanity copybw copylat
What maps GPU memory for the CPU: `gdrdrv`, `dma-buf` or `nvrm`. Without it, what works.";

const EXAMPLES: &str = "\
gdsync doctor | doctor
What of this machine works, and what to do about the rest.
gdsync doctor --problems | doctor
Only what fails or could be better, and the verdict.
gdsync doctor --fix | doctor
The commands that would mend what is found; nothing is run.
gdsync accept --hca mlx5_0 --gpu 0 | accept
All steps on a real card with a GPU, compared with the software card: ten minutes, and one file.
gdsync soft -- gdsync accept --quick | accept
The ladder on the software card.
gdsync accept --show accept-2026-11-28.tar.zst | accept
What a file says, wherever it was written.
gdsync devices | devices
The cards, and the GID that connections use.
gdsync pingpong | pingpong
Two processes on the software card.
gdsync pingpong --hca mlx5_0 --gpu 0 --size 64K | pingpong
On a real card, with messages of 65536 bytes in the memory of GPU 0.
gdsync pingpong --op write --iters 100000 --json | pingpong
RDMA writes; the result is one JSON object.
gdsync pingpong --sizes 8..1M --duration 2s --csv | pingpong
A sweep: two seconds for each power of two, as comma-separated values.
gdsync pingpong --server --hca mlx5_0 | pingpong
One side: waits for a client at port 18515.
gdsync pingpong node7 --hca mlx5_1 --op write --sizes 8..1M | pingpong
The other side, with the server on host node7, which does what the options here say.
gdsync pingpong --sizes 8..1M --plot latency.svg | pingpong
A sweep, drawn: latency percentiles and bandwidth by size. Without --sizes, a histogram.
gdsync lab bench first | lab
The first post of each kind beside the hundredth.
gdsync lab bench | lab-bench
The software card beside memcpy.
gdsync lab bench fanout --plot fanout.svg | lab-bench
Memory operations and times by peers, drawn.
gdsync lab bench all --html report.html | lab-bench
All that this machine can measure, as one page with tables, pictures and what `doctor` sees.
gdsync lab bench memops --gpu 0 | lab-bench
What stream memory operations cost GPU 0.
gdsync soft -- gdsync lab bench post | lab-bench
Posting beside libmlx5's own functions, on the software card.
gdsync bench net --hca mlx5_0 --server | bench-net
One side: waits for a client at port 18515.
gdsync bench net node7 --hca mlx5_1 --sizes 8..64M --plot bandwidth.svg | bench-net
The other side: bandwidth of RDMA writes to node7 by size, drawn.
gdsync bench net node7 --mode rate --op send --qps 4 --bidirectional --duration 10s | bench-net
Messages per second in both directions, over four queue pairs, for ten seconds.
gdsync bench net --mode latency --op fetch-add --json | bench-net
Percentiles of an atomic operation between two processes of this host, as one JSON object.
gdsync bench net | bench
Bandwidth of RDMA writes between two processes; between hosts as `gdsync help bench net` says.
gdsync lab soak --minutes 10 --seed 7 | lab-soak
Ten minutes of random work with random faults; the same again with the same seed.
gdsync lab simulate --iters 1e6 --seed 7 | lab-simulate
A million operations on simulated cards, from seed 7 on; the same hash each time.
gdsync explain --example alltoall | explain
A step among 64 peers: its memory operations, plain and merged.
gdsync explain batch.txt | explain
The same of a batch in a file (docs/merging.md).
gdsync soft ibv_devinfo | soft
An unmodified program sees the software card.
gdsync soft --strict ./program | soft
The exit status is 3 if the program succeeds, but does what a real card would not accept.
gdsync soft --devices ib,roce --faults 'seed=7; drop p=0.01' -- ib_write_bw | soft
Two cards, which lose one packet of a hundred.
gdsync run -n 4 ./program | run
Four ranks of a team, each line of their output behind the number of its rank.
gdsync run -n 16 --hosts hosts -- ./program | run
Sixteen ranks on the hosts of a file, whose lines are such as `node7 slots=8`.
gdsync run -n 2 -- gdsync pingpong --iters 100 | run
The two sides of a pingpong as ranks of a job.
gdsync soft -- gdsync run -n 2 -- ./program | run
A program of libibverbs, on the software card.
gdsync trace gdsync pingpong --iters 100 | trace
The timeline of both processes, in gdsync-trace.json.
gdsync trace --gpu -- gdsync pingpong --gpu 0 | trace
With the times at which the GPU has performed what its streams were given.
gdsync trace -o ring.json --merge parts/ | trace
One trace of the parts that ranks have written with GDSYNC_TRACE=parts/.
gdsync top | top
What runs on this host, once a second; q ends it.
gdsync top --once --json | top
The same as one JSON object, with the rates of one second.
gdsync sanity --stand-in | sanity
The checks on ordinary memory, without a GPU.
gdsync copybw --gpu 0 --max-size 1MiB | copybw copylat
Copies of up to 1 MiB.
gdsync completions bash | completions
For a folder such as share/bash-completion/completions.
gdsync man pingpong | man
The page of `pingpong`, in the language of man(7).";

pub(crate) fn man(options: &ManOptions) -> Result<ExitCode, Failure> {
    let root = described();
    if let Some(folder) = &options.all {
        for command in std::iter::once(&root).chain(pages(&root)) {
            write_page(command, folder)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let command = match &options.command {
        None => &root,
        Some(name) => match pages(&root).find(|command| page_name(command) == *name) {
            Some(command) => command,
            None => {
                let names: Vec<&str> = pages(&root).map(page_name).collect();
                text::complain(format_args!("{name} is no command: there are {}", names.join(", ")));
                return Ok(ExitCode::from(WRONG_USAGE));
            }
        },
    };
    io::stdout().lock().write_all(&page(command)?)?;
    Ok(ExitCode::SUCCESS)
}

fn described() -> clap::Command {
    let mut root = Cli::here().disable_help_subcommand(true);
    root.build();
    root
}

/// Returns all commands that have a page, including subcommands.
fn pages(root: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    root.get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()))
}

/// Returns a command's words after `gdsync`, joined by `-`; empty for `gdsync` itself.
fn page_name(command: &clap::Command) -> &str {
    command.get_display_name().and_then(|name| name.strip_prefix("gdsync-")).unwrap_or("")
}

fn write_page(command: &clap::Command, folder: &Path) -> Result<(), Failure> {
    let path = folder.join(Man::new(command.clone()).get_filename());
    std::fs::write(&path, page(command)?)
        .map_err(|error| format!("{} cannot be written: {error}", path.display()).into())
}

fn page(command: &clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    let man =
        Man::new(command.clone()).source(concat!("gdsync ", env!("CARGO_PKG_VERSION"))).manual("gdsync");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::default();
    let name = page_name(command);
    for (title, section, style) in [
        ("EXIT STATUS", EXIT_STATUS, bold as fn(&'static str) -> Inline),
        ("ENVIRONMENT", ENVIRONMENT, bold),
        ("EXAMPLES", EXAMPLES, roman),
    ] {
        roff.control("SH", [title]);
        for entry in entries(section).filter(|entry| name.is_empty() || entry.is_on(name)) {
            roff.control("TP", []);
            roff.text([style(entry.term)]);
            roff.text([roman(entry.text), line_break()]);
        }
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_cli::cli::Invocation;

    fn names() -> Vec<String> {
        let mut root =
            Cli::here().mut_subcommands(|command| command.hide(false)).disable_help_subcommand(true);
        root.build();
        let is_alias = |name: &String| ["soak", "simulate"].contains(&name.as_str());
        pages(&root).map(|command| page_name(command).to_owned()).filter(|name| !is_alias(name)).collect()
    }

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for Entry { commands, term, .. } in entries(EXAMPLES) {
            let words = term.replace("'seed=7; drop p=0.01'", "seed=7;drop");
            let words: Vec<&str> = words.split_whitespace().collect();
            let parsed = Cli::parse_words(&words).unwrap_or_else(|error| panic!("{term}: {error}"));
            assert!(matches!(parsed, Invocation::Command(_)), "{term}");
            let names = |command: &str| command.split('-').all(|word| words.contains(&word));
            assert!(commands.split(' ').any(names), "{term}: {commands:?}");
        }
    }

    #[test]
    fn every_command_has_an_example_and_entries_name_commands() {
        let names = names();
        for entry in [EXIT_STATUS, ENVIRONMENT, EXAMPLES].into_iter().flat_map(entries) {
            let mut commands = entry.commands.split_whitespace();
            assert!(commands.all(|command| names.iter().any(|name| name == command)), "{}", entry.term);
            assert!(!entry.text.is_empty(), "{}", entry.term);
        }
        for name in &names {
            assert!(entries(EXAMPLES).any(|entry| !entry.commands.is_empty() && entry.is_on(name)), "{name}");
        }
    }

    #[test]
    fn settings_of_the_card_are_those_that_it_knows() {
        let told: Vec<&str> = entries(ENVIRONMENT).flat_map(|entry| entry.term.split(", ")).collect();
        // `gdsync soft` itself passes the folders that it creates to its library.
        let is_told = |name: &&str| !["SOFTHCA_FILES", "SOFTHCA_JOB"].contains(name);
        for name in softhca::setting::NAMES.into_iter().filter(is_told) {
            assert!(told.contains(&name), "{name}");
        }
        let known = |name: &&&str| softhca::setting::NAMES.contains(name);
        let told = told.iter().filter(|name| name.starts_with("SOFTHCA_"));
        assert_eq!(told.clone().filter(known).count(), told.count());
    }
}
