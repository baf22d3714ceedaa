//! One rank: its stream, and its rounds, whichever way the messages go.

use super::requests::Requests;
use super::writes::Writes;
use crate::bench::micros_since;
use gdsync::stream::{Event, StreamOptions};
use gdsync::{Device, PinnedMemory, ProtectionDomain, QueuePairConfig, SoftStream, Stream, Trigger};
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use gdsync_notify::bootstrap::Bootstrap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Bytes of a message.
pub(super) const BLOCK: usize = 256;
/// Messages of one peer that may be in a rank's memory: a peer is at most a round ahead.
pub(super) const PLACES: usize = 2;
/// Rounds that a rank has enqueued at a time.
const AHEAD: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Persistent requests, all of a round together.
    All,
    /// The same requests, one by one.
    Singly,
    /// Persistent requests, all of a round together, for which the card waits: by a trigger and a collector.
    CardWaits,
    /// Notified writes, in one batch a round.
    Notified,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::All, Way::Singly, Way::CardWaits, Way::Notified];
}

/// Numbers of a rank and of its peers.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) number: usize,
    pub(super) ranks: usize,
}

impl Place {
    pub(super) fn peers(self) -> impl Iterator<Item = usize> {
        (0..self.ranks).filter(move |peer| *peer != self.number)
    }

    /// Where a message from or to a peer lies.
    pub(super) fn offset(self, peer: usize, round: u64) -> usize {
        ((round as usize % PLACES) * self.ranks + peer) * BLOCK
    }

    /// Bytes of all messages, in and out.
    pub(super) fn bytes(self) -> usize {
        PLACES * self.ranks * BLOCK
    }
}

/// What one rank sends to another in a round: different for all of them.
fn content(from: usize, to: usize, round: u64) -> Pattern {
    Pattern::new(0, (round << 16 | (from as u64) << 8 | to as u64) << 1)
}

pub(super) struct Rank {
    place: Place,
    stream: Stream<SoftStream>,
    requests: Requests,
    /// On queue pairs with a trigger, by a stream that has a collector. None where the card cannot wait.
    card_waits: Option<(Requests, Stream<SoftStream>)>,
    writes: Writes,
    /// Messages that were not as they were sent.
    wrong: Arc<AtomicU64>,
    /// Rounds so far, by all ways: no message is like another.
    round: u64,
}

impl Rank {
    pub(super) fn new((device, port): (Device, u8), mut bootstrap: Bootstrap) -> Result<Self, Failure> {
        let pd = ProtectionDomain::new(&device)?;
        let place = Place { number: bootstrap.rank() as usize, ranks: bootstrap.size() as usize };
        let config = QueuePairConfig::default().port(port);
        let requests = Requests::new(&pd, config, place, &mut bootstrap)?;
        let waits = device.card_waits()?;
        let card_waits = match waits.data && waits.queues {
            false => None,
            true => {
                let trigger = Trigger::new(&pd)?;
                let requests = Requests::new(&pd, config.trigger(&trigger), place, &mut bootstrap)?;
                let options = StreamOptions::default().collect_from(Some(2));
                Some((requests, Stream::with_options(SoftStream::new()?, options)?))
            }
        };
        let writes = Writes::new((&pd, port), place, bootstrap)?;
        let stream = Stream::new(SoftStream::new()?)?;
        Ok(Rank { place, stream, requests, card_waits, writes, wrong: Arc::default(), round: 0 })
    }

    /// Whether the card can go that way.
    pub(super) fn has(&self, way: Way) -> bool {
        way != Way::CardWaits || self.card_waits.is_some()
    }

    /// Sends a message to each other rank and waits for one of each, so many times. Every byte is
    /// checked. Returns µs and memory operations of a round.
    pub(super) fn play(&mut self, way: Way, rounds: u64, begin: &Barrier) -> Result<(f64, f64), Failure> {
        let Rank { place, stream, requests, card_waits, writes, wrong, round } = self;
        let (requests, stream) = match (way, card_waits) {
            (Way::CardWaits, Some((requests, stream))) => (requests, &*stream),
            (Way::CardWaits, None) => return Err("the card cannot wait".into()),
            _ => (requests, &*stream),
        };
        let place = *place;
        // Of the same parity as the last: places are used in turn.
        let (first, last) = (*round, *round + rounds);
        *round = last.next_multiple_of(PLACES as u64);
        if way != Way::Notified {
            requests.expect_first(stream, first)?;
            stream.synchronize()?;
        }
        begin.wait();
        let (start, mut operations) = (Instant::now(), 0);
        let mut under_way: VecDeque<Event> = VecDeque::new();
        for round in first..last {
            let [source, target] = match way {
                Way::Notified => writes.memory()?,
                Way::All | Way::Singly | Way::CardWaits => requests.memory(),
            };
            let fill = move |peer| {
                content(place.number, peer, round).fill(&source, place.offset(peer, round), BLOCK)
            };
            stream.launch(move || place.peers().for_each(fill))?;
            operations += match way {
                Way::All | Way::CardWaits => requests.enqueue(stream, round, last)?,
                Way::Singly => requests.enqueue_singly(stream, round, last)?,
                Way::Notified => writes.enqueue(stream, round)?,
            };
            check(stream, place, target, round, wrong)?;
            under_way.push_back(stream.record()?);
            if under_way.len() == AHEAD {
                under_way.pop_front().iter().for_each(Event::synchronize);
            }
        }
        under_way.iter().for_each(Event::synchronize);
        let time = micros_since(start);
        match way {
            Way::Notified => writes.finish()?,
            Way::All | Way::Singly | Way::CardWaits => requests.finish()?,
        }
        begin.wait();
        match wrong.load(Ordering::Relaxed) {
            0 => Ok((time / rounds as f64, operations as f64 / rounds as f64)),
            wrong => Err(format!("rank {}: {wrong} messages are not as they were sent", place.number).into()),
        }
    }
}

/// Has a stream check the messages of a round. Those that are not as they were sent are counted.
fn check(
    stream: &Stream<SoftStream>,
    place: Place,
    target: PinnedMemory,
    round: u64,
    wrong: &Arc<AtomicU64>,
) -> Result<(), Failure> {
    let wrong = wrong.clone();
    stream.launch(move || {
        let is_wrong = |peer: &usize| {
            let content = content(*peer, place.number, round);
            content.check(&target, place.offset(*peer, round), 0, BLOCK).is_err()
        };
        wrong.fetch_add(place.peers().filter(is_wrong).count() as u64, Ordering::Relaxed);
    })?;
    Ok(())
}
