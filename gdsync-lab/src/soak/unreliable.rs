//! Unreliable links, of connections and of datagrams: messages may be lost, but those that arrive must be correct, and
//! arrive once.
//!
//! A message begins with its number, and with the number up to which its sender has seen the other side's messages.
//! That keeps both from overrunning the peer's receives; without news, a sender continues after a while.

use super::ledger::{Ended, Work};
use super::plan::{How, LONGEST, Planned};
use super::region::{MemoryLocation, Region};
use super::tally::Tally;
use super::traffic::{Offer, Traffic, Window};
use super::wire::{RECEIVES, Wire};
use gdsync::queue::WorkKind;
use gdsync::verbs::{AddressHandle, Transport};
use gdsync::{
    Access, Completion, ConnectOptions, Endpoint, ProtectionDomain, QueuePairConfig, RemoteMemory,
    WorkRequest,
};
use gdsync_cli::failure::Failure;
use std::fmt;
use std::time::{Duration, Instant};

/// Places of messages under way.
const PLACES: u64 = 2 * RECEIVES;
const PLACE: usize = HEADER + LONGEST;
/// Bytes before the content: two numbers.
const HEADER: usize = 16;
/// Unacknowledged messages after which the sender waits.
const UNSEEN: u64 = RECEIVES - 2;
/// After this long without news the sender sends one more.
const PATIENCE: Duration = Duration::from_millis(3);
/// Messages that have not arrived this long after the last one are lost.
const GIVEN_UP: Duration = Duration::from_millis(500);

pub(super) struct Unreliable {
    seed: u64,
    own: u64,
    other: u64,
    source: Region,
    window: Region,
    remote: Option<RemoteMemory>,
    /// For datagrams.
    there: Option<(AddressHandle, u32)>,
    next: u64,
    /// The other end has seen all messages before this one.
    seen: u64,
    arrived: Window,
    last: Option<u64>,
    sent_at: Instant,
    heard_at: Instant,
}

impl Unreliable {
    pub(super) fn new(
        pd: &ProtectionDomain,
        seed: u64,
        (own, other): (u64, u64),
        location: &MemoryLocation,
    ) -> Result<Self, Failure> {
        let region = |access| Region::new(location, pd, (PLACES as usize * PLACE, PLACE), access);
        Ok(Unreliable {
            seed,
            own,
            other,
            source: region(Access::empty())?,
            window: region(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            remote: None,
            there: None,
            next: 0,
            seen: 0,
            arrived: Window::default(),
            last: None,
            sent_at: Instant::now(),
            heard_at: Instant::now(),
        })
    }

    /// Derives a message that fits a datagram.
    fn planned(&self, wire: &Wire, sender: u64, number: u64) -> Planned {
        let planned = Planned::new(self.seed, sender, number);
        match wire.transport() {
            Transport::Ud => planned.at_most(wire.queue_pair.max_message() as usize - HEADER),
            _ => planned,
        }
    }

    /// Checks whether a receive holds a message that the other end can have sent, and not twice.
    fn check(&mut self, wire: &Wire, completion: &Completion) -> Result<Result<(), String>, Failure> {
        let written = completion.kind == WorkKind::ReceiveRdmaWithImmediate;
        let (region, at) = match completion.immediate {
            Some(immediate) if written => {
                let place = u64::from(Planned::number(immediate)) % PLACES;
                (&self.window, place as usize * PLACE)
            }
            _ => wire.received(completion),
        };
        let length = wire.data_len(completion);
        if length < HEADER || (written && wire.transport() == Transport::Ud) {
            return Ok(Err(format!("{completion:?}")));
        }
        let [number, seen] = region.load(at)?;
        let planned = self.planned(wire, self.other, number);
        if completion.immediate.is_some_and(|immediate| immediate != Planned::immediate(number)) {
            return Ok(Err(format!("message {number} with another's immediate")));
        }
        if length != HEADER + planned.length || !planned.is_in(region, at + HEADER)? {
            return Ok(Err(format!("message {number} is not as planned: {length} bytes, {planned:?}")));
        }
        if seen > self.next {
            return Ok(Err(format!("message {number} has seen {seen} of {}", self.next)));
        }
        self.seen = self.seen.max(seen);
        Ok(if self.arrived.take(number) { Ok(()) } else { Err(String::new()) })
    }
}

fn qkey() -> u32 {
    QueuePairConfig::default().qkey
}

impl Traffic for Unreliable {
    fn offer(&self) -> Offer {
        Offer {
            expected: self.arrived.end(),
            window: self.window.remote().to_string(),
            fixed: String::new(),
            control: String::new(),
            words: Default::default(),
        }
    }

