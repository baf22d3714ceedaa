//! The control connections of a team: exchanges of short texts among all ranks, the agreement on
//! dead ranks, and probes that find those.

pub(crate) mod agreement;
mod hub;
mod letters;
mod mesh;
mod message;
mod watch;

pub(crate) use watch::Watch;

use crate::bootstrap::BootstrapError;
use crate::error::{DeathCause, NotifyError};
use crate::life::{Life, RankSet, State};
use agreement::{Agreement, Outcome};
use gdsync::qp::DcTarget;
use gdsync::verbs::DcAddress;
use gdsync::{Access, Endpoint, ProtectionDomain, QueuePairConfig};
use hub::Hub;
use letters::Letter;
use mesh::Mesh;
use message::{MAX_PART, Message, Part};
use std::collections::VecDeque;
use std::time::Duration;
use watch::Turn;

/// The parts of an exchange, `None` of ranks that were dropped.
pub(crate) type Parts = Vec<Option<Vec<u8>>>;

/// What a look at the control connections has found.
#[derive(Debug, Default)]
struct News {
    /// Of each rank in the order in which it sent them.
    arrived: Vec<(u32, Message)>,
    dead: Vec<(u32, DeathCause)>,
    /// Messages have arrived elsewhere, or never will.
    has_sent: bool,
}

/// What carries messages and probes.
#[derive(Debug)]
enum Wires {
    /// A connection with each rank.
    Each(Box<Mesh>),
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
    /// What ranks have said of deaths that they have found, with their epochs.
    reports: VecDeque<(u32, u32, RankSet)>,
    /// Of each rank, the newest epoch of whose exchanges it takes no part any more.
    refused: Vec<Option<u32>>,
    /// The next exchange of this epoch.
    number: u32,
    /// An exchange of this epoch has failed: the ranks may disagree on the next.
    is_broken: bool,
    /// What ranks have said, or the epoch, has changed since it was thought of.
    is_fresh: bool,
    /// Something has changed since an exchange looked.
    is_new: bool,
    /// A rank that the exchange waited for when it looked last.
    waits_for: Option<u32>,
}

