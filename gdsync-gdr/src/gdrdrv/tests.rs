use super::*;
use crate::backend::MappingError;
use crate::fakes::{Fake, GPU, GPU_LEN, Gdrdrv as Module};
use crate::mapping::Mapping;

const NEWEST: u32 = raw::version(2, 6);

fn map(fake: &Arc<Fake>, address: u64, len: usize) -> Result<Mapping, Refusal> {
    let mapped = Gdrdrv::open(&fake.kernel())?.map(address, len)?;
    Ok(Mapping::new(mapped, len, true).unwrap())
}

fn refusal(fake: &Arc<Fake>) -> Refusal {
    let refusal = map(fake, GPU, 4096).unwrap_err();
    fake.end();
    refusal
}

#[test]
fn every_protocol_maps_memory_wherever_it_begins() {
    for minor in 0..=6 {
        let fake = Fake::with_gdrdrv(Module::new(raw::version(2, minor), minor >= 5));
        let offset = 3 * 65_536 + 4097;
        let mapping = map(&fake, GPU + offset as u64, 70_000).unwrap();
        let info = mapping.info();
        assert_eq!((info.backend, info.caching), (MappingBackend::Gdrdrv, Caching::WriteCombining));
        assert_eq!((info.page_size, info.mapped_size, info.offset), (65_536, 2 * 65_536, 4097), "2.{minor}");
        mapping.copy_to(69_997, b"end").unwrap();
        assert_eq!(fake.gpu_reads(offset + 69_997, 3), b"end");
        fake.gpu_writes(offset, b"begin");
        let mut seen = [0; 5];
        mapping.copy_from(0, &mut seen).unwrap();
        assert_eq!(&seen, b"begin");
        drop(mapping);
        fake.end();
    }
}

#[test]
fn several_mappings_share_the_memory_and_are_dropped_independently() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
    let (first, second) = (map(&fake, GPU, GPU_LEN).unwrap(), map(&fake, GPU + 100, 1000).unwrap());
    first.copy_to(100, b"shared").unwrap();
    let mut seen = [0; 6];
    second.copy_from(0, &mut seen).unwrap();
    assert_eq!(&seen, b"shared");
    drop(first);
    second.copy_from(0, &mut seen).unwrap();
    assert_eq!(&seen, b"shared");
    drop(second);
    fake.end();
}

#[test]
fn memory_that_was_freed_under_its_mapping_is_an_error() {
    // Modules before 2.5 do not keep memory, and have no request for that.
    for version in [raw::version(2, 0), raw::version(2, 4), NEWEST] {
        let fake = Fake::with_gdrdrv(Module::new(version, false));
        let mapping = map(&fake, GPU, 4096).unwrap();
        mapping.copy_to(0, &[1]).unwrap();
        fake.free_gpu_memory();
        assert_eq!(mapping.copy_to(0, &[1]), Err(MappingError::Freed));
        assert_eq!(mapping.copy_from(0, &mut [0]), Err(MappingError::Freed));
        drop(mapping);
        fake.end();
    }
}

#[test]
fn memory_that_the_module_keeps_outlives_its_owner() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
    let mapping = map(&fake, GPU, 4096).unwrap();
    fake.free_gpu_memory();
    mapping.copy_to(0, &[8]).unwrap();
    assert_eq!(fake.gpu_reads(0, 1), [8]);
    drop(mapping);
    fake.end();
}

#[test]
fn a_flag_that_cannot_be_read_counts_as_freed() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, false));
    let mapping = map(&fake, GPU, 4096).unwrap();
    fake.state().no_ioctl = Some((raw::GET_CB_FLAG, libc::EINVAL));
    assert_eq!(mapping.copy_to(0, &[1]), Err(MappingError::Freed));
    drop(mapping);
    fake.end();
}

#[test]
fn where_the_module_is_missing_or_forbidden_the_remedy_says_so() {
    let refused = refusal(&Fake::new());
    assert!(refused.remedy.contains("modprobe gdrdrv") && refused.step.contains("/dev/gdrdrv"), "{refused}");
    for (code, remedy) in [(libc::EACCES, "right to read"), (libc::EMFILE, "ulimit"), (libc::EIO, "dmesg")] {
        let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
        fake.state().no_open = Some((raw::PATH.to_owned(), code));
        let refused = refusal(&fake);
        assert!(refused.remedy.contains(remedy), "{refused}");
    }
}

#[test]
fn versions_that_do_not_fit_are_named() {
    let refused = refusal(&Fake::with_gdrdrv(Module::new(raw::version(1, 3), false)));
    assert!(refused.reason.contains("1.3") && refused.reason.contains("2.0"), "{refused}");
    let refused = refusal(&Fake::with_gdrdrv(Module::wanting(raw::version(2, 7))));
    assert!(refused.reason.contains("2.7") && refused.reason.contains("2.6"), "{refused}");
}

