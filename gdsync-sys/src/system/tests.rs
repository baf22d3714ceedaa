use super::*;

#[test]
fn a_missing_library_is_named_with_its_package() {
    let error = load_table("libgdsync-there-is-none.so.1", LIBMLX5).unwrap_err().to_string();
    assert!(error.contains("libgdsync-there-is-none.so.1") && error.contains("ibverbs-providers"), "{error}");
}

#[test]
fn the_second_library_is_named_too() {
    let error = load_table("libc.so.6", "libgdsync-there-is-none.so.1").unwrap_err();
    assert!(matches!(error, LoadError::Library { library: "libgdsync-there-is-none.so.1", .. }), "{error}");
}

#[test]
fn a_missing_symbol_is_named_with_its_version() {
    // Every process has the C library, which lacks the verbs.
    let error = load_table("libc.so.6", "libc.so.6").unwrap_err();
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
