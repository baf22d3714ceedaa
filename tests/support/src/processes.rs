//! Processes started by a command.

use crate::command::gdsync;
use crate::on_system;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Returns the fields of `/proc/PID/stat` after the name, which is in parentheses: state, parent, ...
fn status(pid: &str) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = status.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// Returns the children of a process, once there are `count`.
pub fn children_of(parent: u32, count: usize) -> Vec<u32> {
    let (deadline, parent) = (Instant::now() + Duration::from_secs(60), parent.to_string());
    loop {
        let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let mut children: Vec<u32> = names
            .filter(|pid| pid.parse::<u32>().is_ok() && status(pid).get(1) == Some(&parent))
            .filter_map(|pid| pid.parse().ok())
            .collect();
        if children.len() >= count {
            children.sort_unstable();
            return children;
        }
        assert!(Instant::now() < deadline, "{} of {count} processes were started", children.len());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has sent that many packets, according to `gdsync top`. A card of the system reports nothing:
/// then it waits for a fixed time.
pub fn has_sent(process: u32, packets: u64) {
    if on_system() {
        return std::thread::sleep(Duration::from_secs(2));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let sent = || {
        let all = gdsync_status::ask_all(Duration::from_millis(200)).unwrap();
        let own = all.into_iter().find(|one| one.pid == process)?;
        Some(own.status.ok()?.cards.iter().map(|card| card.sent.packets).sum::<u64>())
    };
    while sent().is_none_or(|sent| sent < packets) {
        assert!(Instant::now() < deadline, "process {process} has sent {:?} packets", sent());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process has handled a signal that was sent to it.
pub fn has_taken(process: u32, signal: libc::c_int) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let waits = || {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(pending.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
    };
    while waits() {
        assert!(Instant::now() < deadline, "process {process} does not take signal {signal}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Resets SIGINT and SIGHUP to a terminal's defaults: background jobs ignore the first, jobs under nohup the second.
pub fn as_from_a_terminal(command: &mut Command) -> &mut Command {
    let default = || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the call changes a signal's disposition, without a handler.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: makes only system calls between fork and exec.
    unsafe { command.pre_exec(default) }
}

/// Sends a signal to a process that the command under test has started, unless it has ended.
pub fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: no memory is involved.
    let sent = unsafe { libc::kill(pid as libc::pid_t, signal) };
    let error = std::io::Error::last_os_error();
    assert!(sent == 0 || error.raw_os_error() == Some(libc::ESRCH), "{error}");
}

/// Returns true if a process exists and has not ended.
pub fn is_running(pid: u32) -> bool {
    !matches!(status(&pid.to_string()).first().map(String::as_str), None | Some("Z" | "X"))
}

/// Waits for a command's end, and returns its status and its stderr, which is piped. Kills it and fails the test
/// after `limit`.
pub fn ends(mut child: Child, limit: Duration, what: &str) -> (ExitStatus, String) {
    let mut stderr = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).map(|_| said)
    });
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} hangs: {}", reader.join().unwrap().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    (child.wait().unwrap(), reader.join().unwrap().unwrap())
}

/// Starts the command in a separate process group, with SIGINT as in a terminal.
pub fn start(arguments: &[&str]) -> Child {
    start_command(gdsync(arguments))
}

/// Like [`start`], with a given command.
pub fn start_command(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    as_from_a_terminal(&mut command).spawn().unwrap()
}

/// Interrupts a run and all its processes, like a terminal.
pub fn interrupt(run: &Child) {
    // SAFETY: no memory is involved; the group is that of a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(-(run.id() as libc::pid_t), libc::SIGINT) }, 0);
}

/// More packets than the warm-up of [`interrupted`] sends: something has been measured.
pub const AT_WORK: u64 = 500;

/// Interrupts a run between two processes after it has measured something.
pub fn interrupted(arguments: &[&str]) -> Output {
    interrupted_at_work(&[arguments, &["--warmup", "10"]].concat())
}

/// Interrupts a run that has sent [`AT_WORK`] packets.
pub fn interrupted_at_work(arguments: &[&str]) -> Output {
    let run = start(arguments);
    // It catches the signal before it sends anything.
    has_sent(run.id(), AT_WORK);
    interrupt(&run);
    run.wait_with_output().unwrap()
}
