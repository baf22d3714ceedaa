//! The library on a card: its domain, and streams that are stepped.

use super::program::STREAMS;
use gdsync::advanced::{Collector, MasterConfig};
use gdsync::memop::Word32;
use gdsync::persistent::{ListError, PersistentError, Request, start_all, start_all_by_trigger, wait_all};
use gdsync::queue::Status;
use gdsync::stream::{PostError, PostFailure, Posted, Simulation, StreamOptions, StreamSteps};
use gdsync::verbs::AsyncEventKind;
use gdsync::{Batch, Device, PinnedMemory, ProtectionDomain, QueueError, SoftStream, Stream, Trigger};
use gdsync_cli::failure::Failure;
use softhca::card::simulation::{SimulatedCard, World};
use softhca::liberties::Schedule;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Sends that a master may hold: fewer than its queue pairs may have.
const MASTERS_SENDS: u32 = 12;

/// A card's domain and streams.
pub(super) struct Bench {
    pub(super) pd: ProtectionDomain,
    pub(super) streams: Vec<Driving>,
    pub(super) collector: Collector,
    /// Queue pairs of which the card has reported that they take no more shared receives.
    pub(super) last_receives: BTreeSet<u32>,
}

/// A stream, and the completions that it waits for.
pub(super) struct Driving {
    /// `None` at the end of its process.
    steps: Option<StreamSteps>,
    stream: Stream<SoftStream>,
    /// Releases sends of several queue pairs.
    pub(super) trigger: Trigger,
    /// Releases sends of several queue pairs by a master.
    pub(super) mastered: Trigger,
    /// Starts lists of persistent requests.
    starter: Trigger,
    /// The number of the last mark that the stream has passed.
    pub(super) word: Word32,
    pub(super) marks: VecDeque<Vec<Awaited>>,
    /// Number of the first of `marks`.
    pub(super) first: u32,
}

/// A completion that a stream waits for.
pub(super) struct Awaited {
    pub(super) link: usize,
    pub(super) side: usize,
    pub(super) queue: usize,
    /// Number of the queue pair among those of its end.
    pub(super) life: u32,
    pub(super) index: u32,
    /// For a start of a persistent request: its key.
    pub(super) start: Option<u64>,
    pub(super) status: Option<Status>,
}

impl Bench {
    /// Starts a card, and opens it.
    pub(super) fn new(
        world: &mut World,
        schedule: Option<&Schedule>,
        simulation: &Simulation,
    ) -> Result<(Rc<SimulatedCard>, Self), Failure> {
        let (card, context) = softhca::verbs::open_simulated(world, schedule)?;
        let card = Rc::new(card);
        let working = Rc::downgrade(&card);
        simulation.add_worker(move || working.upgrade().map(|card| card.work()));
        // SAFETY: the context was opened by these entry points, for this device alone.
        let device = unsafe { Device::from_owned(softhca::verbs_api(), context) }?;
        let pd = ProtectionDomain::new(&device)?;
        let streams = (0..STREAMS).map(|number| Driving::new(&pd, number == 0)).collect::<Result<_, _>>()?;
        let collector = Collector::new(&device)?;
        Ok((card, Bench { pd, streams, collector, last_receives: BTreeSet::new() }))
    }

    /// Forgets the report for the life of a queue pair that has ended.
    pub(super) fn forget_last_receive(&mut self, qpn: u32) -> Result<(), String> {
        self.take_events()?;
        self.last_receives.remove(&qpn);
        Ok(())
    }

    /// Reads the card's events.
    pub(super) fn take_events(&mut self) -> Result<(), String> {
        let device = self.pd.device();
        let words = |error| format!("an event cannot be read: {error}");
        while let Some(event) = device.next_event(Duration::ZERO).map_err(words)? {
            if event.kind == AsyncEventKind::LastReceive {
                self.last_receives.extend(event.queue_pairs);
            }
        }
        Ok(())
    }
}

impl Driving {
    fn new(pd: &ProtectionDomain, collects: bool) -> Result<Self, Failure> {
        let (stream, steps) = SoftStream::stepped();
        let options = StreamOptions::default().collect_from(collects.then_some(2));
        let stream = Stream::with_options(stream, options)?;
        let word = Word32::new(&PinnedMemory::allocate(4)?, 0)?;
        Ok(Driving {
            steps: Some(steps),
            stream,
            trigger: Trigger::new(pd)?,
            mastered: Trigger::new(pd)?.with_master(MasterConfig::default().sends(MASTERS_SENDS))?,
            starter: Trigger::new(pd)?,
            word,
            marks: VecDeque::new(),
            first: 1,
        })
    }

    pub(super) fn step(&mut self) -> bool {
        self.steps.as_mut().is_some_and(StreamSteps::step)
    }

    /// Describes its oldest wait; `None` if it has performed everything.
    pub(super) fn unfinished(&self) -> Option<String> {
        match self.stream.synchronize_timeout(Duration::ZERO) {
            Ok(true) => None,
            Ok(false) => Some(self.stream.oldest_wait().unwrap_or_else(|| "it is not stepped".to_owned())),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Posts a batch. Returns the rest of it if a queue pair has failed.
    pub(super) fn post(&self, batch: Batch) -> Result<Option<Batch>, String> {
        match self.stream.post(batch) {
            Ok(_) => Ok(None),
            Err(PostError { batch, source: PostFailure::Queue(QueueError::State(_)), .. }) => Ok(Some(batch)),
            Err(error) => Err(format!("a stream refuses a batch: {error}")),
        }
    }

    /// Starts a list. Returns false if nothing was started, as there is no room, another stream is before this one, or a queue
    /// pair has failed.
    pub(super) fn start(&self, list: &mut [&mut dyn Request], by_trigger: bool) -> Result<bool, String> {
        let started = match by_trigger {
            true => start_all_by_trigger(list, &self.stream, &self.starter, Duration::ZERO),
            false => start_all(list, &self.stream, Duration::ZERO),
        };
        accepted(started)
    }

    /// Waits for a list. Returns false if the stream has no room, or the list is empty.
    pub(super) fn wait_for(&self, list: &mut [&mut dyn Request]) -> Result<bool, String> {
        if list.is_empty() { Ok(false) } else { accepted(wait_all(list, &self.stream, Duration::ZERO)) }
    }

    /// Posts a batch, and then a mark: when the stream has passed it, these completions have come.
    pub(super) fn mark(&mut self, awaited: Vec<Awaited>, batch: Batch) -> Result<(), String> {
        let number = self.first.wrapping_add(self.marks.len() as u32);
        self.marks.push_back(awaited);
        match self.post(batch.write_value32(&self.word, number))? {
            None => Ok(()),
            Some(_) => Err("a stream refuses waits".to_owned()),
        }
    }
}

/// Tells whether a list was accepted. Only some refusals may be.
fn accepted(result: Result<Posted, ListError>) -> Result<bool, String> {
    use PersistentError::{Post, Queue};
    use QueueError::{Full, Order, State};
    match result {
        Ok(_) => Ok(true),
        Err(ListError {
            source:
                Queue(Full(_) | Order(_) | State(_))
                | Post(PostFailure::Queue(Full(_) | Order(_) | State(_)) | PostFailure::WouldBlock { .. }),
            ..
        }) => Ok(false),
        Err(error) => Err(format!("a stream refuses persistent requests: {error}")),
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        self.steps = None;
        // It learns that its backend has ended.
        let _ended = self.stream.synchronize_timeout(Duration::ZERO);
    }
}
