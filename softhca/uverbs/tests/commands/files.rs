//! Attributes and duplicates of devices' descriptors.

use super::*;
use crate::hooks::{duplicates, files};
use std::mem::MaybeUninit;

fn alive(fd: i32) -> bool {
    let device = std::mem::ManuallyDrop::new(Device(fd, None));
    alloc_pd(&device).is_ok()
}

#[test]
fn a_device_is_a_character_device() {
    let device = Device::open();
    let mut facts = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: room for the structure, for which all-zero bytes are a valid value.
    let facts = unsafe {
        assert_eq!(files::fstat(device.0, facts.as_mut_ptr()), 0);
        facts.assume_init()
    };
    assert_eq!((facts.st_mode & libc::S_IFMT, facts.st_rdev), (libc::S_IFCHR, softhca::sysfs::DEVICE_NUMBER));
    let mut facts = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: as above; the path is a C string.
    let facts = unsafe {
        let (place, all) = (facts.as_mut_ptr(), libc::STATX_BASIC_STATS);
        assert_eq!(files::statx(device.0, c"".as_ptr(), libc::AT_EMPTY_PATH, all, place), 0);
        facts.assume_init()
    };
    assert_eq!(u32::from(facts.stx_mode) & libc::S_IFMT, libc::S_IFCHR);
    assert_eq!((facts.stx_rdev_major, facts.stx_rdev_minor), (1, 3));
}

#[test]
fn a_duplicate_is_the_same_device_until_the_last_is_closed() {
    let _others = CARD.read_recursive();
    let device = std::mem::ManuallyDrop::new(Device(Device::descriptor(), None));
    let pd = alloc_pd(&device).unwrap();
    // SAFETY: the calls access no memory of the process.
    let (one, two) =
        unsafe { (duplicates::dup(device.0), duplicates::fcntl(device.0, libc::F_DUPFD_CLOEXEC, 200)) };
    assert!(one >= 0 && two >= 200);
    let other = Device::descriptor();
    // SAFETY: as above. The target is another device, which ends.
    assert_eq!(unsafe { duplicates::dup2(device.0, other) }, other);
    assert_eq!(hooks::close(one), 0);
    for fd in [two, other] {
        let same = std::mem::ManuallyDrop::new(Device(fd, None));
        let handle = alloc_pd(&same).unwrap();
        assert_eq!(
            destroy(&device, object::PD, method::ONLY_DESTROY, handle),
            Ok(()),
            "one space of handles"
        );
    }
    // SAFETY: as above.
    assert_eq!(unsafe { duplicates::dup2(device.0, device.0) }, device.0, "to itself: nothing changes");
    assert!(alive(device.0));
    assert_eq!(hooks::close(device.0), 0);
    assert!(alive(two), "its objects stay");
    let last = std::mem::ManuallyDrop::new(Device(two, None));
    assert_eq!(destroy(&last, object::PD, method::ONLY_DESTROY, pd), Ok(()));
    for fd in [two, other] {
        assert_eq!(hooks::close(fd), 0);
    }
    assert!(crate::process::context(two).is_none() && crate::process::context(other).is_none());
}

#[test]
fn the_system_maps_a_page_of_registers_without_this_library() {
    let device = Device::open();
    let command = new(object::UAR, method::UAR_ALLOC).handle(attr::UAR_HANDLE, 0).constant(attr::UAR_TYPE, 0);
    let command = command.output(attr::UAR_MMAP_OFFSET, 8).output(attr::UAR_MMAP_LENGTH, 4);
    let answer = command.output(attr::UAR_PAGE_ID, 4).run(&device).unwrap();
    let offset = answer.output::<u64>(attr::UAR_MMAP_OFFSET) as libc::off_t;
    let map = |offset| {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, shared, device.0, offset) }
    };
    let page = map(offset);
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page of registers, which nothing else rings.
    let register = unsafe { gdsync_sys::shared::SharedU64::from_ptr(page.cast::<u8>().add(0x800).cast()) };
    register.store(1, std::sync::atomic::Ordering::Release);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while register.load(std::sync::atomic::Ordering::Acquire) != 0 {
        assert!(std::time::Instant::now() < end, "the card does not take the doorbell");
        std::thread::yield_now();
    }
    // SAFETY: `map` made the mapping, and nothing uses it.
    unsafe { libc::munmap(page, 4096) };
}

#[test]
fn a_range_that_is_closed_ends_the_devices_in_it() {
    let device = Device::open();
    // SAFETY: the calls access no memory of the process.
    let last = unsafe { duplicates::fcntl(device.0, libc::F_DUPFD_CLOEXEC, 300) };
    assert!(last >= 300);
    let (first, end) = (last as u32, last as u32);
    // SAFETY: as above; the file is this test's own.
    let close = |flags: u32| unsafe { duplicates::close_range(first, end, flags as i32) };
    assert_eq!(close(libc::CLOSE_RANGE_CLOEXEC), 0);
    assert!(alive(last), "the file was marked only");
    assert_eq!(close(1 << 10), -1, "flags that no system knows");
    assert!(alive(last));
    assert_eq!(close(0), 0);
    assert!(crate::process::context(last).is_none() && alive(device.0));
}
