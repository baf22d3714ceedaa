//! `gdsync man`: manual pages, made of the command line's own description; what they say beside it stands here: exit status,
//! environment, examples.

use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, line_break, roman};
use gdsync_cli::cli::{Cli, ManOptions};
use gdsync_cli::failure::{Failure, WRONG_USAGE};
use gdsync_cli::text;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// What a page says in a section of its own, and on the pages of which commands: on all, where none is named.
struct Entry {
    commands: &'static [&'static str],
    term: &'static str,
    text: &'static str,
}

/// Those that measure or move messages on a card.
const ON_CARDS: &[&str] = &["pingpong", "devices", "bench", "bench-net", "soak", "soft"];
/// Those whose two sides may be on two hosts.
const BETWEEN_HOSTS: &[&str] = &["pingpong", "bench-net"];

const fn entry(commands: &'static [&'static str], term: &'static str, text: &'static str) -> Entry {
    Entry { commands, term, text }
}

const EXIT_STATUS: [Entry; 8] = [
    entry(&[], "0", "Everything was done. Help, and `gdsync` alone, end so, too."),
    entry(
        &[],
        "1",
        "It failed: standard error says why, once. `doctor` and `sanity` end so where a check fails.",
    ),
    entry(
        &[],
        "2",
        "The command line, GDSYNC_LOG, or the batch given to `explain` cannot be used: standard error says what is wrong.",
    ),
    entry(
        &["pingpong", "bench", "bench-net", "soak"],
        "130",
        "It was interrupted (SIGINT): what was measured until then has been printed. A second SIGINT ends the process at once.",
    ),
    entry(
        &["top"],
        "128 and the number of a signal",
        "SIGINT, SIGTERM or SIGHUP has ended the live view. The terminal is as it was before.",
    ),
    entry(&["soft", "trace"], "126", "COMMAND cannot be run."),
    entry(&["soft", "trace"], "127", "COMMAND was not found."),
    entry(
        &["soft", "trace"],
        "others",
        "`soft` and `trace` end with the exit status of COMMAND, or with 128 and the number of the signal that ended it.",
    ),
];

const ENVIRONMENT: [Entry; 20] = [
    entry(
        &[],
        "GDSYNC_LOG",
        "What is logged to standard error: a level (error, warn, info, debug, trace), or `target=level` with `,` between. Without it, `warn`.",
    ),
    entry(
        &[],
        "GDSYNC_TRACE",
        "A file for the timeline of the process, `%p` in its name being the number of the process; or a folder with `/` behind it, for parts that `gdsync trace --merge` makes one trace of (docs/trace.md).",
    ),
    entry(
        &[],
        "GDSYNC_TRACE_GPU",
        "`1` has the timeline say when GPUs perform what their streams are given, by events of CUDA, which take time on the GPU.",
    ),
    entry(
        &[],
        "GDSYNC_STATUS",
        "`off` or `0`: the process does not answer `gdsync top`, and has no thread for that (docs/top.md).",
    ),
    entry(&[], "NO_COLOR", "Nothing is colored. Without it, terminals are."),
    entry(&[], "CLICOLOR_FORCE", "Everything is colored, also in a pipe."),
    entry(
        ON_CARDS,
        "SOFTHCA_CLOCK",
        "How many times as fast as hardware's the time-outs of software cards run, 1 to 20: the same in all processes of a job (docs/faults.md).",
    ),
    entry(ON_CARDS, "SOFTHCA_DEVICES", "Software cards: how many, or their link layers, such as `ib,roce`."),
    entry(ON_CARDS, "SOFTHCA_FAULTS", "Faults that software cards inject: a plan as in docs/faults.md."),
    entry(
        ON_CARDS,
        "SOFTHCA_LIBERTIES",
        "What software cards do at random that specifications allow: a seed, and words (docs/liberties.md).",
    ),
    entry(
        ON_CARDS,
        "SOFTHCA_LISTEN",
        "Addresses of software cards that talk over TCP, such as `192.0.2.1` (docs/hosts.md).",
    ),
    entry(
        ON_CARDS,
        "SOFTHCA_KEY, SOFTHCA_KEY_FILE",
        "The key that software cards of several hosts share, or the file that has it.",
    ),
    entry(
        ON_CARDS,
        "SOFTHCA_OBJECTS",
        "The most queue pairs, memory regions and other objects of a kind that a software card has, from 16 on (docs/faults.md).",
    ),
    entry(
        ON_CARDS,
        "SOFTHCA_WAITS",
        "What software cards wait for: `off`, `no-cd`, `errors-hold` (docs/waits.md).",
    ),
    entry(
        BETWEEN_HOSTS,
        "GDSYNC_KEY, GDSYNC_KEY_FILE",
        "The key that the server and the client of two hosts share, or the file that has it (docs/hosts.md).",
    ),
    entry(
        BETWEEN_HOSTS,
        "GDSYNC_RANK, GDSYNC_SIZE, GDSYNC_JOB, GDSYNC_ROOT",
        "A job of two processes, if no launcher such as mpirun or srun describes it: rank 0 is the server, rank 1 the client.",
    ),
    entry(&["soft"], "SOFTHCA_LOG", "The filter of the card's log under `soft`; as GDSYNC_LOG."),
    entry(
        &["soft"],
        "SOFTHCA_UVERBS_LIBRARY",
        "The library that `soft` preloads, in place of the one that is part of the command.",
    ),
    entry(
        &["pingpong", "bench", "bench-net", "soak", "soft"],
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "Channels of a GPU for streams, 1 to 32. Commands set it to 32 where it is not set.",
    ),
    entry(
        &["sanity", "copybw", "copylat"],
        "GDSYNC_MAPPING",
        "What maps GPU memory for the CPU: `gdrdrv`, `dma-buf` or `nvrm`. Without it, what works.",
    ),
];

