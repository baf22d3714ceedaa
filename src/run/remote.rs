//! The ranks of one host: `gdsync run-host`, which the remote shell starts there, and the messages between it and the
//! launcher, each a line of JSON. Lines that begin with a rank in brackets are output of that rank.

use super::output::{self, LastLines};
use super::ranks::{NotStarted, Ranks};
use super::reserved_port::ReservedPort;
use super::{Failed, wait};
use crate::failure::{AlreadySaid, Failure};
use crate::signals::{Held, send_to_group, send_to_self};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Lines, Stdin, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc;
use std::thread;

/// Messages of the launcher: first the job, then where its ranks meet.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    Job(Box<HostJob>),
    Start { root: SocketAddr },
    Signal(libc::c_int),
}

/// A host's part of the job. The key passes here, and not on a command line, which other users can read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostJob {
    pub(super) host: String,
    pub(super) ranks: Vec<Range<u32>>,
    pub(super) size: u32,
    pub(super) name: String,
    pub(super) key: String,
    pub(super) folder: OsString,
    pub(super) environment: Vec<(String, String)>,
    pub(super) program: Vec<OsString>,
}

/// Messages of the host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Its address, and a port that is free for rank 0.
    At(SocketAddr),
    /// The first rank here that has failed, and its wait status.
    Failed {
        rank: u32,
        status: i32,
    },
    Ended,
}

fn say(said: &Said) -> Result<(), Failure> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(said)?)?;
    Ok(output.flush()?)
}

/// `gdsync run-host`. When the connection to the launcher ends, all that it has started is killed.
pub(crate) fn run() -> Result<(), Failure> {
    let signals = Held::new()?;
    let mut orders = Orders(BufReader::new(io::stdin()).lines());
    let Order::Job(job) = orders.next()? else {
        return Err("the launcher has sent no job".into());
    };
    let folder = &job.folder;
    std::env::set_current_dir(folder)
        .map_err(|error| format!("the ranks' folder {}: {error}", folder.display()))?;
    let address = own_address(&job.host)?;
    let reserved = ReservedPort::at(address)?;
    say(&Said::At(reserved.at))?;
    let Order::Start { root } = orders.next()? else {
        // The launcher says why.
        return Err(AlreadySaid.into());
    };
    let (ended, all_ended) = mpsc::channel();
    let mut variables = vec![
        ("GDSYNC_SIZE", Some(job.size.to_string())),
        ("GDSYNC_JOB", Some(job.name.clone())),
        ("GDSYNC_ROOT", Some(root.to_string())),
        ("GDSYNC_KEY", Some(job.key.clone())),
        ("GDSYNC_KEY_FILE", None),
        ("SOFTHCA_KEY", Some(job.key.clone())),
        ("SOFTHCA_KEY_FILE", None),
    ];
    if address.is_ipv4() {
        variables.push(("SOFTHCA_LISTEN", Some(address.to_string())));
    }
    let environment = job.environment.iter();
    variables.extend(environment.map(|(name, value)| (name.as_str(), Some(value.clone()))));
    let ranks = job.ranks.iter().cloned().flatten();
    let failed = |rank, status| say(&Said::Failed { rank, status });
    match Ranks::start(&signals, &job.program, ranks, &variables, &ended, &LastLines::default())? {
        Ok(ranks) => {
            let group = ranks.group();
            thread::Builder::new().name("orders".to_owned()).spawn(move || pass_on(orders, group))?;
            let at_failure = |first: &Failed| {
                // Without a launcher that hears it, `pass_on` ends the process.
                let _ = first.rank.map(|rank| failed(rank, first.status.into_raw()));
            };
            wait(&signals, ranks, at_failure)?;
        }
        Err(NotStarted { rank, status }) => failed(rank, i32::from(status) << 8)?,
    }
    drop(ended);
    output::rest(&all_ended);
    say(&Said::Ended)
}

struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    fn next(&mut self) -> Result<Order, Failure> {
        let line = self.0.next().ok_or("the launcher has ended")??;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Passes signals on to this process, which handles them as its own, until the launcher has ended. The watcher of the
/// ranks kills them when this process ends.
fn pass_on(mut orders: Orders, group: u32) {
    while let Ok(order) = orders.next() {
        match order {
            Order::Signal(libc::SIGKILL) => send_to_group(group, libc::SIGKILL),
            Order::Signal(signal) => send_to_self(signal),
            Order::Job(_) | Order::Start { .. } => {}
        }
    }
    #[expect(clippy::exit, reason = "the main thread waits for ranks, which end by the end of the process")]
    std::process::exit(1);
}

/// Returns the address of this host that others reach: the one in the file of hosts, or the one that ssh has reached,
/// or that of the name.
fn own_address(host: &str) -> Result<IpAddr, Failure> {
    let name = host.rsplit('@').next().unwrap_or_default();
    let of_ssh = || {
        let connection = std::env::var("SSH_CONNECTION").ok()?;
        connection.split(' ').nth(2)?.parse().ok()
    };
    if let Some(address) = name.parse().ok().or_else(of_ssh) {
        return Ok(address);
    }
    let mut found: Vec<SocketAddr> = (name, 0)
        .to_socket_addrs()
        .map_err(|error| format!("the address of `{name}` is not known there: {error}"))?
        .collect();
    // Software cards have IPv4 addresses only.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().map(SocketAddr::ip).ok_or_else(|| format!("`{name}` has no address").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_host_is_the_one_that_is_named() {
        assert_eq!(own_address("root@127.0.0.3").unwrap(), IpAddr::from([127, 0, 0, 3]));
        assert!(
            own_address("no-such-host.invalid").unwrap_err().to_string().contains("`no-such-host.invalid`")
        );
    }
}