impl Control {
    /// Unconnected. `config` is that of the team's queue pairs. There is a connection for each rank; or DC, where the other
    /// ranks have `dynamic` access to this one's memory by its target, which serves the team's queues, too.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'static>,
        dynamic: Option<Access>,
        (rank, size): (u32, u32),
        watch: Watch,
    ) -> Result<Self, NotifyError> {
        let place = (rank, size);
        let wires = match dynamic {
            None => Wires::Each(Box::new(Mesh::new(pd, config, place, watch)?)),
            Some(access) => Wires::Dynamic(Box::new(Hub::new(pd, config, access, place, watch.connect)?)),
        };
        Ok(Control {
            rank,
            wires,
            watch,
            agreement: Agreement::new(rank, size, 0),
            parts: vec![VecDeque::new(); size as usize],
            reports: VecDeque::new(),
            refused: vec![None; size as usize],
            number: 0,
            is_broken: false,
            is_fresh: false,
            is_new: false,
            waits_for: None,
        })
    }

    /// The endpoint of the connection to a rank; `None` for this rank itself, and where connections
    /// are dynamic.
    pub(crate) fn endpoint(&self, rank: u32) -> Result<Option<Endpoint>, NotifyError> {
        match &self.wires {
            Wires::Each(mesh) => mesh.endpoint(rank),
            Wires::Dynamic(_) => Ok(None),
        }
    }

    /// Where what other ranks send and write arrives, if connections are dynamic.
    pub(crate) fn target(&self) -> Option<&DcTarget> {
        match &self.wires {
            Wires::Each(_) => None,
            Wires::Dynamic(hub) => Some(hub.target()),
        }
    }

    pub(crate) fn connect(&mut self, rank: u32, remote: &Endpoint) -> Result<(), NotifyError> {
        let options = self.watch.connect;
        match &mut self.wires {
            Wires::Each(mesh) => mesh.connect(rank, remote, options),
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
        self.is_fresh = true;
        let Wires::Each(mesh) = &mut self.wires else { return Ok(None) };
        mesh.renew(pd, rank)?;
        mesh.endpoint(rank)
    }

    /// Agreements so far.
    pub(crate) fn epoch(&self) -> u32 {
        self.agreement.epoch()
    }

    /// The members of the team have changed by another way than the agreement on the dead: those whose
    /// connections were made anew are connected, on both sides.
    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.agreement.begin(epoch);
        (self.number, self.is_broken, self.is_fresh) = (0, false, true);
        if let Wires::Each(mesh) = &mut self.wires {
            let arrived = mesh.begin();
            self.take(arrived);
        }
    }

    /// Time between two looks that is short beside that between two probes.
    pub(crate) fn look_period(&self) -> Duration {
        self.watch.period / 4
    }

    /// Takes what has arrived, sends what waits, probes, and finds the dead. Ranks that `life` says
    /// are dead are cut off.
    pub(crate) fn poll(&mut self, life: &Life) {
        let News { arrived, dead, has_sent } = self.wires.poll(self.watch.period, life);
        self.is_new |= has_sent;
        let died = |(rank, cause)| life.died(rank, cause).then_some(rank);
        let found: RankSet = dead.into_iter().filter_map(died).collect();
        self.take(arrived);
        if !found.is_empty() {
            self.is_fresh = true;
            self.report(found, life);
        }
        if life.first_dead().is_some() {
            for rank in life.set_of(|state| matches!(state, State::Dead(_))) {
                self.cut_off(rank);
            }
        }
        if !std::mem::take(&mut self.is_fresh) {
            return;
        }
        self.is_new = true;
        while let Some((rank, by)) = self.next_reported(life) {
            life.died(rank, DeathCause::Reported { by });
            self.cut_off(rank);
        }
        let epoch = self.agreement.epoch();
        let withdrawn = (0..).zip(&self.refused).filter(|(_, of)| of.is_some_and(|of| of >= epoch));
        life.set_withdrawn(withdrawn.map(|(rank, _)| rank).collect());
    }

    /// Tells the others of deaths that this rank has found, where not every rank finds each by itself.
    fn report(&mut self, dead: RankSet, life: &Life) {
        if Turn::reports(self.parts.len() as u32) {
            let epoch = self.agreement.epoch();
            self.tell(&Message::Dead { epoch, dead }, &life.lost());
        }
    }

    /// The next rank that lives as far as this one knows, and is dead as another one says.
    fn next_reported(&mut self, life: &Life) -> Option<(u32, u32)> {
        let epoch = self.agreement.epoch();
        let is_news = |rank: u32| rank != self.rank && life.is_alive(rank);
        while let Some((by, of, dead)) = self.reports.front() {
            // One of an earlier epoch may be of a process whose place another one has taken.
            let rank = dead.iter().copied().find(|rank| *of >= epoch && is_news(*rank));
            if let Some(rank) = rank {
                return Some((rank, *by));
            }
            self.reports.pop_front();
        }
        self.agreement.reported(is_news)
    }

    fn cut_off(&mut self, rank: u32) {
        let News { arrived, has_sent, .. } = self.wires.cut(rank);
        self.is_new |= has_sent;
        self.take(arrived);
    }

    fn take(&mut self, arrived: Vec<(u32, Message)>) {
        self.is_fresh |= !arrived.is_empty();
        for (rank, message) in arrived {
            match message {
                Message::Part(part) => self.parts[rank as usize].push_back(part),
                Message::Proposal(said) => {
                    self.refused[rank as usize] = Some(said.epoch);
                    self.agreement.hear(rank, said);
                }
                Message::Refusal { epoch } => self.refused[rank as usize] = Some(epoch),
                Message::Dead { epoch, dead } => self.reports.push_back((rank, epoch, dead)),
            }
        }
    }

    /// Sends to every rank outside a set.
    fn tell(&mut self, message: &Message, outside: &RankSet) {
        let others = (0..self.parts.len() as u32).filter(|rank| !outside.contains(rank));
        match &mut self.wires {
            Wires::Each(mesh) => {
                let letter = Letter::new(message.encode());
                others.for_each(|rank| mesh.send(rank, &letter));
            }
            Wires::Dynamic(hub) => others.for_each(|rank| hub.send(rank, message.clone())),
        }
    }

    /// What this rank had sent is lost, as another one is dead: waits for it end, here, too.
    pub(crate) fn withdraw(&mut self, life: &Life) {
        let epoch = self.agreement.epoch();
        self.refused[self.rank as usize] = Some(epoch);
        self.is_fresh = true;
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
        self.is_new = true;
        Ok(())
    }

    /// The parts of all ranks, `None` for those that were dropped, once all have arrived and the
    /// own one has arrived everywhere. `None` before that.
    pub(crate) fn try_exchange(&mut self, life: &Life) -> Result<Option<Parts>, NotifyError> {
        self.poll(life);
        // Many looks find nothing: a rank that waits looks often, and there may be many ranks.
        if !std::mem::take(&mut self.is_new) {
            return Ok(None);
        }
        if self.waits_on(life) {
            return Ok(None);
        }
        let at = (self.agreement.epoch(), self.number);
        let (mut is_complete, any_dead) = (true, life.first_dead().is_some());
        for (rank, parts) in (0..).zip(&mut self.parts) {
            // What exchanges of earlier epochs have left.
            while parts.front().is_some_and(|part| part.epoch < at.0) {
                parts.pop_front();
            }
            if any_dead
                && parts.is_empty()
                && let State::Dead(cause) = life.state(rank)
            {
                return Err(NotifyError::PeerDead { rank, cause });
            }
        }
        let missing = self.missing(life);
        self.waits_for = missing.first().copied();
        for rank in missing {
            is_complete = false;
            // A rank that has seen a death before does not come.
            if self.refused[rank as usize].is_some_and(|epoch| epoch >= at.0) {
                life.check_all()?;
            }
        }
        if !is_complete {
            return Ok(None);
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
        Ok(Some(all))
    }

    /// Whether the exchange still waits for the rank that was missing at its last look, and nothing has happened that ends
    /// it: then no other rank needs a look.
    fn waits_on(&self, life: &Life) -> bool {
        self.waits_for.is_some_and(|rank| self.is_missing(rank, life))
            && life.first_dead().is_none()
            && self.refused.iter().all(Option::is_none)
    }

    /// The living ranks that an exchange waits for: for their parts, or until this one's has arrived there. (A
    /// rank that has ended after its part arrived has taken part.)
    pub(crate) fn missing(&self, life: &Life) -> Vec<u32> {
        (0..self.parts.len() as u32).filter(|rank| self.is_missing(*rank, life)).collect()
    }

    fn is_missing(&self, rank: u32, life: &Life) -> bool {
        let has_part = !self.parts[rank as usize].is_empty();
        !(has_part && self.wires.is_flushed(rank)) && life.is_alive(rank)
    }

    /// No exchange succeeds in this epoch any more.
    pub(crate) fn give_up_exchanges(&mut self) {
        self.is_broken = true;
    }

    /// One step of the agreement on the dead ranks. `None` before its end.
    pub(crate) fn try_agree(&mut self, life: &Life) -> Option<Outcome> {
        self.poll(life);
        let (said, outcome) = self.agreement.step(&life.lost());
        if let Some(said) = said {
            let outside = said.dead.clone();
            self.tell(&Message::Proposal(said), &outside);
        }
        let outcome = outcome?;
        if matches!(outcome, Outcome::Drop(_)) {
            (self.number, self.is_broken, self.is_fresh) = (0, false, true);
        }
        // What was said goes out now.
        self.poll(life);
        Some(outcome)
    }

    /// The ranks that take no part yet in the agreement.
    pub(crate) fn silent(&self, life: &Life) -> Vec<u32> {
        self.agreement.silent(&life.lost())
    }

    /// The living ranks at which not everything has arrived that was sent there.
    pub(crate) fn unflushed(&self, life: &Life) -> Vec<u32> {
        let waits = |rank: &u32| !self.wires.is_flushed(*rank) && life.is_alive(*rank);
        (0..self.parts.len() as u32).filter(waits).collect()
    }
}

impl Wires {
    /// Takes what has arrived, sends what waits, probes, and finds the dead.
    fn poll(&mut self, period: Duration, life: &Life) -> News {
        match self {
            Wires::Each(mesh) => mesh.poll(),
            Wires::Dynamic(hub) => {
                // Of a dropped rank: cut off before it was dropped; perhaps another process takes its place.
                let dropped = life.dropped();
                hub.poll(period, |rank| !dropped.contains(&rank))
            }
        }
    }

    /// Cuts a dead rank off. Returns what had arrived before.
    fn cut(&mut self, rank: u32) -> News {
        match self {
            Wires::Each(mesh) => mesh.cut(rank),
            Wires::Dynamic(hub) => hub.cut(rank),
        }
    }

    /// Every message has arrived at the rank's memory.
    fn is_flushed(&self, rank: u32) -> bool {
        match self {
            Wires::Each(mesh) => mesh.is_flushed(rank),
            Wires::Dynamic(hub) => hub.is_flushed(rank),
        }
    }
}
