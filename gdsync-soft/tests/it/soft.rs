//! `gdsync soft` itself.

use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::processes::{children_of, signal};
use gdsync_test_support::programs::{Running, run, soft};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn shell(temporary: &Folder, script: &str) -> Command {
    let mut command = soft("ib,roce", Path::new("/bin/sh"), temporary.path());
    command.args(["-c", script]);
    command
}

#[test]
fn the_command_sees_the_card_and_its_status_is_passed_on() {
    let temporary = Folder::new("status");
    let script = "cat /sys/class/infiniband_verbs/uverbs1/ibdev; echo $SOFTHCA_DEVICES; exit 7";
    let ended = run(shell(&temporary, script));
    assert_eq!((ended.code, ended.text.as_str()), (Some(7), "mlx5_1\nib,roce\n"));
    assert_eq!(run(shell(&temporary, "kill -KILL $$")).code, Some(137));
    assert_eq!(run(shell(&temporary, "kill -TERM $$")).code, Some(143));
    assert_eq!(temporary.content(), 0);
}

#[test]
fn what_was_preloaded_stays_preloaded_behind_the_card() {
    let temporary = Folder::new("preload");
    let mut command = shell(&temporary, "echo \"$LD_PRELOAD\"");
    command.env("LD_PRELOAD", "libc.so.6");
    let ended = run(command);
    assert!(ended.succeeded().trim().ends_with("libsofthca_uverbs.so:libc.so.6"), "{ended:?}");
}

