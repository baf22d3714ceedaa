//! One side of a run: it is set up, warms up, is measured, and is checked.

use super::flow::{Moved, Phase};
use super::lanes::{Lane, Places, Remote, WORD};
use super::report::{Measured, Report};
use crate::cli::{self, DoorbellChoice, NetMode, NetOperation, NetOptions};
use crate::failure::Failure;
use crate::hca;
use crate::interrupt::NothingYet;
use crate::sides::{
    CHUNKS, Channel, Connection, Driver, Findings, Message, Other, Timing, Usage, Work, driver, fail,
    forward_ends, gpus_of_sides,
};
use gdsync::verbs::Mtu;
use gdsync::{Access, ConnectOptions, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, Trigger};
use std::time::Duration;

/// How long the other side may take to get ready.
const SETUP: Duration = Duration::from_secs(30);

/// The content of messages in the warm-up, and when they are measured: what is checked is of the measurement.
const WARM_UP: u64 = 0;
pub(super) const MEASURED: u64 = 1;

/// Plays one side. The other side hears how it fails, from the first step on.
pub(super) fn play(
    options: &NetOptions,
    rank: u64,
    other: Other,
    mut channel: Channel,
) -> Result<Report, Failure> {
    let mut side = match Side::new(options, rank, other, &mut channel) {
        Ok(side) => side,
        Err(failure) => {
            let error = Some(failure.to_string());
            // Where the other side is gone, there is nothing to say to it.
            let _ = channel.send(&Message::Done { error, is_cause: true });
            return Err(failure);
        }
    };
    forward_ends(&channel, side.findings.error.clone());
    let result = side.run(&mut channel).and_then(|run| side.findings.error.check().map(|()| run));
    match result {
        Ok(run) => side.finish(run, channel),
        Err(failure) => Err(fail(&side.connection, side.driver.as_mut(), failure, channel)),
    }
}

pub(super) struct Side {
    pub(super) options: NetOptions,
    pub(super) rank: u64,
    other: Other,
    /// The GPU of each side.
    gpus: Option<[u32; 2]>,
    card: String,
    pub(super) connection: Connection,
    pub(super) driver: Box<dyn Driver>,
    pub(super) findings: Findings,
    pub(super) places: Places,
    /// One for each queue pair of the connection, in its order.
    pub(super) lanes: Vec<Lane>,
    /// What atomic operations have found in the other side's counters.
    pub(super) results: MemoryRegion,
    /// Memory operations of the stream for what is measured.
    pub(super) operations: u64,
    /// The other side was asked to stop.
    pub(super) has_asked: bool,
}

/// What a run has come to.
struct Run {
    moved: Moved,
    /// Elapsed time, and CPU time, of this process.
    usage: (Duration, Duration),
}

impl Side {
    /// Makes the side's objects, connects them with the other side's, and posts the first receives.
    pub(super) fn new(
        options: &NetOptions,
        rank: u64,
        other: Other,
        channel: &mut Channel,
    ) -> Result<Self, Failure> {
        let sides = &options.sides;
        let (device, port) = hca::open(sides.hca.as_ref())?;
        let card = device.name().to_owned();
        let pd = ProtectionDomain::new(&device)?;
        let gpus = gpus_of_sides(sides)?;
        let gpu = gpus.map(|gpus| gpus[rank as usize % 2]);
        let trigger = (sides.doorbells == DoorbellChoice::Card).then(|| Trigger::new(&pd)).transpose()?;
        let config = config(options)?.port(port).placement(sides.layout.placement(gpu));
        let config = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
        let queue_pairs: Vec<QueuePair> =
            (0..options.qps).map(|_| QueuePair::new(&pd, config)).collect::<Result<_, _>>()?;
        let findings = Findings::new(Timing::new(sides.warmup, 1));
        let places = Places::new(options);
        let source =
            if options.operation == NetOperation::Read { Access::REMOTE_READ } else { Access::empty() };
        let work = Work { size: places.bytes(), batch: options.batch(), source };
        let driver = driver(sides, work, (rank, gpu), &pd, &findings)?;
        let lanes = usize::try_from(options.qps)?;
        let changed = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let words = MemoryRegion::allocate(&pd, lanes * WORD, changed)?;
        let found = lanes * usize::try_from(places.slots)? * WORD;
        let results = MemoryRegion::allocate(&pd, found, Access::LOCAL_WRITE)?;
        let endpoints = queue_pairs.iter().map(|queue_pair| Ok(queue_pair.endpoint()?.to_string()));
        channel.send(&Message::Hello {
            endpoints: endpoints.collect::<Result<_, Failure>>()?,
            data: driver.messages().remote.to_string(),
            source: driver.messages().readable.to_string(),
            words: words.remote().to_string(),
        })?;
        let remote = connect(&queue_pairs, channel.receive(Some(SETUP))?, options)?;
        let lane = |lane| Lane::new(lane, places, options.operation, driver.as_ref(), &results, &remote);
        let lanes = (0..options.qps).map(lane).collect::<Result<_, _>>()?;
        let connection = Connection::new(device, queue_pairs, words, findings.error.clone());
        let mut side = Side {
            options: options.clone(),
            rank,
            other,
            gpus,
            card,
            connection,
            driver,
            findings,
            places,
            lanes,
            results,
            operations: 0,
            has_asked: false,
        };
        if side.receives() {
            side.post_receives(receives(options))?;
        }
        Ok(side)
    }

    /// Whether this side begins messages.
    pub(super) fn sends(&self) -> bool {
        self.rank == 0 || self.options.bidirectional
    }

