//! Errors of the bootstrap.

use gdsync_auth::KeyError;
use gdsync_sys::launcher::LAUNCHERS;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Errors of [`Job`](super::Job) and [`Bootstrap`](super::Bootstrap).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// No launcher has started this process.
    #[error(
        "none of {} is set: start the program by `gdsync run -n 4 -- PROGRAM`, mpirun, srun or torchrun, or set for each process GDSYNC_RANK, GDSYNC_SIZE, and GDSYNC_JOB (a name that only this job has) or, on several hosts, GDSYNC_ROOT (host:port of rank 0) and GDSYNC_KEY_FILE",
        LAUNCHERS.map(|launcher| launcher.rank).join(", ")
    )]
    NoLauncher,
    /// The launcher gave a rank, but no number of processes.
    #[error("{rank} is set, but {size} is not: set it to the number of processes")]
    NoSize {
        /// The variable that is set.
        rank: &'static str,
        /// The variable that is not.
        size: &'static str,
    },
    /// A variable of the environment has an unusable value.
    #[error("{name} is {value:?}: {reason}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The problem and the expected value.
        reason: String,
    },
    /// A rank outside the job.
    #[error(
        "rank {rank} of {size} processes: ranks are below the number of processes, which is 1 to {limit}"
    )]
    Rank {
        /// The rank given.
        rank: u32,
        /// Processes of the job.
        size: u32,
        /// Most processes of a job.
        limit: u32,
    },
    /// No name distinguishes this job from others on this host.
    #[error(
        "the launcher names no job (PMIX_NAMESPACE, SLURM_JOB_ID): start the program by `gdsync run`, or set GDSYNC_JOB to a name that only this job has, or GDSYNC_ROOT to host:port of rank 0"
    )]
    NoJobName,
    /// The job runs on several hosts.
    #[error(
        "{name} is {value:?}, so the job runs on several hosts: set GDSYNC_ROOT to host:port, where rank 0 listens"
    )]
    SeveralHosts {
        /// The variable that shows it.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The folder of the job's socket is not safe or cannot be created.
    #[error("cannot use the folder {} for the job's socket: {reason}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The problem and the remedy.
        reason: String,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The processes have no key in common.
    #[error(
        "other hosts reach {address}, so the job needs a key: make it with `(umask 077; head -c 32 /dev/urandom | base64 > job.key)`, and give all processes GDSYNC_KEY_FILE (on every host), or GDSYNC_KEY"
    )]
    NoKey {
        /// The address of rank 0.
        address: String,
    },
    /// Rank 0 and this process have different keys.
    #[error(
        "the process at {address} has another key, so it is not rank 0 of this job: give all processes the same GDSYNC_KEY or GDSYNC_KEY_FILE, or, on one host, the same XDG_RUNTIME_DIR or TMPDIR"
    )]
    OtherKey {
        /// The address.
        address: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Rank 0 cannot be reached.
    #[error("rank 0 cannot be reached at {address} within {timeout:?}: {source}: check whether it runs")]
    Connect {
        /// The address.
        address: String,
        /// How long this rank tried.
        timeout: Duration,
        /// The operating system's error of the last try.
        source: io::Error,
    },
    /// Ranks did not join the job, or take part in an exchange, in time.
    #[error("ranks {ranks:?} did not arrive within {timeout:?}: check whether they run, or allow more time")]
    Late {
        /// The ranks. If this is rank 0 alone, rank 0 may itself be waiting for another rank.
        ranks: Vec<u32>,
        /// How long this rank waited.
        timeout: Duration,
    },
    /// Ranks have ended, or closed their connection.
    #[error("ranks {ranks:?} have ended: their own output says why")]
    Gone {
        /// The ranks.
        ranks: Vec<u32>,
    },
    /// Rank 0 refuses this process, or stops the job.
    #[error("rank 0 refuses: {reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// A rank was given another size of the job.
    #[error("rank {rank} says that the job has {given} processes, but it has {size}: give all the same size")]
    OtherSize {
        /// That rank.
        rank: u32,
        /// The size that it was given.
        given: u32,
        /// The size that this process was given.
        size: u32,
    },
    /// Too many bytes for an exchange.
    #[error("{given} bytes are more than the {limit} of {what}: exchange them in several steps")]
    TooLong {
        /// The unit that is too long.
        what: &'static str,
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The number of parts is not that of the ranks.
    #[error("{given} parts for {size} ranks: give one for each rank, this one included")]
    Parts {
        /// Parts given.
        given: usize,
        /// Processes of the job.
        size: u32,
    },
    /// A rank sent a malformed or unexpected message.
    #[error("rank {rank} sent what the protocol does not allow: {reason}")]
    Protocol {
        /// That rank.
        rank: u32,
        /// The problem.
        reason: String,
    },
    /// The connection with a rank failed.
    #[error("the connection with rank {rank} failed: {source}")]
    Connection {
        /// That rank.
        rank: u32,
        /// The operating system's error.
        source: io::Error,
    },
    /// The program's own all-gather failed ([`Bootstrap::with_all_gather`](super::Bootstrap::with_all_gather)).
    #[error("the program's all-gather of {bytes} bytes a rank failed: {reason}")]
    Program {
        /// Bytes of each rank.
        bytes: usize,
        /// Its error.
        reason: String,
    },
    /// An earlier exchange failed.
    #[error("an earlier exchange failed, so the ranks no longer agree on the next one: join again")]
    Broken,
}
