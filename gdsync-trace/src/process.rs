//! What a part says of its process: its number, its rank, its command line.

use crate::record::{Front, MAGIC, NO_RANK, padded};
use std::ffi::OsString;
use std::path::Path;

/// Variables in which launchers say the rank, gdsync's own first: those that `gdsync-notify` reads.
const RANKS: [&str; 6] =
    ["GDSYNC_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"];

/// The front of this process's part.
pub(crate) fn front() -> Front {
    Front {
        magic: MAGIC,
        pid: std::process::id(),
        rank: rank(|name| std::env::var_os(name)),
        name: padded(&command_line(std::env::args_os())),
    }
}

fn rank(get: impl Fn(&str) -> Option<OsString>) -> u32 {
    let rank = RANKS.into_iter().find_map(get);
    rank.and_then(|text| text.to_str()?.parse().ok()).unwrap_or(NO_RANK)
}

/// The program without its folders, and its arguments.
fn command_line(words: impl Iterator<Item = OsString>) -> String {
    let words = words.enumerate().map(|(position, word)| match Path::new(&word).file_name() {
        Some(name) if position == 0 => name.to_string_lossy().into_owned(),
        _ => word.to_string_lossy().into_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_the_launchers() {
        let with = |names: &'static [(&str, &str)]| {
            rank(move |name| names.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[]), NO_RANK);
        assert_eq!(with(&[("SLURM_PROCID", "5"), ("OMPI_COMM_WORLD_RANK", "3")]), 3);
        assert_eq!(with(&[("PMI_RANK", "three")]), NO_RANK);
    }

    #[test]
    fn a_process_is_named_as_it_was_started() {
        let words = ["/usr/bin/gdsync", "pingpong", "--hca", "/dev/x"].map(OsString::from);
        assert_eq!(command_line(words.into_iter()), "gdsync pingpong --hca /dev/x");
        assert_eq!(command_line([].into_iter()), "");
    }
}
