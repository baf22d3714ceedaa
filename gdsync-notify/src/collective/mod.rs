//! Collectives in the order of streams: barrier, all-gather, all-to-all, all-reduce, reduce-scatter and broadcast among a team's
//! members, by notified writes. The CPU creates a [`Plan`] once, with all ranks, and posts rounds ahead; streams ring the
//! card and wait.
//!
//! ```
//! use gdsync::{Device, ProtectionDomain, SoftStream, Stream};
//! use gdsync_notify::bootstrap::Bootstrap;
//! use gdsync_notify::collective::{Collective, Collectives};
//! use gdsync_notify::{Team, TeamConfig};
//! use std::time::Duration;
//!
//! const LONG: Duration = Duration::from_secs(30);
//!
//! /// Each rank tells all others a number.
//! fn rank(bootstrap: Bootstrap) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let pd = ProtectionDomain::new(&Device::software()?)?;
//!     let team = Team::new(&pd, bootstrap, TeamConfig::default())?;
//!     let (queue, what) = (team.queue(0)?, Collective::AllGather { block: 8 });
//!     let segment = team.allocate(what.bytes(team.size()), what.notifications(team.size()))?;
//!     let gather = Collectives::new(&queue, &segment)?.plan(what)?;
//!
//!     let stream = Stream::new(SoftStream::new()?)?;
//!     for round in 0..10u64 {
//!         let number = 100 * round + u64::from(team.rank());
//!         segment.write(gather.input(round).start, &number.to_ne_bytes())?;
//!         gather.post(&stream)?;
//!         stream.synchronize()?;
//!         gather.check()?;
//!         let mut of_rank_2 = [0; 8];
//!         segment.read(gather.output(round).start + 2 * 8, &mut of_rank_2)?;
//!         assert_eq!(u64::from_ne_bytes(of_rank_2), 100 * round + 2);
//!     }
//!     queue.flush(LONG)?;
//!     Ok(team.barrier()?)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let ranks = Bootstrap::threads(3, LONG)?;
//! let threads: Vec<_> = ranks.into_iter().map(|one| std::thread::spawn(move || rank(one))).collect();
//! threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a rank panicked")?)
//! # }
//! ```
//!
//! # Memory operations of a round
//! A message takes two operations for the doorbell, and one for its wait, plus a flush on GPUs that need one.
//!
//! | collective of N ranks | operations of a rank |
//! |---|---|
//! | [`Collective::Barrier`] | 3 ⌈log2 N⌉ |
//! | [`Collective::AllGather`] | 3 (N - 1); of at most 1 KiB among 16 ranks or more 3 ⌈log2 N⌉ |
//! | [`Collective::AllToAll`] | 3 N; of at most 1 KiB among 16 ranks or more 3 ⌈log2 N⌉ + 3 |
//! | [`Collective::ReduceScatter`] | as the all-gather, and the reduction: on a GPU by a kernel and one operation |
//! | [`Collective::AllReduce`] | of at most 32 KiB 5 ⌈log2 N⌉, else 6 (N - 1); and ⌈log2 N⌉ or N - 1 reductions |
//! | [`Collective::Broadcast`] | 3 for each rank that it sends to, at most ⌈log2 N⌉, and 3 for the one that it receives from |
//!
//! Once in 64 batches, one more operation reports the stream's progress to the CPU.

mod agreement;
mod all_reduce;
mod element;
mod error;
#[allow(unsafe_code)]
mod kernel;
mod plan;
mod reduce;
pub mod rounds;
#[cfg(test)]
mod rounds_tests;
mod schedule;
#[cfg(test)]
mod schedule_tests;
mod shape;
mod step;

pub use element::{Element, Operation, combine};
pub use error::CollectiveError;
pub use kernel::ReductionKernel;
pub use plan::Plan;
pub use reduce::{CollectiveStream, Reduction};
pub use shape::Collective;

use crate::queue::Queue;
use crate::segment::Segment;
use gdsync::cudarc::driver::CudaContext;
use parking_lot::Mutex;
use shape::ALIGNMENT;
use std::sync::Arc;

/// Creates [`Plan`]s in a segment, one behind the other. A cheap handle.
///
/// The segment's data and notifications belong to the plans from then on: the program accesses only inputs and outputs.
/// Streams that post plans of one queue take turns, as with all sends: give each stream its own queue and `Collectives`.
#[derive(Clone, Debug)]
pub struct Collectives {
    queue: Queue,
    segment: Segment,
    gpu: Option<Arc<CudaContext>>,
    /// The bytes and notifications in use.
    taken: Arc<Mutex<(usize, u32)>>,
}

impl Collectives {
    /// Creates plans that send by this queue and use this segment. All ranks do this alike.
    ///
    /// # Errors
    /// [`CollectiveError::OtherTeam`].
    pub fn new(queue: &Queue, segment: &Segment) -> Result<Self, CollectiveError> {
        if !segment.is_of(&queue.team.liveness) {
            return Err(CollectiveError::OtherTeam);
        }
        Ok(Collectives { queue: queue.clone(), segment: segment.clone(), gpu: None, taken: Arc::default() })
    }

    /// Lets reductions of later plans run on streams of this GPU although the segment is in host memory: their kernel
    /// reads and writes it there. (With a segment in GPU memory, they run on streams of its GPU.)
    pub fn reduce_on(self, gpu: &Arc<CudaContext>) -> Self {
        Collectives { gpu: Some(gpu.clone()), ..self }
    }

    /// Creates a plan. All members of the team call this in the same order, with the same collective. It permanently
    /// takes [`Collective::bytes`] and [`Collective::notifications`] of the segment's rest.
    ///
    /// If the plan reduces on a GPU, no stream of the GPU may be blocked in a wait during the call: that loads a
    /// kernel, for which the driver waits ([`gdsync::cuda`]).
    ///
    /// # Errors
    /// [`CollectiveError::Bytes`], [`CollectiveError::Notifications`], [`CollectiveError::TooLong`],
    /// [`CollectiveError::Root`], [`CollectiveError::Element`], [`CollectiveError::Unaligned`], [`CollectiveError::Taken`],
    /// [`NotifyError::Cuda`](crate::NotifyError::Cuda), which the other ranks get as
    /// [`NotifyError::FailedOnRank`](crate::NotifyError::FailedOnRank); [`NotifyError::Mismatch`](crate::NotifyError::Mismatch),
    /// on all ranks, if they make different plans; [`NotifyError::PeerDead`](crate::NotifyError::PeerDead),
    /// [`NotifyError::Bootstrap`](crate::NotifyError::Bootstrap), as [`Team::barrier`](crate::Team::barrier).
    pub fn plan(&self, collective: Collective) -> Result<Plan, CollectiveError> {
        let mut taken = self.taken.lock();
        let plan = Plan::new(&self.queue, &self.segment, *taken, collective, self.gpu.as_ref())?;
        let ranks = plan.members().len() as u32;
        let (bytes, notifications) = (collective.bytes(ranks), collective.notifications(ranks));
        *taken = ((taken.0 + bytes).next_multiple_of(ALIGNMENT), taken.1 + notifications);
        Ok(plan)
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}
