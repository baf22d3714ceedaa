//! One end of a link, across all its failures.
//!
//! An end that fails reports it, and the other fails with it. Both drain their queues, exchange their states, and
//! resume: with the same queue pair after a reset, or with a new one.

use super::gpu::Gpu;
use super::kernels::PosterKind;
use super::peers::Message;
use super::plan::Random;
use super::queues::{Queues, SharedDemux};
use super::region::MemoryLocation;
use super::reliable::Reliable;
use super::tally::Tally;
use super::traffic::Traffic;
use super::unreliable::Unreliable;
use super::wire::{Taken, Wire};
use gdsync::advanced::MasterConfig;
use gdsync::verbs::Transport;
use gdsync::{Device, Endpoint, PreparedWait, ProtectionDomain, Trigger};
use gdsync_cli::failure::Failure;
use std::fmt;
use std::time::{Duration, Instant};

const DRAIN: Duration = Duration::from_secs(20);
/// An end without progress for this long hangs.
const STUCK: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the other end's queue pair.
    Connecting,
    /// Connected; waits until the other end is, too.
    Waiting,
    Running,
    /// Failed; drains its queues.
    Draining,
    /// Drained; waits for the other end.
    Down,
    Closing,
}

/// Resources shared by ends of a process.
pub(super) struct SharedResources {
    /// Completion queues of sends and receives.
    pub(super) queues: Option<(SharedDemux, SharedDemux)>,
    /// Releases sends; none if the card does not wait.
    pub(super) trigger: Option<Trigger>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Role {
    pub(super) link: u32,
    pub(super) peer: usize,
    /// Numbers of this end and of the other, counted over all links.
    pub(super) own: u64,
    pub(super) other: u64,
    pub(super) seed: u64,
}

impl Role {
    fn transport(&self) -> Transport {
        match self.link % 16 {
            5 | 12 => Transport::Uc,
            7 | 14 => Transport::Ud,
            _ => Transport::Rc,
        }
    }

    /// Returns who posts: half of the links have streams. Kernels drive reliable links with separate queues.
    fn by(&self, gpu: &Gpu) -> PosterKind {
        match self.link % 16 {
            6 | 8 if gpu.has_kernels() => PosterKind::Kernels,
            link if link % 2 == 1 => PosterKind::Stream,
            _ => PosterKind::Cpu,
        }
    }

    pub(super) fn shares_queues(&self) -> bool {
        matches!(self.link % 8, 2 | 3)
    }

    /// Returns the trigger that releases its sends, if any: only streams have one. Ends that share a trigger post one at a
    /// time.
    fn trigger(&self, shared: &SharedResources, pd: &ProtectionDomain) -> Result<Option<Trigger>, Failure> {
        Ok(match (self.link % 16, &shared.trigger) {
            (1 | 9, Some(trigger)) => Some(trigger.clone()),
            (5 | 7, Some(_)) => Some(Trigger::new(pd)?),
            (11, Some(_)) => Some(mastered(pd)?),
            _ => None,
        })
    }

    fn queues(&self, shared: &SharedResources) -> Queues {
        match &shared.queues {
            Some((send, recv)) if self.shares_queues() => Queues::Shared(send.clone(), recv.clone()),
            _ if self.link % 8 == 4 => Queues::Single,
            _ => Queues::Own,
        }
    }
}

pub(super) fn mastered(pd: &ProtectionDomain) -> Result<Trigger, Failure> {
    Ok(Trigger::new(pd)?.with_master(MasterConfig::default())?)
}

pub(super) struct End {
    role: Role,
    wire: Wire,
    traffic: Box<dyn Traffic>,
    epoch: u32,
    phase: Phase,
    /// True if the other end has reported to be down in this epoch, or up in the next.
    peer_is_down: bool,
    next_up: Option<Message>,
    /// The last epoch in which the other end was connected.
    peer_ready: Option<u32>,
    /// True once the other end has been told that everything is sent.
    ended: bool,
    peer_sent: Option<u64>,
    progress: Instant,
    drain_until: Instant,
}

impl End {
    pub(super) fn new(
        role: Role,
        (device, pd, port): (&Device, &ProtectionDomain, u8),
        shared: &SharedResources,
        gpu: &Gpu,
    ) -> Result<Self, Failure> {
        let random = |salt: u64| Random::new(role.seed ^ role.own << 32 ^ salt << 56);
        let ends = (role.own, role.other);
        let by = role.by(gpu);
        let at = if by == PosterKind::Cpu { MemoryLocation::Host } else { gpu.location() };
        let traffic: Box<dyn Traffic> = match role.transport() {
            Transport::Rc => Box::new(Reliable::new((device, pd), role.seed, ends, random(1), (&at, by))?),
            _ => Box::new(Unreliable::new(pd, role.seed, ends, &at)?),
        };
        let release = (role.queues(shared), role.trigger(shared, pd)?);
        let wire = Wire::new((device, pd, port), role.transport(), release, (gpu, by), random(2))?;
        let now = Instant::now();
        Ok(End {
            role,
            wire,
            traffic,
            epoch: 0,
            phase: Phase::Connecting,
            peer_is_down: false,
            next_up: None,
            peer_ready: None,
            ended: false,
            peer_sent: None,
            progress: now,
            drain_until: now,
        })
    }

