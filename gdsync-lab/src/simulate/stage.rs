//! The interpreter of an episode: it performs the steps, polls completions, and ends with nothing outstanding.

use super::bench::Driving;
use super::cards::CardBed;
use super::check::Checked;
use super::library::{await_some, check_marks, words};
use super::link::{End, Link, Queues};
use super::program::{DEPTH, Episode, Kind, STREAMS, Step, What, Work};
use super::rings::{ReceiveQueue, SendQueue};
use crate::soak::plan::Random;
use gdsync::stream::Simulation;
use gdsync_cli::failure::Failure;
use softhca::card::simulation::World;
use softhca::card::{QpChange, QpState};
use std::time::Duration;

/// Maximum number of rounds in which an episode comes to rest, without an end that this is taken for a hang.
const ROUNDS: usize = 50_000;
/// Steps without work that the library may need until it acts, of a millisecond each.
const PATIENCE: u32 = 20;
/// Longest time that passes between two steps of cards, in nanoseconds.
const PAUSE: u64 = 2000;

/// The end of an episode, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) steps: u64,
    pub(super) requests: u64,
    pub(super) completions: u64,
    /// Completions that streams have waited for.
    pub(super) waits: u64,
    pub(super) packets: u64,
    pub(super) faults: u64,
    pub(super) time: Duration,
    /// Made of all completions, and of all memory whenever everything was at rest.
    pub(super) hash: u64,
}

impl Totals {
    fn mix(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            let mixed = (self.hash ^ u64::from_le_bytes(padded)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash = mixed ^ mixed >> 29;
        }
    }

    pub(super) fn add(&mut self, other: &Totals) {
        self.steps += other.steps;
        self.requests += other.requests;
        self.completions += other.completions;
        self.waits += other.waits;
        self.packets += other.packets;
        self.faults += other.faults;
        self.time += other.time;
        self.mix(&other.hash.to_le_bytes());
    }
}

pub(super) struct Stage<'a> {
    episode: &'a Episode,
    // Before the links, whose memory the cards use.
    cards: Vec<CardBed>,
    links: Vec<Link>,
    world: World,
    totals: Totals,
    /// The library's, if it has a part. Last: its tasks hold objects of the cards and links.
    simulation: Option<Simulation>,
}

/// Performs an episode.
///
/// # Errors
/// What the cards have done wrong, or why they cannot run.
pub(super) fn perform(episode: &Episode) -> Result<Totals, String> {
    let mut stage = Stage::new(episode).map_err(|error| error.to_string())?;
    for (number, step) in episode.steps.iter().enumerate() {
        stage.perform(step).map_err(|error| format!("step {number} ({step}): {error}"))?;
    }
    let Stage { cards, world, totals, .. } = &mut stage;
    let faults = cards.iter().flat_map(|bed| bed.card.fault_counts()).map(|rule| rule.injected).sum::<u64>();
    totals.faults += faults;
    (totals.packets, totals.time) = (world.packets(), world.elapsed());
    Ok(*totals)
}

impl<'a> Stage<'a> {
    fn new(episode: &'a Episode) -> Result<Self, Failure> {
        let (mut world, random) = (World::new(), &mut Random::new(episode.seed ^ 0x57a6e));
        let simulation = match episode.library {
            true => Some(Simulation::new().ok_or("this thread simulates already")?),
            false => None,
        };
        let Episode { schedule, faults, library, .. } = episode;
        let bed = |_| CardBed::new(&mut world, schedule.as_ref(), faults.as_ref(), *library);
        let cards = (0..episode.cards).map(bed).collect::<Result<Vec<_>, _>>()?;
        let mut links = Vec::new();
        for plan in &episode.links {
            let mut link = Link::new(*plan)?;
            link.may_fail = episode.may_fail;
            link.connect(&cards, random)?;
            links.push(link);
        }
        Ok(Stage { episode, cards, links, world, totals: Totals::default(), simulation })
    }

    fn perform(&mut self, step: &Step) -> Checked {
        self.totals.steps += 1;
        match step {
            Step::Post { link, side, work } => {
                self.totals.requests += u64::from(self.links[*link].post(*side, work, &self.cards)?);
            }
            Step::Receives { link, side, count } => {
                self.links[*link].post_receives(*side, *count, &mut self.cards);
            }
            Step::Run { steps, seed } => {
                let random = &mut Random::new(*seed);
                for _ in 0..*steps {
                    self.step_one(random);
                    if random.below(4) == 0 {
                        self.poll()?;
                    }
                }
            }
            Step::Skip => {
                self.skip();
            }
            Step::Settle { seed } => self.settle(&mut Random::new(*seed))?,
            Step::Break { link, side } => self.fail(*link, *side).map_err(|error| error.to_string())?,
            Step::Remake { link, destroy, seed } => self.remake(*link, *destroy, &mut Random::new(*seed))?,
            Step::Await { card, stream, seed } => {
                await_some(*card, *stream, &mut self.links, &mut self.cards, &mut Random::new(*seed))?;
            }
            Step::Kill { card } => self.kill(*card).map_err(|error| error.to_string())?,
        }
        Ok(())
    }

