//! The control connections of a team: exchanges of short texts among all ranks, the agreement on
//! dead ranks, and probes that find those.

pub(crate) mod agreement;
mod dc;
mod message;
mod probe;
mod rc;

pub(crate) use probe::Probing;

use crate::bootstrap::BootstrapError;
use crate::error::{DeathCause, NotifyError};
use crate::liveness::{Liveness, RankSet, RankState};
use agreement::{Agreement, Outcome};
use dc::DcTransport;
use gdsync::qp::DcTarget;
use gdsync::verbs::DcAddress;
use gdsync::{Access, Endpoint, ProtectionDomain, QueuePairConfig};
use message::{Contribution, MAX_CONTRIBUTION, Message};
use probe::ProbeTurn;
use rc::{Encoded, RcTransport};
use std::collections::VecDeque;
use std::time::Duration;

/// The contributions of an exchange, `None` of ranks that were dropped.
pub(crate) type Contributions = Vec<Option<Vec<u8>>>;

/// What a look at the control connections has found.
#[derive(Debug, Default)]
struct Events {
    /// Of each rank in the order in which it sent them.
    arrived: Vec<(u32, Message)>,
    dead: Vec<(u32, DeathCause)>,
    /// Messages have arrived elsewhere, or never will.
    has_sent: bool,
}

/// What carries messages and probes.
#[derive(Debug)]
enum Transport {
    /// A connection with each rank.
    Rc(Box<RcTransport>),
    Dc(Box<DcTransport>),
}

