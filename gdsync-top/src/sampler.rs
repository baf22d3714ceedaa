//! Samples processes, and derives rates and the duration of waits from two samples.

use crate::view::{self, View};
use gdsync_cli::failure::Failure;
use gdsync_status::{Card, ProcessState, QueuePair, Status, Survey, Traffic, Wait, ipv4};
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Time limit of an answer. A stopped process costs this in every sample.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// Key of a card: process and address.
type CardName = (u32, u64);

/// Key of a wait: process; card of a queue pair, or `None` for a stream; number; the wait's description and mark.
type WaitName = (u32, Option<u64>, u64, String, u64);

/// Takes samples, and keeps the last one.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    cards: HashMap<CardName, (u64, Traffic, Traffic)>,
    /// Time at which each wait was first seen.
    waits: HashMap<WaitName, u64>,
    last_ns: Option<u64>,
}

impl Sampler {
    pub(crate) fn sample(&mut self) -> Result<View, Failure> {
        let found =
            Survey::take(ANSWER_LIMIT).map_err(|error| format!("processes cannot be listed: {error}"))?;
        Ok(self.view(&found))
    }

    /// Converts answers to a view.
    pub(crate) fn view(&mut self, found: &Survey) -> View {
        let times = found.processes.iter().filter_map(|process| Some(process.status.as_ref().ok()?.at_ns));
        let now_ns = times.max();
        let interval = now_ns.zip(self.last_ns).map_or(0, |(now, last)| now.saturating_sub(last));
        let mut next = Sampler { last_ns: now_ns, ..Sampler::default() };
        let process = |process: &gdsync_status::Process| {
            let (pid, name) = (process.pid, process.name.clone());
            let named = view::Process { pid, name, ..view::Process::default() };
            match &process.status {
                Ok(status) => {
                    ProcessSampler { pid, found, last: self, next: &mut next }.process(named, status)
                }
                Err(error) => view::Process { error: Some(error.to_string()), ..named },
            }
        };
        let processes = found.processes.iter().map(process).collect();
        *self = next;
        View { interval_s: interval as f64 / 1e9, processes }
    }
}

struct ProcessSampler<'a> {
    pid: u32,
    found: &'a Survey,
    last: &'a Sampler,
    next: &'a mut Sampler,
}

impl ProcessSampler<'_> {
    fn process(&mut self, named: view::Process, status: &Status) -> view::Process {
        let at = status.at_ns;
        let all: Vec<&QueuePair> = status.cards.iter().flat_map(|card| &card.queue_pairs).collect();
        let left_out = |count: u32, shown: usize| count.saturating_sub(shown as u32);
        view::Process {
            cards: status.cards.iter().map(|card| self.card(card, at)).collect(),
            cards_left_out: left_out(status.card_count, status.cards.len()),
            streams: status
                .streams
                .iter()
                .map(|stream| view::Stream {
                    number: stream.number,
                    waits: stream.waits,
                    wait: self.wait(&stream.wait, (None, stream.number), at, &all, None),
                })
                .collect(),
            streams_left_out: left_out(status.stream_count, status.streams.len()),
            ..named
        }
    }

    fn card(&mut self, card: &Card, at: u64) -> view::Card {
        let name = (self.pid, card.node);
        let before = self.last.cards.get(&name).filter(|_| !card.is_busy);
        let traffic = |now: Traffic, before: Option<(u64, Traffic)>| {
            let rate = |now: u64, of: fn(&Traffic) -> u64| {
                let (then, before) = before?;
                let seconds = at.saturating_sub(then) as f64 / 1e9;
                // A new card at the same address has smaller counters.
                (seconds > 0.0).then(|| now.checked_sub(of(&before)).map(|count| count as f64 / seconds))?
            };
            view::Traffic {
                packets: now.packets,
                payload_bytes: now.bytes,
                packets_per_s: rate(now.packets, |traffic| traffic.packets),
                payload_bytes_per_s: rate(now.bytes, |traffic| traffic.bytes),
            }
        };
        let sent = traffic(card.sent, before.map(|(at, sent, _)| (*at, *sent)));
        let received = traffic(card.received, before.map(|(at, _, received)| (*at, *received)));
        if !card.is_busy {
            self.next.cards.insert(name, (at, card.sent, card.received));
        }
        let all: Vec<&QueuePair> = card.queue_pairs.iter().collect();
        view::Card {
            address: address(card),
            link: if card.is_ethernet { "Ethernet" } else { "InfiniBand" },
            gid: Ipv6Addr::from(card.gid).to_string(),
            is_busy: card.is_busy,
            sent,
            received,
            not_ready_refusals: card.not_ready,
            sequence_refusals: card.out_of_sequence,
            faults_injected: card.faults,
            findings: card.findings,
            queue_pairs: card
                .queue_pairs
                .iter()
                .map(|pair| {
                    let place = (Some(card.node), pair.number.into());
                    view::QueuePair {
                        number: pair.number,
                        transport: pair.transport.clone(),
                        state: pair.state.clone(),
                        peer: self.peer(pair),
                        outstanding_requests: pair.outstanding,
                        outstanding_blocks: pair.blocks,
                        resends: pair.resends,
                        wait: pair.wait.as_ref().map(|wait| self.wait(wait, place, at, &all, Some(pair))),
                    }
                })
                .collect(),
            queue_pairs_left_out: card.queue_pair_count.saturating_sub(card.queue_pairs.len() as u32),
        }
    }

    fn peer(&self, pair: &QueuePair) -> Option<view::Peer> {
        let peer = self.found.peer(pair)?;
        let known = |pid| self.found.processes.iter().find(|process| process.pid == pid);
        Some(view::Peer {
            text: peer.to_string(),
            address: peer.address,
            pid: peer.pid,
            process: peer.pid.and_then(known).map(|process| process.name.clone()),
            rank: peer.rank,
            state: match peer.state {
                ProcessState::Stopped => Some("stopped"),
                ProcessState::Ended => Some("ended"),
                _ => None,
            },
        })
    }

    /// Returns a wait with the peers of the queue pairs that complete it; `own` is the waiting queue pair, if any.
    fn wait(
        &mut self,
        wait: &Wait,
        (card, number): (Option<u64>, u64),
        at: u64,
        all: &[&QueuePair],
        own: Option<&QueuePair>,
    ) -> view::Wait {
        let name = (self.pid, card, number, wait.what.clone(), wait.mark);
        let since = self.last.waits.get(&name).copied().unwrap_or(at);
        self.next.waits.insert(name, since);
        let seen = Duration::from_nanos(at.saturating_sub(since));
        let mut peers: Vec<view::Peer> = match (own, &wait.queue_pairs[..]) {
            (Some(own), []) => self.peer(own).into_iter().collect(),
            (_, numbers) => {
                let named = all.iter().filter(|pair| numbers.contains(&pair.number));
                named.filter_map(|pair| self.peer(pair)).collect()
            }
        };
        peers.dedup();
        view::Wait {
            what: wait.what.clone(),
            waited_ms: wait.time.unwrap_or(seen).as_secs_f64() * 1e3,
            is_at_least: wait.time.is_none(),
            queue_pairs: wait.queue_pairs.clone(),
            peers,
            description: self.found.describe(self.pid, wait, own),
        }
    }
}

fn address(card: &Card) -> String {
    match card.lid {
        0 => ipv4(card.node).unwrap_or(Ipv4Addr::UNSPECIFIED).to_string(),
        lid => format!("LID {lid:#x}"),
    }
}