    /// Steps a card, a stream or the library, and lets some time pass.
    fn step_one(&mut self, random: &mut Random) {
        let card = random.below(self.cards.len() as u64) as usize;
        match (&mut self.cards[card].bench, &self.simulation) {
            (Some(bench), Some(simulation)) => match random.below(4) as usize {
                0 => drop(simulation.step()),
                stream if stream <= STREAMS => drop(bench.streams[stream - 1].step()),
                _ => drop(self.cards[card].card.step()),
            },
            _ => drop(self.cards[card].card.step()),
        }
        self.pass(random.below(PAUSE));
    }

    fn pass(&self, nanoseconds: u64) {
        self.advance_to(self.world.elapsed() + Duration::from_nanos(nanoseconds));
    }

    fn advance_to(&self, time: Duration) {
        self.world.advance_to(time);
        self.simulation.iter().for_each(|simulation| simulation.advance_to(time));
    }

    /// Moves the time to the next timer of a card.
    fn skip(&self) -> bool {
        let next = self.cards.iter().filter_map(|bed| bed.card.next_timer()).min();
        next.inspect(|next| self.advance_to(*next)).is_some()
    }

    /// Steps all cards, in random order. Returns whether one has worked.
    fn step_all(&mut self, random: &mut Random) -> bool {
        let first = random.below(self.cards.len() as u64) as usize;
        let (before, after) = self.cards.split_at(first);
        let mut worked =
            after.iter().chain(before).map(|bed| bed.card.step()).fold(false, |any, one| any | one);
        if let Some(simulation) = &self.simulation {
            let benches = self.cards.iter_mut().filter_map(|bed| bed.bench.as_mut());
            let streams = benches.flat_map(|bench| &mut bench.streams);
            worked = streams.map(Driving::step).fold(worked, |any, one| any | one);
            worked |= simulation.step();
        }
        self.pass(random.below(PAUSE));
        worked
    }

    /// Takes all completions, and checks them.
    fn poll(&mut self) -> Checked {
        let passed = if self.simulation.is_some() { words(&self.cards) } else { Vec::new() };
        for card in 0..self.cards.len() {
            while let Some(cqe) = self.cards[card].sends.poll() {
                self.totals.completions += 1;
                self.totals.mix(zerocopy::IntoBytes::as_bytes(&cqe));
                let (link, side) = self.of(card, cqe.qpn())?;
                self.links[link].sent_by_card(side, &cqe).map_err(|error| self.at(link, side, &error))?;
            }
            while let Some(cqe) = self.cards[card].receives.poll() {
                self.totals.completions += 1;
                self.totals.mix(zerocopy::IntoBytes::as_bytes(&cqe));
                let (link, side) = self.of(card, cqe.qpn())?;
                let received = self.links[link].received_by_card(side, &cqe, &mut self.cards);
                received.map_err(|error| self.at(link, side, &error))?;
            }
        }
        if self.simulation.is_none() {
            return Ok(());
        }
        for link in 0..self.links.len() {
            for side in 0..2 {
                let totals = &mut self.totals;
                let mut mix = |bytes: &[u8]| totals.mix(bytes);
                let polled = self.links[link].poll_library(side, &mut self.cards, &mut mix);
                self.totals.completions += polled.map_err(|error| self.at(link, side, &error))?;
            }
        }
        self.totals.waits += check_marks(&self.links, &mut self.cards, &passed)?;
        Ok(())
    }

    /// Returns the end that has a queue pair.
    fn of(&self, card: usize, qpn: u32) -> Result<(usize, usize), String> {
        let is = |end: &End| end.card == card && end.qpn == qpn;
        let mut ends = self.links.iter().enumerate();
        let found = ends.find_map(|(link, ends)| Some((link, ends.ends.iter().position(is)?)));
        found.ok_or_else(|| format!("card {card}: a completion of queue pair {qpn:#x}, which is gone"))
    }

    fn at(&self, link: usize, side: usize, error: &str) -> String {
        let plan = &self.links[link].plan;
        format!("link {link} ({:?} between cards {:?}), end {side}: {error}", plan.kind, plan.cards)
    }

