//! The meeting of a job's processes: the others connect to rank 0, which admits each rank once.

use super::error::BootstrapError;
use super::folder;
use super::frame::{Frame, FrameKind, HELLO_BYTES, MAX_ALL, MAX_PART, Stop};
use super::job::{Job, Rendezvous};
use super::link::{Link, LinkError, Socket, after, left, wait};
use gdsync_auth::{Exchange, Key, Limits, Unproven};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How much longer the others wait than rank 0, so that rank 0 names the late ranks.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Time between two attempts to reach rank 0, which may not listen yet.
const RETRY: Duration = Duration::from_millis(20);
const PURPOSE: &[u8] = b"the bootstrap of a job 1";
const REFUSAL: Duration = Duration::from_secs(1);

pub(super) enum Listener {
    Tcp {
        listener: TcpListener,
        key: Key,
    },
    Unix {
        listener: UnixListener,
        /// Removes the socket's name on drop.
        _name: folder::Name,
    },
}

impl Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp { listener, .. } => listener.as_fd(),
            Listener::Unix { listener, .. } => listener.as_fd(),
        }
    }

    /// Returns the next connection and its source host.
    fn accept(&self) -> io::Result<(Option<IpAddr>, Link)> {
        Ok(match self {
            Listener::Tcp { listener, key } => {
                let (socket, from) = listener.accept()?;
                let exchange = Exchange::accepting(key, PURPOSE)?;
                (Some(from.ip()), Link::with_exchange(tcp(socket)?, exchange, HELLO_BYTES))
            }
            Listener::Unix { listener, .. } => (None, Link::new(unix(listener.accept()?.0)?, HELLO_BYTES)),
        })
    }

    /// Limits of connections that have sent no hello.
    fn limits(&self) -> Limits {
        let limits = Limits::default();
        match self {
            Listener::Tcp { .. } => limits,
            // All come from this host and user.
            Listener::Unix { .. } => Limits { of_source: limits.most, ..limits },
        }
    }
}

fn tcp(socket: TcpStream) -> io::Result<Box<dyn Socket>> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    Ok(Box::new(socket))
}

pub(super) fn unix(socket: UnixStream) -> io::Result<Box<dyn Socket>> {
    socket.set_nonblocking(true)?;
    Ok(Box::new(socket))
}

/// Returns the key that processes prove to each other if rank 0 has the address `at`. The user's own key serves only on
/// this host, because others do not have it.
fn key_at(at: IpAddr, root: &str, job: &Job, base: &Path) -> Result<Key, BootstrapError> {
    match job.key() {
        Some(key) => Ok(key.clone()),
        None if at.is_loopback() => Ok(Key::of_user_in(base)?),
        None => Err(BootstrapError::NoKey { address: root.to_owned() }),
    }
}

pub(super) fn listen(job: &Job, base: &Path) -> Result<Listener, BootstrapError> {
    let refused = |address: String| move |source: io::Error| BootstrapError::Listen { address, source };
    match job.rendezvous() {
        Rendezvous::Root(root) => {
            let listener = TcpListener::bind(root).map_err(refused(root.clone()))?;
            let at = listener.local_addr().map_err(refused(root.clone()))?;
            let key = key_at(at.ip(), root, job, base)?;
            listener.set_nonblocking(true).map_err(refused(root.clone()))?;
            Ok(Listener::Tcp { listener, key })
        }
        Rendezvous::Local(_) => {
            let path = folder::socket_path(base, job.name_hash())?;
            let (listener, _name) = folder::listen(&path).map_err(refused(path.display().to_string()))?;
            listener.set_nonblocking(true).map_err(refused(path.display().to_string()))?;
            Ok(Listener::Unix { listener, _name })
        }
    }
}

/// Rank 0 admits all others until the deadline. Returns the links in rank order, from 1.
pub(super) fn gather(listener: Listener, job: &Job, timeout: Duration) -> Result<Vec<Link>, BootstrapError> {
    let deadline = after(timeout);
    let mut joined: Vec<Option<Link>> = (1..job.size()).map(|_| None).collect();
    let outcome = admit_all(&listener, job, &mut joined, deadline, timeout);
    if let Err(error) = outcome {
        let (stop, until) = (stop_of(&error), after(REFUSAL));
        joined.iter_mut().flatten().for_each(|link| send_stop(link, &stop, until));
        return Err(error);
    }
    let mut links: Vec<Link> = joined.into_iter().flatten().collect();
    let until = after(left(deadline).max(REFUSAL));
    let welcome = Frame { kind: FrameKind::Welcome, rank: 0, number: job.size(), payload: Vec::new() };
    for (rank, link) in (1..).zip(&mut links) {
        link.set_limit(MAX_PART);
        link.send(&welcome, until).map_err(|error| failed(rank, error, timeout))?;
    }
    Ok(links)
}

