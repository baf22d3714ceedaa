//! Regions that change, memory windows, device memory.

use super::*;
use crate::uapi::verbs::{AllocMw, AllocMwResp, ReregMr, ReregMrResp, Sge};

const PAGE: u64 = 4096;

/// Two pages, never freed.
fn pages() -> u64 {
    #[repr(C, align(4096))]
    struct Pages([u8; 8192]);
    Box::leak(Box::new(Pages([0; 8192]))).0.as_mut_ptr() as u64
}

fn rereg(device: &Device, asked: ReregMr) -> Result<u32, i32> {
    let command = write(command::REREG_MR).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 8);
    Ok(command.run(device)?.output::<ReregMrResp>(attr::CORE_OUT).lkey)
}

#[test]
fn a_region_changes_only_as_a_kernel_lets_it() {
    let device = Device::open();
    let (pd, at) = (alloc_pd(&device).unwrap(), pages());
    let mr = reg_mr(&device, pd, at, PAGE, at).unwrap();
    let asked = ReregMr { mr_handle: mr.mr_handle, pd_handle: pd, ..ReregMr::new_zeroed() };
    let moved = ReregMr { flags: 1, start: at + PAGE, length: PAGE, hca_va: at + PAGE, ..asked };
    assert_eq!(rereg(&device, moved), Ok(mr.lkey), "the key stays");
    assert_eq!(rereg(&device, ReregMr { flags: 6, access_flags: 1, ..asked }), Ok(mr.lkey));
    let cases: [(&str, ReregMr, i32); 9] = [
        ("nothing", asked, libc::EINVAL),
        ("something unknown", ReregMr { flags: 8, ..asked }, libc::EOPNOTSUPP),
        ("an address with another page offset", ReregMr { hca_va: at + 1, ..moved }, libc::EINVAL),
        ("what is not mapped", ReregMr { start: PAGE, hca_va: PAGE, ..moved }, libc::EFAULT),
        ("rights of flushes", ReregMr { flags: 4, access_flags: 1 << 9, ..asked }, libc::EOPNOTSUPP),
        ("unknown rights", ReregMr { flags: 4, access_flags: 1 << 10, ..asked }, libc::EINVAL),
        ("rights that contradict", ReregMr { flags: 4, access_flags: 2, ..asked }, libc::EINVAL),
        ("a domain that is none", ReregMr { flags: 2, pd_handle: mr.mr_handle, ..asked }, libc::EINVAL),
        ("a region that is none", ReregMr { flags: 4, mr_handle: pd, ..asked }, libc::EINVAL),
    ];
    for (name, asked, errno) in cases {
        assert_eq!(rereg(&device, asked), Err(errno), "{name}");
    }
    assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr.mr_handle), Ok(()));
}

fn advise(device: &Device, pd: u32, kind: u64, flags: u32, sges: &[u8]) -> Result<(), i32> {
    let command = new(object::MR, method::MR_ADVISE).handle(attr::ADVISE_PD, pd);
    let command = command.attribute(attr::ADVISE_ADVICE, 8, kind).number(attr::ADVISE_FLAGS, flags);
    let len = sges.len() as u16;
    command.attribute(attr::ADVISE_SGES, len, sges.as_ptr() as u64).run(device).map(drop)
}

