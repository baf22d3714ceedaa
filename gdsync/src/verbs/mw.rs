//! Memory windows: parts of memory regions that a queue pair opens to its peer, and closes again.

mod state;

use self::state::{Binding, WindowState};
use crate::verbs::{Error, MemoryRegionInner, ProtectionDomain, ProtectionDomainInner, RemoteMemory, call};
use gdsync_sys::prm::umr::KeyAccess;
use gdsync_sys::prm::window::MAX_WINDOW;
use gdsync_sys::verbs::{self, ibv_mw};
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::Arc;

bitflags::bitflags! {
    /// What a remote side may do through a [`MemoryWindow`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct WindowAccess: u32 {
        /// Remote RDMA writes; the region needs [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE).
        const REMOTE_WRITE = verbs::IBV_ACCESS_REMOTE_WRITE;
        /// Remote RDMA reads.
        const REMOTE_READ = verbs::IBV_ACCESS_REMOTE_READ;
        /// Remote atomics; the region needs [`Access::LOCAL_WRITE`](crate::Access::LOCAL_WRITE).
        const REMOTE_ATOMIC = verbs::IBV_ACCESS_REMOTE_ATOMIC;
        /// The first byte of the window has the address 0, and not that of the region's memory.
        const ZERO_BASED = verbs::IBV_ACCESS_ZERO_BASED;
    }
}

impl WindowAccess {
    /// The card writes to the region.
    pub(crate) fn writes(self) -> bool {
        self.intersects(WindowAccess::REMOTE_WRITE | WindowAccess::REMOTE_ATOMIC)
    }

    /// The rights as work requests have them.
    pub(crate) fn of_key(self) -> KeyAccess {
        let rights = [
            (WindowAccess::REMOTE_WRITE, KeyAccess::REMOTE_WRITE),
            (WindowAccess::REMOTE_READ, KeyAccess::REMOTE_READ),
            (WindowAccess::REMOTE_ATOMIC, KeyAccess::ATOMIC),
        ];
        rights.into_iter().filter(|(right, _)| self.contains(*right)).map(|(_, right)| right).collect()
    }
}

/// Why a memory window cannot be bound or invalidated. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The window belongs to another protection domain than the queue pair.
    #[error(
        "memory window {rkey:#x} belongs to another protection domain than queue pair {qpn:#x}: make it there"
    )]
    OtherDomain {
        /// Key of the window.
        rkey: u32,
        /// The queue pair.
        qpn: u32,
    },
    /// No window can be bound to the region.
    #[error(
        "memory region {lkey:#x} was registered without Access::MW_BIND, which GPU memory as a dma-buf never has: register it with that right, or let its own key be used"
    )]
    NoBindAccess {
        /// Key of the region.
        lkey: u32,
    },
    /// The window would have no bytes, or too many.
    #[error("a memory window is to have {given} bytes: bind it to 1 to {limit}")]
    Length {
        /// Bytes given.
        given: u64,
        /// Bytes that a window has at most.
        limit: u64,
    },
    /// The window is bound, or another queue pair is about to invalidate it.
    #[error(
        "memory window {rkey:#x} is bound by queue pair {qpn:#x}, or its invalidation there has not completed: invalidate it there (WorkRequest::invalidate) and poll the completion, or make another window"
    )]
    InUse {
        /// Key of the window.
        rkey: u32,
        /// The queue pair that has bound it.
        qpn: u32,
    },
    /// Another queue pair has bound the window.
    #[error(
        "memory window {rkey:#x} is bound by queue pair {owner:#x}, and not by {qpn:#x}: invalidate it on that queue pair"
    )]
    OtherQueuePair {
        /// Key of the window.
        rkey: u32,
        /// The queue pair that has bound it.
        owner: u32,
        /// The queue pair that was to invalidate it.
        qpn: u32,
    },
    /// The window is not bound.
    #[error("memory window {rkey:#x} is not bound: bind it first (WorkRequest::bind)")]
    NotBound {
        /// Key of the window.
        rkey: u32,
    },
    /// A queue pair failed with a bind or an invalidation of the window.
    #[error(
        "a queue pair failed with a change of memory window {rkey:#x}, which may be bound or not: drop it, and make another"
    )]
    Unknown {
        /// Key of the window.
        rkey: u32,
    },
}

