//! Completion channels: sleeping until a queue has an entry.

use gdsync::advanced::{DevxError, QueueApi};
use gdsync::qp::{ArmFor, CompletionChannel};
use gdsync::queue::{QueueError, StateError};
use gdsync::verbs::QueuePairError;
use gdsync::{
    Batch, Completion, CompletionQueue, CompletionQueueConfig, ConnectOptions, Device, Error,
    ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, device, poll, soft, synchronize};
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;
use std::time::Duration;

/// Queue pairs of one protection domain, each connected to itself.
struct Bed {
    device: Device,
    pd: ProtectionDomain,
    channel: CompletionChannel,
}

impl Bed {
    fn new() -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let channel = CompletionChannel::new(&device).unwrap();
        Bed { device, pd, channel }
    }

    fn queue(&self) -> CompletionQueue {
        CompletionQueue::new(&self.device, CompletionQueueConfig::from(256).channel(&self.channel)).unwrap()
    }

    /// A queue pair that completes there and is connected to itself.
    fn echo(&self, queue: &CompletionQueue) -> QueuePair {
        let made = pair::sharing(&self.pd, QueuePairConfig::default(), queue, queue).unwrap();
        made.connect(&made.endpoint().unwrap(), ConnectOptions::default()).unwrap();
        made
    }
}

/// Sleeps until the next completion.
fn wait(queue: &CompletionQueue) -> Completion {
    queue.wait(LONG).unwrap().expect("a completion within the time")
}

fn readable(channel: &CompletionChannel, millis: i32) -> bool {
    let mut entry = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry.
    unsafe { libc::poll(&mut entry, 1, millis) == 1 }
}

#[test]
fn a_sleeper_is_woken_by_each_entry() {
    let bed = Bed::new();
    let queue = bed.queue();
    let echo = bed.echo(&queue);
    assert_eq!(queue.wait(Duration::ZERO).unwrap(), None);
    assert_eq!(queue.wait(Duration::from_millis(2)).unwrap(), None, "nothing is posted");
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| (0..300u64).for_each(|i| assert_eq!(wait(&queue).wr_id, i)));
        for i in 0..300u64 {
            while echo.post_send(WorkRequest::nop().wr_id(i)).is_err() {
                std::thread::yield_now();
            }
            if i % 7 == 0 {
                std::thread::sleep(Duration::from_micros(i * 3));
            }
        }
        sleeper.join().unwrap();
    });
    assert_eq!(queue.wait(Duration::ZERO).unwrap(), None);
}

#[test]
fn sleepers_of_one_channel_wake_each_other() {
    const LAST: usize = 3;
    let bed = Bed::new();
    // Each thread's completion is posted by the one before it: a lost event stops all.
    let queues: Vec<_> = (0..=LAST).map(|_| bed.queue()).collect();
    let echoes: Vec<_> = queues.iter().map(|queue| bed.echo(queue)).collect();
    std::thread::scope(|scope| {
        for (i, queue) in queues.iter().enumerate() {
            let next = &echoes[(i + 1) % echoes.len()];
            scope.spawn(move || {
                for round in 0..200u64 {
                    assert_eq!(wait(queue).wr_id, round);
                    let number = if i == LAST { round + 1 } else { round };
                    next.post_send(WorkRequest::nop().wr_id(number)).unwrap();
                }
            });
        }
        echoes[0].post_send(WorkRequest::nop().wr_id(0)).unwrap();
    });
    assert_eq!(wait(&queues[0]).wr_id, 200, "the last one's, for which no thread has waited");
}

