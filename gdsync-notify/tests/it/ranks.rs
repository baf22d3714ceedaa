//! Ranks of one job: threads, or processes in which a test reruns itself once for each rank.

use gdsync::{Batch, PreparedSend, ProtectionDomain};
use gdsync_notify::bootstrap::{Bootstrap, Job};
use gdsync_notify::{ConnectionKind, NotifyError, Operation, Queue, Team, TeamConfig};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::pair;
use gdsync_test_support::process::again;
use softhca::SPEED_VARIABLE;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Upper limit of any wait, on however busy a machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Prepares an operation, of one send or several.
pub(crate) trait Prepare {
    fn sends(&self, operation: Operation<'_>) -> Result<Vec<PreparedSend>, NotifyError>;
}

impl Prepare for Queue {
    fn sends(&self, operation: Operation<'_>) -> Result<Vec<PreparedSend>, NotifyError> {
        Ok(self.prepare(operation)?.collect())
    }
}

/// Returns whether a queue's connection to a rank places messages out of order: with the liberty `unordered`.
pub(crate) fn places_out_of_order(queue: &Queue, rank: u32) -> bool {
    let of_queue_pair = |one: &gdsync::QueuePair| one.places_out_of_order().unwrap();
    // Connections of DC have no queue pair of a rank.
    queue.queue_pair(rank).map_or_else(
        |_| std::env::var("SOFTHCA_LIBERTIES").is_ok_and(|kinds| kinds.contains("unordered")),
        of_queue_pair,
    )
}

/// Adds all sends of an operation to a batch.
pub(crate) trait SendAll {
    fn send_all(self, sends: Vec<PreparedSend>) -> Self;
}

impl SendAll for Batch {
    fn send_all(self, sends: Vec<PreparedSend>) -> Self {
        sends.into_iter().fold(self, Batch::send)
    }
}

pub(crate) fn domain() -> ProtectionDomain {
    ProtectionDomain::new(&pair::device()).unwrap()
}

/// The variable with the kind of connections under test: `each` (default) or `dynamic`.
pub(crate) const CONNECTIONS: &str = "GDSYNC_TEST_CONNECTIONS";

/// The configuration of a team with that kind.
pub(crate) fn config() -> TeamConfig {
    let kind = match std::env::var(CONNECTIONS).as_deref() {
        Err(_) | Ok("each") => ConnectionKind::Each,
        Ok("dynamic") => ConnectionKind::Dynamic,
        other => panic!("{CONNECTIONS} is {other:?}, neither each nor dynamic"),
    };
    // Some of several ranks share a queue pair.
    TeamConfig::default().connections(kind).initiators(2)
}

/// Runs a function for every rank, each on a thread, and returns the results in rank order.
pub(crate) fn each_on_a_thread<T: Send>(size: u32, rank: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    each_within(LONG, size, rank)
}

/// As [`each_on_a_thread`], with that time-out.
pub(crate) fn each_within<T: Send>(
    patience: Duration,
    size: u32,
    rank: impl Fn(Bootstrap) -> T + Sync,
) -> Vec<T> {
    let (bootstraps, rank) = (Bootstrap::threads(size, patience).unwrap(), &rank);
    std::thread::scope(|scope| {
        let threads: Vec<_> = bootstraps.into_iter().map(|one| scope.spawn(move || rank(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs every rank of a team on a thread.
pub(crate) fn on_threads(size: u32, config: &TeamConfig, rank: impl Fn(&Team) + Sync) {
    each_on_a_thread(size, |bootstrap| {
        let team = Team::new(&domain(), bootstrap, config.clone()).unwrap();
        rank(&team);
        team.barrier().unwrap();
    });
}

/// The team of this process, which [`Ranks`] has started.
pub(crate) fn joined(config: TeamConfig) -> Team {
    let bootstrap = Bootstrap::join(&Job::from_env().unwrap(), LONG).unwrap();
    Team::new(&domain(), bootstrap, config).unwrap()
}

/// Variables of launchers under which this test may run.
const LAUNCHERS: [&str; 14] = [
    "GDSYNC_KEY",
    "GDSYNC_KEY_FILE",
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

/// A job of processes and the folder where they meet, which is empty at the end.
pub(crate) struct Ranks {
    module: &'static str,
    test: &'static str,
    folder: Folder,
    size: u32,
}

impl Ranks {
    /// `module` is the test's `module_path!()`.
    pub(crate) fn new(module: &'static str, test: &'static str, size: u32) -> Ranks {
        // The name is short, as a socket's path has a limit.
        Ranks { module, test, folder: Folder::new("ranks"), size }
    }

    /// The process of a rank with a role. Its cards' time-outs run 20 times as fast, because tests of deaths wait for them.
    pub(crate) fn command(&self, rank: u32, role: &str) -> Command {
        let mut command = again(self.module, self.test, role);
        LAUNCHERS.into_iter().for_each(|name| _ = command.env_remove(name));
        command.env("GDSYNC_RANK", rank.to_string()).env("GDSYNC_SIZE", self.size.to_string());
        command.env(SPEED_VARIABLE, "20");
        command.env("GDSYNC_JOB", self.name()).env("XDG_RUNTIME_DIR", self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The job's name.
    pub(crate) fn name(&self) -> String {
        self.folder.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// The only folder that its processes create.
    pub(crate) fn user_folder(&self) -> PathBuf {
        std::fs::read_dir(self.folder.path()).unwrap().next().unwrap().unwrap().path()
    }

    pub(crate) fn spawn(&self, rank: u32, role: &str) -> Child {
        self.command(rank, role).spawn().unwrap()
    }

    /// Runs every rank in the same role, and asserts that each passes.
    pub(crate) fn run(&self, role: &str) -> Vec<String> {
        let children: Vec<Child> = (0..self.size).map(|rank| self.spawn(rank, role)).collect();
        children.into_iter().map(ended_well).collect()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let left: Vec<_> = std::fs::read_dir(self.folder.path())
                .unwrap()
                .flat_map(|entry| std::fs::read_dir(entry.unwrap().path()).unwrap())
                .collect();
            assert!(left.is_empty(), "left in the folder: {left:?}");
        }
    }
}

/// Waits for a process, asserts that its test has passed, and returns its output.
pub(crate) fn ended_well(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && out.contains("1 passed"), "{status}\n{out}\n{err}");
    out.into_owned()
}
