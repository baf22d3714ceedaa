//! Regions, windows, device memory and DEVX user memory.

use super::*;
use crate::uapi::devx::{attr as devx_attr, method as devx_method, object as devx};
use crate::uapi::verbs::{AllocMw, ReregMr, Sge};

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_READ: u32 = 1 << 2;
const REMOTE_ATOMIC: u32 = 1 << 3;
const ZERO_BASED: u32 = 1 << 5;
const ON_DEMAND: u32 = 1 << 6;
const FLUSH: u32 = 1 << 8;
const PAGE: u64 = 4096;

fn reg(device: &Device, asked: RegMr) -> Result<RegMrResp, i32> {
    let command = write(command::REG_MR).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 12);
    Ok(command.run(device)?.output(attr::CORE_OUT))
}

fn rereg(device: &Device, asked: ReregMr) -> i32 {
    errno_of(write(command::REREG_MR).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 8).run(device))
}

#[test]
fn regions() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let start = Rings::new().ring();
    let good =
        RegMr { start, length: 100, hca_va: start, pd_handle: pd, access_flags: 7, ..RegMr::new_zeroed() };
    let asked = |asked: RegMr| errno_of(reg(&device, asked));
    let with = |access_flags| asked(RegMr { access_flags, ..good });
    let range =
        |start, length, hca_va, access_flags| asked(RegMr { start, length, hca_va, access_flags, ..good });
    let (inval, notsup) = (libc::EINVAL, libc::EOPNOTSUPP);
    compare(&[
        ("ib_uverbs_reg_mr", "another offset in the page", inval, range(start, 100, start + 1, 7)),
        ("ib_uverbs_reg_mr", "no such domain", inval, asked(RegMr { pd_handle: 999, ..good })),
        ("ib_check_mr_access", "remote writes without local ones", inval, with(REMOTE_WRITE)),
        ("ib_check_mr_access", "remote atomics without local writes", inval, with(REMOTE_ATOMIC)),
        ("ib_check_mr_access", "remote reads", 0, with(REMOTE_READ)),
        ("ib_check_mr_access", "an unknown right", inval, with(1 << 10)),
        ("ib_check_mr_access", "an unknown optional right", 0, with(1 << 29)),
        ("ib_check_mr_access", "flushes", notsup, with(FLUSH)),
        ("ib_umem_get", "the end of the address space", inval, range(!0 - 99, 100, !0 - 99, 1)),
        ("ib_umem_get", "no byte", inval, range(start, 0, start, 1)),
        ("ib_umem_get", "no memory there", libc::EFAULT, range(PAGE, 100, PAGE, 1)),
        (
            "ib_init_umem_odp",
            "the end of the address space",
            libc::EOVERFLOW,
            range(!0 - 99, 100, !0 - 99, ON_DEMAND),
        ),
        ("create_user_odp_mr", "all memory", 0, range(0, u64::MAX, 0, ON_DEMAND)),
        ("create_user_odp_mr", "all memory from elsewhere", inval, range(0, u64::MAX, PAGE, ON_DEMAND)),
    ]);
    let mr_handle = reg(&device, good).unwrap().mr_handle;
    let on_demand = reg(&device, RegMr { access_flags: ON_DEMAND | LOCAL_WRITE, ..good }).unwrap().mr_handle;
    let same = ReregMr { mr_handle, flags: 4, access_flags: 1, ..ReregMr::new_zeroed() };
    let moved = ReregMr { flags: 1, start, length: 100, hca_va: start, ..same };
    compare(&[
        ("ib_uverbs_rereg_mr", "nothing to change", inval, rereg(&device, ReregMr { flags: 0, ..same })),
        ("ib_uverbs_rereg_mr", "something else", notsup, rereg(&device, ReregMr { flags: 8, ..same })),
        (
            "ib_uverbs_rereg_mr",
            "another offset in the page",
            inval,
            rereg(&device, ReregMr { hca_va: 1, ..moved }),
        ),
        (
            "ib_uverbs_rereg_mr",
            "no such region",
            libc::ENOENT,
            rereg(&device, ReregMr { mr_handle: 999, ..same }),
        ),
        (
            "ib_uverbs_rereg_mr",
            "no such domain",
            inval,
            rereg(&device, ReregMr { flags: 2, pd_handle: 999, ..same }),
        ),
        (
            "ib_check_mr_access",
            "an unknown right",
            inval,
            rereg(&device, ReregMr { access_flags: 1 << 10, ..same }),
        ),
        (
            "mlx5_ib_rereg_user_mr",
            "on demand, and no longer",
            notsup,
            rereg(&device, ReregMr { mr_handle: on_demand, ..same }),
        ),
        (
            "mlx5_ib_rereg_user_mr",
            "on demand, other rights",
            0,
            rereg(
                &device,
                ReregMr { mr_handle: on_demand, access_flags: ON_DEMAND | LOCAL_WRITE | REMOTE_READ, ..same },
            ),
        ),
        (
            "uobj_destroy",
            "a domain in use",
            libc::EBUSY,
            errno_of(destroy(&device, object::PD, method::ONLY_DESTROY, pd)),
        ),
        (
            "rdma_lookup_get_uobject",
            "another kind",
            inval,
            errno_of(destroy(&device, object::MR, method::MR_DESTROY, pd)),
        ),
        (
            "lookup_get_idr_uobject",
            "no such region",
            libc::ENOENT,
            errno_of(destroy(&device, object::MR, method::MR_DESTROY, 999)),
        ),
    ]);
}

