//! The exchange by persistent requests.

use super::TIMEOUT;
use super::rank::{BLOCK, PLACES, Place};
use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
use gdsync::{
    Access, ConnectOptions, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream,
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
        let (mut queue_pairs, mut endpoints) = (Vec::new(), Vec::new());
        for _ in place.peers() {
            let queue_pair = QueuePair::new(pd, config)?;
            endpoints.push(queue_pair.endpoint()?.to_string());
            queue_pairs.push(queue_pair);
        }
        let all = bootstrap.all_gather(endpoints.join("\n").as_bytes())?;
        // Many threads share few processors: a card may be late, and a rank, too.
        let options = ConnectOptions::default().timeout(20).retry_count(7).rnr_retry(7);
        for (peer, queue_pair) in place.peers().zip(&queue_pairs) {
            // Among a peer's endpoints, there is none for itself.
            let own = place.number - usize::from(place.number > peer);
            let endpoint = std::str::from_utf8(&all[peer])?.lines().nth(own).ok_or("a rank lacks a peer")?;
            queue_pair.connect(&endpoint.parse()?, options)?;
        }
        bootstrap.barrier()?;
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

    /// Enqueues a round, in a start and a wait. Returns the memory operations.
    pub(super) fn enqueue(
        &mut self,
        stream: &Stream<SoftStream>,
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
        let started = start_all(&mut started, stream, TIMEOUT)?;
        let mut waited: Vec<&mut dyn Request> = now.iter_mut().flatten().map(|one| one as _).collect();
        waited.extend(self.sends[at].iter_mut().map(|one| one as &mut dyn Request));
        Ok(started.operations + wait_all(&mut waited, stream, TIMEOUT)?.operations)
    }

    /// The same, in a start and a wait for each request.
    pub(super) fn enqueue_singly(
        &mut self,
        stream: &Stream<SoftStream>,
        round: u64,
        last: u64,
    ) -> Result<usize, Failure> {
        let at = round as usize % PLACES;
        let (receives, sends) = (&mut self.receives, &mut self.sends[at]);
        let mut operations = 0;
        let next = receives[(at + 1) % PLACES].iter_mut().filter(|_| round + 1 < last);
        for one in next {
            operations += start_all(&mut [one], stream, TIMEOUT)?.operations;
        }
        for one in sends.iter_mut() {
            operations += start_all(&mut [one], stream, TIMEOUT)?.operations;
        }
        for one in &mut receives[at] {
            operations += wait_all(&mut [one], stream, TIMEOUT)?.operations;
        }
        for one in sends {
            operations += wait_all(&mut [one], stream, TIMEOUT)?.operations;
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
