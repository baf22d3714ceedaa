//! The control connections of a team: exchanges of short texts among all ranks, the agreement on
//! dead ranks, and probes that find those.

pub(crate) mod agreement;
mod hub;
mod link;
mod message;

use crate::bootstrap::BootstrapError;
use crate::error::{DeathCause, NotifyError};
use crate::life::{Life, State};
use crate::rank_set::RankSet;
use agreement::{Agreement, Outcome};
use gdsync::qp::DcTarget;
use gdsync::verbs::DcAddress;
use gdsync::{Access, ConnectOptions, Endpoint, ProtectionDomain, QueuePairConfig};
use hub::{Hub, News};
use link::Link;
use message::{MAX_PART, Message, Part};
use std::collections::VecDeque;
use std::time::Duration;

/// The unit of a connection's time-out code.
const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);
/// A control connection is not given up sooner: busy machines answer late.
const SHORTEST: Duration = Duration::from_secs(1);

/// How control connections are made and watched, so that a dead rank is found within the time after
/// which the team's own connections give up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Watch {
    pub(crate) connect: ConnectOptions,
    /// Time between two probes.
    pub(crate) period: Duration,
}

impl Watch {
    pub(crate) fn of(team: ConnectOptions) -> Self {
        let attempt = |code: u8| TIMEOUT_UNIT * (1 << code.min(31));
        // A receiver that takes its messages late is not dead.
        let team = team.rnr_retry(7);
        let (timeout, retries) = (team.timeout, team.retry_count);
        // IB specification, 9.7.6.1.3: a time-out of 0 never ends.
        if timeout == 0 {
            return Watch { connect: team, period: SHORTEST };
        }
        // One attempt less than the team's connections: a death is met by the probe after it.
        if retries >= 3 && attempt(timeout) * u32::from(retries) >= SHORTEST {
            return Watch { connect: team.retry_count(retries - 1), period: attempt(timeout) * 3 / 4 };
        }
        let limit = attempt(timeout) * (u32::from(retries) + 1);
        let shortest = (1..31).find(|code| attempt(*code) * 8 >= SHORTEST).unwrap_or(31);
        let code = (shortest..31).take_while(|code| attempt(*code) * 9 <= limit).last().unwrap_or(shortest);
        Watch { connect: team.timeout(code).retry_count(7), period: attempt(code) * 3 / 4 }
    }
}

/// The parts of an exchange, `None` of ranks that were dropped; or the ranks that are missing.
pub(crate) type Parts = Result<Vec<Option<Vec<u8>>>, Vec<u32>>;

/// What carries messages and probes.
#[derive(Debug)]
enum Wires {
    /// A connection with each rank, made with this configuration; `None` is this rank itself.
    Each(Vec<Option<Link>>, QueuePairConfig<'static>),
    Dynamic(Box<Hub>),
}

/// The control connections of one rank.
#[derive(Debug)]
pub(crate) struct Control {
    rank: u32,
    wires: Wires,
    watch: Watch,
    agreement: Agreement,
    /// Of each rank, the parts of exchanges that have arrived.
    parts: Vec<VecDeque<Part>>,
    /// Of each rank, the newest epoch of whose exchanges it takes no part any more.
    refused: Vec<Option<u32>>,
    /// The next exchange of this epoch.
    number: u32,
    /// An exchange of this epoch has failed: the ranks may disagree on the next.
    is_broken: bool,
}

impl Control {
    /// Unconnected, with a connection for each rank. `config` is that of the team's queue pairs.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        (rank, size): (u32, u32),
        watch: Watch,
    ) -> Result<Self, NotifyError> {
        let link = |to| (to != rank).then(|| Link::new(pd, config, to, size)).transpose();
        let links = (0..size).map(link).collect::<Result<_, _>>()?;
        Ok(Self::of(Wires::Each(links, config), (rank, size), watch))
    }

    /// The same over DC. The other ranks have `access` to this one's memory by its target, which serves
    /// the team's queues, too.
    pub(crate) fn dynamic(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        access: Access,
        (rank, size): (u32, u32),
        watch: Watch,
    ) -> Result<Self, NotifyError> {
        let hub = Hub::new(pd, config, access, (rank, size), watch.connect)?;
        Ok(Self::of(Wires::Dynamic(Box::new(hub)), (rank, size), watch))
    }

