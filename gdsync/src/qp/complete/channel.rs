//! Completion channels: a file descriptor that becomes readable when an armed completion queue gets an entry.
//!
//! A queue is armed by its record and a register (`mlx5_arm_cq` of libmlx5), not by `ibv_req_notify_cq`: libmlx5
//! does not know how far this library has polled.
//!
//! # One reader at a time
//! Several threads may wait for queues of one channel, and each event is read once. So one of them sleeps on the
//! descriptor, and the others on a condition variable. The reader counts each event at its queue and wakes all
//! others. Tasks of an executor read while no thread does, and are woken when a reading thread stops.

use crate::qp::complete::{CompletionQueue, CompletionQueueInner};
use crate::qp::make::ArmWords;
use crate::queue::Doorbell;
use crate::verbs::events::{event_fd, poll};
use crate::verbs::{Device, DeviceInner, Error, Owned, call};
use gdsync_sys::prm::doorbell::CqArm;
use gdsync_sys::verbs::{ibv_comp_channel, ibv_cq};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// A file descriptor that reports entries of completion queues, so that a program can sleep.
///
/// A queue is made with a channel ([`CompletionQueueConfig::channel`](crate::CompletionQueueConfig::channel)), and
/// raises one event each time that it is armed. [`CompletionQueue::wait`] does all of that for one queue. A program
/// with an event loop watches the descriptor ([`AsFd`]), and calls [`CompletionChannel::next_event`] when it is
/// readable. The descriptor does not block.
///
/// A channel is a cheap handle, which its queues keep. Events are acknowledged when they are read.
///
/// ```
/// use gdsync::qp::{ArmFor, CompletionChannel};
/// use gdsync::{CompletionQueue, CompletionQueueConfig, Device, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::software()?;
/// let pd = ProtectionDomain::new(&device)?;
/// let channel = CompletionChannel::new(&device)?;
/// let queue = CompletionQueue::new(&device, CompletionQueueConfig::from(64).channel(&channel))?;
/// let queue_pair = QueuePair::new(&pd, QueuePairConfig::default().completion_queues(&queue, &queue))?;
/// queue_pair.connect(&queue_pair.endpoint()?, Default::default())?; // to itself
/// queue_pair.post_recv(&[], 1)?;
/// queue_pair.post_send(WorkRequest::send(&[]).wr_id(2))?;
/// let mut seen = Vec::new();
/// while seen.len() < 2 {
///     queue.arm(ArmFor::Next)?;
///     // What was there before tells nothing any more: polled after arming, it is not missed.
///     seen.extend(std::iter::from_fn(|| queue.poll().transpose()).collect::<Result<Vec<_>, _>>()?);
///     if seen.len() < 2 {
///         let told = channel.next_event(Duration::from_secs(30))?;
///         assert!(told.is_some_and(|told| told.is_same(&queue)));
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct CompletionChannel {
    pub(crate) inner: Arc<ChannelInner>,
}

/// Compares the channels' identity.
impl PartialEq for CompletionChannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for CompletionChannel {}

impl CompletionChannel {
    /// Makes a channel (`ibv_create_comp_channel`).
    ///
    /// # Errors
    /// [`Error::Verbs`], for example if the process has no file descriptor left.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let device = device.inner.clone();
        // SAFETY: the context is open.
        let raw = unsafe { (device.api.create_comp_channel)(device.context()) };
        let raw = call::pointer("ibv_create_comp_channel", raw, String::new)?;
        // SAFETY: queues hold the channel, so none uses it any more.
        let raw = unsafe { Owned::new(raw, device.api.destroy_comp_channel, "ibv_destroy_comp_channel") };
        let wake = event_fd("completion channel")?;
        let inner = ChannelInner {
            raw,
            device,
            wake,
            queues: Mutex::default(),
            turn: Mutex::default(),
            passed: Condvar::new(),
        };
        set_nonblocking(inner.fd().as_raw_fd())?;
        Ok(CompletionChannel { inner: Arc::new(inner) })
    }

    /// Reads an event, if one comes within `timeout`, and returns its queue. Events of dropped queues are skipped.
    ///
    /// Each event has one reader: [`CompletionQueue::wait`] of a queue also reads events of the channel's other queues,
    /// and wakes threads that wait for these in the same way. So a program uses one way or the other for a channel.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn next_event(&self, timeout: Duration) -> Result<Option<CompletionQueue>, Error> {
        let channel = &self.inner;
        let told = channel.read_until(deadline(timeout), || None, || Ok(channel.next()?.flatten()))?;
        Ok(told.map(|inner| CompletionQueue { inner }))
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
}

