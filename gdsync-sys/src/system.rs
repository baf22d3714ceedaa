//! The table of entry points filled from the system's libibverbs and libmlx5, found at run time.

use crate::VerbsApi;
use crate::api::Provider;
use crate::verbs::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_td, ibv_td_init_attr,
};
use libc::{c_int, c_void, size_t};
use libloading::Library;

use std::mem::offset_of;
use std::sync::{Mutex, OnceLock};

/// libibverbs, by the soname that has not changed since 2006.
const LIBIBVERBS: &str = "libibverbs.so.1";
/// libmlx5, by its soname.
const LIBMLX5: &str = "libmlx5.so.1";

/// Why the system's libraries cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A library is not there, or does not load.
    #[error(
        "{library} cannot be loaded ({reason}): install rdma-core (Debian, Ubuntu: apt-get install {package}; Fedora, RHEL: dnf install libibverbs)"
    )]
    Library {
        /// Its file name.
        library: &'static str,
        /// What the dynamic linker says.
        reason: String,
        /// The Debian package that brings it.
        package: &'static str,
    },
    /// A library lacks a function.
    #[error("{library} has no {symbol}: it comes with rdma-core {since}, so a newer rdma-core is needed")]
    Symbol {
        /// The library's file name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// The rdma-core version that brought it.
        since: &'static str,
    },
}

/// The system's entry points. Loaded at the first call that succeeds, and kept for the life of the process: libibverbs
/// has threads and callbacks of its own and must not be unloaded.
///
/// # Errors
/// [`LoadError`]. Nothing is remembered of a failure: a later call tries again.
pub fn load() -> Result<&'static VerbsApi, LoadError> {
    static API: OnceLock<VerbsApi> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let _one_at_a_time = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let api = fill(LIBIBVERBS, LIBMLX5)?;
    Ok(API.get_or_init(|| api))
}

/// A loaded library that is never unloaded.
struct Loaded {
    name: &'static str,
    library: std::mem::ManuallyDrop<Library>,
}

impl Loaded {
    fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the initialisers of rdma-core's libraries have no preconditions; a user who puts another library of that
        // name on the search path has replaced rdma-core knowingly.
        let library = unsafe { Library::new(name) };
        match library {
            Ok(library) => Ok(Loaded { name, library: std::mem::ManuallyDrop::new(library) }),
            Err(error) => Err(LoadError::Library { library: name, reason: error.to_string(), package }),
        }
    }

    /// # Safety
    /// `T` is the function pointer type of that symbol.
    unsafe fn symbol<T: Copy>(&self, symbol: &'static str, since: &'static str) -> Result<T, LoadError> {
        // SAFETY: the caller's.
        let found = unsafe { self.library.get::<T>(symbol.as_bytes()) };
        found.map(|found| *found).map_err(|_| LoadError::Symbol { library: self.name, symbol, since })
    }
}