#[test]
fn the_command_carries_its_library() {
    let (temporary, other) = (Folder::new("carried"), Folder::new("installed"));
    let copy = other.path().join("gdsync-soft");
    // By another process: a file that this process writes is busy while another test forks.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_gdsync-soft")).arg(&copy).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(copy);
    command.args(["soft", "--", "/bin/sh", "-c", "echo $LD_PRELOAD; exec cat /proc/self/maps"]);
    command.current_dir("/").env("TMPDIR", temporary.path()).env_remove("LD_PRELOAD");
    let ended = run(command);
    let library = ended.succeeded().lines().next().unwrap();
    assert!(Path::new(library).starts_with(temporary.path()), "{library}");
    assert!(ended.text.lines().skip(1).any(|mapping| mapping.ends_with(library)), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
}

#[test]
fn a_command_that_is_not_there_is_status_127() {
    let temporary = Folder::new("missing");
    let ended = run(soft("1", Path::new("/no/such/command"), temporary.path()));
    assert_eq!(ended.code, Some(127));
    assert!(ended.text.contains("/no/such/command") && ended.text.lines().count() == 1, "{}", ended.text);
    let ended = run(soft("1", Path::new("/etc/passwd"), temporary.path()));
    assert_eq!((ended.code, ended.text.lines().count()), (Some(126), 1), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let temporary = Folder::new("mistakes");
    for devices in ["0", "9", "ib,eth", ""] {
        let ended = run(soft(devices, Path::new("/bin/true"), temporary.path()));
        let said = format!("error: invalid value '{devices}' for '--devices <LIST>': ");
        assert!(ended.code == Some(2) && ended.text.starts_with(&said), "{devices}: {}", ended.text);
    }
    let mut command = soft("1", Path::new("/bin/true"), temporary.path());
    command.env("SOFTHCA_UVERBS_LIBRARY", "/no/such/library.so");
    let ended = run(command);
    assert_eq!((ended.code, ended.text.lines().count()), (Some(1), 1), "{}", ended.text);
    assert!(ended.text.contains("/no/such/library.so"), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
    let temporary = Folder::new("mistakes in a path");
    let ended = run(soft("1", Path::new("/bin/true"), temporary.path()));
    assert_eq!((ended.code, ended.text.lines().count()), (Some(1), 1), "{}", ended.text);
    assert!(ended.text.contains("libsofthca_uverbs.so") && ended.text.contains("TMPDIR"), "{}", ended.text);
    assert_eq!(temporary.content(), 0);
}

/// Starts a script, and waits until it has created a file in its folder. SIGTERM ends it with status 5.
fn started(temporary: &Folder, script: &str) -> Running {
    let script = format!("trap 'exit 5' TERM; touch $SOFTHCA_FILES/started; {script}");
    let running = Running::start(shell(temporary, &script));
    let end = Instant::now() + Duration::from_secs(60);
    let has_started = || {
        let folders = std::fs::read_dir(temporary.path()).unwrap();
        folders.into_iter().any(|folder| folder.unwrap().path().join("started").exists())
    };
    while !has_started() {
        assert!(Instant::now() < end, "it does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let temporary = Folder::new("full");
    for stderr in ["2>/dev/full", "2>&-"] {
        // The file is the card's, which logs that it starts.
        let mut command =
            shell(&temporary, &format!("cat /sys/class/infiniband/mlx5_0/ports/1/lid {stderr}"));
        command.env("SOFTHCA_LOG", "trace");
        assert!(run(command).succeeded().starts_with("0x"), "{stderr}");
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn what_a_killed_run_has_left_is_removed_by_the_next() {
    let temporary = Folder::new("abandoned");
    let running = started(&temporary, "exec sleep 1000");
    // The watcher first, which would remove it.
    let is_watcher = |pid: &&u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("soft-watch"))
    };
    let children = children_of(running.child.id(), 2);
    signal(*children.iter().find(is_watcher).unwrap(), libc::SIGKILL);
    running.kill();
    assert_eq!(running.end().code, Some(137));
    assert!(temporary.content() > 0, "the watcher is gone");
    assert_eq!(run(shell(&temporary, "true")).code, Some(0));
    assert_eq!(temporary.content(), 0);
}

#[test]
fn signals_reach_the_command() {
    let temporary = Folder::new("signals");
    let running = started(&temporary, "while :; do sleep 0.05; done");
    // SAFETY: no memory is involved; the child has not been waited for.
    unsafe { libc::kill(running.child.id() as libc::pid_t, libc::SIGTERM) };
    assert_eq!(running.end().code, Some(5));
    assert_eq!(temporary.content(), 0);
}

#[test]
fn the_folder_is_removed_even_if_the_command_was_killed() {
    let temporary = Folder::new("killed");
    let running = started(&temporary, "exec sleep 1000");
    running.kill();
    assert_eq!(running.end().code, Some(137), "output ends, so the watcher does not hold it");
    temporary.becomes_empty();
}

#[test]
fn a_fork_starts_a_card_of_its_own_at_the_same_address() {
    let Some(tool) = gdsync_test_support::programs::tool(
        "a_fork_starts_a_card_of_its_own_at_the_same_address",
        "ibv_devinfo",
    ) else {
        return;
    };
    let temporary = Folder::new("fork");
    // Two at a time, from one shell that has forked.
    let table = format!("{} -v -d mlx5_0 | grep -e port_lid -e 'GID\\['", tool.display());
    let script = format!("{table} & {table}; wait $! && echo both");
    for (listen, table) in [(None, 1), (Some("127.83.213.1:32000"), 4)] {
        let mut command = shell(&temporary, &script);
        command.envs(listen.map(|listen| ("SOFTHCA_LISTEN", listen)));
        let ended = run(command);
        assert!(ended.succeeded().ends_with("both\n"), "{}", ended.text);
        for (line, count) in [("port_lid", 1), ("GID[", table)] {
            // The lines of the two may come in turn.
            let mut lines: Vec<&str> = ended.text.lines().filter(|said| said.contains(line)).collect();
            lines.sort_unstable();
            assert_eq!(lines.len(), 2 * count, "{}", ended.text);
            assert!(lines.chunks(2).all(|two| two[0] == two[1]), "{lines:?}");
        }
    }
}

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own() {
    let folder = Folder::new("dashes");
    let trace = folder.path().join("trace.json");
    let trace = trace.to_str().unwrap();
    for (words, said) in [
        (&["soft", "printf", "%s.", "--json", "--", "-h"][..], "--json.--.-h."),
        (&["soft", "--devices", "2", "--", "printf", "%s.", "--", "x"], "--.x."),
        (&["run", "-n", "1", "printf", "%s.", "-n", "2"], "[0] -n.2.\n"),
        (&["trace", "-o", trace, "printf", "%s.", "--gpu"], "--gpu."),
    ] {
        let output = gdsync(words).output().unwrap();
        assert_eq!(text(&output.stdout), said, "{words:?}: {}", text(&output.stderr));
    }
}
