//! The interpreter of an episode: it performs the steps, and polls completions.

use super::bench::Driving;
use super::cards::CardBed;
use super::check::{Checked, ensure};
use super::episode::Episode;
use super::library::{await_some, check_marks, words};
use super::link::{End, Link, Queues};
use super::lists::start_some;
use super::program::{By, DEPTH, Kind, LONGEST_HOLD, LinkPlan, STREAMS, Step};
use super::rings::{ReceiveQueue, SendQueue};
use super::totals::Totals;
use crate::soak::plan::Random;
use gdsync::stream::Simulation;
use gdsync_cli::failure::Failure;
use softhca::card::simulation::World;
use softhca::card::{QpChange, QpState, WaitRules};
use std::time::Duration;

/// Longest time that passes between two steps of cards, in nanoseconds.
const PAUSE: u64 = 2000;

pub(super) struct Stage<'a> {
    episode: &'a Episode,
    // Before the links, whose memory the cards use.
    pub(super) cards: Vec<CardBed>,
    pub(super) links: Vec<Link>,
    world: World,
    pub(super) totals: Totals,
    /// True while the library's threads stand still.
    is_late: bool,
    /// The library's, if it has a part. Last: its tasks hold objects of the cards and links.
    pub(super) simulation: Option<Simulation>,
}

/// Starts a card of an episode.
fn new_card(
    world: &mut World,
    episode: &Episode,
    simulation: Option<&Simulation>,
) -> Result<CardBed, Failure> {
    let Episode { schedule, faults, errors_hold, .. } = episode;
    let waits = WaitRules { errors_count: !errors_hold, ..WaitRules::default() };
    CardBed::new(world, schedule.as_ref(), faults.as_ref(), (simulation, waits))
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
    (totals.episodes, totals.packets, totals.time) = (1, world.packets(), world.elapsed());
    Ok(*totals)
}