    fn of(wires: Wires, (rank, size): (u32, u32), watch: Watch) -> Self {
        Control {
            rank,
            wires,
            watch,
            agreement: Agreement::new(rank, size, 0),
            parts: vec![VecDeque::new(); size as usize],
            refused: vec![None; size as usize],
            number: 0,
            is_broken: false,
        }
    }

    /// The endpoint of the connection to each rank; `None` for this rank itself, and where connections
    /// are dynamic.
    pub(crate) fn endpoints(&self) -> Result<Vec<Option<Endpoint>>, NotifyError> {
        let endpoint =
            |link: &Option<Link>| Ok(link.as_ref().map(|one| one.queue_pair.endpoint()).transpose()?);
        match &self.wires {
            Wires::Each(links, _) => links.iter().map(endpoint).collect(),
            Wires::Dynamic(_) => Ok(vec![None; self.parts.len()]),
        }
    }

    /// Where what other ranks send and write arrives, if connections are dynamic.
    pub(crate) fn target(&self) -> Option<&DcTarget> {
        match &self.wires {
            Wires::Each(..) => None,
            Wires::Dynamic(hub) => Some(hub.target()),
        }
    }

    pub(crate) fn connect(&mut self, rank: u32, remote: &Endpoint) -> Result<(), NotifyError> {
        let options = self.watch.connect;
        match &mut self.wires {
            Wires::Each(links, _) => {
                links[rank as usize].as_mut().map_or(Ok(()), |link| link.connect(remote, options))
            }
            Wires::Dynamic(_) => Ok(()),
        }
    }

    /// Connects to a rank's target. Returns its address, for the team's queues; none where connections
    /// are not dynamic.
    pub(crate) fn connect_to_target(
        &mut self,
        rank: u32,
        (remote, key): (&Endpoint, u64),
    ) -> Result<Option<DcAddress>, NotifyError> {
        let Wires::Dynamic(hub) = &mut self.wires else { return Ok(None) };
        let address = hub.address(remote, key, self.watch.connect)?;
        hub.connect(rank, address.clone());
        Ok(Some(address))
    }

    /// Makes a new connection in the place of that with a dropped rank. It is left alone until the
    /// rank is alive again. Returns its endpoint, unless connections are dynamic.
    pub(crate) fn renew(
        &mut self,
        pd: &ProtectionDomain,
        rank: u32,
    ) -> Result<Option<Endpoint>, NotifyError> {
        self.parts[rank as usize].clear();
        self.refused[rank as usize] = None;
        let Wires::Each(links, config) = &mut self.wires else { return Ok(None) };
        let link = Link::new(pd, *config, rank, links.len() as u32)?;
        let endpoint = link.queue_pair.endpoint()?;
        links[rank as usize] = Some(link);
        Ok(Some(endpoint))
    }

    /// Agreements so far.
    pub(crate) fn epoch(&self) -> u32 {
        self.agreement.epoch()
    }

