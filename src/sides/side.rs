//! One side of a run of any measurement: its objects, how it meets the other side, and how it ends or fails.

use super::channel::{Channel, End, GONE, Message};
use super::connection::{Connection, FirstError, SideResults};
use super::driver::{Driver, HostDriver, Work};
use super::gpu::GpuDriver;
use super::report::Setting;
use super::timing::Timing;
use crate::cli::{self, DoorbellChoice, SideOptions, Trigger as By};
use crate::failure::Failure;
use crate::hca;
use gdsync::cuda::{self, Gpus};
use gdsync::stream::Cpu;
use gdsync::{
    Access, Batch, Endpoint, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, RemoteMemory,
    SoftStream, Trigger,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// How long the other side may take to get ready.
pub(crate) const SETUP: Duration = Duration::from_secs(30);

pub(crate) struct Requirements {
    pub(crate) queue_pairs: u64,
    pub(crate) config: QueuePairConfig<'static>,
    /// Bytes of the words, and the other side's access to them.
    pub(crate) words: (usize, Access),
    pub(crate) work: Work,
    /// The divisor of each time.
    pub(crate) divisor: u64,
}

pub(crate) struct Remote {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The memory of messages to the other side.
    pub(crate) data: RemoteMemory,
    /// The other side's readable memory.
    pub(crate) source: RemoteMemory,
    pub(crate) words: RemoteMemory,
}

pub(crate) struct Side {
    options: SideOptions,
    pub(crate) rank: u64,
    other: Peer,
    gpus: Option<[u32; 2]>,
    card: String,
    pub(crate) pd: ProtectionDomain,
    pub(crate) connection: Arc<Connection>,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) results: SideResults,
    /// Memory operations of the stream.
    pub(crate) operations: u64,
}

impl Side {
    /// True if this side shows no progress of a run, which lasts for `duration` if that is given: only the first side
    /// does, for a known number of exchanges, and not with JSON.
    pub(crate) fn hides_progress(&self, duration: Option<Duration>) -> bool {
        self.options.json || self.rank > 0 || duration.is_some()
    }

    /// Creates the side's objects, and exchanges their addresses with the other side.
    pub(crate) fn new(
        options: &SideOptions,
        (rank, other): (u64, Peer),
        needs: Requirements,
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
        let results = SideResults::new(Timing::new(options.warmup(), needs.divisor));
        let driver = driver(options, needs.work, (rank, gpu), &pd, &results)?;
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
        let connection = Arc::new(Connection::new(device, queue_pairs, words, results.error.clone()));
        let (options, operations) = (options.clone(), 0);
        let side = Side { options, rank, other, gpus, card, pd, connection, driver, results, operations };
        Ok((side, remote))
    }

    /// Waits until both sides have reached this point.
    pub(crate) fn meet(&self, channel: &mut Channel, timeout: Option<Duration>) -> Result<(), Failure> {
        channel.send(&Message::Ready)?;
        match channel.next(timeout)? {
            Message::Ready => Ok(()),
            other => Err(format!("the other side is not ready: {other:?}").into()),
        }
    }

    pub(crate) fn post(&mut self, batch: Batch) -> Result<(), Failure> {
        let posted = self.driver.post(batch).map_err(|failure| self.results.error.or(failure))?;
        self.operations += posted.operations as u64;
        Ok(())
    }

    /// Returns the conditions of a run. `usage`: elapsed time, and CPU time of this process.
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

/// Returns the side's driver, which has allocated everything it will need.
fn driver(
    options: &SideOptions,
    work: Work,
    (rank, gpu): (u64, Option<u32>),
    pd: &ProtectionDomain,
    results: &SideResults,
) -> Result<Box<dyn Driver>, Failure> {
    let results = results.clone();
    Ok(match (gpu, options.trigger) {
        (Some(ordinal), _) => Box::new(GpuDriver::new(ordinal, options, work, rank, pd, results)?),
        (None, By::Stream) => {
            Box::new(HostDriver::new(SoftStream::new()?, options, work, rank, pd, results)?)
        }
        (None, By::Cpu) => Box::new(HostDriver::new(Cpu::new(), options, work, rank, pd, results)?),
    })
}

/// One side of a run of a measurement.
pub(crate) trait SideRun {
    type Report;

