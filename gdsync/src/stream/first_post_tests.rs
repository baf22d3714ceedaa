//! The first post of each kind registers no memory: it was registered when it was allocated, or with the device's
//! first stream.
//!
//! The streams' device can only reach registered memory, and counts registrations.

use super::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
use super::{Doorbells, SoftStream, Stream};
use crate::batch::MemoryWrite;
use crate::memop::{
    Condition, MemOp, MemOpCaps, MemOpStream, MemoryKind, Staged, StreamError, Word32, Word64,
};
use crate::memory::peer_map::{MapError, PeerMap, Registered, Registrar};
use crate::memory::spans::{BEGINS_USE, SpanKind};
use crate::memory::{HostAddr, StreamAddr};
use crate::qp::Collector;
use crate::qp::testing::{LONG, poll};
use crate::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, PinnedMemory, ProtectionDomain, QueuePair,
    QueuePairConfig, Trigger, WorkRequest,
};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    /// Registrations by this thread, as other tests' threads register, too.
    static REGISTERED: Cell<usize> = const { Cell::new(0) };
}

/// A device that registers any memory, or everything but registers.
struct Counting {
    refuses_registers: bool,
}

impl Registrar for Counting {
    fn register(&self, base: u64, _len: u64, kind: SpanKind) -> Result<Registered, String> {
        REGISTERED.set(REGISTERED.get() + 1);
        match kind {
            SpanKind::Registers { .. } if self.refuses_registers => Err("it needs root".to_owned()),
            // Not owned: memory of other tests is kept no longer than they expect.
            _ => Ok(Registered { device: base, owned: false }),
        }
    }

    fn unregister(&self, _base: u64) {}
}

/// A software stream of that device.
struct Mapped {
    soft: SoftStream,
    map: Arc<PeerMap<Counting>>,
}

impl Mapped {
    fn new(map: &Arc<PeerMap<Counting>>) -> Self {
        map.add_stream();
        Mapped { soft: SoftStream::new().unwrap(), map: map.clone() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.map.remove_stream();
    }
}

// SAFETY: the software stream's, and addresses are the host's.
unsafe impl MemOpStream for Mapped {
    fn caps(&self) -> MemOpCaps {
        self.soft.caps()
    }

    fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, StreamError> {
        self.map.translate(addr, len).map_err(|error| match error {
            MapError::Unknown => StreamError::Unregistered { addr, len },
            MapError::Refused(reason) => StreamError::Unreachable { addr, reason },
        })
    }

    fn epoch(&self) -> u64 {
        self.map.epoch()
    }

    unsafe fn submit(&self, ops: &[MemOp]) -> Result<(), StreamError> {
        // SAFETY: the caller's.
        unsafe { self.soft.submit(ops) }
    }

    unsafe fn write_bytes(
        &self,
        to: StreamAddr,
        kind: MemoryKind,
        bytes: &[u8],
    ) -> Result<Staged, StreamError> {
        // SAFETY: the caller's.
        unsafe { self.soft.write_bytes(to, kind, bytes) }
    }

    fn wait_idle(&self, timeout: Duration) -> Result<bool, StreamError> {
        self.soft.wait_idle(timeout)
    }
}

struct Objects {
    left: QueuePair,
    released: QueuePair,
    _targets: [QueuePair; 2],
    collector: Collector,
    source: MemoryRegion,
    target: MemoryRegion,
    short: Word32,
    long: Word64,
    bytes: MemoryWrite,
    plain: PinnedMemory,
    requests: (PersistentSend, PersistentRecv),
}

const LEN: usize = 1000;

impl Objects {
    fn new() -> Self {
        let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
        let connected = |config| {
            let (left, right) = (
                QueuePair::new(&pd, config).unwrap(),
                QueuePair::new(&pd, QueuePairConfig::default()).unwrap(),
            );
            left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
            (left, right)
        };
        let trigger = Trigger::new(&pd).unwrap();
        let ((left, right), (released, other)) =
            (connected(QueuePairConfig::default()), connected(QueuePairConfig::default().trigger(&trigger)));
        let region = || MemoryRegion::allocate(&pd, LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let (source, target) = (region(), region());
        let plain = PinnedMemory::allocate(3 * 4096).unwrap();
        let requests = (
            PersistentSend::send(&left, &[source.slice(..).unwrap()]).unwrap(),
            PersistentRecv::new(&right, &[target.slice(..).unwrap()]).unwrap(),
        );
        Objects {
            collector: Collector::new(&pd.device()).unwrap(),
            short: Word32::new(&plain, 8).unwrap(),
            long: Word64::new(&plain, 4096).unwrap(),
            // Across two pages, and not as words.
            bytes: MemoryWrite::new(&plain, 8001, &[7; 1000]).unwrap(),
            left,
            released,
            _targets: [right, other],
            source,
            target,
            plain,
            requests,
        }
    }

    fn write(&self) -> WorkRequest<'static> {
        WorkRequest::write_inline(b"well", self.target.remote())
    }

