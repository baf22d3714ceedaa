//! Every wait ends: waits of streams, collectors, triggers and persistent lists lose their producers in any order. A step posts,
//! takes back, awaits, fails or drops something at random; when all that a stream may wait for is dropped, the stream's thread ends.
//!
//! `GDSYNC_LIVES_SECONDS` is the time of the test (default 3 s), `GDSYNC_LIVES_SEED` the seed of its first life.

#![cfg(feature = "software-card")]

use gdsync::advanced::Collector;
use gdsync::advanced::MasterConfig;
use gdsync::memop::Condition;
use gdsync::persistent::{
    PersistentRecv, PersistentSend, Request, start_all, start_all_by_trigger, wait_all,
};
use gdsync::qp::{CardWord, SharedReceiveQueue};
use gdsync::stream::StreamOptions;
use gdsync::verbs::Transport;
use gdsync::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, MemoryRegion, PreparedSend, PreparedWait,
    ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_test_support::lives::{self, Random, threads};
use gdsync_test_support::pair::{self, LONG};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::io::Write;
use std::time::{Duration, Instant};

/// Lives that share a device.
const LIVES: u64 = 20;

/// Whatever a stream waits for, and what it needs to come.
#[derive(Default)]
struct Life {
    queue_pairs: Vec<QueuePair>,
    queues: Vec<CompletionQueue>,
    sends: Vec<PreparedSend>,
    waits: Vec<PreparedWait>,
    going_out: Vec<PersistentSend>,
    coming_in: Vec<PersistentRecv>,
    streams: Vec<Stream<SoftStream>>,
    collectors: Vec<Collector>,
    triggers: Vec<Trigger>,
    receives: Vec<SharedReceiveQueue>,
}

/// A random element of a list.
fn any<'a, T>(list: &'a [T], random: &mut Random) -> Option<&'a T> {
    (!list.is_empty()).then(|| &list[random.below(list.len())])
}

fn take<T>(list: &mut Vec<T>, random: &mut Random) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(random.below(list.len())))
}

/// Takes up to three elements.
fn some<T>(list: &mut Vec<T>, random: &mut Random) -> Vec<T> {
    (0..=random.below(3)).map_while(|_| take(list, random)).collect()
}

impl Life {
    fn new(pd: &ProtectionDomain, random: &mut Random) -> Life {
        let device = pd.device();
        let mut life = Life::default();
        for _ in 0..=random.below(2) {
            let collect_from = (random.below(2) == 0).then_some(1 + random.below(2) as u32);
            let options = StreamOptions::default().collect_from(collect_from);
            life.streams.push(Stream::with_options(SoftStream::new().unwrap(), options).unwrap());
        }
        if random.below(2) == 0 {
            life.collectors.push(Collector::new(&device).unwrap());
        }
        let shared = (random.below(2) == 0).then(|| pair::completion_queue(&device, 256).unwrap());
        for _ in 0..=random.below(3) {
            let trigger = (random.below(2) == 0).then(|| Trigger::new(pd).unwrap());
            let trigger = match trigger {
                Some(trigger) if random.below(2) == 0 => {
                    Some(trigger.with_master(MasterConfig::default()).unwrap())
                }
                other => other,
            };
            let transport =
                if trigger.is_none() && random.below(3) == 0 { Transport::Uc } else { Transport::Rc };
            let config = QueuePairConfig::default().transport(transport).send_depth(16).recv_depth(16);
            let with = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
            let receives = (random.below(3) == 0).then(|| SharedReceiveQueue::new(pd, 8).unwrap());
            let config = receives.as_ref().map_or(config, |receives| config.shared_receive_queue(receives));
            let left = match shared.as_ref().filter(|_| random.below(2) == 0) {
                Some(shared) => pair::sharing(pd, with, shared, shared),
                None => pair::queue_pair(pd, with),
            };
            let (left, right) = (left.unwrap(), pair::queue_pair(pd, config).unwrap());
            // A message without a receive fails soon.
            let options = ConnectOptions::default().rnr_retry(random.below(2) as u8);
            left.connect(&right.endpoint().unwrap(), options).unwrap();
            right.connect(&left.endpoint().unwrap(), options).unwrap();
            life.queues.extend([left.send_cq(), left.recv_cq(), right.send_cq(), right.recv_cq()]);
            life.queue_pairs.extend([left, right]);
            life.triggers.extend(trigger);
            life.receives.extend(receives);
        }
        life
    }

