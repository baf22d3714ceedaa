//! A shell that runs the commands of a page, block after block, in a folder like the repository.

use super::blocks::Block;
use super::outputs;
use gdsync_test_support::command::program;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::root;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Begins the line that the shell writes before each unit, and at the end.
const MARK: char = '\u{1e}';
/// Time limit of a page in seconds; a longer one hangs.
const LIMIT: &str = "300";
/// A `cargo run` that starts what the build of the tests has built.
const CARGO: &str = r#"#!/bin/sh
[ "$1" = run ] || { echo "cargo $*: only \`cargo run\` stands in here" >&2; exit 64; }
shift
program=$GDSYNC_BOOK_COMMAND
while [ $# -gt 0 ]; do
    case $1 in
    --release | --quiet) shift ;;
    -p) shift 2 ;;
    --example) program=$GDSYNC_BOOK_EXAMPLES/$2; shift 2 ;;
    --) shift; break ;;
    *) echo "cargo run $*: not one of the forms that stand in here" >&2; exit 64 ;;
    esac
done
exec "$program" "$@"
"#;

fn command() -> PathBuf {
    program("gdsync")
}

pub(super) fn examples() -> PathBuf {
    command().parent().unwrap().join("examples")
}

/// Creates the folder in which a page's commands run: all of the repository, except hidden and built files.
fn workplace(name: &str) -> Folder {
    let folder = Folder::new(name);
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "target" && !name.to_string_lossy().starts_with('.') {
            symlink(root().join(&name), folder.path().join(&name)).unwrap();
        }
    }
    folder
}

fn programs() -> Folder {
    let folder = Folder::new("book-programs");
    symlink(command(), folder.path().join("gdsync")).unwrap();
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, CARGO).unwrap();
    fs::set_permissions(cargo, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Returns a shell script that ends at the first command that fails.
fn script(blocks: &[&Block<'_>]) -> String {
    let mut script = "exec 2>&1\nset -e\n".to_owned();
    for (number, (block, unit)) in units(blocks).enumerate() {
        script += &format!("printf '\\n{MARK}{number}\\n'\n");
        if block.may_find {
            let is_command = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
            let lines = unit.commands.lines().filter(is_command);
            script.extend(lines.map(|line| format!("{{ {line}\n}} || [ $? -eq 1 ]\n")));
        } else {
            script += &format!("{{ :; {}\n}}\n", unit.commands);
        }
    }
    script + &format!("printf '\\n{MARK}end\\n'\n")
}

fn units<'a>(blocks: &'a [&Block<'a>]) -> impl Iterator<Item = (&'a Block<'a>, &'a super::blocks::Unit<'a>)> {
    blocks.iter().flat_map(|block| block.units.iter().map(move |unit| (*block, unit)))
}

/// Runs the blocks of a page. Returns the first failure or unexpected output, with its line.
pub(super) fn run(name: &str, blocks: &[&Block<'_>]) -> Result<(), String> {
    let (folder, programs) = (workplace("book"), programs());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([programs.path().to_owned()].into_iter().chain(std::env::split_paths(&path)))
            .unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=5", LIMIT, "sh", "-c", &script(blocks)]).current_dir(folder.path());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["GDSYNC_", "SOFTHCA_", "OMPI_", "PMI", "SLURM_"].iter().any(|prefix| name.starts_with(prefix)) {
            shell.env_remove(&*name);
        }
    }
    shell.env("PATH", path).env("GDSYNC_BOOK_COMMAND", command()).env("GDSYNC_BOOK_EXAMPLES", examples());
    let output = shell.output().unwrap();
    judge(name, blocks, &String::from_utf8_lossy(&output.stdout))
}

/// Checks that every unit has run, and has printed what is shown.
fn judge(name: &str, blocks: &[&Block<'_>], said: &str) -> Result<(), String> {
    let parts: Vec<(&str, &str)> =
        said.split(MARK).skip(1).filter_map(|part| part.split_once('\n')).collect();
    for (number, (block, unit)) in units(blocks).enumerate() {
        let place = format!("{name}:{}: {}", unit.line, unit.commands);
        let (_, printed) = parts.get(number).ok_or_else(|| format!("{place}\nhas not been run:\n{said}"))?;
        if parts.len() == number + 1 {
            return Err(format!("{place}\nfails:\n{printed}"));
        }
        if block.is_recorded {
            continue;
        }
        if let Some(line) = outputs::missing(unit.shown, printed, block.is_exact) {
            return Err(format!("{place}\nshows `{line}`, and prints:\n{printed}"));
        }
    }
    Ok(())
}

/// Returns whether a word names a script or source of the repository.
pub(super) fn is_path_of_repository(word: &str) -> bool {
    ["scripts/", "examples/", "bindings/", ".ci/"].iter().any(|prefix| word.starts_with(prefix))
}

pub(super) fn exists(word: &str) -> bool {
    Path::new(root()).join(word).exists()
}

#[cfg(test)]
mod tests {
    use super::super::blocks;
    use super::super::page::Page;
    use super::run;

    fn typed(text: &str) -> Result<(), String> {
        let page = Page::of("p", text);
        let blocks = blocks::of(&page).unwrap();
        run("p", &blocks.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_is_typed_is_one_session() {
        let blocks = "```sh\nexport A=3\nmkdir -p b && cd b\n```\n```console,exact\n$ echo $A $(basename $PWD)\n3 b\n```\n";
        assert_eq!(typed(blocks), Ok(()));
        // Comments, jobs, a finding, and the programs.
        let blocks = "```sh\n# nothing\nsleep 0 & # a job\nwait\n```\n```sh,may-find\n# all of it\n(exit 1)     # found\ntest -e README.md\n```\n";
        assert_eq!(typed(blocks), Ok(()));
        assert_eq!(typed("```console,recorded\n$ echo one\ntwo\n```\n"), Ok(()));
        assert_eq!(typed("```console\n$ cargo run --release -- --version\ngdsync 0.1.0\n```\n"), Ok(()));
    }

    #[test]
    fn what_fails_is_said_with_its_line() {
        let fails = |text: &str, said: &str| {
            let error = typed(text).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        };
        fails("```console\n$ true\n$ false\n$ true\n```\n", "p:3: false\nfails:");
        fails("```sh\ntrue\nfalse\ntrue\n```\n", "p:2: true\nfalse\ntrue\nfails:");
        fails("\n```console\n$ echo one\ntwo\n```\n", "p:3: echo one\nshows `two`, and prints:\none");
        fails("```console,recorded\n$ false\none\n```\n", "p:2: false\nfails:");
        fails("```sh,may-find\ngdsync --no-such-option\n```\n", "p:2: gdsync --no-such-option\nfails:");
        fails("```console\n$ cargo test\n```\n", "p:2: cargo test\nfails:\ncargo test: only `cargo run`");
        fails("```console\n$ exit 0\n$ true\n```\n", "p:2: exit 0\nfails:");
    }
}
