//! A GPU context: its capabilities, its map of this process' memory, and when memory is unregistered from it.

use crate::cuda::copier::Copier;
use crate::cuda::gate::{Busy, Gate, Submitting, is_release_deferred};
#[cfg(feature = "software-card")]
use crate::cuda::peer_copies::PendingCopies;
use crate::cuda::{CudaError, GpuCapabilities, RelaxedCapture, StreamHandle, check};
use crate::memory::peer_map::{MapError, PeerMap, Registered, Registrar};
use crate::memory::spans::SpanKind;
use crate::memory::{HostAddr, StreamAddr, has_unfinished};
use cudarc::driver::{CudaContext, sys};
use gdsync_gdr::driver::{self, DriverError};
use gdsync_gdr::{Context, Entered, Gpu};
use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

pub(super) fn not_enabled(gpu: i32, peer: i32) -> CudaError {
    let reason = "it was not enabled (gdsync::cuda::enable_peer_access)".to_owned();
    CudaError::NoPeerAccess { gpu, peer, reason }
}

/// The contexts whose memory a context reaches, and the GPUs that reach its memory.
#[derive(Default)]
pub(super) struct Peers {
    /// Ids of the contexts whose memory is reached.
    pub(super) reached: RwLock<BTreeSet<u64>>,
    /// The GPUs that reach the physical memory of this context. The lock is held while such memory is allocated and
    /// while a GPU is added, so that neither misses the other. The list of all GPU memory is locked inside it.
    pub(super) readers: Mutex<BTreeSet<i32>>,
}

impl Peers {
    pub(super) fn reaches(&self, context: u64) -> bool {
        self.reached.read().contains(&context)
    }
}

/// Host pages in a context's address space.
struct Pages {
    raw: Context,
    ordinal: i32,
    peers: Arc<Peers>,
}

/// How many contexts have each range of pages that gdsync registered, by first address. Registered pages are visible
/// in every context (`PORTABLE`): the first context registers them, and the last unregisters them.
static REGISTERED: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

pub(super) fn is_registered_by_us(base: u64) -> bool {
    REGISTERED.lock().contains_key(&base)
}

impl Registrar for Pages {
    fn register(&self, base: u64, len: u64, kind: SpanKind) -> Result<Registered, String> {
        if let SpanKind::Gpu { ordinal, context, address } = kind {
            return (ordinal == self.ordinal || self.peers.reaches(context))
                .then_some(Registered { device: address, owned: false })
                .ok_or_else(|| not_enabled(self.ordinal, ordinal).to_string());
        }
        let gpu = Gpu::from_device(self.ordinal);
        let _entered = self.raw.enter().map_err(|error| format!("{gpu}: {error}"))?;
        let _mode = RelaxedCapture::new();
        let registers = matches!(kind, SpanKind::Registers { .. });
        let is_mmio = kind == SpanKind::Registers { mmio: true };
        let mut known = REGISTERED.lock();
        let owned = known.contains_key(&base)
            || register_pages(base, len, is_mmio).map_err(|error| match error {
                CudaError::Driver(DriverError::Call { call, code, name }) if registers => format!(
                    "{gpu}: {call} of a page of doorbell registers failed: {name} ({code}); it needs root, or the NVIDIA driver's registry key PeerMappingOverride=1"
                ),
                other => format!("{gpu}: {other}"),
            })?;
        if owned {
            *known.entry(base).or_default() += 1;
        }
        tracing::debug!(base, len, ?kind, ordinal = self.ordinal, "a GPU gets to know pages");
        drop(known);
        let device = |at: u64| {
            let mut device = 0;
            // SAFETY: `device` is a valid place; the pages are registered.
            let result =
                unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, at as *mut libc::c_void, 0) };
            check("cuMemHostGetDevicePointer", result).map(|()| device)
        };
        let ends = device(base).and_then(|first| Ok((first, device(base + len - 1)?)));
        match ends {
            Ok((first, last)) if last == first + len - 1 => Ok(Registered { device: first, owned }),
            other => {
                if owned {
                    self.unregister(base);
                }
                Err(match other {
                    Err(error) if !owned => format!(
                        "{gpu}: {error}: the program has registered it for one context only, where it needs CU_MEMHOSTREGISTER_PORTABLE"
                    ),
                    Err(error) => format!("{gpu}: {error}"),
                    Ok(_) => "only a part of it is registered".to_owned(),
                })
            }
        }
    }

    fn unregister(&self, base: u64) {
        let mut known = REGISTERED.lock();
        let Some(count) = known.get_mut(&base) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        known.remove(&base);
        let Err(error) = unregister_pages(self.raw, base) else { return };
        // A lost context has forgotten everything, but the others still have the pages.
        let others = GpuContext::all();
        let mut others = others.iter().filter(|other| other.raw != self.raw);
        if !others.any(|other| unregister_pages(other.raw, base).is_ok()) {
            tracing::debug!(%error, base, "pages were not unregistered");
        }
    }
}

