//! A process of a soak, which polls its ends of the links in turn.

use super::Assignment;
use super::end::{End, Role, SharedResources, mastered};
use super::gpu::{AnyStream, Gpu};
use super::peers::{Incoming, Message, Peers};
use super::plan::{self, Random};
use super::queues::CompletionDemux;
use super::tally::Tally;
use super::wire::{self, DEPTH, RECEIVES};
use gdsync::memop::Word64;
use gdsync::{Batch, CompletionQueue, Device, PinnedMemory, PreparedWait, ProtectionDomain, Trigger};
use gdsync_cli::cli::NO_FAULTS;
use gdsync_cli::failure::Failure;
use gdsync_cli::hca;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The error about another process that has ended too early.
pub(super) const GONE: &str = "is gone";
/// Time limit for the end of a run: draining queues, and recovery from failures.
const SETTLE: Duration = Duration::from_secs(120);
/// Pause after a round in which no end had anything to do.
const PAUSE: Duration = Duration::from_micros(50);
/// Maximum time between two random aborts of a queue pair, in milliseconds.
const CUT: u64 = 1000;

struct Side<'a> {
    peers: Peers,
    ends: Vec<End>,
    tally: &'a mut Tally,
    others: BTreeSet<usize>,
    is_done: bool,
}

pub(super) fn work(assignment: &Assignment, tally: &mut Tally) -> Result<(), Failure> {
    let Assignment { options, plan, rank } = assignment;
    let procs = options.procs as usize;
    let (device, port) = hca::open(options.hca.as_ref())?;
    let pd = ProtectionDomain::new(&device)?;
    let peers = Peers::join()?;
    let roles: Vec<Role> =
        (0..options.links).filter_map(|link| role(link, *rank, procs, options.seed)).collect();
    let shared = shared(&device, &pd, &roles)?;
    let (parts, gpu) = ((&device, &pd, port), Gpu::open(options.gpu, options.stand_in)?);
    let ends: Result<Vec<End>, Failure> =
        roles.into_iter().map(|role| End::new(role, parts, &shared, &gpu)).collect();
    let mut side = Side { peers, ends: ends?, tally, others: BTreeSet::new(), is_done: false };
    for end in &side.ends {
        side.peers.send(end.peer(), end.up()?)?;
    }
    let mut stop = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let mut random = Random::new(options.seed ^ *rank as u64 ^ 0xc7);
    let mut cut = Instant::now() + Duration::from_millis(random.below(CUT));
    let mut stopped = false;
    let collects = device.card_waits()?.queues;
    let mut gather = collects.then(|| Gather::new(Random::new(random.next()), &gpu)).transpose()?;
    while !side.is_done || side.others.len() < procs - 1 {
        let before = side.tally.operations;
        let mut worked = side.listen()?;
        let now = Instant::now();
        if side.peers.is_asked() {
            stop = stop.min(now);
        }
        if now >= stop && !stopped {
            stopped = true;
            side.ends.iter_mut().for_each(End::stop);
        }
        if now > cut && !stopped && plan != NO_FAULTS {
            cut = now + Duration::from_millis(random.below(CUT));
            side.cut(random.below(options.links.into()) as usize)?;
            wire::read_events(&device, side.tally)?;
        }
        worked |= side.step()?;
        if !side.is_done && side.ends.iter().all(End::is_done) {
            side.is_done = true;
            (0..procs)
                .filter(|peer| peer != rank)
                .try_for_each(|peer| side.peers.send(peer, Message::Done))?;
        }
        if let Some(gather) = &mut gather {
            gather.wait(&side.ends, side.tally)?;
        }
        if now > stop + SETTLE && !side.is_done {
            side.tally.hung += 1;
            let left = side.ends.iter().find(|end| !end.is_done()).map(|end| end.to_string());
            return Err(format!("not finished: {}", left.unwrap_or_default()).into());
        }
        if !worked && side.tally.operations == before {
            std::thread::sleep(PAUSE);
        }
    }
    let mut ends = std::mem::take(&mut side.ends);
    while !ends.is_empty() {
        let mut open = Vec::new();
        for mut end in ends {
            if !end.close(side.tally)? {
                open.push(end);
            }
        }
        ends = open;
    }
    gather.iter().try_for_each(|gather| gather.finish(tally))?;
    for demux in shared.queues.iter().flat_map(|(send, recv)| [send, recv]) {
        demux.borrow_mut().close(tally);
    }
    tally.balance();
    // While the device is open: its card's counts end with it.
    if hca::is_software(options.hca.as_ref()) {
        tally.rules = plan::fault_counts();
    }
    drop(device);
    Ok(())
}

/// Returns the shared resources: a trigger, if the card can wait, and two queues, if any ends share them.
fn shared(device: &Device, pd: &ProtectionDomain, roles: &[Role]) -> Result<SharedResources, Failure> {
    let waits = device.card_waits()?;
    let trigger = match (waits.data, waits.queues) {
        (true, true) => Some(mastered(pd)?),
        (true, false) => Some(Trigger::new(pd)?),
        (false, _) => None,
    };
    let sharing = roles.iter().filter(|role| role.shares_queues()).count() as u32;
    let queue = |depth: u32| -> Result<_, Failure> {
        Ok(CompletionDemux::new(CompletionQueue::new(device, sharing * 2 * depth)?, true))
    };
    let queues = (sharing > 0).then(|| Ok::<_, Failure>((queue(DEPTH)?, queue(RECEIVES as u32)?)));
    Ok(SharedResources { trigger, queues: queues.transpose()? })
}

