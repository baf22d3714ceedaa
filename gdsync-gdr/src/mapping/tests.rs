use super::*;
use crate::copy::{LoadKernel, StoreKernel};

#[test]
fn what_is_copied_in_comes_out() {
    let memory = Mapping::stand_in(5000).unwrap();
    assert_eq!((memory.len(), memory.is_empty()), (5000, false));
    let info = memory.info();
    assert_eq!((info.backend, info.offset), (MappingBackend::StandIn, 0));
    assert!(info.mapped_size >= 5000 && info.mapped_size.is_multiple_of(info.page_size));
    let bytes: Vec<u8> = (0..4999u32).map(|i| (i * 7 + i / 256) as u8).collect();
    memory.copy_to(1, &bytes).unwrap();
    let mut out = vec![0; 5000];
    memory.copy_from(0, &mut out).unwrap();
    assert!(out[0] == 0 && out[1..] == bytes);
    // SAFETY: the address is inside the mapping, and no other thread accesses it.
    assert_eq!(unsafe { memory.as_ptr().add(1).read_volatile() }, bytes[0]);
    for kernel in StoreKernel::available() {
        memory.copy_to_by(kernel, 100, b"between").unwrap();
        for kernel in LoadKernel::available() {
            let mut seen = [0; 7];
            memory.copy_from_by(kernel, 100, &mut seen).unwrap();
            assert_eq!(&seen, b"between");
        }
        memory.copy_to(100, &[0; 7]).unwrap();
    }
}

#[test]
fn bounds_are_checked_and_name_the_range() {
    let memory = Mapping::stand_in(100).unwrap();
    memory.copy_to(100, &[]).unwrap();
    // The page is longer than the memory.
    let error = memory.copy_to(97, &[0; 4]).unwrap_err();
    assert_eq!(error, MappingError::OutOfBounds { start: 97, end: 101, len: 100 });
    assert!(error.to_string().contains("97..101"), "{error}");
    assert!(memory.copy_from(usize::MAX, &mut [0; 2]).is_err());
    assert!(memory.copy_to_by(StoreKernel::Volatile, 101, &[]).is_err());
    assert!(memory.copy_from_by(LoadKernel::Volatile, 99, &mut [0; 2]).is_err());
    assert!(Mapping::stand_in(0).unwrap().is_empty());
    let error = Mapping::stand_in(usize::MAX).unwrap_err();
    assert!(matches!(error, MappingError::NoHostMemory { len: usize::MAX, .. }), "{error}");
    assert!(Mapping::stand_in(1 << 62).is_err());
}

#[test]
fn a_kernel_that_the_processor_lacks_is_refused() {
    let memory = Mapping::stand_in(100).unwrap();
    let store = StoreKernel::ALL.into_iter().find(|kernel| !kernel.is_available());
    let load = LoadKernel::ALL.into_iter().find(|kernel| !kernel.is_available());
    // Every processor lacks the other architecture's kernels.
    let error = memory.copy_to_by(store.unwrap(), 0, &[1]).unwrap_err().to_string();
    assert!(error.contains(&store.unwrap().to_string()) && error.contains("volatile"), "{error}");
    let error = memory.copy_from_by(load.unwrap(), 0, &mut [1]).unwrap_err().to_string();
    assert!(error.contains(&load.unwrap().to_string()) && error.contains("memcpy"), "{error}");
}

/// Runs in a child with its parent's mapping. Returns 0 if every access is refused and dropping the mapping unmaps
/// nothing.
fn in_child(memory: Mapping) -> i32 {
    let refused = memory.copy_to(0, &[1]) == Err(MappingError::Forked)
        && memory.copy_from(0, &mut [0]) == Err(MappingError::Forked);
    // SAFETY: maps at the mapping's address, which is free in the child; a wrong unmap would remove this page.
    let fresh = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(memory.as_ptr().cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if fresh.cast() != memory.as_ptr() {
        return 2;
    }
    let at = memory.as_ptr();
    drop(memory);
    // SAFETY: mapped just now; a fault here ends the child with a signal, which the parent sees.
    let seen = unsafe {
        at.write_volatile(9);
        at.read_volatile()
    };
    if refused && seen == 9 { 0 } else { 1 }
}

#[test]
fn a_child_does_not_inherit_it() {
    let memory = Mapping::stand_in(4096).unwrap();
    memory.copy_to(0, &[7]).unwrap();
    // SAFETY: the child does not allocate, and exits without running the test harness.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = in_child(memory);
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "status {status:#x}");
    let mut seen = [0];
    memory.copy_from(0, &mut seen).unwrap();
    assert_eq!(seen, [7]);
}

#[test]
fn threads_may_share_it() {
    let memory = Mapping::stand_in(8 * 4096).unwrap();
    std::thread::scope(|scope| {
        for part in 0..8u8 {
            let memory = &memory;
            scope.spawn(move || {
                let offset = usize::from(part) * 4096;
                memory.copy_to(offset, &[part; 4096]).unwrap();
                let mut seen = [0; 4096];
                memory.copy_from(offset, &mut seen).unwrap();
                assert!(seen.iter().all(|byte| *byte == part));
            });
        }
    });
}