fn unregister_pages(context: Context, base: u64) -> Result<(), CudaError> {
    let _entered = context.enter()?;
    let _mode = RelaxedCapture::new();
    // SAFETY: registered by us, once; no further context is asked after the first that succeeds.
    check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(base as *mut libc::c_void) })
}

/// Registers pages. Returns false if the program had registered them.
fn register_pages(base: u64, len: u64, mmio: bool) -> Result<bool, CudaError> {
    let ordinary = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
    let register = |flags: u32| {
        // SAFETY: a live span keeps the pages mapped. They are unregistered before they are unmapped.
        unsafe { sys::cuMemHostRegister_v2(base as *mut libc::c_void, len as usize, flags) }
    };
    let mut result =
        if mmio { register(ordinary | sys::CU_MEMHOSTREGISTER_IOMEMORY) } else { register(ordinary) };
    if mmio && result == sys::CUresult::CUDA_ERROR_INVALID_VALUE {
        // Not MMIO: the system's libraries map ordinary memory when they drive a software card.
        result = register(ordinary);
    }
    if result == sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED {
        return Ok(false);
    }
    check("cuMemHostRegister", result).map(|()| true)
}

/// The state of one context. It stays for the life of the process, and keeps the context.
pub(crate) struct GpuContext {
    /// The driver's id of the context, which is never reused.
    pub(crate) id: u64,
    pub(crate) raw: Context,
    pub(crate) ordinal: i32,
    pub(crate) capabilities: GpuCapabilities,
    map: Arc<PeerMap<Pages>>,
    pub(super) peers: Arc<Peers>,
    /// Open while operations may be submitted. Closed during calls that wait for the GPU: they must find it idle, and
    /// no other work may be submitted meanwhile.
    gate: Gate,
    streams: Mutex<Vec<Weak<StreamHandle>>>,
    /// Calls that wait for the GPU.
    deferred: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    copier: Mutex<Option<Copier>>,
    /// Copies of software cards. Locked after `copier`.
    #[cfg(feature = "software-card")]
    pub(super) peer_copies: Mutex<PendingCopies>,
    /// Objects that the driver loaded for the first stream ([`Self::at_first_stream`]).
    loaded: OnceLock<Box<dyn Any + Send + Sync>>,
    _owner: Option<Arc<CudaContext>>,
}

/// All contexts, by the driver's id.
static CONTEXTS: Mutex<BTreeMap<u64, Arc<GpuContext>>> = Mutex::new(BTreeMap::new());

impl GpuContext {
    /// The state of a context of cudarc, which then lives as long as the process.
    pub(crate) fn of(context: &Arc<CudaContext>) -> Result<Arc<Self>, CudaError> {
        driver::initialise()?;
        // SAFETY: `find_or_make` keeps the context.
        Self::find_or_make(unsafe { Context::from_raw(context.cu_ctx()) }, Some(context))
    }

    /// The state of a raw context.
    ///
    /// # Safety
    /// The context is alive, and outlives all memory that is mapped into it.
    pub(crate) unsafe fn of_raw(context: sys::CUcontext) -> Result<Arc<Self>, CudaError> {
        driver::initialise()?;
        // SAFETY: the caller's.
        Self::find_or_make(unsafe { Context::from_raw(context) }, None)
    }