    /// Runs until nothing is outstanding, makes failed links anew, and checks all memory.
    fn settle(&mut self, random: &mut Random) -> Checked {
        let mut idle = 0;
        for round in 0.. {
            for link in 0..self.links.len() {
                for side in 0..2 {
                    self.links[link].post_receives(side, DEPTH, &mut self.cards);
                    self.end_row(link, side, random)?;
                }
                // Nothing else tells the other end, for whose messages streams may wait.
                let Link { is_dead, ends, .. } = &self.links[link];
                let is_over = *is_dead || ends.iter().any(End::has_failed);
                let others =
                    ends.iter().position(|end| end.queues.library.is_some() && !end.queues.has_failed());
                if let Some(side) = others.filter(|_| is_over) {
                    self.fail(link, side).map_err(|error| error.to_string())?;
                }
            }
            let worked = self.step_all(random);
            idle = if worked { 0 } else { idle + 1 };
            self.poll()?;
            if let Some(what) = self.unfinished() {
                let goes_on = worked || self.skip() || self.has_patience(idle);
                if !goes_on || round > ROUNDS {
                    let why = if goes_on { "does not come to its end" } else { "hangs" };
                    return Err(format!("{what} {why}"));
                }
            } else if !worked && !self.skip() {
                break;
            }
        }
        for link in 0..self.links.len() {
            if self.links[link].is_dead || self.links[link].ends.iter().any(End::has_failed) {
                self.remake(link, true, random)?;
            }
        }
        for (number, bed) in self.cards.iter_mut().enumerate() {
            for pool in &mut bed.pools {
                let left = bed.card.query_srq(pool.srqn).map_err(|error| error.to_string())?.posted;
                pool.take_back(left as usize).map_err(|error| format!("card {number}: {error}"))?;
            }
        }
        for link in 0..self.links.len() {
            self.links[link].check().map_err(|error| self.at(link, 0, &error))?;
            for side in 0..2 {
                self.totals.mix(&self.links[link].ends[side].region.shadow);
            }
        }
        Ok(())
    }

    /// Posts a request with a completion, if the last one has none.
    fn end_row(&mut self, link: usize, side: usize, random: &mut Random) -> Checked {
        let end = &self.links[link].ends[side];
        if end.ledger.ends_silently() && !end.failed {
            let seed = random.next();
            let nop = Work {
                what: What::Nop,
                length: 0,
                offset: 0,
                signaled: true,
                fenced: false,
                rung: true,
                seed,
            };
            self.links[link].post(side, &nop, &self.cards)?;
        }
        let End { queues, card, .. } = &mut self.links[link].ends[side];
        queues.send.iter_mut().for_each(SendQueue::ring);
        match (&mut queues.library, &self.cards[*card].bench) {
            (Some(driven), Some(bench)) => driven.ring(bench),
            _ => Ok(()),
        }
    }

    /// Lets time pass in which the library, which has no timer that shows, may act.
    fn has_patience(&self, idle: u32) -> bool {
        let is_patient = self.simulation.is_some() && idle < PATIENCE;
        if is_patient {
            self.pass(1_000_000);
            // A stream tells how far it is only now and then, unless it is asked.
            let benches = self.cards.iter().filter_map(|bed| bed.bench.as_ref());
            benches.flat_map(|bench| &bench.streams).for_each(|driving| drop(driving.unfinished()));
        }
        is_patient
    }

    /// Describes an end with something outstanding, or a stream that waits.
    fn unfinished(&self) -> Option<String> {
        let is = |link: &Link, end: &End| match end.qpn != 0 && !end.has_failed() {
            true => end.ledger.len() > 0 || link.is_whole() && !end.coming.is_empty(),
            false => !end.ledger.is_silent(),
        };
        let mut links = self.links.iter().enumerate();
        let end =
            links.find_map(|(number, link)| Some((number, link.ends.iter().position(|end| is(link, end))?)));
        if let Some((link, side)) = end {
            return Some(self.at(link, side, &format!("({}) it", self.state(link, side))));
        }
        let benches =
            self.cards.iter().enumerate().filter_map(|(card, bed)| Some((card, bed.bench.as_ref()?)));
        let mut streams = benches.flat_map(|(card, bench)| {
            bench.streams.iter().enumerate().map(move |(stream, driving)| (card, stream, driving))
        });
        streams.find_map(|(card, stream, driving)| {
            Some(format!("stream {stream} of card {card} ({}) it", driving.unfinished()?))
        })
    }

