//! Two connected queue pairs, on the software card or on the system's.
//!
//! `GDSYNC_TEST_PROVIDER=system` runs every test that uses this module on the first mlx5 device of the system's
//! libraries, which may be a software card below them (`scripts/test-system`). With `GDSYNC_TEST_QUEUES=devx`, device
//! commands create the queues. Separate tests cover features of the software provider alone (its diagnostics, several
//! link layers in one process).

use crate::{on_system, skipped};
use gdsync::advanced::QueueApi;
use gdsync::cuda::{Placement, QueuePlacement};
use gdsync::memop::MemOpStream;
use gdsync::qp::ResetError;
use gdsync::queue::{FailureCause, ResetBlocker};
use gdsync::stream::Cpu;
use gdsync::verbs::provider;
use gdsync::{
    Access, Batch, Completion, CompletionQueue, CompletionQueueConfig, ConnectOptions, Device, Error,
    MemoryRegion, PreparedSend, ProtectionDomain, QueuePair, QueuePairConfig, SoftStream, Stream,
    WorkRequest,
};
use std::time::{Duration, Instant};

/// Longest duration of any step, also on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

/// Returns the card under test.
pub fn device() -> Device {
    if on_system() {
        Device::open(provider::system().unwrap(), None).unwrap()
    } else {
        Device::software().unwrap()
    }
}

/// Returns the API that creates the queues under test.
pub fn queue_api() -> QueueApi {
    match std::env::var("GDSYNC_TEST_QUEUES").as_deref() {
        Err(_) | Ok("verbs") => QueueApi::Verbs,
        Ok("devx") => QueueApi::Devx,
        other => panic!("GDSYNC_TEST_QUEUES is {other:?}, neither verbs nor devx"),
    }
}

/// Returns true if the card reports asynchronous events of queues. Otherwise skips the test.
pub fn events_of_queues(test: &str) -> bool {
    let come = queue_api() == QueueApi::Verbs;
    if !come {
        skipped(test, "no asynchronous events of queues that are made by commands");
    }
    come
}

/// Creates a queue pair under test.
pub fn queue_pair(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<QueuePair, Error> {
    QueuePair::new(pd, placed(config).queues(queue_api()))
}

/// Creates a queue pair that completes in shared queues.
pub fn sharing(
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
) -> Result<QueuePair, Error> {
    QueuePair::new(pd, placed(config).queues(queue_api()).completion_queues(send_cq, recv_cq))
}

/// Creates a completion queue for several queue pairs.
pub fn completion_queue(device: &Device, entries: u32) -> Result<CompletionQueue, Error> {
    let placement = placed(QueuePairConfig::default()).placement;
    CompletionQueue::new(
        device,
        CompletionQueueConfig::from(entries).queues(queue_api()).placement(placement),
    )
}

/// Places queues that a test leaves in host memory according to `GDSYNC_TEST_PLACEMENT`: `gpu` or `stand-in`.
fn placed(config: QueuePairConfig<'_>) -> QueuePairConfig<'_> {
    let everywhere = match std::env::var("GDSYNC_TEST_PLACEMENT").as_deref() {
        Err(_) | Ok("host") => return config,
        Ok("gpu") => Placement::Gpu(0),
        Ok("stand-in") => Placement::StandIn,
        other => panic!("GDSYNC_TEST_PLACEMENT is {other:?}, neither host nor gpu nor stand-in"),
    };
    if config.placement != QueuePlacement::HOST {
        return config;
    }
    config.placement(QueuePlacement { work: everywhere, completions: everywhere, records: everywhere })
}

/// Two connected queue pairs.
#[derive(Debug)]
pub struct Pair {
    /// Their device.
    pub device: Device,
    /// Their protection domain.
    pub pd: ProtectionDomain,
    /// The left side.
    pub left: QueuePair,
    /// The right side.
    pub right: QueuePair,
}

impl Pair {
    /// Creates two queue pairs with this configuration.
    pub fn with(config: QueuePairConfig<'_>, options: ConnectOptions) -> Pair {
        let device = device();
        let pd = ProtectionDomain::new(&device).unwrap();
        let (left, right) = (queue_pair(&pd, config).unwrap(), queue_pair(&pd, config).unwrap());
        left.connect(&right.endpoint().unwrap(), options).unwrap();
        right.connect(&left.endpoint().unwrap(), options).unwrap();
        Pair { device, pd, left, right }
    }

    /// Creates two reliable queue pairs.
    #[expect(clippy::new_without_default, reason = "open devices are no default")]
    pub fn new() -> Pair {
        Pair::with(QueuePairConfig::default(), ConnectOptions::default())
    }

    /// Allocates memory with all access rights.
    pub fn open_region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::all()).unwrap()
    }

    /// Allocates memory with remote read and write access.
    pub fn region(&self, len: usize) -> MemoryRegion {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        MemoryRegion::allocate(&self.pd, len, access).unwrap()
    }
}

