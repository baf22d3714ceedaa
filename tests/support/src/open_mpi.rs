//! Settings of Open MPI's `mpirun` for tests.

/// The environment of `mpirun`: it also runs as root, and tolerates improper exits of ranks.
///
/// A rank notifies `mpirun` before it exits, and waits two seconds for the reply (`PMIx_Finalize` of OpenPMIx 4.2).
/// If `mpirun` does not run for that long, as on a busy machine, Open MPI 4.1 notices the exit before the
/// notification, reports that the rank is "exiting improperly", and kills the others.
pub const ENVIRONMENT: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_orte_allowed_exit_without_sync", "1"),
];
