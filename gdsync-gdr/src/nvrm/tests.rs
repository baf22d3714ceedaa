use super::*;
use crate::backend::MappingError;
use crate::fakes::{EXPORTED, Fake, GPU_LEN, INSTANCE, Nvrm};
use crate::mapping::Mapping;

const BUS: &str = "0000:18:00.0";

fn map_as(fake: &Arc<Fake>, target: (&str, bool), size: usize) -> Result<Mapping, Refusal> {
    // SAFETY: the fake's export identifier, which is never read or closed.
    let exported = unsafe { BorrowedFd::borrow_raw(EXPORTED) };
    let mapped = map(&fake.kernel(), target, exported, size)?;
    Ok(Mapping::new(mapped, size, true).unwrap())
}

fn known(fake: &Arc<Fake>, size: usize) -> Result<Mapping, Refusal> {
    map_as(fake, (BUS, false), size)
}

fn refusal(fake: &Arc<Fake>) -> Refusal {
    let refusal = known(fake, GPU_LEN).unwrap_err();
    fake.end();
    refusal
}

fn driver(nvrm: Nvrm) -> Arc<Fake> {
    Fake::with_nvrm("580.159.04", nvrm)
}

#[test]
fn exported_memory_is_mapped_and_everything_is_given_back() {
    let fake = driver(Nvrm::new(&[0, 1, 2], 1));
    let mapping = known(&fake, GPU_LEN).unwrap();
    let info = mapping.info();
    assert_eq!((info.backend, info.caching), (MappingBackend::ResourceManager, Caching::WriteCombining));
    assert_eq!((info.mapped_size, info.offset), (GPU_LEN, 0));
    mapping.copy_to(GPU_LEN - 3, b"end").unwrap();
    assert_eq!(fake.gpu_reads(GPU_LEN - 3, 3), b"end");
    fake.gpu_writes(7, b"seen");
    let mut seen = [0; 4];
    mapping.copy_from(7, &mut seen).unwrap();
    assert_eq!(&seen, b"seen");
    drop(mapping);
    fake.end();
}

#[test]
fn a_gpu_whose_file_is_not_named_is_found() {
    let fake = driver(Nvrm::new(&[0, 3, 5], 5));
    // The PCI address in capitals, or no information from the driver.
    let other = ("0000:9A:00.0", false);
    let mapping = map_as(&fake, other, 4096).unwrap();
    mapping.copy_to(0, b"right").unwrap();
    assert_eq!(fake.gpu_reads(0, 5), b"right");
    drop(mapping);
    fake.end();
    // No file belongs to the GPU.
    let fake = driver(Nvrm::new(&[0, 3], 5));
    let refused = map_as(&fake, other, 4096).unwrap_err();
    assert!(
        refused.step.contains("/dev/nvidia0") && refused.reason.contains("INVALID_ARGUMENT"),
        "{refused}"
    );
    fake.end();
}

#[test]
fn only_known_drivers_are_asked_unless_by_name() {
    for (version, major) in [("595.10", "595"), ("535.183.01", "535")] {
        let fake = Fake::with_nvrm(version, Nvrm::new(&[0], 0));
        let refused = refusal(&fake);
        assert!(refused.reason.contains(major) && refused.reason.contains("580"), "{refused}");
        assert!(refused.remedy.contains("by name"), "{refused}");
        drop(map_as(&fake, (BUS, true), 4096).unwrap());
        fake.end();
    }
    let fake = driver(Nvrm::new(&[0], 0));
    fake.state().texts.remove(VERSION_FILES[0]);
    assert!(refusal(&fake).reason.contains("does not tell its version"));
    drop(map_as(&fake, (BUS, true), 4096).unwrap());
    // The other file, with the version inside a sentence.
    let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 12.2.0\n";
    fake.state().texts.insert(VERSION_FILES[1].to_owned(), text.to_owned());
    drop(known(&fake, 4096).unwrap());
    fake.end();
}

#[test]
fn a_version_is_found_amid_words() {
    assert_eq!(major_version("580.159.04\n"), Some(580));
    assert_eq!(major_version("Kernel Module  550.54.15  Tue"), Some(550));
    assert_eq!(major_version("x86_64 v1.2 .5 5. 7"), None);
    assert_eq!(major_version("99999999999.1"), None);
}

