//! One side of a run, whatever is measured: its objects, how it meets the other side, and how it leaves it.

use super::channel::{Channel, Message};
use super::connection::{Connection, fail, forward_ends};
use super::driver::{Driver, Work};
use super::findings::Findings;
use super::gpu::GpuDriver;
use super::gpus::{GpusOfSides, Other, gpus_of_sides};
use super::host::HostDriver;
use super::report::Setting;
use super::timing::Timing;
use crate::cli::{self, DoorbellChoice, SideOptions, Trigger as By};
use crate::failure::Failure;
use crate::hca;
use gdsync::stream::Cpu;
use gdsync::{
    Access, Batch, Endpoint, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, RemoteMemory,
    SoftStream, Trigger,
};
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to get ready.
pub(crate) const SETUP: Duration = Duration::from_secs(30);

/// What a measurement wants of a side.
pub(crate) struct Needs {
    pub(crate) queue_pairs: u64,
    pub(crate) config: QueuePairConfig<'static>,
    /// Bytes of the words, and what the other side may do to them.
    pub(crate) words: (usize, Access),
    pub(crate) work: Work,
    /// What each time is divided by.
    pub(crate) parts: u64,
}

/// What the other side has.
pub(crate) struct Remote {
    pub(crate) endpoints: Vec<Endpoint>,
    /// Where messages arrive there.
    pub(crate) data: RemoteMemory,
    /// What can be read there.
    pub(crate) source: RemoteMemory,
    /// The words there.
    pub(crate) words: RemoteMemory,
}

pub(crate) struct Side {
    options: SideOptions,
    pub(crate) rank: u64,
    other: Other,
    /// The GPU of each side.
    gpus: Option<[u32; 2]>,
    card: String,
    pub(crate) pd: ProtectionDomain,
    pub(crate) connection: Arc<Connection>,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) findings: Findings,
    /// Memory operations of the stream.
    pub(crate) operations: u64,
}

impl Side {
    /// Makes the side's objects, and exchanges with the other side where they are.
    pub(crate) fn new(
        options: &SideOptions,
        (rank, other): (u64, Other),
        needs: Needs,
        channel: &mut Channel,
    ) -> Result<(Self, Remote), Failure> {
        let (device, port) = hca::open(options.hca.as_ref())?;
        let card = device.name().to_owned();
        let pd = ProtectionDomain::new(&device)?;
        let gpus = gpus_of_sides(options)?;
        let gpu = gpus.map(|gpus| gpus[rank as usize % 2]);
        let by_card = options.doorbells == DoorbellChoice::Card;
        let trigger = by_card.then(|| Trigger::new(&pd)).transpose()?;
        let config = needs.config.port(port).gid_index(options.gid_index).queues(options.queues.into());
        let config = config.placement(options.layout.placement(gpu));
        let config = trigger.as_ref().map_or(config, |trigger| config.trigger(trigger));
        let queue_pairs: Vec<QueuePair> =
            (0..needs.queue_pairs).map(|_| QueuePair::new(&pd, config)).collect::<Result<_, _>>()?;
        let findings = Findings::new(Timing::new(options.warmup, needs.parts));
        let driver = driver(options, needs.work, (rank, gpu), &pd, &findings)?;
        let words = MemoryRegion::allocate(&pd, needs.words.0, needs.words.1)?;
        let endpoints = queue_pairs.iter().map(|queue_pair| Ok(queue_pair.endpoint()?.to_string()));
        let [data, source] = driver.remotes().map(|memory| memory.to_string());
        channel.send(&Message::Hello {
            endpoints: endpoints.collect::<Result<_, Failure>>()?,
            data,
            source,
            words: words.remote().to_string(),
        })?;
        let Message::Hello { endpoints, data, source, words: there } = channel.receive(Some(SETUP))? else {
            return Err("the other side says something else than hello".into());
        };
        let endpoints = endpoints.iter().map(|text| text.parse()).collect::<Result<Vec<Endpoint>, _>>()?;
        let remote =
            Remote { endpoints, data: data.parse()?, source: source.parse()?, words: there.parse()? };
        let connection = Arc::new(Connection::new(device, queue_pairs, words, findings.error.clone()));
        let (options, operations) = (options.clone(), 0);
        let side = Side { options, rank, other, gpus, card, pd, connection, driver, findings, operations };
        Ok((side, remote))
    }

