//! A team's control connections: exchanges of short texts, the agreement on dead ranks, and the probes that find them.

pub(crate) mod agreement;
mod cut;
mod dc;
mod message;
mod probe;
mod rc;

pub(crate) use probe::ControlOptions;

use crate::bootstrap::BootstrapError;
use crate::error::{DeathCause, NotifyError, Result};
use crate::liveness::{Liveness, RankSet, RankState};
use agreement::{Agreement, Outcome};
use cut::Cuts;
use dc::DcTransport;
use gdsync::qp::DcTarget;
use gdsync::verbs::DcAddress;
use gdsync::{Access, Endpoint, ProtectionDomain, QueuePairConfig};
use message::{Contribution, MAX_CONTRIBUTION, Message};
use rc::{Encoded, RcTransport};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The contributions to an exchange; `None` for ranks that were dropped.
pub(crate) type Contributions = Vec<Option<Vec<u8>>>;

/// The results of polling a transport.
#[derive(Debug, Default)]
struct Events {
    /// Received messages, in order for each rank.
    arrived: Vec<(u32, Message)>,
    dead: Vec<(u32, DeathCause)>,
    /// True if messages have arrived at other ranks, or never will.
    has_sent: bool,
}

#[derive(Debug)]
enum Transport {
    Rc(Box<RcTransport>),
    Dc(Box<DcTransport>),
}

#[derive(Debug)]
pub(crate) struct Control {
    rank: u32,
    transport: Transport,
    options: ControlOptions,
    agreement: Agreement,
    /// For each rank, its contributions that have arrived.
    contributions: Vec<VecDeque<Contribution>>,
    /// The epoch in which processes have last joined.
    joined: u32,
    /// The latest time at which deaths that this rank has told of end waits.
    told_at: Instant,
    /// Reported deaths: the reporting rank, its epoch, and the dead ranks.
    reports: Vec<(u32, u32, RankSet)>,
    /// For each rank, the newest epoch from whose exchanges it has withdrawn.
    withdrawn: Vec<Option<u32>>,
    cuts: Cuts,
    /// The number of the next exchange of this epoch.
    number: u32,
    /// True if an exchange of this epoch has failed, so that the ranks may disagree on the next.
    is_broken: bool,
    /// True if a message has arrived, or the epoch has changed, since the last evaluation.
    has_heard: bool,
    /// True if something has changed since an exchange was last tried.
    has_progress: bool,
    /// A rank that the exchange was waiting for when it was last tried.
    waits_for: Option<u32>,
}

