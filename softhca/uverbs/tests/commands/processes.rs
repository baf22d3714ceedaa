//! Devices across fork, vfork and the end of processes.

use super::*;

#[test]
fn the_child_of_a_fork_has_a_card_of_its_own_at_the_same_address() {
    let device = Device::open();
    let lid = |device: &Device| {
        let command = new(object::DEVICE, method::QUERY_PORT).number(attr::QUERY_PORT_NUM, 1);
        let answer: [u8; 48] = command.output(attr::QUERY_PORT_RESP, 48).run(device).unwrap().output(1);
        u16::from_ne_bytes([answer[22], answer[23]])
    };
    let parents = lid(&device);
    assert_ne!(parents, 0);
    // SAFETY: the child uses only the library and its own card, and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let inherited =
            new(object::DEVICE, method::QUERY_PORT).number(attr::QUERY_PORT_NUM, 1).run(&device).err();
        let own = Device::open();
        let fine = inherited == Some(libc::ENOTTY) && lid(&own) == parents;
        // SAFETY: the call ends the child immediately.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place; `fork` has returned the child's id.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert_eq!(lid(&device), parents, "nothing has changed for the parent");
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
