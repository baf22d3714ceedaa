//! The channel by which the two sides exchange addresses and results: lines of JSON over pipes, or a TCP connection.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A message from one side to the other.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Message {
    /// Addresses of the sender's queue pairs, of its memory for messages, of its readable messages, and of its words.
    Hello { endpoints: Vec<String>, data: String, source: String, words: String },
    /// The sender is ready for the next step.
    Ready,
    /// Messages that each of the sender's queue pairs has sent, all completed, and how many of them warmed up; the time in
    /// nanoseconds.
    Sent { counts: Vec<u64>, warm_up: u64, ns: u64 },
    /// The sender was interrupted after enqueuing `next` exchanges, and asks for the end of the run.
    Stop { next: u64 },
    /// The sender has enqueued `next` exchanges, and the time of its warm-up is up.
    WarmedUp { next: u64 },
    /// The answer to `Stop`: the exchanges of the run; to `WarmedUp`: those of the warm-up.
    Until { end: u64 },
    /// The sender has finished. An error that is not the cause results from a failure that the receiver may know
    /// better.
    Done { error: Option<String>, is_cause: bool },
}

/// Returns whether a line is a side's last: it has finished without an error.
pub(super) fn is_last(line: &str) -> bool {
    matches!(serde_json::from_str(line), Ok(Message::Done { error: None, .. }))
}

/// The error if no better one is known.
pub(crate) const GONE: &str = "the other side is gone";
/// The prefix of the other side's errors.
pub(crate) const OTHER_SIDE: &str = "the other side: ";

/// Rewords an error received from the other side. An error that the other side had received from this one becomes this
/// side's own again.
fn reworded(error: &str) -> String {
    error.strip_prefix(OTHER_SIDE).map_or_else(|| format!("{OTHER_SIDE}{error}"), str::to_owned)
}

/// Starts a thread of the command.
///
/// # Errors
/// There is no room for one.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    Builder::new().name(name.to_owned()).spawn(body).map_err(|error| {
        format!("cannot start a thread ({name}): {error}; raise the limits of memory and processes (ulimit -v, -u)")
            .into()
    })
}

/// Returns whether an error only tells that the other side has failed or ended.
pub(super) fn is_of_other_side(error: &Failure) -> bool {
    let text = error.to_string();
    text.starts_with(GONE) || text.starts_with(OTHER_SIDE)
}

/// Why the other side will do nothing more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has failed with an error, in this side's words. If not the cause, the error is a consequence.
    Failed {
        error: String,
        is_cause: bool,
    },
    Gone,
}

type Hook = Box<dyn FnMut(&End) + Send>;

/// The action to take when the other side fails or ends.
#[derive(Clone, Default)]
pub(crate) struct OnEnd {
    state: Arc<Mutex<Ends>>,
}

#[derive(Default)]
struct Ends {
    seen: Vec<End>,
    hook: Option<Hook>,
}

impl OnEnd {
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the action, and performs it at once for past events.
    pub(crate) fn set(&self, mut hook: impl FnMut(&End) + Send + 'static) {
        let mut state = self.lock();
        state.seen.iter().for_each(&mut hook);
        state.hook = Some(Box::new(hook));
    }

    /// Removes the action: from now on the other side may end.
    pub(crate) fn clear(&self) {
        self.lock().hook = None;
    }

    fn report(&self, end: End) {
        let mut state = self.lock();
        if let Some(hook) = &mut state.hook {
            hook(&end);
        }
        state.seen.push(end);
    }
}

pub(crate) struct Channel {
    lines: Receiver<String>,
    writer: Writer,
    on_end: OnEnd,
    limit: RunLength,
    /// A message received ahead of its turn.
    early: Cell<Option<Message>>,
}

type Writer = Arc<Mutex<Box<dyn Write + Send>>>;

