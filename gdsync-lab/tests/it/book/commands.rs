//! Every command of the README and of the book runs; those that cannot run here are checked for existing options and
//! files.

use super::blocks::{self, Block, Needs};
use super::page::Page;
use super::{pages, session};
use gdsync_test_support::command;
use gdsync_test_support::{on_system, skipped};
use std::collections::BTreeMap;
use std::process::Command;

/// Returns whether programs of rdma-core exist, or must: `.ci/run` sets the variable after installing them.
fn has_rdma() -> bool {
    let finds = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    };
    std::env::var("GDSYNC_REQUIRE_RDMA").is_ok_and(|value| value == "1")
        || ["ibv_rc_pingpong", "rping", "fi_pingpong"].into_iter().all(finds)
}

/// Returns whether this process may create namespaces.
fn has_root() -> bool {
    let made = Command::new("unshare").args(["--mount", "--pid", "--fork", "--ipc", "true"]).output();
    made.is_ok_and(|output| output.status.success())
}

/// Returns whether a block runs examples that this build lacks: `cargo test --test it` builds none.
fn lacks_examples(block: &Block<'_>) -> bool {
    let runs = block.units.iter().flat_map(|unit| unit.commands.split("cargo run ").skip(1));
    let names = runs.flat_map(|run| run.lines().next().unwrap_or_default().split("--example ").skip(1));
    let mut names = names.filter_map(|rest| rest.split_whitespace().next());
    names.any(|name| !session::examples().join(name).exists())
}

#[test]
fn every_command_of_the_book_runs() {
    if on_system() {
        return;
    }
    let (root, rdma) = (has_root(), has_rdma());
    let pages = pages();
    let mut left_out: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let (mut run, mut wrong) = (0, Vec::new());
    for page in &pages {
        let blocks = blocks::of(page).unwrap_or_else(|wrong| panic!("{wrong}"));
        let why_not = |block: &Block<'_>| match block.needs {
            Needs::Root if root => None,
            Needs::Rdma if rdma => None,
            Needs::Nothing if lacks_examples(block) => {
                Some("run examples, which `cargo test` without --test builds")
            }
            Needs::Nothing => None,
            _ => Some(block.reason),
        };
        for block in &blocks {
            if let Some(reason) = why_not(block) {
                left_out.entry(reason).or_default().push(format!("{}:{}", page.name, block.line));
            }
        }
        let blocks: Vec<&Block<'_>> = blocks.iter().filter(|block| why_not(block).is_none()).collect();
        run += blocks.iter().map(|block| block.units.len()).sum::<usize>();
        if !blocks.is_empty() {
            wrong.extend(session::run(&page.name, &blocks).err());
        }
    }
    for (reason, places) in left_out {
        skipped("book", &format!("blocks that {reason}: {}", places.join(", ")));
    }
    assert!(run > 20, "{run} commands have been found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Returns the words of commands, without quotes and comments.
fn words(commands: &str) -> Vec<String> {
    let code = commands.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let split = |line: &str| {
        let spaced = line.replace(['|', '&', ';', '(', ')'], " ; ").replace(['\'', '"', '\\'], " ");
        spaced.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    code.flat_map(|line| [split(line), vec![";".to_owned()]].concat()).collect()
}

/// Returns unknown names in commands: options and commands of `gdsync`, scripts and sources.
fn unknown(commands: &str) -> Vec<String> {
    let words = words(commands);
    let mut unknown: Vec<String> = words
        .iter()
        .filter(|word| session::is_path_of_repository(word) && !session::exists(word))
        .cloned()
        .collect();
    for place in (0..words.len()).filter(|place| words[*place] == "gdsync") {
        let rest = words[place + 1..].iter().take_while(|word| !["--", ";", ">"].contains(&word.as_str()));
        let rest: Vec<&str> = rest.map(String::as_str).collect();
        let Some(subcommand) = rest.first().filter(|word| !word.starts_with('-')) else { continue };
        // A command run by another command has its own help.
        let inner = rest.get(1).filter(|word| !word.starts_with('-'));
        let inner = inner.map(|inner| command::run(&["help", subcommand, inner]));
        let inner = inner.filter(|help| help.status.success());
        let help = inner.unwrap_or_else(|| command::run(&["help", subcommand]));
        if !help.status.success() {
            unknown.push(format!("gdsync {subcommand}"));
            continue;
        }
        // The words of a command that follows without `--` are its own.
        let has_command = ["soft", "trace"].contains(subcommand);
        if has_command && rest.get(1).is_some_and(|word| !word.starts_with('-')) {
            continue;
        }
        let help = command::text(&help.stdout);
        let options =
            rest.iter().filter(|word| word.starts_with("--")).filter_map(|word| word.split('=').next());
        let missing = options.filter(|option| !help.split([' ', ',', '\n', '=']).any(|word| word == *option));
        unknown.extend(missing.map(|option| format!("gdsync {subcommand} {option}")));
    }
    unknown
}

#[test]
fn what_no_test_runs_names_options_and_files_that_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        for block in blocks::of(&page).unwrap_or_else(|wrong| panic!("{wrong}")) {
            for unit in &block.units {
                let say = |what: String| format!("{}:{}: there is no {what}", page.name, unit.line);
                wrong.extend(unknown(&unit.commands).into_iter().map(say));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn options_that_do_not_exist_are_found() {
    let commands = "A=1 gdsync pingpong --hca mlx5_0 --sices 8..1M | x && gdsync bensh --x\nsrun gdsync soft --devices=ib -- gdsync trase\nscripts/no-such --x scripts/install.sh # gdsync what --ever\ngdsync --version\ngdsync soft prog --x";
    assert_eq!(
        unknown(commands),
        ["scripts/no-such", "gdsync pingpong --sices", "gdsync bensh", "gdsync trase"]
    );
    let page = Page::of("p", "```sh\ntrue\n```");
    assert_eq!(blocks::of(&page).unwrap()[0].units[0].commands, "true");
}
