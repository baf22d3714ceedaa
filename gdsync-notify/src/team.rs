//! Teams: ranks that write to each other's memory, and their connections.

use crate::bootstrap::Bootstrap;
use crate::config::TeamConfig;
use crate::connect::{Unconnected, join};
use crate::connections::{Connections, start_monitor};
use crate::error::{DeathCause, NotifyError};
use crate::handshake::{segment_description, share_outcome};
use crate::liveness::RankState;
use crate::memory::{LocalPart, SegmentResources, SegmentSpec};
use crate::queue::Queue;
use crate::segment::Segment;
use gdsync::cuda::GpuMemory;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::Transport;
use gdsync::{PinnedMemory, ProtectionDomain};
use gdsync_sys::pause::Pause;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Ranks that write into each other's segments, connected by one call of all ranks. It is a cheap handle. The [crate's
/// page](crate) has an example.
///
/// The connections end when the team's last handle and queue are dropped: a rank that leaves is dead to ranks that
/// still write to it. So ranks flush and meet at a [`Team::barrier`] before they leave. What still waits for this rank's
/// notifications then is released ([`Segment::check_notification`]).
#[derive(Clone, Debug)]
pub struct Team {
    inner: Arc<Connections>,
    monitor: Arc<JoinHandle<()>>,
}

impl Team {
    /// Connects the ranks of a job, all of which call this.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`] if an exchange fails, [`NotifyError::Device`] if the card refuses a queue pair,
    /// [`NotifyError::Transport`] if it is not RC; [`NotifyError::Mismatch`] if another rank has another number of
    /// queues; [`NotifyError::FailedOnRank`] if the call fails on another rank.
    pub fn new(pd: &ProtectionDomain, bootstrap: Bootstrap, config: TeamConfig) -> Result<Self, NotifyError> {
        if config.queue_pair.transport != Transport::Rc {
            return Err(NotifyError::Transport);
        }
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let mut bootstrap = bootstrap;
        let made = Unconnected::new(pd, (rank, size), &config);
        let described = made.and_then(|made| {
            let texts = made.describe()?;
            Ok((made, texts))
        });
        let (mut made, lines) = bootstrap.share_outcome_with_each(described)?;
        let connected = made.connect(&lines);
        // No rank writes before all can receive.
        bootstrap.share_step(connected)?;
        Self::of(Connections::new(SegmentResources::new(pd), made, config.timeout, bootstrap.timeout()))
    }

    fn of(inner: Arc<Connections>) -> Result<Self, NotifyError> {
        let monitor = Arc::new(start_monitor(&inner)?);
        Ok(Team { inner, monitor })
    }

    /// Drops this handle and waits until the connections have ended, and what waits for notifications is released. Then
    /// only segments, streams and work requests still use the protection domain for the team; the team's thread has ended,
    /// unless words of notifications are left. Returns false if that takes longer than `timeout`, as it does while other
    /// handles or queues exist.
    pub fn close(self, timeout: Duration) -> bool {
        let Team { inner, monitor } = self;
        let (liveness, mut pause) = (inner.liveness.clone(), Pause::new());
        drop(inner);
        while !monitor.is_finished() && !liveness.has_released() {
            if pause.elapsed() >= timeout {
                return false;
            }
            pause.pause();
        }
        true
    }

    /// Returns the rank of this process, from 0 on.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// Returns the queue of that number, from 0 on.
    ///
    /// # Errors
    /// [`NotifyError::Queue`] if the team has no such queue.
    pub fn queue(&self, queue: u32) -> Result<Queue, NotifyError> {
        let queues = self.inner.queues.len() as u32;
        let handle = (queue < queues).then(|| Queue::new(self.inner.clone(), queue as usize));
        handle.ok_or(NotifyError::Queue { queue, queues })
    }

    /// Allocates this rank's part of a segment in host memory: `len` zeroed bytes and `notifications`. All ranks call
    /// this in the same order; their lengths may differ.
    ///
    /// # Errors
    /// [`NotifyError::Device`] if the memory cannot be registered; [`NotifyError::FailedOnRank`] if the call fails on
    /// another rank; [`NotifyError::Bootstrap`] if an exchange fails.
    pub fn allocate(&self, len: usize, notifications: u32) -> Result<Segment, NotifyError> {
        self.share(SegmentSpec::Host { len, notifications })
    }