/// Iterates over all placements of a queue pair's parts in host memory and another.
pub fn layouts(other: Placement) -> impl Iterator<Item = QueuePlacement> {
    (0..8).map(move |bits| {
        let place = |bit| if bits & bit == 0 { Placement::Host } else { other };
        QueuePlacement { work: place(1), completions: place(2), records: place(4) }
    })
}

/// Posts and polls `count` messages by the CPU, one by one.
pub fn post_and_poll(pair: &Pair, count: usize) {
    let (source, target) = (pair.region(64), pair.region(64));
    for i in 0..count {
        let sent = fill(&source, i);
        pair.left.post_send(WorkRequest::write(&[source.slice(..).unwrap()], target.remote())).unwrap();
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
        assert_eq!(content(&target), sent);
    }
}

/// Drops the second of three sends, which must have no effect; the others are executed.
pub fn drop_the_second_of_three(pair: &Pair) {
    let target = pair.region(8);
    let write = |bytes: &[u8]| pair.left.prepare(WorkRequest::write_inline(bytes, target.remote())).unwrap();
    let (first, second, third) = (write(b"first"), write(b"second"), write(b"third"));
    drop(second);
    ring(first);
    ring(third);
    for _ in 0..2 {
        assert_eq!(poll(&pair.left.send_cq()).status, Ok(()));
    }
    assert_eq!(content(&target)[..5], *b"third");
}

/// Writes with a wrong key on a stream. The stream continues, and the queue pair reports the error.
pub fn fail_on<B: MemOpStream>(pair: &Pair, stream: &Stream<B>, wait: impl FnOnce()) {
    let target = pair.region(64);
    let mut wrong = target.remote();
    wrong.rkey ^= 0x55;
    let send = pair.left.prepare(WorkRequest::write_inline(b"nowhere", wrong)).unwrap();
    let done = pair.left.send_cq().prepare_wait().unwrap();
    stream.post(Batch::new().send(send).wait(done)).unwrap();
    wait();
    assert!(poll(&pair.left.send_cq()).status.is_err());
    assert!(matches!(pair.left.failure(), Some(FailureCause::Work { .. })), "{:?}", pair.left.failure());
}

/// Creates a stream that executes at once, and fails instead of hanging.
pub fn cpu() -> Stream<Cpu> {
    Stream::new(Cpu::with_timeout(LONG)).unwrap()
}

/// Creates a software stream.
pub fn soft() -> Stream<SoftStream> {
    Stream::new(SoftStream::new().unwrap()).unwrap()
}

/// Waits for a stream.
pub fn synchronize(stream: &Stream<SoftStream>) {
    assert!(stream.synchronize_timeout(LONG).unwrap(), "the stream is stuck: {stream:?}");
}

/// Rings the card immediately.
pub fn ring(send: PreparedSend) {
    let posted = cpu().post_send(send).unwrap();
    assert_eq!((posted.submissions, posted.operations > 1), (1, true));
}

/// Returns the next completion.
pub fn poll(queue: &CompletionQueue) -> Completion {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(completion) = queue.poll().unwrap() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion came");
        std::thread::yield_now();
    }
}

/// Fills memory with a pattern of the seed, and returns the pattern.
pub fn fill(region: &MemoryRegion, seed: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..region.len()).map(|i| (i * 31 + i / 253 + seed) as u8).collect();
    region.write(0, &bytes);
    bytes
}

/// Returns a copy of memory.
pub fn content(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Polls until every work request of an aborted queue pair has completed, and resets it.
pub fn drain(queue_pair: &QueuePair) {
    let deadline = Instant::now() + LONG;
    loop {
        match queue_pair.reset() {
            Ok(()) => return,
            Err(ResetError::Blocked {
                blocker: ResetBlocker::Sends(_) | ResetBlocker::Receives(_), ..
            }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline, "not everything completes");
        for queue in [queue_pair.send_cq(), queue_pair.recv_cq()] {
            while queue.poll().unwrap().is_some() {}
        }
    }
}

/// Aborts, drains and reconnects both sides.
pub fn drain_and_reconnect(pair: &Pair) {
    for side in [&pair.left, &pair.right] {
        side.abort().unwrap();
        drain(side);
        assert_eq!(side.failure(), None);
    }
    let (left, right) = (pair.left.endpoint().unwrap(), pair.right.endpoint().unwrap());
    pair.left.reconnect(&right, ConnectOptions::default()).unwrap();
    pair.right.reconnect(&left, ConnectOptions::default()).unwrap();
}
