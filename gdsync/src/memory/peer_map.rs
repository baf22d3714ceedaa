//! The peer address map: which of this process' pages a device's address space has, and where.
//!
//! Pages are registered when an operation first names them, and forgotten after the last span that holds them is gone. To
//! unregister them may have to wait until the device is idle, so they are *retired* first, with what keeps their memory
//! mapped. What a device answers is kept, refusals too: asking it costs a system call.

use super::page_size;
use super::spans::{Gone, Kind, Span, Watcher};
use super::{HostAddr, StreamAddr};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// How a device's address space takes pages in.
pub(crate) trait Registrar: Send + Sync + 'static {
    /// Maps whole pages.
    fn register(&self, base: u64, len: u64, kind: Kind) -> Result<Registered, String>;
    /// Counterpart, for pages whose registration said `owned`. May block while the device is busy.
    fn unregister(&self, base: u64);
    /// Pages were retired: [`PeerMap::collect`] has something to do.
    fn retired(&self);
}

/// Pages that a device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    /// The device's address of the first byte.
    pub(crate) device: u64,
    /// Registered by us, not by the program before.
    pub(crate) owned: bool,
}

/// Why an address cannot be translated.
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
    /// Counts runs that went: what was translated before may not hold any more.
    epoch: AtomicU64,
    this: Weak<PeerMap<R>>,
}

#[derive(Default)]
struct Runs {
    /// By first address; runs do not overlap.
    by_base: BTreeMap<u64, Run>,
    /// Runs that no span holds any more, and what keeps their memory until the device has forgotten them.
    retired: Vec<(u64, Arc<Gone>)>,
    /// Which runs each span holds, by the span's number.
    held: HashMap<u64, Vec<u64>>,
}

struct Run {
    len: u64,
    answer: Result<Registered, String>,
    /// Only one span can hold it: then whoever names an address in it holds it.
    exclusive: bool,
    /// Spans that hold it.
    holders: u32,
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
            this: this.clone(),
        })
    }

    /// Changes before memory goes that was translated.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Runs> {
        // A panic while the lock was held left maps that are consistent after each single step.
        self.runs.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Runs> {
        self.runs.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The device's address of `len` bytes, which lie within one page.
    pub(crate) fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, MapError> {
        let (addr, len) = (addr.get(), len as u64);
        if let Some((base, run)) = self.read().around(addr, len)
            && run.exclusive
        {
            return run.translate(base, addr);
        }
        let span = Span::find(addr, len).ok_or(MapError::Unknown)?;
        self.hold(&span, addr, len)
    }

    fn hold(&self, span: &Span, addr: u64, len: u64) -> Result<StreamAddr, MapError> {
        let mut runs = self.write();
        if runs.around(addr, len).is_none() {
            let (base, granule) = span.granule(addr, page_size() as u64);
            let answer = self.registrar.register(base, granule, span.kind());
            if let Err(reason) = &answer {
                tracing::debug!(?span, reason, "a device cannot reach pages");
            }
            let exclusive = span.kind() != Kind::Pages;
            runs.by_base.insert(base, Run { len: granule, answer, exclusive, holders: 0 });
        }
        let Some((base, run)) = runs.around(addr, len) else { return Err(MapError::Unknown) };
        let translated = run.translate(base, addr);
        let held = runs.held.entry(span.id()).or_default();
        if !held.contains(&base) {
            held.push(base);
            if let Some(run) = runs.by_base.get_mut(&base) {
                run.holders += 1;
            }
            span.watch(self.this.clone() as Weak<dyn Watcher>);
        }
        translated
    }
}

impl<R: Registrar> PeerMap<R> {
    /// Unregisters what was retired. May block while the device is busy.
    pub(crate) fn collect(&self) {
        let retired = std::mem::take(&mut self.write().retired);
        retired.iter().for_each(|(base, _)| self.registrar.unregister(*base));
        // Now the memory goes; outside the lock, as anything may hang on it.
        drop(retired);
    }

    /// True where [`Self::collect`] has something to do.
    pub(crate) fn has_retired(&self) -> bool {
        !self.read().retired.is_empty()
    }

    /// Lets go of a run that a span held. True where it has to be unregistered.
    fn release(runs: &mut Runs, base: u64) -> bool {
        let Some(run) = runs.by_base.get_mut(&base) else { return false };
        run.holders -= 1;
        if run.holders > 0 {
            return false;
        }
        let owned = run.answer.as_ref().is_ok_and(|registered| registered.owned);
        runs.by_base.remove(&base);
        owned
    }
}

impl<R: Registrar> Watcher for PeerMap<R> {
    fn gone(&self, span: u64, gone: Option<Arc<Gone>>) {
        let mut runs = self.write();
        self.epoch.fetch_add(1, Ordering::Release);
        for base in runs.held.remove(&span).unwrap_or_default() {
            if !Self::release(&mut runs, base) {
                continue;
            }
            match &gone {
                Some(gone) => runs.retired.push((base, gone.clone())),
                // The program may unmap its memory at once, so this cannot wait.
                None => self.registrar.unregister(base),
            }
        }
        drop(runs);
        drop(gone);
        self.registrar.retired();
    }
}

impl<R: Registrar> fmt::Debug for PeerMap<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMap").field("runs", &self.read().by_base.len()).finish()
    }
}

#[cfg(test)]
#[path = "peer_map_tests.rs"]
mod tests;
