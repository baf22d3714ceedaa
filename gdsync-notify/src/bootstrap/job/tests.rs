//! Jobs from environments, and environments that are refused.

use super::*;

fn job(variables: &[(&str, &str)]) -> Result<Job, BootstrapError> {
    let found =
        |name: &str| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value));
    Job::from_lookup(found)
}

fn refusal(variables: &[(&str, &str)]) -> String {
    job(variables).unwrap_err().to_string()
}

#[test]
fn every_launcher_is_understood() {
    let local = |name: &str| Rendezvous::Local(name.to_owned());
    for (variables, rank, size, rendezvous) in [
        (&[("GDSYNC_RANK", "3"), ("GDSYNC_SIZE", "4"), ("GDSYNC_JOB", "mine")][..], 3, 4, local("mine")),
        (
            &[
                ("OMPI_COMM_WORLD_RANK", "0"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("PMIX_RANK", "9"),
                ("PMIX_NAMESPACE", "prterun-a-1@1"),
            ],
            0,
            2,
            local("prterun-a-1@1"),
        ),
        (&[("PMIX_RANK", "1"), ("SLURM_NTASKS", "8"), ("PMIX_NAMESPACE", "slurm.7")], 1, 8, local("slurm.7")),
        (
            &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("GDSYNC_ROOT", "node0:18515")],
            1,
            2,
            Rendezvous::Root("node0:18515".to_owned()),
        ),
        (
            &[
                ("SLURM_PROCID", "5"),
                ("SLURM_NTASKS", "8"),
                ("SLURM_STEP_NUM_TASKS", "6"),
                ("SLURM_NNODES", "1"),
                ("SLURM_JOB_ID", "77"),
                ("SLURM_STEP_ID", "0"),
            ],
            5,
            6,
            local("77.0"),
        ),
        (&[("GDSYNC_RANK", "0"), ("GDSYNC_SIZE", "1")], 0, 1, local("")),
    ] {
        let job = job(variables).unwrap();
        assert_eq!((job.rank(), job.size(), job.rendezvous()), (rank, size, &rendezvous), "{variables:?}");
    }
}

#[test]
fn gdsyncs_own_variables_come_first() {
    let own = [("GDSYNC_RANK", "1"), ("GDSYNC_SIZE", "3"), ("GDSYNC_JOB", "j")];
    let launcher =
        [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let both: Vec<_> = own.into_iter().chain(launcher).collect();
    assert_eq!(job(&both).unwrap(), job(&own).unwrap());
}

#[test]
fn what_is_missing_or_wrong_is_named_with_the_remedy() {
    assert!(matches!(job(&[]), Err(BootstrapError::NoLauncher)));
    let said = refusal(&[]);
    let names = "none of GDSYNC_RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID, RANK is set: ";
    assert!(said.starts_with(names) && said.contains("mpirun"), "{said}");
    assert_eq!(
        refusal(&[("GDSYNC_RANK", "0")]),
        "GDSYNC_RANK is set, but GDSYNC_SIZE is not: set it to the number of processes"
    );
    for bad in ["", "x", "+1", "-1", "1 ", "4294967296"] {
        let text = refusal(&[("PMI_RANK", bad), ("PMI_SIZE", "2")]);
        assert_eq!(text, format!("PMI_RANK is {bad:?}: it should be a decimal number"));
        assert!(refusal(&[("PMI_RANK", "0"), ("PMI_SIZE", bad)]).starts_with("PMI_SIZE"));
    }
    for (rank, size) in [("2", "2"), ("0", "0"), ("0", "99999")] {
        let text = refusal(&[("GDSYNC_RANK", rank), ("GDSYNC_SIZE", size), ("GDSYNC_JOB", "j")]);
        assert!(text.starts_with(&format!("rank {rank} of {size} processes")), "{text}");
    }
    for root in ["", "node", "node:", ":7", "node:0", "node:x", "node:70000"] {
        let text = refusal(&[("GDSYNC_RANK", "0"), ("GDSYNC_SIZE", "2"), ("GDSYNC_ROOT", root)]);
        assert!(text.starts_with(&format!("GDSYNC_ROOT is {root:?}: it should be host:port")), "{text}");
    }
    let nameless = job(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
    assert!(matches!(nameless, Err(BootstrapError::NoJobName)), "{nameless:?}");
    assert!(Job::new(4, 4, Rendezvous::Local("j".to_owned())).is_err());
}

#[test]
fn several_hosts_need_an_address() {
    let ompi = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "n"),
    ];
    let slurm = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_NNODES", "2"),
        ("SLURM_JOB_ID", "1"),
        ("SLURM_STEP_ID", "0"),
    ];
    for (variables, name) in [(&ompi[..], "OMPI_COMM_WORLD_LOCAL_SIZE"), (&slurm, "SLURM_NNODES")] {
        let text = refusal(variables);
        assert!(text.contains(name) && text.contains("GDSYNC_ROOT"), "{text}");
        let with_root: Vec<_> = variables.iter().copied().chain([("GDSYNC_ROOT", "a:1")]).collect();
        assert_eq!(job(&with_root).unwrap().rendezvous(), &Rendezvous::Root("a:1".to_owned()));
    }
}

