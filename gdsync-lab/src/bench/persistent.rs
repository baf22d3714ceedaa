//! `gdsync bench persistent`: rounds in which every rank sends to every other, by persistent requests, with waits by a
//! stream or the card, and by notified writes.
//!
//! A rank waits for no acknowledgement of the messages of the same round: the memory that a message is sent from has
//! another message two rounds later. Notified writes never wait for acknowledgements, as a peer's next message implies
//! that the previous one arrived. Requests wait a round later, but at once in the variants that say so or have a collector.

use super::ranks::{self, BLOCK, Measured, PLACES, RankId, TIMEOUT};
use super::table::{MEDIAN_RATIO, Outcome, Row};
use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
use gdsync::stream::StreamOptions;
use gdsync::{
    Access, Batch, Device, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair, QueuePairConfig,
    SoftStream, Stream, Trigger,
};
use gdsync_cli::cli::BenchOptions;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use gdsync_notify::bootstrap::Bootstrap;
use gdsync_notify::{Operation, Queue, Segment, SegmentMemory, Team, TeamConfig, WaitNotification};

const RANKS: [usize; 3] = [2, 4, 8];
/// Runs; each measures every variant once.
const RUNS: usize = 10;

/// Persistent requests: all of a round together, the same with waits for the round's own sends, one by one, and all
/// together with waits by the card (a trigger and a collector). The reference: notified writes, one batch a round.
const VARIANTS: [&str; 5] = [
    "start_all, wait_all",
    "start_all, wait_all, sends at once",
    "start, wait_on",
    "start_all, wait_all, trigger and collector",
    "notified writes",
];
const AT_ONCE: usize = 1;
const SINGLY: usize = 2;
const CARD_WAITS: usize = 3;
const NOTIFIED: usize = 4;

pub(super) fn run(options: &BenchOptions) -> Result<Outcome, Failure> {
    let (rounds, mut runs, mut bytes_checked) = (options.rounds(), RUNS, 0);
    let mut rows = Vec::new();
    for ranks in RANKS {
        let hca = options.hca.clone();
        let make = move |bootstrap| Rank::new(hca::open(hca.as_ref())?, bootstrap);
        let measured: [Measured; VARIANTS.len()] = ranks::measure(ranks, RUNS, rounds, make)?;
        let [ours @ .., notified] = &measured;
        runs = runs.min(notified.times.len());
        let played: u64 = measured.iter().map(|variant| variant.rounds).sum();
        bytes_checked += (ranks * (ranks - 1) * BLOCK) as u64 * played;
        for (what, variant) in VARIANTS.into_iter().zip(ours).filter(|(_, variant)| !variant.times.is_empty())
        {
            let pairs = variant.times.iter().zip(&notified.times);
            let ratios: Vec<f64> = pairs.map(|(one, two)| one / two).collect();
            let row =
                Row::default().text(format!("{ranks} ranks, {what}")).key("ranks", ranks).key("what", what);
            rows.push(
                row.number("gdsync_us", variant.median(), 2)
                    .number("reference_us", notified.median(), 2)
                    .ratios(&ratios, 2)
                    .number("gdsync_operations", variant.operations, 2)
                    .number("reference_operations", notified.operations, 2),
            );
        }
    }
    let heading = format!("{runs} RUNS OF {rounds} ROUNDS");
    let header =
        [&*heading, "REQUESTS µs", "WRITES µs", MEDIAN_RATIO, "FROM", "TO", "OPERATIONS", "OF WRITES"];
    // Every byte of every message was checked.
    let all = Row::default().key("runs", runs).key("rounds", rounds).key("verified", true);
    let outcome = Outcome::of(all.key("bytes_checked", bytes_checked), &header, &rows);
    let title = "A round in which every rank sends to every other";
    Ok(outcome.lines(title, ["Ranks", "Median time of a round, µs"], "ranks", &rows, |row| {
        let what = row.name().split_once(", ").map_or("", |(_, what)| what);
        [(what.to_owned(), "gdsync_us"), (VARIANTS[NOTIFIED].to_owned(), "reference_us")]
    }))
}

