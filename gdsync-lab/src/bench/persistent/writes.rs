//! The exchange by notified writes.

use crate::bench::ranks::{BLOCK, PLACES, Place, TIMEOUT};
use gdsync::{Batch, PinnedMemory, ProtectionDomain, QueuePairConfig, SoftStream, Stream};
use gdsync_cli::failure::Failure;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{Operation, Queue, Segment, SegmentMemory, Team, TeamConfig, WaitNotification};

pub(super) struct Writes {
    place: Place,
    /// Holds the queue.
    team: Team,
    queue: Queue,
    source: Segment,
    target: Segment,
}

impl Writes {
    pub(super) fn new(
        (pd, port): (&ProtectionDomain, u8),
        place: Place,
        bootstrap: Bootstrap,
    ) -> Result<Self, Failure> {
        let queue_pair = QueuePairConfig::default().port(port).recv_depth(1);
        let team = Team::new(pd, bootstrap, TeamConfig::default().queue_pair(queue_pair))?;
        let source = team.allocate(place.bytes(), 0)?;
        let target = team.allocate(place.bytes(), u32::try_from(PLACES * place.ranks)?)?;
        Ok(Writes { place, queue: team.queue(0)?, team, source, target })
    }

    pub(super) fn memory(&self) -> Result<[PinnedMemory; 2], Failure> {
        let of = |segment: &Segment| match segment.memory() {
            SegmentMemory::Host(memory) => Ok(memory.memory().clone()),
            _ => Err("a segment is not in host memory"),
        };
        Ok([of(&self.source)?, of(&self.target)?])
    }

    /// Enqueues a round. Returns the memory operations.
    pub(super) fn enqueue(&self, stream: &Stream<SoftStream>, round: u64) -> Result<usize, Failure> {
        let (own, number) = (self.place, self.place.number);
        let mut batch = Batch::new();
        for peer in own.peers() {
            let (from, to) = (own.offset(peer, round), own.offset(number, round));
            let slice = self.source.slice(from..from + BLOCK)?;
            let (rank, id) = (u32::try_from(peer)?, u32::try_from(to / BLOCK)?);
            let (from, offset) = (&slice, to as u64);
            let write = Operation::WriteNotify { from, rank, to: &self.target, offset, id, value: 1 };
            batch = self.queue.prepare(write)?.fold(batch, Batch::send);
        }
        for peer in own.peers() {
            let id = u32::try_from(own.offset(peer, round) / BLOCK)?;
            batch = batch.wait_notification(&self.target.notification(id)?);
        }
        Ok(stream.post_timeout(batch, TIMEOUT).map_err(|error| error.to_string())?.operations)
    }

    pub(super) fn finish(&self) -> Result<(), Failure> {
        self.queue.flush(TIMEOUT)?;
        Ok(self.team.barrier()?)
    }
}