#[test]
fn jobs_of_different_names_have_different_hashes() {
    let hash = |name: &str| Job::new(0, 1, Rendezvous::Local(name.to_owned())).unwrap().name_hash();
    assert_ne!(hash("a"), hash("b"));
    assert_eq!(hash("a"), hash("a"));
}

#[test]
fn the_environment_gives_a_key_or_says_what_is_wrong_with_it() {
    let of = |more: &[(&str, &str)]| {
        job(&[&[("GDSYNC_RANK", "0"), ("GDSYNC_SIZE", "2"), ("GDSYNC_ROOT", "a:1")], more].concat())
    };
    assert_eq!(of(&[]).unwrap().key(), None);
    let with_key = of(&[("GDSYNC_KEY", "0123456789abcdef")]).unwrap();
    let key = Key::new(b"0123456789abcdef").unwrap();
    assert_eq!((with_key.key(), &with_key), (Some(&key), &of(&[]).unwrap().with_key(key.clone())));
    assert!(!format!("{with_key:?}").contains("0123"), "it is secret");
    let short = of(&[("GDSYNC_KEY", "secret")]).unwrap_err().to_string();
    assert!(short.starts_with("GDSYNC_KEY: the key has 6 bytes"), "{short}");
    let absent = of(&[("GDSYNC_KEY_FILE", "/nowhere/key")]).unwrap_err().to_string();
    assert!(absent.starts_with("GDSYNC_KEY_FILE: the key file /nowhere/key"), "{absent}");
}

/// torchrun's variables for rank 1 of 4, all on this host.
const TORCHRUN_HERE: [(&str, &str); 7] = [
    ("RANK", "1"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
];

fn with(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let kept = TORCHRUN_HERE.iter().filter(|(name, _)| changes.iter().all(|(other, _)| other != name));
    changes.iter().chain(kept).copied().collect()
}

#[test]
fn ranks_of_torchrun_on_one_host_meet_under_the_name_of_their_run() {
    let rendezvous = |variables: &[_]| job(variables).unwrap().rendezvous().clone();
    let here = job(&TORCHRUN_HERE).unwrap();
    assert_eq!((here.rank(), here.size()), (1, 4));
    assert_eq!(*here.rendezvous(), Rendezvous::Local("torchrun node7 29500 none 0".to_owned()));
    for other in [("MASTER_PORT", "29501"), ("TORCHELASTIC_RESTART_COUNT", "1"), ("GDSYNC_JOB", "mine")] {
        assert_ne!(rendezvous(&with(&[other])), *here.rendezvous(), "{other:?}");
    }
    // Another launcher's variables come first.
    let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("GDSYNC_JOB", "a")];
    assert_eq!(job(&with(&slurm)).unwrap().rank(), 5);
    let by_hand = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1234")];
    assert_eq!(rendezvous(&by_hand), Rendezvous::Local("torchrun 127.0.0.1 1234  ".to_owned()));
    assert_eq!(rendezvous(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Rendezvous::Local(String::new()));
}

#[test]
fn ranks_of_torchrun_on_several_hosts_meet_at_the_port_behind_torchs() {
    let there = Rendezvous::Root("node7:29501".to_owned());
    assert_eq!(*job(&with(&[("LOCAL_WORLD_SIZE", "2")])).unwrap().rendezvous(), there);
    let by_hand = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
    assert_eq!(*job(&by_hand).unwrap().rendezvous(), there);
    let root = with(&[("LOCAL_WORLD_SIZE", "2"), ("GDSYNC_ROOT", "node8:18515")]);
    assert_eq!(*job(&root).unwrap().rendezvous(), Rendezvous::Root("node8:18515".to_owned()));
}

#[test]
fn what_torchrun_cannot_mean_is_refused() {
    let port = refusal(&with(&[("LOCAL_WORLD_SIZE", "2"), ("MASTER_PORT", "65535")]));
    assert!(port.contains("MASTER_PORT") && port.contains("65535"), "{port}");
    let nowhere = refusal(&[("RANK", "0"), ("WORLD_SIZE", "2")]);
    assert!(nowhere.contains("GDSYNC_JOB"), "{nowhere}");
    assert!(refusal(&[("RANK", "0")]).contains("WORLD_SIZE"));
}
