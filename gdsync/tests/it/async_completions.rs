//! Completions that tasks of tokio await.

use gdsync::qp::{AsyncCompletionQueue, CompletionChannel, WaitError};
use gdsync::queue::StateError;
use gdsync::{
    CompletionQueue, CompletionQueueConfig, ConnectOptions, Device, ProtectionDomain, QueuePair,
    QueuePairConfig, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, device};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

/// Completion queues of one channel, each with a queue pair that is connected to itself.
struct Bed {
    device: Device,
    echoes: Vec<(CompletionQueue, QueuePair)>,
}

impl Bed {
    fn new(queues: usize) -> Self {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let channel = CompletionChannel::new(&device).unwrap();
        let echo = || {
            let config = CompletionQueueConfig::from(256).channel(&channel);
            let queue = CompletionQueue::new(&device, config).unwrap();
            let echo = pair::sharing(&pd, QueuePairConfig::default(), &queue, &queue).unwrap();
            echo.connect(&echo.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            (queue, echo)
        };
        let echoes = (0..queues).map(|_| echo()).collect();
        Bed { device, echoes }
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(future)
}

fn post(echo: &QueuePair, wr_id: u64) {
    echo.post_send(WorkRequest::nop().wr_id(wr_id)).unwrap();
}

#[test]
fn tasks_of_one_channel_pass_a_message_on() {
    const ROUNDS: u64 = 100;
    let bed = Bed::new(3);
    block_on(async {
        let mut tasks = Vec::new();
        for (i, (queue, _)) in bed.echoes.iter().enumerate() {
            let mut completions = AsyncCompletionQueue::new(queue).unwrap();
            assert!(completions.queue().is_same(queue));
            let next = &bed.echoes[(i + 1) % bed.echoes.len()].1;
            tasks.push(Box::pin(async move {
                for round in 0..ROUNDS {
                    assert_eq!(completions.next().await.unwrap().wr_id, round);
                    post(next, if i + 1 == 3 { round + 1 } else { round });
                }
            }));
        }
        post(&bed.echoes[0].1, 0);
        // Tasks of one `join`: each is polled when the runtime is woken for any of them.
        let mut open = tasks;
        std::future::poll_fn(|context| {
            open.retain_mut(|task| task.as_mut().poll(context).is_pending());
            if open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
}

#[test]
fn threads_and_tasks_share_a_channel() {
    const ROUNDS: u64 = 200;
    let bed = Bed::new(2);
    let [(slept, its_echo), (awaited, other_echo)] = &bed.echoes[..] else { unreachable!() };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(slept.wait(LONG).unwrap().map(|done| done.wr_id), Some(round));
                post(other_echo, round);
            }
        });
        block_on(async {
            let mut completions = AsyncCompletionQueue::new(awaited).unwrap();
            for round in 0..ROUNDS {
                post(its_echo, round);
                assert_eq!(completions.next().await.unwrap().wr_id, round);
            }
        });
    });
}

#[test]
fn a_future_that_is_dropped_takes_nothing() {
    let bed = Bed::new(1);
    let (queue, echo) = &bed.echoes[0];
    block_on(async {
        let mut completions = AsyncCompletionQueue::new(queue).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(completions.next()).poll(&mut context).is_pending());
        post(echo, 7);
        assert_eq!(completions.next().await.unwrap().wr_id, 7);
    });
}

#[test]
fn a_queue_without_a_channel_is_refused() {
    let bed = Bed::new(0);
    let plain = CompletionQueue::new(&bed.device, 8).unwrap();
    let refused = block_on(async { AsyncCompletionQueue::new(&plain).unwrap_err() });
    assert!(matches!(refused, WaitError::State(StateError::NoChannel { .. })));
}

#[test]
fn without_a_runtime_that_serves_files_there_is_an_error() {
    let bed = Bed::new(1);
    let (queue, echo) = &bed.echoes[0];
    let no_io = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused =
        [AsyncCompletionQueue::new(queue), no_io.block_on(async { AsyncCompletionQueue::new(queue) })];
    for refused in refused.map(Result::unwrap_err) {
        assert!(matches!(refused, WaitError::Runtime { .. }), "{refused:?}");
        assert!(refused.to_string().contains("enable_io"), "{refused}");
    }
    // One whose runtime has ended, polled outside of any.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let entered = runtime.enter();
    let mut completions = AsyncCompletionQueue::new(queue).unwrap();
    drop(entered);
    drop(runtime);
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Err(refused)) = pin!(completions.next()).poll(&mut context) else {
        panic!("the runtime has ended");
    };
    assert!(matches!(refused, WaitError::Verbs(_)), "{refused:?}");
    post(echo, 3);
    assert_eq!(queue.wait(LONG).unwrap().map(|done| done.wr_id), Some(3), "nothing is taken");
}

#[test]
fn the_future_may_be_sent_to_another_thread() {
    fn is_send<T: Send>(_: &T) {}
    let bed = Bed::new(1);
    block_on(async {
        let mut completions = AsyncCompletionQueue::new(&bed.echoes[0].0).unwrap();
        is_send(&completions.next());
    });
}
