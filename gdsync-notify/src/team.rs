//! The ranks that write to each other, and their connections.

use crate::bootstrap::Bootstrap;
use crate::connections::Connections;
use crate::error::NotifyError;
use crate::options::setters;
use crate::peer::Peer;
use crate::queue::Queue;
use crate::segment::{OwnPart, Segment};
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::Transport;
use gdsync::{Access, ConnectOptions, Endpoint, Error, ProtectionDomain, QueuePair, QueuePairConfig};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Team`] is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TeamConfig {
    /// Queues, each with a queue pair to every rank; the same number on all ranks. By default 1.
    /// Give a stream that sends a queue of its own.
    pub queues: u32,
    /// Queue pairs, of transport RC; remote writes are always allowed. By default
    /// [`QueuePairConfig::default`] with one receive.
    pub queue_pair: QueuePairConfig<'static>,
    /// Connections: `timeout` and `retry_count` decide when a rank counts as dead. By default
    /// [`ConnectOptions::default`], which comes to some seconds.
    pub connect: ConnectOptions,
    /// How long a post waits for room in a queue. By default 30 s.
    pub timeout: Duration,
}

impl Default for TeamConfig {
    fn default() -> Self {
        TeamConfig {
            queues: 1,
            queue_pair: QueuePairConfig::default().recv_depth(1),
            connect: ConnectOptions::default(),
            timeout: Duration::from_secs(30),
        }
    }
}

setters!(TeamConfig: queues: u32, queue_pair: QueuePairConfig<'static>, connect: ConnectOptions, timeout: Duration);

/// Ranks that write into each other's segments: a table of connections, which all ranks make
/// together, once.
///
/// A cheap handle. The connections end when the last handle and queue of the team are dropped: to
/// ranks that still write to it, a rank that leaves is dead. So ranks flush, and meet at a
/// [`Team::barrier`], before they leave.
///
/// ```
/// use gdsync::{Device, ProtectionDomain};
/// use gdsync_notify::bootstrap::Bootstrap;
/// use gdsync_notify::{NotifyError, Team, TeamConfig};
/// use std::time::Duration;
///
/// const LONG: Duration = Duration::from_secs(30);
///
/// /// Two ranks exchange a notification.
/// fn rank(bootstrap: Bootstrap) -> Result<(), NotifyError> {
///     let pd = ProtectionDomain::new(&Device::software()?)?;
///     let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
///     let (segment, queue, other) = (team.allocate(0, 1)?, team.queue(0)?, 1 - team.rank());
///     queue.notify(other, &segment, 0, 100 + team.rank())?;
///     assert_eq!(segment.notify_waitsome(0..1, LONG)?, Some(0));
///     assert_eq!(segment.notify_reset(0)?, 100 + other);
///     queue.flush(LONG)?;
///     team.barrier()
/// }
///
/// # fn main() -> Result<(), NotifyError> {
/// std::thread::scope(|scope| {
///     let ranks = Bootstrap::threads(2, LONG)?;
///     let threads: Vec<_> = ranks.into_iter().map(|one| scope.spawn(|| rank(one))).collect();
///     threads.into_iter().try_for_each(|thread| thread.join().expect("a rank panicked"))
/// })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Team {
    inner: Arc<Connections>,
}

impl Team {
    /// Connects the ranks of a job. All of them call this.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`], [`NotifyError::Device`], [`NotifyError::Transport`];
    /// [`NotifyError::Mismatch`] if another rank has another number of queues;
    /// [`NotifyError::Elsewhere`] if the call fails on another rank.
    pub fn new(pd: &ProtectionDomain, bootstrap: Bootstrap, config: TeamConfig) -> Result<Self, NotifyError> {
        if config.queue_pair.transport != Transport::Rc {
            return Err(NotifyError::Transport);
        }
        let access = config.queue_pair.access | Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let options = config.queue_pair.access(access);
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let bootstrap = Mutex::new(bootstrap);
        let made = (0..config.queues)
            .map(|_| (0..size).map(|_| QueuePair::new(pd, options)).collect::<Result<Vec<_>, _>>())
            .collect::<Result<Vec<_>, _>>();
        let described = made.and_then(|queues| {
            let endpoints = queues.iter().flatten().map(|one| Ok(one.endpoint()?.to_string()));
            let endpoints = endpoints.collect::<Result<Vec<_>, Error>>()?;
            Ok((queues, endpoints.join(" ")))
        });
        let (queues, everywhere) = together(&bootstrap, described.map_err(NotifyError::from))?;
        let tables = (0..).zip(&everywhere).map(|(other, text)| {
            let table = text.split_whitespace().map(str::parse).collect::<Result<Vec<Endpoint>, _>>()?;
            let (theirs, ours) = (table.len(), (config.queues * size) as usize);
            if theirs != ours {
                let each = |all: usize| (all / size as usize).to_string();
                let (theirs, ours) = (each(theirs), each(ours));
                return Err(NotifyError::Mismatch { rank: other, what: "queues", theirs, ours });
            }
            Ok(table)
        });
        let tables = tables.collect::<Result<Vec<_>, NotifyError>>()?;
        let at = |queue: usize, other: usize| &tables[other][queue * size as usize + rank as usize];
        let connected = queues.iter().enumerate().try_for_each(|(queue, peers)| {
            let mut peers = peers.iter().enumerate();
            peers.try_for_each(|(other, one)| one.connect(at(queue, other), config.connect))
        });
        // No rank writes before all of them can receive.
        together(&bootstrap, connected.map(|()| ((), String::new())).map_err(NotifyError::from))?;
        let with_rank =
            |peers: Vec<QueuePair>| (0..).zip(peers).map(|(rank, one)| Peer::new(rank, one)).collect();
        let queues = queues.into_iter().map(with_rank).collect();
        let inner = Connections { rank, size, queues, timeout: config.timeout, bootstrap, pd: pd.clone() };
        Ok(Team { inner: Arc::new(inner) })
    }