#[test]
fn advice_and_windows() {
    let device = Device::open();
    let [pd, other] = [(); 2].map(|()| alloc_pd(&device).unwrap());
    let start = Rings::new().ring();
    let good = RegMr {
        start,
        length: 100,
        hca_va: start,
        pd_handle: pd,
        access_flags: ON_DEMAND,
        ..RegMr::new_zeroed()
    };
    let mr = reg(&device, good).unwrap();
    let pinned = reg(&device, RegMr { access_flags: 1, ..good }).unwrap();
    let advise = |pd, advice, flags, lkey, addr| {
        let sge = Sge { addr, length: 8, lkey };
        let command = new(object::MR, method::MR_ADVISE).handle(attr::ADVISE_PD, pd);
        let command = command.attribute(attr::ADVISE_ADVICE, 8, advice).number(attr::ADVISE_FLAGS, flags);
        errno_of(command.input(attr::ADVISE_SGES, &sge).run(&device))
    };
    let window = |pd_handle, mw_type, driver: u64| {
        let asked = AllocMw { pd_handle, mw_type, ..AllocMw::new_zeroed() };
        let command = write(command::ALLOC_MW).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 8);
        errno_of(command.attribute(attr::UHW_IN, 8, driver).run(&device))
    };
    let (inval, noent, perm) = (libc::EINVAL, libc::ENOENT, libc::EPERM);
    compare(&[
        ("mlx5_ib_advise_mr", "unknown advice", libc::EOPNOTSUPP, advise(pd, 9, 0, mr.lkey, start)),
        ("uverbs_get_flags32", "an unknown flag", inval, advise(pd, 0, 2, mr.lkey, start)),
        ("lookup_get_idr_uobject", "no such domain", noent, advise(999, 0, 0, mr.lkey, start)),
        ("get_prefetchable_mr", "a pinned region", noent, advise(pd, 0, 0, pinned.lkey, start)),
        ("get_prefetchable_mr", "another domain", perm, advise(other, 0, 0, mr.lkey, start)),
        ("get_prefetchable_mr", "writes without the right", perm, advise(pd, 1, 0, mr.lkey, start)),
        ("pagefault_mr", "before the region", libc::EFAULT, advise(pd, 0, 1, mr.lkey, start - 8)),
        ("mlx5_ib_advise_mr", "a region on demand", 0, advise(pd, 0, 1, mr.lkey, start)),
        ("ib_uverbs_alloc_mw", "no such domain", inval, window(999, 1, 0)),
        ("ib_uverbs_alloc_mw", "no type", inval, window(pd, 3, 0)),
        ("mlx5_ib_alloc_mw", "a mask", libc::EOPNOTSUPP, window(pd, 1, 1)),
        ("mlx5_ib_alloc_mw", "a reserved field", libc::EOPNOTSUPP, window(pd, 1, 1 << 40)),
        ("mlx5_ib_alloc_mw", "a count of ranges", 0, window(pd, 1, 1 << 32)),
    ]);
}