fn write(writer: &Writer, message: &Message) -> Result<(), Failure> {
    let lost = |error| format!("{GONE}: {error}");
    let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(writer, "{}", serde_json::to_string(message)?).map_err(lost)?;
    writer.flush().map_err(lost)?;
    Ok(())
}

fn parse(line: &str) -> Result<Message, Failure> {
    match serde_json::from_str(line)? {
        Message::Done { error: Some(error), .. } => Err(reworded(&error).into()),
        message => Ok(message),
    }
}

impl Channel {
    ///
    /// # Errors
    /// There is no room for a thread.
    pub(crate) fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<Self, Failure> {
        Self::of_lines(BufReader::new(reader).lines().map_while(Result::ok), Box::new(writer))
    }

    /// Starts a thread that reads, so that the other side's end is noticed, and an interrupt answered, at any time.
    pub(super) fn of_lines(
        received: impl Iterator<Item = String> + Send + 'static,
        writer: Box<dyn Write + Send>,
    ) -> Result<Self, Failure> {
        let (sender, lines) = channel();
        let on_end = OnEnd::default();
        let reader_end = on_end.clone();
        let limit = RunLength::new();
        let writer: Writer = Arc::new(Mutex::new(writer));
        let (own_limit, answers) = (limit.clone(), Arc::downgrade(&writer));
        let read = move || {
            for line in received {
                match serde_json::from_str(&line) {
                    Ok(Message::Done { error: Some(error), is_cause }) => {
                        reader_end.report(End::Failed { error: reworded(&error), is_cause });
                    }
                    Ok(asked @ (Message::Stop { next } | Message::WarmedUp { next })) => {
                        let is_stop = matches!(asked, Message::Stop { .. });
                        let end = if is_stop { own_limit.stop(next) } else { own_limit.warmed_up(next) };
                        // A side that is gone needs no answer.
                        let _ = answers.upgrade().map(|writer| write(&writer, &Message::Until { end }));
                        continue;
                    }
                    _ => {}
                }
                // The end must be reported even if no thread receives any more.
                let _ = sender.send(line);
            }
            drop(sender);
            reader_end.report(End::Gone);
        };
        start_thread("channel", read)?;
        Ok(Channel { lines, writer, on_end, limit, early: Cell::new(None) })
    }

    pub(crate) fn on_end(&self) -> &OnEnd {
        &self.on_end
    }

