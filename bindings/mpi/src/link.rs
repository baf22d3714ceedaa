//! A link: messages of one communicator, peer, tag and direction that the card carries, whatever their buffers, in the
//! order of the program's calls.
//!
//! The sides of a link meet once. From then on, a message is a persistent request that is started once: the stream rings
//! the card, or posts the receive, and no CPU takes part. The thread that calls MPI posts a message in two cases: the sides have
//! not met when the program enqueues it, or the queue pair has no room and does not get any. Messages behind such a one are the
//! thread's, too, until it has posted them all: so none overtakes another, not even where two streams have them.

use crate::channel::Channel;
use crate::error::{Class, Failure};
use crate::parts::{Part, Parts};
use crate::statistics;
use crate::stream::{PROBE_AFTER, is_lack_of_room};
use gdsync::memop::MemOpStream;
use gdsync::persistent::{self, PersistentError, PersistentRecv, PersistentSend, start_all};
use gdsync::stream::{Cpu, PostFailure};
use gdsync::verbs::Slice;
use gdsync::{QueueError, Stream};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A message between its making and its end. It is enqueued once.
#[derive(Debug)]
pub(crate) struct Message {
    /// The C part's name of it.
    name: usize,
    /// Of what is sent, or, at most, received.
    slices: Vec<Slice>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is started; none once that has completed, and before the sides of the link have met.
    parts: Option<Parts>,
    outcome: Option<Result<u64, Failure>>,
    /// Of the thread's: a stream has triggered it.
    is_due: bool,
    /// The C part is to learn of the outcome.
    is_watched: bool,
}

impl Message {
    /// A message that nothing posts yet.
    pub(crate) fn new(name: usize, slices: Vec<Slice>) -> Self {
        let state = State { parts: None, outcome: None, is_due: false, is_watched: false };
        Message { name, slices, state: Mutex::new(state) }
    }

    /// What is started: one work request, as the other side does not know how many there are.
    fn parts(&self, sends: bool, channel: &Channel) -> Result<Parts, Failure> {
        let (queue_pair, slices) = (&channel.queue_pair, &self.slices);
        Ok(Parts::new(vec![if sends {
            Part::Send(PersistentSend::send(queue_pair, slices)?)
        } else {
            Part::Receive(PersistentRecv::new(queue_pair, slices)?)
        }]))
    }

    /// How it has ended: the bytes received, or its failure.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Failure>> {
        self.state.lock().outcome.clone()
    }

    fn is_due(&self) -> bool {
        self.state.lock().is_due
    }

    /// Takes part in a stream's wait for messages: `act` gets those of its requests that are active.
    pub(crate) fn with_active(
        messages: &[Arc<Message>],
        act: impl FnOnce(&mut [&mut dyn persistent::Request]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut states: Vec<_> = messages.iter().map(|message| message.state.lock()).collect();
        let parts = states.iter_mut().filter_map(|state| state.parts.as_mut());
        let active = parts.flat_map(|parts| parts.all.iter_mut().filter(|part| part.is_active()));
        let mut requests: Vec<_> = active.map(|part| part.request()).collect();
        if requests.is_empty() { Ok(()) } else { act(&mut requests) }
    }
}

/// A message that has ended: the C part's name of it, and its outcome.
pub(crate) type Ended = (usize, Result<u64, Failure>);

/// What became of a message that a stream was to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// The stream has it.
    ToStream,
    /// The thread posts it once the stream has triggered it.
    ToThread,
    /// Neither: the link has no room now, and may get some.
    Later,
}

/// Where a message cannot be posted now.
enum Refusal {
    /// The queue pair, or the stream, is full.
    Room,
    /// Another stream has still to pass earlier messages.
    Order,
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Refusal::Failed(failure)
    }
}

/// One end of a link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sends: bool,
    /// Messages that are the thread's, triggered or not, and not posted, in the order of the program's calls.
    deferred: VecDeque<Arc<Message>>,
    /// Started and not completed, in the order of the queue.
    posted: VecDeque<Arc<Message>>,
    /// Watched messages that have ended.
    ended: Vec<Ended>,
    /// The first failure: nothing is sent or received after it.
    failed: Option<Failure>,
    /// The library has ended: what the card has not completed ends with that failure.
    is_finished: bool,
    /// Waiting for room has helped, or was not tried.
    is_patient: bool,
    /// How many messages have completed.
    completed: u64,
    probed_at: Instant,
}

impl Link {
    pub(crate) fn new(sends: bool) -> Self {
        Link {
            sends,
            deferred: VecDeque::new(),
            posted: VecDeque::new(),
            ended: Vec::new(),
            failed: None,
            is_finished: false,
            is_patient: true,
            completed: 0,
            probed_at: Instant::now(),
        }
    }

    /// The sides cannot meet: all messages end with that.
    pub(crate) fn give_up(&mut self) {
        let text = "the link has not matched: its sides differ, or one could not be made";
        self.failed.get_or_insert(Failure::new(Class::Request, text));
    }

