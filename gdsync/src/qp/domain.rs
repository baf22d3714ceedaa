//! What queues are made in: doorbell registers of their own, and where their memory comes from.

use crate::cuda::{QueueArenas, QueuePlacement};
use crate::qp::devx;
use crate::verbs::{Error, Owned, ProtectionDomainInner, QueueApi, call};
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::{self, ibv_pd};
use std::ptr;
use std::sync::Arc;

/// What the queues of one queue pair, or one shared completion queue, are made in.
#[derive(Debug)]
pub(crate) struct QueueDomain {
    pub(crate) maker: Maker,
    pub(crate) placement: QueuePlacement,
    pub(crate) pd: Arc<ProtectionDomainInner>,
}

/// The interface that makes them.
#[derive(Debug)]
pub(crate) enum Maker {
    Verbs(ParentDomain),
    Devx(devx::Domain),
}

impl QueueDomain {
    /// With a doorbell register for a queue pair, or for a completion queue only. Commands name a page of
    /// registers for a completion queue, too.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomainInner>,
        maker: QueueApi,
        placement: QueuePlacement,
        has_register: bool,
    ) -> Result<Arc<Self>, Error> {
        let maker = match who(pd, maker, placement) {
            QueueApi::Verbs => Maker::Verbs(ParentDomain::new(pd, placement, has_register)?),
            QueueApi::Devx => Maker::Devx(devx::Domain::new(pd, placement)?),
        };
        Ok(Arc::new(QueueDomain { maker, placement, pd: pd.clone() }))
    }
}

/// The interface that can make the queues: for queues of verbs, a kernel pins pages of the host,
/// and takes no other memory.
fn who(pd: &ProtectionDomainInner, asked: QueueApi, placement: QueuePlacement) -> QueueApi {
    let has_kernel = pd.device.api.provider != Provider::Software;
    if has_kernel && placement.wants_gpu() { QueueApi::Devx } else { asked }
}

/// A thread domain and a parent domain: what gives a queue pair a doorbell register of its own,
/// which a GPU can be given without a CPU sharing it, and its rings a place in the pinned arena. A
/// shared completion queue needs the latter only.
#[derive(Debug)]
pub(crate) struct ParentDomain {
    // In this order: each is made of what follows.
    raw: Owned<ibv_pd>,
    /// Its promise, that one thread at a time posts, is kept because gdsync posts under the queue's lock.
    _td: Option<Owned<verbs::ibv_td>>,
    /// Boxed: the provider knows the address.
    _rooms: Box<QueueArenas>,
    _pd: Arc<ProtectionDomainInner>,
}

impl ParentDomain {
    fn new(
        pd: &Arc<ProtectionDomainInner>,
        placement: QueuePlacement,
        has_register: bool,
    ) -> Result<Self, Error> {
        let (api, context) = (pd.device.api, pd.device.context());
        let thread_domain = || {
            let mut td_attr = verbs::ibv_td_init_attr::default();
            // SAFETY: the context is open as long as `pd` lives.
            let td = unsafe { (api.alloc_td)(context, &mut td_attr) };
            let td = call::pointer("ibv_alloc_td", td, String::new)?;
            // SAFETY: the parent domain that names it is deallocated before it, and it before the domain.
            Ok::<_, Error>(unsafe { Owned::new(td, api.dealloc_td, "ibv_dealloc_td") })
        };
        let td = has_register.then(thread_domain).transpose()?;
        let arenas = Box::new(QueueArenas::new(placement, &pd.device.arena)?);
        let mut attr = verbs::ibv_parent_domain_init_attr {
            pd: pd.raw(),
            td: td.as_ref().map_or(ptr::null_mut(), Owned::as_ptr),
            comp_mask: verbs::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
                | verbs::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            alloc: Some(allocate_queue_memory),
            free: Some(free_queue_memory),
            pd_context: (&raw const *arenas).cast_mut().cast(),
        };
        // SAFETY: as above; the arenas stay where they are as long as the domain, which outlives
        // everything that may still free.
        let raw = unsafe { (api.alloc_parent_domain)(context, &mut attr) };
        let raw = call::pointer("ibv_alloc_parent_domain", raw, String::new)?;
        // SAFETY: queues made in it hold an `Arc` of the `QueueDomain` around this.
        let raw = unsafe { Owned::new(raw, api.dealloc_pd, "ibv_dealloc_pd (parent domain)") };
        Ok(ParentDomain { raw, _td: td, _rooms: arenas, _pd: pd.clone() })
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}

/// Called by the verbs provider for the memory of queues: the domain's arenas, given as
/// `pd_context`.
unsafe extern "C" fn allocate_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    size: libc::size_t,
    alignment: libc::size_t,
    resource_type: u64,
) -> *mut libc::c_void {
    // SAFETY: `ParentDomain::new` gave the address of the domain's arenas, which outlive
    // the provider's use of it.
    let arenas = unsafe { &*pd_context.cast::<QueueArenas>() };
    match arenas.allocate(size, alignment.max(1).next_power_of_two(), resource_type) {
        Ok(block) => block.cast(),
        Err(error) => {
            tracing::debug!(%error, size, "no memory for a queue");
            ptr::null_mut()
        }
    }
}

/// Counterpart of [`allocate_queue_memory`].
unsafe extern "C" fn free_queue_memory(
    _pd: *mut ibv_pd,
    pd_context: *mut libc::c_void,
    block: *mut libc::c_void,
    resource_type: u64,
) {
    // SAFETY: as in `allocate_queue_memory`.
    let arenas = unsafe { &*pd_context.cast::<QueueArenas>() };
    if !arenas.release(block.cast(), resource_type) {
        tracing::error!(?block, "the verbs provider freed queue memory that it was not given");
    }
}