struct Rank {
    stream: Stream<SoftStream>,
    requests: Requests,
    /// Requests on queue pairs with a trigger, and a stream with a collector. None if the card cannot wait.
    card_waits: Option<(Requests, Stream<SoftStream>)>,
    writes: Writes,
}

impl Rank {
    fn new((device, port): (Device, u8), mut bootstrap: Bootstrap) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(&device)?;
        let id = RankId::of(&bootstrap);
        let config = QueuePairConfig::default().port(port);
        let requests = Requests::new(&pd, config, id, &mut bootstrap)?;
        let waits = device.card_waits()?;
        let card_waits = match waits.data && waits.queues {
            false => None,
            true => {
                let trigger = Trigger::new(&pd)?;
                let requests = Requests::new(&pd, config.trigger(&trigger), id, &mut bootstrap)?;
                let options = StreamOptions::default().collect_from(Some(2));
                Some((requests, Stream::with_options(SoftStream::new()?, options)?))
            }
        };
        let writes = Writes::new((&pd, port), id, bootstrap)?;
        Ok(Rank { stream: Stream::new(SoftStream::new()?)?, requests, card_waits, writes })
    }

    fn requests(&mut self, variant: usize) -> (&mut Requests, &Stream<SoftStream>) {
        match &mut self.card_waits {
            Some((requests, stream)) if variant == CARD_WAITS => (requests, stream),
            _ => (&mut self.requests, &self.stream),
        }
    }
}

impl ranks::Rank for Rank {
    fn stream(&self, variant: usize) -> Option<&Stream<SoftStream>> {
        match variant {
            CARD_WAITS => self.card_waits.as_ref().map(|(_, stream)| stream),
            _ => Some(&self.stream),
        }
    }

    fn memory(&self, variant: usize) -> Result<[PinnedMemory; 2], Failure> {
        match (variant, &self.card_waits) {
            (NOTIFIED, _) => self.writes.memory(),
            (CARD_WAITS, Some((requests, _))) => Ok(requests.memory()),
            _ => Ok(self.requests.memory()),
        }
    }

    fn begin(&mut self, variant: usize, round: u64) -> Result<(), Failure> {
        if variant != NOTIFIED {
            let (requests, stream) = self.requests(variant);
            requests.expect_first(stream, round)?;
            stream.synchronize()?;
        }
        Ok(())
    }

    fn enqueue(&mut self, variant: usize, round: u64, last: u64) -> Result<usize, Failure> {
        if variant == NOTIFIED {
            return self.writes.enqueue(&self.stream, round);
        }
        let (requests, stream) = self.requests(variant);
        requests.enqueue(stream, variant, round, last)
    }

    fn finish(&mut self, variant: usize) -> Result<(), Failure> {
        match variant {
            NOTIFIED => self.writes.finish(),
            variant => self.requests(variant).0.finish(),
        }
    }
}

struct Requests {
    source: MemoryRegion,
    target: MemoryRegion,
    /// By place, one for each peer.
    sends: Vec<Vec<PersistentSend>>,
    receives: Vec<Vec<PersistentRecv>>,
    /// Dropped last: dropping a queue pair with work in flight aborts it.
    _queue_pairs: Vec<QueuePair>,
}

