//! The table of entry points of the system's libibverbs and libmlx5, loaded at run time. Functions that libibverbs
//! defines only inline, in its header, call the provider through `struct verbs_context`.

use crate::VerbsApi;
use crate::api::{DevxApi, Provider, VerbsTable};
use crate::verbs::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use libc::{c_int, c_void, size_t};
use libloading::Library;
use std::error::Error;
use std::mem::{ManuallyDrop, offset_of};
use std::sync::{Mutex, OnceLock};

/// The soname of libibverbs, unchanged since 2006.
const LIBIBVERBS: &str = "libibverbs.so.1";
/// The soname of libmlx5.
const LIBMLX5: &str = "libmlx5.so.1";
/// The Debian package of the providers, including libmlx5; it depends on that of libibverbs.
const PACKAGE: &str = "ibverbs-providers";
/// The release with the oldest functions of libibverbs.
const OLDEST_RELEASE: &str = "libibverbs 1.1 (IBVERBS_1.1)";

/// Reasons why the system's libraries cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A library is missing or does not load.
    #[error(
        "{library} cannot be loaded ({reason}): install rdma-core (Debian, Ubuntu: apt-get install {package}; Fedora, RHEL: dnf install libibverbs)"
    )]
    Library {
        /// Its file name.
        library: &'static str,
        /// The dynamic linker's message.
        reason: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// A library lacks a function.
    #[error("{library} has no {symbol}, which came with {since}: install a newer rdma-core")]
    Symbol {
        /// The library's file name.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// The release that introduced it, and its symbol version.
        since: &'static str,
    },
}

/// Returns the system's entry points. The first call that succeeds loads them for the life of the process: libibverbs
/// has threads and callbacks and must not be unloaded.
///
/// # Errors
/// [`LoadError`]. A later call tries again.
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
    // These libraries may run on the software card.
    crate::wake::find();
    let table = load_table(LIBIBVERBS, LIBMLX5)?;
    // SAFETY: the entries are rdma-core's functions, in libraries that stay loaded, and functions below, which call
    // them: they do what their manual pages say.
    Ok(API.get_or_init(|| unsafe { VerbsApi::new(table) }))
}

/// A loaded library that is never unloaded.
struct LoadedLibrary {
    name: &'static str,
    library: ManuallyDrop<Library>,
}