impl Control {
    /// Creates unconnected queue pairs with the team's `config`: RC, or, if `dynamic` is given, DC, where it is the
    /// access that other ranks have through this rank's target. The target also serves the team's queues.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        dynamic: Option<Access>,
        (rank, size): (u32, u32),
        options: ControlOptions,
    ) -> Result<Self> {
        let position = (rank, size);
        let transport = match dynamic {
            None => Transport::Rc(Box::new(RcTransport::new(pd, config, position, options)?)),
            Some(access) => {
                Transport::Dc(Box::new(DcTransport::new(pd, config, access, position, options.connect)?))
            }
        };
        Ok(Control {
            rank,
            transport,
            options,
            agreement: Agreement::new(rank, size, 0),
            contributions: vec![VecDeque::new(); size as usize],
            joined: 0,
            told_at: Instant::now(),
            reports: Vec::new(),
            withdrawn: vec![None; size as usize],
            cuts: Cuts::default(),
            number: 0,
            is_broken: false,
            has_heard: false,
            has_progress: false,
            waits_for: None,
        })
    }

    /// Returns the endpoint for a rank; `None` for this rank itself, and with DC.
    pub(crate) fn endpoint(&self, rank: u32) -> Result<Option<Endpoint>> {
        match &self.transport {
            Transport::Rc(rc) => rc.endpoint(rank),
            Transport::Dc(_) => Ok(None),
        }
    }

    /// The DC target that receives other ranks' messages and writes.
    pub(crate) fn target(&self) -> Option<&DcTarget> {
        match &self.transport {
            Transport::Rc(_) => None,
            Transport::Dc(dc) => Some(dc.target()),
        }
    }

    pub(crate) fn connect(&mut self, rank: u32, remote: &Endpoint) -> Result<()> {
        let options = self.options.connect;
        match &mut self.transport {
            Transport::Rc(rc) => rc.connect(rank, remote, options),
            Transport::Dc(_) => Ok(()),
        }
    }

    /// Sets a rank's DC target. Returns its address for the team's queues; `None` with RC.
    pub(crate) fn connect_to_target(
        &mut self,
        rank: u32,
        (remote, key): (&Endpoint, u64),
    ) -> Result<Option<DcAddress>> {
        let Transport::Dc(dc) = &mut self.transport else { return Ok(None) };
        let address = dc.address(remote, key, self.options.connect)?;
        dc.connect(rank, address.clone());
        Ok(Some(address))
    }

    /// Replaces the connection to a dropped rank, unused until the rank is alive. Returns its endpoint, or `None` with DC.
    pub(crate) fn renew(&mut self, pd: &ProtectionDomain, rank: u32) -> Result<Option<Endpoint>> {
        self.contributions[rank as usize].clear();
        self.withdrawn[rank as usize] = None;
        self.cuts.forget(rank);
        self.has_heard = true;
        let Transport::Rc(rc) = &mut self.transport else { return Ok(None) };
        rc.renew(pd, rank)?;
        rc.endpoint(rank)
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.agreement.epoch()
    }

    /// Begins an epoch after new processes have joined and both sides have connected.
    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.agreement.begin(epoch);
        self.joined = epoch;
        (self.number, self.is_broken, self.has_heard) = (0, false, true);
        if let Transport::Rc(rc) = &mut self.transport {
            let arrived = rc.begin();
            self.handle(arrived);
        }
    }

    pub(crate) fn poll_period(&self) -> Duration {
        self.options.period / 4
    }

    /// Takes arrived messages, sends waiting ones, probes, finds dead ranks, and cuts off those that `liveness` has as
    /// dead.
    pub(crate) fn poll(&mut self, liveness: &Liveness) {
        let Events { arrived, dead, has_sent } = self.transport.poll(self.options.period, liveness);
        self.has_progress |= has_sent;
        let died = |(rank, cause)| liveness.mark_dead(rank, cause).then_some(rank);
        let mut found: RankSet = dead.into_iter().filter_map(died).collect();
        self.handle(arrived);
        self.has_heard |= !found.is_empty();
        if liveness.first_dead().is_some() {
            for rank in liveness.ranks_in(|state| matches!(state, RankState::Dead(_))) {
                self.cut_off(rank);
            }
        }
        if !std::mem::take(&mut self.has_heard) {
            return;
        }
        self.has_progress = true;
        while let Some((rank, by)) = self.next_reported(liveness) {
            liveness.mark_dead(rank, DeathCause::Reported { by });
            found.insert(rank);
            self.cut_off(rank);
        }
        self.tell(found, liveness);
        let epoch = self.agreement.epoch();
        let withdrawn = (0..).zip(&self.withdrawn).filter(|(_, of)| of.is_some_and(|of| of >= epoch));
        liveness.set_withdrawn(withdrawn.map(|(rank, _)| rank).collect());
    }

    /// Tells the living ranks of deaths. A death that another rank has reported is passed on: the report may not have
    /// reached all ranks.
    fn tell(&mut self, dead: RankSet, liveness: &Liveness) {
        if !dead.is_empty() {
            let epoch = self.agreement.epoch();
            self.send_to_all(&Message::Dead { epoch, dead }, &liveness.not_alive());
            self.told_at = Instant::now() + self.options.patience();
        }
    }

    /// Lets deaths and lost connections end waits once the message of them is in the memory of every living rank. Returns
    /// false before.
    ///
    /// A released stream goes on and may send incomplete data, which other ranks may forward. No stream is released before
    /// the message is in every living rank's memory, so each rank has the message before such data. A rank that polls
    /// messages after the data therefore finds the cause ([`Plan::check`]). If a process is stopped and its card has no
    /// receives left, the message cannot arrive: then the release is delayed until `told_at`, and that rank may find the
    /// cause later than the data.
    ///
    /// [`Plan::check`]: crate::collective::Plan::check
    pub(crate) fn release(&mut self, liveness: &Liveness) -> bool {
        if liveness.is_told() {
            return true;
        }
        self.poll(liveness);
        let is_told = Instant::now() >= self.told_at || self.unflushed(liveness).is_empty();
        if is_told {
            liveness.set_told();
        }
        is_told
    }

    /// Returns the next rank that is alive as far as this one knows but reported dead, and the reporting rank.
    fn next_reported(&mut self, liveness: &Liveness) -> Option<(u32, u32)> {
        let (epoch, joined, own) = (self.agreement.epoch(), self.joined, self.rank);
        let is_news = |rank: u32| rank != own && liveness.is_alive(rank);
        // A report from before may concern a process that has been replaced.
        let valid = self.reports.iter().filter(|(_, of, _)| *of >= joined);
        let mut named = valid.flat_map(|(by, _, dead)| dead.iter().map(|rank| (*rank, *by)));
        let found = named.find(|(rank, _)| is_news(*rank));
        if found.is_none() {
            // A later one may concern a process that joins only then.
            self.reports.retain(|(_, of, _)| *of > epoch);
        }
        found.or_else(|| self.agreement.reported(is_news))
    }

    fn cut_off(&mut self, rank: u32) {
        let Events { arrived, has_sent, .. } = self.transport.cut(rank);
        self.has_progress |= has_sent;
        self.handle(arrived);
    }

    fn handle(&mut self, arrived: Vec<(u32, Message)>) {
        self.has_heard |= !arrived.is_empty();
        for (rank, message) in arrived {
            match message {
                Message::Contribution(new) => self.contributions[rank as usize].push_back(new),
                Message::Proposal(said) => {
                    self.withdrawn[rank as usize] = Some(said.epoch);
                    self.agreement.hear(rank, said);
                }
                Message::Withdrawal { epoch } => self.withdrawn[rank as usize] = Some(epoch),
                Message::Cut { epoch, ranks } if epoch >= self.agreement.epoch() => {
                    self.cuts.hear(rank, ranks, self.rank);
                }
                // It concerns a process that has been replaced.
                Message::Cut { .. } => {}
                Message::Dead { epoch, dead } => self.reports.push((rank, epoch, dead)),
            }
        }
    }

    fn send_to_all(&mut self, message: &Message, outside: &RankSet) {
        let others = (0..self.contributions.len() as u32).filter(|rank| !outside.contains(rank));
        match &mut self.transport {
            Transport::Rc(rc) => {
                let encoded = Encoded::new(message.encode());
                others.for_each(|rank| rc.send(rank, &encoded));
            }
            Transport::Dc(dc) => others.for_each(|rank| dc.send(rank, message.clone())),
        }
    }

    /// Withdraws from the epoch: a death has cost this rank requests, so waits for them must end.
    pub(crate) fn withdraw(&mut self, liveness: &Liveness) {
        let epoch = self.agreement.epoch();
        self.withdrawn[self.rank as usize] = Some(epoch);
        self.has_heard = true;
        self.send_to_all(&Message::Withdrawal { epoch }, &liveness.not_alive());
        self.poll(liveness);
    }

    /// Sends this rank's contribution to the next exchange, truncated to [`MAX_CONTRIBUTION`] bytes.
    pub(crate) fn begin_exchange(&mut self, bytes: &[u8], liveness: &Liveness) -> Result<()> {
        if let Err(dead) = liveness.check_none_dead() {
            // Others may have the dead rank's contribution and would wait for this rank's.
            let withdrawal = Message::Withdrawal { epoch: self.agreement.epoch() };
            self.send_to_all(&withdrawal, &liveness.not_alive());
            self.poll(liveness);
            return Err(dead);
        }
        if self.is_broken {
            return Err(BootstrapError::Broken.into());
        }
        let bytes = bytes[..bytes.len().min(MAX_CONTRIBUTION)].to_vec();
        let contribution = Contribution { epoch: self.agreement.epoch(), number: self.number, bytes };
        self.contributions[self.rank as usize].push_back(contribution.clone());
        self.send_to_all(&Message::Contribution(contribution), &liveness.not_alive());
        self.has_progress = true;
        Ok(())
    }

    /// Returns all contributions (`None` for dropped ranks) once they, and this rank's everywhere, have arrived.
    pub(crate) fn try_exchange(&mut self, liveness: &Liveness) -> Result<Option<Contributions>> {
        self.poll(liveness);
        // Waiting ranks poll often and mostly find nothing, and there may be many ranks.
        if !std::mem::take(&mut self.has_progress) || self.waits_on(liveness) {
            return Ok(None);
        }
        let at = (self.agreement.epoch(), self.number);
        let any_dead = liveness.first_dead().is_some();
        for (rank, contributions) in (0..).zip(&mut self.contributions) {
            // Leftovers of earlier epochs.
            while contributions.front().is_some_and(|oldest| oldest.epoch < at.0) {
                contributions.pop_front();
            }
            if any_dead
                && contributions.is_empty()
                && let RankState::Dead(cause) = liveness.state(rank)
            {
                return Err(NotifyError::PeerDead { rank, cause });
            }
        }
        let missing = self.missing(liveness);
        self.waits_for = missing.first().copied();
        // A rank that has withdrawn does not contribute.
        if missing.iter().any(|rank| self.withdrawn[*rank as usize].is_some_and(|epoch| epoch >= at.0)) {
            liveness.check_none_dead()?;
        }
        if !missing.is_empty() {
            return Ok(None);
        }
        let take = |(rank, queue): (u32, &mut VecDeque<Contribution>)| match queue.pop_front() {
            _ if matches!(liveness.state(rank), RankState::Dropped(_)) => Ok(None),
            Some(oldest) if (oldest.epoch, oldest.number) == at => Ok(Some(oldest.bytes)),
            found => {
                let found = found.map(|oldest| (oldest.epoch, oldest.number));
                let reason = format!("it is at exchange {found:?}, and this rank at {at:?}");
                Err(NotifyError::FailedOnRank { rank, reason })
            }
        };
        let all = (0..).zip(&mut self.contributions).map(take).collect::<Result<Vec<_>, _>>()?;
        self.number += 1;
        Ok(Some(all))
    }

    /// Returns true if the exchange still waits for the rank that was missing at the last try, and nothing has happened
    /// that ends it; then no other rank needs a check.
    fn waits_on(&self, liveness: &Liveness) -> bool {
        self.waits_for.is_some_and(|rank| self.is_missing(rank, liveness))
            && liveness.first_dead().is_none()
            && self.withdrawn.iter().all(Option::is_none)
    }

    /// Returns the living ranks that an exchange waits for: for their contributions, or until this rank's has arrived
    /// there. (A rank that has ended after its contribution arrived has taken part.)
    pub(crate) fn missing(&self, liveness: &Liveness) -> Vec<u32> {
        (0..self.contributions.len() as u32).filter(|rank| self.is_missing(*rank, liveness)).collect()
    }

    fn is_missing(&self, rank: u32, liveness: &Liveness) -> bool {
        let has_part = !self.contributions[rank as usize].is_empty();
        !(has_part && self.transport.is_flushed(rank)) && liveness.is_alive(rank)
    }

    pub(crate) fn give_up_exchanges(&mut self) {
        self.is_broken = true;
    }

    /// Takes a step of the agreement on dead ranks. Returns `None` before its end.
    pub(crate) fn try_agree(&mut self, liveness: &Liveness) -> Option<Outcome> {
        self.poll(liveness);
        let (said, outcome) = self.agreement.step(&liveness.not_alive());
        if let Some(said) = said {
            let outside = said.dead.clone();
            self.send_to_all(&Message::Proposal(said), &outside);
        }
        let outcome = outcome?;
        if matches!(outcome, Outcome::Drop(_)) {
            (self.number, self.is_broken, self.has_heard) = (0, false, true);
        }
        self.poll(liveness);
        Some(outcome)
    }

    pub(crate) fn silent(&self, liveness: &Liveness) -> Vec<u32> {
        self.agreement.silent(&liveness.not_alive())
    }

    /// Returns the living ranks at which not every message has arrived.
    pub(crate) fn unflushed(&self, liveness: &Liveness) -> Vec<u32> {
        let waits = |rank: &u32| !self.transport.is_flushed(*rank) && liveness.is_alive(*rank);
        (0..self.contributions.len() as u32).filter(waits).collect()
    }
}

impl Transport {
    fn poll(&mut self, period: Duration, liveness: &Liveness) -> Events {
        match self {
            Transport::Rc(rc) => rc.poll(),
            Transport::Dc(dc) => {
                // A dropped rank has been cut off; another process may be taking its place.
                let dropped = liveness.dropped();
                dc.poll(period, |rank| !dropped.contains(&rank))
            }
        }
    }

    /// Cuts a dead rank off. Returns what had arrived before.
    fn cut(&mut self, rank: u32) -> Events {
        match self {
            Transport::Rc(rc) => rc.cut(rank),
            Transport::Dc(dc) => dc.cut(rank),
        }
    }

    /// Returns true if every message has arrived in the rank's memory.
    fn is_flushed(&self, rank: u32) -> bool {
        match self {
            Transport::Rc(rc) => rc.is_flushed(rank),
            Transport::Dc(dc) => dc.is_flushed(rank),
        }
    }
}

#[cfg(test)]
mod tests;