#[test]
fn advice_is_for_on_demand_memory_of_its_domain() {
    let device = Device::open();
    let (pd, other, at) = (alloc_pd(&device).unwrap(), alloc_pd(&device).unwrap(), pages());
    let asked = RegMr {
        start: at,
        length: 8192,
        hca_va: at,
        pd_handle: pd,
        access_flags: 1 << 6,
        ..RegMr::new_zeroed()
    };
    let command = write(command::REG_MR).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 12);
    let mr: RegMrResp = command.run(&device).unwrap().output(attr::CORE_OUT);
    let sge = Sge { addr: at, length: 8192, lkey: mr.lkey };
    let (fetch, for_writes, no_fault, wait) = (0, 1, 2, 1);
    let outside = Sge { addr: at - 1, ..sge };
    let stale = Sge { lkey: mr.lkey ^ 1, ..sge };
    type Case = (&'static str, u32, u64, u32, Vec<u8>, Result<(), i32>);
    let cases: [Case; 9] = [
        ("fetch", pd, fetch, wait, sge.as_bytes().into(), Ok(())),
        ("look", pd, no_fault, wait, sge.as_bytes().into(), Ok(())),
        ("another domain", other, fetch, 0, sge.as_bytes().into(), Err(libc::EPERM)),
        ("writes without the right", pd, for_writes, 0, sge.as_bytes().into(), Err(libc::EPERM)),
        ("beside the region", pd, fetch, 0, outside.as_bytes().into(), Err(libc::EFAULT)),
        ("a key that is none", pd, fetch, 0, stale.as_bytes().into(), Err(libc::ENOENT)),
        ("unknown flags", pd, fetch, 2, sge.as_bytes().into(), Err(libc::EINVAL)),
        ("unknown advice", pd, 3, 0, sge.as_bytes().into(), Err(libc::EOPNOTSUPP)),
        ("half an element", pd, fetch, 0, sge.as_bytes()[..12].into(), Err(libc::EINVAL)),
    ];
    for (name, pd, kind, flags, sges, expected) in cases {
        assert_eq!(advise(&device, pd, kind, flags, &sges), expected, "{name}");
    }
    assert_eq!(advise(&device, pd, fetch, 0, &[]), Err(libc::EINVAL));
}

#[test]
fn ranges_that_the_kernel_refuses_are_refused() {
    let device = Device::open();
    let (pd, at) = (alloc_pd(&device).unwrap(), pages());
    let reg = |start, length, iova| reg_mr(&device, pd, start, length, iova).map(drop);
    assert_eq!(reg(at + 100, 1000, 0x7000064), Ok(()));
    assert_eq!(reg(at + 100, 1000, 0x7000000), Err(libc::EINVAL), "another offset in its page");
    assert_eq!(reg(u64::MAX - 100, 4096, u64::MAX - 100), Err(libc::EINVAL), "it wraps around");
    assert_eq!(reg(0, u64::MAX, 0), Err(libc::EINVAL), "so do the pages of all memory");
    let all = RegMr { length: u64::MAX, pd_handle: pd, access_flags: 1 << 6, ..RegMr::new_zeroed() };
    let command = write(command::REG_MR).input(attr::CORE_IN, &all).output(attr::CORE_OUT, 12);
    assert!(command.run(&device).is_ok(), "unless it is on demand");
    assert_eq!(reg(0x10000, 4096, 0x10000), Err(libc::EFAULT), "nothing is there");
}

#[test]
fn windows_belong_to_a_domain() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let alloc = |pd_handle, mw_type| {
        let asked = AllocMw { pd_handle, mw_type, ..AllocMw::new_zeroed() };
        let command = write(command::ALLOC_MW).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 8);
        Ok::<AllocMwResp, i32>(command.run(&device)?.output(attr::CORE_OUT))
    };
    let (one, two) = (alloc(pd, 1).unwrap(), alloc(pd, 2).unwrap());
    assert_ne!(one.rkey, two.rkey);
    assert_eq!(alloc(pd, 0).err(), Some(libc::EINVAL));
    assert_eq!(alloc(one.mw_handle, 1).err(), Some(libc::EINVAL));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Err(libc::EBUSY));
    for mw in [one, two] {
        assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mw.mw_handle), Err(libc::EINVAL));
        assert_eq!(destroy(&device, object::MW, method::ONLY_DESTROY, mw.mw_handle), Ok(()));
    }
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, pd), Ok(()));
}

