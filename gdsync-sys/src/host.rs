//! Facts of the host's operating system, and of this process.

use crate::launcher::launcher_rank;
use std::fmt;
use std::sync::OnceLock;

/// Returns the bytes of a page of host memory.
pub fn page_size() -> usize {
    // SAFETY: `sysconf` has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Returns the number of cores that the process may use; 1 if the system does not say. The first call reads files and
/// allocates; others return its answer.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |cores| cores.get()))
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, one clock for all processes of a host.
pub fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid. Every Linux has this clock, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Returns `/proc/PID/stat` behind the name, which may contain any characters: a space, the letter of the state, numbers.
pub fn process_stat(pid: u32) -> Option<String> {
    let status = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    String::from_utf8_lossy(&status).rsplit(')').next().map(str::to_owned)
}

/// This process, as logs of many processes name it: by its launcher's rank and its id, which a fork changes.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    rank: Option<u32>,
}

/// Returns this process's origin. The launcher's variables are read once.
pub fn origin() -> Origin {
    static RANK: OnceLock<Option<u32>> = OnceLock::new();
    Origin { rank: *RANK.get_or_init(launcher_rank) }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.rank {
            write!(f, "rank {rank}, ")?;
        }
        write!(f, "process {}", std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_name_rank_and_process() {
        let pid = std::process::id();
        assert_eq!(Origin { rank: Some(3) }.to_string(), format!("rank 3, process {pid}"));
        assert_eq!(Origin { rank: None }.to_string(), format!("process {pid}"));
    }
}