    /// Makes a random step. Returns whether it was not refused.
    fn step(&mut self, kind: usize, region: &MemoryRegion, random: &mut Random) -> bool {
        let slices = [region.slice(..8).unwrap()];
        let Some(queue_pair) = any(&self.queue_pairs, random) else { return false };
        let request = match random.below(2) {
            0 => WorkRequest::send(&slices),
            _ => WorkRequest::write(&slices, region.remote().slice(8..16).unwrap()),
        };
        match kind {
            0 => {
                let send = queue_pair.prepare(request);
                send.map(|send| self.sends.push(send)).is_ok()
            }
            1 => {
                let Some(queue) = any(&self.queues, random) else { return false };
                let wait = queue.prepare_wait();
                wait.map(|wait| self.waits.push(wait)).is_ok()
            }
            2 => match any(&self.receives, random).filter(|_| random.below(2) == 0) {
                Some(receives) => receives.post_recv(&slices, 0).is_ok(),
                None => queue_pair.post_recv(&slices, 0).is_ok(),
            },
            3 => queue_pair.post_send(request).is_ok(),
            4 => {
                let sends = some(&mut self.sends, random);
                let Some(stream) = any(&self.streams, random) else { return false };
                stream.post(sends.into_iter().fold(Batch::new(), Batch::send)).is_ok()
            }
            5 => {
                let waits = some(&mut self.waits, random);
                let Some(stream) = any(&self.streams, random) else { return false };
                let wait = |batch: Batch, wait: PreparedWait| match random.below(3) {
                    0 => batch.wait_checked(wait.checked().unwrap()),
                    _ => batch.wait(wait),
                };
                stream.post(waits.into_iter().fold(Batch::new(), wait)).is_ok()
            }
            6 => {
                let waits = some(&mut self.waits, random);
                let (Some(collector), Some(stream)) =
                    (any(&self.collectors, random), any(&self.streams, random))
                else {
                    return false;
                };
                let Ok(number) = collector.collect(waits) else { return false };
                let word = collector.word();
                stream.post(Batch::new().wait_value64(word, Condition::Geq, number)).is_ok()
            }
            7 => take(&mut self.sends, random).is_some(),
            8 => take(&mut self.waits, random).is_some(),
            9 => queue_pair.abort().is_ok(),
            10 => any(&self.queues, random).is_some_and(|queue| matches!(queue.poll(), Ok(Some(_)))),
            11 => match random.below(2) {
                0 => PersistentSend::send(queue_pair, &slices).map(|send| self.going_out.push(send)).is_ok(),
                _ => PersistentRecv::new(queue_pair, &slices).map(|recv| self.coming_in.push(recv)).is_ok(),
            },
            12 | 13 => self.start_or_wait(kind == 12, random),
            14 => match random.below(2) {
                0 => take(&mut self.going_out, random).is_some(),
                _ => take(&mut self.coming_in, random).is_some(),
            },
            15 => {
                let word = CardWord::in_region(region, 24).unwrap();
                let Ok(send) = PersistentSend::send(queue_pair, &slices) else { return false };
                send.card_wait(&word).map(|send| self.going_out.push(send)).is_ok()
            }
            16 => take(&mut self.queue_pairs, random).is_some(),
            17 => take(&mut self.queues, random).is_some(),
            18 => take(&mut self.collectors, random).is_some(),
            _ => queue_pair.reset().is_ok(),
        }
    }