    /// Whether the other side does.
    pub(super) fn awaits(&self) -> bool {
        self.rank > 0 || self.options.bidirectional
    }

    /// Whether messages of the other side take receives.
    pub(super) fn receives(&self) -> bool {
        self.awaits() && self.options.operation == NetOperation::Send
    }

    /// Warms up, measures, and checks what has arrived.
    fn run(&mut self, channel: &mut Channel) -> Result<Run, Failure> {
        if self.options.mode == NetMode::Latency {
            self.fill(MEASURED)?;
        } else {
            self.fill(WARM_UP)?;
            self.meet(channel, Some(SETUP))?;
            self.exchange(channel, Phase { total: self.options.sides.warmup, duration: None, least: 0 })?;
            // The other side has finished, too, before what it may still read changes.
            self.meet(channel, None)?;
            self.fill(MEASURED)?;
        }
        self.meet(channel, None)?;
        self.operations = 0;
        let before = Usage::now()?;
        let moved = match self.options.mode {
            NetMode::Latency if self.sends() => self.one_by_one(channel)?,
            NetMode::Latency => self.exchange(channel, self.measured())?.without(self.options.sides.warmup),
            _ => self.exchange(channel, self.measured())?,
        };
        let usage = Usage::now()?.since(&before);
        self.meet(channel, None)?;
        self.verify()?;
        Ok(Run { moved, usage })
    }

    /// What is measured.
    pub(super) fn measured(&self) -> Phase {
        let sides = &self.options.sides;
        let total = if sides.duration.is_some() { u64::MAX } else { sides.iters };
        Phase { total, duration: sides.duration, least: self.places.slots }
    }

    /// Messages that this side has begun in the last phase.
    fn begun(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.posted - lane.phase.start).sum()
    }

    /// Waits until both sides are here.
    pub(super) fn meet(&self, channel: &mut Channel, timeout: Option<Duration>) -> Result<(), Failure> {
        channel.send(&Message::Ready)?;
        match next(channel, timeout)? {
            Message::Ready => Ok(()),
            other => Err(format!("the other side is not ready: {other:?}").into()),
        }
    }

    /// Fills the messages that this side sends, where they are checked.
    pub(super) fn fill(&mut self, content: u64) -> Result<(), Failure> {
        self.driver.produce(content)?;
        self.driver.synchronize()
    }

    /// Exchanges results with the other side.
    fn finish(self, run: Run, mut channel: Channel) -> Result<Report, Failure> {
        channel.send(&Message::Done { error: None, is_cause: true })?;
        let answer = next(&channel, None);
        channel.on_end().clear();
        match answer? {
            Message::Done { .. } => {}
            other => return Err(format!("the other side goes on: {other:?}").into()),
        }
        if run.moved.messages() == 0 {
            return Err(NothingYet.into());
        }
        let queue_pair = self.connection.queue_pair();
        let measured = Measured {
            card: &self.card,
            gpus: self.other.gpus(self.gpus)?,
            server: self.other.host(),
            doorbells: match self.options.sides.doorbells {
                DoorbellChoice::Card => cli::word(&DoorbellChoice::Card),
                _ => self.driver.doorbells(queue_pair)?.to_string(),
            },
            moved: run.moved,
            usage: run.usage,
            operations: (self.operations, self.begun()),
            timing: &self.findings.timing(),
        };
        Ok(Report::new(&self.options, measured))
    }
}

/// The next message; an answer to a request to stop comes at any time, and is none.
pub(super) fn next(channel: &Channel, timeout: Option<Duration>) -> Result<Message, Failure> {
    loop {
        match channel.receive(timeout)? {
            Message::Until { .. } => {}
            message => return Ok(message),
        }
    }
}

/// Receives that a queue pair has posted at a time.
fn receives(options: &NetOptions) -> u64 {
    match options.mode {
        NetMode::Latency => 2 * CHUNKS * options.batch(),
        _ => 2 * options.window(),
    }
}

/// Queues that are deep enough for everything under way.
fn config(options: &NetOptions) -> Result<QueuePairConfig<'static>, Failure> {
    let sends = match options.mode {
        NetMode::Latency => 2 * CHUNKS * options.batch(),
        _ => 2 * options.window(),
    };
    let receives = if options.operation == NetOperation::Send { receives(options) } else { 1 };
    let config =
        QueuePairConfig::default().gid_index(options.sides.gid_index).queues(options.sides.queues.into());
    let config = config.send_depth(u32::try_from(sends)?).recv_depth(u32::try_from(receives)?);
    Ok(if options.operation.is_atomic() {
        config.access(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)
    } else {
        config
    })
}

/// Connects the queue pairs with those of the other side, each with the one of its number.
fn connect(queue_pairs: &[QueuePair], hello: Message, options: &NetOptions) -> Result<Remote, Failure> {
    let Message::Hello { endpoints, data, source, words } = hello else {
        return Err("the other side says something else than hello".into());
    };
    if endpoints.len() != queue_pairs.len() {
        return Err(format!(
            "the other side has {} queue pairs and this one {}",
            endpoints.len(),
            queue_pairs.len()
        )
        .into());
    }
    // Receives come as fast as this side's CPU posts them, so that a sender may have to wait for long.
    let route = ConnectOptions::default().mtu(options.sides.mtu.and_then(Mtu::from_bytes));
    for (queue_pair, endpoint) in queue_pairs.iter().zip(&endpoints) {
        queue_pair.connect(&endpoint.parse()?, route)?;
    }
    Ok(Remote { data: data.parse()?, source: source.parse()?, words: words.parse()? })
}
