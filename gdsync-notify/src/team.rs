//! The ranks that write to each other, and their connections.

use crate::bootstrap::Bootstrap;
use crate::config::TeamConfig;
use crate::connect::Unconnected;
use crate::connections::Connections;
use crate::error::{DeathCause, NotifyError};
use crate::life::State;
use crate::monitor;
use crate::part::{OwnPart, PartPlan};
use crate::queue::Queue;
use crate::replace;
use crate::segment::Segment;
use crate::together::together;
use gdsync::ProtectionDomain;
use gdsync::cudarc::driver::CudaContext;
use gdsync::verbs::Transport;
use std::sync::Arc;

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
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let mut bootstrap = bootstrap;
        let made = Unconnected::new(pd, (rank, size), &config);
        let described = made.and_then(|made| {
            let texts = made.describe()?;
            Ok((made, texts))
        });
        let (mut made, lines) = bootstrap.together_with_each(described)?;
        let connected = made.connect(&lines).map(|()| ((), String::new()));
        // No rank writes before all of them can receive.
        bootstrap.together(connected)?;
        Self::of(Connections::new(pd, made, config.timeout, bootstrap.timeout()))
    }

    /// A rank that is alone needs no monitor.
    fn of(inner: Arc<Connections>) -> Result<Self, NotifyError> {
        if inner.size > 1 {
            monitor::start(&inner)?;
        }
        Ok(Team { inner })
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
        let (part, everywhere) = together(described, |line| self.inner.exchange(line))?;
        let segment = Segment::new(part, &everywhere, &self.inner.life)?;
        self.inner.add_segment(segment.parts());
        Ok(segment)
    }

    /// Returns when all ranks have called this. It does not flush outstanding writes.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`]; [`NotifyError::Bootstrap`], which names the ranks that are late,
    /// after the time that [`Bootstrap::timeout`] says. After an error of this call, or of
    /// [`Self::allocate`] for another reason than this rank's own, the ranks may disagree on the
    /// next such call: all later ones fail until [`Self::shrink`].
    pub fn barrier(&self) -> Result<(), NotifyError> {
        self.inner.exchange(&[]).map(drop)
    }

    /// The ranks that are dead and not dropped yet, and how this rank knows.
    pub fn dead(&self) -> Vec<(u32, DeathCause)> {
        let state = |rank| match self.inner.life.state(rank) {
            State::Dead(cause) => Some((rank, cause)),
            State::Alive | State::Dropped(_) => None,
        };
        (0..self.size()).filter_map(state).collect()
    }

    /// The ranks that the team consists of: all but those that were dropped.
    pub fn members(&self) -> Vec<u32> {
        let dropped = self.inner.life.dropped();
        (0..self.size()).filter(|rank| !dropped.contains(*rank)).collect()
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
    /// Ranks that die during the call are dropped as well, or are found dead by the next call; the
    /// agreement tolerates any number of deaths at any time. Without a dead rank, the call is a
    /// barrier.
    ///
    /// # Errors
    /// [`NotifyError::Expelled`] if a survivor has found this rank dead;
    /// [`NotifyError::Bootstrap`], which names living ranks that do not call this within the time
    /// of a [`Self::barrier`]: the call can be repeated.
    pub fn shrink(&self) -> Result<Vec<u32>, NotifyError> {
        self.inner.shrink()
    }

    /// Takes new processes into the places of all ranks that were dropped, and returns these ranks.
    /// All survivors call this, and each new process calls [`Self::take_place`]; all meet in a
    /// bootstrap of the team's size, under a name of its own, in which each has its rank in the
    /// team.
    ///
    /// Only the connections with the new processes are made anew; the others, segments and the
    /// numbers of ranks stay. Every rank has the same segments then, in the order in which they
    /// were allocated: a handle that one rank has dropped is missing. What was described to a device
    /// before does not name the new processes.
    ///
    /// Streams must have passed what they were given of the dropped ranks, and queues that are
    /// attached to devices be detached. Waits for notifications of the new processes
    /// ([`Segment::expect_from`]) wait again.
    ///
    /// # Errors
    /// [`NotifyError::PeerDead`] if a rank is dead and not dropped: [`Self::shrink`] first;
    /// [`NotifyError::Reset`]; [`NotifyError::Mismatch`] if the new processes are not in the places
    /// of the dropped ranks, or have another number of queues or segments;
    /// [`NotifyError::Elsewhere`], [`NotifyError::Bootstrap`], [`NotifyError::Device`].
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
        let own = segments.iter().map(|plan| plan.make(pd, rank)).collect::<Result<Vec<_>, _>>();
        let (own, line) = match own {
            Ok(own) => {
                let lines: Vec<_> = own.iter().map(OwnPart::describe).collect();
                (own, Ok(lines.join(";")))
            }
            Err(error) => (Vec::new(), Err(error)),
        };
        let (made, lines) = replace::join(made, line, segments.len(), &mut bootstrap)?;
        let team = Self::of(Connections::new(pd, made, config.timeout, bootstrap.timeout()))?;
        let segment = |(at, part): (usize, OwnPart)| {
            let texts: Vec<_> = lines.iter().map(|line| replace::description(line, at)).collect();
            let segment = Segment::new(part, &texts, &team.inner.life)?;
            team.inner.add_segment(segment.parts());
            Ok(segment)
        };
        let segments = own.into_iter().enumerate().map(segment).collect::<Result<Vec<_>, NotifyError>>()?;
        Ok((team, segments))
    }
}
