//! `gdsync run --hosts` over ssh: an sshd with keys made for the test listens at two addresses of loopback, the hosts.

use crate::run::{LONG, have_ended, play_ring};
use crate::run_hosts::started;
use gdsync_test_support::command::{gdsync, text};
use gdsync_test_support::folder::Folder;
use gdsync_test_support::process::{ROLE, arguments, role};
use gdsync_test_support::processes::{children_of, ends, signal};
use gdsync_test_support::programs::on_path;
use gdsync_test_support::skipped_unless_required;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const REQUIRED: &str = "GDSYNC_REQUIRE_SSH";

/// An sshd, and a command `ssh` that knows its hosts `node1` and `node2`, the stranger `node3`, and `node4`, where nothing listens.
struct Cluster {
    folder: Folder,
    server: Child,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // An sshd that has ended already has made the test fail.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn make_key(folder: &Path, name: &str) -> String {
    let mut command = Command::new("ssh-keygen");
    let made = command.args(["-q", "-t", "ed25519", "-N", "", "-f", name]).current_dir(folder).status();
    assert!(made.unwrap().success());
    std::fs::read_to_string(folder.join(name).with_extension("pub")).unwrap()
}

impl Cluster {
    /// Starts it, on its own network of loopback addresses.
    fn new(test: &str, network: u8) -> Option<Self> {
        let (Some(sshd), Some(ssh), Some(_)) = (on_path("sshd"), on_path("ssh"), on_path("ssh-keygen"))
        else {
            skipped_unless_required(REQUIRED, test, "openssh-server and openssh-client are not installed");
            return None;
        };
        let folder = Folder::new(&format!("ssh-{network}"));
        let path = folder.path();
        let [one, two] = [1, 2].map(|host| format!("127.84.{network}.{host}"));
        let port = TcpListener::bind((one.as_str(), 0)).unwrap().local_addr().unwrap().port();
        let write = |name: &str, content: String| std::fs::write(path.join(name), content).unwrap();
        let at = |name: &str| path.join(name).display().to_string();
        let (host_key, user_key) = (make_key(path, "host"), make_key(path, "user"));
        write("authorized", user_key);
        write("known", format!("[{one}]:{port} {host_key}[{two}]:{port} {host_key}"));
        // Hosts say more than the program's output.
        write("banner", "a notice to all users\n".to_owned());
        let server = [
            format!("Port {port}\nListenAddress {one}\nListenAddress {two}\nHostKey {}", at("host")),
            format!("AuthorizedKeysFile {}\nBanner {}", at("authorized"), at("banner")),
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n".to_owned(),
        ];
        write("server", server.join("\n"));
        let client = [
            format!(
                "Host node4\n  Port 1\nHost *\n  Port {port}\n  IdentityFile {}\n  IdentitiesOnly yes",
                at("user")
            ),
            format!(
                "  GlobalKnownHostsFile none\nHost node3\n  UserKnownHostsFile none\nHost *\n  UserKnownHostsFile {}",
                at("known")
            ),
            format!("Host node1\n  HostName {one}\nHost node*\n  HostName {two}\n"),
        ];
        write("client", client.join("\n"));
        write("ssh", format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", ssh.display(), at("client")));
        std::fs::set_permissions(path.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        // As the system's service does: sshd demands this folder of root.
        let _ = std::fs::DirBuilder::new().mode(0o755).create("/run/sshd");
        let mut command = Command::new(sshd);
        let mut server =
            command.args(["-D", "-e", "-f", &at("server")]).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(server.stderr.take().unwrap());
        let mut said = String::new();
        while said.matches("Server listening on").count() < 2 && log.read_line(&mut said).unwrap() > 0 {}
        // It goes on writing there.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let cluster = Cluster { folder, server };
        let ssh = cluster.folder.path().join("ssh");
        let output = Command::new(ssh).args(["-o", "BatchMode=yes", "node1", "true"]).output().unwrap();
        if output.status.success() {
            return Some(cluster);
        }
        let why = format!("ssh cannot log in to an sshd on this host: {said}{}", text(&output.stderr));
        skipped_unless_required(REQUIRED, test, &why.replace('\n', " "));
        None
    }

    /// Returns the launcher of one rank on each of these hosts, by the command that it takes for ssh on its own.
    fn command(&self, hosts: [&str; 2], options: &[&str], program: &[&str]) -> Command {
        let file = self.folder.path().join("hosts");
        std::fs::write(&file, hosts.join("\n")).unwrap();
        let file = file.display().to_string();
        let mut command =
            gdsync(&[&["run", "-n", "2", "--hosts", &file], options, &["--"], program].concat());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.path().display())).env_remove("GDSYNC_RSH");
        command
    }

    fn script(&self, script: &str) -> Command {
        self.command(["node1", "node2"], &[], &["sh", "-c", script])
    }
}

