//! `gdsync accept` on the software card, by the unmodified libibverbs and libmlx5.

use gdsync_test_support::command::{self, error_in, gdsync, row, run, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::processes::{children_of, start_command};
use gdsync_test_support::programs::{free_port, tool};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A key of 32 bytes.
const KEY: &str = "c3RlcHMgb2YgYSBsYWRkZXIsIGFuZCBhIHBlZXI6IDE=";

/// Returns `gdsync soft SOFT -- gdsync accept ACCEPT --json --output FILE`; none without libibverbs, which the tool needs.
fn accept(test: &str, soft: &[&str], accept: &[&str], file: &Path) -> Option<Command> {
    tool(test, "ibv_devinfo")?;
    command::program("gdsync-soft");
    command::program("gdsync-lab");
    let mut all = gdsync(&["soft"]);
    all.args(soft).arg("--").arg(command::program("gdsync")).arg("accept").args(accept);
    all.args(["--json", "--output"]).arg(file);
    Some(all)
}

fn steps(report: &Value) -> &Vec<Value> {
    report["steps"].as_array().unwrap()
}

#[test]
fn the_software_card_is_like_itself_and_the_file_says_so() {
    let folder = Folder::new("accept");
    for devices in ["ib", "roce"] {
        let file = folder.path().join(devices);
        let Some(mut command) = accept("accept", &["--devices", devices], &["--quick"], &file) else {
            return;
        };
        let output = command.output().unwrap();
        let report = row(&output.stdout);
        for step in steps(&report) {
            let name = step["step"].as_str().unwrap();
            let wanted = if name.starts_with("gpu.") { "skipped" } else { "passed" };
            for side in ["card", "model"] {
                assert_eq!(step[side]["outcome"], wanted, "{name} on the {side}: {}", step[side]);
            }
            assert_eq!(step["differences"], Value::Array(Vec::new()), "{name}");
        }
        assert!(steps(&report).len() > 70, "{}", steps(&report).len());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(file.metadata().unwrap().len() < 5 << 20);
        // Read elsewhere, it is the same.
        let shown = run(&["accept", "--json", "--show", file.to_str().unwrap()]);
        assert_eq!(row(&shown.stdout), report);
    }
}

#[test]
fn what_a_card_does_otherwise_is_named_with_the_rule() {
    let folder = Folder::new("accept-fault");
    let file = folder.path().join("file");
    let faults = ["--faults", "fail=remote-operation every=1"];
    let only = ["--step", "rc.write", "--step", "open.port"];
    let Some(mut command) = accept("accept-fault", &faults, &only, &file) else { return };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report = row(&output.stdout);
    let [write, port] = &steps(&report)[..] else { panic!("{report}") };
    assert_eq!((&write["card"]["outcome"], &write["model"]["outcome"]), (&"failed".into(), &"passed".into()));
    assert_eq!(port["differences"], Value::Array(Vec::new()));
    let status = write["differences"].as_array().unwrap().iter().find(|one| one["fact"] == "write.status");
    let status = status.unwrap_or_else(|| panic!("{write}"));
    assert_eq!((&status["card"], &status["model"]), (&"syndrome 0x14".into(), &"success".into()));
    assert!(
        status["rule"].as_str().unwrap().contains("InfiniBand specification")
            && status["explained"].is_null()
    );
    let shown = run(&["accept", "--show", file.to_str().unwrap()]);
    let shown = text(&shown.stdout);
    for said in [
        "failed   rc.write",
        "write.status: syndrome 0x14, the software card success",
        "2 steps: 1 passed, 1 failed;",
    ] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn a_card_without_waits_skips_their_steps_for_a_known_reason() {
    let folder = Folder::new("accept-without-waits");
    let file = folder.path().join("file");
    let names = ["card.wait-data", "card.wait-time", "card.trigger", "card.master", "card.collector"];
    let only: Vec<_> = names.iter().flat_map(|name| ["--step", name]).collect();
    let Some(mut command) = accept("accept-without-waits", &[], &only, &file) else { return };
    // The software card that it is compared with keeps its WAITs.
    let output = command.env("SOFTHCA_WAITS", "off").output().unwrap();
    let report = row(&output.stdout);
    assert_eq!(steps(&report).len(), names.len());
    for step in steps(&report) {
        assert_eq!(
            (&step["card"]["outcome"], &step["model"]["outcome"]),
            (&"skipped".into(), &"passed".into())
        );
        assert!(step["card"]["remedy"].as_str().unwrap().contains("ConnectX-7"), "{step}");
        let [difference] = &step["differences"].as_array().unwrap()[..] else { panic!("{step}") };
        assert_eq!(difference["fact"], "outcome");
        assert!(difference["explained"].as_str().unwrap().contains("ConnectX-7"), "{step}");
        assert!(difference["rule"].as_str().unwrap().contains("docs/card-trigger.md"), "{step}");
    }
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn an_interrupted_ladder_writes_what_there_is() {
    let folder = Folder::new("accept-interrupt");
    let file = folder.path().join("file");
    let Some(command) = accept("accept-interrupt", &[], &[], &file) else { return };
    let soft = start_command(command);
    // `gdsync` becomes `gdsync-soft`, which starts a process for its folder, then the ladder. The ladder starts both sides of
    // the first step.
    let ladder = children_of(soft.id(), 2)[1];
    children_of(ladder, 2);
    // SAFETY: no memory is involved; the child has not been waited for. It passes the signal on.
    assert_eq!(unsafe { libc::kill(soft.id() as libc::pid_t, libc::SIGINT) }, 0);
    let output = soft.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let report = row(&output.stdout);
    assert!((1..70).contains(&steps(&report).len()), "{}", steps(&report).len());
    // The doctor takes no time.
    assert!(
        report["figures"].as_array().unwrap().iter().all(|figure| figure["command"] == "doctor"),
        "{report}"
    );
    assert!(file.is_file());
}

#[test]
fn without_a_card_or_a_step_or_a_file_the_error_names_the_remedy() {
    let folder = Folder::new("accept-mistakes");
    let file = folder.path().join("no-archive");
    std::fs::write(&file, "text").unwrap();
    for (arguments, said) in [
        (
            &["accept", "--json", "--step", "rc.nothing"][..],
            "there is no step rc.nothing. The steps are open.device, ",
        ),
        (&["accept", "--json", "--hca", "softhca0"], "softhca0 is a software card: name one of the system's"),
        (&["accept", "--json", "--output", "/nowhere/file"], "/nowhere/file cannot be written"),
        (&["accept", "--json", "--show", "/nowhere/file"], "/nowhere/file: No such file"),
        (&["accept", "--json", "--show", file.to_str().unwrap()], "is no file of `gdsync accept`"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = error_in(&output.stdout);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}

#[test]
fn a_peer_serves_the_measurements_between_hosts() {
    let folder = Folder::new("accept-peer");
    let file = folder.path().join("file");
    let port = free_port().to_string();
    let Some(mut client) =
        accept("accept-peer", &[], &["--step", "open.port", "--peer", "127.0.0.1", "--port", &port], &file)
    else {
        return;
    };
    let mut server = gdsync(&["soft", "--"]);
    server.arg(command::program("gdsync")).args(["accept", "--server", "--port", &port]);
    let mut server = start_command({
        server.env("GDSYNC_KEY", KEY);
        server
    });
    let output = client.env("GDSYNC_KEY", KEY).output().unwrap();
    let report = row(&output.stdout);
    let figures = report["figures"].as_array().unwrap();
    for (command, rows) in [("pingpong", 1), ("bench net --op write --sizes 8,64K,1M", 3)] {
        let figure = figures.iter().find(|figure| figure["command"] == command).unwrap();
        assert_eq!(figure["rows"].as_array().map(Vec::len), Some(rows), "{figure}");
        // Both sides are on the card under test.
        assert!(figure["rows"].as_array().unwrap().iter().all(|row| row["card"] == "mlx5_0"), "{figure}");
    }
    assert!(server.wait().unwrap().success());
}