    fn target(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        self.target.read(0, &mut bytes);
        bytes
    }
}

/// The object that is made first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Stream,
    Objects,
}

/// Posts once on a fresh stream, with fresh objects, by `post`, and counts the registrations. `check` checks the
/// result.
fn first_post<P>(
    what: &str,
    prepare: impl Fn(&mut Objects) -> P,
    post: impl Fn(&mut Objects, &Stream<Mapped>, P),
    check: impl Fn(&mut Objects),
) {
    let _alone = BEGINS_USE.write();
    for order in [Order::Stream, Order::Objects] {
        let map = PeerMap::new(Counting { refuses_registers: false });
        let before = REGISTERED.get();
        let (mut objects, stream) = match order {
            Order::Stream => {
                let stream = Stream::new(Mapped::new(&map)).unwrap();
                (Objects::new(), stream)
            }
            Order::Objects => {
                let objects = Objects::new();
                (objects, Stream::new(Mapped::new(&map)).unwrap())
            }
        };
        // Queues, doorbell registers, the timeline, words.
        assert!(REGISTERED.get() - before >= 4, "{what}, {order:?}");
        let prepared = prepare(&mut objects);
        let before = REGISTERED.get();
        post(&mut objects, &stream, prepared);
        assert_eq!(REGISTERED.get() - before, 0, "the first {what} registers memory; first: {order:?}");
        assert!(stream.synchronize_timeout(LONG).unwrap(), "{what} is stuck: {stream:?}");
        check(&mut objects);
        assert_eq!(stream.doorbells(&objects.left), Ok(Doorbells::Direct));
    }
}

fn arrived(objects: &mut Objects) {
    assert_eq!(poll(&objects.left.send_cq()).status, Ok(()));
    assert_eq!(&objects.target()[..4], b"well");
}

#[test]
fn sends() {
    let prepare = |objects: &mut Objects| objects.left.prepare(objects.write()).unwrap();
    let posted = |_: &mut Objects, stream: &Stream<Mapped>, send| {
        stream.post(Batch::new().send(send)).unwrap();
    };
    first_post("send", prepare, posted, arrived);
    let alone = |_: &mut Objects, stream: &Stream<Mapped>, send| {
        stream.post_send(send).unwrap();
    };
    first_post("prepared send", prepare, alone, arrived);
    let queued = |objects: &mut Objects, stream: &Stream<Mapped>, ()| {
        stream.queue_send(&objects.left, objects.write()).unwrap();
    };
    first_post("queued send", |_| (), queued, arrived);
}

#[test]
fn waits_for_completions() {
    let prepare = |objects: &mut Objects| {
        objects.left.post_send(objects.write()).unwrap();
        objects.left.send_cq().prepare_wait().unwrap()
    };
    let plain = |_: &mut Objects, stream: &Stream<Mapped>, wait| {
        stream.post(Batch::new().wait(wait)).unwrap();
    };
    first_post("wait", prepare, plain, arrived);
    let checked = |_: &mut Objects, stream: &Stream<Mapped>, wait| {
        stream.post(Batch::new().wait_checked(wait)).unwrap();
    };
    first_post("checked wait", |objects| prepare(objects).checked().unwrap(), checked, arrived);
}

