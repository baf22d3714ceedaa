//! Errors of the bootstrap.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Errors of [`super::Job`] and [`super::Bootstrap`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// No launcher has started this process.
    #[error(
        "none of GDSYNC_RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID is set: start the program under mpirun or srun, or set GDSYNC_RANK and GDSYNC_SIZE"
    )]
    NoLauncher,
    /// The launcher says which rank this is, and not of how many.
    #[error("{rank} is set, but {size} is not: set it to the number of processes")]
    NoSize {
        /// The variable that is set.
        rank: &'static str,
        /// The variable that is not.
        size: &'static str,
    },
    /// A variable of the environment makes no sense.
    #[error("{name} is {value:?}: {reason}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what it should be.
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
    /// Nothing tells this job from another one on this host.
    #[error(
        "the launcher names no job (PMIX_NAMESPACE, SLURM_JOB_ID): set GDSYNC_JOB to a name that only this job has, or GDSYNC_ROOT to host:port of rank 0"
    )]
    NoJobName,
    /// The job is on several hosts.
    #[error(
        "{name} is {value:?}, so that the job is on several hosts: set GDSYNC_ROOT to host:port, where rank 0 listens"
    )]
    SeveralHosts {
        /// The variable that says so.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The folder where processes of one host meet is not safe.
    #[error("cannot meet in the folder {}: {reason}", .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// Rank 0 cannot be reached.
    #[error("rank 0 cannot be reached at {address} within {timeout:?}: {source}")]
    Connect {
        /// Where.
        address: String,
        /// How long it was tried.
        timeout: Duration,
        /// The operating system's error of the last try.
        source: io::Error,
    },
    /// Ranks did not come in time: to the job, or to an exchange.
    #[error("ranks {ranks:?} did not come within {timeout:?}: see whether they run, or allow more time")]
    Late {
        /// Which; of other ranks than 0, rank 0 may itself be waiting for one.
        ranks: Vec<u32>,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// Ranks are gone.
    #[error("ranks {ranks:?} are gone: what they said last tells why")]
    Gone {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Rank 0 does not take this process, or stops the job.
    #[error("rank 0 refuses: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// A rank thinks that the job has another size.
    #[error("rank {rank} says that the job has {given} processes, but it has {size}: give all the same size")]
    OtherSize {
        /// That rank.
        rank: u32,
        /// What it says.
        given: u32,
        /// What this process was told.
        size: u32,
    },
    /// Too many bytes for an exchange.
    #[error("{given} bytes are more than the {limit} of {what}: exchange them in several steps")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A rank said something that makes no sense.
    #[error("rank {rank} said what makes no sense: {reason}")]
    Protocol {
        /// That rank.
        rank: u32,
        /// What is wrong.
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
    /// An earlier exchange failed.
    #[error("an earlier exchange failed, after which ranks no longer agree on what comes next: join again")]
    Broken,
}