#[test]
fn sleepers_of_one_queue_share_its_completions() {
    let bed = Bed::new();
    let queue = bed.queue();
    let echo = bed.echo(&queue);
    let seen = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..100).for_each(|_| assert!(seen.lock().unwrap().insert(wait(&queue).wr_id))));
        }
        for i in 0..300 {
            while let Err(error) = echo.post_send(WorkRequest::nop().wr_id(i)) {
                assert!(matches!(error, QueueError::Full(_)), "{error}");
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(seen.into_inner().unwrap().len(), 300);
}

#[test]
fn an_event_loop_is_told_which_queue_has_an_entry() {
    let bed = Bed::new();
    let (first, second) = (bed.queue(), bed.queue());
    let echoes = [bed.echo(&first), bed.echo(&second)];
    for (echo, queue) in echoes.iter().zip([&first, &second]).cycle().take(20) {
        queue.arm(ArmFor::Next).unwrap();
        assert!(queue.poll().unwrap().is_none());
        assert!(!readable(&bed.channel, 0));
        assert!(bed.channel.next_event(Duration::ZERO).unwrap().is_none());
        echo.post_send(WorkRequest::nop()).unwrap();
        assert!(readable(&bed.channel, LONG.as_millis() as i32));
        let told = bed.channel.next_event(Duration::ZERO).unwrap().expect("the descriptor says so");
        assert!(told.is_same(queue));
        assert_eq!(poll(&told).status, Ok(()));
        echo.post_send(WorkRequest::nop()).unwrap();
        assert_eq!(poll(queue).status, Ok(()));
        assert!(!readable(&bed.channel, 2), "told once for each time that it is armed");
    }
    assert_eq!(first.channel().as_ref(), Some(&bed.channel));
    assert_ne!(CompletionChannel::new(&bed.device).unwrap(), bed.channel);
}

#[test]
fn solicited_entries_and_errors_tell_where_others_do_not() {
    let bed = Bed::new();
    let (sends, receives) = (bed.queue(), bed.queue());
    let echo = pair::sharing(&bed.pd, QueuePairConfig::default(), &sends, &receives).unwrap();
    echo.connect(&echo.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    receives.arm(ArmFor::Solicited).unwrap();
    for _ in 0..4 {
        echo.post_recv(&[], 0).unwrap();
    }
    echo.post_send(WorkRequest::send(&[])).unwrap();
    assert_eq!((poll(&sends).status, poll(&receives).status), (Ok(()), Ok(())));
    assert!(!readable(&bed.channel, 2), "no event is asked for");
    echo.post_send(WorkRequest::send(&[]).solicited()).unwrap();
    let told = bed.channel.next_event(LONG).unwrap().expect("the sender has asked for it");
    assert!(told.is_same(&receives));
    receives.arm(ArmFor::Solicited).unwrap();
    assert_eq!((poll(&sends).status, poll(&receives).status), (Ok(()), Ok(())));
    echo.abort().unwrap();
    assert!(bed.channel.next_event(LONG).unwrap().is_some_and(|told| told.is_same(&receives)), "flushed");
    assert!(poll(&receives).status.is_err());
}

#[test]
fn streams_and_sleepers_look_at_the_same_entries() {
    let bed = Bed::new();
    let queue = bed.queue();
    let echo = bed.echo(&queue);
    let stream = soft();
    for i in 0..50 {
        let send = echo.prepare(WorkRequest::nop().wr_id(i)).unwrap();
        let done = queue.prepare_wait().unwrap();
        stream.post(Batch::new().send(send).wait(done)).unwrap();
        assert_eq!(wait(&queue).wr_id, i);
        synchronize(&stream);
    }
}

#[test]
fn queues_and_channels_are_dropped_in_any_order() {
    let bed = Bed::new();
    for round in 0..8 {
        let channel = CompletionChannel::new(&bed.device).unwrap();
        let config = CompletionQueueConfig::from(16).channel(&channel);
        let queue = CompletionQueue::new(&bed.device, config).unwrap();
        let other = CompletionQueue::new(&bed.device, config).unwrap();
        let echo = bed.echo(&queue);
        queue.arm(ArmFor::Next).unwrap();
        echo.post_send(WorkRequest::nop()).unwrap();
        assert!(readable(&channel, LONG.as_millis() as i32));
        if round & 1 != 0 {
            assert!(channel.next_event(Duration::ZERO).unwrap().is_some());
        }
        if round & 2 != 0 {
            drop(other);
            drop((queue, echo));
            // Unread entries are gone with the queue, or are skipped.
            assert!(channel.next_event(Duration::ZERO).unwrap().is_none());
        } else {
            drop(channel);
            assert!(queue.wait(LONG).unwrap().is_some(), "the queue keeps its channel");
        }
    }
}

#[test]
fn what_cannot_be_armed_says_so() {
    let bed = Bed::new();
    let plain = CompletionQueue::new(&bed.device, 8).unwrap();
    let refused = plain.arm(ArmFor::Next).unwrap_err();
    assert!(matches!(refused, StateError::NoChannel { .. }));
    assert!(refused.to_string().contains("CompletionQueueConfig::channel"), "{refused}");
    assert_eq!(plain.channel(), None);

    let config = CompletionQueueConfig::from(8).channel(&bed.channel);
    let made = CompletionQueue::new(&device(), config);
    assert!(matches!(made, Err(Error::QueuePair(QueuePairError::OtherDevice { .. }))), "{made:?}");
    let made = CompletionQueue::new(&bed.device, config.queues(QueueApi::Devx));
    let expected = |error: &DevxError| matches!(error, DevxError::NoChannel | DevxError::Unavailable { .. });
    assert!(matches!(&made, Err(Error::Devx(error)) if expected(error)), "{made:?}");
}

#[test]
fn a_queue_without_a_channel_is_polled() {
    let bed = Bed::new();
    let pd = ProtectionDomain::new(&bed.device).unwrap();
    let queue = CompletionQueue::new(&bed.device, 8).unwrap();
    let config = QueuePairConfig::default().completion_queues(&queue, &queue);
    let echo = QueuePair::new(&pd, config).unwrap();
    echo.connect(&echo.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    assert_eq!(queue.wait(Duration::from_millis(5)).unwrap(), None);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| queue.wait(LONG).unwrap().unwrap().wr_id);
        std::thread::sleep(Duration::from_millis(20));
        echo.post_send(WorkRequest::nop().wr_id(5)).unwrap();
        assert_eq!(waiting.join().unwrap(), 5);
    });
}