    /// The members of the team have changed by another way than the agreement on the dead.
    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.agreement.begin(epoch);
        (self.number, self.is_broken) = (0, false);
    }

    /// Time between two looks that is short beside that between two probes.
    pub(crate) fn look_period(&self) -> Duration {
        self.watch.period / 4
    }

    /// Takes what has arrived, sends what waits, probes, and finds the dead. Ranks that `life` says
    /// are dead are cut off.
    pub(crate) fn poll(&mut self, life: &Life) {
        let news = self.wires.poll(self.watch.period, life);
        for (rank, cause) in news.dead {
            life.died(rank, cause);
        }
        self.take(news.arrived);
        for rank in life.set_of(|state| matches!(state, State::Dead(_))).iter() {
            self.cut_off(rank);
        }
        while let Some((rank, by)) = self.agreement.reported(|rank| life.is_alive(rank)) {
            life.died(rank, DeathCause::Reported { by });
            self.cut_off(rank);
        }
        let epoch = self.agreement.epoch();
        let withdrawn = (0..).zip(&self.refused).filter(|(_, of)| of.is_some_and(|of| of >= epoch));
        life.set_withdrawn(withdrawn.map(|(rank, _)| rank).collect());
    }

    fn cut_off(&mut self, rank: u32) {
        let arrived = self.wires.cut(rank);
        self.take(arrived);
    }

    fn take(&mut self, arrived: Vec<(u32, Message)>) {
        for (rank, message) in arrived {
            match message {
                Message::Part(part) => self.parts[rank as usize].push_back(part),
                Message::Proposal(said) => {
                    self.refused[rank as usize] = Some(said.epoch);
                    self.agreement.hear(rank, said);
                }
                Message::Refusal { epoch } => self.refused[rank as usize] = Some(epoch),
            }
        }
    }

    /// Sends to every rank outside a set.
    fn tell(&mut self, message: &Message, outside: &RankSet) {
        for rank in (0..self.parts.len() as u32).filter(|rank| !outside.contains(*rank)) {
            self.wires.send(rank, message);
        }
    }

    /// What this rank had sent is lost, as another one is dead: waits for it end, here, too.
    pub(crate) fn withdraw(&mut self, life: &Life) {
        let epoch = self.agreement.epoch();
        self.refused[self.rank as usize] = Some(epoch);
        self.tell(&Message::Refusal { epoch }, &life.lost());
        self.poll(life);
    }

    /// Sends this rank's part of the next exchange. Bytes beyond 500 are left out.
    pub(crate) fn begin_exchange(&mut self, bytes: &[u8], life: &Life) -> Result<(), NotifyError> {
        if let Err(dead) = life.check_all() {
            // Others may have that rank's part already, and would wait for this rank's.
            let refusal = Message::Refusal { epoch: self.agreement.epoch() };
            self.tell(&refusal, &life.lost());
            self.poll(life);
            return Err(dead);
        }
        if self.is_broken {
            return Err(BootstrapError::Broken.into());
        }
        let bytes = bytes[..bytes.len().min(MAX_PART)].to_vec();
        let part = Part { epoch: self.agreement.epoch(), number: self.number, bytes };
        self.parts[self.rank as usize].push_back(part.clone());
        self.tell(&Message::Part(part), &life.lost());
        Ok(())
    }

    /// The parts of all ranks, `None` for those that were dropped, once all have arrived and the
    /// own one has arrived everywhere. Before that, the ranks that are missing.
    pub(crate) fn try_exchange(&mut self, life: &Life) -> Result<Parts, NotifyError> {
        self.poll(life);
        let at = (self.agreement.epoch(), self.number);
        let mut missing = Vec::new();
        for (rank, parts) in (0..).zip(&mut self.parts) {
            // What exchanges of earlier epochs have left.
            while parts.front().is_some_and(|part| part.epoch < at.0) {
                parts.pop_front();
            }
            let is_flushed = self.wires.is_flushed(rank);
            // A rank that has ended after its part arrived has taken part.
            match life.state(rank) {
                State::Alive if parts.is_empty() || !is_flushed => missing.push(rank),
                State::Dead(cause) if parts.is_empty() => return Err(NotifyError::PeerDead { rank, cause }),
                _ => {}
            }
        }
        if !missing.is_empty() {
            // A rank that has seen a death before does not come.
            if missing.iter().any(|rank| self.refused[*rank as usize].is_some_and(|epoch| epoch >= at.0)) {
                life.check_all()?;
            }
            return Ok(Err(missing));
        }
        let take = |(rank, parts): (u32, &mut VecDeque<Part>)| match parts.pop_front() {
            _ if matches!(life.state(rank), State::Dropped(_)) => Ok(None),
            Some(part) if (part.epoch, part.number) == at => Ok(Some(part.bytes)),
            found => {
                let found = found.map(|part| (part.epoch, part.number));
                let reason = format!("it is at exchange {found:?}, and this rank at {at:?}");
                Err(NotifyError::Elsewhere { rank, reason })
            }
        };
        let all = (0..).zip(&mut self.parts).map(take).collect::<Result<Vec<_>, _>>()?;
        self.number += 1;
        Ok(Ok(all))
    }

    /// No exchange succeeds in this epoch any more.
    pub(crate) fn give_up_exchanges(&mut self) {
        self.is_broken = true;
    }

    /// One step of the agreement on the dead ranks. Before its end, the ranks that take no part
    /// yet.
    pub(crate) fn try_agree(&mut self, life: &Life) -> Result<Outcome, Vec<u32>> {
        self.poll(life);
        let lost = life.lost();
        let (said, outcome) = self.agreement.step(&lost);
        if let Some(said) = said {
            let outside = said.dead.clone();
            self.tell(&Message::Proposal(said), &outside);
        }
        let Some(outcome) = outcome else { return Err(self.agreement.silent(&lost)) };
        if matches!(outcome, Outcome::Drop(_)) {
            (self.number, self.is_broken) = (0, false);
        }
        // What was said goes out now.
        self.poll(life);
        Ok(outcome)
    }

    /// The living ranks at which not everything has arrived that was sent there.
    pub(crate) fn unflushed(&self, life: &Life) -> Vec<u32> {
        let living = (0..self.parts.len() as u32).filter(|rank| life.is_alive(*rank));
        living.filter(|rank| !self.wires.is_flushed(*rank)).collect()
    }
}

