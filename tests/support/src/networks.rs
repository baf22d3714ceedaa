//! Free ports, and two hosts on one machine: network namespaces connected by a cable.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Two network namespaces, each with an end of a cable. Dropping removes both. Needs root, and `ip` (iproute2).
pub struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// The address in each namespace.
    pub const ADDRESSES: [&str; 2] = ["10.83.77.1", "10.83.77.2"];

    /// Creates them.
    ///
    /// # Errors
    /// The missing permission or feature.
    pub fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["a", "b"].map(|side| format!("gdsync-{side}-{}-{number}", std::process::id()));
        let made = Namespaces { names };
        let [a, b] = &made.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["link", "add", "cable", "netns", a, "type", "veth", "peer", "name", "cable", "netns", b])?;
        for (name, address) in [a, b].into_iter().zip(Self::ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "cable"])?;
            for link in ["lo", "cable"] {
                ip(&["-n", name, "link", "set", link, "up"])?;
            }
        }
        Ok(made)
    }

    /// Returns their names, for `ip netns exec`.
    pub fn names(&self) -> &[String; 2] {
        &self.names
    }

    /// Waits until the second has received `more` further bytes.
    ///
    /// # Errors
    /// The system's, or a time-out after a minute.
    pub fn await_bytes(&self, more: u64) -> Result<(), String> {
        let received = || {
            let counter = "/sys/class/net/cable/statistics/rx_bytes";
            let said = ip(&["netns", "exec", &self.names[1], "cat", counter])?;
            said.trim().parse::<u64>().map_err(|error| format!("{counter} is {said}: {error}"))
        };
        let (wanted, deadline) = (received()? + more, Instant::now() + Duration::from_secs(60));
        while received()? < wanted {
            if Instant::now() > deadline {
                return Err(format!("{more} bytes were not received within a minute"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Cuts or repairs the cable, at the end of the second.
    ///
    /// # Errors
    /// The system's.
    pub fn set_cable(&self, is_whole: bool) -> Result<(), String> {
        ip(&["-n", &self.names[1], "link", "set", "cable", if is_whole { "up" } else { "down" }]).map(drop)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// Runs `ip`, and returns its output.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

/// Returns a TCP port that was just free, below Linux's ephemeral range (32768 to 60999): an outgoing connection
/// could take one of those before the server binds it. Software cards of tests take ports from 28000 on.
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let at = std::process::id().wrapping_mul(257).wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (at % 18_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
