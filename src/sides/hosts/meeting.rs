//! The TCP connection between the two sides, each of which must prove a key ([`gdsync_auth`]), and the way to it: an
//! address, or the two processes of a launcher's job, of which rank 0 is the server and rank 1 the client.

use crate::cli::Address;
use crate::failure::Failure;
use crate::interrupt::{self, NothingYet};
use gdsync_auth::{Exchange, ExchangeError, Key, Limits, Unproven};
use gdsync_notify::bootstrap::{Bootstrap, BootstrapError, Job, KEY_VARIABLES, Rendezvous};
use softhca::Speed;
use softhca::fabric::limit_silence;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The purpose that both sides prove the key for. It is the same for all measurements, which the sides compare later.
const PURPOSE: &[u8] = b"gdsync pingpong 1";
/// How long a client tries to reach a server that does not listen yet.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server may take to prove its key.
const PROOF: Duration = Duration::from_secs(10);
/// How long the other host may be silent; the same as between software cards.
const SILENCE: Duration = Duration::from_secs(10);
/// Polling interval for connections, and between attempts to connect.
const LOOK: Duration = Duration::from_millis(10);

/// Returns the key for an address at which the sides meet: that of the environment, or the user's own if only this host
/// reaches the address.
fn key_at(address: SocketAddr) -> Result<Key, Failure> {
    match KEY_VARIABLES.read(|name| std::env::var_os(name))? {
        Some(key) => Ok(key),
        None if address.ip().to_canonical().is_loopback() => Ok(Key::of_user()?),
        None => Err(BootstrapError::NoKey { address: address.to_string() }.into()),
    }
}

/// A connection on which both sides have proven the key.
pub(super) struct PeerConnection {
    pub(super) socket: TcpStream,
    pub(super) other: IpAddr,
    pub(super) is_same_host: bool,
}

impl PeerConnection {
    fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(None)?;
        socket.set_nodelay(true)?;
        limit_silence(&socket, Speed::from_environment().unwrap_or_default().of(SILENCE))?;
        let other = socket.peer_addr()?.ip().to_canonical();
        let own = socket.local_addr()?.ip().to_canonical();
        Ok(PeerConnection { socket, other, is_same_host: other == own || other.is_loopback() })
    }
}

pub(super) struct Listener {
    listener: TcpListener,
    key: Key,
    address: SocketAddr,
}

type Candidate = (TcpStream, Exchange);

