//! The variables by which launchers describe a process of a job.

use std::ffi::OsString;

/// A launcher's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The variable with the rank.
    pub rank: &'static str,
    /// Those with the number of processes, in order of preference.
    pub sizes: &'static [&'static str],
}

/// The variable of torchrun and torch.distributed programs.
pub const TORCHRUN: &str = "RANK";

/// The launchers, in order of preference: gdsync's own first, so that it overrides the others, and torchrun last, because its
/// names are the least specific.
pub const LAUNCHERS: [Launcher; 6] = [
    Launcher { rank: "GDSYNC_RANK", sizes: &["GDSYNC_SIZE"] },
    Launcher { rank: "OMPI_COMM_WORLD_RANK", sizes: &["OMPI_COMM_WORLD_SIZE"] },
    // PMIx has the size in a call only; launchers that use it set their own variable.
    Launcher { rank: "PMIX_RANK", sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "GDSYNC_SIZE"] },
    Launcher { rank: "PMI_RANK", sizes: &["PMI_SIZE"] },
    Launcher { rank: "SLURM_PROCID", sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"] },
    Launcher { rank: TORCHRUN, sizes: &["WORLD_SIZE"] },
];

/// Returns the rank that a launcher has given this process.
pub fn launcher_rank() -> Option<u32> {
    rank(|name| std::env::var_os(name))
}

fn rank(get: impl Fn(&str) -> Option<OsString>) -> Option<u32> {
    LAUNCHERS.into_iter().find_map(|launcher| get(launcher.rank))?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_the_launchers() {
        let with = |names: &'static [(&str, &str)]| {
            rank(move |name| names.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("SLURM_PROCID", "5"), ("OMPI_COMM_WORLD_RANK", "3")]), Some(3));
        assert_eq!(with(&[("PMI_RANK", "three")]), None);
    }
}