fn fill(libibverbs: &'static str, libmlx5: &'static str) -> Result<VerbsApi, LoadError> {
    let verbs = Loaded::open(libibverbs, "ibverbs-providers")?;
    let mlx5 = Loaded::open(libmlx5, "ibverbs-providers")?;
    // SAFETY: each field has the type that the header of that library declares for the function of that name
    // (`infiniband/verbs.h`, `infiniband/mlx5dv.h`); versions are those of Debian's symbol files.
    unsafe {
        Ok(VerbsApi {
            provider: Provider::System,
            get_device_list: verbs.symbol("ibv_get_device_list", "1")?,
            free_device_list: verbs.symbol("ibv_free_device_list", "1")?,
            get_device_name: verbs.symbol("ibv_get_device_name", "1")?,
            get_device_guid: verbs.symbol("ibv_get_device_guid", "1")?,
            open_device: verbs.symbol("ibv_open_device", "1")?,
            close_device: verbs.symbol("ibv_close_device", "1")?,
            query_device: verbs.symbol("ibv_query_device", "1")?,
            query_port: {
                // The exported function writes the fields up to `flags`; what follows stays as the caller had it.
                let query: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int =
                    verbs.symbol("ibv_query_port", "1")?;
                query
            },
            query_gid: verbs.symbol("ibv_query_gid", "1")?,
            alloc_pd: verbs.symbol("ibv_alloc_pd", "1")?,
            dealloc_pd: verbs.symbol("ibv_dealloc_pd", "1")?,
            alloc_td,
            dealloc_td,
            alloc_parent_domain,
            reg_mr: verbs.symbol("ibv_reg_mr", "1")?,
            dereg_mr: verbs.symbol("ibv_dereg_mr", "1")?,
            mlx5dv_create_cq: mlx5.symbol("mlx5dv_create_cq", "14 (MLX5_1.1)")?,
            destroy_cq: verbs.symbol("ibv_destroy_cq", "1")?,
            mlx5dv_create_qp: mlx5.symbol("mlx5dv_create_qp", "16 (MLX5_1.3)")?,
            modify_qp: verbs.symbol("ibv_modify_qp", "1")?,
            query_qp: verbs.symbol("ibv_query_qp", "1")?,
            destroy_qp: verbs.symbol("ibv_destroy_qp", "1")?,
            create_ah: verbs.symbol("ibv_create_ah", "1")?,
            destroy_ah: verbs.symbol("ibv_destroy_ah", "1")?,
            get_async_event: verbs.symbol("ibv_get_async_event", "1")?,
            ack_async_event: verbs.symbol("ibv_ack_async_event", "1")?,
            mlx5dv_is_supported: mlx5.symbol("mlx5dv_is_supported", "23 (MLX5_1.8)")?,
            mlx5dv_init_obj: mlx5.symbol("mlx5dv_init_obj", "13 (MLX5_1.0)")?,
        })
    }
}

type AllocTd = unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td;
type DeallocTd = unsafe extern "C" fn(*mut ibv_td) -> c_int;
type AllocParentDomain =
    unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;

/// The end of `struct verbs_context` (`infiniband/verbs.h`), which grows at its front: extended operations are found by
/// their distance from the `ibv_context` at its end.
#[repr(C)]
struct VerbsContextEnd {
    alloc_parent_domain: Option<AllocParentDomain>,
    dealloc_td: Option<DeallocTd>,
    alloc_td: Option<AllocTd>,
    /// `modify_cq` down to `_ABI_placeholder3`.
    _older: [*mut c_void; 22],
    /// Size of the whole struct, as the library was built.
    sz: size_t,
    context: ibv_context,
}

/// The extended operation at `offset` of [`VerbsContextEnd`], where the library has it (`verbs_get_ctx_op`).
///
/// # Safety
/// `context` is null or valid; `T` is the type of that field.
unsafe fn extended<T: Copy>(context: *mut ibv_context, offset: usize) -> Option<T> {
    if context.is_null() {
        return None;
    }
    // SAFETY: valid, as the caller says. All ones say that a `verbs_context` surrounds it (`__VERBS_ABI_IS_EXTENDED`).
    if unsafe { (*context).abi_compat } as usize != usize::MAX {
        return None;
    }
    let end = context.cast::<u8>().wrapping_sub(offset_of!(VerbsContextEnd, context));
    // SAFETY: `sz` is the field right before the context, there in every extended context.
    let size = unsafe { end.wrapping_add(offset_of!(VerbsContextEnd, sz)).cast::<size_t>().read() };
    if size < size_of::<VerbsContextEnd>() - offset {
        return None;
    }
    // SAFETY: the struct reaches back at least to this field, as its size says.
    unsafe { end.wrapping_add(offset).cast::<Option<T>>().read() }
}

fn set_errno(code: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = code };
}

/// `ibv_alloc_td`, which C has only as an inline function.
unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe { extended::<AllocTd>(context, offset_of!(VerbsContextEnd, alloc_td)) } {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            std::ptr::null_mut()
        }
    }
}