/// A memory window of type 2: a part of a [`MemoryRegion`](crate::MemoryRegion) that work requests of a
/// queue pair open to its peer ([`WorkRequest::bind`](crate::WorkRequest::bind)) and close again
/// ([`WorkRequest::invalidate`](crate::WorkRequest::invalidate)). Both cost a work request, where
/// registering memory costs a system call.
///
/// A cheap handle; clones name the same window. Only requests that arrive at the queue pair that has
/// bound it may use it. Each bind gives it another key. The window keeps its region until the
/// completion of a later change has been polled, or until the window is gone. It is gone when the last
/// handle is dropped and the requests that name it have completed; a window that is bound then is
/// closed.
///
/// A peer's request with the key of a closed window fails with
/// [`Syndrome::RemoteAccess`](crate::queue::Syndrome::RemoteAccess), and both queue pairs fail, as
/// with any key that is not valid. One that the card is performing when the window is closed may
/// still be performed.
///
/// Windows of type 1 are not there: libmlx5's `ibv_bind_mw` posts to the send queue itself, which this
/// library drives.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair, WindowAccess, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device = Device::software()?;
/// # let pd = ProtectionDomain::new(&device)?;
/// # let (left, right) = (QueuePair::new(&pd, Default::default())?, QueuePair::new(&pd, Default::default())?);
/// # left.connect(&right.endpoint()?, Default::default())?;
/// # right.connect(&left.endpoint()?, Default::default())?;
/// # let done = |side: &QueuePair| loop {
/// #     if let Some(completion) = side.send_cq().poll().unwrap() {
/// #         break completion.status;
/// #     }
/// # };
/// // The region's own key gives the peer no right.
/// let region = MemoryRegion::allocate(&pd, 4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = MemoryWindow::new(&pd)?;
/// right.post_send(WorkRequest::bind(&window, &region.slice(64..128)?, WindowAccess::REMOTE_WRITE))?;
/// done(&right)?;
/// let opened = window.remote().expect("it is bound"); // for the peer
/// left.post_send(WorkRequest::write_inline(b"hello", opened.slice(..5)?))?;
/// done(&left)?;
/// right.post_send(WorkRequest::invalidate(&window))?;
/// done(&right)?;
/// left.post_send(WorkRequest::write_inline(b"again", opened.slice(..5)?))?;
/// assert!(done(&left).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    pub(crate) inner: Arc<WindowInner>,
}

#[derive(Debug)]
pub(crate) struct WindowInner {
    raw: NonNull<ibv_mw>,
    /// The key without its last 8 bits, which each bind chooses.
    key: u32,
    state: Mutex<WindowState<Arc<MemoryRegionInner>>>,
    pub(crate) pd: Arc<ProtectionDomainInner>,
}

// SAFETY: libibverbs allows a memory window to be used from any thread.
unsafe impl Send for WindowInner {}
// SAFETY: as above.
unsafe impl Sync for WindowInner {}

impl MemoryWindow {
    /// Makes a window, which is not bound.
    ///
    /// # Errors
    /// [`Error::Verbs`] where the provider refuses: EOPNOTSUPP where it has no windows.
    pub fn new(pd: &ProtectionDomain) -> Result<Self, Error> {
        let pd = pd.inner.clone();
        // SAFETY: the domain is allocated as long as `pd` lives.
        let raw = unsafe { (pd.device.api.alloc_mw)(pd.raw(), verbs::IBV_MW_TYPE_2) };
        let raw = call::pointer("ibv_alloc_mw", raw, || "of type 2".to_owned())?;
        // SAFETY: a window just returned by the provider is a valid `ibv_mw`.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        let state = Mutex::new(WindowState::new(rkey as u8));
        Ok(MemoryWindow { inner: Arc::new(WindowInner { raw, key: rkey & !0xff, state, pd }) })
    }