impl Requests {
    fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        id: RankId,
        bootstrap: &mut Bootstrap,
    ) -> Result<Self, Failure> {
        let source = MemoryRegion::allocate(pd, id.bytes(), Access::empty())?;
        let target = MemoryRegion::allocate(pd, id.bytes(), Access::LOCAL_WRITE)?;
        let make = |_| QueuePair::new(pd, config);
        let queue_pairs: Vec<QueuePair> = id.peers().map(make).collect::<Result<_, _>>()?;
        ranks::connect(&queue_pairs, id, bootstrap)?;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for at in 0..PLACES as u64 {
            let slice = |region: &MemoryRegion, peer| {
                let offset = id.offset(peer, at);
                region.slice(offset..offset + BLOCK)
            };
            let (mut out, mut into) = (Vec::new(), Vec::new());
            for (peer, queue_pair) in id.peers().zip(&queue_pairs) {
                out.push(PersistentSend::send(queue_pair, &[slice(&source, peer)?])?);
                into.push(PersistentRecv::new(queue_pair, &[slice(&target, peer)?])?);
            }
            sends.push(out);
            receives.push(into);
        }
        Ok(Requests { source, target, sends, receives, _queue_pairs: queue_pairs })
    }

    fn memory(&self) -> [PinnedMemory; 2] {
        [self.source.memory().clone(), self.target.memory().clone()]
    }

    fn expect_first(&mut self, stream: &Stream<SoftStream>, round: u64) -> Result<(), Failure> {
        let receives = &mut self.receives[round as usize % PLACES];
        Ok(receives.iter_mut().try_for_each(|one| one.start(stream))?)
    }

    /// Enqueues a round as the variant does. Returns the memory operations.
    fn enqueue(
        &mut self,
        stream: &Stream<SoftStream>,
        variant: usize,
        round: u64,
        last: u64,
    ) -> Result<usize, Failure> {
        let at = round as usize % PLACES;
        let (now, next) = self.receives.split_at_mut(1);
        let (now, next) = if at == 0 { (now, next) } else { (next, now) };
        // A peer sends its next message once it has this round's, which is sent after the receive for it is started.
        let next = next.iter_mut().flatten().filter(|_| round + 1 < last);
        let mut started: Vec<&mut dyn Request> = next.map(|one| one as _).collect();
        started.extend(self.sends[at].iter_mut().map(|one| one as &mut dyn Request));
        let together =
            |requests: &[&mut dyn Request]| if variant == SINGLY { 1 } else { requests.len().max(1) };
        let mut operations = 0;
        let size = together(&started);
        for some in started.chunks_mut(size) {
            operations += start_all(some, stream, TIMEOUT)?.operations;
        }
        let mut waited: Vec<&mut dyn Request> = now.iter_mut().flatten().map(|one| one as _).collect();
        // A collector has one word for what completes after the wait is enqueued: the sends of this round.
        let at_once = [AT_ONCE, CARD_WAITS].contains(&variant);
        let sends = &mut self.sends[if at_once { at } else { 1 - at }];
        // In the first round there are none before it.
        let sends = sends.iter_mut().filter(|one| one.is_active());
        waited.extend(sends.map(|one| one as &mut dyn Request));
        let size = together(&waited);
        for some in waited.chunks_mut(size) {
            operations += wait_all(some, stream, TIMEOUT)?.operations;
        }
        Ok(operations)
    }

    fn finish(&mut self) -> Result<(), Failure> {
        for send in self.sends.iter_mut().flatten().filter(|one| one.is_active()) {
            send.complete(TIMEOUT)?.ok_or("a send does not complete")?.status?;
        }
        for receive in self.receives.iter_mut().flatten().filter(|one| one.is_active()) {
            receive.complete(TIMEOUT)?.ok_or("a receive does not complete")?.status?;
        }
        Ok(())
    }
}

struct Writes {
    id: RankId,
    team: Team,
    queue: Queue,
    source: Segment,
    target: Segment,
}

impl Writes {
    fn new((pd, port): (&ProtectionDomain, u8), id: RankId, bootstrap: Bootstrap) -> Result<Self, Failure> {
        let queue_pair = QueuePairConfig::default().port(port).recv_depth(1);
        let team = Team::new(pd, bootstrap, TeamConfig::default().queue_pair(queue_pair))?;
        let source = team.allocate(id.bytes(), 0)?;
        let target = team.allocate(id.bytes(), u32::try_from(PLACES * id.ranks)?)?;
        Ok(Writes { id, queue: team.queue(0)?, team, source, target })
    }

    fn memory(&self) -> Result<[PinnedMemory; 2], Failure> {
        let of = |segment: &Segment| match segment.memory() {
            SegmentMemory::Host(memory) => Ok(memory.memory().clone()),
            _ => Err("a segment is not in host memory"),
        };
        Ok([of(&self.source)?, of(&self.target)?])
    }

    fn enqueue(&self, stream: &Stream<SoftStream>, round: u64) -> Result<usize, Failure> {
        let (own, number) = (self.id, self.id.number);
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

    fn finish(&self) -> Result<(), Failure> {
        self.queue.flush(TIMEOUT)?;
        Ok(self.team.barrier()?)
    }
}
