//! GPU memory registered once for many messages, on a real GPU. Reported as skipped without one.

use gdsync::cuda::{self, GpuMemory};
use gdsync::cudarc::driver::sys;
use gdsync::verbs::{GpuMemoryRegion, Provider, RegistrationCache, RegistrationPath};
use gdsync::{Access, PinnedMemory, WorkRequest};
use gdsync_test_support::gpu::Rig;
use gdsync_test_support::pair::{poll, ring};
use gdsync_test_support::skipped;
use std::os::fd::AsRawFd;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

/// Memory that the program allocates.
struct Raw {
    address: u64,
}

impl Raw {
    fn allocate(rig: &Rig, len: usize) -> Self {
        rig.context.bind_to_thread().unwrap();
        let mut address = 0;
        // SAFETY: a valid place; the context is current.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, len) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
        Raw { address }
    }

    fn fill(&self, value: u8, len: usize) {
        // SAFETY: allocated by us, that many bytes long.
        let result = unsafe { sys::cuMemsetD8_v2(self.address, value, len) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
        // SAFETY: no preconditions.
        assert_eq!(unsafe { sys::cuCtxSynchronize() }, sys::CUresult::CUDA_SUCCESS);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: allocated by us, freed once.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

#[test]
fn a_gpu_is_described_without_a_context() {
    let Some(rig) = Rig::new("a_gpu_is_described_without_a_context") else { return };
    let description = cuda::describe(0).unwrap();
    assert_eq!(description.capabilities, cuda::capabilities(&rig.context).unwrap());
    assert!(!description.name.is_empty(), "{description:?}");
    let parts: Vec<&str> = description.pci_address.split([':', '.']).collect();
    assert_eq!(parts.len(), 4, "{description:?}");
    assert!(cuda::driver_version().unwrap() >= 12_000);
    assert!(cuda::describe(cuda::device_count().unwrap()).is_err());
}

#[test]
fn the_way_of_a_registration_is_visible() {
    let Some(rig) = Rig::new("the_way_of_a_registration_is_visible") else { return };
    let path = rig.region(4096).path();
    match rig.pair.device.provider() {
        Provider::Software => assert_eq!(path, RegistrationPath::SoftwareCard),
        _ => assert_ne!(path, RegistrationPath::SoftwareCard),
    }
}

#[test]
fn dma_bufs_span_memory_of_any_length_and_alignment() {
    let name = "dma_bufs_span_memory_of_any_length_and_alignment";
    let Some(rig) = Rig::new(name) else { return };
    if !cuda::capabilities(&rig.context).unwrap().dma_buf {
        return skipped(name, "the driver makes no dma-bufs");
    }
    for len in [1, 4095, 4096, 65_537, (2 << 20) + 1] {
        let memory = rig.memory(len);
        let (fd, offset) = memory.dma_buf().unwrap();
        assert!(fd.as_raw_fd() >= 0 && offset < 65_536, "{len}: {offset}");
        // A part in the middle, at an odd address.
        let start = (len / 3) | 1;
        if start < len {
            // SAFETY: a part of `memory`, which is dropped later.
            let part = unsafe {
                GpuMemory::from_raw(&rig.context, memory.address() + start as u64, len - start, ())
            };
            let (_fd, offset) = part.unwrap().dma_buf().unwrap();
            assert_eq!((memory.address() + start as u64 - offset) % 4096, 0, "{len}");
        }
    }
}

#[test]
fn messages_of_gpu_memory_register_once() {
    let Some(rig) = Rig::new("messages_of_gpu_memory_register_once") else { return };
    let cache = RegistrationCache::new(&rig.pair.pd);
    let (source, target) = (rig.memory(10_000), rig.memory(10_000));
    for round in 0..5u8 {
        source.write(0, &[round; 10_000]).unwrap();
        let (near, far) = (cache.gpu(&source, Access::empty()).unwrap(), cache.gpu(&target, ALL).unwrap());
        assert!(near.path().is_some());
        let slices = [near.slice(..).unwrap()];
        ring(rig.pair.left.prepare(WorkRequest::write(&slices, far.remote())).unwrap());
        poll(&rig.pair.left.send_cq()).status.unwrap();
        let mut got = vec![0; 10_000];
        target.read(0, &mut got).unwrap();
        assert_eq!(got, [round; 10_000]);
    }
    assert_eq!((cache.statistics().misses, cache.statistics().hits), (2, 8));
    drop((source, target));
    assert_eq!((cache.statistics().entries, cache.statistics().invalidations), (0, 2));
}

#[test]
fn an_address_that_became_another_allocation_is_registered_anew() {
    let Some(rig) = Rig::new("an_address_that_became_another_allocation_is_registered_anew") else { return };
    const LEN: usize = 2 << 20;
    let cache = RegistrationCache::new(&rig.pair.pd);
    let target = rig.memory(LEN);
    // SAFETY: allocated as long as its regions: later registrations in the cache are never used again, which is under
    // test.
    let register = |raw: &Raw| unsafe { cache.gpu_raw(&rig.context, raw.address, LEN, ALL) }.unwrap();
    let (mut reused, mut last) = (0, None);
    for value in 1..=8u8 {
        let raw = Raw::allocate(&rig, LEN);
        raw.fill(value, LEN);
        reused += u32::from(last == Some(raw.address));
        last = Some(raw.address);
        let before = cache.statistics();
        let near = register(&raw);
        assert_eq!(cache.statistics().misses, before.misses + 1, "never the registration of freed memory");
        assert_eq!(register(&raw).lkey(), near.lkey());
        let far = cache.gpu(&target, ALL).unwrap();
        let slices = [near.slice(..).unwrap()];
        ring(rig.pair.left.prepare(WorkRequest::write(&slices, far.remote())).unwrap());
        poll(&rig.pair.left.send_cq()).status.unwrap();
        let mut got = vec![0; LEN];
        target.read(0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == value), "{value}");
    }
    assert_eq!(cache.statistics().invalidations, u64::from(reused));
    let address = last.unwrap();
    assert_eq!(cache.invalidate(address..address + 1), 1);
}

/// Host memory that the driver has allocated.
struct Pinned {
    base: *mut u8,
}

impl Pinned {
    fn allocate(rig: &Rig, len: usize) -> Self {
        rig.context.bind_to_thread().unwrap();
        let mut base = std::ptr::null_mut();
        // SAFETY: a valid place; the context is current.
        let result = unsafe { sys::cuMemHostAlloc(&mut base, len, 0) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
        Pinned { base: base.cast() }
    }

    fn address(&self) -> u64 {
        self.base as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by the driver, freed once.
        unsafe { sys::cuMemFreeHost(self.base.cast()) };
    }
}

#[test]
fn pinned_memory_of_the_program_is_registered_once_for_each_allocation() {
    let Some(rig) = Rig::new("pinned_memory_of_the_program_is_registered_once_for_each_allocation") else {
        return;
    };
    const LEN: usize = 1 << 20;
    let cache = RegistrationCache::new(&rig.pair.pd);
    let target = rig.memory(LEN);
    let far = cache.gpu(&target, ALL).unwrap();
    let (mut reused, mut last) = (0, None);
    for value in 1..=8u8 {
        let pinned = Pinned::allocate(&rig, LEN);
        // SAFETY: that many bytes long; no work names them yet.
        unsafe { pinned.base.write_bytes(value, LEN) };
        reused += u32::from(last == Some(pinned.address()));
        last = Some(pinned.address());
        // SAFETY: the memory lives as long as its regions: later registrations in the cache are never used again,
        // which is under test.
        let register = || unsafe { cache.cuda_host_raw(&rig.context, pinned.address(), LEN, ALL) }.unwrap();
        let before = cache.statistics();
        let near = register().unwrap();
        assert_eq!(cache.statistics().misses, before.misses + 1, "never the registration of freed memory");
        assert_eq!(register().unwrap().lkey(), near.lkey());
        ring(rig.pair.left.prepare(WorkRequest::write(&[near.slice(..).unwrap()], far.remote())).unwrap());
        poll(&rig.pair.left.send_cq()).status.unwrap();
        let mut got = vec![0; LEN];
        target.read(0, &mut got).unwrap();
        assert!(got.iter().all(|byte| *byte == value), "{value}");
    }
    assert_eq!(cache.statistics().invalidations, u64::from(reused));
}

#[test]
fn memory_that_the_program_registers_is_known_by_each_registration() {
    let Some(rig) = Rig::new("memory_that_the_program_registers_is_known_by_each_registration") else {
        return;
    };
    const LEN: usize = 1 << 16;
    let cache = RegistrationCache::new(&rig.pair.pd);
    let memory = PinnedMemory::allocate(LEN).unwrap();
    let address = memory.addr().get();
    rig.context.bind_to_thread().unwrap();
    // SAFETY: the memory lives until the end.
    let registered = |address| unsafe { cache.cuda_host_raw(&rig.context, address, LEN, ALL) }.unwrap();
    assert!(registered(address).is_none(), "the driver does not know it");
    assert!(registered(0).is_none(), "the null pointer");
    for misses in 1..=3 {
        // SAFETY: our whole pages.
        let result = unsafe { sys::cuMemHostRegister_v2(address as *mut _, LEN, 0) };
        assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
        let first = registered(address).unwrap();
        assert_eq!(registered(address).unwrap().lkey(), first.lkey());
        assert_eq!(cache.statistics().misses, misses, "once for each time");
        // SAFETY: registered above.
        assert_eq!(unsafe { sys::cuMemHostUnregister(address as *mut _) }, sys::CUresult::CUDA_SUCCESS);
        assert!(registered(address).is_none(), "the driver does not know it any more");
    }
}

#[test]
fn memory_that_the_library_registers_is_not_kept() {
    let Some(rig) = Rig::new("memory_that_the_library_registers_is_not_kept") else { return };
    const LEN: usize = 1 << 16;
    let cache = RegistrationCache::new(&rig.pair.pd);
    let memory = PinnedMemory::allocate(LEN).unwrap();
    cuda::pin(&rig.context, &memory).unwrap();
    // SAFETY: the memory lives until the end.
    let region = unsafe { cache.cuda_host_raw(&rig.context, memory.addr().get(), LEN, ALL) }.unwrap();
    assert!(region.is_none(), "the library may unregister it later than the program frees it");
    assert_eq!(cache.statistics().entries, 0);
}

#[test]
fn parts_and_wholes_of_the_programs_memory_are_told_apart() {
    let Some(rig) = Rig::new("parts_and_wholes_of_the_programs_memory_are_told_apart") else { return };
    let whole = rig.memory(1 << 16);
    // SAFETY: a part of `whole`, which is dropped later.
    let part = unsafe { GpuMemory::from_raw(&rig.context, whole.address() + 4096, 100, ()) }.unwrap();
    // SAFETY: as above, and at the same address.
    let first = unsafe { GpuMemory::from_raw(&rig.context, whole.address(), 16, ()) }.unwrap();
    let region = |memory: &GpuMemory| GpuMemoryRegion::register(&rig.pair.pd, memory.clone(), ALL);
    assert_eq!(region(&whole).unwrap().remote().len, 1 << 16);
    assert_eq!(region(&part).unwrap().remote().addr, whole.address() + 4096);
    drop((part, first));
    region(&whole).unwrap();
}
