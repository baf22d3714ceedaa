//! Open MPI's `mpirun`, as tests run it.

/// The environment of `mpirun`: it also runs as root, and takes the end of a rank as it comes.
///
/// A rank says goodbye to `mpirun` before it ends, and waits for the answer for two seconds (`PMIx_Finalize` of
/// OpenPMIx 4.2). Where `mpirun` did not run for that long, as on a machine with much other load, Open MPI 4.1 looks
/// at the end of the process before it reads the goodbye, says that the rank is "exiting improperly", and ends the
/// others.
pub const ENVIRONMENT: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_orte_allowed_exit_without_sync", "1"),
];