impl<'a> Stage<'a> {
    fn new(episode: &'a Episode) -> Result<Self, Failure> {
        let (mut world, random) = (World::new(), &mut Random::new(episode.seed ^ 0x57a6e));
        let simulation = match episode.library {
            true => Some(Simulation::new().ok_or("this thread simulates already")?),
            false => None,
        };
        let bed = |_| new_card(&mut world, episode, simulation.as_ref());
        let cards = (0..episode.cards).map(bed).collect::<Result<Vec<_>, _>>()?;
        let mut links = Vec::new();
        for plan in &episode.links {
            let mut link = Link::new(*plan)?;
            link.may_fail = episode.may_fail;
            link.uses_up_retries = episode.uses_up_retries(plan);
            link.connect(&cards, random)?;
            links.push(link);
        }
        Ok(Stage { episode, cards, links, world, totals: Totals::default(), is_late: false, simulation })
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
            Step::Await { card, stream, ahead, seed } => {
                await_some(
                    (*card, *stream),
                    (*ahead, self.episode.lists),
                    &mut self.links,
                    &mut self.cards,
                    &mut Random::new(*seed),
                )?;
            }
            Step::Start { card, stream, seed } => {
                let random = &mut Random::new(*seed);
                let count = start_some((*card, *stream), &mut self.links, &mut self.cards, random)?;
                self.totals.requests += count;
                self.totals.starts += count;
            }
            Step::FailMaster { card, seed } => {
                self.fail_master(*card, &mut Random::new(*seed)).map_err(|error| error.to_string())?;
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

    pub(super) fn pass(&self, nanoseconds: u64) {
        self.advance_to(self.world.elapsed() + Duration::from_nanos(nanoseconds));
    }

    fn advance_to(&self, time: Duration) {
        self.world.advance_to(time);
        self.simulation.iter().for_each(|simulation| simulation.advance_to(time));
    }

    /// Moves the time to the next timer of a card.
    pub(super) fn skip(&self) -> bool {
        self.next_timer().inspect(|next| self.advance_to(*next)).is_some()
    }

    fn next_timer(&self) -> Option<Duration> {
        self.cards.iter().filter_map(|bed| bed.card.next_timer()).min()
    }

    /// Steps all cards, in random order. Returns whether one has worked.
    pub(super) fn step_all(&mut self, random: &mut Random) -> bool {
        let first = random.below(self.cards.len() as u64) as usize;
        let (before, after) = self.cards.split_at(first);
        let mut worked =
            after.iter().chain(before).map(|bed| bed.card.step()).fold(false, |any, one| any | one);
        if let Some(simulation) = &self.simulation {
            let benches = self.cards.iter_mut().filter_map(|bed| bed.bench.as_mut());
            let streams = benches.flat_map(|bench| &mut bench.streams);
            worked = streams.map(Driving::step).fold(worked, |any, one| any | one);
            worked |= !self.is_late && simulation.step();
        }
        self.pass(random.below(PAUSE));
        worked
    }

    /// Takes all completions, and checks them.
    pub(super) fn poll(&mut self) -> Checked {
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

    pub(super) fn at(&self, link: usize, side: usize, error: &str) -> String {
        let plan = &self.links[link].plan;
        format!("link {link} ({:?} between cards {:?}), end {side}: {error}", plan.kind, plan.cards)
    }

    /// Moves a queue pair to ERR.
    pub(super) fn fail(&mut self, link: usize, side: usize) -> Result<(), Failure> {
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

    /// Moves a master of a card to ERR, which the library learns from the completions of the master's queue.
    fn fail_master(&mut self, card: usize, random: &mut Random) -> Result<(), Failure> {
        let bed = &mut self.cards[card];
        let masters = bed.card.masters();
        if masters.is_empty() {
            return Ok(());
        }
        bed.fails_masters = true;
        let change = QpChange { state: Some(QpState::Err), ..QpChange::default() };
        bed.card.modify_qp(masters[random.below(masters.len() as u64) as usize], &change)?;
        for link in 0..self.links.len() {
            self.links[link].may_fail |= self.may_lose_master(link);
        }
        Ok(())
    }

    /// Returns whether a link may fail because the master of an end has failed.
    fn may_lose_master(&self, link: usize) -> bool {
        let LinkPlan { library, cards, .. } = self.links[link].plan;
        let mut ends = library.into_iter().flatten().zip(cards);
        ends.any(|(by, card)| matches!(by, By::Master(_)) && self.cards[card].fails_masters)
    }

    /// Resets a link's queue pairs, or destroys them, and connects it again.
    pub(super) fn remake(&mut self, link: usize, destroy: bool, random: &mut Random) -> Checked {
        let words = |error: Failure| error.to_string();
        (0..2).try_for_each(|side| self.fail(link, side)).map_err(words)?;
        self.poll()?;
        let plan = self.links[link].plan;
        // A target of DC knows its initiators as long as it exists.
        let mut destroy = destroy || self.links[link].is_dead || plan.kind == Kind::Dc;
        let mut loses = plan.library.is_some() && (destroy || plan.shared);
        if plan.library.is_some() && !destroy {
            let waits = plan.shared && random.below(2) == 0;
            self.is_late = self.episode.late;
            let calm = self.calm(plan.hold(), random).and_then(|()| self.check_receives(link, random));
            let calm =
                calm.and_then(|()| if waits { self.await_last_receives(link, random) } else { Ok(()) });
            self.is_late = false;
            calm?;
            destroy = !self.links[link].ends.iter_mut().all(End::reset_library);
            loses = destroy || plan.shared && !waits;
        }
        for side in 0..2 {
            self.end(link, side, destroy).map_err(words)?;
            self.poll()?;
            // In ERR all receives complete; but a target of DC is destroyed as it is.
            if (plan.kind, side) == (Kind::Dc, 1) || plan.shared && loses {
                self.cards[plan.cards[side]].pools[plan.pool()].may_lose += DEPTH;
            }
            if destroy {
                self.links[link].ends[side].qpn = 0;
            }
        }
        self.calm(plan.hold(), random)?;
        // The library returns no completions of a queue pair that is dropped, nor those of shared receives that the card writes
        // only during a reset.
        self.links[link].is_dead |= loses;
        for side in 0..2 {
            self.links[link].adopt(side).map_err(|error| self.at(link, side, &error))?;
        }
        let may_fail = self.episode.may_fail || self.may_lose_master(link);
        let it = &mut self.links[link];
        (it.is_dead, it.may_fail) = (false, may_fail);
        it.connect(&self.cards, random).map_err(words)
    }

    /// Checks that starts of receives have an outcome, as both queue pairs have failed. No stream need announce them for that.
    fn check_receives(&mut self, link: usize, random: &mut Random) -> Checked {
        let open = |stage: &Self| stage.links[link].ends.iter().position(End::has_open_receives);
        if open(self).is_some() {
            // The card flushes a queue pair after what faults hold back. The polls take its completions, and then the outcomes.
            self.calm(LONGEST_HOLD, random)?;
            self.poll()?;
            self.poll()?;
        }
        let what = "starts of receives have no outcome, though the queue pair has failed";
        open(self).map_or(Ok(()), |side| Err(self.at(link, side, what)))
    }

    /// Waits until the card has reported the last receives of both queue pairs, and polls: what the program does so that a reset
    /// loses no shared receive.
    fn await_last_receives(&mut self, link: usize, random: &mut Random) -> Checked {
        self.calm(LONGEST_HOLD, random)?;
        for side in 0..2 {
            let End { card, qpn, .. } = self.links[link].ends[side];
            let bench = self.cards[card].bench.as_mut().ok_or("the library has not opened this card")?;
            bench.take_events()?;
            let reported = bench.last_receives.contains(&qpn);
            ensure!(reported, "{}", self.at(link, side, "its last receive was not reported"));
        }
        self.poll()
    }

    /// Runs until nothing happens, and nothing is due that `hold` delays: packets of a former connection must not reach the
    /// new one.
    fn calm(&mut self, hold: Duration, random: &mut Random) -> Checked {
        let end = self.world.elapsed() + hold;
        while self.step_all(random)
            || (self.world.in_flight() > 0 || self.next_timer().is_some_and(|next| next < end)) && self.skip()
        {
            self.poll()?;
        }
        Ok(())
    }

    /// Resets or destroys the queue pair of an end.
    fn end(&mut self, link: usize, side: usize, destroy: bool) -> Result<(), Failure> {
        let (plan, group) = (self.links[link].plan, self.links[link].group());
        let end = &mut self.links[link].ends[side];
        let card = &self.cards[end.card].card;
        if end.qpn == 0 {
            return Ok(());
        }
        if end.queues.library.is_some() {
            // One that was reset stays.
            end.queues.library = end.queues.library.take().filter(|_| !destroy);
            return match self.cards[end.card].bench.as_mut().filter(|_| plan.shared) {
                Some(bench) => Ok(bench.forget_last_receive(end.qpn)?),
                None => Ok(()),
            };
        }
        if destroy {
            return Ok(card.destroy_qp(end.qpn)?);
        }
        if plan.kind == Kind::Group {
            card.detach_multicast(end.qpn, &group)?;
        }
        card.modify_qp(end.qpn, &QpChange { state: Some(QpState::Reset), ..QpChange::default() })?;
        end.queues.send.iter_mut().for_each(SendQueue::reset);
        end.queues.receive.iter_mut().for_each(ReceiveQueue::reset);
        Ok(())
    }

    /// Drops a card, as if its process had ended, and starts another in its place.
    fn kill(&mut self, card: usize) -> Result<(), Failure> {
        let new = new_card(&mut self.world, self.episode, self.simulation.as_ref())?;
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