#[derive(Debug)]
pub(crate) struct ChannelInner {
    raw: Owned<ibv_comp_channel>,
    device: Arc<DeviceInner>,
    /// An eventfd that ends the reader's sleep.
    wake: File,
    /// Queues by the address of their verbs object. A dropped queue's entry stays until the next one is made.
    queues: Mutex<HashMap<usize, Weak<CompletionQueueInner>>>,
    pub(super) turn: Mutex<Turn>,
    /// Signalled when a reader gives its turn back.
    passed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) is_taken: bool,
    pub(super) tasks: Vec<Waker>,
}

impl ChannelInner {
    pub(crate) fn raw(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as `self`; the field never changes, and the descriptor is open as
        // long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw()).fd) }
    }

    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// Adds a queue, before it is armed for the first time.
    pub(crate) fn add(&self, raw: NonNull<ibv_cq>, queue: &Arc<CompletionQueueInner>) {
        let mut queues = self.queues.lock();
        // A new queue may have the address of a dropped one.
        queues.retain(|_, known| known.strong_count() > 0);
        queues.insert(raw.as_ptr() as usize, Arc::downgrade(queue));
    }

    /// Reads an event, if there is one, counts it at its queue, and acknowledges it. The inner value is `None` for
    /// a queue that is being destroyed, which waits for the acknowledgement.
    fn next(&self) -> Result<Option<Option<Arc<CompletionQueueInner>>>, Error> {
        let (mut raw, mut context) = (ptr::null_mut(), ptr::null_mut());
        let api = self.device.api;
        // SAFETY: the channel is alive, and the places are valid.
        let rc = unsafe { (api.get_cq_event)(self.raw(), &mut raw, &mut context) };
        match call::status("ibv_get_cq_event", rc, String::new) {
            Err(Error::Verbs { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                return Ok(None);
            }
            read => read?,
        }
        let queue = self.queues.lock().get(&(raw as usize)).and_then(Weak::upgrade);
        if let Some(events) = queue.as_ref().and_then(|queue| queue.events.as_ref()) {
            events.count.fetch_add(1, Ordering::Release);
        }
        // SAFETY: read above, and acknowledged once; the queue lives until then. Before the last handle
        // of the queue may be dropped here, as destroying it waits for this.
        unsafe { (api.ack_cq_events)(raw, 1) };
        Ok(Some(queue))
    }

    pub(super) fn read_all(&self) -> Result<(), Error> {
        while self.next()?.is_some() {}
        Ok(())
    }

    /// Sleeps until `done` or `read` has a value. The thread that has the turn calls `read` when the descriptor may
    /// have events.
    fn read_until<T>(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut() -> Option<T>,
        mut read: impl FnMut() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut turn = self.turn.lock();
        loop {
            // Under the lock: a later event is counted by another reader, who wakes this thread.
            if let Some(value) = done() {
                return Ok(Some(value));
            }
            if turn.is_taken {
                let timed_out = match deadline {
                    Some(at) => self.passed.wait_until(&mut turn, at).timed_out(),
                    None => {
                        self.passed.wait(&mut turn);
                        false
                    }
                };
                if timed_out {
                    return Ok(done());
                }
                continue;
            }
            turn.is_taken = true;
            let got = MutexGuard::unlocked(&mut turn, || {
                let is_readable = poll(self.fd().as_raw_fd(), Some(self.wake.as_raw_fd()), left(deadline))?;
                self.calm();
                if is_readable { read() } else { Ok(None) }
            });
            turn.is_taken = false;
            self.pass(&mut turn);
            if let Some(value) = got? {
                return Ok(Some(value));
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                return Ok(done());
            }
        }
    }

    pub(super) fn pass(&self, turn: &mut Turn) {
        self.passed.notify_all();
        turn.tasks.drain(..).for_each(Waker::wake);
    }

    /// Ends the sleep of all that wait for queues of this channel.
    fn wake_all(&self) {
        // Fails if it is readable already.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
        self.pass(&mut self.turn.lock());
    }

    /// Clears [`Self::wake_all`]'s signal.
    fn calm(&self) {
        // Fails if there is none.
        let _ = (&self.wake).read(&mut [0; 8]);
    }
}

/// The entries that [`CompletionQueue::arm`] arms a queue for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArmFor {
    /// The next entry.
    Next,
    /// The next entry of a receive whose sender has asked for an event
    /// ([`WorkRequest::solicited`](crate::WorkRequest::solicited)), or of failed work. A queue armed for the next
    /// entry stays so.
    Solicited,
}

