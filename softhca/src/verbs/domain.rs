//! Protection domains, thread domains, and parent domains, which combine the two with an allocator of queue memory.

use super::context::Context;
use super::device::OwnUar;
use super::errno::{self, Errno};
use super::object::{self, CStruct, object};
use gdsync_sys::verbs::{
    self, ParentDomainAlloc, ParentDomainFree, ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td,
    ibv_td_init_attr,
};
use libc::{c_int, c_void};
use std::sync::Arc;

object! {
    /// A protection domain, or a parent domain of one.
    Pd: ibv_pd {
        pub(super) context: Arc<Context>,
        kind: PdKind,
    }
}

enum PdKind {
    Protection { pdn: u32 },
    Parent(Parent),
}

/// The attributes of a parent domain.
pub(super) struct Parent {
    domain: Arc<Pd>,
    pub(super) td: Option<Arc<Td>>,
    pub(super) allocators: Option<(ParentDomainAlloc, ParentDomainFree)>,
    pub(super) pd_context: *mut c_void,
}

// SAFETY: `pd_context` is passed on only.
unsafe impl Send for Parent {}
// SAFETY: as above.
unsafe impl Sync for Parent {}

impl Pd {
    fn new(context: Arc<Context>, number: u32, kind: PdKind) -> Self {
        let ibv = ibv_pd { context: object::handle(&context), handle: number };
        Pd { ibv: CStruct::new(ibv), context, kind }
    }

    pub(super) fn number(&self) -> u32 {
        match &self.kind {
            PdKind::Protection { pdn } => *pdn,
            PdKind::Parent(parent) => parent.domain.number(),
        }
    }

    /// The attributes of a parent domain; `None` for a protection domain.
    pub(super) fn parent(&self) -> Option<&Parent> {
        match &self.kind {
            PdKind::Protection { .. } => None,
            PdKind::Parent(parent) => Some(parent),
        }
    }

    /// Returns the protection domain that `domain` is or has as its parent.
    pub(super) fn protection(domain: Arc<Pd>) -> Arc<Pd> {
        match &domain.kind {
            PdKind::Protection { .. } => domain,
            PdKind::Parent(parent) => parent.domain.clone(),
        }
    }

    /// The UAR of queue pairs in this domain.
    pub(super) fn uar(&self) -> &OwnUar {
        match self.parent().and_then(|parent| parent.td.as_ref()) {
            Some(td) => &td.uar,
            None => &self.context.uar,
        }
    }
}

/// # Safety
/// `context` is null or open.
pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let context = unsafe { object::share::<Context>(context) }?;
        let pdn = context.card().alloc_pd()?;
        Ok(object::into_raw(Arc::new(Pd::new(context, pdn, PdKind::Protection { pdn }))))
    })
}

/// `ibv_dealloc_pd`, also for parent domains. EBUSY while it has objects.
///
/// # Safety
/// `pd` is null or allocated.
pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let destroy = |pd: &Arc<Pd>| match pd.kind {
        PdKind::Protection { pdn } => Ok(pd.context.card().dealloc_pd(pdn)?),
        PdKind::Parent(_) => Ok(()),
    };
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy(pd, destroy) })
}

/// `ibv_alloc_parent_domain`. EINVAL: no protection domain, a parent domain instead of one, domains of
/// another context, unknown bits, or only one function of the allocator.
///
/// # Safety
/// `context` is null or open; `attr` is null or valid, with valid domains. Its functions may be called as
/// `ibv_alloc_parent_domain` documents, until the domain is deallocated.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::share::<Context>(context)?, object::attributes(attr)?) };
        let with_allocators = attr.comp_mask & verbs::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        let with_context = attr.comp_mask & verbs::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT != 0;
        let known =
            verbs::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | verbs::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if attr.comp_mask & !known != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: guaranteed by the caller.
        let domain = unsafe { object::share::<Pd>(attr.pd) }?;
        // SAFETY: guaranteed by the caller.
        let td = if attr.td.is_null() { None } else { Some(unsafe { object::share::<Td>(attr.td) }?) };
        let of_another_context = td.as_ref().is_some_and(|td| !Arc::ptr_eq(&td.context, &context));
        if domain.parent().is_some() || !Arc::ptr_eq(&domain.context, &context) || of_another_context {
            return Err(Errno::INVALID);
        }
        let allocators = match (with_allocators, attr.alloc, attr.free) {
            (false, ..) | (true, None, None) => None,
            (true, Some(allocate), Some(free)) => Some((allocate, free)),
            (true, ..) => return Err(Errno::INVALID),
        };
        let pd_context = if with_context { attr.pd_context } else { std::ptr::null_mut() };
        let number = domain.number();
        let parent = Parent { domain, td, allocators, pd_context };
        Ok(object::into_raw(Arc::new(Pd::new(context, number, PdKind::Parent(parent)))))
    })
}

object! {
    /// A thread domain: it has its own doorbell register.
    Td: ibv_td {
        uar: OwnUar,
        context: Arc<Context>,
    }
}

/// # Safety
/// `context` is null or open; `attr` is null or valid.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    errno::pointer(|| {
        // SAFETY: guaranteed by the caller.
        let (context, attr) = unsafe { (object::share::<Context>(context)?, object::attributes(attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno::INVALID);
        }
        let uar = OwnUar::of_domain(&context.open)?;
        let ibv = ibv_td { context: object::handle(&context) };
        Ok(object::into_raw(Arc::new(Td { ibv: CStruct::new(ibv), uar, context })))
    })
}

/// `ibv_dealloc_td`. EBUSY while parent domains use it.
///
/// # Safety
/// `td` is null or allocated.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: guaranteed by the caller.
    errno::status(|| unsafe { object::destroy::<Td>(td, |_| Ok(())) })
}