    /// Starts all persistent requests on a stream, or has it wait for all.
    fn start_or_wait(&mut self, starts: bool, random: &mut Random) -> bool {
        let Some(stream) = any(&self.streams, random) else { return false };
        let going_out = self.going_out.iter_mut().map(|send| send as &mut dyn Request);
        let coming_in = self.coming_in.iter_mut().map(|recv| recv as &mut dyn Request);
        let mut list: Vec<_> = going_out.chain(coming_in).collect();
        match any(&self.triggers, random).filter(|_| random.below(2) == 0) {
            _ if !starts => wait_all(&mut list, stream, Duration::ZERO).is_ok(),
            Some(trigger) => start_all_by_trigger(&mut list, stream, trigger, Duration::ZERO).is_ok(),
            None => start_all(&mut list, stream, Duration::ZERO).is_ok(),
        }
    }

    /// Drops everything in a random order.
    fn end(mut self, random: &mut Random) {
        loop {
            let lengths = [
                self.queue_pairs.len(),
                self.queues.len(),
                self.sends.len(),
                self.waits.len(),
                self.going_out.len(),
                self.coming_in.len(),
                self.streams.len(),
                self.collectors.len(),
                self.triggers.len(),
                self.receives.len(),
            ];
            if lengths.iter().all(|len| *len == 0) {
                return;
            }
            match random.below(10) {
                0 => drop(take(&mut self.queue_pairs, random)),
                1 => drop(take(&mut self.queues, random)),
                2 => drop(take(&mut self.sends, random)),
                3 => drop(take(&mut self.waits, random)),
                4 => drop(take(&mut self.going_out, random)),
                5 => drop(take(&mut self.coming_in, random)),
                6 => drop(take(&mut self.streams, random)),
                7 => drop(take(&mut self.collectors, random)),
                8 => drop(take(&mut self.receives, random)),
                _ => drop(take(&mut self.triggers, random)),
            }
        }
    }
}

const KINDS: usize = 20;

/// Lives a life. Returns the steps that were not refused, by kind.
fn live(device: &Device, seed: u64, done: &mut [usize; KINDS]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let pd = ProtectionDomain::new(device).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::all()).unwrap();
    let mut life = Life::new(&pd, &mut random);
    for _ in 0..5 + random.below(30) {
        // Steps that make something are more likely than those that drop it.
        let kind = if random.below(4) == 0 { random.below(KINDS) } else { random.below(14) };
        let was_done = life.step(kind, &region, &mut random);
        done[kind] += usize::from(was_done);
    }
    life.end(&mut random);
}

/// Waits until only `own` threads are left.
fn settle(own: usize, seeds: std::ops::Range<u64>) {
    let deadline = Instant::now() + LONG;
    while threads() != own {
        assert!(Instant::now() < deadline, "a stream of a life from {seeds:?} still waits");
        // Any stream reaps the work of dropped streams.
        drop(pair::soft());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_stream_ends_when_everything_it_waits_for_is_dropped() {
    let test = "a_stream_ends_when_everything_it_waits_for_is_dropped";
    if on_system() {
        return skipped(test, "it fails queue pairs of the software card of this process");
    }
    if !alone(module_path!(), test, &[]) {
        return;
    }
    let (seconds, mut seed) = lives::settings();
    let (own, end) = (threads(), Instant::now() + Duration::from_secs(seconds));
    let (first, mut done) = (seed, [0; KINDS]);
    while Instant::now() < end {
        let device = Device::software().unwrap();
        (seed..seed + LIVES).for_each(|seed| live(&device, seed, &mut done));
        drop(device);
        settle(own, seed..seed + LIVES);
        seed += LIVES;
    }
    let text = format!("{} lives, {} threads before and after, {done:?} steps by kind\n", seed - first, own);
    std::io::stderr().write_all(text.as_bytes()).unwrap();
    assert!(seconds < 3 || done.iter().all(|count| *count > 0), "{done:?}");
}