fn alloc_dm(device: &Device, length: u64, log_alignment: u32, kind: u64) -> Result<(u32, u16), i32> {
    let command = new(object::DM, method::DM_ALLOC).handle(attr::HANDLE, 0);
    let command = command.attribute(attr::DM_LENGTH, 8, length).number(attr::DM_ALIGNMENT, log_alignment);
    let command = command.attribute(attr::DM_TYPE, 8, kind);
    let answer = command.output(attr::DM_START_OFFSET, 8).output(attr::DM_PAGE_INDEX, 2).run(device)?;
    assert_eq!(answer.output::<u64>(attr::DM_START_OFFSET), 0);
    Ok((answer.created(attr::HANDLE), answer.output(attr::DM_PAGE_INDEX)))
}

#[test]
fn device_memory_is_mapped_by_its_page() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    for (length, log_alignment, kind, errno) in [
        (0, 0, 0, libc::EINVAL),
        (1 << 40, 0, 0, libc::ENOMEM),
        (64, 13, 0, libc::EINVAL),
        (64, 0, 1, libc::EOPNOTSUPP),
    ] {
        assert_eq!(alloc_dm(&device, length, log_alignment, kind), Err(errno), "{length} {kind}");
    }
    let (dm, page) = alloc_dm(&device, PAGE + 1, 12, 0).unwrap();
    let map = |page: u64, len: usize| {
        let (shared, offset) = (libc::MAP_SHARED, (8 << 8 | page) as i64 * PAGE as i64);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        unsafe { hooks::mmap(std::ptr::null_mut(), len, rights, shared, device.0, offset) }
    };
    let mapped = map(page.into(), 8192);
    assert_ne!(mapped, libc::MAP_FAILED);
    assert_eq!(map(page.into(), 3 * 4096), libc::MAP_FAILED, "more than was allocated");
    assert_eq!(map(page as u64 + 1, 4096), libc::MAP_FAILED, "no beginning");
    // SAFETY: mapped above, and not used.
    assert_eq!(unsafe { libc::munmap(mapped, 8192) }, 0);
    let query = new(object::DM, method::DM_QUERY).handle(attr::DM_QUERY_HANDLE, dm);
    let query = query.output(attr::DM_QUERY_START_OFFSET, 8).output(attr::DM_QUERY_PAGE_INDEX, 2);
    let answer = query.output(attr::DM_QUERY_LENGTH, 8).run(&device).unwrap();
    assert_eq!(answer.output::<u64>(attr::DM_QUERY_LENGTH), PAGE + 64, "in units of 64 bytes");
    let register = |offset: u64, length: u64, access: u32| {
        let command = new(object::MR, method::MR_DM_REG).handle(attr::HANDLE, 0).handle(attr::DM_MR_PD, pd);
        let command =
            command.attribute(attr::DM_MR_OFFSET, 8, offset).attribute(attr::DM_MR_LENGTH, 8, length);
        let command = command.number(attr::DM_MR_ACCESS, access).handle(attr::DM_MR_DM, dm);
        let answer = command.output(attr::DM_MR_LKEY, 4).output(attr::DM_MR_RKEY, 4).run(&device)?;
        Ok::<u32, i32>(answer.created(attr::HANDLE))
    };
    let mr = register(1, PAGE, 1 << 5 | 1).unwrap();
    let asked = ReregMr { mr_handle: mr, flags: 4, access_flags: 1, ..ReregMr::new_zeroed() };
    assert_eq!(rereg(&device, asked), Err(libc::EINVAL), "a region of device memory");
    assert_eq!(register(2, PAGE, 1 << 5).err(), Some(libc::EINVAL), "beyond its end");
    assert_eq!(register(0, PAGE, 1).err(), Some(libc::EINVAL), "by address");
    assert_eq!(destroy(&device, object::DM, method::DM_FREE, dm), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr), Ok(()));
    let first = crate::uapi::ioctl::DRIVER;
    let operation = new(object::DM, method::DM_MAP_OP_ADDR).handle(first, dm).attribute(first + 1, 1, 0);
    let operation = operation.output(first + 2, 8).output(first + 3, 2).run(&device);
    assert_eq!(operation.err(), Some(libc::EOPNOTSUPP));
    assert_eq!(destroy(&device, object::DM, method::DM_FREE, dm), Ok(()));
    assert_eq!(map(page.into(), 4096), libc::MAP_FAILED, "freed");
}