    fn find_or_make(raw: Context, owner: Option<&Arc<CudaContext>>) -> Result<Arc<Self>, CudaError> {
        let mut id = 0;
        // SAFETY: the context is alive (the caller's), `id` is a valid place.
        check("cuCtxGetId", unsafe { sys::cuCtxGetId(raw.as_raw(), &mut id) })?;
        let mut contexts = CONTEXTS.lock();
        if let Some(known) = contexts.get(&id) {
            return Ok(known.clone());
        }
        let gpu = raw.gpu()?;
        let device = gpu.device();
        keep_primary(raw, device)?;
        let capabilities = GpuCapabilities::read(gpu)?;
        let peers = Arc::new(Peers::default());
        let made = Arc::new(GpuContext {
            id,
            raw,
            ordinal: device,
            capabilities,
            map: PeerMap::new(Pages { raw, ordinal: device, peers: peers.clone() }),
            peers,
            gate: Gate::new(),
            streams: Mutex::default(),
            deferred: Mutex::default(),
            copier: Mutex::default(),
            #[cfg(feature = "software-card")]
            peer_copies: Mutex::default(),
            loaded: OnceLock::new(),
            _owner: owner.cloned(),
        });
        tracing::debug!(device, ?capabilities, "a GPU");
        contexts.insert(id, made.clone());
        Ok(made)
    }

    fn all() -> Vec<Arc<GpuContext>> {
        CONTEXTS.lock().values().cloned().collect()
    }

    pub(crate) fn gpu(&self) -> Gpu {
        Gpu::from_device(self.ordinal)
    }

    /// Names the GPU in an error of the driver.
    #[inline]
    pub(crate) fn named<T>(&self, result: Result<T, CudaError>) -> Result<T, CudaError> {
        result.map_err(|error| match error {
            CudaError::Driver(error) => CudaError::OnGpu { gpu: self.ordinal, error },
            other => other,
        })
    }

    pub(crate) fn enter(&self) -> Result<Entered, CudaError> {
        self.named(self.raw.enter().map_err(CudaError::from))
    }

