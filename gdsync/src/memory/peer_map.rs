//! The peer address map: the pages of this process that are in a device's address space, and their addresses there.
//!
//! With the address space's first stream, all exposed pages are registered, and from then on each page when it is
//! exposed ([`super::spans`]). If that fails, or the page was not exposed, an operation that names the page registers
//! it, or reports the error. Pages are unregistered after the last span that holds them is dropped. Unregistering may
//! have to wait until the device is idle, so the pages are *retired* first, together with the owner of their memory.
//! The map caches the device's answers, refusals too, as a query is a system call.

use crate::memory::spans::{AddressSpace, DroppedSpan, Span, SpanKind};
use crate::memory::{HostAddr, StreamAddr};
use gdsync_sys::host::page_size;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Registers pages in a device's address space.
pub(crate) trait Registrar: Send + Sync + 'static {
    fn register(&self, base: u64, len: u64, kind: SpanKind) -> Result<Registered, String>;
    /// Unregisters pages whose registration was `owned`. May block while the device is busy.
    fn unregister(&self, base: u64);
}

/// Pages in a device's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The device's address of the first byte.
    pub(crate) device: u64,
    /// True if gdsync registered them; false if the program had.
    pub(crate) owned: bool,
}

/// The reason why an address cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// No span holds it.
    Unknown,
    /// The device refuses its pages.
    Refused(String),
}

/// The map of one device context.
pub(crate) struct PeerMap<R: Registrar> {
    registrar: R,
    runs: RwLock<Runs>,
    /// Counts removed runs: earlier translations may be invalid after a change.
    epoch: AtomicU64,
    /// Number of the device's streams.
    streams: Mutex<u32>,
    this: Weak<PeerMap<R>>,
}

#[derive(Default)]
struct Runs {
    /// By first address; runs do not overlap.
    by_base: BTreeMap<u64, Run>,
    /// Runs that no span holds any more, but that are still registered. They keep their memory.
    retired: BTreeMap<u64, Run>,
    /// The runs that each span holds, by the span's id.
    held: HashMap<u64, HashSet<u64>>,
}

struct Run {
    len: u64,
    answer: Result<Registered, String>,
    /// True if only one span can hold it: an operation that names an address in it then holds that span.
    exclusive: bool,
    /// Number of spans that hold it.
    holders: u32,
    /// Dropped spans that held it, which keep the memory.
    gone: Vec<Arc<DroppedSpan>>,
}

impl Runs {
    fn around(&self, addr: u64, len: u64) -> Option<(u64, &Run)> {
        let (&base, run) = self.by_base.range(..=addr).next_back()?;
        (addr.checked_add(len)? <= base + run.len).then_some((base, run))
    }
}

impl Run {
    fn translate(&self, base: u64, addr: u64) -> Result<StreamAddr, MapError> {
        match &self.answer {
            Ok(registered) => Ok(StreamAddr::new(registered.device + (addr - base))),
            Err(reason) => Err(MapError::Refused(reason.clone())),
        }
    }
}

impl<R: Registrar> PeerMap<R> {
    pub(crate) fn new(registrar: R) -> Arc<Self> {
        Arc::new_cyclic(|this| PeerMap {
            registrar,
            runs: RwLock::default(),
            epoch: AtomicU64::new(0),
            streams: Mutex::new(0),
            this: this.clone(),
        })
    }

    /// A number that changes before translated memory is released.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the device's address of `len` bytes within one page.
    pub(crate) fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, MapError> {
        let (addr, len) = (addr.get(), len as u64);
        if let Some((base, run)) = self.runs.read().around(addr, len)
            && run.exclusive
        {
            return run.translate(base, addr);
        }
        let spans = Span::find(addr, len);
        let Some(span) = spans.first() else { return Err(MapError::Unknown) };
        let mut runs = self.runs.write();
        if runs.around(addr, len).is_none() {
            self.add_run(&mut runs, span, addr)?;
        }
        let Some((base, run)) = runs.around(addr, len) else { return Err(MapError::Unknown) };
        let translated = run.translate(base, addr);
        // The operation may mean any of the spans, so each holds the run.
        for span in &spans {
            self.hold(&mut runs, span, base);
        }
        drop(runs);
        translated
    }