impl Listener {
    /// Listens at an address of this host, or at all of them.
    pub(super) fn bind(address: Option<&Address>, port: u16) -> Result<Self, Failure> {
        let addresses: Vec<SocketAddr> = match address {
            Some(Address { host, .. }) => resolve(host, port)?,
            // The first includes IPv4; the second is for hosts without IPv6.
            None => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
        };
        let refused = |error: io::Error| {
            let at = address.map_or("all addresses", |address| address.host.as_str());
            format!(
                "the server cannot listen at port {port} of {at}: {error}; choose another by --listen or --port"
            )
        };
        let listener = TcpListener::bind(&addresses[..]).map_err(refused)?;
        let address = listener.local_addr()?;
        let key = key_at(address).map_err(|error| {
            format!("{error}; a server for this host alone needs none: --listen 127.0.0.1")
        })?;
        listener.set_nonblocking(true)?;
        Ok(Listener { listener, key, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the first client that proves the key. Without a deadline it waits forever.
    pub(super) fn accept(self, deadline: Option<Instant>) -> Result<PeerConnection, Failure> {
        let mut candidates: Unproven<IpAddr, Candidate> = Unproven::new(Limits::default());
        loop {
            candidates.expire(Instant::now());
            // Connections that have already ended are skipped; without a free file descriptor they stay queued.
            while let Ok((socket, from)) = self.listener.accept() {
                socket.set_nonblocking(true)?;
                let exchange = Exchange::accepting(&self.key, PURPOSE)?;
                // If too many connections wait for their proof, this one is closed, and its client tries again.
                let _ = candidates.admit(from.ip(), (socket, exchange), Instant::now());
            }
            let numbers: Vec<u64> = candidates.iter().map(|(number, _)| number).collect();
            for number in numbers {
                let Some((socket, exchange)) = candidates.get_mut(number) else { continue };
                match exchange.advance(socket) {
                    Ok(false) => {}
                    Ok(true) => {
                        if let Some((socket, _)) = candidates.take(number) {
                            return Ok(PeerConnection::new(socket)?);
                        }
                    }
                    // A stranger, or a client with another key, which reports that itself.
                    Err(_) => drop(candidates.take(number)),
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(format!("the client has not come to {}", self.address).into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Connects to the server, which may be starting at the same time.
pub(super) fn connect(host: &str, port: u16, command: &str) -> Result<PeerConnection, Failure> {
    let addresses = resolve(host, port)?;
    let name = Address { host: host.to_owned(), port: Some(port) };
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect_once(&addresses) {
            Ok(socket) => match prove(&socket)? {
                Ok(true) => return Ok(PeerConnection::new(socket)?),
                // A server with too many connections closes some.
                Err(ExchangeError::Closed) if Instant::now() < deadline => std::thread::sleep(LOOK),
                unproven => return Err(why_unproven(unproven, &name, command)),
            },
            Err(_) if interrupt::requested() => return Err(NothingYet.into()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < deadline => {
                std::thread::sleep(LOOK);
            }
            Err(error) => {
                return Err(format!(
                    "no server answers at {name}: {error}; start `gdsync {command} --server` there, or give its port by --port"
                )
                .into());
            }
        }
    }
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Failure> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| format!("{host} is no host that is known here: {error}"))?
        .collect();
    if addresses.is_empty() { Err(format!("{host} has no address").into()) } else { Ok(addresses) }
}

fn connect_once(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Proves the key to the server and verifies the server's proof. False if the server takes too long.
fn prove(mut socket: &TcpStream) -> Result<Result<bool, ExchangeError>, Failure> {
    let mut exchange = Exchange::connecting(&key_at(socket.peer_addr()?)?, PURPOSE)?;
    socket.set_read_timeout(Some(PROOF))?;
    Ok(exchange.advance(&mut socket))
}

fn why_unproven(outcome: Result<bool, ExchangeError>, name: &Address, command: &str) -> Failure {
    match outcome {
        Ok(_) => format!("the server at {name} does not answer within {PROOF:?}"),
        Err(ExchangeError::OtherKey) => format!(
            "the server at {name} has another key: give both sides the same {} or {}",
            KEY_VARIABLES.key, KEY_VARIABLES.file
        ),
        Err(ExchangeError::Stranger) => {
            format!("what answers at {name} is no `gdsync {command} --server` that this one can talk to")
        }
        Err(error) => format!("{name}: {error}"),
    }
    .into()
}

/// How long the other process may take to start.
const START: Duration = Duration::from_secs(30);
/// Variables that do not show that a launcher has started this process: torchrun's `RANK` is a common name, and Slurm
/// also sets its number of tasks for a job's script.
const NOT_OF_A_LAUNCHER: [&str; 2] = ["RANK", "SLURM_NTASKS"];

/// Returns the job, if a launcher has started two processes.
///
/// # Errors
/// It has, but the environment does not tell where they meet.
pub(super) fn job_of_two(get: impl Fn(&str) -> Option<OsString>) -> Result<Option<Job>, BootstrapError> {
    let get = |name: &str| get(name).filter(|_| !NOT_OF_A_LAUNCHER.contains(&name));
    // Reads the size only: whether the processes can meet does not matter yet.
    let counted = Job::from_lookup(|name| match name {
        "GDSYNC_ROOT" => Some("localhost:1".into()),
        _ if name.starts_with("GDSYNC_KEY") => None,
        _ => get(name),
    });
    match counted {
        Ok(job) if job.size() == 2 => Job::from_lookup(get).map(Some),
        _ => Ok(None),
    }
}

/// Connects a job's processes. Their bootstrap passes the address.
pub(super) fn meet_in_job(job: &Job, command: &str) -> Result<PeerConnection, Failure> {
    let mut bootstrap = Bootstrap::join(job, START)?;
    let host = match job.rendezvous() {
        Rendezvous::Root(root) => root.rsplit_once(':').map_or(root.as_str(), |(host, _)| host),
        _ => "127.0.0.1",
    };
    let host = host.trim_matches(['[', ']']);
    let address = Address { host: host.to_owned(), port: None };
    if job.rank() == 0 {
        let listener = Listener::bind(Some(&address), 0)?;
        bootstrap.all_gather(listener.address().port().to_string().as_bytes())?;
        return listener.accept(Some(Instant::now() + START));
    }
    let said = bootstrap.all_gather(&[])?;
    let port = said.first().and_then(|port| std::str::from_utf8(port).ok()?.parse().ok());
    connect(host, port.ok_or("rank 0 says no port")?, command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<u32>, String> {
        let get = |name: &str| variables.iter().find(|(one, _)| *one == name).map(|(_, value)| value.into());
        job_of_two(get).map(|job| job.map(|job| job.rank())).map_err(|error| error.to_string())
    }

    #[test]
    fn two_processes_of_a_launcher_are_a_job_and_nothing_else_is() {
        let open_mpi = |rank, size| {
            [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size), ("PMIX_NAMESPACE", "7")]
        };
        assert_eq!(of(&open_mpi("0", "2")), Ok(Some(0)));
        assert_eq!(of(&open_mpi("1", "2")), Ok(Some(1)));
        assert_eq!(
            [of(&open_mpi("0", "1")), of(&open_mpi("1", "3")), of(&[])],
            [Ok(None), Ok(None), Ok(None)]
        );
        let step = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_JOB_ID", "9"),
            ("SLURM_STEP_ID", "0"),
        ];
        assert_eq!(of(&step), Ok(Some(1)));
        assert_eq!(
            of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "9")]),
            Ok(None),
            "a script"
        );
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("GDSYNC_JOB", "j")]), Ok(None), "torchrun's");
    }

    #[test]
    fn two_processes_that_cannot_meet_are_an_error() {
        let apart = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ];
        assert!(of(&apart).unwrap_err().contains("set GDSYNC_ROOT to host:port"));
    }
}