    fn resume(&mut self, wire: &Wire, there: &Endpoint, offer: &Offer, _: &mut Tally) -> Result<(), Failure> {
        self.remote = Some(offer.window.parse()?);
        self.seen = self.seen.max(offer.expected.min(self.next));
        if wire.transport() == Transport::Ud {
            let handle = wire.queue_pair.address_handle(there, ConnectOptions::default())?;
            self.there = Some((handle, there.qpn));
        }
        Ok(())
    }

    fn receive(&mut self, wire: &Wire, completion: &Completion, tally: &mut Tally) -> Result<(), Failure> {
        self.heard_at = Instant::now();
        tally.bytes += u64::from(completion.byte_len);
        tally.loose_received += 1;
        match self.check(wire, completion)? {
            Ok(()) => {}
            Err(text) if text.is_empty() => tally.duplicated += 1,
            Err(text) => {
                tally.wrong(|| format!("{self}: {text}"));
            }
        }
        Ok(())
    }

    fn end(&mut self, _: &Ended, _: Option<&Completion>, _: &mut Tally) -> Result<(), Failure> {
        Ok(())
    }

    fn post(&mut self, wire: &mut Wire, tally: &mut Tally) -> Result<(), Failure> {
        let (number, now) = (self.next, Instant::now());
        let waits = number - self.seen >= UNSEEN && now.duration_since(self.sent_at) < PATIENCE;
        if self.last.is_some() || waits || wire.ledger.len() as u64 >= PLACES / 2 {
            return Ok(());
        }
        let planned = self.planned(wire, self.own, number);
        let at = (number % PLACES) as usize * PLACE;
        self.source.store(at, [number, self.arrived.end()])?;
        planned.fill(&self.source, at + HEADER)?;
        let slices = [self.source.slice(at..at + HEADER + planned.length)?];
        let immediate = Planned::immediate(number);
        let request = match (planned.how, self.remote, &self.there) {
            (How::Send, _, None) => WorkRequest::send(&slices),
            (How::Send, _, Some((handle, qpn))) => WorkRequest::send(&slices).to(handle, *qpn, qkey()),
            (_, _, Some((handle, qpn))) => {
                WorkRequest::send(&slices).immediate(immediate).to(handle, *qpn, qkey())
            }
            // The other end must not read this place any more.
            (How::WriteImmediate, Some(window), None) if number < self.seen + PLACES => {
                let there = window.slice(at..at + HEADER + planned.length)?;
                WorkRequest::write(&slices, there).immediate(immediate)
            }
            _ => WorkRequest::send(&slices).immediate(immediate),
        };
        if wire.post(request, Work::Message(number), true, tally)? {
            self.next += 1;
            self.sent_at = now;
            tally.loose_sent += 1;
        }
        Ok(())
    }

    fn stop(&mut self) {
        self.last.get_or_insert(self.next);
    }

    fn sent(&self, wire: &Wire) -> Option<u64> {
        self.last.filter(|_| wire.ledger.len() == 0)
    }

    fn has_all(&self, peer_sent: u64) -> bool {
        self.arrived.count == peer_sent || self.heard_at.elapsed() > GIVEN_UP
    }

    fn close(&self, peer_sent: u64, tally: &mut Tally) {
        tally.dropped += peer_sent.saturating_sub(self.arrived.count);
        tally.wrong += self.arrived.end().saturating_sub(peer_sent);
    }
}

impl fmt::Display for Unreliable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unreliable { own, next, seen, arrived, last, .. } = self;
        write!(
            f,
            "end {own} next {next} seen {seen} came {} up to {} last {last:?}",
            arrived.count,
            arrived.end()
        )
    }
}