    pub(crate) fn run_length(&self) -> &RunLength {
        &self.limit
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<(), Failure> {
        write(&self.writer, message)
    }

    /// Agrees with the other side on the last exchange of an interrupted run, of which this side has enqueued `next`.
    /// If the other side has already finished, the run has all its exchanges.
    pub(crate) fn agree_on_end(&mut self, next: u64) -> Result<u64, Failure> {
        self.agree(&Message::Stop { next })
    }

    /// Ends the warm-up, of which this side has enqueued `next` exchanges, by agreement with the other side, which may have
    /// enqueued more. As many exchanges follow as would have otherwise. Returns those of the warm-up.
    pub(crate) fn end_warm_up(&mut self, next: u64) -> Result<u64, Failure> {
        let agreed = self.agree(&Message::WarmedUp { next })?;
        Ok(self.limit.warmed_up(agreed))
    }

    fn agree(&mut self, message: &Message) -> Result<u64, Failure> {
        self.send(message)?;
        match self.receive(None)? {
            Message::Until { end } => Ok(end),
            done @ Message::Done { .. } => {
                self.early.set(Some(done));
                Ok(u64::MAX)
            }
            other => Err(format!("the other side does not stop: {other:?}").into()),
        }
    }

    /// Returns the next message. Without a time-out it waits until the other side ends.
    ///
    /// # Errors
    /// Among others, the error with which the other side has failed.
    pub(crate) fn receive(&self, timeout: Option<Duration>) -> Result<Message, Failure> {
        if let Some(early) = self.early.take() {
            return Ok(early);
        }
        let line = match timeout {
            Some(timeout) => self.lines.recv_timeout(timeout),
            None => self.lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match line {
            Ok(line) => parse(&line),
            Err(RecvTimeoutError::Timeout) => Err("the other side does not answer".into()),
            Err(RecvTimeoutError::Disconnected) => Err(GONE.into()),
        }
    }

    /// Like [`Self::receive`], but skips answers to a request to stop, which arrive at any time.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Result<Message, Failure> {
        loop {
            match self.receive(timeout)? {
                Message::Until { .. } => {}
                message => return Ok(message),
            }
        }
    }

    /// Returns the next message if it has arrived.
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub(crate) fn receive_now(&self) -> Result<Option<Message>, Failure> {
        if let Some(early) = self.early.take() {
            return Ok(Some(early));
        }
        match self.lines.try_recv() {
            Ok(line) => parse(&line).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(GONE.into()),
        }
    }
}

/// The number of exchanges of a run; after an interrupt both sides agree on it. Clones share the value.
///
/// The interrupted side stops enqueuing and asks the other ([`Message::Stop`]); the peer's reader thread answers at
/// once, whatever its main thread waits for. The run ends at the larger of both numbers enqueued, so that every
/// exchange has its counterpart.
#[derive(Clone)]
pub(crate) struct RunLength(Arc<Mutex<RunState>>);

struct RunState {
    /// Exchanges that this side has enqueued, or is about to.
    enqueued: u64,
    /// Exchanges before the measurement, of all.
    warm_up: u64,
    end: u64,
}

impl RunLength {
    pub(crate) fn new() -> Self {
        RunLength(Arc::new(Mutex::new(RunState { enqueued: 0, warm_up: 0, end: u64::MAX })))
    }

    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the exchanges of the warm-up and of all, before the sides meet.
    pub(crate) fn set(&self, warm_up: u64, end: u64) {
        let mut state = self.lock();
        (state.warm_up, state.end) = (warm_up, state.end.min(end));
    }

    pub(crate) fn warm_up(&self) -> u64 {
        self.lock().warm_up
    }

    /// Ends the warm-up after `next` exchanges, or as soon as this side can. Returns its exchanges.
    pub(crate) fn warmed_up(&self, next: u64) -> u64 {
        let mut state = self.lock();
        let left_out = state.warm_up.saturating_sub(state.enqueued.max(next));
        state.warm_up -= left_out;
        state.end = state.end.saturating_sub(left_out);
        state.warm_up
    }

    pub(crate) fn shorten(&self, end: u64) {
        let mut state = self.lock();
        state.end = state.end.min(end);
    }

    pub(crate) fn end(&self) -> u64 {
        self.lock().end
    }

    /// Returns how many of `count` exchanges from `next` on may be enqueued; the caller enqueues them.
    pub(crate) fn claim(&self, next: u64, count: u64) -> u64 {
        let mut state = self.lock();
        let count = count.min(state.end.saturating_sub(next));
        state.enqueued = state.enqueued.max(next + count);
        count
    }