const EXAMPLES: [Entry; 34] = [
    entry(&["doctor"], "gdsync doctor", "What of this machine works, and what to do about the rest."),
    entry(&["doctor"], "gdsync doctor --fix", "The commands that would mend what is found; nothing is run."),
    entry(&["devices"], "gdsync devices", "The cards, and the GID that connections use."),
    entry(&["pingpong"], "gdsync pingpong", "Two processes on the software card."),
    entry(
        &["pingpong"],
        "gdsync pingpong --hca mlx5_0 --gpu 0 --size 64K",
        "On a real card, with messages of 65536 bytes in the memory of GPU 0.",
    ),
    entry(
        &["pingpong"],
        "gdsync pingpong --op write --iters 100000 --json",
        "RDMA writes; the result is one JSON object.",
    ),
    entry(
        &["pingpong"],
        "gdsync pingpong --sizes 8..1M --duration 2s --csv",
        "A sweep: two seconds for each power of two, as comma-separated values.",
    ),
    entry(
        &["pingpong"],
        "gdsync pingpong --server --hca mlx5_0",
        "One side: waits for a client at port 18515.",
    ),
    entry(
        &["pingpong"],
        "gdsync pingpong node7 --hca mlx5_1 --op write --sizes 8..1M",
        "The other side, with the server on host node7, which does what the options here say.",
    ),
    entry(
        &["pingpong"],
        "gdsync pingpong --sizes 8..1M --plot latency.svg",
        "A sweep, drawn: latency percentiles and bandwidth by size. Without --sizes, a histogram.",
    ),
    entry(&["bench"], "gdsync bench", "The software card beside memcpy."),
    entry(
        &["bench"],
        "gdsync bench fanout --plot fanout.svg",
        "Memory operations and times by peers, drawn.",
    ),
    entry(
        &["bench"],
        "gdsync bench all --html report.html",
        "All that this machine can measure, as one page with tables, pictures and what `doctor` sees.",
    ),
    entry(&["bench"], "gdsync bench memops --gpu 0", "What stream memory operations cost GPU 0."),
    entry(
        &["bench"],
        "gdsync soft -- gdsync bench post",
        "Posting beside libmlx5's own functions, on the software card.",
    ),
    entry(
        &["bench-net"],
        "gdsync bench net --hca mlx5_0 --server",
        "One side: waits for a client at port 18515.",
    ),
    entry(
        &["bench-net"],
        "gdsync bench net node7 --hca mlx5_1 --sizes 8..64M --plot bandwidth.svg",
        "The other side: bandwidth of RDMA writes to node7 by size, drawn.",
    ),
    entry(
        &["bench-net"],
        "gdsync bench net node7 --mode rate --operation send --qps 4 --bidirectional --duration 10s",
        "Messages per second in both directions, over four queue pairs, for ten seconds.",
    ),
    entry(
        &["bench-net"],
        "gdsync bench net --mode latency --operation fetch-add --json",
        "Percentiles of an atomic operation between two processes of this host, as one JSON object.",
    ),
    entry(
        &["bench"],
        "gdsync bench net",
        "Bandwidth of RDMA writes between two processes; between hosts as `gdsync help bench net` says.",
    ),
    entry(
        &["soak"],
        "gdsync soak --minutes 10 --seed 7",
        "Ten minutes of random work with random faults; the same again with the same seed.",
    ),
    entry(
        &["explain"],
        "gdsync explain --example alltoall",
        "A step among 64 peers: its memory operations, plain and merged.",
    ),
    entry(&["explain"], "gdsync explain batch.txt", "The same of a batch in a file (docs/merging.md)."),
    entry(&["soft"], "gdsync soft -- ibv_devinfo", "An unmodified program sees the software card."),
    entry(
        &["soft"],
        "gdsync soft --devices ib,roce --faults 'seed=7; drop p=0.01' -- ib_write_bw",
        "Two cards, which lose one packet of a hundred.",
    ),
    entry(
        &["trace"],
        "gdsync trace -- gdsync pingpong --iters 100",
        "The timeline of both processes, in gdsync-trace.json.",
    ),
    entry(
        &["trace"],
        "gdsync trace --gpu -- gdsync pingpong --gpu 0",
        "With the times at which the GPU has performed what its streams were given.",
    ),
    entry(
        &["trace"],
        "gdsync trace -o ring.json --merge parts/",
        "One trace of the parts that ranks have written with GDSYNC_TRACE=parts/.",
    ),
    entry(&["top"], "gdsync top", "What runs on this host, once a second; q ends it."),
    entry(&["top"], "gdsync top --once --json", "The same as one JSON object, with the rates of one second."),
    entry(&["sanity"], "gdsync sanity --stand-in", "The checks on ordinary memory, without a GPU."),
    entry(&["copybw", "copylat"], "gdsync copybw --gpu 0 --max-size 1MiB", "Copies of up to 1 MiB."),
    entry(
        &["completions"],
        "gdsync completions bash",
        "For a folder such as share/bash-completion/completions.",
    ),
    entry(&["man"], "gdsync man pingpong", "The page of `pingpong`, in the language of man(7)."),
];

