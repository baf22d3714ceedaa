//! A link: the queue pair that carries the messages of one communicator, peer, tag and direction, from and into any buffers, in the
//! order of the program's calls.
//!
//! The sides of a link match once. From then on a message is a persistent request that is started once: the stream rings the
//! doorbell, or posts the receive, without the CPU. A message is deferred to the thread that calls MPI if the sides have not matched
//! when the program enqueues it, or if the queue pair stays full. Later messages are deferred, too, until the thread has posted them
//! all, so no message overtakes another, even on different streams.

use crate::connection::Connection;
use crate::error::{Class, Failure};
use crate::persistent::{Persistent, PersistentGroup};
use crate::statistics;
use crate::stream::{PROBE_INTERVAL, is_lack_of_room};
use gdsync::memop::MemOpStream;
use gdsync::persistent::{self, PersistentError, PersistentRecv, PersistentSend, start_all};
use gdsync::stream::{Cpu, PostFailure};
use gdsync::verbs::Slice;
use gdsync::{QueueError, Stream};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A message, which is enqueued once.
#[derive(Debug)]
pub(crate) struct Message {
    /// The address of the C part's operation.
    operation: usize,
    /// The memory that is sent, or into which at most its length is received.
    slices: Vec<Slice>,
    state: Mutex<MessageState>,
}

#[derive(Debug)]
struct MessageState {
    /// The started request; none before the message is posted and after it has completed.
    group: Option<PersistentGroup>,
    outcome: Option<Result<u64, Failure>>,
    /// True if a stream has triggered a deferred message.
    is_triggered: bool,
    /// True if the outcome has to be reported to the C part.
    is_watched: bool,
}

impl Message {
    pub(crate) fn new(operation: usize, slices: Vec<Slice>) -> Self {
        let state = MessageState { group: None, outcome: None, is_triggered: false, is_watched: false };
        Message { operation, slices, state: Mutex::new(state) }
    }

    /// Makes the message's request: a single one, as the other side does not know how many there are.
    fn requests(&self, sends: bool, connection: &Connection) -> Result<PersistentGroup, Failure> {
        let (queue_pair, slices) = (&connection.queue_pair, &self.slices);
        Ok(PersistentGroup::new(vec![if sends {
            Persistent::Send(PersistentSend::send(queue_pair, slices)?)
        } else {
            Persistent::Receive(PersistentRecv::new(queue_pair, slices)?)
        }]))
    }

    /// The bytes received, or the failure, once the message has ended.
    pub(crate) fn outcome(&self) -> Option<Result<u64, Failure>> {
        self.state.lock().outcome.clone()
    }

    fn is_triggered(&self) -> bool {
        self.state.lock().is_triggered
    }

