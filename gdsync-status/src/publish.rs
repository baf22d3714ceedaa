//! The registered sources, and the process's status.

use crate::server::Server;
use crate::status::{MOST_CARDS, MOST_STREAMS, Status};
use crate::wire::encode;
use gdsync_sys::contain::contain;
use gdsync_sys::host::monotonic;
use gdsync_sys::launcher::launcher_rank;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// `0` or `off`: the process has no status thread and answers nothing.
pub const STATUS_VARIABLE: &str = "GDSYNC_STATUS";

/// Total time for which sources may wait for locks of other threads.
const PATIENCE: Duration = Duration::from_millis(200);

/// A contributor to the status. The status thread calls it while the process runs, and must not delay the process:
/// locks that are held for longer than [`Kept::patience`] are reported as busy. It must not publish a source.
pub trait Source: Send + Sync {
    /// Adds its part of the status.
    fn add_to(&self, status: &mut Status, kept: &mut Kept);
}

/// References that a source has used and wants to drop: they are dropped after all sources have been queried, because
/// dropping one may unpublish a source.
pub struct Kept {
    used: Vec<Arc<dyn Any + Send + Sync>>,
    until: Instant,
}

impl Kept {
    fn new() -> Self {
        Kept { used: Vec::new(), until: Instant::now() + PATIENCE }
    }

    /// Keeps a reference until then.
    pub fn keep(&mut self, used: Arc<dyn Any + Send + Sync>) {
        self.used.push(used);
    }

    /// Returns how long a source may still wait for a lock: `most`, or the rest of the total time of all sources.
    pub fn patience(&self, most: Duration) -> Duration {
        self.until.saturating_duration_since(Instant::now()).min(most)
    }
}

/// A registration of a source. Dropping it ends the registration, after waiting for a running query. In the child of
/// a fork it does nothing: the source is its parent's.
#[derive(Debug)]
pub struct Published(Option<Key>);

#[derive(Clone, Copy, Debug)]
struct Key {
    process: u32,
    number: u64,
}

#[derive(Default)]
struct Publisher {
    next: u64,
    sources: BTreeMap<u64, Arc<dyn Source>>,
    server: Option<Server>,
}

/// The sources of one process. The child of a fork has its own registry: in the copy of its parent's, a thread that
/// does not exist in the child may hold the lock.
struct Registry {
    process: u32,
    publisher: Mutex<Publisher>,
    before: *const Registry,
}

/// The newest registry. Registries are never freed: there is one for each fork whose child publishes something.
static REGISTRIES: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

/// Returns this process's registry, if it has published anything.
fn registered() -> Option<&'static Mutex<Publisher>> {
    find(REGISTRIES.load(Ordering::Acquire), std::process::id())
}

fn find(newest: *const Registry, process: u32) -> Option<&'static Mutex<Publisher>> {
    // SAFETY: registries come from `Box::into_raw` below and are never freed; only the part behind the lock changes.
    let registry = |at: *const Registry| unsafe { at.as_ref::<'static>() };
    let mut all = std::iter::successors(registry(newest), |one| registry(one.before));
    all.find(|one| one.process == process).map(|one| &one.publisher)
}

/// Returns this process's registry, which is created if necessary.
fn registry() -> &'static Mutex<Publisher> {
    let process = std::process::id();
    loop {
        let before = REGISTRIES.load(Ordering::Acquire);
        if let Some(found) = find(before, process) {
            return found;
        }
        let made = Box::into_raw(Box::new(Registry { process, publisher: Mutex::default(), before }));
        if REGISTRIES.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: the pointer is from `Box::into_raw` above, and the failed exchange has not published it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Registers a source. The first source starts the status thread; if it cannot start, the process is not visible, and
/// nothing else changes.
pub fn publish(source: Arc<dyn Source>) -> Published {
    if cfg!(miri) || is_off() {
        return Published(None);
    }
    let mut publisher = registry().lock();
    let mut refused = None;
    if publisher.server.is_none() {
        match Server::start(|| encode(&own())) {
            Ok(server) => publisher.server = Some(server),
            Err(error) => refused = Some(error),
        }
    }
    publisher.next += 1;
    let number = publisher.next;
    publisher.sources.insert(number, source);
    drop(publisher);
    if let Some(error) = refused {
        tracing::debug!(%error, "this process cannot be seen by gdsync top");
    }
    Published(Some(Key { process: std::process::id(), number }))
}

fn is_off() -> bool {
    std::env::var_os(STATUS_VARIABLE).is_some_and(|value| value == "0" || value == "off")
}

impl Drop for Published {
    fn drop(&mut self) {
        let Some(key) = self.0 else { return };
        if key.process != std::process::id() {
            return;
        }
        let Some(registry) = registered() else { return };
        let mut publisher = registry.lock();
        let source = publisher.sources.remove(&key.number);
        let server = if publisher.sources.is_empty() { publisher.server.take() } else { None };
        drop(publisher);
        drop((source, server));
    }
}

/// Returns this process's current status.
pub fn own() -> Status {
    let mut kept = Kept::new();
    let mut status = Status { at_ns: monotonic(), rank: launcher_rank(), ..Status::default() };
    let mut panics = Vec::new();
    if let Some(registry) = registered() {
        let publisher = registry.lock();
        for source in publisher.sources.values() {
            // A panicking source must not affect the process.
            panics.extend(contain(|| source.add_to(&mut status, &mut kept)).err());
        }
    }
    drop(kept);
    for panic in panics {
        tracing::error!(panic, "what reports the status of gdsync panicked");
    }
    status.card_count = status.cards.len() as u32;
    status.cards.truncate(MOST_CARDS);
    status.stream_count = status.streams.len() as u32;
    status.streams.sort_by_key(|stream| stream.number);
    status.streams.truncate(MOST_STREAMS);
    status
}
