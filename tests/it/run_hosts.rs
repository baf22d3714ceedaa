//! `gdsync run --hosts`: ranks on several hosts. Loopback addresses are the hosts, and a script is the remote shell.

use crate::run::{LONG, have_ended, play_ring};
use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::process::{ROLE, arguments, role};
use gdsync_test_support::processes::{children_of, ends, has_taken, signal, start_command};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command};

/// Runs the command on this host, as a login shell of the other host would.
const SHELL: &str = "#!/bin/sh\nshift\nexec sh -c \"$*\"\n";

/// A file of hosts and a remote shell.
struct Cluster(Folder);

impl Cluster {
    fn new(test: &str, hosts: &str, shell: &str) -> Self {
        let folder = Folder::new(test);
        std::fs::write(folder.path().join("hosts"), hosts).unwrap();
        let path = folder.path().join("shell");
        std::fs::write(&path, shell).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Cluster(folder)
    }

    /// Two hosts with two ranks each. Each test has its own addresses.
    fn of_two(test: &str, network: u8) -> Self {
        let hosts = format!("# a test\n127.83.{network}.1 slots=2\n127.83.{network}.2 slots=4\n");
        Self::new(test, &hosts, SHELL)
    }

    fn file(&self) -> String {
        self.0.path().join("hosts").display().to_string()
    }

    fn command(&self, ranks: &str, program: &[&str]) -> Command {
        let file = self.file();
        let mut command = gdsync(&[&["run", "-n", ranks, "--hosts", &file, "--"], program].concat());
        command.env("GDSYNC_RSH", self.0.path().join("shell"));
        command
    }

    /// Starts a script on four ranks, in this folder. Each says its process first.
    fn started(&self, script: &str) -> (Child, BufReader<ChildStdout>, Vec<u32>) {
        let mut command = self.command("4", &["sh", "-c", script]);
        command.current_dir(self.0.path());
        started(command, 4)
    }
}

/// Starts a launcher of so many ranks, each of which says its process first.
pub(crate) fn started(command: Command, ranks: usize) -> (Child, BufReader<ChildStdout>, Vec<u32>) {
    let mut launcher = start_command(command);
    let mut output = BufReader::new(launcher.stdout.take().unwrap());
    let pids = (0..ranks).map(|_| {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim_end().split_once("] ").unwrap().1.parse().unwrap()
    });
    let pids = pids.collect();
    (launcher, output, pids)
}

/// Returns true if the command line of any process has this text.
fn is_on_a_command_line(secret: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| text(&line).contains(secret))
}

/// A team whose software cards talk over TCP: this test is the program of its ranks, too.
#[test]
fn ranks_of_two_hosts_are_a_team() {
    if role().is_some() {
        let key = std::env::var("GDSYNC_KEY").unwrap();
        assert!(key.len() >= 32 && std::env::var("SOFTHCA_KEY").unwrap() == key);
        assert!(is_on_a_command_line("ranks_of_two_hosts_are_a_team"));
        assert!(!is_on_a_command_line(&key), "other users read the key");
        println!("\nnotified by rank {}", play_ring());
        println!("at {}", std::env::var("SOFTHCA_LISTEN").unwrap());
        return;
    }
    let cluster = Cluster::of_two("several-hosts-team", 216);
    let own = std::env::current_exe().unwrap().display().to_string();
    let words = arguments(module_path!(), "ranks_of_two_hosts_are_a_team");
    let words: Vec<&str> = std::iter::once(own.as_str()).chain(words.iter().map(String::as_str)).collect();
    let mut launcher = cluster.command("4", &words);
    let output = launcher.env(ROLE, "rank").output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    for rank in 0..4 {
        let host = 1 + rank / 2;
        for told in [format!("notified by rank {}", (rank + 3) % 4), format!("at 127.83.216.{host}")] {
            assert!(said.contains(&format!("[{rank}] {told}\n")), "{told}: {said}");
        }
    }
}

#[test]
fn the_first_failure_is_told_and_ends_all_hosts() {
    let cluster = Cluster::of_two("several-hosts-failure", 217);
    let script = "trap '' TERM; echo $$; : > $GDSYNC_RANK; [ $GDSYNC_RANK = 3 ] || exec sleep 1000; \
                  until [ -f 0 ] && [ -f 1 ] && [ -f 2 ]; do sleep 0.01; done; echo no memory >&2; exit 9";
    let (launcher, _output, pids) = cluster.started(script);
    let (status, said) = ends(launcher, LONG, "the launcher");
    let told = "gdsync: rank 3 on 127.83.217.2 was the first to fail (exit status: 9); its last line of standard error: no memory";
    assert_eq!((status.code(), said.lines().last()), (Some(9), Some(told)), "{said}");
    have_ended(&pids);

    let output = cluster.command("3", &["/nowhere/at/all"]).output().unwrap();
    let said = text(&output.stderr);
    let told = "(exit status: 127); its last line of standard error: gdsync: /nowhere/at/all: No such file or directory (os error 2)\n";
    assert!(output.status.code() == Some(127) && said.ends_with(told), "{output:?}");
}

#[test]
fn signals_reach_all_hosts() {
    let cluster = Cluster::of_two("several-hosts-signals", 218);
    let (mut launcher, mut output, _) =
        cluster.started("trap 'echo caught; exit 0' INT; echo $$; while :; do sleep 0.01; done");
    signal(launcher.id(), libc::SIGINT);
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("caught\n").count(), 4, "{said}");
    assert!(launcher.wait().unwrap().success());

    // The second interrupt ends ranks that ignore the first.
    let (launcher, _output, pids) = cluster.started("trap '' INT; echo $$; exec sleep 1000");
    signal(launcher.id(), libc::SIGINT);
    has_taken(launcher.id(), libc::SIGINT);
    signal(launcher.id(), libc::SIGINT);
    let (status, said) = ends(launcher, LONG, "the launcher");
    assert_eq!(status.code(), Some(137), "{said}");
    assert!(said.starts_with("gdsync: signal 2 was passed on to all ranks; rank "), "{said}");
    have_ended(&pids);
}