    fn side(&mut self) -> &mut Side;
    /// Runs from the first message to the last.
    fn run(&mut self, channel: &mut Channel) -> Result<(), Failure>;
    /// Returns the results, once both sides have finished.
    fn report(&self) -> Result<Self::Report, Failure>;
}

/// Performs a side, unless its creation failed, and reports a failure to the other side.
pub(crate) fn play<P: SideRun>(made: Result<P, Failure>, mut channel: Channel) -> Result<P::Report, Failure> {
    let mut player = match made {
        Ok(player) => player,
        Err(failure) => {
            let error = Some(failure.to_string());
            // If the other side is gone, no message is due.
            let _ = channel.send(&Message::Done { error, is_cause: true });
            return Err(failure);
        }
    };
    let error = player.side().results.error.clone();
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
    // The end of the channel wakes the other side's stream. Otherwise a GPU used by both sides might wait for that
    // stream while it releases this side's memory.
    drop(channel);
    player.report()
}

/// Makes the other side's end this side's error. A watcher, or the side's own thread, then ends pending waits.
fn forward_ends(channel: &Channel, error: FirstError) {
    channel.on_end().set(move |end| match end {
        End::Failed { error: text, is_cause: true } => error.set(|| text.clone()),
        End::Failed { error: text, .. } => error.consequence(|| text.clone()),
        End::Gone if error.check().is_ok() => error.set(|| GONE.to_owned()),
        End::Gone => {}
    });
}

/// Determines why a side has failed, tells the other side, and ends pending waits.
fn fail(connection: &Connection, driver: &mut dyn Driver, failure: Failure, mut channel: Channel) -> Failure {
    let error = connection.error.clone();
    connection.look_for_failures();
    if error.check().is_ok() {
        error.set(|| failure.to_string());
    }
    let mut tell = |failure: &Failure, is_cause| {
        // If the other side is gone, no message is due.
        let _ = channel.send(&Message::Done { error: Some(failure.to_string()), is_cause });
    };
    if !error.has_cause() {
        // The other side may know the cause.
        tell(&error.or(failure), false);
        connection.find_cause();
    }
    let failure = error.or("the cause of the failure is unknown".into());
    tell(&failure, true);
    // Errors of these are consequences of the failure.
    let _ = connection.release().and_then(|()| driver.synchronize());
    channel.on_end().clear();
    failure
}

/// Returns the GPU of each side, if there are any: both on the named one, or one each.
pub(crate) fn gpus_of_sides(sides: &SideOptions) -> Result<Option<[u32; 2]>, Failure> {
    sides.gpu.as_ref().map(|list| of_sides(&list.resolve()?)).transpose()
}

fn of_sides(gpus: &Gpus) -> Result<[u32; 2], Failure> {
    match gpus.numbers().len() {
        1 | 2 => Ok([0, 1].map(|side| gpus.of_rank(side))),
        count => Err(format!(
            "--gpu names {count} GPUs, and there are two sides: name one for both, or two such as --gpu 0,1"
        )
        .into()),
    }
}

#[derive(Clone)]
pub(crate) enum Peer {
    /// Started by this process, as a process or a thread.
    Local,
    /// Started separately, on the host `name`, with its GPU if any.
    Separate { name: String, gpu: Option<RemoteGpu> },
}

impl Peer {
    /// The host of a separately started side.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Peer::Local => None,
            Peer::Separate { name, .. } => Some(name),
        }
    }

    /// Returns the GPUs of both sides, if any. `sides`: the numbers in this process.
    pub(crate) fn gpus(&self, sides: Option<[u32; 2]>) -> Result<Option<GpusOfSides>, Failure> {
        match (sides, self) {
            (Some(sides), Peer::Local) => GpusOfSides::describe(sides).map(Some),
            (Some([own, _]), Peer::Separate { gpu: Some(gpu), .. }) => GpusOfSides::apart(own, gpu).map(Some),
            _ => Ok(None),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteGpu {
    pub(crate) number: u32,
    pub(crate) name: String,
}

impl RemoteGpu {
    pub(crate) fn of(number: u32) -> Result<Self, Failure> {
        Ok(RemoteGpu { number, name: cuda::describe(number)?.name })
    }
}

pub(crate) struct GpusOfSides {
    pub(crate) sides: [u32; 2],
    names: [String; 2],
    is_shared: bool,
    /// True if processes share the GPU by MPS; none if each side has a GPU, or if the driver does not tell.
    pub(crate) mps: Option<bool>,
}

impl GpusOfSides {
    fn describe(sides: [u32; 2]) -> Result<Self, Failure> {
        let [first, second] = [cuda::describe(sides[0])?, cuda::describe(sides[1])?];
        let is_shared = sides[0] == sides[1];
        let mps = first.capabilities.mps.filter(|_| is_shared);
        Ok(GpusOfSides { sides, names: [first.name, second.name], is_shared, mps })
    }

    /// Returns this side's GPU and that of a separately started side.
    fn apart(own: u32, other: &RemoteGpu) -> Result<Self, Failure> {
        let names = [cuda::describe(own)?.name, other.name.clone()];
        Ok(GpusOfSides { sides: [own, other.number], names, is_shared: false, mps: None })
    }

    pub(crate) fn text(&self) -> String {
        let ([first, second], [name, other]) = (self.sides, &self.names);
        if self.is_shared {
            format!("{name} (GPU {first} for both sides)")
        } else {
            format!("GPU {first} ({name}) and GPU {second} ({other}), a side each")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync::cuda::GpuList;

    #[test]
    fn two_sides_have_a_gpu_each_or_share_one() {
        let sides = |text: &str| of_sides(&text.parse::<GpuList>().unwrap().among(4).unwrap());
        assert_eq!(sides("2").unwrap(), [2, 2]);
        assert_eq!(sides("0,0").unwrap(), [0, 0]);
        assert_eq!(sides("1,0").unwrap(), [1, 0]);
        let refused = sides("all").unwrap_err().to_string();
        assert!(refused.contains("names 4 GPUs") && refused.contains("--gpu 0,1"), "{refused}");
    }

    #[test]
    fn a_side_each_and_one_gpu_for_both_are_told_apart() {
        let text = |sides, is_shared| {
            let names = ["H200".to_owned(), "H100".to_owned()];
            GpusOfSides { sides, names, is_shared, mps: None }.text()
        };
        assert_eq!(text([0, 0], true), "H200 (GPU 0 for both sides)");
        assert_eq!(text([0, 1], false), "GPU 0 (H200) and GPU 1 (H100), a side each");
        assert_eq!(text([0, 0], false), "GPU 0 (H200) and GPU 0 (H100), a side each", "of two hosts");
    }
}
