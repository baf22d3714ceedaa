//! The bootstrap of a job: its processes find each other by their launcher's environment, over TCP or a local socket.
//!
//! Programs that run under `gdsync run`, `mpirun` or `srun`, or with `GDSYNC_RANK` and `GDSYNC_SIZE` set, but without
//! MPI, must exchange a few bytes before their cards can carry the rest: endpoints of queue pairs, addresses and keys of
//! memory. This module exchanges such small strings among all ranks ([`Bootstrap::all_gather`], [`Bootstrap::all_to_all`]), and
//! has barriers. All messages pass through rank 0, so it is not meant for data.
//!
//! ```no_run
//! use gdsync_notify::bootstrap::{Bootstrap, Job};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = Job::from_env()?;
//! let mut bootstrap = Bootstrap::join(&job, Duration::from_secs(30))?;
//! let names = bootstrap.all_gather(format!("rank {}", job.rank()).as_bytes())?;
//! assert_eq!(names[0], b"rank 0");
//! bootstrap.barrier()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Trust
//! On one host the processes meet at a socket that only their user can reach. At [`Rendezvous::Root`] each connection
//! proves a key before any of its messages count ([`gdsync_auth`] documents the guarantees): the key of
//! [`KEY_VARIABLES`], or, if only this host reaches the address, the user's own. A process without the key cannot take
//! a rank's place or end the job, and silent connections keep no rank from joining. Later messages are parsed strictly,
//! but neither authenticated nor encrypted: between hosts they are as safe as the network.

mod error;
mod folder;
mod frame;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod link;
mod rendezvous;

pub use error::BootstrapError;
pub use gdsync_auth::{Key, KeyError};
pub use job::{Job, KEY_VARIABLES, Rendezvous};

use frame::{Frame, FrameKind, MAX_ALL, MAX_PART, decode_list, encode_list};
use gdsync_auth::base_folder;
use link::{Link, after, left, wait};
use rendezvous::{GRACE, failed, protocol, send_stop, stop_of, stopped};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// A process's connections to the others of its job, for small exchanges. The [module](self) has an example.
///
/// Every rank calls the same exchanges in the same order. After an error the ranks may disagree on the next exchange,
/// so all later ones fail with [`BootstrapError::Broken`].
pub struct Bootstrap {
    rank: u32,
    size: u32,
    role: Role,
    number: u32,
    timeout: Duration,
    broken: bool,
}

enum Role {
    /// Rank 0, with its connections to the others in rank order.
    Root(Vec<Link>),
    Member(Box<Link>),
    /// Any rank of processes that exchange by their own means.
    Program(AllGather),
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bootstrap(rank {} of {}, after {} exchanges)", self.rank, self.size, self.number)
    }
}

impl Bootstrap {
    /// Meets the other processes of the job: returns when all have joined. `timeout` limits that, and each later exchange.
    ///
    /// # Errors
    /// [`BootstrapError::Late`] or [`BootstrapError::Gone`] on all ranks that joined if another does not join, or ends
    /// meanwhile; another [`BootstrapError`] if this rank cannot reach the meeting point.
    pub fn join(job: &Job, timeout: Duration) -> Result<Self, BootstrapError> {
        Self::join_in(job, &base_folder(), timeout)
    }

    fn join_in(job: &Job, base: &Path, timeout: Duration) -> Result<Self, BootstrapError> {
        let role = match (job.rank(), job.size()) {
            (_, 1) => Role::Root(Vec::new()),
            (0, _) => Role::Root(rendezvous::gather(rendezvous::listen(job, base)?, job, timeout)?),
            _ => Role::Member(Box::new(rendezvous::reach(job, base, timeout)?)),
        };
        Ok(Self::with(job.rank(), job.size(), role, timeout))
    }

    fn with(rank: u32, size: u32, role: Role, timeout: Duration) -> Self {
        Bootstrap { rank, size, role, number: 0, timeout, broken: false }
    }