    fn hold(&self, runs: &mut Runs, span: &Span, base: u64) {
        if runs.held.entry(span.id).or_default().insert(base) {
            if let Some(run) = runs.by_base.get_mut(&base) {
                run.holders += 1;
            }
            span.notify(self.this.clone() as Weak<dyn AddressSpace>);
        }
    }

    /// Adds a stream. The first stream registers all exposed pages.
    pub(crate) fn add_stream(&self) {
        let mut streams = self.streams.lock();
        *streams += 1;
        let is_first = *streams == 1;
        drop(streams);
        if is_first && let Some(this) = self.this.upgrade() {
            Span::begin_use(&this);
        }
    }

    /// Removes a stream. Without a stream, no page is registered.
    pub(crate) fn remove_stream(&self) {
        let mut streams = self.streams.lock();
        *streams -= 1;
        if *streams == 0 {
            Span::end_use(&(self.this.clone() as Weak<dyn AddressSpace>));
        }
    }

    /// Registers the part of a span around an address.
    fn add_run(&self, runs: &mut Runs, span: &Span, addr: u64) -> Result<(), MapError> {
        let (base, len) = span.granule(addr, page_size() as u64);
        if runs.retired.get(&base).is_some_and(|run| run.len == len) {
            // Still registered: its last span was dropped just now, and this is a new one.
            let revived = runs.retired.remove(&base);
            runs.by_base.extend(revived.map(|run| (base, run)));
            return Ok(());
        }
        let answer = self.registrar.register(base, len, span.kind);
        if let Err(reason) = &answer {
            tracing::debug!(?span, reason, "a device cannot reach pages");
            // A refusal of registers is permanent; one of memory may be temporary.
            if !matches!(span.kind, SpanKind::Registers { .. }) {
                return Err(MapError::Refused(reason.clone()));
            }
        }
        let exclusive = span.kind != SpanKind::Pages;
        runs.by_base.insert(base, Run { len, answer, exclusive, holders: 0, gone: Vec::new() });
        Ok(())
    }

    /// Unregisters retired pages. May block while the device is busy.
    pub(crate) fn collect(&self) {
        let retired = {
            let mut runs = self.runs.write();
            let retired = std::mem::take(&mut runs.retired);
            // Under the lock: a thread that names the same pages now must find them unregistered.
            retired.keys().for_each(|base| self.registrar.unregister(*base));
            retired
        };
        // Dropped outside the lock: the drop releases memory, and may take other locks.
        drop(retired);
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.runs.read().retired.is_empty()
    }
}

impl<R: Registrar> AddressSpace for PeerMap<R> {
    fn exposed(&self, span: &Span, addr: u64) {
        let mut runs = self.runs.write();
        // On a refusal, an operation that names the page asks again (except for registers), and gets the reason.
        if runs.around(addr, 1).is_none() && self.add_run(&mut runs, span, addr).is_err() {
            return;
        }
        let base = runs.around(addr, 1).map(|(base, _)| base);
        base.into_iter().for_each(|base| self.hold(&mut runs, span, base));
    }

    fn dropped(&self, span: u64, gone: &Arc<DroppedSpan>) {
        // Dropped after the lock is released: the drop may take other locks.
        let mut forgotten = Vec::new();
        let mut runs = self.runs.write();
        self.epoch.fetch_add(1, Ordering::Release);
        for base in runs.held.remove(&span).unwrap_or_default() {
            let Some(run) = runs.by_base.get_mut(&base) else { continue };
            run.gone.push(gone.clone());
            run.holders -= 1;
            if run.holders > 0 {
                continue;
            }
            match runs.by_base.remove(&base) {
                Some(run) if run.answer.as_ref().is_ok_and(|registered| registered.owned) => {
                    runs.retired.insert(base, run);
                }
                other => forgotten.extend(other),
            }
        }
        drop(runs);
        drop(forgotten);
    }
}

impl<R: Registrar> fmt::Debug for PeerMap<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMap").field("runs", &self.runs.read().by_base.len()).finish()
    }
}

#[cfg(test)]
mod tests;