    /// The rank of this process.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Ranks of the team.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// A queue.
    ///
    /// # Errors
    /// [`NotifyError::Queue`].
    pub fn queue(&self, queue: u32) -> Result<Queue, NotifyError> {
        let queues = self.inner.queues.len() as u32;
        if queue < queues {
            Ok(Queue::new(self.inner.clone(), queue as usize))
        } else {
            Err(NotifyError::Queue { queue, queues })
        }
    }

    /// Allocates this rank's part of a segment in host memory: `len` zeroed bytes and some
    /// notifications. All ranks call this in the same order; their lengths may differ.
    ///
    /// # Errors
    /// [`NotifyError::Device`]; [`NotifyError::Elsewhere`] if the call fails on another rank;
    /// [`NotifyError::Bootstrap`].
    pub fn allocate(&self, len: usize, notifications: u32) -> Result<Segment, NotifyError> {
        self.share(OwnPart::host(&self.inner.pd, self.inner.rank, len, notifications))
    }

    /// As [`Self::allocate`], in GPU memory, notifications included. Other ranks may call
    /// [`Self::allocate`] and have their part in host memory.
    ///
    /// No stream of the GPU may be blocked in a wait during this call, nor while the segment is
    /// dropped: both load or unload the kernel of [`Segment::notify_reset`], for which the driver
    /// waits ([`gdsync::cuda`]).
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`NotifyError::Cuda`].
    pub fn allocate_gpu(
        &self,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(OwnPart::gpu(&self.inner.pd, self.inner.rank, context, len, notifications))
    }

    /// Exchanges the descriptions of all ranks' parts.
    fn share(&self, made: Result<OwnPart, NotifyError>) -> Result<Segment, NotifyError> {
        let described = made.map(|part| {
            let text = part.describe();
            (part, text)
        });
        let (part, everywhere) = together(&self.inner.bootstrap, described)?;
        Segment::new(part, &everywhere)
    }

    /// Returns when all ranks have called this. It does not flush outstanding writes.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`], which names the ranks that are late or have left.
    pub fn barrier(&self) -> Result<(), NotifyError> {
        Ok(self.inner.bootstrap.lock().barrier()?)
    }
}

/// Exchanges the outcome of a step that each rank does by itself: its description, one line, or its
/// failure, which then is an error on every rank.
fn together<T>(
    bootstrap: &Mutex<Bootstrap>,
    done: Result<(T, String), NotifyError>,
) -> Result<(T, Vec<String>), NotifyError> {
    let line = match &done {
        Ok((_, text)) => format!("+{text}"),
        Err(error) => format!("-{error}"),
    };
    let all = bootstrap.lock().all_gather(line.as_bytes());
    // This rank's own failure says more than that of the exchange.
    let (value, _) = done?;
    let mut texts = Vec::new();
    for (rank, bytes) in (0..).zip(all?) {
        let text = String::from_utf8_lossy(&bytes);
        match text.split_at_checked(1) {
            Some(("+", text)) => texts.push(text.to_owned()),
            Some((_, reason)) => return Err(NotifyError::Elsewhere { rank, reason: reason.to_owned() }),
            None => return Err(NotifyError::Elsewhere { rank, reason: "it sent an empty line".to_owned() }),
        }
    }
    Ok((value, texts))
}
