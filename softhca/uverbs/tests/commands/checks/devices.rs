//! Contexts, ports, address handles, and domains.

use super::super::srqs::{a_srq, create_srq_with};
use super::super::xrc::{close_xrcd, create_target, open_xrcd};
use super::*;
use crate::uapi::verbs::CreateAh;

#[test]
fn contexts() {
    let device = Device::plain();
    let good = AllocUcontext { max_cqe_version: 1, ..AllocUcontext::new_zeroed() };
    let get = |asked: AllocUcontext| {
        let command = new(object::DEVICE, method::GET_CONTEXT).input(attr::UHW_IN, &asked);
        errno_of(command.output(attr::UHW_OUT, size_of::<AllocUcontextResp>()).run(&device))
    };
    let (inval, notsup) = (libc::EINVAL, libc::EOPNOTSUPP);
    let driver = "mlx5_ib_alloc_ucontext";
    compare(&[
        (driver, "an unknown flag", notsup, get(AllocUcontext { flags: 2, ..good })),
        (driver, "a mask", notsup, get(AllocUcontext { comp_mask: 1, ..good })),
        (driver, "a reserved field", notsup, get(AllocUcontext { reserved2: 1, ..good })),
        (
            driver,
            "more fast registers than registers",
            inval,
            get(AllocUcontext { total_num_bfregs: 1, num_low_latency_bfregs: 2, ..good }),
        ),
        (
            driver,
            "a context",
            0,
            get(AllocUcontext { flags: 1, total_num_bfregs: 16, num_low_latency_bfregs: 4, ..good }),
        ),
        ("ib_init_ucontext", "another context", inval, get(good)),
    ]);
}

#[test]
fn ports_and_addresses() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let port = |number| {
        let command = new(object::DEVICE, method::QUERY_PORT).constant(attr::QUERY_PORT_NUM, number);
        errno_of(command.output(attr::QUERY_PORT_RESP, 48).run(&device))
    };
    let gid = |port, index, flags| {
        let command = new(object::DEVICE, method::QUERY_GID_ENTRY).constant(attr::GID_ENTRY_PORT, port);
        let command = command.constant(attr::GID_ENTRY_INDEX, index).number(attr::GID_ENTRY_FLAGS, flags);
        errno_of(command.output(attr::GID_ENTRY_RESP, 32).run(&device))
    };
    let table = |size, room| {
        let command = new(object::DEVICE, method::QUERY_GID_TABLE).constant(attr::GID_TABLE_ENTRY_SIZE, size);
        let command = command.output(attr::GID_TABLE_ENTRIES, room).output(attr::GID_TABLE_NUM_ENTRIES, 8);
        errno_of(command.run(&device))
    };
    let address = |alter: &dyn Fn(&mut CreateAh)| {
        let mut asked = CreateAh { pd_handle: pd, ..CreateAh::new_zeroed() };
        asked.attr.port_num = 1;
        alter(&mut asked);
        let command = write(command::CREATE_AH).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 4);
        errno_of(command.output(attr::UHW_OUT, 16).run(&device))
    };
    let inval = libc::EINVAL;
    compare(&[
        ("ib_query_port", "port 0", inval, port(0)),
        ("ib_query_port", "port 2", inval, port(2)),
        ("UVERBS_METHOD_QUERY_GID_ENTRY", "port 2", inval, gid(2, 0, 0)),
        ("UVERBS_METHOD_QUERY_GID_ENTRY", "a flag", inval, gid(1, 0, 1)),
        ("rdma_get_gid_attr", "past the table", inval, gid(1, 200, 0)),
        ("rdma_get_gid_attr", "the first", 0, gid(1, 0, 0)),
        ("UVERBS_METHOD_QUERY_GID_TABLE", "entries without bytes", inval, table(0, 64)),
        ("rdma_query_gid_table", "no room", inval, table(32, 0)),
        ("rdma_query_gid_table", "room", 0, table(32, 32)),
        ("ib_uverbs_create_ah", "port 0", inval, address(&|asked| asked.attr.port_num = 0)),
        ("ib_uverbs_create_ah", "port 2", inval, address(&|asked| asked.attr.port_num = 2)),
        ("ib_uverbs_create_ah", "no such domain", inval, address(&|asked| asked.pd_handle = 999)),
        (
            "rdma_fill_sgid_attr",
            "a source past the table",
            inval,
            address(&|asked| {
                (asked.attr.is_global, asked.attr.grh.sgid_index) = (1, 200);
            }),
        ),
        ("ib_rate_to_mlx5", "rate 1", inval, address(&|asked| asked.attr.static_rate = 1)),
        ("ib_rate_to_mlx5", "a rate above 800 Gbit/s", inval, address(&|asked| asked.attr.static_rate = 24)),
        ("ib_uverbs_create_ah", "an address", 0, address(&|_| {})),
        (
            "uobj_destroy",
            "a domain in use",
            libc::EBUSY,
            errno_of(destroy(&device, object::PD, method::ONLY_DESTROY, pd)),
        ),
    ]);
}

/// A handle of an XRC domain stays while what was made by it exists, also if the domain has other handles.
#[test]
fn handles_of_xrc_domains() {
    use std::os::fd::AsRawFd;
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let open = |flags| open_xrcd(&device, file.as_raw_fd(), flags);
    let [first, second] = [open(libc::O_CREAT).unwrap(), open(0).unwrap()];
    let (target, _) = create_target(&device, first, &asked).unwrap();
    let [srq, ..] = create_srq_with(&device, parts.pd, 1, [15, 1], &a_srq(Rings::new()), |command| {
        command.handle(attr::SRQ_XRCD, second).handle(attr::SRQ_CQ, parts.cq)
    })
    .unwrap();
    let close = |handle| errno_of(close_xrcd(&device, handle));
    let end = |object, handle| errno_of(destroy(&device, object, method::DESTROY, handle));
    compare(&[
        (
            "ib_uverbs_open_xrcd",
            "no such file",
            libc::EBADF,
            errno_of(open_xrcd(&device, 999_999, libc::O_CREAT)),
        ),
        ("ib_uverbs_open_xrcd", "exclusively", libc::EINVAL, errno_of(open(libc::O_EXCL))),
        ("ib_destroy_usecnt", "the target's handle", libc::EBUSY, close(first)),
        ("ib_destroy_usecnt", "the shared queue's handle", libc::EBUSY, close(second)),
        ("uverbs_free_qp", "the target", 0, end(object::QP, target)),
        ("ib_destroy_usecnt", "the first handle", 0, close(first)),
        ("uverbs_free_srq", "the shared queue", 0, end(object::SRQ, srq)),
        ("ib_destroy_usecnt", "the second handle", 0, close(second)),
        ("lookup_get_idr_uobject", "a closed handle", libc::ENOENT, close(second)),
    ]);
}
