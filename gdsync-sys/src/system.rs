//! The table of entry points of the system's libibverbs and libmlx5, loaded at run time.

mod inline;

use crate::VerbsApi;
use crate::api::{DevxApi, Provider, VerbsTable};
use libloading::Library;
use std::error::Error;
use std::mem::ManuallyDrop;
use std::sync::{Mutex, OnceLock};

/// The soname of libibverbs, unchanged since 2006.
const LIBIBVERBS: &str = "libibverbs.so.1";
/// The soname of libmlx5.
const LIBMLX5: &str = "libmlx5.so.1";
/// The Debian package of the providers, including libmlx5; it depends on that of libibverbs.
const PACKAGE: &str = "ibverbs-providers";
/// The release with the oldest functions of libibverbs.
const CLASSIC: &str = "libibverbs 1.1 (IBVERBS_1.1)";

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
    let table = fill(LIBIBVERBS, LIBMLX5)?;
    // SAFETY: the entries are rdma-core's functions, in libraries that stay loaded, and those of `inline`, which call
    // them: they do what their manual pages say.
    Ok(API.get_or_init(|| unsafe { VerbsApi::new(table) }))
}

/// A loaded library that is never unloaded.
struct Loaded {
    name: &'static str,
    library: ManuallyDrop<Library>,
}

impl Loaded {
    fn open(name: &'static str, package: &'static str) -> Result<Self, LoadError> {
        // SAFETY: the initialisers of rdma-core's libraries have no preconditions; a user who puts another library of
        // that name on the search path replaces rdma-core knowingly.
        let library = unsafe { Library::new(name) };
        match library {
            Ok(library) => Ok(Loaded { name, library: ManuallyDrop::new(library) }),
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

fn fill(libibverbs: &'static str, libmlx5: &'static str) -> Result<VerbsTable, LoadError> {
    let verbs = Loaded::open(libibverbs, PACKAGE)?;
    let mlx5 = Loaded::open(libmlx5, PACKAGE)?;
    // SAFETY: each field has the type that the library's header declares for the function of that name
    // (`infiniband/verbs.h`, `infiniband/mlx5dv.h`). Releases are those of rdma-core's Debian symbol files; for a
    // symbol with several versions, `dlsym` finds the newest.
    Ok(unsafe {
        table! {
            VerbsTable {
                provider: Provider::System,
                alloc_td: inline::alloc_td,
                dealloc_td: inline::dealloc_td,
                alloc_parent_domain: inline::alloc_parent_domain,
                devx_general_cmd: mlx5.symbol("mlx5dv_devx_general_cmd", DEVX_SINCE).ok(),
                devx: devx(&mlx5).ok(),
            }
            required {
                verbs "ibv_" CLASSIC => get_device_list free_device_list get_device_name open_device close_device;
                verbs "ibv_" CLASSIC => query_device query_port query_gid alloc_pd dealloc_pd reg_mr dereg_mr create_ah destroy_ah;
                verbs "ibv_" CLASSIC => destroy_cq modify_qp query_qp destroy_qp get_async_event ack_async_event;
                verbs "ibv_" CLASSIC => create_comp_channel destroy_comp_channel get_cq_event ack_cq_events;
                verbs "ibv_" CLASSIC => create_srq destroy_srq;
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

fn devx(mlx5: &Loaded) -> Result<DevxApi, LoadError> {
    // SAFETY: as in `fill`.
    Ok(unsafe {
        table! {
            DevxApi {}
            required {
                mlx5 "mlx5dv_devx_" DEVX_SINCE => obj_create obj_modify obj_destroy umem_reg umem_dereg;
                mlx5 "mlx5dv_devx_" DEVX_SINCE => alloc_uar free_uar query_eqn;
            }
            optional { mlx5 "mlx5dv_devx_" "rdma-core 35 (MLX5_1.19)" => umem_reg_ex; }
        }
    })
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
    fn the_second_library_is_named_too() {
        let error = fill("libc.so.6", "libgdsync-there-is-none.so.1").unwrap_err();
        assert!(
            matches!(error, LoadError::Library { library: "libgdsync-there-is-none.so.1", .. }),
            "{error}"
        );
    }

    #[test]
    fn a_missing_symbol_is_named_with_its_version() {
        // Every process has the C library, which lacks the verbs.
        let error = fill("libc.so.6", "libc.so.6").unwrap_err();
        assert!(
            matches!(error, LoadError::Symbol { library: "libc.so.6", symbol: "ibv_get_device_list", .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("IBVERBS_1.1") && text.contains("newer rdma-core"), "{text}");
    }

    #[test]
    fn the_system_libraries_answer_where_they_are_installed() {
        let api = match load() {
            Ok(api) => api,
            Err(error) => {
                use std::io::Write;
                // Bypasses libtest's capture, so that the skip is visible.
                let line = format!("SKIPPED the_system_libraries_answer_where_they_are_installed: {error}\n");
                return std::io::stderr().write_all(line.as_bytes()).unwrap();
            }
        };
        assert_eq!(api.provider, Provider::System);
        assert!(std::ptr::eq(api, load().unwrap()), "loaded once");
        let mut count = -1;
        // SAFETY: `count` is a valid place.
        let list = unsafe { (api.get_device_list)(&mut count) };
        if list.is_null() {
            let error = std::io::Error::last_os_error();
            assert_ne!(error.raw_os_error(), Some(0), "a reason is given");
            assert_eq!(count, 0);
            return;
        }
        for i in 0..usize::try_from(count).unwrap() {
            // SAFETY: the list has `count` devices, with names that end with a zero.
            let name = unsafe { std::ffi::CStr::from_ptr((api.get_device_name)(*list.add(i))) };
            assert!(!name.is_empty());
        }
        // SAFETY: a null pointer ends the list, which is freed once.
        unsafe {
            assert!((*list.add(count as usize)).is_null());
            (api.free_device_list)(list);
        }
    }
}