impl Side<'_> {
    /// Handles messages of the other processes. Returns whether there was one.
    fn listen(&mut self) -> Result<bool, Failure> {
        let mut heard = false;
        while let Some(Incoming { from: peer, message }) = self.peers.receive() {
            heard = true;
            let Some(message) = message else {
                if self.others.contains(&peer) {
                    continue;
                }
                return Err(format!("process {peer} {GONE}").into());
            };
            let Some(link) = message.link() else {
                self.others.insert(peer);
                continue;
            };
            if let Some(index) = self.ends.iter().position(|end| end.link() == link)
                && let Some(answer) = self.ends[index].hear(message, self.tally)?
            {
                self.peers.send(peer, answer)?;
            }
        }
        Ok(heard)
    }

    /// Lets every end make progress. Returns whether anything has changed.
    fn step(&mut self) -> Result<bool, Failure> {
        let mut worked = false;
        for index in 0..self.ends.len() {
            if let Some(message) = self.ends[index].step(self.tally)? {
                worked = true;
                self.peers.send(self.ends[index].peer(), message)?;
            }
        }
        Ok(worked)
    }

    /// Cuts the connection of one end, if it is working.
    fn cut(&mut self, which: usize) -> Result<(), Failure> {
        let count = self.ends.len().max(1);
        if let Some(end) = self.ends.get_mut(which % count)
            && let Some(message) = end.cut(self.tally)?
        {
            self.peers.send(end.peer(), message)?;
        }
        Ok(())
    }
}

/// Returns this process's role in a link, if it has one of its ends. Links cycle through all pairs of processes.
fn role(link: u32, rank: usize, procs: usize, seed: u64) -> Option<Role> {
    let pairs: Vec<(usize, usize)> =
        (0..procs).flat_map(|low| (low + 1..procs).map(move |high| (low, high))).collect();
    let (low, high) = *pairs.get(link as usize % pairs.len())?;
    let (first, second) = (u64::from(link) * 2, u64::from(link) * 2 + 1);
    let role = |peer, own, other| Role { link, peer, own, other, seed };
    match rank {
        _ if rank == low => Some(role(high, first, second)),
        _ if rank == high => Some(role(low, second, first)),
        _ => None,
    }
}

const BATCHES: u64 = 4;
/// Time limit of the last of them after all ends are closed.
const LAST: Duration = Duration::from_secs(20);

/// A stream that waits for sends of several ends at once, whose completions the card collects. It only waits, for work
/// already handed over, so it blocks nothing.
struct Gather {
    stream: AnyStream,
    /// The number of batches that the stream has performed.
    done: Word64,
    posted: u64,
    random: Random,
}

impl Gather {
    /// On a GPU, the word that the card writes is in either memory.
    fn new(mut random: Random, gpu: &Gpu) -> Result<Self, Failure> {
        let stream = gpu.collecting(random.below(2) == 0)?;
        let done = Word64::new(&PinnedMemory::allocate(size_of::<u64>())?, 0)?;
        Ok(Gather { stream, done, posted: 0, random })
    }

    /// Sometimes waits for the next send of some of the ends.
    fn wait(&mut self, ends: &[End], tally: &mut Tally) -> Result<(), Failure> {
        if self.posted - self.done.load() >= BATCHES || self.random.below(8) != 0 {
            return Ok(());
        }
        let mut waits: Vec<PreparedWait> = Vec::new();
        for end in ends {
            if self.random.below(2) == 0 {
                waits.extend(end.next_send()?);
            }
        }
        let count = waits.len();
        let batch = waits.into_iter().fold(Batch::new(), Batch::wait);
        let batch = batch.write_value64(&self.done, self.posted + 1);
        let posted = self.stream.post(batch).map_err(|error| error.to_string())?;
        self.posted += 1;
        // Without a collector the stream has an operation for each queue, and two more.
        if posted.operations <= count {
            tally.collected += count as u64;
        }
        Ok(())
    }

    /// Ends the waits after all ends are closed, so that nothing is pending.
    fn finish(&self, tally: &mut Tally) -> Result<(), Failure> {
        if self.stream.synchronize_timeout(LAST)? {
            return Ok(());
        }
        tally.hung += 1;
        Err("a stream still waits for completions that are collected, and all have come".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_two_ends_in_two_processes() {
        for procs in [2, 3, 4, 16] {
            for link in 0..40 {
                let roles: Vec<(usize, Role)> =
                    (0..procs).filter_map(|rank| Some((rank, role(link, rank, procs, 1)?))).collect();
                let [(low, first), (high, second)] = &roles[..] else { panic!("{} ends", roles.len()) };
                assert_eq!((first.peer, second.peer), (*high, *low));
                assert_eq!((first.own, first.other), (second.other, second.own));
            }
        }
    }
}
