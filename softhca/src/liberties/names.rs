//! Names of the processes of a job, which are the same in every run of it.

use crate::os::fork;
use crate::random::mix;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Environment variable with a folder that all processes of a job share, in which they claim their names. `gdsync soft`
/// sets it for schedules. Without it, processes have no names, and rules for a process match none.
pub const JOB_VARIABLE: &str = "SOFTHCA_JOB";

/// Variables with the rank of a process, of Open MPI, PMIx, PMI, Slurm and PyTorch.
const RANKS: [&str; 5] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"];

/// Maximum number of processes with the same command.
const SAME: u32 = 100_000;

static NAME: OnceLock<Option<String>> = OnceLock::new();
/// Claims the name of this process, if it is part of a job whose processes have names. A process that forks before its
/// first card does this first: children are named after their parent.
///
/// The name is `rankN` if a launcher gives ranks. Otherwise it consists of the program's name, a number made of its
/// arguments without their digits, and its number among the processes with the same two; a child of a fork adds `+N`.
pub fn name_process() {
    NAME.get_or_init(|| {
        let name = claim(&job()?, &base_name())?;
        fork::count();
        Some(name)
    });
}

/// Returns the name of a card by its index among those that this process has started.
pub(super) fn of_card(index: u64) -> Option<String> {
    name_process();
    let mut name = NAME.get()?.clone()?;
    fork::path().for_each(|fork| name.push_str(&format!("+{fork}")));
    Some(with_index(name, index))
}

/// Adds the index of a card, but for the first, to the name of its process.
pub(super) fn with_index(name: String, index: u64) -> String {
    if index > 0 { format!("{name}/{index}") } else { name }
}

/// The folder of the job.
pub(super) fn job() -> Option<PathBuf> {
    std::env::var_os(JOB_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The name of this process without a number: its rank's, or that of its command.
pub(super) fn base_name() -> String {
    let rank = RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse::<u32>().ok());
    match rank {
        Some(rank) => format!("rank{rank}"),
        None => name_of_command(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned())),
    }
}

/// Returns the name that a command gives.
fn name_of_command(mut arguments: impl Iterator<Item = String>) -> String {
    let program = arguments.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let program: String = program.chars().filter(is_allowed).take(32).collect();
    // Ports and addresses may differ between runs.
    let rest: String = arguments.map(|argument| argument + " ").collect();
    let rest = rest.bytes().filter(|byte| !byte.is_ascii_digit());
    let number = rest.fold(None, |hash, byte| Some(mix(hash.unwrap_or(0) ^ u64::from(byte))));
    match number {
        Some(number) => format!("{program}-{:04x}", number as u16),
        None => program,
    }
}

/// Claims the first free name of a folder. `None` if the folder cannot be written.
fn claim(folder: &Path, base: &str) -> Option<String> {
    for number in 0..SAME {
        let name = if number == 0 { base.to_owned() } else { format!("{base}.{number}") };
        match OpenOptions::new().write(true).create_new(true).open(folder.join(&name)) {
            Ok(_) => return Some(name),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "the process has no name in its job");
                return None;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_its_process() {
        let name = |words: &[&str]| name_of_command(words.iter().map(|word| (*word).to_owned()));
        assert_eq!(name(&["/usr/bin/ib_write_bw"]), "ib_write_bw");
        assert_eq!(name(&["a b/#c"]), "c");
        let [server, client, other] =
            [&["x", "-p", "1"][..], &["x", "-p", "1", "host"], &["x", "-p", "23"]].map(name);
        assert!(server != client && server == other, "{server} {client} {other}");
        assert!(server.starts_with("x-") && server.len() == 6, "{server}");
    }

    #[test]
    fn names_are_claimed_once() {
        let folder = std::env::temp_dir().join(format!("gdsync-names-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let claimed: Vec<_> = (0..3).map(|_| claim(&folder, "x").unwrap()).collect();
        assert_eq!(claimed, ["x", "x.1", "x.2"]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(claim(&folder, "x"), None);
    }
}