    pub(super) fn peer(&self) -> usize {
        self.role.peer
    }

    pub(super) fn link(&self) -> u32 {
        self.role.link
    }

    /// Returns a wait for the next completion of its sends that has no wait yet.
    pub(super) fn next_send(&self) -> Result<Option<PreparedWait>, Failure> {
        self.wire.next_send()
    }

    /// Returns the address of this epoch's queue pair.
    pub(super) fn up(&self) -> Result<Message, Failure> {
        Ok(Message::Up {
            link: self.role.link,
            epoch: self.epoch,
            endpoint: self.wire.queue_pair.endpoint()?.to_string(),
            offer: self.traffic.offer(),
        })
    }

    pub(super) fn stop(&mut self) {
        self.traffic.stop();
    }

    /// Returns whether everything was sent and acknowledged, and everything from the other end received.
    pub(super) fn is_done(&self) -> bool {
        self.ended && self.peer_sent.is_some_and(|sent| self.traffic.has_all(sent))
    }

    /// Fails, if it is working, as if its connection had been cut.
    pub(super) fn cut(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        if self.phase != Phase::Running {
            return Ok(None);
        }
        tally.aborted += 1;
        self.fail()
    }

    /// Handles a message of the other end.
    pub(super) fn hear(&mut self, message: Message, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        self.progress = Instant::now();
        match message {
            Message::Up { epoch, .. } if epoch == self.epoch && self.phase == Phase::Connecting => {
                return self.connect(message, tally).map(Some);
            }
            Message::Up { .. } => {
                self.peer_is_down = true;
                self.next_up = Some(message);
            }
            Message::Ready { epoch, .. } => {
                // It may arrive before this end has handled the peer's address.
                self.peer_ready = Some(epoch);
                if self.phase == Phase::Waiting && epoch == self.epoch {
                    self.phase = Phase::Running;
                }
            }
            Message::Down { epoch, .. } if epoch == self.epoch => {
                self.peer_is_down = true;
                return self.fail();
            }
            Message::End { sent, .. } => self.peer_sent = Some(sent),
            _ => {}
        }
        Ok(None)
    }

    fn connect(&mut self, message: Message, tally: &mut Tally) -> Result<Message, Failure> {
        let Message::Up { endpoint, offer, .. } = message else {
            return Err("not an end's address".into());
        };
        let endpoint: Endpoint = endpoint.parse()?;
        self.traffic.resume(&self.wire, &endpoint, &offer, tally)?;
        self.wire.connect(&endpoint, tally)?;
        let ready = self.peer_ready == Some(self.epoch);
        self.phase = if ready { Phase::Running } else { Phase::Waiting };
        Ok(Message::Ready { link: self.role.link, epoch: self.epoch })
    }

    /// Handles a failure of the queue pair, at either end. Returns a message the first time.
    fn fail(&mut self) -> Result<Option<Message>, Failure> {
        if matches!(self.phase, Phase::Draining | Phase::Down | Phase::Closing) {
            return Ok(None);
        }
        self.wire.queue_pair.abort()?;
        self.phase = Phase::Draining;
        self.drain_until = Instant::now() + DRAIN;
        Ok(Some(Message::Down { link: self.role.link, epoch: self.epoch }))
    }