/// Prints a manual page, or writes all of them.
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

/// The command line as the pages describe it.
fn described() -> clap::Command {
    let mut root = Cli::here().disable_help_subcommand(true);
    root.build();
    root
}

/// All commands that have a page of their own, with those of commands.
fn pages(root: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    root.get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| std::iter::once(command).chain(command.get_subcommands()))
}

/// The words of a command behind `gdsync`, with `-` between; empty for `gdsync` itself.
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
    let name = page_name(command);
    let is_root = name.is_empty();
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let of = |entries: &'static [Entry]| {
        entries
            .iter()
            .filter(move |entry| is_root || entry.commands.is_empty() || entry.commands.contains(&name))
    };
    let mut roff = Roff::default();
    section(&mut roff, "EXIT STATUS", of(&EXIT_STATUS), |entry| [bold(entry.term)]);
    section(&mut roff, "ENVIRONMENT", of(&ENVIRONMENT), |entry| [bold(entry.term)]);
    section(&mut roff, "EXAMPLES", of(&EXAMPLES), |entry| [roman(entry.term)]);
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn section<'a>(
    roff: &mut Roff,
    title: &str,
    entries: impl Iterator<Item = &'a Entry>,
    term: impl Fn(&Entry) -> [Inline; 1],
) {
    roff.control("SH", [title]);
    for entry in entries {
        roff.control("TP", []);
        roff.text(term(entry));
        roff.text([roman(entry.text), line_break()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_cli::cli::Invocation;

    /// Those of all commands, whether their programs are installed or not.
    fn names() -> Vec<String> {
        let mut root =
            Cli::here().mut_subcommands(|command| command.hide(false)).disable_help_subcommand(true);
        root.build();
        pages(&root).map(|command| page_name(command).to_owned()).collect()
    }

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for Entry { commands, term, .. } in &EXAMPLES {
            let words = term.replace("'seed=7; drop p=0.01'", "seed=7;drop");
            let words: Vec<&str> = words.split_whitespace().collect();
            let parsed = Cli::parse_words(&words).unwrap_or_else(|error| panic!("{term}: {error}"));
            assert!(matches!(parsed, Invocation::Command(_)), "{term}");
            let names = |command: &&str| command.split('-').all(|word| words.contains(&word));
            assert!(commands.iter().any(names), "{term}: {commands:?}");
        }
    }

    #[test]
    fn every_command_has_an_example_and_entries_name_commands() {
        let names = names();
        for entry in EXIT_STATUS.iter().chain(&ENVIRONMENT).chain(&EXAMPLES) {
            assert!(
                entry.commands.iter().all(|command| names.iter().any(|name| name == command)),
                "{}",
                entry.term
            );
        }
        for name in &names {
            assert!(EXAMPLES.iter().any(|entry| entry.commands.contains(&name.as_str())), "{name}");
        }
    }

    #[test]
    fn settings_of_the_card_are_those_that_it_knows() {
        let told: Vec<&str> = ENVIRONMENT.iter().flat_map(|entry| entry.term.split(", ")).collect();
        // The folder that `gdsync soft` makes is between it and its library.
        for name in softhca::setting::NAMES.into_iter().filter(|name| *name != "SOFTHCA_FILES") {
            assert!(told.contains(&name), "{name}");
        }
        let known = |name: &&&str| softhca::setting::NAMES.contains(name);
        let told = told.iter().filter(|name| name.starts_with("SOFTHCA_"));
        assert_eq!(told.clone().filter(known).count(), told.count());
    }
}
