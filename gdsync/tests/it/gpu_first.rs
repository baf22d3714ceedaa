//! First posts on a real GPU register nothing: the memory that they name was registered when it was made. Reported as
//! skipped without a GPU. (`gdsync/src/stream/first_post_tests.rs` has a device without a GPU.)

use gdsync::batch::MemoryWrite;
use gdsync::memop::{Condition, Word32, Word64};
use gdsync::{Batch, CudaStream, PinnedMemory, Stream, WorkRequest};
use gdsync_test_support::gpu::{Rig, synchronize};
use gdsync_test_support::pair::{Pair, poll};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Counts the registrations of one thread, by the library's log.
#[derive(Clone, Default)]
struct Registrations(Arc<AtomicUsize>);

impl Visit for &Registrations {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" && format!("{value:?}") == "a GPU gets to know pages" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Subscriber for Registrations {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Registrations {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn post(stream: &Stream<CudaStream>, batch: Batch) {
    stream.post(batch).unwrap();
}

/// First posts of each kind, with the pair and the memory made before or after the stream.
fn first_posts(rig: &Rig, stream_is_first: bool) {
    let registrations = Registrations::default();
    tracing::subscriber::with_default(registrations.clone(), || {
        let early = stream_is_first.then(|| rig.stream());
        let pair = Pair::new();
        let memory = PinnedMemory::allocate(3 * 4096).unwrap();
        let (short, long) = (Word32::new(&memory, 0).unwrap(), Word64::new(&memory, 4096).unwrap());
        let bytes = MemoryWrite::new(&memory, 8000, &[7; 1000]).unwrap();
        let stream = early.unwrap_or_else(|| rig.stream());
        assert!(registrations.count() >= 3, "{}", registrations.count());
        let region = pair.open_region(8);
        let write = || WorkRequest::write_inline(b"12345678", region.remote());
        let send = pair.left.prepare(write()).unwrap();
        let wait = pair.left.send_cq().prepare_wait().unwrap();
        let before = registrations.count();
        post(&stream, Batch::new().send(send).wait(wait));
        stream.queue_send(&pair.left, write()).unwrap();
        post(&stream, Batch::new().write_value32(&short, 5).wait_value32(&short, Condition::Geq, 5));
        post(&stream, Batch::new().write_value64(&long, 6).wait_value64(&long, Condition::Eq, 6));
        post(&stream, Batch::new().write_memory(bytes));
        assert_eq!(registrations.count() - before, 0, "stream first: {stream_is_first}");
        synchronize(&stream);
        (0..2).for_each(|_| assert_eq!(poll(&pair.left.send_cq()).status, Ok(())));
        assert_eq!((short.load(), long.load()), (5, 6));
        let mut found = [0; 1002];
        memory.read(7999, &mut found);
        assert_eq!((found[0], &found[1..1001], found[1001]), (0, &[7; 1000][..], 0));
    });
}

#[test]
fn first_posts_on_a_gpu_register_nothing() {
    let Some(rig) = Rig::new("first_posts_on_a_gpu_register_nothing") else { return };
    for stream_is_first in [true, false] {
        first_posts(&rig, stream_is_first);
    }
}