    /// Marks the stream as submitting, for the life of the returned value.
    #[inline]
    pub(crate) fn submitting<'a>(&self, stream: &'a Busy) -> Submitting<'a> {
        self.gate.enter(stream)
    }

    /// Returns the GPU's address of host memory within one page.
    pub(crate) fn translate(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, CudaError> {
        self.look_up(addr, len).map_err(|error| CudaError::Unreachable {
            gpu: self.ordinal,
            addr,
            reason: match error {
                MapError::Unknown => "it is no memory that gdsync knows".to_owned(),
                MapError::Refused(reason) => reason,
            },
        })
    }

    /// See [`crate::memop::MemOpStream::epoch`].
    pub(crate) fn epoch(&self) -> u64 {
        self.map.epoch()
    }

    /// As [`Self::translate`], with the map's own error.
    pub(crate) fn look_up(&self, addr: HostAddr, len: usize) -> Result<StreamAddr, MapError> {
        self.map.translate(addr, len)
    }

    /// Adds a stream, whose work keeps the GPU from counting as idle. The first one registers all exposed pages.
    pub(crate) fn add_stream(&self, stream: &Arc<StreamHandle>) {
        let mut streams = self.streams.lock();
        streams.retain(|known| known.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
        drop(streams);
        self.map.add_stream();
    }

    /// Calls `load` once in the context's life, on gdsync's stream, with the context current. The context keeps the
    /// result.
    pub(crate) fn at_first_stream<T: Send + Sync + 'static>(
        self: &Arc<Self>,
        load: impl FnOnce(sys::CUstream) -> Result<T, CudaError>,
    ) -> Result<(), CudaError> {
        if self.loaded.get().is_some() {
            return Ok(());
        }
        self.with_copier(|copier| {
            // The copier's lock lets in one thread at a time.
            if self.loaded.get().is_none() {
                let _ = self.loaded.set(Box::new(load(copier.stream())?));
            }
            Ok(())
        })
    }

    /// Calls `copy` with the context's copier and the context current.
    pub(crate) fn with_copier<T>(
        self: &Arc<Self>,
        copy: impl FnOnce(&mut Copier) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let _entered = self.enter()?;
        let _mode = RelaxedCapture::new();
        let mut place = self.copier.lock();
        let mut copier = match place.take() {
            Some(copier) => copier,
            None => Copier::new(|addr, len| self.translate(addr, len))?,
        };
        let result = copy(&mut copier);
        *place = Some(copier);
        self.named(result)
    }

    /// Makes the driver assign a channel to a new stream ([`Copier::claim_channel`]). A stream that has work has a
    /// channel already, and default streams have none to themselves.
    pub(crate) fn claim_channel(self: &Arc<Self>, stream: &StreamHandle) {
        if stream.is_default() {
            return;
        }
        // Entered before the copier's lock: a thread that waits for the gate must not hold that lock.
        let _submitting = self.submitting(&stream.busy);
        let claimed = self.with_copier(|copier| {
            if stream.query()? {
                // SAFETY: the stream is alive (the caller of `CudaStream`'s constructor), and `query` refuses one that is being captured.
                unsafe { copier.claim_channel(stream.raw) };
            }
            Ok(())
        });
        if let Err(error) = claimed {
            tracing::debug!(%error, "a stream claims its channel with its first post");
        }
    }

    /// Defers a call that waits for the GPU until the GPU is idle.
    pub(crate) fn defer(&self, call: impl FnOnce() + Send + 'static) {
        self.deferred.lock().push(Box::new(call));
    }

    /// Removes a stream, which may then be destroyed.
    pub(crate) fn remove_stream(&self, stream: &Arc<StreamHandle>) {
        let gone = Arc::downgrade(stream);
        self.streams.lock().retain(|known| !known.ptr_eq(&gone));
        self.map.remove_stream();
    }

    /// True if all of gdsync's streams on this context are idle, no dropped stream has work outstanding, and the
    /// program has announced no waits unknown to gdsync ([`defer_release`](crate::cuda::defer_release)).
    fn is_idle(&self) -> bool {
        let Ok(_entered) = self.enter() else { return false };
        // Under the lock, as a removed stream may be destroyed.
        let streams = self.streams.lock();
        let idle =
            streams.iter().filter_map(Weak::upgrade).all(|stream| !stream.busy.is_set() && stream.is_idle());
        idle && !has_unfinished(self.id) && !is_release_deferred()
    }

    /// Runs deferred calls and unregisters unused memory, if that does not block: if all of gdsync's streams are
    /// idle, on all contexts, as registered pages are visible in every context.
    ///
    /// The caller holds no lock that the drop of queues or memory takes.
    pub(crate) fn collect(&self) {
        if self.deferred.lock().is_empty() && !self.map.has_retired() {
            return;
        }
        let contexts = Self::all();
        // No stream can submit while the gates are closed. `try_close` never waits: this thread may itself be
        // submitting.
        let gates: Vec<_> = contexts.iter().filter_map(|context| context.gate.try_close()).collect();
        if gates.len() < contexts.len() || !contexts.iter().all(|context| context.is_idle()) {
            return;
        }
        for context in &contexts {
            let Ok(_entered) = context.enter() else { continue };
            let _mode = RelaxedCapture::new();
            let deferred = std::mem::take(&mut *context.deferred.lock());
            deferred.into_iter().for_each(|call| call());
            context.map.collect();
        }
    }
}

pub(crate) fn collect_all() {
    GpuContext::all().iter().for_each(|context| context.collect());
}

/// Retains a primary context. The caller has promised to keep a context that the program created.
fn keep_primary(raw: Context, device: sys::CUdevice) -> Result<(), CudaError> {
    let (mut flags, mut active, mut primary) = (0, 0, std::ptr::null_mut());
    // SAFETY: all are valid places.
    check("cuDevicePrimaryCtxGetState", unsafe {
        sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)
    })?;
    if active == 0 {
        return Ok(());
    }
    // SAFETY: as above; the reference that this adds is released unless the context is the primary one.
    check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut primary, device) })?;
    if primary != raw.as_raw() {
        // SAFETY: retained just now.
        check("cuDevicePrimaryCtxRelease", unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) })?;
    }
    Ok(())
}

impl fmt::Debug for GpuContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuContext").field("ordinal", &self.ordinal).field("map", &self.map).finish()
    }
}