    /// Gives a message to a stream, or to the thread.
    ///
    /// # Errors
    /// An earlier failure of the link; what the card or the stream refuses for good.
    pub(crate) fn give<B: MemOpStream>(
        &mut self,
        message: &Arc<Message>,
        channel: Option<&Channel>,
        stream: &Stream<B>,
    ) -> Result<Given, Failure> {
        self.sweep();
        if let Some(failure) = &self.failed {
            return Err(failure.clone().about("an earlier message of the peer and the tag has failed"));
        }
        let Some(channel) = channel else { return Ok(self.defer(message)) };
        let posted =
            if !self.deferred.is_empty() { Err(Refusal::Room) } else { self.post(message, channel, stream) };
        match posted {
            Ok(()) => {
                statistics::linked(1, 0);
                Ok(Given::ToStream)
            }
            Err(Refusal::Room) if self.is_patient => Ok(Given::Later),
            Err(Refusal::Room | Refusal::Order) => Ok(self.defer(message)),
            Err(Refusal::Failed(failure)) => Err(failure),
        }
    }

    /// The message is the thread's: [`Self::trigger`] or [`Self::take_back`] follows.
    fn defer(&mut self, message: &Arc<Message>) -> Given {
        self.deferred.push_back(message.clone());
        Given::ToThread
    }

    /// Waiting for room has not helped: messages are the thread's until some have completed.
    pub(crate) fn lose_patience(&mut self) {
        self.is_patient = false;
    }

    /// How many messages have completed.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// A message of the thread's is not to be sent.
    pub(crate) fn take_back(&mut self, message: &Arc<Message>) {
        self.deferred.retain(|deferred| !Arc::ptr_eq(deferred, message));
    }

    /// A stream has triggered a message of the thread's.
    pub(crate) fn trigger(&mut self, message: &Message) {
        let mut state = message.state.lock();
        (state.is_due, state.is_watched) = (true, true);
    }

    /// The C part is to learn how a message ends.
    pub(crate) fn watch(&mut self, message: &Message) {
        let mut state = message.state.lock();
        if std::mem::replace(&mut state.is_watched, true) {
            return;
        }
        if let Some(outcome) = &state.outcome {
            self.ended.push((message.name, outcome.clone()));
        }
    }

    /// What the thread does for it. Returns the watched messages that have ended, and how many others the thread has to
    /// look at.
    pub(crate) fn go_on(&mut self, channel: Option<&mut Channel>, cpu: &Stream<Cpu>) -> (Vec<Ended>, usize) {
        self.sweep();
        while let Some(message) = self.deferred.front().filter(|message| message.is_due()).cloned() {
            let (None, Some(channel)) = (&self.failed, &channel) else { break };
            match self.post(&message, channel, cpu) {
                Ok(()) => statistics::linked(0, 1),
                Err(Refusal::Room | Refusal::Order) => break,
                Err(Refusal::Failed(failure)) => self.end(&message, Err(failure)),
            }
            self.deferred.pop_front();
        }
        if let Some(failure) = self.failed.clone() {
            let due: Vec<_> = self.deferred.iter().filter(|message| message.is_due()).cloned().collect();
            self.deferred.retain(|message| !message.is_due());
            due.iter().for_each(|message| self.end(message, Err(failure.clone())));
        }
        if let Some(channel) = channel
            && !self.sends
            && !self.posted.is_empty()
            && self.probed_at.elapsed() >= PROBE_AFTER
        {
            self.probed_at = Instant::now();
            channel.probe();
        }
        let is_watched =
            |message: &&Arc<Message>| message.state.try_lock().is_none_or(|state| state.is_watched);
        let watched = self.posted.iter().filter(is_watched).count();
        let due = self.deferred.iter().take_while(|message| message.is_due()).count();
        (std::mem::take(&mut self.ended), due + watched)
    }

    /// The end of the library: what has not completed ends.
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
        let text = "the library was finalized before the message was sent or received";
        self.failed.get_or_insert(Failure::new(Class::Other, text));
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.sweep();
        self.posted.is_empty() && self.deferred.is_empty()
    }

    fn post<B: MemOpStream>(
        &mut self,
        message: &Arc<Message>,
        channel: &Channel,
        stream: &Stream<B>,
    ) -> Result<(), Refusal> {
        let mut parts = message.parts(self.sends, channel)?;
        let mut list: Vec<_> = parts.all.iter_mut().map(|part| part.request()).collect();
        let posted = start_all(&mut list, stream, Duration::ZERO).map_err(|error| match error.source {
            error if is_lack_of_room(&error) => Refusal::Room,
            PersistentError::Queue(QueueError::Order(_))
            | PersistentError::Post(PostFailure::Queue(QueueError::Order(_))) => Refusal::Order,
            error => Refusal::Failed(error.into()),
        })?;
        statistics::posted(posted);
        message.state.lock().parts = Some(parts);
        self.posted.push_back(message.clone());
        Ok(())
    }

    /// Takes out what has completed. A message that a stream is just being made to wait for is left for the next time.
    fn sweep(&mut self) {
        while let Some(message) = self.posted.front().cloned() {
            let Some(mut state) = message.state.try_lock() else { return };
            let outcome = state.parts.as_mut().map_or(Some(Ok(0)), Parts::outcome);
            let Some(outcome) = outcome else { return };
            drop(state);
            self.posted.pop_front();
            (self.completed, self.is_patient) = (self.completed + 1, true);
            self.end(&message, outcome);
        }
    }

    fn end(&mut self, message: &Message, mut outcome: Result<u64, Failure>) {
        if let Err(failure) = &mut outcome {
            let first = self.failed.get_or_insert_with(|| failure.clone());
            if self.is_finished {
                failure.clone_from(first);
            }
            tracing::warn!(%failure, "a message of a link has failed");
        }
        let mut state = message.state.lock();
        state.parts = None;
        if state.is_watched {
            self.ended.push((message.name, outcome.clone()));
        }
        state.outcome = Some(outcome);
    }
}
