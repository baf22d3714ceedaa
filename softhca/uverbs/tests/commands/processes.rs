//! Devices across fork, vfork and the end of processes.

use super::*;
use crate::hooks::duplicates;

fn lid(device: &Device) -> u16 {
    let command = new(object::DEVICE, method::QUERY_PORT).constant(attr::QUERY_PORT_NUM, 1);
    let answer: [u8; 48] = command.output(attr::QUERY_PORT_RESP, 48).run(device).unwrap().output(1);
    u16::from_ne_bytes([answer[22], answer[23]])
}

/// Runs checks in the child of a fork.
fn in_child(checks: impl FnOnce()) {
    // SAFETY: the child uses only the library and its own cards, and ends here.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_fine = std::panic::catch_unwind(std::panic::AssertUnwindSafe(checks)).is_ok();
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(if is_fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place; `fork` has returned the child's id.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn the_child_of_a_fork_has_cards_of_its_own_at_the_same_address() {
    let device = Device::open();
    let parents = lid(&device);
    assert_ne!(parents, 0);
    in_child(|| {
        // Its pages have the numbers of pages of the device that it has inherited.
        let own = Device::open();
        alloc_uar(&own);
        assert_eq!((lid(&own), lid(&device)), (parents, parents));
        drop(own);
        assert_eq!(lid(&device), parents);
        alloc_uar(&device);
    });
    assert_eq!(lid(&device), parents, "nothing has changed for the parent");
}

#[test]
fn the_child_of_a_fork_has_registers_of_its_parents_device_and_no_other_object() {
    let device = Device::open();
    let (pd, (registers, id)) = (alloc_pd(&device).unwrap(), alloc_uar(&device));
    let (freed, _) = alloc_uar(&device);
    let free =
        |handle| new(object::UAR, method::UAR_DESTROY).handle(attr::UAR_HANDLE, handle).run(&device).err();
    assert_eq!(free(freed), None);
    // SAFETY: the call accesses no memory of the process.
    let duplicate = unsafe { duplicates::dup(device.0) };
    let inherits = || {
        let same = std::mem::ManuallyDrop::new(Device(duplicate, None));
        assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Err(libc::ENOENT));
        let own = alloc_pd(&same).unwrap();
        assert!(own > pd && own > freed, "a handle that no object of the parent has: {own}");
        assert_eq!(
            destroy(&device, object::PD, method::ONLY_DESTROY, own),
            Ok(()),
            "a duplicate is the same device"
        );
        let (_, another) = alloc_uar(&device);
        assert_ne!(another, id);
        assert_eq!(
            [free(freed), free(registers), free(registers)],
            [Some(libc::ENOENT), None, Some(libc::ENOENT)]
        );
    };
    in_child(|| {
        inherits();
        // A child of the child has the pages that are left.
        in_child(|| assert!(alloc_pd(&device).is_ok()));
    });
    in_child(|| in_child(inherits));
    in_child(|| {
        let start = std::sync::Barrier::new(4);
        let allocate = || {
            start.wait();
            alloc_pd(&std::mem::ManuallyDrop::new(Device(device.0, None))).unwrap()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(allocate)).collect();
            let mut handles: Vec<u32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            handles.sort_unstable();
            handles.dedup();
            assert_eq!(handles.len(), 4, "threads that use it first at once share it");
        });
        assert_eq!(crate::process::cards().len(), 1);
    });
    in_child(|| {
        assert_eq!(hooks::close(duplicate), 0);
        // SAFETY: the call accesses no memory of the process.
        let again = unsafe { duplicates::dup(device.0) };
        assert!(
            crate::process::is_device(again) && crate::process::cards().is_empty(),
            "no card before its use"
        );
        assert!(alloc_pd(&std::mem::ManuallyDrop::new(Device(again, None))).is_ok());
        assert_eq!(crate::process::cards().len(), 1);
    });
    in_child(|| {
        // SAFETY: calls that the library does not see; they access no memory of the process.
        let file = unsafe {
            libc::syscall(libc::SYS_close, device.0);
            libc::syscall(libc::SYS_memfd_create, c"other".as_ptr(), 0)
        };
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_dup2, file, device.0) };
        assert_eq!(alloc_pd(&device), Err(libc::ENOTTY), "another file by now");
        assert!(crate::process::cards().is_empty());
    });
    assert_eq!(hooks::close(duplicate), 0);
    assert_eq!(free(registers), None, "nothing has changed for the parent");
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Ok(()));
}

#[test]
fn two_devices_of_a_card_are_two_in_the_child_with_one_card() {
    let devices = [Device::open(), Device::open()];
    let [registers, others] = devices.each_ref().map(|device| alloc_uar(device).0);
    in_child(|| {
        let [one, other] = &devices;
        let free = |device: &Device, handle| {
            new(object::UAR, method::UAR_DESTROY).handle(attr::UAR_HANDLE, handle).run(device).err()
        };
        let pd = alloc_pd(one).unwrap();
        assert_eq!(destroy(other, object::PD, method::ONLY_DESTROY, pd), Err(libc::ENOENT));
        assert_eq!(crate::process::cards().len(), 1);
        assert_eq!(free(one, registers), None);
        assert_eq!(hooks::close(one.0), 0);
        assert_eq!(free(other, others), None);
    });
}

extern "C" fn close_in_child(fd: *mut libc::c_void) -> libc::c_int {
    hooks::close(fd as usize as i32)
}

#[test]
fn a_child_that_shares_memory_closes_its_own_files_only() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let mut stack = vec![0u64; 1 << 15];
    let mut status = -1;
    // SAFETY: as in vfork(2), this thread waits until the child has ended. The child has its own stack and
    // copies of the files.
    let waited = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let top = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(close_in_child, top, flags, device.0 as usize as *mut libc::c_void);
        assert!(child > 0);
        libc::waitpid(child, &mut status, 0)
    };
    assert!(waited > 0 && status == 0, "the child has closed it");
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Ok(()), "it is open here");
}

#[test]
fn what_succeeds_leaves_errno_alone() {
    let device = Device::open();
    let cq = create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    let errno = || std::io::Error::last_os_error().raw_os_error();
    crate::errno::Errno(77).set();
    // The library looks for unread events and finds none: EAGAIN inside.
    destroy(&device, object::CQ, method::DESTROY, cq).unwrap();
    assert_eq!(errno(), Some(77));
    create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    crate::errno::Errno(78).set();
    drop(device);
    assert_eq!(errno(), Some(78));
}