    /// Creates a job whose ranks are threads of this process, and returns a value for each, in rank order.
    ///
    /// # Errors
    /// [`BootstrapError::Rank`] for a size of 0 or above 16384, [`BootstrapError::Connection`] if the system has no
    /// sockets left.
    pub fn threads(size: u32, timeout: Duration) -> Result<Vec<Self>, BootstrapError> {
        // Checks the size.
        Job::new(0, size, Rendezvous::Local(String::new()))?;
        let (mut links, mut members) = (Vec::new(), Vec::new());
        for rank in 1..size {
            let pair = || {
                let (one, other) = std::os::unix::net::UnixStream::pair()?;
                Ok((rendezvous::unix(one)?, rendezvous::unix(other)?))
            };
            let (one, other) = pair().map_err(|source| BootstrapError::Connection { rank, source })?;
            links.push(Link::new(one, MAX_PART));
            members.push(Self::with(rank, size, Role::Member(Box::new(Link::new(other, MAX_ALL))), timeout));
        }
        members.insert(0, Self::with(0, size, Role::Root(links), timeout));
        Ok(members)
    }

    /// Creates a rank of processes that exchange bytes by their own means, such as MPI, without a launcher or sockets. All
    /// ranks call `all_gather` alike, on the thread that uses this value. It receives a block, of the same length on every
    /// rank, and fills the second slice with the blocks of all ranks in rank order, as `MPI_Allgather` of bytes does. Its
    /// `Err` is the reason of a failure. It determines how long it waits; a [`Team`](crate::Team) uses `timeout`.
    ///
    /// ```
    /// use gdsync_notify::bootstrap::{Bootstrap, BootstrapError};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), BootstrapError> {
    /// // A job of one process needs no messages.
    /// let alone = |own: &[u8], all: &mut [u8]| Ok::<_, String>(all.copy_from_slice(own));
    /// let mut bootstrap = Bootstrap::with_all_gather(0, 1, Duration::from_secs(30), alone)?;
    /// assert_eq!(bootstrap.all_gather(b"hello")?, [b"hello"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BootstrapError::Rank`] for a rank that is not below the size, or a size above 16384. Exchanges report failures
    /// of `all_gather` as [`BootstrapError::Program`].
    pub fn with_all_gather(
        rank: u32,
        size: u32,
        timeout: Duration,
        all_gather: impl FnMut(&[u8], &mut [u8]) -> Result<(), String> + Send + 'static,
    ) -> Result<Self, BootstrapError> {
        // Checks both.
        Job::new(rank, size, Rendezvous::Local(String::new()))?;
        Ok(Self::with(rank, size, Role::Program(Box::new(all_gather)), timeout))
    }

    /// Returns the rank of this process, from 0 on.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns the number of processes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns how long an exchange waits for the other ranks. Rank 0's value decides.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends bytes to all ranks, and returns those of all in rank order. A rank may send 1 MiB, all ranks together 256 MiB.
    ///
    /// # Errors
    /// [`BootstrapError::TooLong`] for more bytes; [`BootstrapError::Gone`] and [`BootstrapError::Late`], with the
    /// missing ranks; [`BootstrapError::Broken`] after an earlier error.
    pub fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.exchange(FrameKind::Part, bytes)
    }

    /// Sends to each rank its bytes, in rank order, and returns those from each rank. A rank may send 1 MiB to all
    /// ranks together, which includes 4 bytes for each of them.
    ///
    /// ```
    /// use gdsync_notify::bootstrap::{Bootstrap, BootstrapError};
    /// use std::time::Duration;
    ///
    /// /// Each rank says to each other which two they are.
    /// fn rank(mut bootstrap: Bootstrap) -> Result<(), BootstrapError> {
    ///     let (own, size) = (bootstrap.rank(), bootstrap.size());
    ///     let parts: Vec<_> = (0..size).map(|to| format!("{own} to {to}").into_bytes()).collect();
    ///     let heard = bootstrap.all_to_all(&parts)?;
    ///     assert_eq!(heard[2], format!("2 to {own}").as_bytes());
    ///     Ok(())
    /// }
    ///
    /// # fn main() -> Result<(), BootstrapError> {
    /// std::thread::scope(|scope| {
    ///     let ranks = Bootstrap::threads(3, Duration::from_secs(30))?;
    ///     let threads: Vec<_> = ranks.into_iter().map(|one| scope.spawn(|| rank(one))).collect();
    ///     threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::all_gather`]; [`BootstrapError::Parts`] for another number of parts, and then nothing was sent.
    pub fn all_to_all(&mut self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if parts.len() != self.size as usize {
            return Err(BootstrapError::Parts { given: parts.len(), size: self.size });
        }
        self.exchange(FrameKind::Parts, &encode_list(parts))
    }

    fn exchange(&mut self, kind: FrameKind, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if self.broken {
            return Err(BootstrapError::Broken);
        }
        let size = self.size as usize;
        let all = if kind == FrameKind::Part { bytes.len().saturating_mul(size) } else { bytes.len() };
        for (what, given, limit) in [("one rank", bytes.len(), MAX_PART), ("all ranks", all, MAX_ALL)] {
            if given > limit {
                return Err(BootstrapError::TooLong { what, given, limit });
            }
        }
        let (rank, exchange) = (self.rank, (kind, self.number));
        let result = match &mut self.role {
            Role::Root(links) => gather(links, exchange, bytes, self.timeout),
            Role::Program(gather) => gather_by_program(gather, self.size, exchange, bytes)
                .and_then(|parts| Ok(Answers::new(kind, parts)?.of(rank).to_vec())),
            Role::Member(link) => contribute(link, (rank, self.size), exchange, bytes, self.timeout),
        };
        self.number = self.number.wrapping_add(1);
        self.broken = result.is_err();
        result
    }

    /// Returns when all ranks have called this.
    ///
    /// # Errors
    /// As [`Self::all_gather`].
    pub fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.all_gather(&[]).map(drop)
    }
}