    /// Calls a function with the active requests of messages, for a stream's wait.
    pub(crate) fn with_active(
        messages: &[Arc<Message>],
        act: impl FnOnce(&mut [&mut dyn persistent::Request]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut states: Vec<_> = messages.iter().map(|message| message.state.lock()).collect();
        let groups = states.iter_mut().filter_map(|state| state.group.as_mut());
        let mut requests: Vec<_> = groups.flat_map(PersistentGroup::awaited).collect();
        if requests.is_empty() { Ok(()) } else { act(&mut requests) }
    }
}

/// A message that has ended: the address of the C part's operation, and the outcome.
pub(crate) type Ended = (usize, Result<u64, Failure>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// A stream posts it.
    Posted,
    /// The thread posts it once the stream has triggered it.
    Deferred,
    /// Nothing: the queue pair is full, and may get room.
    Full,
}

enum PostError {
    Full,
    /// Another stream has not passed earlier messages yet.
    Order,
    Failed(Failure),
}

impl From<Failure> for PostError {
    fn from(failure: Failure) -> Self {
        PostError::Failed(failure)
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) sends: bool,
    /// Messages that the thread has to post, triggered or not, in the order of the program's calls.
    deferred: VecDeque<Arc<Message>>,
    /// Posted messages that have not completed, in the order of the queue pair.
    posted: VecDeque<Arc<Message>>,
    /// Ended messages whose outcome has to be reported.
    ended: Vec<Ended>,
    /// The first failure, after which nothing is sent or received.
    failed: Option<Failure>,
    /// True once the library has ended: messages that the card has not completed end with `failed`.
    is_finished: bool,
    /// False after a wait for room was in vain, until a message completes.
    may_wait_for_room: bool,
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
            may_wait_for_room: true,
            completed: 0,
            probed_at: Instant::now(),
        }
    }

    /// Fails all messages, as the sides cannot match.
    pub(crate) fn give_up(&mut self) {
        let text = "the link has not matched: its sides differ, or one could not be made";
        self.failed.get_or_insert(Failure::new(Class::Request, text));
    }

    /// Posts a message on a stream, or defers it to the thread.
    ///
    /// # Errors
    /// An earlier failure of the link; a permanent refusal of the card or the stream.
    pub(crate) fn enqueue<B: MemOpStream>(
        &mut self,
        message: &Arc<Message>,
        connection: Option<&Connection>,
        stream: &Stream<B>,
    ) -> Result<Enqueued, Failure> {
        self.reap();
        if let Some(failure) = &self.failed {
            return Err(failure.clone().about("an earlier message of the peer and the tag has failed"));
        }
        let Some(connection) = connection else { return Ok(self.defer(message)) };
        let posted = if !self.deferred.is_empty() {
            Err(PostError::Full)
        } else {
            self.post(message, connection, stream)
        };
        match posted {
            Ok(()) => {
                statistics::linked(1, 0);
                Ok(Enqueued::Posted)
            }
            Err(PostError::Full) if self.may_wait_for_room => Ok(Enqueued::Full),
            Err(PostError::Full | PostError::Order) => Ok(self.defer(message)),
            Err(PostError::Failed(failure)) => Err(failure),
        }
    }

    /// Leaves a message to the thread. [`Self::trigger`] or [`Self::withdraw`] follows.
    fn defer(&mut self, message: &Arc<Message>) -> Enqueued {
        self.deferred.push_back(message.clone());
        Enqueued::Deferred
    }

    /// Defers messages while the queue pair is full, until some have completed.
    pub(crate) fn stop_waiting_for_room(&mut self) {
        self.may_wait_for_room = false;
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    pub(crate) fn withdraw(&mut self, message: &Arc<Message>) {
        self.deferred.retain(|deferred| !Arc::ptr_eq(deferred, message));
    }

    /// Lets the thread post a deferred message, which a stream has triggered.
    pub(crate) fn trigger(&mut self, message: &Message) {
        let mut state = message.state.lock();
        (state.is_triggered, state.is_watched) = (true, true);
    }

    /// Requests a report of the message's outcome to the C part.
    pub(crate) fn watch(&mut self, message: &Message) {
        let mut state = message.state.lock();
        if std::mem::replace(&mut state.is_watched, true) {
            return;
        }
        if let Some(outcome) = &state.outcome {
            self.ended.push((message.operation, outcome.clone()));
        }
    }

    /// Does the thread's work for the link. Returns the ended messages to report, and the number of messages that need the thread.
    pub(crate) fn progress(
        &mut self,
        connection: Option<&mut Connection>,
        cpu: &Stream<Cpu>,
    ) -> (Vec<Ended>, usize) {
        self.reap();
        while let Some(message) = self.deferred.front().filter(|message| message.is_triggered()).cloned() {
            let (None, Some(connection)) = (&self.failed, &connection) else { break };
            match self.post(&message, connection, cpu) {
                Ok(()) => statistics::linked(0, 1),
                Err(PostError::Full | PostError::Order) => break,
                Err(PostError::Failed(failure)) => self.end(&message, Err(failure)),
            }
            self.deferred.pop_front();
        }
        if let Some(failure) = self.failed.clone() {
            let due: Vec<_> =
                self.deferred.iter().filter(|message| message.is_triggered()).cloned().collect();
            self.deferred.retain(|message| !message.is_triggered());
            due.iter().for_each(|message| self.end(message, Err(failure.clone())));
        }
        if let Some(connection) = connection
            && !self.sends
            && !self.posted.is_empty()
            && self.probed_at.elapsed() >= PROBE_INTERVAL
        {
            self.probed_at = Instant::now();
            connection.probe();
        }
        let is_watched =
            |message: &&Arc<Message>| message.state.try_lock().is_none_or(|state| state.is_watched);
        let watched = self.posted.iter().filter(is_watched).count();
        let due = self.deferred.iter().take_while(|message| message.is_triggered()).count();
        (std::mem::take(&mut self.ended), due + watched)
    }

    /// Fails messages that have not completed, as the library ends.
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
        let text = "the library was finalized before the message was sent or received";
        self.failed.get_or_insert(Failure::new(Class::Other, text));
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.reap();
        self.posted.is_empty() && self.deferred.is_empty()
    }

    fn post<B: MemOpStream>(
        &mut self,
        message: &Arc<Message>,
        connection: &Connection,
        stream: &Stream<B>,
    ) -> Result<(), PostError> {
        let mut group = message.requests(self.sends, connection)?;
        let mut list: Vec<_> = group.all.iter_mut().map(|each| each.request()).collect();
        let posted = start_all(&mut list, stream, Duration::ZERO).map_err(|error| match error.source {
            error if is_lack_of_room(&error) => PostError::Full,
            PersistentError::Queue(QueueError::Order(_))
            | PersistentError::Post(PostFailure::Queue(QueueError::Order(_))) => PostError::Order,
            error => PostError::Failed(error.into()),
        })?;
        statistics::posted(posted);
        message.state.lock().group = Some(group);
        self.posted.push_back(message.clone());
        Ok(())
    }

    /// Removes completed messages. A message whose wait is being enqueued is left for the next call.
    fn reap(&mut self) {
        while let Some(message) = self.posted.front().cloned() {
            let Some(mut state) = message.state.try_lock() else { return };
            let outcome = state.group.as_mut().map_or(Some(Ok(0)), PersistentGroup::outcome);
            let Some(outcome) = outcome else { return };
            drop(state);
            self.posted.pop_front();
            (self.completed, self.may_wait_for_room) = (self.completed + 1, true);
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
        state.group = None;
        if state.is_watched {
            self.ended.push((message.operation, outcome.clone()));
        }
        state.outcome = Some(outcome);
    }
}
