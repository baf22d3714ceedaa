//! The ranks that write to each other, and their connections.

use super::NotifyError;
use super::peer::Peer;
use super::queue::Queue;
use super::segment::Segment;
use crate::bootstrap::Bootstrap;
use crate::qp::QueuePair;
use crate::qp::config::QueuePairConfig;
use crate::verbs::config::ConnectOptions;
use crate::verbs::endpoint::Endpoint;
use crate::verbs::mr::Access;
use crate::verbs::pd::ProtectionDomain;
use crate::verbs::transport::Transport;
use cudarc::driver::CudaContext;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// How a [`Team`] is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TeamConfig {
    /// Queues, each of which has a queue pair to every rank: 1 at first, and the same on all ranks. A stream that sends best has one of
    /// its own.
    pub queues: u32,
    /// Queue pairs: of transport RC; remote writes are allowed in any case. At first as [`QueuePairConfig::default`], with one receive.
    pub queue_pair: QueuePairConfig<'static>,
    /// Connections: `timeout` and `retry_count` decide when a rank counts as dead. At first [`ConnectOptions::default`]: some seconds.
    pub connect: ConnectOptions,
    /// How long posting waits for room in a queue: 30 s at first.
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

impl TeamConfig {
    /// Sets [`Self::queues`].
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets [`Self::queue_pair`].
    pub fn queue_pair(mut self, queue_pair: QueuePairConfig<'static>) -> Self {
        self.queue_pair = queue_pair;
        self
    }

    /// Sets [`Self::connect`].
    pub fn connect(mut self, connect: ConnectOptions) -> Self {
        self.connect = connect;
        self
    }

    /// Sets [`Self::timeout`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Ranks that write into each other's segments: a connection table, made once, by all of them together.
///
/// A cheap handle. When the last handle and queue of it are gone, so are the connections: a rank that leaves while others still write to it
/// is dead to them. So ranks flush, and meet at a [`Team::barrier`], before they leave.
#[derive(Clone, Debug)]
pub struct Team {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Of each queue, the peers in the order of their ranks.
    pub(super) queues: Vec<Vec<Peer>>,
    pub(super) timeout: Duration,
    bootstrap: Mutex<Bootstrap>,
    pd: ProtectionDomain,
}

impl Team {
    /// Connects the ranks of a job: all of them call this.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`], [`NotifyError::Device`], [`NotifyError::Transport`], [`NotifyError::Mismatch`] for another number of
    /// queues; [`NotifyError::Elsewhere`] where another rank cannot.
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
        let told = made.and_then(|queues| {
            let endpoints = queues.iter().flatten().map(|one| Ok(one.endpoint()?.to_string()));
            let endpoints = endpoints.collect::<Result<Vec<_>, crate::verbs::error::Error>>()?;
            Ok((queues, endpoints.join(" ")))
        });
        let (queues, everywhere) = together(&bootstrap, told.map_err(NotifyError::from))?;
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
        // Nobody writes before all can receive.
        together(&bootstrap, connected.map(|()| ((), String::new())).map_err(NotifyError::from))?;
        let with_rank =
            |peers: Vec<QueuePair>| (0..).zip(peers).map(|(rank, one)| Peer::new(rank, one)).collect();
        let queues = queues.into_iter().map(with_rank).collect();
        let inner = Inner { rank, size, queues, timeout: config.timeout, bootstrap, pd: pd.clone() };
        Ok(Team { inner: Arc::new(inner) })
    }

    /// This process' rank.
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

    /// Allocates a segment of `len` zeroed bytes of host memory here, with so many notifications: all ranks call this, with what lengths they
    /// like, in the same order.
    ///
    /// # Errors
    /// [`NotifyError::Device`]; [`NotifyError::Elsewhere`] where another rank cannot; [`NotifyError::Bootstrap`].
    pub fn allocate(&self, len: usize, notifications: u32) -> Result<Segment, NotifyError> {
        self.share(Segment::host(&self.inner.pd, self.inner.rank, len, notifications))
    }

    /// As [`Self::allocate`], of GPU memory, notifications too. Other ranks may have theirs in host memory, and call that.
    ///
    /// No stream of the GPU may be blocked in a wait meanwhile, nor when the segment is dropped: a kernel is loaded for
    /// [`Segment::notify_reset`], and unloaded ([`crate::cuda`] says why that waits).
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`NotifyError::Cuda`].
    pub fn allocate_gpu(
        &self,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(Segment::gpu(&self.inner.pd, self.inner.rank, context, len, notifications))
    }

    /// Tells all ranks of a segment that was made, or not, and learns of theirs.
    fn share(&self, made: Result<Segment, NotifyError>) -> Result<Segment, NotifyError> {
        let told = made.map(|segment| {
            let text = segment.describe();
            (segment, text)
        });
        let (segment, everywhere) = together(&self.inner.bootstrap, told)?;
        segment.with_remotes(&everywhere)
    }

    /// Returns when all ranks have come here. What is under way is not flushed by that.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`], which names ranks that are missing or gone.
    pub fn barrier(&self) -> Result<(), NotifyError> {
        Ok(self.inner.bootstrap.lock().barrier()?)
    }
}

/// Something that each rank does by itself and describes in a line, or fails at: then it fails everywhere.
fn together<T>(
    bootstrap: &Mutex<Bootstrap>,
    done: Result<(T, String), NotifyError>,
) -> Result<(T, Vec<String>), NotifyError> {
    let line = match &done {
        Ok((_, text)) => format!("+{text}"),
        Err(error) => format!("-{error}"),
    };
    let all = bootstrap.lock().all_gather(line.as_bytes());
    // What went wrong here is what is wrong.
    let (value, _) = done?;
    let mut texts = Vec::new();
    for (rank, bytes) in (0..).zip(all?) {
        let text = String::from_utf8_lossy(&bytes);
        match text.split_at_checked(1) {
            Some(("+", text)) => texts.push(text.to_owned()),
            Some((_, reason)) => return Err(NotifyError::Elsewhere { rank, reason: reason.to_owned() }),
            None => return Err(NotifyError::Elsewhere { rank, reason: "it said nothing".to_owned() }),
        }
    }
    Ok((value, texts))
}