/// The results of an exchange.
enum Answers {
    /// All contributions for all ranks.
    Same(Vec<Vec<u8>>),
    /// Each rank's own list.
    Each(Vec<Vec<Vec<u8>>>),
}

impl Answers {
    /// # Errors
    /// A rank's contribution is malformed.
    fn new(kind: FrameKind, parts: Vec<Vec<u8>>) -> Result<Self, BootstrapError> {
        if kind == FrameKind::Part {
            return Ok(Answers::Same(parts));
        }
        let size = parts.len();
        let mut all = vec![Vec::with_capacity(size); size];
        for (rank, bytes) in (0..).zip(&parts) {
            let list = decode_list(bytes, size as u32).map_err(|malformed| protocol(rank, &malformed.0))?;
            all.iter_mut().zip(list).for_each(|(of, part)| of.push(part));
        }
        Ok(Answers::Each(all))
    }

    fn of(&self, rank: u32) -> &[Vec<u8>] {
        match self {
            Answers::Same(parts) => parts,
            Answers::Each(lists) => &lists[rank as usize],
        }
    }
}

/// Rank 0's side of an exchange.
fn gather(
    links: &mut [Link],
    (kind, number): (FrameKind, u32),
    bytes: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let outcome = gather_parts(links, (kind, number), bytes, timeout).and_then(|parts| {
        let answers = Answers::new(kind, parts)?;
        let deadline = after(timeout);
        for (rank, link) in (1..).zip(&mut *links) {
            let payload = encode_list(answers.of(rank));
            let given = payload.len();
            if given > MAX_ALL {
                return Err(BootstrapError::TooLong { what: "all ranks", given, limit: MAX_ALL });
            }
            let frame = Frame { kind: FrameKind::All, rank: 0, number, payload };
            link.send(&frame, deadline).map_err(|error| failed(rank, error, timeout))?;
        }
        Ok(answers.of(0).to_vec())
    });
    outcome.inspect_err(|error| {
        let (stop, deadline) = (stop_of(error), after(GRACE / 2));
        links.iter_mut().for_each(|link| send_stop(link, &stop, deadline));
    })
}