fn admit_all(
    listener: &Listener,
    job: &Job,
    joined: &mut [Option<Link>],
    deadline: Option<Instant>,
    timeout: Duration,
) -> Result<(), BootstrapError> {
    let mut pending: Unproven<Option<IpAddr>, Link> = Unproven::new(listener.limits());
    while joined.iter().any(Option::is_none) {
        pending.expire(Instant::now());
        let listening = std::iter::once((listener.fd(), libc::POLLIN));
        let here: Vec<usize> = (0..joined.len()).filter(|&i| joined[i].is_some()).collect();
        let numbers: Vec<u64> = pending.iter().map(|(number, _)| number).collect();
        let links = pending.iter().map(|(_, link)| link).chain(joined.iter().flatten());
        let files: Vec<_> = listening.chain(links.map(|link| (link.fd(), libc::POLLIN))).collect();
        let until = pending.next_end().into_iter().chain(deadline).min();
        let ready = wait(&files, until).map_err(|source| BootstrapError::Connection { rank: 0, source })?;
        // The deadline holds even if other connections keep arriving.
        if left(deadline).is_zero() {
            let ranks =
                (1..).zip(&*joined).filter(|(_, link)| link.is_none()).map(|(rank, _)| rank).collect();
            return Err(BootstrapError::Late { ranks, timeout });
        }
        let (of_pending, of_joined) = ready[1..].split_at(numbers.len());
        for (&i, _) in here.iter().zip(of_joined).filter(|(_, ready)| **ready) {
            joined[i].as_mut().map_or(Ok(()), |link| is_silent(link, i as u32 + 1, timeout))?;
        }
        for (number, _) in numbers.into_iter().zip(of_pending).filter(|(_, ready)| **ready) {
            let received = pending.get_mut(number).map_or(Ok(None), Link::try_receive);
            if matches!(received, Ok(None)) {
                continue;
            }
            match (pending.take(number), received) {
                (Some(link), Ok(Some(frame))) => admit(job, frame, link, joined)?,
                (_, received) => {
                    tracing::debug!(?received, "a connection that is not of this job was closed")
                }
            }
        }
        if ready[0] {
            match listener.accept() {
                Ok((source, link)) => {
                    if pending.admit(source, link, Instant::now()).is_err() {
                        tracing::debug!(?source, "a connection was closed: too many have sent no hello");
                    }
                }
                Err(error) => {
                    // The process has closed it, or no file descriptor is free and the connection stays queued.
                    tracing::debug!(%error, "a connection was not taken");
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
    Ok(())
}

/// Checks a joined rank's readable link. The rank must be silent until all have joined, so it has ended or is at fault.
fn is_silent(link: &mut Link, rank: u32, timeout: Duration) -> Result<(), BootstrapError> {
    match link.try_receive() {
        Ok(None) => Ok(()),
        Ok(Some(_)) => Err(protocol(rank, "it sent a message before all ranks had joined")),
        Err(error) => Err(failed(rank, error, timeout)),
    }
}

/// Admits a process that has sent its hello, or turns it away.
fn admit(job: &Job, frame: Frame, mut link: Link, joined: &mut [Option<Link>]) -> Result<(), BootstrapError> {
    let Frame { kind, rank, number: given, payload } = frame;
    let mut turn_away = |reason: &str| {
        tracing::warn!(rank, reason, "a process was turned away");
        send_stop(&mut link, &Stop::Refused(reason.to_owned()), after(REFUSAL));
        Ok(())
    };
    if kind != FrameKind::Hello || payload != job.name_hash().to_be_bytes() {
        return turn_away("the process is of another job: check GDSYNC_JOB and GDSYNC_ROOT");
    }
    let size = job.size();
    if given != size {
        let error = BootstrapError::OtherSize { rank, given, size };
        send_stop(&mut link, &stop_of(&error), after(REFUSAL));
        return Err(error);
    }
    match rank.checked_sub(1).and_then(|i| joined.get_mut(i as usize)) {
        Some(place @ None) => {
            *place = Some(link);
            Ok(())
        }
        Some(Some(_)) => {
            turn_away(&format!("rank {rank} has already joined: give each process another rank"))
        }
        None => turn_away(&format!("rank {rank} is not between 1 and {}", size - 1)),
    }
}

/// Connects another rank to rank 0, and waits until all have joined.
pub(super) fn reach(job: &Job, base: &Path, timeout: Duration) -> Result<Link, BootstrapError> {
    let (deadline, longer) = (after(timeout), after(timeout.saturating_add(GRACE)));
    let place = match job.rendezvous() {
        Rendezvous::Local(_) => folder::socket_path(base, job.name_hash())?,
        Rendezvous::Root(root) => root.into(),
    };
    let address = place.display().to_string();
    let try_once = || match job.rendezvous() {
        Rendezvous::Root(root) => {
            let (at, socket) = connect_tcp(root, deadline).map_err(Attempt::Failed)?;
            let key = key_at(at, root, job, base).map_err(Attempt::Hopeless)?;
            let exchange = Exchange::connecting(&key, PURPOSE).map_err(Attempt::Failed)?;
            Ok(Link::with_exchange(socket, exchange, MAX_ALL))
        }
        Rendezvous::Local(_) => {
            let socket = UnixStream::connect(&place).and_then(unix).map_err(Attempt::Failed)?;
            Ok(Link::new(socket, MAX_ALL))
        }
    };
    let hello = Frame {
        kind: FrameKind::Hello,
        rank: job.rank(),
        number: job.size(),
        payload: job.name_hash().to_be_bytes().to_vec(),
    };
    loop {
        let source = match try_once() {
            Ok(mut link) => {
                // A listener that closes after the connection was an earlier job's or had no room.
                match link.send(&hello, deadline).and_then(|()| link.receive(longer)) {
                    Ok(Frame { kind: FrameKind::Welcome, number, .. }) if number == job.size() => {
                        return Ok(link);
                    }
                    Ok(frame) => return Err(stopped(frame, timeout)),
                    Err(LinkError::OtherKey) => return Err(BootstrapError::OtherKey { address }),
                    Err(LinkError::Closed) if !left(deadline).is_zero() => {
                        io::Error::from(io::ErrorKind::ConnectionReset)
                    }
                    Err(error) => return Err(failed(0, error, timeout)),
                }
            }
            Err(Attempt::Hopeless(error)) => return Err(error),
            Err(Attempt::Failed(error)) => error,
        };
        if left(deadline) <= RETRY {
            return Err(BootstrapError::Connect { address, timeout, source });
        }
        std::thread::sleep(RETRY);
    }
}

enum Attempt {
    /// A later attempt may succeed.
    Failed(io::Error),
    Hopeless(BootstrapError),
}

/// Connects to rank 0, and returns its address.
fn connect_tcp(root: &str, deadline: Option<Instant>) -> io::Result<(IpAddr, Box<dyn Socket>)> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in root.to_socket_addrs()? {
        let left = left(deadline).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => return Ok((address.ip(), tcp(socket)?)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(super) fn stop_of(error: &BootstrapError) -> Stop {
    match error {
        BootstrapError::Gone { ranks } => Stop::Gone(ranks.clone()),
        BootstrapError::Late { ranks, .. } => Stop::Late(ranks.clone()),
        other => Stop::Refused(other.to_string()),
    }
}

/// Sends a stop if possible: the other process may have ended.
pub(super) fn send_stop(link: &mut Link, stop: &Stop, deadline: Option<Instant>) {
    let frame = Frame { kind: FrameKind::Stop, rank: 0, number: 0, payload: stop.encode() };
    if let Err(error) = link.send(&frame, deadline) {
        tracing::debug!(?error, "a rank did not get the message that the job stops");
    }
}

/// Returns the error for an unexpected message of rank 0.
pub(super) fn stopped(frame: Frame, timeout: Duration) -> BootstrapError {
    if frame.kind != FrameKind::Stop {
        return protocol(0, &format!("a frame {:?} of number {} was not expected", frame.kind, frame.number));
    }
    match Stop::decode(&frame.payload) {
        Ok(Stop::Gone(ranks)) => BootstrapError::Gone { ranks },
        Ok(Stop::Late(ranks)) => BootstrapError::Late { ranks, timeout },
        Ok(Stop::Refused(reason)) => BootstrapError::Refused { reason },
        Err(malformed) => protocol(0, &malformed.0),
    }
}

pub(super) fn protocol(rank: u32, reason: &str) -> BootstrapError {
    BootstrapError::Protocol { rank, reason: reason.to_owned() }
}

pub(super) fn failed(rank: u32, error: LinkError, timeout: Duration) -> BootstrapError {
    match error {
        LinkError::Closed => BootstrapError::Gone { ranks: vec![rank] },
        LinkError::TimedOut => BootstrapError::Late { ranks: vec![rank], timeout },
        LinkError::Malformed(malformed) => protocol(rank, &malformed.0),
        LinkError::OtherKey => protocol(rank, "it has another key"),
        LinkError::Io(source) => BootstrapError::Connection { rank, source },
    }
}