    /// Waits until both sides are here.
    pub(crate) fn meet(&self, channel: &mut Channel, timeout: Option<Duration>) -> Result<(), Failure> {
        channel.send(&Message::Ready)?;
        match channel.next(timeout)? {
            Message::Ready => Ok(()),
            other => Err(format!("the other side is not ready: {other:?}").into()),
        }
    }

    pub(crate) fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        let posted = self.driver.post(batch).map_err(|failure| self.findings.error.or(failure))?;
        self.operations += posted.operations as u64;
        Ok(())
    }

    /// What a run was made with. `usage`: elapsed time, and CPU time of this process.
    pub(crate) fn setting(
        &self,
        (batch, size_bytes): (u64, u64),
        interrupted_of: Option<u64>,
        usage: (Duration, Duration),
    ) -> Result<Setting, Failure> {
        let (sides, gpus) = (&self.options, self.other.gpus(self.gpus)?);
        Ok(Setting {
            card: self.card.clone(),
            server: self.other.host().map(str::to_owned),
            procs: sides.procs,
            trigger: sides.trigger,
            gpu: gpus.as_ref().map(GpusOfSides::text),
            gpus: gpus.as_ref().map(|gpus| gpus.sides),
            shared_by_mps: gpus.and_then(|gpus| gpus.mps),
            doorbells: match sides.doorbells {
                DoorbellChoice::Card => cli::word(&DoorbellChoice::Card),
                _ => self.driver.doorbells(self.connection.queue_pair())?.to_string(),
            },
            queues: sides.queues,
            layout: sides.layout,
            batch,
            size_bytes,
            interrupted_of: interrupted_of.filter(|_| sides.duration.is_none()),
            wall_s: usage.0.as_secs_f64(),
            cpu_s: usage.1.as_secs_f64(),
            verified: sides.check,
        })
    }
}

/// What performs the side's work, with everything allocated that it will need.
fn driver(
    options: &SideOptions,
    work: Work,
    (rank, gpu): (u64, Option<u32>),
    pd: &ProtectionDomain,
    findings: &Findings,
) -> Result<Box<dyn Driver>, Failure> {
    let findings = findings.clone();
    Ok(match (gpu, options.trigger) {
        (Some(ordinal), _) => Box::new(GpuDriver::new(ordinal, options, work, rank, pd, findings)?),
        (None, By::Stream) => {
            Box::new(HostDriver::new(SoftStream::new()?, options, work, rank, pd, findings)?)
        }
        (None, By::Cpu) => Box::new(HostDriver::new(Cpu::new(), options, work, rank, pd, findings)?),
    })
}

/// What plays a side of a run of one measurement.
pub(crate) trait Player {
    type Report;

    fn side(&mut self) -> &mut Side;
    /// From the first message to the last.
    fn run(&mut self, channel: &mut Channel) -> Result<(), Failure>;
    /// What was measured, once both sides have finished.
    fn report(&self) -> Result<Self::Report, Failure>;
}

/// Plays a side, if it could be made. The other side hears how it fails.
pub(crate) fn play<P: Player>(made: Result<P, Failure>, mut channel: Channel) -> Result<P::Report, Failure> {
    let mut player = match made {
        Ok(player) => player,
        Err(failure) => {
            let error = Some(failure.to_string());
            // Where the other side is gone, there is nothing to say to it.
            let _ = channel.send(&Message::Done { error, is_cause: true });
            return Err(failure);
        }
    };
    let error = player.side().findings.error.clone();
    forward_ends(&channel, error.clone());
    if let Err(failure) = player.run(&mut channel).and_then(|()| error.check()) {
        let Side { connection, driver, .. } = player.side();
        return Err(fail(connection, driver.as_mut(), failure, channel));
    }
    channel.send(&Message::Done { error: None, is_cause: true })?;
    let answer = channel.next(None);
    channel.on_end().clear();
    match answer? {
        Message::Done { .. } => {}
        other => return Err(format!("the other side goes on: {other:?}").into()),
    }
    // Its end wakes the other side's stream, for which a GPU that both sides use might wait while it releases what this
    // side's driver holds.
    drop(channel);
    player.report()
}