impl Wires {
    /// Takes what has arrived, sends what waits, probes, and finds the dead.
    fn poll(&mut self, period: Duration, life: &Life) -> News {
        // Of a dropped rank: cut off before it was dropped; perhaps a new connection is being made.
        let dropped = life.set_of(|state| matches!(state, State::Dropped(_)));
        let is_here = |rank| !dropped.contains(rank);
        let links = match self {
            Wires::Each(links, _) => links,
            Wires::Dynamic(hub) => return hub.poll(period, is_here),
        };
        let mut news = News::default();
        for link in links.iter_mut().flatten().filter(|link| is_here(link.rank)) {
            let mut arrived = Vec::new();
            if let Some(cause) = link.poll(period, &mut arrived) {
                news.dead.push((link.rank, cause));
            }
            news.arrived.extend(arrived.into_iter().map(|message| (link.rank, message)));
        }
        news
    }

    /// Cuts a dead rank off. Returns what had arrived from it before.
    fn cut(&mut self, rank: u32) -> Vec<(u32, Message)> {
        let mut arrived = Vec::new();
        match self {
            Wires::Each(links, _) => {
                if let Some(link) = &mut links[rank as usize] {
                    link.cut(&mut arrived);
                }
            }
            Wires::Dynamic(hub) => hub.cut(rank),
        }
        arrived.into_iter().map(|message| (rank, message)).collect()
    }

    fn send(&mut self, rank: u32, message: &Message) {
        match self {
            Wires::Each(links, _) => {
                if let Some(link) = &mut links[rank as usize] {
                    link.send(message.clone());
                }
            }
            Wires::Dynamic(hub) => hub.send(rank, message.clone()),
        }
    }

    /// Every message has arrived at the rank's memory.
    fn is_flushed(&self, rank: u32) -> bool {
        match self {
            Wires::Each(links, _) => links[rank as usize].as_ref().is_none_or(Link::is_flushed),
            Wires::Dynamic(hub) => hub.is_flushed(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_found_within_the_time_out_of_the_team() {
        let whole = |options: ConnectOptions| {
            TIMEOUT_UNIT * (1 << options.timeout) * (u32::from(options.retry_count) + 1)
        };
        for (timeout, retries) in (1..24).flat_map(|timeout| (0..8).map(move |retries| (timeout, retries))) {
            let team = ConnectOptions::default().timeout(timeout).retry_count(retries).rnr_retry(0);
            let watch = Watch::of(team);
            // A probe may be late by the time between two looks.
            let latest = whole(watch.connect) + watch.period * 5 / 4;
            let limit = whole(team).max(Duration::from_millis(1300));
            assert!(latest <= limit, "{timeout} {retries}: {latest:?} {watch:?}");
            // One lost packet, or one late answer, is no death.
            assert!(watch.connect.retry_count >= 2 && whole(watch.connect) >= SHORTEST, "{watch:?}");
            assert_eq!(watch.connect.rnr_retry, 7);
        }
        assert_eq!(Watch::of(ConnectOptions::default().timeout(0)).connect.timeout, 0);
    }
}
