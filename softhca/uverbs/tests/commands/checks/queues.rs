//! Completion queues, shared receive queues and multicast groups.

use super::super::srqs::{a_srq, create_srq, create_srq_with};
use super::super::xrc::open_xrcd;
use super::*;
use crate::uapi::mlx5::{self, CreateSrq};
use crate::uapi::queues::{AttachMcast, ModifyCq, ModifySrq, ResizeCq};

#[test]
fn completion_queues() {
    let device = Device::open();
    let rings = Rings::new();
    let good = a_cq(rings);
    let cq = create_cq(&device, 15, &good).unwrap();
    let create = |cqe, asked: CreateCq| errno_of(create_cq(&device, cqe, &asked));
    let with = |more: &dyn Fn(Command) -> Command| {
        let command = new(object::CQ, method::CREATE)
            .handle(attr::HANDLE, 0)
            .number(attr::CQ_CQE, 15)
            .attribute(attr::CQ_USER_HANDLE, 8, 1)
            .number(attr::CQ_COMP_VECTOR, 0)
            .output(attr::CQ_RESP_CQE, 4)
            .input(attr::UHW_IN, &good);
        errno_of(more(command).run(&device))
    };
    let (inval, notsup, fault) = (libc::EINVAL, libc::EOPNOTSUPP, libc::EFAULT);
    compare(&[
        (
            "UVERBS_METHOD_CQ_CREATE",
            "a vector past the last",
            inval,
            errno_of(create_cq_on(&device, 1, 15, &good)),
        ),
        ("uverbs_get_flags32", "an unknown flag", inval, with(&|command| command.number(attr::CQ_FLAGS, 4))),
        ("uverbs_get_flags32", "timestamps", 0, with(&|command| command.number(attr::CQ_FLAGS, 1))),
        (
            "lookup_get_fd_uobject",
            "no channel",
            libc::EBADF,
            with(&|command| command.handle(attr::CQ_COMP_CHANNEL, device.0 as u32)),
        ),
        ("mlx5_ib_create_cq", "no entry: the ring has one", 0, create(0, good)),
        ("mlx5_ib_create_cq", "too many entries", inval, create(1 << 22, good)),
        ("create_cq_user", "entries of 32 bytes", inval, create(15, CreateCq { cqe_size: 32, ..good })),
        ("create_cq_user", "an unknown flag", inval, create(15, CreateCq { flags: 1 << 15, ..good })),
        ("create_cq_user", "compression", notsup, create(15, CreateCq { cqe_comp_en: 1, ..good })),
        ("create_cq_user", "padding of 64 bytes", notsup, create(15, CreateCq { flags: 1, ..good })),
        ("ib_umem_get", "no memory there", fault, create(15, CreateCq { buf_addr: 4096, ..good })),
        ("mlx5_ib_db_map_user", "no record there", fault, create(15, CreateCq { db_addr: 4096, ..good })),
    ]);
    let resize = |cq_handle, cqe, ring| {
        let asked = ResizeCq { response: 0, cq_handle, cqe };
        let command = write(command::RESIZE_CQ).input(attr::CORE_IN, &asked).input(attr::UHW_IN, &ring);
        errno_of(command.output(attr::CORE_OUT, 8).run(&device))
    };
    let ring = mlx5::ResizeCq { buf_addr: Rings::new().ring(), cqe_size: 64, reserved0: 0, reserved1: 0 };
    let modify = |cq_handle, attr_mask, cq_period, reserved| {
        let asked = ModifyCq { cq_handle, attr_mask, cq_count: 8, cq_period, reserved };
        errno_of(write(command::MODIFY_CQ | EXTENDED).input(attr::CORE_IN, &asked).run(&device))
    };
    compare(&[
        ("ib_uverbs_resize_cq", "no such queue", inval, resize(999, 31, ring)),
        ("mlx5_ib_resize_cq", "no entry", inval, resize(cq, 0, ring)),
        ("mlx5_ib_resize_cq", "too many entries", inval, resize(cq, 1 << 22, ring)),
        ("resize_user", "a reserved field", inval, resize(cq, 31, mlx5::ResizeCq { reserved1: 1, ..ring })),
        ("ib_umem_get", "no memory there", fault, resize(cq, 31, mlx5::ResizeCq { buf_addr: 4096, ..ring })),
        ("ib_uverbs_ex_modify_cq", "nothing to change", inval, modify(cq, 0, 0, 0)),
        ("ib_uverbs_ex_modify_cq", "a reserved field", inval, modify(cq, 1, 0, 1)),
        ("ib_uverbs_ex_modify_cq", "something else", notsup, modify(cq, 2, 0, 0)),
        ("ib_uverbs_ex_modify_cq", "no such queue", inval, modify(999, 1, 0, 0)),
        ("mlx5_ib_modify_cq", "the longest period", 0, modify(cq, 1, 4095, 0)),
        ("mlx5_ib_modify_cq", "a longer one", inval, modify(cq, 1, 4096, 0)),
    ]);
}