#[test]
fn device_memory() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let alloc = |length, log_alignment, kind| {
        let command = new(object::DM, method::DM_ALLOC).handle(attr::HANDLE, 0);
        let command = command.attribute(attr::DM_LENGTH, 8, length).number(attr::DM_ALIGNMENT, log_alignment);
        let command = command.attribute(attr::DM_TYPE, 8, kind);
        command.output(attr::DM_START_OFFSET, 8).output(attr::DM_PAGE_INDEX, 2).run(&device)
    };
    let refused = |length, log_alignment, kind| errno_of(alloc(length, log_alignment, kind));
    let dm = alloc(100, 0, 0).unwrap().created(attr::HANDLE);
    let register = |dm, offset, length, access| {
        let command = new(object::MR, method::MR_DM_REG).handle(attr::HANDLE, 0).handle(attr::DM_MR_PD, pd);
        let command =
            command.attribute(attr::DM_MR_OFFSET, 8, offset).attribute(attr::DM_MR_LENGTH, 8, length);
        let command = command.number(attr::DM_MR_ACCESS, access).handle(attr::DM_MR_DM, dm);
        errno_of(command.output(attr::DM_MR_LKEY, 4).output(attr::DM_MR_RKEY, 4).run(&device))
    };
    let capable =
        [crate::privilege::NET_RAW, crate::privilege::SYS_RAWIO].into_iter().all(crate::privilege::has);
    let steering = if capable { libc::EOPNOTSUPP } else { libc::EPERM };
    let inval = libc::EINVAL;
    compare(&[
        ("check_dm_type_support", "memory of steering", steering, refused(64, 0, 1)),
        ("mlx5_ib_alloc_dm", "no type", libc::EOPNOTSUPP, refused(64, 0, 77)),
        ("mlx5_cmd_alloc_memic", "no byte", inval, refused(0, 0, 0)),
        ("mlx5_cmd_alloc_memic", "a wide alignment", inval, refused(64, 13, 0)),
        ("mlx5_cmd_alloc_memic", "more than there is", libc::ENOMEM, refused(1 << 40, 0, 0)),
        ("UVERBS_METHOD_DM_MR_REG", "no such memory", libc::ENOENT, register(999, 0, 1, ZERO_BASED)),
        ("UVERBS_METHOD_DM_MR_REG", "by its address", inval, register(dm, 0, 1, LOCAL_WRITE)),
        ("UVERBS_METHOD_DM_MR_REG", "past its end", inval, register(dm, 1, 100, ZERO_BASED)),
        ("UVERBS_METHOD_DM_MR_REG", "far past its end", inval, register(dm, u64::MAX, 2, ZERO_BASED)),
        (
            "ib_check_mr_access",
            "remote writes without local ones",
            inval,
            register(dm, 0, 1, ZERO_BASED | REMOTE_WRITE),
        ),
        ("UVERBS_METHOD_DM_MR_REG", "all of it", 0, register(dm, 0, 100, ZERO_BASED)),
        (
            "ib_destroy_usecnt",
            "registered",
            libc::EBUSY,
            errno_of(destroy(&device, object::DM, method::DM_FREE, dm)),
        ),
    ]);
}

#[test]
fn user_memory_of_devx() {
    let device = Device::open();
    let start = Rings::new().ring();
    let register = |addr, len, access, sizes: Option<u64>| {
        let command = new(devx::DEVX_UMEM, devx_method::UMEM_REG).handle(devx_attr::HANDLE, 0);
        let command = command.attribute(devx_attr::UMEM_ADDR, 8, addr).attribute(devx_attr::UMEM_LEN, 8, len);
        let command = command.number(devx_attr::UMEM_ACCESS, access).output(devx_attr::UMEM_ID, 4);
        let with = |command: Command, sizes| command.attribute(devx_attr::UMEM_PAGE_SIZES, 8, sizes);
        errno_of(sizes.into_iter().fold(command, with).run(&device))
    };
    let handler = "MLX5_IB_METHOD_DEVX_UMEM_REG";
    let inval = libc::EINVAL;
    compare(&[
        (handler, "atomics", inval, register(start, PAGE, LOCAL_WRITE | REMOTE_ATOMIC, None)),
        (handler, "on demand", inval, register(start, PAGE, ON_DEMAND, None)),
        (handler, "zero-based", inval, register(start, PAGE, ZERO_BASED, None)),
        (
            "ib_check_mr_access",
            "remote writes without local ones",
            inval,
            register(start, PAGE, REMOTE_WRITE, None),
        ),
        (handler, "no right", 0, register(start, PAGE, 0, None)),
        (
            handler,
            "the rights of rings",
            0,
            register(start, PAGE, LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ, None),
        ),
        ("devx_umem_get", "no byte", inval, register(start, 0, 1, None)),
        ("devx_umem_get", "no memory there", libc::EFAULT, register(PAGE, PAGE, 1, None)),
        ("devx_umem_reg_cmd_alloc", "no page size", inval, register(start, PAGE, 1, Some(0))),
    ]);
}