#[test]
fn every_request_may_fail_and_leaves_nothing_behind() {
    // (protocol, request, errno, text of the refusal)
    let cases = [
        (6, raw::GET_VERSION, libc::EFAULT, "ask gdrdrv for its version"),
        (6, raw::PIN_BUFFER_V2, libc::EINVAL, "cuMemAlloc"),
        (6, raw::PIN_BUFFER_V2, libc::ENOMEM, "BAR1 is full"),
        (6, raw::PIN_BUFFER_V2, libc::EACCES, "not in its parent"),
        (6, raw::PIN_BUFFER_V2, libc::EFAULT, "dmesg"),
        (4, raw::PIN_BUFFER, libc::EINVAL, "cuMemAlloc"),
        (0, raw::PIN_BUFFER, libc::ENOMEM, "BAR1 is full"),
        (6, raw::REQ_MAPPING_TYPE, libc::EOPNOTSUPP, "kind of mapping"),
        (5, raw::REQ_MAPPING_TYPE, libc::EBUSY, "kind of mapping"),
        (4, raw::GET_INFO_V2, libc::EINVAL, "what it mapped"),
        (3, raw::GET_INFO, libc::EFAULT, "what it mapped"),
    ];
    for (minor, request, code, said) in cases {
        let fake = Fake::with_gdrdrv(Module::new(raw::version(2, minor), minor >= 5));
        fake.state().no_ioctl = Some((request, code));
        let refused = refusal(&fake).to_string();
        assert!(refused.contains(said), "{request:#x}: {refused}");
    }
    for (code, said) in [(libc::EINVAL, "freed meanwhile"), (libc::EACCES, "child"), (libc::EAGAIN, "dmesg")]
    {
        let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
        fake.state().no_mmap = Some(code);
        let refused = refusal(&fake).to_string();
        assert!(refused.contains("map what gdrdrv pinned") && refused.contains(said), "{refused}");
    }
}

#[test]
fn what_the_module_itself_refuses_is_reported() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
    // After the memory, before it, at address 0, and around the end of the address space.
    for address in [GPU + GPU_LEN as u64, GPU - 65_536, 0] {
        let refused = map(&fake, address, 4096).unwrap_err();
        assert!(refused.remedy.contains("cuMemAlloc"), "{refused}");
    }
    let refused = map(&fake, u64::MAX - 10, 4096).unwrap_err();
    assert!(refused.reason.contains("leave the address space"), "{refused}");
    // More than BAR1 holds.
    let all: Vec<_> = (0..4).map(|_| map(&fake, GPU, GPU_LEN).unwrap()).collect();
    let refused = map(&fake, GPU, 1).unwrap_err();
    assert!(refused.remedy.contains("BAR1"), "{refused}");
    drop(all);
    drop(map(&fake, GPU, 1).unwrap());
    fake.end();
    // An inherited file.
    fake.state().gdrdrv.as_mut().unwrap().other_process = true;
    assert!(refusal(&fake).reason.contains("denied"));
}

#[test]
fn a_failure_of_unpinning_is_survived() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, true));
    let mapping = map(&fake, GPU, 4096).unwrap();
    fake.state().no_ioctl = Some((raw::UNPIN_BUFFER, libc::EINVAL));
    drop(mapping);
    assert_eq!(fake.state().gdrdrv.as_ref().map(Module::pinned_pages), Some(0), "closing does it");
}

#[test]
fn an_attribute_that_is_not_known_means_that_memory_may_be_freed() {
    let fake = Fake::with_gdrdrv(Module::new(NEWEST, false));
    fake.state().no_ioctl = Some((raw::GET_ATTR, libc::EINVAL));
    let mapping = map(&fake, GPU, 4096).unwrap();
    fake.free_gpu_memory();
    assert_eq!(mapping.copy_to(0, &[1]), Err(MappingError::Freed));
    drop(mapping);
    fake.end();
}

#[test]
fn kinds_of_mapping_are_distinguished_and_unknown_ones_refused() {
    for (kind, minor, expected) in [
        (raw::MR_CACHING, 6, Caching::Cached),
        (raw::MR_CACHING, 3, Caching::Cached),
        (raw::MR_DEVICE, 6, Caching::Device),
        (raw::MR_WC, 3, Caching::WriteCombining),
    ] {
        let mut module = Module::new(raw::version(2, minor), minor >= 5);
        module.kind = kind;
        let fake = Fake::with_gdrdrv(module);
        let mapping = map(&fake, GPU + 3, 500).unwrap();
        assert_eq!(mapping.info().caching, expected);
        mapping.copy_to(1, b"by its own kernel").unwrap();
        assert_eq!(fake.gpu_reads(4, 17), b"by its own kernel");
        drop(mapping);
        fake.end();
    }
    let mut module = Module::new(NEWEST, true);
    module.kind = 9;
    let refused = refusal(&Fake::with_gdrdrv(module));
    assert!(refused.reason.contains("mapping type 9"), "{refused}");
}