    /// Notes that the other side has stopped after enqueuing `next` exchanges. Returns the end of the run.
    pub(crate) fn stop(&self, next: u64) -> u64 {
        let mut state = self.lock();
        state.end = state.end.min(state.enqueued.max(next));
        state.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_has_finished_when_it_is_asked_to_stop_has_all_exchanges() {
        let ((reader, other_writer), (other_reader, writer)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let mut channel = Channel::new(reader, writer).unwrap();
        let mut other = Channel::new(other_reader, other_writer).unwrap();
        other.send(&Message::Done { error: None, is_cause: true }).unwrap();
        assert_eq!(channel.agree_on_end(5).unwrap(), u64::MAX);
        assert!(matches!(channel.receive(None).unwrap(), Message::Done { error: None, .. }));
        assert!(matches!(channel.receive(None).unwrap(), Message::Until { end: 5 }), "the late answer");
        assert_eq!(channel.agree_on_end(7).unwrap(), 5, "the end that was agreed on stays");
    }

    #[test]
    fn an_error_is_of_one_side_however_often_it_is_passed_on() {
        assert_eq!(reworded("no"), "the other side: no");
        assert_eq!(reworded(&reworded("no")), "no", "what the other side has heard of this one");
        assert!(is_of_other_side(&reworded("no").into()) && !is_of_other_side(&"no".into()));
    }

    #[test]
    fn messages_arrive_and_the_end_is_noticed() {
        let ((reader, other_writer), (_other_reader, writer)) =
            (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let channel = Channel::new(reader, writer).unwrap();
        assert!(channel.receive_now().unwrap().is_none());
        let mut other = Channel::new(std::io::empty(), other_writer).unwrap();
        let error = Some("no".to_owned());
        other.send(&Message::Done { error: error.clone(), is_cause: true }).unwrap();
        let said = channel.receive(None).unwrap_err().to_string();
        assert_eq!(said, "the other side: no");
        other.send(&Message::Done { error: None, is_cause: true }).unwrap();
        assert!(matches!(channel.receive(None).unwrap(), Message::Done { error: None, .. }));
        let late = channel.receive(Some(Duration::from_millis(1))).unwrap_err().to_string();
        assert!(late.contains("does not answer"), "{late}");
        let (told, hears) = std::sync::mpsc::channel();
        channel.on_end().set(move |end| told.send(end.clone()).unwrap());
        let failed = End::Failed { error: "the other side: no".to_owned(), is_cause: true };
        assert_eq!(hears.recv_timeout(Duration::from_secs(10)).unwrap(), failed);
        drop(other);
        assert_eq!(hears.recv_timeout(Duration::from_secs(10)).unwrap(), End::Gone);
        assert!(channel.receive(None).unwrap_err().to_string().contains("gone"));
        assert!(channel.receive_now().unwrap_err().to_string().contains("gone"));
        let (told, hears) = std::sync::mpsc::channel();
        channel.on_end().set(move |end| told.send(end.clone()).unwrap());
        assert_eq!([hears.recv().unwrap(), hears.recv().unwrap()], [failed, End::Gone]);
    }

    #[test]
    fn the_end_is_the_later_of_what_both_sides_have_enqueued() {
        for (own, other, expected) in [(32, 16, 32), (16, 32, 32), (0, 48, 48), (100, 100, 100), (0, 0, 0)] {
            let limit = RunLength::new();
            limit.set(0, 100);
            assert_eq!(limit.claim(0, own), own);
            assert_eq!((limit.stop(other), limit.end()), (expected, expected), "{own} and {other}");
            assert_eq!(limit.claim(own, 1000), expected - own, "what is missing, and no more");
            assert_eq!(limit.claim(expected, 1), 0);
        }
    }

    #[test]
    fn a_shorter_warm_up_is_the_same_on_both_sides_and_leaves_the_measurement() {
        for (own, other, expected) in [(20, 50, 50), (50, 20, 50), (30, 130, 100), (120, 30, 100)] {
            let [first, second] = [own, other].map(|enqueued| {
                let limit = RunLength::new();
                limit.set(100, 1100);
                assert_eq!(limit.claim(0, enqueued), enqueued);
                limit
            });
            let agreed = second.warmed_up(own);
            assert_eq!((first.warmed_up(agreed), agreed), (expected, expected), "{own} and {other}");
            for limit in [first, second] {
                assert_eq!((limit.warm_up(), limit.end()), (expected, expected + 1000));
            }
        }
    }

    #[test]
    fn a_side_that_is_asked_before_it_begins_ends_there_too() {
        let limit = RunLength::new();
        assert_eq!(limit.stop(16), 16);
        limit.set(0, 1000);
        assert_eq!((limit.end(), limit.claim(0, 64)), (16, 16));
    }
}