/// The control connections of one rank.
#[derive(Debug)]
pub(crate) struct Control {
    rank: u32,
    transport: Transport,
    probing: Probing,
    agreement: Agreement,
    /// Of each rank, the contributions of exchanges that have arrived.
    contributions: Vec<VecDeque<Contribution>>,
    /// What ranks have said of deaths that they have found, with their epochs.
    reports: VecDeque<(u32, u32, RankSet)>,
    /// Of each rank, the newest epoch of whose exchanges it takes no contribution any more.
    withdrawn: Vec<Option<u32>>,
    /// The next exchange of this epoch.
    number: u32,
    /// An exchange of this epoch has failed: the ranks may disagree on the next.
    is_broken: bool,
    /// What ranks have said, or the epoch, has changed since it was thought of.
    has_heard: bool,
    /// Something has changed since an exchange looked.
    has_progress: bool,
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
        probing: Probing,
    ) -> Result<Self, NotifyError> {
        let place = (rank, size);
        let transport = match dynamic {
            None => Transport::Rc(Box::new(RcTransport::new(pd, config, place, probing)?)),
            Some(access) => {
                Transport::Dc(Box::new(DcTransport::new(pd, config, access, place, probing.connect)?))
            }
        };
        Ok(Control {
            rank,
            transport,
            probing,
            agreement: Agreement::new(rank, size, 0),
            contributions: vec![VecDeque::new(); size as usize],
            reports: VecDeque::new(),
            withdrawn: vec![None; size as usize],
            number: 0,
            is_broken: false,
            has_heard: false,
            has_progress: false,
            waits_for: None,
        })
    }

    /// The endpoint of the connection to a rank; `None` for this rank itself, and where connections are dynamic.
    pub(crate) fn endpoint(&self, rank: u32) -> Result<Option<Endpoint>, NotifyError> {
        match &self.transport {
            Transport::Rc(rc) => rc.endpoint(rank),
            Transport::Dc(_) => Ok(None),
        }
    }

    /// Where what other ranks send and write arrives, if connections are dynamic.
    pub(crate) fn target(&self) -> Option<&DcTarget> {
        match &self.transport {
            Transport::Rc(_) => None,
            Transport::Dc(dc) => Some(dc.target()),
        }
    }

    pub(crate) fn connect(&mut self, rank: u32, remote: &Endpoint) -> Result<(), NotifyError> {
        let options = self.probing.connect;
        match &mut self.transport {
            Transport::Rc(rc) => rc.connect(rank, remote, options),
            Transport::Dc(_) => Ok(()),
        }
    }

    /// Connects to a rank's target. Returns its address, for the team's queues; none where connections are not dynamic.
    pub(crate) fn connect_to_target(
        &mut self,
        rank: u32,
        (remote, key): (&Endpoint, u64),
    ) -> Result<Option<DcAddress>, NotifyError> {
        let Transport::Dc(dc) = &mut self.transport else { return Ok(None) };
        let address = dc.address(remote, key, self.probing.connect)?;
        dc.connect(rank, address.clone());
        Ok(Some(address))
    }

    /// Makes a new connection in the place of that with a dropped rank. It is left alone until the
    /// rank is alive again. Returns its endpoint, unless connections are dynamic.
    pub(crate) fn renew(
        &mut self,
        pd: &ProtectionDomain,
        rank: u32,
    ) -> Result<Option<Endpoint>, NotifyError> {
        self.contributions[rank as usize].clear();
        self.withdrawn[rank as usize] = None;
        self.has_heard = true;
        let Transport::Rc(rc) = &mut self.transport else { return Ok(None) };
        rc.renew(pd, rank)?;
        rc.endpoint(rank)
    }

    /// Agreements so far.
    pub(crate) fn epoch(&self) -> u32 {
        self.agreement.epoch()
    }

    /// The members of the team have changed by another way than the agreement on the dead: those whose
    /// connections were made anew are connected, on both sides.
    pub(crate) fn begin_epoch(&mut self, epoch: u32) {
        self.agreement.begin(epoch);
        (self.number, self.is_broken, self.has_heard) = (0, false, true);
        if let Transport::Rc(rc) = &mut self.transport {
            let arrived = rc.begin();
            self.take(arrived);
        }
    }

    /// Time between two looks that is short beside that between two probes.
    pub(crate) fn look_period(&self) -> Duration {
        self.probing.period / 4
    }

    /// Takes what has arrived, sends what waits, probes, and finds the dead. Ranks that `liveness` says
    /// are dead are cut off.
    pub(crate) fn poll(&mut self, liveness: &Liveness) {
        let Events { arrived, dead, has_sent } = self.transport.poll(self.probing.period, liveness);
        self.has_progress |= has_sent;
        let died = |(rank, cause)| liveness.mark_dead(rank, cause).then_some(rank);
        let found: RankSet = dead.into_iter().filter_map(died).collect();
        self.take(arrived);
        if !found.is_empty() {
            self.has_heard = true;
            self.report(found, liveness);
        }
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
            self.cut_off(rank);
        }
        let epoch = self.agreement.epoch();
        let withdrawn = (0..).zip(&self.withdrawn).filter(|(_, of)| of.is_some_and(|of| of >= epoch));
        liveness.set_withdrawn(withdrawn.map(|(rank, _)| rank).collect());
    }

    /// Tells the others of deaths that this rank has found, where not every rank finds each by itself.
    fn report(&mut self, dead: RankSet, liveness: &Liveness) {
        if ProbeTurn::reports(self.contributions.len() as u32) {
            let epoch = self.agreement.epoch();
            self.send_to_all(&Message::Dead { epoch, dead }, &liveness.not_alive());
        }
    }

    /// The next rank that lives as far as this one knows, and is dead as another one says.
    fn next_reported(&mut self, liveness: &Liveness) -> Option<(u32, u32)> {
        let epoch = self.agreement.epoch();
        let is_news = |rank: u32| rank != self.rank && liveness.is_alive(rank);
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
        let Events { arrived, has_sent, .. } = self.transport.cut(rank);
        self.has_progress |= has_sent;
        self.take(arrived);
    }

    fn take(&mut self, arrived: Vec<(u32, Message)>) {
        self.has_heard |= !arrived.is_empty();
        for (rank, message) in arrived {
            match message {
                Message::Contribution(contribution) => {
                    self.contributions[rank as usize].push_back(contribution)
                }
                Message::Proposal(said) => {
                    self.withdrawn[rank as usize] = Some(said.epoch);
                    self.agreement.hear(rank, said);
                }
                Message::Withdrawal { epoch } => self.withdrawn[rank as usize] = Some(epoch),
                Message::Dead { epoch, dead } => self.reports.push_back((rank, epoch, dead)),
            }
        }
    }

    /// Sends to every rank outside a set.
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

    /// What this rank had sent is lost, as another one is dead: waits for it end, here, too.
    pub(crate) fn withdraw(&mut self, liveness: &Liveness) {
        let epoch = self.agreement.epoch();
        self.withdrawn[self.rank as usize] = Some(epoch);
        self.has_heard = true;
        self.send_to_all(&Message::Withdrawal { epoch }, &liveness.not_alive());
        self.poll(liveness);
    }

    /// Sends this rank's contribution of the next exchange. Bytes beyond 500 are left out.
    pub(crate) fn begin_exchange(&mut self, bytes: &[u8], liveness: &Liveness) -> Result<(), NotifyError> {
        if let Err(dead) = liveness.check_none_dead() {
            // Others may have that rank's contribution already, and would wait for this rank's.
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

    /// The contributions of all ranks, `None` for those that were dropped, once all have arrived and the
    /// own one has arrived everywhere. `None` before that.
    pub(crate) fn try_exchange(&mut self, liveness: &Liveness) -> Result<Option<Contributions>, NotifyError> {
        self.poll(liveness);
        // Many looks find nothing: a rank that waits looks often, and there may be many ranks.
        if !std::mem::take(&mut self.has_progress) {
            return Ok(None);
        }
        if self.waits_on(liveness) {
            return Ok(None);
        }
        let at = (self.agreement.epoch(), self.number);
        let (mut is_complete, any_dead) = (true, liveness.first_dead().is_some());
        for (rank, contributions) in (0..).zip(&mut self.contributions) {
            // What exchanges of earlier epochs have left.
            while contributions.front().is_some_and(|contribution| contribution.epoch < at.0) {
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
        for rank in missing {
            is_complete = false;
            // A rank that has seen a death before does not come.
            if self.withdrawn[rank as usize].is_some_and(|epoch| epoch >= at.0) {
                liveness.check_none_dead()?;
            }
        }
        if !is_complete {
            return Ok(None);
        }
        let take = |(rank, contributions): (u32, &mut VecDeque<Contribution>)| match contributions.pop_front()
        {
            _ if matches!(liveness.state(rank), RankState::Dropped(_)) => Ok(None),
            Some(contribution) if (contribution.epoch, contribution.number) == at => {
                Ok(Some(contribution.bytes))
            }
            found => {
                let found = found.map(|contribution| (contribution.epoch, contribution.number));
                let reason = format!("it is at exchange {found:?}, and this rank at {at:?}");
                Err(NotifyError::Elsewhere { rank, reason })
            }
        };
        let all = (0..).zip(&mut self.contributions).map(take).collect::<Result<Vec<_>, _>>()?;
        self.number += 1;
        Ok(Some(all))
    }

    /// Whether the exchange still waits for the rank that was missing at its last look, and nothing has happened that ends
    /// it: then no other rank needs a look.
    fn waits_on(&self, liveness: &Liveness) -> bool {
        self.waits_for.is_some_and(|rank| self.is_missing(rank, liveness))
            && liveness.first_dead().is_none()
            && self.withdrawn.iter().all(Option::is_none)
    }

    /// The living ranks that an exchange waits for: for their contributions, or until this one's has arrived there. (A
    /// rank that has ended after its contribution arrived has taken contribution.)
    pub(crate) fn missing(&self, liveness: &Liveness) -> Vec<u32> {
        (0..self.contributions.len() as u32).filter(|rank| self.is_missing(*rank, liveness)).collect()
    }

    fn is_missing(&self, rank: u32, liveness: &Liveness) -> bool {
        let has_part = !self.contributions[rank as usize].is_empty();
        !(has_part && self.transport.is_flushed(rank)) && liveness.is_alive(rank)
    }

    /// No exchange succeeds in this epoch any more.
    pub(crate) fn give_up_exchanges(&mut self) {
        self.is_broken = true;
    }

    /// One step of the agreement on the dead ranks. `None` before its end.
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
        // What was said goes out now.
        self.poll(liveness);
        Some(outcome)
    }

    /// The ranks that take no contribution yet in the agreement.
    pub(crate) fn silent(&self, liveness: &Liveness) -> Vec<u32> {
        self.agreement.silent(&liveness.not_alive())
    }

    /// The living ranks at which not everything has arrived that was sent there.
    pub(crate) fn unflushed(&self, liveness: &Liveness) -> Vec<u32> {
        let waits = |rank: &u32| !self.transport.is_flushed(*rank) && liveness.is_alive(*rank);
        (0..self.contributions.len() as u32).filter(waits).collect()
    }
}

impl Transport {
    /// Takes what has arrived, sends what waits, probes, and finds the dead.
    fn poll(&mut self, period: Duration, liveness: &Liveness) -> Events {
        match self {
            Transport::Rc(rc) => rc.poll(),
            Transport::Dc(dc) => {
                // Of a dropped rank: cut off before it was dropped; perhaps another process takes its place.
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

    /// Every message has arrived at the rank's memory.
    fn is_flushed(&self, rank: u32) -> bool {
        match self {
            Transport::Rc(rc) => rc.is_flushed(rank),
            Transport::Dc(dc) => dc.is_flushed(rank),
        }
    }
}
