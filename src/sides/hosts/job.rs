//! The sides as the two processes of a launcher's job: rank 0 is the server, rank 1 the client.

use super::meeting::{self, Listener, Met};
use crate::cli::Address;
use crate::failure::Failure;
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job, Meeting};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long the other process may take to start.
const START: Duration = Duration::from_secs(30);
/// Variables that do not say that a launcher has started this process: torchrun's rank has a name that others have for
/// other things, and Slurm sets its number of tasks for the script of a job, too.
const NOT_OF_A_LAUNCHER: [&str; 2] = ["RANK", "SLURM_NTASKS"];

/// The job, if a launcher has started two processes.
///
/// # Errors
/// It has, and the environment does not say where they meet.
pub(super) fn of_two(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Job>, BootstrapError> {
    let get = |name: &str| get(name).filter(|_| !NOT_OF_A_LAUNCHER.contains(&name));
    // The size, whether or not the processes can meet.
    let counted = Job::from_lookup(|name| match name {
        "GDSYNC_ROOT" => Some("localhost:1".into()),
        _ if name.starts_with("GDSYNC_KEY") => None,
        _ => get(name),
    });
    match counted {
        Ok(job) if job.size() == 2 => Job::from_lookup(get).map(Some),
        _ => Ok(None),
    }
}

/// The connection of a job's processes. Their bootstrap carries the address.
pub(super) fn meet(job: &Job, command: &str) -> Result<Met, Failure> {
    let mut bootstrap = Bootstrap::join(job, START)?;
    let host = match job.meeting() {
        Meeting::Root(root) => root.rsplit_once(':').map_or(root.as_str(), |(host, _)| host),
        _ => "127.0.0.1",
    };
    let host = host.trim_matches(['[', ']']);
    let address = Address { host: host.to_owned(), port: None };
    if job.rank() == 0 {
        let listener = Listener::bind(Some(&address), 0)?;
        bootstrap.all_gather(listener.address().port().to_string().as_bytes())?;
        return listener.accept(Some(Instant::now() + START));
    }
    let said = bootstrap.all_gather(&[])?;
    let port = said.first().and_then(|port| std::str::from_utf8(port).ok()?.parse().ok());
    meeting::connect(host, port.ok_or("rank 0 says no port")?, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<u32>, String> {
        let get = |name: &str| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| value.into());
        of_two(get).map(|job| job.map(|job| job.rank())).map_err(|error| error.to_string())
    }

    #[test]
    fn two_processes_of_a_launcher_are_a_job_and_nothing_else_is() {
        let open_mpi = |rank, size| {
            [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size), ("PMIX_NAMESPACE", "7")]
        };
        assert_eq!(of(&open_mpi("0", "2")), Ok(Some(0)));
        assert_eq!(of(&open_mpi("1", "2")), Ok(Some(1)));
        assert_eq!(
            [of(&open_mpi("0", "1")), of(&open_mpi("1", "3")), of(&[])],
            [Ok(None), Ok(None), Ok(None)]
        );
        let step = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_JOB_ID", "9"),
            ("SLURM_STEP_ID", "0"),
        ];
        assert_eq!(of(&step), Ok(Some(1)));
        assert_eq!(
            of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9")]),
            Ok(None),
            "a script"
        );
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("GDSYNC_JOB", "j")]), Ok(None), "torchrun's");
    }

    #[test]
    fn two_processes_that_cannot_meet_are_an_error() {
        let apart = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ];
        assert!(of(&apart).unwrap_err().contains("set GDSYNC_ROOT to host:port"));
    }
}