/// `ibv_dealloc_td`, which C has only as an inline function.
unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    if td.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a thread domain as `alloc_td` returned it, whose context is open.
    match unsafe { extended::<DeallocTd>((*td).context, offset_of!(VerbsContextEnd, dealloc_td)) } {
        // SAFETY: the provider's own function, with the caller's argument.
        Some(dealloc) => unsafe { dealloc(td) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_alloc_parent_domain`, which C has only as an inline function.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe { extended::<AllocParentDomain>(context, offset_of!(VerbsContextEnd, alloc_parent_domain)) }
    {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            std::ptr::null_mut()
        }
    }
}

/// The last error of the calling thread, for tests of functions that set `errno`.
#[cfg(test)]
fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = fill("libgdsync-there-is-none.so.1", LIBMLX5).unwrap_err().to_string();
        assert!(
            error.contains("libgdsync-there-is-none.so.1") && error.contains("ibverbs-providers"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_symbol_is_named_with_its_version() {
        // Every process has the C library, which has no verbs.
        let error = fill("libc.so.6", "libc.so.6").unwrap_err();
        assert!(
            matches!(error, LoadError::Symbol { library: "libc.so.6", symbol: "ibv_get_device_list", .. }),
            "{error}"
        );
        assert!(error.to_string().contains("newer rdma-core"), "{error}");
    }

    #[test]
    fn contexts_without_extensions_are_refused() {
        // SAFETY: null is refused before anything is read.
        let td = unsafe { alloc_td(std::ptr::null_mut(), &mut ibv_td_init_attr::default()) };
        assert!(td.is_null() && errno() == Some(libc::EOPNOTSUPP));
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut context: ibv_context = unsafe { std::mem::zeroed() };
        // SAFETY: the context is valid and says that nothing surrounds it.
        let pd = unsafe { alloc_parent_domain(&mut context, std::ptr::null_mut()) };
        assert!(pd.is_null() && errno() == Some(libc::EOPNOTSUPP));
        // SAFETY: as above.
        assert_eq!(unsafe { dealloc_td(std::ptr::null_mut()) }, libc::EINVAL);
    }

    #[test]
    fn extended_operations_are_found_by_size() {
        unsafe extern "C" fn found(_: *mut ibv_context, _: *mut ibv_td_init_attr) -> *mut ibv_td {
            std::ptr::dangling_mut()
        }
        // SAFETY: all-zero bytes are a valid value of this plain C struct: no operation, no context.
        let mut end: VerbsContextEnd = unsafe { std::mem::zeroed() };
        end.context.abi_compat = usize::MAX as *mut c_void;
        end.alloc_td = Some(found);
        let call = |end: &mut VerbsContextEnd| {
            let base: *mut VerbsContextEnd = end;
            // SAFETY: the context lies inside `end`, which is valid.
            unsafe { alloc_td(&raw mut (*base).context, std::ptr::null_mut()) }
        };
        end.sz = size_of::<VerbsContextEnd>() - offset_of!(VerbsContextEnd, alloc_td) - 1;
        assert!(call(&mut end).is_null(), "an older library that does not reach back so far");
        end.sz += 1;
        assert_eq!(call(&mut end), std::ptr::dangling_mut());
    }

    #[test]
    fn the_system_libraries_answer_where_they_are_installed() {
        let api = match load() {
            Ok(api) => api,
            Err(error) => {
                use std::io::Write;
                // Past libtest's capture: a test that did not run must be seen.
                let name = "the_system_libraries_answer_where_they_are_installed";
                return writeln!(std::io::stderr(), "SKIPPED {name}: {error}").unwrap();
            }
        };
        let mut count = -1;
        // SAFETY: `count` is a valid place; the list is freed once.
        unsafe {
            let list = (api.get_device_list)(&mut count);
            if !list.is_null() {
                (api.free_device_list)(list);
            }
        }
        assert!(count >= -1);
        assert_eq!(api.provider, Provider::System);
    }
}