    /// Makes progress where possible. Returns a message for the other end.
    pub(super) fn step(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        let before = (tally.operations, tally.flushed);
        let failed = self.take(tally)?;
        let told = match self.phase {
            Phase::Running | Phase::Waiting if failed => {
                tally.failures += 1;
                self.fail()?
            }
            Phase::Running => self.work(tally)?,
            Phase::Draining => self.drain(tally)?,
            Phase::Down if self.peer_is_down => self.rise(tally)?,
            Phase::Connecting => match self.next_up.take() {
                Some(Message::Up { epoch, .. }) if epoch != self.epoch => None,
                Some(up) => self.hear(up, tally)?,
                None => None,
            },
            _ => None,
        };
        let now = Instant::now();
        if told.is_some() || before != (tally.operations, tally.flushed) || self.is_done() {
            self.progress = now;
        } else if now.duration_since(self.progress) > STUCK {
            tally.hung += 1;
            return Err(format!("{self}: nothing has happened for {STUCK:?}").into());
        }
        Ok(told)
    }

    fn work(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        self.wire.post_receives(tally)?;
        self.traffic.post(&mut self.wire, tally)?;
        match self.traffic.sent(&self.wire) {
            Some(sent) if !self.ended => {
                self.ended = true;
                Ok(Some(Message::End { link: self.role.link, sent }))
            }
            _ => Ok(None),
        }
    }

    /// Begins the next epoch, with nothing outstanding.
    fn rise(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        if !self.wire.renew(tally).map_err(|error| self.named(error))? {
            return Ok(None);
        }
        self.epoch += 1;
        self.phase = Phase::Connecting;
        self.peer_is_down = false;
        self.up().map(Some)
    }

    /// Takes completions until nothing is outstanding: everything posted must complete, failed or not, and no stream
    /// may hang. Returns whether that is so.
    fn is_drained(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        let left = self.wire.left();
        if left == 0 && self.wire.is_idle()? {
            self.wire.compare(tally);
            return Ok(true);
        }
        if Instant::now() > self.drain_until {
            tally.hung += 1;
            return Err(format!("{self}: {left} work requests never completed").into());
        }
        Ok(false)
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<Option<Message>, Failure> {
        if self.is_drained(tally)? {
            self.phase = Phase::Down;
        }
        Ok(None)
    }

    /// Takes remaining completions after all ends of all processes are done. Returns whether nothing is left.
    pub(super) fn close(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        if self.phase != Phase::Closing {
            self.fail()?;
            self.drain_until = Instant::now() + DRAIN;
            self.phase = Phase::Closing;
        }
        self.take(tally)?;
        let is_closed =
            self.is_drained(tally)? && self.wire.finish(tally).map_err(|error| self.named(error))?;
        if !is_closed && Instant::now() > self.drain_until {
            tally.hung += 1;
            return Err(format!("{self}: a wait for a send that was dropped does not end").into());
        }
        if !is_closed {
            return Ok(false);
        }
        self.traffic.close(self.peer_sent.unwrap_or_default(), tally);
        Ok(true)
    }

    fn named(&self, error: Failure) -> Failure {
        format!("{self}: {error}").into()
    }

    /// Takes completions. Returns whether something has failed.
    fn take(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        let mut failed = self.wire.queue_pair.failure().is_some();
        while let Some(completion) = self.wire.take_receive(tally).map_err(|error| self.named(error))? {
            match completion.status {
                Ok(()) => self.traffic.receive(&self.wire, &completion, tally)?,
                Err(_) => failed = true,
            }
        }
        while let Some(taken) = self.wire.take_send(tally).map_err(|error| self.named(error))? {
            let Taken { completion, has_failed, ended } = taken;
            for ended in ended {
                let own = completion.as_ref().filter(|_| ended.is_own);
                self.traffic.end(&ended, own, tally)?;
            }
            failed |= has_failed;
        }
        self.wire.compare(tally);
        Ok(failed)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let End { role, epoch, phase, ended, peer_sent, .. } = self;
        let (link, transport, left) = (role.link, role.transport(), self.wire.left());
        write!(f, "link {link} {transport} epoch {epoch} {phase:?} left {left} ended {ended} ")?;
        let failure = self.wire.queue_pair.failure();
        write!(f, "peer sent {peer_sent:?} failure {failure:?}: {}", self.traffic)
    }
}