#[test]
fn shared_receive_queues() {
    let device = Device::open();
    let parts = parts(&device);
    let good = a_srq(Rings::new());
    let create = |kind, sizes, asked: CreateSrq| errno_of(create_srq(&device, parts.pd, kind, sizes, &asked));
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let of_xrc = |more: &dyn Fn(Command) -> Command| {
        errno_of(create_srq_with(&device, parts.pd, 1, [15, 1], &a_srq(Rings::new()), more))
    };
    let [srq, ..] = create_srq(&device, parts.pd, 0, [15, 2], &good).unwrap();
    let modify = |srq_handle, attr_mask, srq_limit| {
        let asked = ModifySrq { srq_handle, attr_mask, max_wr: 31, srq_limit };
        errno_of(write(command::MODIFY_SRQ).input(attr::CORE_IN, &asked).run(&device))
    };
    let (inval, noent) = (libc::EINVAL, libc::ENOENT);
    let handler = "UVERBS_METHOD_SRQ_CREATE";
    compare(&[
        (handler, "a type that does not exist", inval, create(3, [15, 1], good)),
        (handler, "no such domain", noent, errno_of(create_srq(&device, 999, 0, [15, 1], &good))),
        (
            handler,
            "XRC without a completion queue",
            noent,
            of_xrc(&|command| command.handle(attr::SRQ_XRCD, xrcd)),
        ),
        (handler, "XRC without a domain", noent, of_xrc(&|command| command.handle(attr::SRQ_CQ, parts.cq))),
        ("mlx5_ib_create_srq", "tags, which the card does not match", inval, create(2, [15, 1], good)),
        ("mlx5_ib_create_srq", "too many receives", inval, create(0, [1 << 15, 1], good)),
        ("mlx5_ib_create_srq", "too many elements", inval, create(0, [15, 33], good)),
        (
            "create_srq_user",
            "a reserved field",
            inval,
            create(0, [15, 1], CreateSrq { reserved0: 1, ..good }),
        ),
        (
            "ib_umem_get",
            "no memory there",
            libc::EFAULT,
            create(0, [15, 1], CreateSrq { buf_addr: 4096, ..good }),
        ),
        ("ib_uverbs_modify_srq", "no such queue", inval, modify(999, 0, 0)),
        ("mlx5_ib_modify_srq", "another size", inval, modify(srq, 1, 0)),
        ("mlx5_ib_modify_srq", "a limit of all entries", inval, modify(srq, 2, 16)),
        ("mlx5_ib_modify_srq", "a limit", 0, modify(srq, 2, 15)),
    ]);
}

#[test]
fn multicast_groups() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let [rc, ud] = [2, 4].map(|kind| create_qp(&device, &parts, kind, &asked).unwrap());
    let call = |number, qp_handle, first, mlid| {
        let mut gid = [0x12; 16];
        gid[0] = first;
        gid[8..12].copy_from_slice(&std::process::id().to_be_bytes());
        let asked = AttachMcast { gid, qp_handle, mlid, reserved: 0 };
        errno_of(write(number).input(attr::CORE_IN, &asked).run(&device))
    };
    let attach = |qp, first, lid| call(command::ATTACH_MCAST, qp, first, lid);
    let detach = |qp, first, lid| call(command::DETACH_MCAST, qp, first, lid);
    let inval = libc::EINVAL;
    compare(&[
        ("ib_uverbs_attach_mcast", "no such queue pair", inval, attach(999, 0xff, 0xc001)),
        ("ib_uverbs_detach_mcast", "no such queue pair", inval, detach(999, 0xff, 0xc001)),
        ("ib_uverbs_detach_mcast", "not attached", inval, detach(ud, 0xff, 0xc001)),
        ("ib_attach_mcast", "a unicast GID", inval, attach(ud, 0xfe, 0xc001)),
        ("ib_attach_mcast", "a connected queue pair", inval, attach(rc, 0xff, 0xc001)),
        ("is_valid_mcast_lid", "a unicast LID", inval, attach(ud, 0xff, 0xbfff)),
        ("is_valid_mcast_lid", "the permissive LID", inval, attach(ud, 0xff, 0xffff)),
        ("ib_uverbs_attach_mcast", "a group", 0, attach(ud, 0xff, 0xc001)),
        ("ib_uverbs_attach_mcast", "the same group", 0, attach(ud, 0xff, 0xc001)),
        (
            "uverbs_free_qp",
            "attached",
            libc::EBUSY,
            errno_of(destroy(&device, object::QP, method::DESTROY, ud)),
        ),
        ("ib_uverbs_detach_mcast", "the group", 0, detach(ud, 0xff, 0xc001)),
    ]);
}