impl LoadedLibrary {
    fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the initialisers of rdma-core's libraries have no preconditions; a user who puts another library of
        // that name on the search path replaces rdma-core knowingly.
        let library = unsafe { Library::new(name) };
        match library {
            Ok(library) => Ok(LoadedLibrary { name, library: ManuallyDrop::new(library) }),
            // The source is the linker's message.
            Err(error) => {
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(LoadError::Library { library: name, reason, package })
            }
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

/// Fills a table of functions. Each line names a library, the prefix of its symbols before the fields' names, the
/// release that introduced them, and the fields. Those of `optional` may be missing.
macro_rules! table {
    (
        $table:ident { $($given:ident: $value:expr,)* }
        required { $($library:ident $prefix:literal $since:expr => $($field:ident)+;)+ }
        optional { $($maybe_in:ident $maybe_prefix:literal $maybe_since:expr => $maybe:ident;)+ }
    ) => {
        $table {
            $($given: $value,)*
            $($($field: $library.symbol(concat!($prefix, stringify!($field)), $since)?,)+)+
            $($maybe: $maybe_in.symbol(concat!($maybe_prefix, stringify!($maybe)), $maybe_since).ok(),)+
        }
    };
}

fn load_table(libibverbs: &'static str, libmlx5: &'static str) -> Result<VerbsTable, LoadError> {
    let verbs = LoadedLibrary::open(libibverbs, PACKAGE)?;
    let mlx5 = LoadedLibrary::open(libmlx5, PACKAGE)?;
    // SAFETY: each field has the type that the library's header declares for the function of that name
    // (`infiniband/verbs.h`, `infiniband/mlx5dv.h`). Releases are those of rdma-core's Debian symbol files; for a
    // symbol with several versions, `dlsym` finds the newest.
    Ok(unsafe {
        table! {
            VerbsTable {
                provider: Provider::System,
                alloc_td: alloc_td,
                dealloc_td: dealloc_td,
                alloc_parent_domain: alloc_parent_domain,
                devx_general_cmd: mlx5.symbol("mlx5dv_devx_general_cmd", DEVX_SINCE).ok(),
                devx_qp_query: mlx5.symbol("mlx5dv_devx_qp_query", "rdma-core 22 (MLX5_1.8)").ok(),
                devx: devx(&mlx5).ok(),
            }
            required {
                verbs "ibv_" OLDEST_RELEASE => get_device_list free_device_list get_device_name open_device close_device;
                verbs "ibv_" OLDEST_RELEASE => query_device query_port query_gid alloc_pd dealloc_pd reg_mr dereg_mr create_ah destroy_ah;
                verbs "ibv_" OLDEST_RELEASE => destroy_cq modify_qp query_qp destroy_qp get_async_event ack_async_event;
                verbs "ibv_" OLDEST_RELEASE => create_comp_channel destroy_comp_channel get_cq_event ack_cq_events;
                verbs "ibv_" OLDEST_RELEASE => create_srq destroy_srq;
                mlx5 "" "rdma-core 14 (MLX5_1.1)" => mlx5dv_create_cq;
                mlx5 "" "rdma-core 15 (MLX5_1.2)" => mlx5dv_init_obj;
                mlx5 "" "rdma-core 16 (MLX5_1.3)" => mlx5dv_create_qp;
                mlx5 "" "rdma-core 22 (MLX5_1.8)" => mlx5dv_is_supported;
            }
            optional {
                verbs "ibv_" "rdma-core 24 (IBVERBS_1.6)" => qp_to_qp_ex;
                verbs "_ibv_" "rdma-core 32 (IBVERBS_1.11)" => query_gid_table;
                verbs "ibv_" "rdma-core 34 (IBVERBS_1.12)" => reg_dmabuf_mr;
            }
        }
    })
}

/// The release of rdma-core that introduced DEVX.
const DEVX_SINCE: &str = "rdma-core 21 (MLX5_1.7)";

fn devx(mlx5: &LoadedLibrary) -> Result<DevxApi, LoadError> {
    // SAFETY: as in `load_table`.
    Ok(unsafe {
        table! {
            DevxApi {}
            required {
                mlx5 "mlx5dv_devx_" DEVX_SINCE => obj_create obj_modify obj_query obj_destroy umem_reg umem_dereg;
                mlx5 "mlx5dv_devx_" DEVX_SINCE => alloc_uar free_uar query_eqn;
            }
            optional { mlx5 "mlx5dv_devx_" "rdma-core 35 (MLX5_1.19)" => umem_reg_ex; }
        }
    })
}

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
unsafe fn extended_operation<T: Copy>(context: *mut ibv_context, offset: usize) -> Option<T> {
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
unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe { extended_operation::<AllocTd>(context, offset_of!(VerbsContextEnd, alloc_td)) } {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => unsupported(),
    }
}

/// `ibv_dealloc_td`, an inline function in C.
unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    if td.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: a thread domain as `alloc_td` returned it, of an open context.
    match unsafe { extended_operation::<DeallocTd>((*td).context, offset_of!(VerbsContextEnd, dealloc_td)) } {
        // SAFETY: the provider's own function, with the caller's argument.
        Some(dealloc) => unsafe { dealloc(td) },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_alloc_parent_domain`, an inline function in C.
unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: a context as `ibv_open_device` returned it.
    match unsafe {
        extended_operation::<AllocParentDomain>(context, offset_of!(VerbsContextEnd, alloc_parent_domain))
    } {
        // SAFETY: the provider's own function, with the caller's arguments.
        Some(alloc) => unsafe { alloc(context, attr) },
        None => unsupported(),
    }
}

#[cfg(test)]
mod tests;
