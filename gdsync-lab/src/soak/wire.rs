//! One queue pair: posts to it by the CPU, a stream or kernels, its completions, and its reset.

use super::gpu::{AnyStream, Gpu};
use super::kernels::{Poster, PosterKind, Request};
use super::ledger::{Ended, Ledger, Work};
use super::plan::{LONGEST, Random};
use super::queues::{self, Queues, SharedDemux};
use super::region::{MemoryLocation, Region};
use super::tally::Tally;
use gdsync::qp::ResetError;
use gdsync::queue::{GRH_BYTES, OrderError, QueueFull, ResetBlocker, StateError, WorkError};
use gdsync::stream::{PostError, PostFailure};
use gdsync::verbs::{AsyncEventKind, Transport};
use gdsync::{
    Access, Batch, Completion, ConnectOptions, Device, Endpoint, PreparedSend, PreparedWait,
    ProtectionDomain, QueueError, QueuePair, QueuePairConfig, SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_cli::failure::Failure;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const RECEIVES: u64 = 8;
pub(super) const DEPTH: u32 = 64;
const PLACE_BYTES: usize = LONGEST + 64;
/// Time limit for another stream to write a trigger.
const OTHER_STREAM: Duration = Duration::from_secs(60);
/// Waits that the listening stream has posted at a time.
const LISTENING: usize = 2;

/// Sends that have ended with one completion.
pub(super) struct Taken {
    /// None for a kernel's sends: the kernel has polled it.
    pub(super) completion: Option<Completion>,
    pub(super) has_failed: bool,
    pub(super) ended: Vec<Ended>,
}

pub(super) struct Wire {
    device: Device,
    pd: ProtectionDomain,
    config: QueuePairConfig<'static>,
    /// Releases its sends, instead of doorbells.
    trigger: Option<Trigger>,
    queues: Queues,
    pub(super) queue_pair: Arc<QueuePair>,
    send: SharedDemux,
    recv: SharedDemux,
    poster: Poster,
    by_cuda: bool,
    listener: Option<Stream<SoftStream>>,
    pub(super) ledger: Ledger,
    target: Region,
    posted_receives: u64,
    done_receives: u64,
    random: Random,
}

fn released<'a>(config: QueuePairConfig<'static>, trigger: &'a Option<Trigger>) -> QueuePairConfig<'a> {
    match trigger {
        Some(trigger) => config.trigger(trigger),
        None => config,
    }
}

impl Wire {
    pub(super) fn new(
        (device, pd, port): (&Device, &ProtectionDomain, u8),
        transport: Transport,
        (queues, trigger): (Queues, Option<Trigger>),
        (gpu, by): (&Gpu, PosterKind),
        random: Random,
    ) -> Result<Self, Failure> {
        let config = QueuePairConfig::default().transport(transport).port(port).access(Access::all());
        let config = config.send_depth(DEPTH).recv_depth(RECEIVES as u32);
        let (queue_pair, send, recv) = queues::queue_pair(device, pd, released(config, &trigger), &queues)?;
        // A stream that waits for receives must not block sends, for which the other end may be waiting. It is a
        // software stream, as streams of a GPU may share a channel.
        let listens = by == PosterKind::Stream && matches!(queues, Queues::Own);
        let listener = || -> Result<_, Failure> { Ok(Stream::new(SoftStream::new()?)?) };
        let location = if by == PosterKind::Cpu { MemoryLocation::Host } else { gpu.location() };
        let sizes = (RECEIVES as usize * PLACE_BYTES, PLACE_BYTES);
        Ok(Wire {
            target: Region::new(&location, pd, sizes, Access::LOCAL_WRITE)?,
            poster: Poster::new(gpu, by)?,
            by_cuda: gpu.has_kernels() && by == PosterKind::Stream,
            listener: listens.then(listener).transpose()?,
            device: device.clone(),
            pd: pd.clone(),
            config,
            trigger,
            queues,
            queue_pair: Arc::new(queue_pair),
            send,
            recv,
            ledger: Ledger::default(),
            posted_receives: 0,
            done_receives: 0,
            random,
        })
    }

    pub(super) fn transport(&self) -> Transport {
        self.config.transport
    }

    pub(super) fn is_by_kernels(&self) -> bool {
        matches!(self.poster, Poster::Kernels(_))
    }

    fn header(&self) -> usize {
        if self.transport() == Transport::Ud { GRH_BYTES } else { 0 }
    }

    pub(super) fn received(&self, completion: &Completion) -> (&Region, usize) {
        (&self.target, (completion.wr_id % RECEIVES) as usize * PLACE_BYTES + self.header())
    }

    pub(super) fn data_len(&self, completion: &Completion) -> usize {
        (completion.byte_len as usize).saturating_sub(self.header())
    }

    pub(super) fn connect(&mut self, remote: &Endpoint, tally: &mut Tally) -> Result<(), Failure> {
        if self.transport() != Transport::Ud {
            let options = ConnectOptions::default().timeout(12).retry_count(7).rnr_retry(7).min_rnr_timer(5);
            self.queue_pair.connect(remote, options)?;
        }
        self.poster.attach(&self.queue_pair)?;
        self.post_receives(tally)
    }

    /// Resets or replaces the queue pair, so that it can be connected with nothing outstanding. False if the old one
    /// must wait.
    pub(super) fn renew(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        // Events from before the reset must not be seen after it.
        read_events(&self.device, tally)?;
        self.poster.detach()?;
        let (old, demux) = (self.queue_pair.number(), self.send.clone());
        if self.random.below(2) == 0 {
            if !self.reset()? {
                return Ok(false);
            }
            tally.reset += 1;
        } else {
            let config = released(self.config, &self.trigger);
            let (queue_pair, send, recv) = queues::queue_pair(&self.device, &self.pd, config, &self.queues)?;
            self.close(tally);
            (self.queue_pair, self.send, self.recv) = (Arc::new(queue_pair), send, recv);
            tally.replaced += 1;
        }
        self.forget(&demux, old, tally)?;
        (self.posted_receives, self.done_receives) = (0, 0);
        Ok(true)
    }

    /// Resets the queue pair. False while another stream waits for sends that were dropped.
    fn reset(&self) -> Result<bool, Failure> {
        match self.queue_pair.reset() {
            Ok(()) => Ok(true),
            Err(ResetError::Blocked { blocker: ResetBlocker::Sends(_), .. }) if self.trigger.is_some() => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets the sends of a queue pair that is gone; unsignaled ones may have had a completion by then.
    fn forget(&mut self, demux: &SharedDemux, number: u32, tally: &mut Tally) -> Result<(), Failure> {
        while let Some(completion) = demux.borrow_mut().take(number, false)? {
            self.end_sends(completion.wr_id, completion.status, tally)?;
        }
        tally.silent += self.ledger.forget().len() as u64;
        Ok(())
    }

    /// Checks the end state with nothing outstanding. False if the queue pair must wait.
    pub(super) fn finish(&mut self, tally: &mut Tally) -> Result<bool, Failure> {
        self.poster.detach()?;
        if !self.reset()? {
            return Ok(false);
        }
        let demux = self.send.clone();
        self.forget(&demux, self.queue_pair.number(), tally)?;
        self.close(tally);
        Ok(true)
    }

    /// Drains the queues that no other end polls: nothing may be left there.
    fn close(&self, tally: &mut Tally) {
        if !matches!(self.queues, Queues::Shared(..)) {
            self.send.borrow_mut().close(tally);
            self.recv.borrow_mut().close(tally);
        }
    }

    pub(super) fn post_receives(&mut self, tally: &mut Tally) -> Result<(), Failure> {
        while self.posted_receives - self.done_receives < RECEIVES {
            let at = (self.posted_receives % RECEIVES) as usize * PLACE_BYTES;
            let slices = [self.target.slice(at..at + PLACE_BYTES)?];
            match self.queue_pair.post_recv(&slices, self.posted_receives) {
                Ok(()) => {}
                Err(error) if is_for_now(&error) => break,
                Err(error) => return Err(error.into()),
            }
            self.posted_receives += 1;
            tally.posted += 1;
        }
        self.listen()
    }

    /// Sometimes has a stream wait for the next receive without a wait.
    fn listen(&mut self) -> Result<(), Failure> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let mut demux = self.recv.borrow_mut();
        if demux.pending() >= LISTENING || self.random.below(8) != 0 {
            return Ok(());
        }
        let wait = match demux.queue.prepare_wait() {
            Ok(wait) => wait,
            Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let index = wait.index();
        let wait = wait.checked()?;
        let status = wait.status();
        listener.post(Batch::new().wait_checked(wait)).map_err(|error| error.to_string())?;
        demux.expect(index, status);
        Ok(())
    }

    /// Posts a request, if possible now.
    pub(super) fn post(
        &mut self,
        request: WorkRequest<'_>,
        work: Work,
        signaled: bool,
        tally: &mut Tally,
    ) -> Result<bool, Failure> {
        let request = request.wr_id(self.ledger.next());
        let request = if signaled { request } else { request.unsignaled() };
        let chance = self.random.below(6);
        let posted = match &self.poster {
            Poster::Cpu => self.queue_pair.post_send(request),
            Poster::Stream(stream) => match self.queue_pair.prepare(request) {
                Ok(send) => {
                    self.post_on(stream, send, signaled, chance)?;
                    tally.by_cuda += u64::from(self.by_cuda);
                    tally.triggered += u64::from(self.trigger.is_some());
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Poster::Kernels(_) => return Err("kernels take other requests".into()),
        };
        match posted {
            Ok(()) => {}
            Err(error) if is_for_now(&error) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.ledger.post(work, signaled);
        tally.posted += 1;
        Ok(true)
    }

    /// Makes kernels post a request, if there is room for it.
    pub(super) fn post_by_kernels(&mut self, request: Request, work: Work, tally: &mut Tally) -> bool {
        let Poster::Kernels(kernels) = &mut self.poster else { return false };
        if !kernels.has_room() {
            return false;
        }
        kernels.post(request);
        self.ledger.post(work, true);
        tally.posted += 1;
        tally.by_kernels += 1;
        true
    }

    /// Makes a stream post, and sometimes wait. A wait follows a send whose completion is certain, so that streams that
    /// share a queue never wait for each other in a cycle. A card that waits for a trigger may already have the send,
    /// and perform it even if it is dropped; so it is posted after another stream has written the trigger.
    fn post_on(
        &self,
        stream: &AnyStream,
        send: PreparedSend,
        signaled: bool,
        chance: u64,
    ) -> Result<(), Failure> {
        let batch = Batch::new().send(send);
        let mut demux = self.send.borrow_mut();
        let (mut batch, check) = match chance {
            0 if signaled => (batch.wait(demux.queue.prepare_wait()?), None),
            1 if signaled => {
                let wait = demux.queue.prepare_wait()?;
                let index = wait.index();
                let wait = wait.checked()?;
                let status = wait.status();
                (batch.wait_checked(wait), Some((index, status)))
            }
            _ => (batch, None),
        };
        let deadline = Instant::now() + OTHER_STREAM;
        while let Err(PostError { source, batch: rest, .. }) = stream.post(batch) {
            match source {
                PostFailure::Queue(QueueError::Order(OrderError::TriggerOnOtherStream { .. }))
                    if Instant::now() < deadline => {}
                // A checked wait has seen its failure since it was prepared; prepared requests are flushed.
                PostFailure::Queue(QueueError::State(StateError::Failed { .. })) => return Ok(()),
                error => return Err(error.to_string().into()),
            }
            batch = rest;
            std::thread::sleep(Duration::from_micros(20));
        }
        check.into_iter().for_each(|(index, status)| demux.expect(index, status));
        Ok(())
    }

    /// Returns a wait for the next completion of its sends that has no wait yet.
    pub(super) fn next_send(&self) -> Result<Option<PreparedWait>, Failure> {
        if self.is_by_kernels() {
            return Ok(None);
        }
        match self.send.borrow().queue.prepare_wait() {
            Ok(wait) => Ok(Some(wait)),
            Err(QueueError::Order(OrderError::NothingToWaitFor { .. })) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn take_receive(&mut self, tally: &mut Tally) -> Result<Option<Completion>, Failure> {
        let Some(completion) = self.recv.borrow_mut().take(self.queue_pair.number(), true)? else {
            return Ok(None);
        };
        if completion.wr_id != self.done_receives {
            tally.unaccounted += 1;
            let (number, due) = (completion.wr_id, self.done_receives);
            return Err(format!("receive {number} has completed instead of {due}").into());
        }
        self.done_receives += 1;
        match completion.status {
            Ok(()) => tally.operations += 1,
            Err(error) => tally.error(error),
        }
        Ok(Some(completion))
    }

    /// Returns the next completion of sends, and the sends that have ended with it.
    pub(super) fn take_send(&mut self, tally: &mut Tally) -> Result<Option<Taken>, Failure> {
        if let Poster::Kernels(kernels) = &mut self.poster {
            let Some(status) = kernels.next_ended(&self.queue_pair)? else { return Ok(None) };
            let serial = self.ledger.oldest().ok_or("kernels have ended more than was posted")?;
            let ended = self.end_sends(serial, status, tally)?;
            return Ok(Some(Taken { completion: None, has_failed: status.is_err(), ended }));
        }
        let Some(completion) = self.send.borrow_mut().take(self.queue_pair.number(), false)? else {
            return Ok(None);
        };
        let ended = self.end_sends(completion.wr_id, completion.status, tally)?;
        Ok(Some(Taken { has_failed: completion.status.is_err(), completion: Some(completion), ended }))
    }

    fn end_sends(
        &mut self,
        serial: u64,
        status: Result<(), WorkError>,
        tally: &mut Tally,
    ) -> Result<Vec<Ended>, Failure> {
        let ended = match self.ledger.complete(serial, status.is_ok()) {
            Ok(ended) => ended,
            Err(text) => {
                tally.unaccounted += 1;
                return Err(text.into());
            }
        };
        tally.operations += ended.iter().filter(|ended| ended.is_good).count() as u64;
        if let Err(error) = status {
            tally.error(error);
        }
        Ok(ended)
    }

    pub(super) fn compare(&self, tally: &mut Tally) {
        self.send.borrow_mut().compare(tally);
        if !Rc::ptr_eq(&self.send, &self.recv) {
            self.recv.borrow_mut().compare(tally);
        }
    }

    /// Work requests that still have to complete.
    pub(super) fn left(&self) -> u64 {
        let sends = if self.ledger.is_silent() { 0 } else { self.ledger.len() as u64 };
        sends + self.posted_receives - self.done_receives
    }

    /// Returns whether its streams have passed everything.
    pub(super) fn is_idle(&self) -> Result<bool, Failure> {
        let listener = self.listener.as_ref();
        let heard = listener.map_or(Ok(true), |listener| listener.synchronize_timeout(Duration::ZERO))?;
        Ok(heard && self.poster.is_idle()?)
    }
}

pub(super) fn read_events(device: &Device, tally: &mut Tally) -> Result<(), Failure> {
    while let Some(event) = device.next_event(Duration::ZERO)? {
        tally.events += 1;
        if !matches!(
            event.kind,
            AsyncEventKind::QueuePairFatal
                | AsyncEventKind::QueuePairRequestError
                | AsyncEventKind::QueuePairAccessError
                // The peer was ready first: its message arrived before this side was ready to send.
                | AsyncEventKind::CommunicationEstablished
        ) {
            tally.unaccounted += 1;
            tally.problem(|| format!("{event:?}"));
        }
    }
    Ok(())
}

/// Returns whether an error is temporary: the queues are full, or the queue pair has failed, or the master that
/// releases its sends has failed, with every queue pair whose sends it held. Completions will tell which.
fn is_for_now(error: &QueueError) -> bool {
    matches!(
        error,
        QueueError::Full(
            QueueFull::SendQueue { .. }
                | QueueFull::ReceiveQueue { .. }
                | QueueFull::CompletionQueue { .. }
                | QueueFull::Stream(_)
                | QueueFull::Master { .. }
        ) | QueueError::State(StateError::Failed { .. } | StateError::MasterFailed { .. })
    )
}
