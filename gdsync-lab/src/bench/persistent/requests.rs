//! The exchange by persistent requests.

use crate::bench::ranks::{self, BLOCK, PLACES, Place, TIMEOUT};
use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
use gdsync::{
    Access, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Stream,
};
use gdsync_cli::failure::Failure;
use gdsync_notify::bootstrap::Bootstrap;

pub(super) struct Requests {
    source: MemoryRegion,
    target: MemoryRegion,
    /// By place, one for each peer.
    sends: Vec<Vec<PersistentSend>>,
    receives: Vec<Vec<PersistentRecv>>,
    /// Dropped last: dropping one with work in flight aborts it.
    _queue_pairs: Vec<QueuePair>,
}

impl Requests {
    pub(super) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        place: Place,
        bootstrap: &mut Bootstrap,
    ) -> Result<Self, Failure> {
        let source = MemoryRegion::allocate(pd, place.bytes(), Access::empty())?;
        let target = MemoryRegion::allocate(pd, place.bytes(), Access::LOCAL_WRITE)?;
        let make = |_| QueuePair::new(pd, config);
        let queue_pairs: Vec<QueuePair> = place.peers().map(make).collect::<Result<_, _>>()?;
        ranks::connect(&queue_pairs, place, bootstrap)?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for at in 0..PLACES as u64 {
            let slice = |region: &MemoryRegion, peer| {
                let offset = place.offset(peer, at);
                region.slice(offset..offset + BLOCK)
            };
            let (mut out, mut into) = (Vec::new(), Vec::new());
            for (peer, queue_pair) in place.peers().zip(&queue_pairs) {
                out.push(PersistentSend::send(queue_pair, &[slice(&source, peer)?])?);
                into.push(PersistentRecv::new(queue_pair, &[slice(&target, peer)?])?);
            }
            sends.push(out);
            receives.push(into);
        }
        Ok(Requests { source, target, sends, receives, _queue_pairs: queue_pairs })
    }

    pub(super) fn memory(&self) -> [PinnedMemory; 2] {
        [self.source.memory().clone(), self.target.memory().clone()]
    }

    /// Starts the receives of the first round.
    pub(super) fn expect_first(&mut self, stream: &Stream<SoftStream>, round: u64) -> Result<(), Failure> {
        let receives = &mut self.receives[round as usize % PLACES];
        Ok(receives.iter_mut().try_for_each(|one| one.start(stream))?)
    }

    /// Enqueues a round, in a start and a wait of all requests, or of each. Returns the memory operations.
    pub(super) fn enqueue(
        &mut self,
        stream: &Stream<SoftStream>,
        singly: bool,
        round: u64,
        last: u64,
    ) -> Result<usize, Failure> {
        let at = round as usize % PLACES;
        let (now, next) = self.receives.split_at_mut(1);
        let (now, next) = if at == 0 { (now, next) } else { (next, now) };
        // A peer sends its next message once it has this round's: behind the receive for it.
        let next = next.iter_mut().flatten().filter(|_| round + 1 < last);
        let mut started: Vec<&mut dyn Request> = next.map(|one| one as _).collect();
        started.extend(self.sends[at].iter_mut().map(|one| one as &mut dyn Request));
        let together = |requests: &[&mut dyn Request]| if singly { 1 } else { requests.len().max(1) };
        let mut operations = 0;
        let size = together(&started);
        for some in started.chunks_mut(size) {
            operations += start_all(some, stream, TIMEOUT)?.operations;
        }
        let mut waited: Vec<&mut dyn Request> = now.iter_mut().flatten().map(|one| one as _).collect();
        waited.extend(self.sends[at].iter_mut().map(|one| one as &mut dyn Request));
        let size = together(&waited);
        for some in waited.chunks_mut(size) {
            operations += wait_all(some, stream, TIMEOUT)?.operations;
        }
        Ok(operations)
    }

    /// Completes all requests.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        for send in self.sends.iter_mut().flatten().filter(|one| one.is_active()) {
            send.complete(TIMEOUT)?.ok_or("a send does not complete")?.status?;
        }
        for receive in self.receives.iter_mut().flatten().filter(|one| one.is_active()) {
            receive.complete(TIMEOUT)?.ok_or("a receive does not complete")?.status?;
        }
        Ok(())
    }
}