#[test]
fn ranks_of_two_hosts_are_a_team_by_ssh() {
    let test = "ranks_of_two_hosts_are_a_team_by_ssh";
    if role().is_some() {
        println!("\nnotified by rank {} at {}", play_ring(), std::env::var("SOFTHCA_LISTEN").unwrap());
        println!("{} in {}", std::env::var("TEXT").unwrap(), std::env::current_dir().unwrap().display());
        return;
    }
    let Some(cluster) = Cluster::new(test, 1) else { return };
    let folder = cluster.folder.path().join("it's a \"folder\" of $HOME");
    std::fs::create_dir(&folder).unwrap();
    let own = std::env::current_exe().unwrap().display().to_string();
    let words = arguments(module_path!(), test);
    let words: Vec<&str> = std::iter::once(own.as_str()).chain(words.iter().map(String::as_str)).collect();
    let (role, value) = (format!("{ROLE}=rank"), "it's \"two\"  words\\ of `$PATH`; exit *");
    let options = ["-x", &role, "-x", &format!("TEXT={value}")];
    let output = cluster.command(["node1", "node2"], &options, &words).current_dir(&folder).output().unwrap();
    let (said, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{told}");
    for rank in 0..2 {
        let one = format!("[{rank}] notified by rank {} at 127.84.1.{}\n", 1 - rank, rank + 1);
        let other = format!("[{rank}] {value} in {}\n", folder.display());
        assert!(said.contains(&one) && said.contains(&other), "{one}{other}: {said}");
        let notice = format!("node{}: a notice to all users\n", rank + 1);
        assert!(told.contains(&notice), "{told}");
    }
}

#[test]
fn ranks_that_ssh_has_started_end_with_the_first_and_with_the_launcher() {
    let test = "ranks_that_ssh_has_started_end_with_the_first_and_with_the_launcher";
    let Some(cluster) = Cluster::new(test, 2) else { return };
    let endless = "echo $$; exec sleep 1000";
    for (number, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let (launcher, _output, pids) = started(cluster.script(endless), 2);
        signal(launcher.id(), number);
        let (ended, said) = ends(launcher, LONG, "the launcher");
        let told = format!("gdsync: signal {number} was passed on to all ranks; rank ");
        assert!(ended.code() == Some(status) && said.contains(&told), "{said}");
        have_ended(&pids);
    }
    let first = "echo $$; : > $GDSYNC_RANK; [ $GDSYNC_RANK = 1 ] || exec sleep 1000; \
                 until [ -f 0 ]; do sleep 0.01; done; echo no memory >&2; exit 9";
    let mut command = cluster.script(first);
    command.current_dir(cluster.folder.path());
    let (launcher, _output, pids) = started(command, 2);
    let (ended, said) = ends(launcher, LONG, "the launcher");
    let told = "gdsync: rank 1 on node2 was the first to fail (exit status: 9); its last line of standard error: no memory";
    assert_eq!((ended.code(), said.lines().last()), (Some(9), Some(told)), "{said}");
    have_ended(&pids);

    let stubborn = "trap '' TERM HUP INT; echo $$; sleep 1000; sleep 1000";
    let (mut launcher, _output, pids) = started(cluster.script(stubborn), 2);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    have_ended(&pids);
}

#[test]
fn a_connection_that_is_lost_ends_all_ranks_and_what_they_wrote_before_is_shown() {
    let test = "a_connection_that_is_lost_ends_all_ranks_and_what_they_wrote_before_is_shown";
    let Some(cluster) = Cluster::new(test, 3) else { return };
    let script = "echo $$; until [ -f go ]; do sleep 0.01; done; i=0; \
                  while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; echo all; exec sleep 1000";
    let mut command = cluster.script(script);
    command.current_dir(cluster.folder.path());
    let (launcher, mut output, pids) = started(command, 2);
    std::fs::write(cluster.folder.path().join("go"), "").unwrap();
    let mut lines = String::new();
    while lines.matches("] all\n").count() < 2 {
        assert_ne!(output.read_line(&mut lines).unwrap(), 0, "{lines}");
    }
    // The processes of the sshd's connections, which have no others.
    let connections = children_of(cluster.server.id(), 2);
    signal(connections[0], libc::SIGKILL);
    let (ended, said) = ends(launcher, LONG, "the launcher");
    output.read_to_string(&mut lines).unwrap();
    assert_eq!((ended.code(), lines.matches("] line ").count()), (Some(255), 1000), "{said}");
    assert!(said.contains("closed by remote host.\ngdsync: host node"), "{said}");
    have_ended(&pids);
}

#[test]
fn hosts_that_ssh_does_not_reach_or_know_are_told_with_a_remedy() {
    let test = "hosts_that_ssh_does_not_reach_or_know_are_told_with_a_remedy";
    let Some(cluster) = Cluster::new(test, 4) else { return };
    for (host, why) in [("node3", "Host key verification failed."), ("node4", "port 1: Connection refused")] {
        let output = cluster.command(["node1", host], &[], &["sh", "-c", "echo began"]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(255), ""), "{said}");
        let told = format!(
            "gdsync: host {host} was the first to fail (exit status: 255); its last line of standard error: "
        );
        let remedy = format!(
            "gdsync: the ranks need that `ssh -x -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=5 {host} true` succeeds"
        );
        let [.., failed, need] = Vec::from_iter(said.lines())[..] else { panic!("{said}") };
        assert!(failed.starts_with(&told) && failed.ends_with(why) && need == remedy, "{said}");
    }
}
