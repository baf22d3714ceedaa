//! Functions that libibverbs defines only inline, in its header: they call the provider through
//! `struct verbs_context`.

use crate::verbs::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use libc::{c_int, c_void, size_t};
use std::mem::offset_of;

type AllocTd = unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td;
type DeallocTd = unsafe extern "C" fn(*mut ibv_td) -> c_int;
type AllocParentDomain =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;

/// The end of `struct verbs_context` (`infiniband/verbs.h`), which grows at its front: extended operations are
/// located by their distance from the `ibv_context` at its end.
#[repr(C)]
struct VerbsContextEnd {
    alloc_parent_domain: Option<AllocParentDomain>,
    dealloc_td: Option<DeallocTd>,
    alloc_td: Option<AllocTd>,
    /// `modify_cq` down to `_ABI_placeholder3`.
    _older: [*mut c_void; 22],
    /// Size of the whole struct in the library's build.
    sz: size_t,
    context: ibv_context,
}

// `infiniband/verbs.h`: distance of each operation before the context, in pointers.
const _: () = {
    let context = offset_of!(VerbsContextEnd, context);
    assert!(context - offset_of!(VerbsContextEnd, sz) == size_of::<size_t>());
    assert!(context - offset_of!(VerbsContextEnd, alloc_td) == 24 * size_of::<usize>());
    assert!(context - offset_of!(VerbsContextEnd, dealloc_td) == 25 * size_of::<usize>());
    assert!(context - offset_of!(VerbsContextEnd, alloc_parent_domain) == 26 * size_of::<usize>());
};

/// Returns the extended operation at `offset` of [`VerbsContextEnd`], if the library has it (`verbs_get_ctx_op`).
///
/// # Safety
/// `context` is null or valid; `T` is the type of that field.
unsafe fn extended<T: Copy>(context: *mut ibv_context, offset: usize) -> Option<T> {
    if context.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees a valid context. All ones mark a context inside a `verbs_context`
    // (`__VERBS_ABI_IS_EXTENDED`).
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return None;
    }
    let end = context.cast::<u8>().wrapping_sub(offset_of!(VerbsContextEnd, context));
    // SAFETY: `sz` is the field directly before the context in every extended context.
    let size = unsafe { end.wrapping_add(offset_of!(VerbsContextEnd, sz)).cast::<size_t>().read() };
    if size < size_of::<VerbsContextEnd>() - offset {
        return None;
    }
    // SAFETY: the struct extends at least to this field, as its size shows.
    unsafe { end.wrapping_add(offset).cast::<Option<T>>().read() }
}

/// Returns null and sets `errno`, for a call that the provider lacks.
fn unsupported<T>() -> *mut T {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}

/// `ibv_alloc_td`, an inline function in C.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe { extended::<AllocTd>(context, offset_of!(VerbsContextEnd, alloc_td)) } {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => unsupported(),
    }
}

/// `ibv_dealloc_td`, an inline function in C.
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    if td.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a thread domain as `alloc_td` returned it, of an open context.
    match unsafe { extended::<DeallocTd>((*td).context, offset_of!(VerbsContextEnd, dealloc_td)) } {
        // SAFETY: the provider's own function, with the caller's argument.
        Some(dealloc) => unsafe { dealloc(td) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_alloc_parent_domain`, an inline function in C.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe { extended::<AllocParentDomain>(context, offset_of!(VerbsContextEnd, alloc_parent_domain)) }
    {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => unsupported(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_errno(code: c_int) {
        // SAFETY: the calling thread's own errno.
        unsafe { *libc::__errno_location() = code };
    }

    /// The last error of the calling thread.
    fn errno() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    unsafe extern "C" fn found_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
        assert!(attr.is_null());
        // A provider's thread domain begins with its context; the tests return the context's address for it.
        context.cast()
    }

    unsafe extern "C" fn found_dealloc(_: *mut ibv_td) -> c_int {
        libc::EBUSY
    }

    unsafe extern "C" fn found_domain(
        context: *mut ibv_context,
        attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd {
        assert!(attr.is_null());
        context.cast()
    }

    /// Returns the struct of a library without operations, with that size.
    fn bare(size: usize) -> Box<VerbsContextEnd> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct: no operation, no context.
        let mut end: Box<VerbsContextEnd> = Box::new(unsafe { std::mem::zeroed() });
        end.context.abi_compat = usize::MAX as *mut c_void;
        end.sz = size;
        end
    }

    /// Returns one with all three operations.
    fn equipped(size: usize) -> Box<VerbsContextEnd> {
        let mut end = bare(size);
        end.alloc_td = Some(found_td);
        end.dealloc_td = Some(found_dealloc);
        end.alloc_parent_domain = Some(found_domain);
        end
    }

    /// Calls the three functions. Returns true for each that called the provider.
    fn answers(end: &mut VerbsContextEnd) -> [bool; 3] {
        let base: *mut VerbsContextEnd = end;
        // SAFETY: the context is inside `end`, which is valid and at least as large as its `sz` says.
        unsafe {
            let context = &raw mut (*base).context;
            set_errno(0);
            let td = alloc_td(context, std::ptr::null_mut());
            assert_eq!(errno(), Some(if td.is_null() { libc::EOPNOTSUPP } else { 0 }));
            set_errno(0);
            let domain = alloc_parent_domain(context, std::ptr::null_mut());
            assert_eq!(errno(), Some(if domain.is_null() { libc::EOPNOTSUPP } else { 0 }));
            let dealloc = dealloc_td(&mut ibv_td { context });
            assert!(dealloc == libc::EBUSY || dealloc == libc::EOPNOTSUPP);
            [!td.is_null(), dealloc == libc::EBUSY, !domain.is_null()]
        }
    }

    #[test]
    fn contexts_without_extensions_are_refused() {
        let mut end = equipped(size_of::<VerbsContextEnd>());
        end.context.abi_compat = std::ptr::null_mut();
        assert_eq!(answers(&mut end), [false; 3]);
        set_errno(0);
        // SAFETY: null is refused before anything is read.
        let td = unsafe { alloc_td(std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(td.is_null() && errno() == Some(libc::EOPNOTSUPP));
        // SAFETY: as above.
        assert_eq!(unsafe { dealloc_td(std::ptr::null_mut()) }, libc::EINVAL);
    }

    #[test]
    fn operations_are_found_as_far_as_the_library_reaches_back() {
        let whole = size_of::<VerbsContextEnd>();
        let reach = |missing: usize| answers(&mut equipped(whole - missing * size_of::<usize>()));
        assert_eq!(reach(0), [true, true, true]);
        assert_eq!(reach(1), [true, true, false], "an older library");
        assert_eq!(reach(2), [true, false, false]);
        assert_eq!(reach(3), [false, false, false]);
    }

    #[test]
    fn operations_that_a_provider_lacks_are_refused() {
        assert_eq!(answers(&mut bare(size_of::<VerbsContextEnd>())), [false; 3]);
    }
}