fn gather_parts(
    links: &mut [Link],
    (kind, number): (FrameKind, u32),
    bytes: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let deadline = after(timeout);
    let mut parts: Vec<Option<Vec<u8>>> = vec![None; links.len()];
    // Links that may be readable.
    let mut ready: Vec<usize> = (0..links.len()).collect();
    loop {
        for &i in &ready {
            let rank = i as u32 + 1;
            match links[i].try_receive().map_err(|error| failed(rank, error, timeout))? {
                Some(frame) if frame.kind == kind && frame.rank == rank && frame.number == number => {
                    parts[i] = Some(frame.payload);
                }
                Some(frame) => {
                    let Frame { kind: other, number: given, .. } = frame;
                    return Err(protocol(rank, &format!("{other:?} {given} instead of {kind:?} {number}")));
                }
                None => {}
            }
        }
        let missing: Vec<usize> = (0..links.len()).filter(|&i| parts[i].is_none()).collect();
        if missing.is_empty() {
            return Ok(std::iter::once(bytes.to_vec()).chain(parts.into_iter().flatten()).collect());
        }
        let files: Vec<_> = missing.iter().map(|&i| (links[i].fd(), libc::POLLIN)).collect();
        let readable =
            wait(&files, deadline).map_err(|source| BootstrapError::Connection { rank: 0, source })?;
        if left(deadline).is_zero() || !readable.contains(&true) {
            let ranks = missing.iter().map(|&i| i as u32 + 1).collect();
            return Err(BootstrapError::Late { ranks, timeout });
        }
        ready = missing.into_iter().zip(readable).filter(|(_, is)| *is).map(|(i, _)| i).collect();
    }
}

/// Any other rank's side of an exchange.
fn contribute(
    link: &mut Link,
    (rank, size): (u32, u32),
    (kind, number): (FrameKind, u32),
    bytes: &[u8],
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let deadline = after(timeout.saturating_add(GRACE));
    let part = Frame { kind, rank, number, payload: bytes.to_vec() };
    // Rank 0 may have stopped the job and ended: its message is then still in the socket.
    let sent = link.send(&part, deadline);
    match (link.receive(deadline), sent) {
        (Ok(frame), _) if frame.kind == FrameKind::All && frame.number == number => {
            decode_list(&frame.payload, size).map_err(|malformed| protocol(0, &malformed.0))
        }
        (Ok(frame), _) => Err(stopped(frame, timeout)),
        (Err(_), Err(error)) | (Err(error), Ok(())) => Err(failed(0, error, timeout)),
    }
}

/// The program's all-gather of equal blocks.
type AllGather = Box<dyn FnMut(&[u8], &mut [u8]) -> Result<(), String> + Send>;

/// Size of the header of a contribution: the exchange's kind and number, and the length.
const PROGRAM_HEADER: usize = 12;

fn program_header((kind, number): (FrameKind, u32), length: usize) -> [u8; PROGRAM_HEADER] {
    let mut bytes = [0; PROGRAM_HEADER];
    bytes[0] = kind as u8;
    bytes[4..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&(length as u32).to_be_bytes());
    bytes
}

/// Returns the contributions of all ranks. The program exchanges blocks of one length: first headers with the lengths,
/// then blocks of the longest contribution's length.
fn gather_by_program(
    gather: &mut AllGather,
    size: u32,
    exchange: (FrameKind, u32),
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let size = size as usize;
    let mut all = |own: &[u8], all: &mut [u8]| {
        gather(own, all).map_err(|reason| BootstrapError::Program { bytes: own.len(), reason })
    };
    let own = program_header(exchange, bytes.len());
    let mut headers = vec![0; PROGRAM_HEADER * size];
    all(&own, &mut headers)?;
    let (headers, _) = headers.as_chunks::<PROGRAM_HEADER>();
    let length = |(rank, said): (u32, &[u8; PROGRAM_HEADER])| {
        if said[..8] != own[..8] {
            return Err(protocol(rank, "another exchange than this rank: call the same in the same order"));
        }
        let length = said[8..].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > MAX_PART {
            return Err(protocol(rank, &format!("a length of {length} bytes")));
        }
        Ok(length)
    };
    let lengths = (0..).zip(headers).map(length).collect::<Result<Vec<usize>, _>>()?;
    let longest = lengths.iter().copied().max().unwrap_or(0);
    if longest == 0 {
        return Ok(vec![Vec::new(); size]);
    }
    let given = longest.saturating_mul(size);
    if given > MAX_ALL {
        return Err(BootstrapError::TooLong { what: "all ranks", given, limit: MAX_ALL });
    }
    let mut block = bytes.to_vec();
    block.resize(longest, 0);
    let mut blocks = vec![0; given];
    all(&block, &mut blocks)?;
    Ok(blocks.chunks(longest).zip(lengths).map(|(block, length)| block[..length].to_vec()).collect())
}
