use super::*;
use crate::fakes::{Fake, GPU_LEN, Gdrdrv, Nvrm};
use gdsync_sys::gdrdrv::version;

#[test]
fn a_backend_is_asked_for_by_its_name() {
    let named = |name: &str| MappingBackend::named(Some(name.into()));
    for backend in MappingBackend::ALL {
        assert_eq!(named(&backend.to_string()), Ok(Some(backend)));
    }
    assert_eq!((named(""), MappingBackend::named(None)), (Ok(None), Ok(None)));
    for unknown in ["stand-in", "GDRDRV", "gdrcopy"] {
        let error = named(unknown).unwrap_err().to_string();
        assert!(
            error.contains(unknown) && error.contains("GDSYNC_MAPPING") && error.contains("dma-buf"),
            "{error}"
        );
    }
}

fn check_support(backend: MappingBackend, kernel: &Arc<dyn Kernel>, by_name: bool) -> Result<(), Refusal> {
    backend.check_support_by(kernel, by_name, || Ok(true))
}

#[test]
fn a_module_says_its_version_and_whether_it_keeps_memory() {
    for (minor, keeps) in [(6, true), (5, false), (3, false)] {
        let fake = Fake::with_gdrdrv(Gdrdrv::new(version(2, minor), keeps));
        let module = GdrdrvModule::of(&fake.kernel()).unwrap();
        assert_eq!((module.version, module.keeps_memory), ((2, minor), keeps));
        assert_eq!(check_support(MappingBackend::Gdrdrv, &fake.kernel(), false), Ok(()));
        fake.end();
    }
    let fake = Fake::with_gdrdrv(Gdrdrv::new(version(1, 9), false));
    assert_eq!(
        GdrdrvModule::of(&fake.kernel()).map(drop),
        check_support(MappingBackend::Gdrdrv, &fake.kernel(), false)
    );
    assert!(GdrdrvModule::of(&fake.kernel()).is_err());
    fake.end();
}

#[test]
fn the_resource_manager_counts_where_its_driver_is_known_and_its_file_opens() {
    let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
    let works = |by_name| check_support(MappingBackend::ResourceManager, &fake.kernel(), by_name);
    assert_eq!((works(false), works(true)), (Ok(()), Ok(())));
    fake.end();
    let fake = Fake::with_nvrm("610.1.2", Nvrm::new(&[0], 0));
    let works = |by_name| check_support(MappingBackend::ResourceManager, &fake.kernel(), by_name);
    assert!(works(false).unwrap_err().reason.contains("610"));
    assert_eq!(works(true), Ok(()));
    fake.end();
    // The driver's version file exists, as in a container, but not its device file.
    let fake = Fake::with_nvrm("580.159.04", Nvrm::new(&[0], 0));
    fake.state().no_open = Some((gdsync_sys::nvrm::CONTROL_PATH.to_owned(), libc::ENOENT));
    let refusal = check_support(MappingBackend::ResourceManager, &fake.kernel(), false).unwrap_err();
    assert!(refusal.remedy.contains("container"), "{refusal}");
    fake.end();
}

#[test]
fn a_machine_without_them_says_what_is_missing() {
    let kernel = Fake::new().kernel();
    for backend in [MappingBackend::Gdrdrv, MappingBackend::ResourceManager, MappingBackend::StandIn] {
        let refusal = check_support(backend, &kernel, false).unwrap_err();
        assert!(!refusal.remedy.is_empty(), "{refusal}");
    }
    assert!(MappingBackend::StandIn.check_support(true).is_err());
}

#[test]
fn memory_in_a_dma_buf_is_mapped_with_its_offset() {
    for (coherent, caching) in [(false, Caching::WriteCombining), (true, Caching::Cached)] {
        let fake = Fake::new();
        let mapped = map_dma_buf(&fake.kernel(), fake.dma_buf(), 100, 5000, coherent).unwrap();
        let mapping = Mapping::new(mapped, 5000, true).unwrap();
        let info = mapping.info();
        assert_eq!((info.backend, info.caching, info.offset), (MappingBackend::DmaBuf, caching, 100));
        assert_eq!(info.mapped_size, 5100_usize.next_multiple_of(page_size()));
        mapping.copy_to(0, b"here").unwrap();
        assert_eq!(fake.gpu_reads(100, 4), b"here");
        fake.gpu_writes(5099, b"x");
        let mut seen = [0];
        // The dma-buf keeps the memory: it cannot be freed while mapped.
        mapping.copy_from(4999, &mut seen).unwrap();
        assert_eq!(&seen, b"x");
        drop(mapping);
        fake.end();
    }
}

#[test]
fn every_errno_gets_its_remedy_and_the_buffer_is_closed() {
    for (code, remedy) in [
        (524, "CUDA 13.3"),
        (libc::EOPNOTSUPP, "CUDA 13.3"),
        (libc::ENODEV, "CUDA 13.3"),
        (libc::ENOMEM, "BAR1"),
        (libc::EINVAL, "one allocation"),
        (libc::EAGAIN, "dmesg"),
    ] {
        let fake = Fake::new();
        fake.state().no_mmap = Some(code);
        let refused = map_dma_buf(&fake.kernel(), fake.dma_buf(), 0, 4096, false).err().unwrap();
        assert!(refused.remedy.contains(remedy), "{code}: {refused}");
        fake.end();
    }
}

#[test]
fn more_than_the_buffer_holds_is_refused() {
    let fake = Fake::new();
    let refused = map_dma_buf(&fake.kernel(), fake.dma_buf(), 0, GPU_LEN + 1, false).err().unwrap();
    assert!(refused.remedy.contains("one allocation"), "{refused}");
    let refused = map_dma_buf(&fake.kernel(), fake.dma_buf(), 1, usize::MAX, false).err().unwrap();
    assert!(refused.reason.contains("leave the address space"), "{refused}");
    fake.end();
}

#[test]
fn drivers_that_cannot_are_refused_before_anything_is_made() {
    assert_eq!(check_dma_buf(13_030, true), Ok(()));
    let old = check_dma_buf(13_020, true).unwrap_err();
    assert!(old.reason.contains("13.2") && old.remedy.contains("13.3"), "{old}");
    let closed = check_dma_buf(13_030, false).unwrap_err();
    assert!(closed.remedy.contains("open kernel modules"), "{closed}");
}
