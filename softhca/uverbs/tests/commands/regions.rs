//! Memory regions of files, and the newer command for regions.

use super::*;
use crate::uapi::verbs::ReregMr;

#[test]
fn memory_of_a_file_is_registered_and_a_device_without_memory_is_not() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let register = |fd: i32| {
        let command =
            new(object::MR, method::MR_REG_DMABUF).handle(attr::HANDLE, 0).handle(attr::DMABUF_PD, pd);
        let command = command.attribute(attr::DMABUF_OFFSET, 8, 100).attribute(attr::DMABUF_LENGTH, 8, 5000);
        let command = command.attribute(attr::DMABUF_IOVA, 8, 0).number(attr::DMABUF_FD, fd as u32);
        let command =
            command.number(attr::DMABUF_ACCESS, 1).output(attr::DMABUF_LKEY, 4).output(attr::DMABUF_RKEY, 4);
        command.run(&device)
    };
    // SAFETY: the name is a C string; the test closes the descriptors below.
    let (file, no_memory) = unsafe { (libc::memfd_create(c"test".as_ptr(), 0), libc::eventfd(0, 0)) };
    // SAFETY: the call accesses no memory of the process.
    assert_eq!(unsafe { libc::ftruncate(file, 8192) }, 0);
    let answer = register(file).unwrap();
    assert_ne!(answer.output::<u32>(attr::DMABUF_LKEY), 0);
    let mr = answer.created(attr::HANDLE);
    let query = new(object::MR, method::MR_QUERY).handle(attr::HANDLE, mr).output(attr::MR_QUERY_LENGTH, 8);
    let query = query.output(attr::MR_QUERY_LKEY, 4).output(attr::MR_QUERY_RKEY, 4);
    assert_eq!(query.run(&device).unwrap().output::<u64>(attr::MR_QUERY_LENGTH), 5000);
    // Its rights may change, but not its memory.
    let asked = ReregMr { mr_handle: mr, flags: 4, access_flags: 1, ..ReregMr::new_zeroed() };
    let rereg = |asked| write(command::REREG_MR).input(attr::CORE_IN, &asked).run(&device).map(drop);
    assert_eq!(rereg(asked), Ok(()));
    assert_eq!(rereg(ReregMr { flags: 1, length: 4096, ..asked }), Err(libc::EOPNOTSUPP));
    assert_eq!(register(no_memory).err(), Some(libc::EOPNOTSUPP));
    for fd in [file, no_memory] {
        assert_eq!(hooks::close(fd), 0);
    }
    assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr), Ok(()));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Ok(()));
}

#[test]
fn memory_and_files_are_registered_by_the_newer_command_too() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let memory = vec![0u8; 10_000];
    let command = || {
        let command = new(object::MR, method::MR_REG).handle(attr::HANDLE, 0).handle(attr::REG_MR_PD, pd);
        let command = command.attribute(attr::REG_MR_LENGTH, 8, 5000).number(attr::REG_MR_ACCESS, 1);
        command.output(attr::REG_MR_LKEY, 4).output(attr::REG_MR_RKEY, 4)
    };
    let at = memory.as_ptr() as u64;
    let by_address = command().attribute(attr::REG_MR_IOVA, 8, at).attribute(attr::REG_MR_ADDR, 8, at);
    // SAFETY: the name is a C string; the test closes the descriptor below.
    let file = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    // SAFETY: the call accesses no memory of the process.
    assert_eq!(unsafe { libc::ftruncate(file, 8192) }, 0);
    let of_file = |command: Command| {
        command.attribute(attr::REG_MR_FD_OFFSET, 8, 100).attribute(attr::REG_MR_FD, 0, file as u64)
    };
    for command in [by_address, of_file(command().attribute(attr::REG_MR_IOVA, 8, 0))] {
        let answer = command.run(&device).unwrap();
        let key: u32 = answer.output(attr::REG_MR_LKEY);
        assert!(key != 0 && answer.output::<u32>(attr::REG_MR_RKEY) == key);
        let mr = answer.created(attr::HANDLE);
        assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr), Ok(()));
    }
    let neither = command().attribute(attr::REG_MR_IOVA, 8, 0);
    assert_eq!(neither.run(&device).err(), Some(libc::EINVAL));
    let both = of_file(command().attribute(attr::REG_MR_IOVA, 8, at).attribute(attr::REG_MR_ADDR, 8, at));
    assert_eq!(both.run(&device).err(), Some(libc::EINVAL));
    let unmapped = command().attribute(attr::REG_MR_IOVA, 8, 0).attribute(attr::REG_MR_ADDR, 8, 4096);
    assert_eq!(unmapped.run(&device).err(), Some(libc::EFAULT));
    assert_eq!(hooks::close(file), 0);
}
