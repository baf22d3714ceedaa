//! Simulations: cards without threads, on a private fabric, at a time that stands still until it is moved.
//!
//! A program that steps the cards of a [`World`] in one thread repeats to the bit: nothing depends on the machine's time,
//! on threads, or on other cards of the process. `gdsync simulate` is such a program.

use super::config::WaitRules;
use super::device::Card;
use super::engine::Engine;
use super::error::CardError;
use super::memory::clock::{Clock, SimulatedTime};
use super::port::{LinkLayer, Port};
use super::worker::EventSink;
use crate::fabric::{Fabric, Hub};
use crate::liberties::Schedule;
use crate::{faults, liberties};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Maximum payload of a packet of a simulation in bytes: small, so that messages of some thousand bytes have several.
/// Datagrams must not be longer.
pub const PACKET_BYTES: u32 = 1024;

/// A fabric and a clock for simulated cards.
///
/// ```
/// use softhca::card::{CardError, LinkLayer, simulation::World};
/// use std::time::Duration;
/// let mut world = World::new();
/// let card = world.start_card(LinkLayer::InfiniBand, None, Box::new(drop))?;
/// assert_eq!((card.node(), card.step(), card.next_timer()), (1, false, None));
/// world.advance_to(Duration::from_secs(3600));
/// assert_eq!(world.elapsed(), Duration::from_secs(3600));
/// # Ok::<(), CardError>(())
/// ```
pub struct World {
    time: Arc<SimulatedTime>,
    hub: Hub,
    /// Number of cards started so far.
    started: u64,
}

impl World {
    /// Creates a world without cards.
    pub fn new() -> World {
        World { time: Arc::new(SimulatedTime::new()), hub: Hub::default(), started: 0 }
    }

    /// Starts a card. It follows the schedule, or is prompt and orderly; it has the faults of
    /// [`Card::set_faults`] only. Cards have the nodes 1, 2, 3 and so on, and no node twice.
    ///
    /// # Errors
    /// [`CardError::Fabric`] after 510 cards, or if the system gives no descriptor.
    pub fn start_card(
        &mut self,
        link: LinkLayer,
        schedule: Option<&Schedule>,
        sink: EventSink,
    ) -> Result<SimulatedCard, CardError> {
        let fabric = Fabric::simulated(&self.hub)?;
        let index = self.started;
        self.started += 1;
        let sleeper = fabric.sleeper();
        let port = Port { mtu: PACKET_BYTES, ..Port::new(0, link, fabric.number(), None) };
        let (faults, decisions) = (faults::of_one_card(index), liberties::of_one_card(schedule, index));
        let clock = Clock::simulated(self.time.clone());
        let mut engine = Engine::new(fabric, port, faults, decisions, WaitRules::default(), clock);
        // A thread that rings does no work of the card.
        engine.workers.own_thread_only = true;
        Ok(SimulatedCard { card: Arc::new(Card::of(engine, sleeper, sink)), time: self.time.clone() })
    }

    /// Returns the time since the start of the world.
    pub fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    /// Moves the time forward, to this long after the start of the world. No effect if it is later already.
    pub fn advance_to(&self, elapsed: Duration) {
        self.time.move_to(self.time.start() + elapsed);
    }

    /// Returns the number of packets that are on their way between cards.
    pub fn in_flight(&self) -> usize {
        self.hub.in_flight()
    }

    /// Returns the number of packets that have left for other cards.
    pub fn packets(&self) -> u64 {
        self.hub.sent()
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

/// A card of a [`World`]: it works only when it is stepped. Dropping it ends it for other cards, as the end of its process
/// does, though contexts of [`open_simulated`](crate::verbs::open_simulated) may outlive it.
#[derive(Debug)]
pub struct SimulatedCard {
    pub(crate) card: Arc<Card>,
    time: Arc<SimulatedTime>,
}

impl SimulatedCard {
    /// Does a bounded amount of work. Returns whether there was any.
    ///
    /// # Panics
    /// If the card has a fault: a simulation is a search for such.
    pub fn step(&self) -> bool {
        let mut engine = self.card.shared.engine.lock();
        let now = engine.now();
        let worked = engine.step(now);
        self.card.shared.deliver_events(engine);
        worked
    }

    /// Does a bounded amount of work for a call that waits for the card, and moves the time: by a microsecond or, if there was
    /// nothing to do, to the next timer, or by a millisecond. Returns the time since the start of the world.
    pub fn work(&self) -> Duration {
        let (least, most) = (Duration::from_micros(1), Duration::from_millis(1));
        let worked = self.step();
        let now = self.time.elapsed();
        let next = if worked { Some(now) } else { self.next_timer() };
        let then = next.unwrap_or(now + most).clamp(now + least, now + most);
        self.time.move_to(self.time.start() + then);
        then
    }

    /// Returns the queue pairs that release the sends of others (SEND_EN).
    pub fn masters(&self) -> Vec<u32> {
        let engine = self.card.shared.engine.lock();
        let masters = engine.qps.iter().filter(|(_, qp)| qp.endpoint.config.master);
        let mut numbers: Vec<u32> = masters.map(|(qpn, _)| *qpn).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns when the card next has work without a packet or a doorbell, as time since the start of the world.
    pub fn next_timer(&self) -> Option<Duration> {
        let next = self.card.shared.engine.lock().next_timer()?;
        Some(next.saturating_duration_since(self.time.start()))
    }
}

impl Drop for SimulatedCard {
    fn drop(&mut self) {
        self.card.finish();
        self.card.shared.engine.lock().fabric.close();
    }
}

impl Deref for SimulatedCard {
    type Target = Card;

    fn deref(&self) -> &Card {
        &self.card
    }
}