#[test]
fn words_and_bytes() {
    let words = |objects: &mut Objects, stream: &Stream<Mapped>, ()| {
        stream.post(Batch::new().write_value32(&objects.short, 5)).unwrap();
        stream.post(Batch::new().wait_value32(&objects.short, Condition::Geq, 5)).unwrap();
        stream.post(Batch::new().write_value64(&objects.long, 6)).unwrap();
        stream.post(Batch::new().wait_value64(&objects.long, Condition::Eq, 6)).unwrap();
    };
    first_post(
        "words",
        |_| (),
        words,
        |objects| {
            assert_eq!((objects.short.load(), objects.long.load()), (5, 6));
        },
    );
    let bytes = |objects: &mut Objects, stream: &Stream<Mapped>, ()| {
        stream.post(Batch::new().write_memory(objects.bytes.clone())).unwrap();
    };
    first_post(
        "bytes",
        |_| (),
        bytes,
        |objects| {
            let mut found = [0; 1002];
            objects.plain.read(8000, &mut found);
            assert_eq!((found[0], found[1001], &found[1..1001]), (0, 0, &[7; 1000][..]));
        },
    );
}

#[test]
fn batches_of_many() {
    let prepare = |objects: &mut Objects| {
        let sends: Vec<_> = (0..20).map(|_| objects.left.prepare(objects.write()).unwrap()).collect();
        let waits: Vec<_> = (0..20).map(|_| objects.left.send_cq().prepare_wait().unwrap()).collect();
        let batch = sends.into_iter().fold(Batch::new(), Batch::send);
        let batch = waits.into_iter().fold(batch, Batch::wait);
        batch.write_value32(&objects.short, 9).write_memory(objects.bytes.clone())
    };
    let post = |_: &mut Objects, stream: &Stream<Mapped>, batch| {
        stream.post(batch).unwrap();
    };
    first_post("batch", prepare, post, |objects| {
        (0..20).for_each(|_| assert_eq!(poll(&objects.left.send_cq()).status, Ok(())));
        assert_eq!((objects.short.load(), &objects.target()[..4]), (9, &b"well"[..]));
    });
}

#[test]
fn persistent_requests() {
    let prepare = |objects: &mut Objects| {
        objects.source.write(0, &[3; LEN]);
    };
    let post = |objects: &mut Objects, stream: &Stream<Mapped>, ()| {
        let (send, receive) = &mut objects.requests;
        let mut list: [&mut dyn Request; 2] = [receive, send];
        start_all(&mut list, stream, LONG).unwrap();
        wait_all(&mut list, stream, LONG).unwrap();
    };
    first_post("start and wait", prepare, post, |objects| {
        assert_eq!(objects.requests.1.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert_eq!(objects.target(), [3; LEN]);
    });
}

#[test]
fn triggers_and_collectors() {
    let ticket = |objects: &mut Objects| {
        let send = objects.released.prepare(objects.write()).unwrap();
        (send, objects.released.send_cq().prepare_wait().unwrap())
    };
    let post = |_: &mut Objects, stream: &Stream<Mapped>, (send, wait)| {
        stream.post(Batch::new().send(send).wait(wait)).unwrap();
    };
    first_post("ticket", ticket, post, |objects| {
        assert_eq!(poll(&objects.released.send_cq()).status, Ok(()));
        assert_eq!(&objects.target()[..4], b"well");
    });
    let collect = |objects: &mut Objects| {
        objects.left.post_send(objects.write()).unwrap();
        objects.collector.collect([objects.left.send_cq().prepare_wait().unwrap()]).unwrap()
    };
    let post = |objects: &mut Objects, stream: &Stream<Mapped>, number| {
        stream.post(Batch::new().wait_value64(objects.collector.word(), Condition::Geq, number)).unwrap();
    };
    first_post("wait for a collector", collect, post, arrived);
}

#[test]
fn registers_out_of_reach_are_not_asked_for_again_and_the_proxy_rings() {
    let _alone = BEGINS_USE.write();
    let map = PeerMap::new(Counting { refuses_registers: true });
    let stream = Stream::new(Mapped::new(&map)).unwrap();
    let mut objects = Objects::new();
    let before = REGISTERED.get();
    stream.queue_send(&objects.left, objects.write()).unwrap();
    assert_eq!(REGISTERED.get() - before, 0);
    arrived(&mut objects);
    assert_eq!(stream.doorbells(&objects.left), Ok(Doorbells::Proxy { reason: "it needs root".to_owned() }));
}
