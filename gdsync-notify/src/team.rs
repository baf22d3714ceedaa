//! The ranks that write to each other, and their connections.

use crate::bootstrap::Bootstrap;
use crate::config::TeamConfig;
use crate::connect::{Unconnected, join};
use crate::connections::{Connections, start_monitor};
use crate::error::{DeathCause, NotifyError};
use crate::handshake::{segment_description, share_outcome};
use crate::liveness::RankState;
use crate::memory::{LocalPart, PartPlan, SegmentResources};
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

/// Ranks that write into each other's segments: a table of connections, which all ranks make together, once.
///
/// A cheap handle. The connections end when the last handle and queue of the team are dropped: to ranks that still
/// write to it, a rank that leaves is dead. So ranks flush, and meet at a [`Team::barrier`], before they leave.
#[derive(Clone, Debug)]
pub struct Team {
    inner: Arc<Connections>,
    /// The thread that finds dead ranks; none of a rank that is alone.
    monitor: Option<Arc<JoinHandle<()>>>,
}

impl Team {
    /// Connects the ranks of a job. All of them call this.
    ///
    /// # Errors
    /// [`NotifyError::Bootstrap`], [`NotifyError::Device`], [`NotifyError::Transport`]; [`NotifyError::Mismatch`] if
    /// another rank has another number of queues; [`NotifyError::Elsewhere`] if the call fails on another rank.
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
        let connected = made.connect(&lines).map(|()| ((), String::new()));
        // No rank writes before all of them can receive.
        bootstrap.share_outcome(connected)?;
        Self::of(Connections::new(SegmentResources::new(pd), made, config.timeout, bootstrap.timeout()))
    }

    /// A rank that is alone needs no monitor.
    fn of(inner: Arc<Connections>) -> Result<Self, NotifyError> {
        let monitor = if inner.size > 1 { Some(Arc::new(start_monitor(&inner)?)) } else { None };
        Ok(Team { inner, monitor })
    }

    /// Drops this handle, and waits until the connections have ended and the team's thread with them: what its
    /// domain was used for by the team is gone then, but for what segments, streams and work requests still have. False
    /// if that takes longer than `timeout`, as it does while other handles or queues are left.
    pub fn close(self, timeout: Duration) -> bool {
        let Team { inner, monitor } = self;
        drop(inner);
        let Some(monitor) = monitor else { return true };
        let mut pause = Pause::new();
        while !monitor.is_finished() {
            if pause.elapsed() >= timeout {
                return false;
            }
            pause.pause();
        }
        true
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
        self.share(PartPlan::Host { len, notifications })
    }

    /// As [`Self::allocate`], in GPU memory, notifications included. Other ranks may call
    /// [`Self::allocate`] and have their part in host memory.
    ///
    /// No stream of the GPU may be blocked in a wait during a team's first such call for that GPU, nor while
    /// the last handle of the team and its segments is dropped: these load and unload the kernel of
    /// [`Segment::notify_reset`], for which the driver waits ([`gdsync::cuda`]).
    ///
    /// # Errors
    /// As [`Self::allocate`]; [`NotifyError::Cuda`].
    pub fn allocate_gpu(
        &self,
        context: &Arc<CudaContext>,
        len: usize,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(PartPlan::Gpu { context, len, notifications })
    }

    /// As [`Self::allocate`], over host memory that the program has: the memory, whatever its alignment, is
    /// this rank's data. Other ranks may allocate their parts, or register memory of another length.
    ///
    /// The notifications have memory of their own, of the host, too: the card's writes to both take the same path over
    /// PCIe, which keeps their order, so that a reader that sees a notification sees the data. Memory that is mapped
    /// into this process and is not the host's (a GPU's, for example) does not do: [`Self::register_gpu`].
    ///
    /// The team keeps the registration as long as the program holds the memory, if newer ones leave it room
    /// ([`RegistrationCache`](gdsync::verbs::RegistrationCache)): to register the memory again, whole or in part, is
    /// cheap. The keys that other ranks have got stay valid until then, and open all that is registered with the
    /// memory. The owner of [`PinnedMemory::from_raw`] is dropped after the segment, the last handle of the memory, and
    /// the last request that names it. Other ranks may still write to a segment that is dropped: before that they
    /// flush, and meet at a [`Self::barrier`].
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
        self.share(PartPlan::Registered { memory, notifications })
    }

    /// As [`Self::register`], over GPU memory that the program has. The notifications have memory of
    /// their own in the same GPU: the card writes to both through the GPU's window on PCIe, which
    /// performs writes in their order, and what the GPU needs beyond that to show them in order
    /// ([`NotifyError::Consistency`]) is a property of the GPU, and not of an allocation.
    ///
    /// `context` is the one that the memory was made with, and of the GPU that has it. What
    /// [`Self::allocate_gpu`] says of streams that are blocked holds here, too.
    ///
    /// # Errors
    /// As [`Self::register`]; [`NotifyError::OtherGpu`], [`NotifyError::Cuda`].
    pub fn register_gpu(
        &self,
        context: &Arc<CudaContext>,
        memory: &GpuMemory,
        notifications: u32,
    ) -> Result<Segment, NotifyError> {
        self.share(PartPlan::RegisteredGpu { context, memory, notifications })
    }

    /// Makes this rank's part, and exchanges the descriptions of all ranks' parts.
    fn share(&self, plan: PartPlan<'_>) -> Result<Segment, NotifyError> {
        let made = plan.make(&self.inner.resources, self.inner.rank);
        let described = made.and_then(|part| {
            let text = part.describe()?;
            Ok((part, text))
        });
        let (part, everywhere) = share_outcome(described, |line| self.inner.exchange(line))?;
        let segment = Segment::new(part, &everywhere, &self.inner.liveness)?;
        self.inner.add_segment(segment.shared());
        Ok(segment)
    }

    /// Returns when all ranks have called this. It does not flush outstanding writes.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`]; [`NotifyError::Bootstrap`], which names the ranks that are late, after the time that
    /// [`Bootstrap::timeout`] says. After an error of this call, or of [`Self::allocate`] for another reason than this
    /// rank's own, the ranks may disagree on the next such call: all later ones fail until [`Self::shrink`].
    pub fn barrier(&self) -> Result<(), NotifyError> {
        self.inner.exchange(&[]).map(drop)
    }

    /// The ranks that are dead and not dropped yet, and how this rank knows.
    pub fn dead(&self) -> Vec<(u32, DeathCause)> {
        let state = |rank| match self.inner.liveness.state(rank) {
            RankState::Dead(cause) => Some((rank, cause)),
            RankState::Alive | RankState::Dropped(_) => None,
        };
        (0..self.size()).filter_map(state).collect()
    }

    /// The ranks that the team consists of: all but those that were dropped.
    pub fn members(&self) -> Vec<u32> {
        self.inner.liveness.members()
    }

    /// Drops the dead ranks: the survivors agree on them, and go on. All survivors call this, and
    /// all get the same ranks, which this returns: those that the team had not dropped before.
    ///
    /// Connections, segments, queues and the numbers of the survivors stay. Calls that address a
    /// dropped rank are refused ([`NotifyError::PeerDead`]). Waits for notifications that it was to
    /// set ([`Segment::expect_from`]) stay released; those for notifications of any rank wait
    /// again. What the survivors wrote to each other before arrives: to begin anew, they flush, meet
    /// at a [`Self::barrier`], clear the notifications that are left, and meet once more.
    ///
    /// Ranks that die during the call are dropped as well, or are found dead by the next call; the agreement tolerates
    /// any number of deaths at any time. Without a dead rank, the call is a barrier.
    ///
    /// # Errors
    /// [`NotifyError::Expelled`] if a survivor has found this rank dead; [`NotifyError::Bootstrap`], which names living
    /// ranks that do not call this within the time of a [`Self::barrier`]: the call can be repeated.
    pub fn shrink(&self) -> Result<Vec<u32>, NotifyError> {
        self.inner.shrink()
    }

    /// Takes new processes into the places of all ranks that were dropped, and returns these ranks. All survivors call
    /// this, and each new process calls [`Self::take_place`]; all meet in a bootstrap of the team's size, under a name
    /// of its own, in which each has its rank in the team.
    ///
    /// Only the connections with the new processes are made anew; the others, segments and the numbers of ranks stay.
    /// Every rank has the same segments then, in the order in which they were allocated: a handle that one rank has
    /// dropped is missing. What was described to a device before does not name the new processes.
    ///
    /// Streams must have passed what they were given of the dropped ranks, and queues that are attached to devices be
    /// detached. Waits for notifications of the new processes ([`Segment::expect_from`]) wait again.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if a rank is dead and not dropped: [`Self::shrink`] first; [`NotifyError::Reset`];
    /// [`NotifyError::Mismatch`] if the new processes are not in the places of the dropped ranks, or have another
    /// number of queues or segments; [`NotifyError::Elsewhere`], [`NotifyError::Bootstrap`], [`NotifyError::Device`].
    pub fn replace(&self, bootstrap: Bootstrap) -> Result<Vec<u32>, NotifyError> {
        let mut bootstrap = bootstrap;
        self.check_place(&bootstrap)?;
        self.inner.replace(&mut bootstrap)
    }

    /// The bootstrap has this rank in the same place.
    fn check_place(&self, bootstrap: &Bootstrap) -> Result<(), NotifyError> {
        let (rank, size) = (bootstrap.rank(), self.size());
        if bootstrap.size() != size {
            let (theirs, ours) = (bootstrap.size().to_string(), size.to_string());
            return Err(NotifyError::Mismatch { rank, what: "ranks in its bootstrap", theirs, ours });
        }
        if rank != self.rank() {
            return Err(NotifyError::Rank { rank, size });
        }
        Ok(())
    }

    /// Joins a team as a new process in the place of a dropped rank, while its survivors call
    /// [`Self::replace`]. `segments` says what this rank's part of each of the team's segments is
    /// to be. Returns the team, and the segments in that order.
    ///
    /// # Errors
    /// As [`Self::replace`] and [`Self::new`].
    pub fn take_place(
        pd: &ProtectionDomain,
        bootstrap: Bootstrap,
        config: TeamConfig,
        segments: &[PartPlan<'_>],
    ) -> Result<(Self, Vec<Segment>), NotifyError> {
        if config.queue_pair.transport != Transport::Rc {
            return Err(NotifyError::Transport);
        }
        let mut bootstrap = bootstrap;
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let made = Unconnected::new(pd, (rank, size), &config);
        let resources = SegmentResources::new(pd);
        let own = segments.iter().map(|plan| plan.make(&resources, rank));
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