    /// Allocates as [`Self::allocate`] does, in GPU memory, notifications included. Other ranks may call
    /// [`Self::allocate`] for host memory.
    ///
    /// No stream of the GPU may be blocked in a wait during a team's first such call for that GPU, nor while the last
    /// handle of the team and its segments is dropped: these load and unload the kernel of [`Segment::notify_reset`],
    /// for which the driver waits ([`gdsync::cuda`]).
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`NotifyError::Cuda`] if the driver fails.
    pub fn allocate_gpu(
        &self,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(SegmentSpec::Gpu { context, len, notifications })
    }

    /// Makes a segment as [`Self::allocate`] does, with the program's host memory, of any alignment, as this rank's
    /// data. Other ranks may allocate their parts or register memory of another length.
    ///
    /// The notifications are in other host memory: the card's writes to both take the same path over PCIe, which keeps
    /// their order, so that a reader that sees a notification sees the data. Memory that is mapped into this process
    /// but is not the host's (a GPU's, for example) is not suitable; see [`Self::register_gpu`].
    ///
    /// The team keeps the registration as long as the program holds the memory, unless newer ones displace it
    /// ([`RegistrationCache`](gdsync::verbs::RegistrationCache)), so registering the memory again, whole or in part, is
    /// cheap. Keys sent to other ranks stay valid until then and give access to all that is registered with the memory.
    /// The owner of [`PinnedMemory::from_raw`] is dropped after the segment, the memory's last handle, and the last
    /// request that names it. Other ranks may still write to a dropped segment, so they flush and meet at a
    /// [`Self::barrier`] before.
    ///
    /// ```
    /// use gdsync::{Device, PinnedMemory, ProtectionDomain};
    /// use gdsync_notify::bootstrap::Bootstrap;
    /// use gdsync_notify::{Team, TeamConfig};
    /// use gdsync_sys::shared::SharedU8;
    /// use std::ptr::NonNull;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # const LONG: Duration = Duration::from_secs(30);
    /// # let (pd, bootstrap) = (ProtectionDomain::new(&Device::software()?)?, Bootstrap::threads(1, LONG)?.remove(0));
    /// let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
    /// // Memory of another library, kept by what it hands out for it.
    /// let tensor: Arc<[SharedU8]> = (0..64).map(SharedU8::new).collect();
    /// let base = NonNull::from(&tensor[..]).cast();
    /// // SAFETY: the owner keeps the bytes, which are shared words.
    /// let memory = unsafe { PinnedMemory::from_raw(base, tensor.len(), tensor.clone()) };
    /// let segment = team.register(&memory, 1)?;
    /// team.queue(0)?.write_notify(&segment.slice(..32)?, 0, &segment, 32, 0, 1)?;
    /// assert_eq!(segment.notify_waitsome(0..1, LONG)?, Some(0));
    /// assert_eq!(tensor[33].load(std::sync::atomic::Ordering::Relaxed), 1);
    /// team.queue(0)?.flush(LONG)?;
    /// drop((segment, memory));
    /// assert_eq!(Arc::strong_count(&tensor), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`NotifyError::NothingToRegister`] for memory of 0 bytes.
    pub fn register(&self, memory: &PinnedMemory, notifications: u32) -> Result<Segment, NotifyError> {
        self.share(SegmentSpec::Registered { memory, notifications })
    }

    /// As [`Self::register`], with the program's GPU memory. The notifications are in other memory of the same GPU: the
    /// card writes to both through the GPU's PCIe window, which performs writes in order, and the GPU's further needs
    /// to show them in order ([`NotifyError::Consistency`]) are a property of the GPU, not of an allocation.
    ///
    /// `context` is the memory's own. The constraint of [`Self::allocate_gpu`] on blocked streams holds here, too.
    ///
    /// # Errors
    /// As [`Self::register`]; [`NotifyError::OtherGpu`], [`NotifyError::Cuda`].
    pub fn register_gpu(
        &self,
        context: &Arc<CudaContext>,
        memory: &GpuMemory,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(SegmentSpec::RegisteredGpu { context, memory, notifications })
    }

    fn share(&self, spec: SegmentSpec<'_>) -> Result<Segment, NotifyError> {
        let made = spec.make(&self.inner.resources, self.inner.rank);
        let described = made.and_then(|part| {
            let text = part.describe()?;
            Ok((part, text))
        });
        let (part, everywhere) = share_outcome(described, |line| self.inner.exchange(line))?;
        let segment = Segment::new(part, &everywhere, &self.inner.liveness)?;
        self.inner.add_segment(segment.shared());
        Ok(segment)
    }

    /// Returns when all ranks have called this. It does not flush.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if one is dead; [`NotifyError::Bootstrap`], which names the late ranks, after
    /// [`Bootstrap::timeout`]. After an error of this call, or one of [`Self::allocate`] that is not this rank's own,
    /// the ranks may disagree on the next such call, so all later ones fail until [`Self::shrink`].
    pub fn barrier(&self) -> Result<(), NotifyError> {
        self.inner.exchange(&[]).map(drop)
    }

    /// Returns the ranks that are dead and not dropped yet, with the cause.
    pub fn dead(&self) -> Vec<(u32, DeathCause)> {
        let state = |rank| match self.inner.liveness.state(rank) {
            RankState::Dead(cause) => Some((rank, cause)),
            RankState::Alive | RankState::Dropped(_) => None,
        };
        (0..self.size()).filter_map(state).collect()
    }

    /// Returns the ranks that were not dropped.
    pub fn members(&self) -> Vec<u32> {
        self.inner.liveness.members()
    }

    /// Drops the dead ranks, on which the survivors agree. All survivors call this and get the newly dropped ranks.
    ///
    /// Connections, segments, queues and rank numbers of the survivors stay. Calls that address a dropped rank are
    /// refused ([`NotifyError::PeerDead`]). Waits for notifications that it was to set ([`Segment::expect_from`]) stay
    /// released; those for notifications of any rank wait again. Earlier writes among survivors arrive: to start over,
    /// they flush, meet at a [`Self::barrier`], clear the remaining notifications, and meet once more.
    ///
    /// Ranks that die during the call are dropped as well, or found dead by the next call; the agreement tolerates any
    /// number of deaths at any time. Without a dead rank, the call is a barrier.
    ///
    /// # Errors
    /// [`NotifyError::Expelled`] if a survivor has found this rank dead; [`NotifyError::Bootstrap`], which names living
    /// ranks that do not call this within the time of a [`Self::barrier`]: the call can be repeated.
    pub fn shrink(&self) -> Result<Vec<u32>, NotifyError> {
        self.inner.shrink()
    }

    /// Accepts new processes in the places of all dropped ranks, and returns these ranks. All survivors call this, and
    /// each new process calls [`Self::join_as_replacement`]. All meet in a bootstrap of the team's size, with its own job
    /// name, in which each has its rank in the team.
    ///
    /// Only the connections to the new processes are new; other connections, segments and rank numbers stay. All ranks must
    /// hold handles of the same segments, which are counted in the order of their allocation. Earlier descriptions for
    /// devices do not include the new processes.
    ///
    /// Streams must have passed all work for the dropped ranks, and queues attached to devices must be detached. Waits
    /// for notifications of the new processes ([`Segment::expect_from`]) wait again.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if a rank is dead and not dropped: [`Self::shrink`] first; [`NotifyError::Reset`] if a
    /// connection cannot be reset; [`NotifyError::Mismatch`] if the new processes are not in the places of the dropped
    /// ranks, or have another number of queues or segments; or as [`Self::new`].
    pub fn replace(&self, bootstrap: Bootstrap) -> Result<Vec<u32>, NotifyError> {
        let mut bootstrap = bootstrap;
        self.check_place(&bootstrap)?;
        self.inner.replace(&mut bootstrap)
    }

    fn check_place(&self, bootstrap: &Bootstrap) -> Result<(), NotifyError> {
        let (rank, size) = (bootstrap.rank(), self.size());
        if bootstrap.size() != size {
            let (theirs, ours) = (bootstrap.size().to_string(), size.to_string());
            return Err(NotifyError::Mismatch { rank, what: "ranks in its bootstrap", theirs, ours });
        }
        if rank == self.rank() { Ok(()) } else { Err(NotifyError::Rank { rank, size }) }
    }

    /// Joins a team as a new process that replaces a dropped rank, while the survivors call [`Self::replace`]. `segments`
    /// describes this rank's part of each of the team's segments. Returns the team, and the segments in that order.
    ///
    /// # Errors
    /// As [`Self::replace`] and [`Self::new`].
    pub fn join_as_replacement(
        pd: &ProtectionDomain,
        bootstrap: Bootstrap,
        config: TeamConfig,
        segments: &[SegmentSpec<'_>],
    ) -> Result<(Self, Vec<Segment>), NotifyError> {
        if config.queue_pair.transport != Transport::Rc {
            return Err(NotifyError::Transport);
        }
        let mut bootstrap = bootstrap;
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let made = Unconnected::new(pd, (rank, size), &config);
        let resources = SegmentResources::new(pd);
        let own = segments.iter().map(|spec| spec.make(&resources, rank));
        let own = own.collect::<Result<Vec<_>, _>>();
        let described = own.and_then(|own| {
            let lines = own.iter().map(LocalPart::describe).collect::<Result<Vec<_>, _>>()?;
            Ok((own, lines.join(";")))
        });
        let (own, line) = match described {
            Ok((own, line)) => (own, Ok(line)),
            Err(error) => (Vec::new(), Err(error)),
        };
        let (made, lines) = join(made, line, segments.len(), &mut bootstrap)?;
        let team = Self::of(Connections::new(resources, made, config.timeout, bootstrap.timeout()))?;
        let segment = |(at, part): (usize, LocalPart)| {
            let texts: Vec<_> = lines.iter().map(|line| segment_description(line, at)).collect();
            let segment = Segment::new(part, &texts, &team.inner.liveness)?;
            team.inner.add_segment(segment.shared());
            Ok(segment)
        };
        let segments = own.into_iter().enumerate().map(segment).collect::<Result<Vec<_>, NotifyError>>()?;
        Ok((team, segments))
    }
}