    fn state(&self, link: usize, side: usize) -> String {
        let end = &self.links[link].ends[side];
        let state = self.cards[end.card].card.query_qp(end.qpn).map(|attributes| attributes.state);
        let (sends, receives, coming) = (end.ledger.len(), end.posted.len(), end.coming.len());
        format!("{state:?}, {sends} sends outstanding, {receives} receives posted, {coming} messages to come")
    }

    /// Moves a queue pair to ERR.
    fn fail(&mut self, link: usize, side: usize) -> Result<(), Failure> {
        let link = &mut self.links[link];
        let end = &link.ends[side];
        if let Some(driven) = &end.queues.library {
            link.may_fail = true;
            return Ok(driven.queue_pair.abort()?);
        }
        // A target of DC has no such state.
        if end.qpn != 0 && (link.plan.kind, side) != (Kind::Dc, 1) {
            link.may_fail = true;
            let change = QpChange { state: Some(QpState::Err), ..QpChange::default() };
            self.cards[end.card].card.modify_qp(end.qpn, &change)?;
        }
        Ok(())
    }

    /// Resets a link's queue pairs, or destroys them, and connects it again.
    fn remake(&mut self, link: usize, destroy: bool, random: &mut Random) -> Checked {
        let words = |error: Failure| error.to_string();
        (0..2).try_for_each(|side| self.fail(link, side)).map_err(words)?;
        self.poll()?;
        let plan = self.links[link].plan;
        // A target of DC knows its initiators as long as it exists.
        let mut destroy = destroy || self.links[link].is_dead || plan.kind == Kind::Dc;
        if plan.library.is_some() && !destroy {
            self.calm(random)?;
            destroy = !self.links[link].ends.iter_mut().all(End::reset_library);
        }
        for side in 0..2 {
            self.end(link, side, destroy).map_err(words)?;
            self.poll()?;
            // In ERR all receives complete; but a target of DC is destroyed as it is.
            if (plan.kind, side) == (Kind::Dc, 1) {
                self.cards[plan.cards[side]].pools[plan.pool()].may_lose += DEPTH;
            }
            if destroy {
                self.links[link].ends[side].qpn = 0;
            }
        }
        self.calm(random)?;
        // The library returns no completions of a queue pair that is dropped.
        self.links[link].is_dead |= destroy && plan.library.is_some();
        for side in 0..2 {
            self.links[link].adopt(side).map_err(|error| self.at(link, side, &error))?;
        }
        let it = &mut self.links[link];
        (it.is_dead, it.may_fail) = (false, self.episode.may_fail);
        it.connect(&self.cards, random).map_err(words)
    }

    /// Runs until nothing happens: packets of a former connection must not reach the new one.
    fn calm(&mut self, random: &mut Random) -> Checked {
        while self.step_all(random) || self.world.in_flight() > 0 && self.skip() {
            self.poll()?;
        }
        Ok(())
    }

    /// Resets or destroys the queue pair of an end.
    fn end(&mut self, link: usize, side: usize, destroy: bool) -> Result<(), Failure> {
        let end = &mut self.links[link].ends[side];
        let card = &self.cards[end.card].card;
        if end.qpn == 0 {
            return Ok(());
        }
        if end.queues.library.is_some() {
            // One that was reset stays.
            end.queues.library = end.queues.library.take().filter(|_| !destroy);
            return Ok(());
        }
        if destroy {
            return Ok(card.destroy_qp(end.qpn)?);
        }
        card.modify_qp(end.qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() })?;
        end.queues.send.iter_mut().for_each(SendQueue::reset);
        end.queues.receive.iter_mut().for_each(ReceiveQueue::reset);
        Ok(())
    }

    /// Drops a card, as if its process had ended, and starts another in its place.
    fn kill(&mut self, card: usize) -> Result<(), Failure> {
        let Episode { schedule, faults, library, .. } = self.episode;
        let new = CardBed::new(&mut self.world, schedule.as_ref(), faults.as_ref(), *library)?;
        let former = std::mem::replace(&mut self.cards[card], new);
        self.totals.faults += former.card.fault_counts().iter().map(|rule| rule.injected).sum::<u64>();
        drop(former);
        for link in &mut self.links {
            for end in link.ends.iter_mut().filter(|end| end.card == card) {
                (end.qpn, link.is_dead, link.may_fail) = (0, true, true);
                end.queues = Queues::default();
                // Its outstanding requests complete no more.
                end.uncertain.extend(end.ledger.forget().map(|posted| posted.effect));
                end.indices.clear();
            }
        }
        Ok(())
    }
}

impl Link {
    /// Returns whether everything that is sent reliably must come.
    fn is_whole(&self) -> bool {
        self.plan.kind.is_reliable() && !self.is_dead && self.ends.iter().all(|end| !end.has_failed())
    }
}