    /// What the newest bind opens to the peer, from its preparation on; none where the window is not
    /// bound, or its invalidation is prepared.
    ///
    /// A request of the peer may arrive too early where the peer learns the key before the bind has
    /// completed. A send that is posted to the same queue pair behind the bind may carry the key: the
    /// card begins it after the bind.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let state = self.inner.state.lock();
        let (tag, binding) = state.bound()?;
        Some(RemoteMemory { addr: binding.addr, len: binding.len, rkey: self.inner.key_of(tag) })
    }

    /// Takes note that the peer has invalidated the window by a send:
    /// [`Completion::invalidated`](crate::Completion::invalidated) of the receive has the key. The
    /// window can be bound again then. False where the key is not the one of the newest bind.
    pub fn note_invalidated(&self, rkey: u32) -> bool {
        rkey & !0xff == self.inner.key && self.inner.state.lock().closed_by_peer(rkey as u8)
    }
}

impl WindowInner {
    fn key_of(&self, tag: u8) -> u32 {
        self.key | u32::from(tag)
    }

    /// The error of a queue pair of another domain.
    pub(crate) fn other_domain(&self, qpn: u32) -> WindowError {
        WindowError::OtherDomain { rkey: self.key_of(self.state.lock().tag()), qpn }
    }

    /// Begins a bind by a queue pair. Returns the change, with the key before it, and the last 8 bits of
    /// the new one.
    pub(crate) fn bind(
        self: &Arc<Self>,
        qpn: u32,
        region: &Arc<MemoryRegionInner>,
        addr: u64,
        len: u64,
    ) -> Result<(WindowChange, u32, u8), WindowError> {
        if !(1..=MAX_WINDOW).contains(&len) {
            return Err(WindowError::Length { given: len, limit: MAX_WINDOW });
        }
        let mut state = self.state.lock();
        let rkey = self.key_of(state.tag());
        state.check_closed(qpn).map_err(|refusal| refusal.of(rkey, qpn))?;
        let number = state.bind(qpn, Binding { addr, len, region: region.clone() });
        Ok((WindowChange { window: self.clone(), number }, rkey, state.tag()))
    }

    /// Begins an invalidation by a queue pair. Returns the change, with the window's key.
    pub(crate) fn invalidate(self: &Arc<Self>, qpn: u32) -> Result<(WindowChange, u32), WindowError> {
        let mut state = self.state.lock();
        let rkey = self.key_of(state.tag());
        state.check_bound_by(qpn).map_err(|refusal| refusal.of(rkey, qpn))?;
        let number = state.close(qpn);
        Ok((WindowChange { window: self.clone(), number }, rkey))
    }
}

impl Drop for WindowInner {
    fn drop(&mut self) {
        // SAFETY: allocated by us, and no work request names it any more: they hold an `Arc` of this.
        // The regions that it may be bound to are in `state`, which is dropped after this.
        call::on_drop("ibv_dealloc_mw", unsafe { (self.pd.device.api.dealloc_mw)(self.raw.as_ptr()) });
    }
}

/// A bind or an invalidation in a send queue. It keeps the window.
#[derive(Clone, Debug)]
pub(crate) struct WindowChange {
    window: Arc<WindowInner>,
    number: u64,
}

impl WindowChange {
    /// The card has performed it.
    pub(crate) fn finish(&self) {
        self.window.state.lock().finish(self.number);
    }

    /// The card may have performed it, and performs nothing more of its queue pair.
    pub(crate) fn doubt(&self) {
        self.window.state.lock().doubt(self.number);
    }

    /// It was taken back. `gone`: the card has never had it.
    pub(crate) fn cancel(&self, gone: bool) {
        self.window.state.lock().cancel(self.number, gone);
    }
}