#[test]
fn every_status_is_reported_by_name_and_leaves_nothing_behind() {
    for (what, status, said) in [
        (u64::from(raw::CLASS_CLIENT), 0x1b, "INSUFFICIENT_PERMISSIONS"),
        (u64::from(raw::CLASS_DEVICE), 0x26, "INVALID_DEVICE"),
        (u64::from(raw::CLASS_SUBDEVICE), 0x22, "INVALID_CLASS"),
        (u64::from(raw::GET_EXPORT_INFO), 0x24, "INVALID_COMMAND"),
        (u64::from(raw::GET_EXPORT_INFO), 0x3a, "INVALID_PARAM_STRUCT"),
        (u64::from(raw::IMPORT_OBJECTS), 0x57, "OBJECT_NOT_FOUND"),
        (raw::MAP_MEMORY, 0x51, "BAR1"),
        (raw::MAP_MEMORY, 0x56, "NOT_SUPPORTED"),
        (raw::MAP_MEMORY, 0x4321, "0x4321"),
    ] {
        let mut nvrm = Nvrm::new(&[0], 0);
        nvrm.refuses = Some((what, status));
        let refused = refusal(&driver(nvrm)).to_string();
        assert!(refused.contains(said), "{what:#x}: {refused}");
    }
}

#[test]
fn every_request_may_fail_and_leaves_nothing_behind() {
    for request in [raw::ALLOC, raw::CONTROL, raw::MAP_MEMORY, raw::REGISTER_FD] {
        for code in [libc::EINVAL, libc::EFAULT, libc::ENOTTY] {
            let fake = driver(Nvrm::new(&[0], 0));
            fake.state().no_ioctl = Some((request, code));
            let refused = refusal(&fake);
            assert!(refused.remedy.contains("unlike that of driver 580"), "{request:#x}: {refused}");
        }
    }
    let fake = driver(Nvrm::new(&[0], 0));
    fake.state().no_mmap = Some(libc::ENOMEM);
    let refused = refusal(&fake);
    assert!(refused.step.contains("/dev/nvidia0") && refused.remedy.contains("BAR1"), "{refused}");
}

#[test]
fn files_that_do_not_open_are_named() {
    let fake = Fake::new();
    fake.state().texts.insert(VERSION_FILES[0].to_owned(), "580.1".to_owned());
    let refused = refusal(&fake);
    assert!(refused.step.contains("/dev/nvidiactl") && refused.remedy.contains("container"), "{refused}");
    for path in [raw::CONTROL_PATH, "/dev/nvidia0"] {
        let fake = driver(Nvrm::new(&[0], 0));
        fake.state().no_open = Some((path.to_owned(), libc::EACCES));
        let refused = refusal(&fake);
        assert!(refused.step.contains(path) && refused.remedy.contains("right to"), "{refused}");
    }
}

#[test]
fn odd_answers_are_refused() {
    let mut nvrm = Nvrm::new(&[0], 0);
    nvrm.renames = true;
    let refused = refusal(&driver(nvrm));
    assert!(refused.reason.contains("asked for"), "{refused}");
    let mut nvrm = Nvrm::new(&[0], 0);
    nvrm.instance = 4_000_000;
    let refused = refusal(&driver(nvrm));
    assert!(refused.reason.contains("device 4000000"), "{refused}");
    // A wrong GPU instance.
    let mut nvrm = Nvrm::new(&[0], 0);
    nvrm.instance = INSTANCE + 1;
    assert!(refusal(&driver(nvrm)).reason.contains("INVALID_DEVICE"));
    let mut nvrm = Nvrm::new(&[0], 0);
    nvrm.refuses = Some((0, 0));
    assert!(refusal(&driver(nvrm)).step.contains("import"));
}

#[test]
fn failures_of_giving_back_are_survived() {
    let fake = driver(Nvrm::new(&[0], 0));
    let mapping = known(&fake, GPU_LEN).unwrap();
    fake.state().no_ioctl = Some((raw::UNMAP_MEMORY, libc::EINVAL));
    drop(mapping);
    // The mapped file is closed and the client freed, so nothing remains.
    fake.end();
}

#[test]
fn several_mappings_share_the_memory_and_are_dropped_independently() {
    let fake = driver(Nvrm::new(&[0], 0));
    let (first, second) = (known(&fake, GPU_LEN).unwrap(), known(&fake, 4096).unwrap());
    first.copy_to(9, b"shared").unwrap();
    let mut seen = [0; 6];
    second.copy_from(9, &mut seen).unwrap();
    assert_eq!(&seen, b"shared");
    drop(first);
    // The access check is enabled (see `map_as`), and still succeeds: the import keeps the memory.
    assert_eq!(second.copy_to(0, &[1]), Ok(()));
    assert!(matches!(second.copy_to(4096, &[1]), Err(MappingError::OutOfBounds { .. })));
    drop(second);
    fake.end();
}