#[test]
fn no_process_is_left_when_the_launcher_or_a_host_is_lost() {
    let cluster = Cluster::of_two("several-hosts-lost", 219);
    let (mut launcher, _output, pids) =
        cluster.started("trap '' TERM HUP INT; echo $$; sleep 1000; sleep 1000");
    launcher.kill().unwrap();
    assert_eq!(launcher.wait().unwrap().signal(), Some(libc::SIGKILL));
    have_ended(&pids);

    // The shells have become the processes of the hosts.
    let (launcher, _output, pids) = cluster.started("echo $$; exec sleep 1000");
    let shells = children_of(launcher.id(), 2);
    signal(shells[1], libc::SIGKILL);
    let (status, said) = ends(launcher, LONG, "the launcher");
    assert_eq!(status.code(), Some(137), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("gdsync: host 127.83.219.") && last.contains("signal: 9 (SIGKILL)"), "{said}");
    have_ended(&pids);
}

#[test]
fn a_host_that_is_not_reached_is_told() {
    let shell = "#!/bin/sh\n[ $1 = 127.83.220.1 ] || { echo \"$1: no route\" >&2; exit 255; }\nshift\nexec sh -c \"$*\"\n";
    let cluster = Cluster::new("several-hosts-unreached", "127.83.220.1\nb\n", shell);
    let output = cluster.command("2", &["sh", "-c", "echo began"]).output().unwrap();
    let told = "b: b: no route\ngdsync: host b was the first to fail (exit status: 255); its last line of standard error: b: no route\n";
    let way = cluster.0.path().join("shell");
    let told = format!("{told}gdsync: the ranks need that `{} b true` succeeds\n", way.display());
    assert_eq!(
        (output.status.code(), text(&output.stderr), text(&output.stdout)),
        (Some(255), told, String::new())
    );
    let mut absent = cluster.command("2", &["true"]);
    let output = absent.env("GDSYNC_RSH", "/nowhere/shell -q").output().unwrap();
    let told = "gdsync: /nowhere/shell: No such file or directory (os error 2)\n";
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(127), told));
    // A host without the program.
    let cluster = Cluster::of_two("several-hosts-absent", 222);
    let shell = "#!/bin/sh\nshift\nexec env PATH=/bin sh -c \"${*% *} '/no/gdsync'\"\n";
    std::fs::write(cluster.0.path().join("shell"), shell).unwrap();
    let output = cluster.command("1", &["true"]).output().unwrap();
    let said = text(&output.stderr);
    let told =
        "127.83.222.1: there is neither /no/gdsync nor gdsync in the search path /bin: install it there\n";
    assert!(output.status.code() == Some(127) && said.starts_with(told), "{said}");
    // An address of one host alone cannot be the meeting point of several.
    let cluster = Cluster::new("several-hosts-loopback", "127.83.220.1\n192.0.2.1\n", SHELL);
    let output = cluster.command("2", &["true"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("192.0.2.1 cannot be used as an address of this host"), "{said}");
}

#[test]
fn variables_that_are_named_are_passed_on() {
    let cluster = Cluster::of_two("several-hosts-variables", 221);
    // The remote shell starts with little.
    let shell = SHELL.replace("exec sh", "exec env -i PATH=\"$PATH\" sh");
    std::fs::write(cluster.0.path().join("shell"), shell).unwrap();
    let file = cluster.file();
    let script = "echo $A-$B-$C-$SOFTHCA_CLOCK-${GDSYNC_RSH-none}-$(pwd)";
    let run = |named: &[&str]| {
        let before = ["run", "-n", "3", "--hosts", &file];
        let mut command = gdsync(&[&before[..], named, &["--", "sh", "-c", script]].concat());
        command.env("GDSYNC_RSH", cluster.0.path().join("shell")).env("A", "of here").env("C", "not named");
        command.env("SOFTHCA_CLOCK", "2").env("GDSYNC_ROOT", "x:1").current_dir("/usr");
        command.output().unwrap()
    };
    let output = run(&["-x", "A", "-x", "B=of the=line"]);
    let lines = text(&output.stdout);
    let lines: BTreeSet<&str> = lines.lines().collect();
    let expected =
        (0..3).map(|rank| format!("[{rank}] of here-of the=line--2-none-/usr")).collect::<Vec<_>>();
    assert_eq!(lines, expected.iter().map(String::as_str).collect(), "{output:?}");
    for (named, told) in [
        (
            "NONE",
            "-x NONE: environment variable not found; set the variable, or give its value as `-x NONE=VALUE`",
        ),
        ("GDSYNC_KEY=a", "-x GDSYNC_KEY=a: gdsync run sets GDSYNC_RANK, "),
    ] {
        let output = run(&["-x", named]);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(told), "{said}");
    }
}

#[test]
fn a_bad_file_is_told_with_its_line() {
    let cluster = Cluster::new("several-hosts-file", "# hosts\nnode7 slots=two\n", SHELL);
    let told = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(&output.stderr)
    };
    let said = told(&mut cluster.command("2", &["true"]));
    let expected = "hosts:2: slots is `two`, and must be a number from 1 to 65536, such as `node7 slots=4`\n";
    assert!(said.ends_with(expected), "{said}");
    std::fs::remove_file(Path::new(&cluster.file())).unwrap();
    let said = told(&mut cluster.command("2", &["true"]));
    assert!(said.contains("cannot be read: No such file") && said.contains(&cluster.file()), "{said}");
}
