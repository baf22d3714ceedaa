use super::*;
use crate::fakes::{Fake, GPU_LEN};
use crate::mapping::Mapping;

#[test]
fn memory_in_a_dma_buf_is_mapped_with_its_offset() {
    for (coherent, caching) in [(false, Caching::WriteCombining), (true, Caching::Cached)] {
        let fake = Fake::new();
        let mapped = map(&fake.kernel(), fake.dma_buf(), 100, 5000, coherent).unwrap();
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
        let refused = map(&fake.kernel(), fake.dma_buf(), 0, 4096, false).err().unwrap();
        assert!(refused.remedy.contains(remedy), "{code}: {refused}");
        fake.end();
    }
}

#[test]
fn more_than_the_buffer_holds_is_refused() {
    let fake = Fake::new();
    let refused = map(&fake.kernel(), fake.dma_buf(), 0, GPU_LEN + 1, false).err().unwrap();
    assert!(refused.remedy.contains("one allocation"), "{refused}");
    let refused = map(&fake.kernel(), fake.dma_buf(), 1, usize::MAX, false).err().unwrap();
    assert!(refused.reason.contains("leave the address space"), "{refused}");
    fake.end();
}

#[test]
fn drivers_that_cannot_are_refused_before_anything_is_made() {
    assert_eq!(check(13_030, true), Ok(()));
    let old = check(13_020, true).unwrap_err();
    assert!(old.reason.contains("13.2") && old.remedy.contains("13.3"), "{old}");
    let closed = check(13_030, false).unwrap_err();
    assert!(closed.remedy.contains("open kernel modules"), "{closed}");
}