#[derive(Debug)]
pub(crate) struct CqEvents {
    pub(crate) channel: Arc<ChannelInner>,
    arm: ArmWords,
    number: u32,
    /// Events read. The card is armed again only with their count.
    count: AtomicU32,
}

impl CqEvents {
    /// Makes the state of the queue to which these words belong.
    pub(super) fn new(channel: Arc<ChannelInner>, arm: ArmWords, number: u32) -> Self {
        CqEvents { channel, arm, number, count: AtomicU32::new(0) }
    }

    /// Arms the queue for entries from `first` on. The queue's state is locked.
    pub(crate) fn arm(&self, what: ArmFor, first: u32) {
        let sequence = self.count.load(Ordering::Acquire) as u8;
        let arm = CqArm::new(sequence, what == ArmFor::Solicited, first);
        let doorbell = Doorbell {
            record_at: self.arm.record,
            record: arm.record(),
            register: self.arm.register,
            value: arm.doorbell(self.number),
        };
        // SAFETY: both are valid (`ArmWords::new`). Other queues ring the same register, and each store is whole.
        unsafe { doorbell.ring() };
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until more than the first `seen` events were read. Returns false after the deadline.
    pub(crate) fn sleep(&self, seen: u32, deadline: Option<Instant>) -> Result<bool, Error> {
        let is_told = || (self.count() != seen).then_some(());
        let read = || self.channel.read_all().map(|()| None);
        self.channel.read_until(deadline, is_told, read).map(|told| told.is_some())
    }

    pub(crate) fn wake(&self) {
        self.count.fetch_add(1, Ordering::Release);
        self.channel.wake_all();
    }
}

/// Returns the end of a timeout; `None` if it exceeds the clock's range.
pub(crate) fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
}

fn set_nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: no memory is involved.
    let rc = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags < 0 { flags } else { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }
    };
    call::status("fcntl", rc.min(0), || "completion channel".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::qp::{CompletionChannel, WaitError};
    use crate::queue::StateError;
    use crate::{CompletionQueue, CompletionQueueConfig, Device};
    use std::time::Duration;

    /// Nothing here takes longer, however busy the machine is.
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn sleepers_are_woken_where_the_card_writes_nothing_any_more() {
        let device = Device::software().unwrap();
        let channel = CompletionChannel::new(&device).unwrap();
        let config = CompletionQueueConfig::from(8).channel(&channel);
        let (lost, other) =
            (CompletionQueue::new(&device, config).unwrap(), CompletionQueue::new(&device, config).unwrap());
        let polled = CompletionQueue::new(&device, 8).unwrap();
        std::thread::scope(|scope| {
            // Two threads of the queue, of which one reads, or a third one does for both.
            let sleepers = [(); 2].map(|()| scope.spawn(|| lost.wait(LONG)));
            let polling = scope.spawn(|| polled.wait(LONG));
            let bystander = scope.spawn(|| other.wait(Duration::from_millis(100)));
            std::thread::sleep(Duration::from_millis(10));
            lost.inner.lose();
            polled.inner.lose();
            for (sleeper, queue) in sleepers.into_iter().map(|one| (one, &lost)).chain([(polling, &polled)]) {
                let ended = sleeper.join().unwrap();
                let expected =
                    WaitError::State(StateError::CompletionQueueLost { cqn: queue.inner.number() });
                assert_eq!(ended.unwrap_err().to_string(), expected.to_string());
            }
            assert_eq!(bystander.join().unwrap().unwrap(), None);
        });
    }
}
