//! The processes that a command has started.

use crate::command::gdsync;
use crate::on_system;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// The fields of `/proc/PID/stat` after the name, which is in parentheses: state, parent, ...
fn status(pid: &str) -> Vec<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = status.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// The processes that a process has started, once there are as many.
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

/// Waits until a process has sent so many packets, as it tells `gdsync top`. A card of the system's tells nothing:
/// there the time is all that there is.
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

/// Waits until a process has taken a signal that it was sent, and has a handler for.
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

/// SIGINT and SIGHUP as a terminal's shell leaves them: jobs in the background ignore the one, those under nohup the
/// other.
pub fn as_from_a_terminal(command: &mut Command) -> &mut Command {
    let default = || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the call changes what a signal does, and involves no handler.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec this only makes system calls.
    unsafe { command.pre_exec(default) }
}

/// Sends a signal to a process that the command under test has started, unless it has ended.
pub fn signal(pid: u32, signal: libc::c_int) {
    // SAFETY: no memory is involved.
    let sent = unsafe { libc::kill(pid as libc::pid_t, signal) };
    let error = std::io::Error::last_os_error();
    assert!(sent == 0 || error.raw_os_error() == Some(libc::ESRCH), "{error}");
}

/// Whether a process is there and has not ended.
pub fn is_running(pid: u32) -> bool {
    !matches!(status(&pid.to_string()).first().map(String::as_str), None | Some("Z" | "X"))
}

/// How a command has ended, and what it has said on stderr, which is piped. One that does not end within `limit` is
/// killed, and the test fails.
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

/// Starts the command in a process group of its own, with SIGINT as a terminal's shell leaves it.
pub fn start(arguments: &[&str]) -> Child {
    start_command(gdsync(arguments))
}

/// As [`start`], of a command that is made already.
pub fn start_command(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    as_from_a_terminal(&mut command).spawn().unwrap()
}

/// Interrupts a run and all its processes, as a terminal does.
pub fn interrupt(run: &Child) {
    // SAFETY: no memory is involved; the group is that of a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(-(run.id() as libc::pid_t), libc::SIGINT) }, 0);
}

/// More packets than the warm-up of [`interrupted`] takes: something has been measured.
pub const AT_WORK: u64 = 500;

/// Interrupts a run between two processes that has measured something.
pub fn interrupted(arguments: &[&str]) -> Output {
    interrupted_at_work(&[arguments, &["--warmup", "10"]].concat())
}

/// Interrupts a run that has sent [`AT_WORK`] packets.
pub fn interrupted_at_work(arguments: &[&str]) -> Output {
    let run = start(arguments);
    // Before it sends anything, it catches the signal.
    has_sent(run.id(), AT_WORK);
    interrupt(&run);
    run.wait_with_output().unwrap()
}
