//! Ranks of one job: threads, or processes, in which a test runs itself again once for each rank.

use crate::common;
use gdsync::ProtectionDomain;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{Team, TeamConfig};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Nothing here takes longer, however busy the machine is.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn domain() -> ProtectionDomain {
    ProtectionDomain::new(&common::device()).unwrap()
}

/// Runs a function for every rank, on a thread each, and returns the results in the order of the ranks.
pub(crate) fn each_on_a_thread<T: Send>(size: u32, rank: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    let (bootstraps, rank) = (Bootstrap::threads(size, LONG).unwrap(), &rank);
    std::thread::scope(|scope| {
        let threads: Vec<_> = bootstraps.into_iter().map(|one| scope.spawn(move || rank(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every rank of a team on a thread.
pub(crate) fn on_threads(size: u32, config: &TeamConfig, rank: impl Fn(&Team) + Sync) {
    each_on_a_thread(size, |bootstrap| {
        let team = Team::new(&domain(), bootstrap, config.clone()).unwrap();
        rank(&team);
        team.barrier().unwrap();
    });
}

const ROLE: &str = "GDSYNC_TEST_ROLE";
/// Variables of launchers under which this test itself may run.
const LAUNCHERS: [&str; 12] = [
    "GDSYNC_RANK",
    "GDSYNC_SIZE",
    "GDSYNC_ROOT",
    "GDSYNC_JOB",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
];

/// The role of this process, if a test started it.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A job of processes, and the folder where they meet, which must be empty at the end.
pub(crate) struct Ranks {
    test: &'static str,
    name: String,
    pub(crate) folder: PathBuf,
    size: u32,
}

impl Ranks {
    pub(crate) fn new(test: &'static str, size: u32) -> Ranks {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{test}-{}-{count}", std::process::id());
        // Short: the length of a socket's path is limited.
        let folder = std::env::temp_dir().join(format!("gdsync-ranks-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Ranks { test, name, folder, size }
    }

    /// The process of a rank, with a role.
    pub(crate) fn command(&self, rank: u32, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        LAUNCHERS.into_iter().for_each(|name| _ = command.env_remove(name));
        command.args(["--exact", self.test, "--nocapture"]);
        command
            .env(ROLE, role)
            .env("GDSYNC_RANK", rank.to_string())
            .env("GDSYNC_SIZE", self.size.to_string());
        command.env("GDSYNC_JOB", &self.name).env("XDG_RUNTIME_DIR", &self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn spawn(&self, rank: u32, role: &str) -> Child {
        self.command(rank, role).spawn().unwrap()
    }

    /// Runs every rank in the same role, and checks that all succeed.
    pub(crate) fn run(&self, role: &str) -> Vec<String> {
        let children: Vec<Child> = (0..self.size).map(|rank| self.spawn(rank, role)).collect();
        children.into_iter().map(ended_well).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left: Vec<_> = std::fs::read_dir(&self.folder)
                .unwrap()
                .flat_map(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap())
                .collect();
            assert!(left.is_empty(), "left in the folder: {left:?}");
        }
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Waits for a process, checks that it succeeded, and returns its output.
pub(crate) fn ended_well(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && out.contains("1 passed"), "{status}\n{out}\n{err}");
    out.into_owned()
}
