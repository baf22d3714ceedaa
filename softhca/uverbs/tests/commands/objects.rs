//! Contexts, and objects of every kind: refusals, use counts, and leaks.

use super::*;
use crate::uapi::queues::ModifyQp;
use crate::uapi::verbs::QueryDeviceResp;
use gdsync_sys::verbs as ibv;

#[test]
fn a_context_says_what_libmlx5_must_know() {
    let device = Device::plain();
    let get = |max_cqe_version| {
        let asked = AllocUcontext { max_cqe_version, ..AllocUcontext::new_zeroed() };
        new(object::DEVICE, method::GET_CONTEXT)
            .output(attr::NUM_COMP_VECTORS, 4)
            .output(attr::CORE_SUPPORT, 8)
            .input(attr::UHW_IN, &asked)
            .output(attr::UHW_OUT, size_of::<AllocUcontextResp>())
            .run(&device)
    };
    let answer = get(1).unwrap();
    let context: AllocUcontextResp = answer.output(attr::UHW_OUT);
    assert_eq!((context.tot_bfregs, context.num_dyn_bfregs, context.cqe_version), (0, 0, 1));
    assert_eq!(answer.output::<u32>(attr::NUM_COMP_VECTORS), 1);
    assert_eq!(get(0).err(), Some(libc::EOPNOTSUPP), "too old");
    let query = write(command::QUERY_DEVICE).output(attr::CORE_OUT, size_of::<QueryDeviceResp>());
    let attributes: QueryDeviceResp = query.run(&device).unwrap().output(attr::CORE_OUT);
    assert_eq!((attributes.vendor_id, attributes.phys_port_cnt), (0x02c9, 1));
    assert_eq!(attributes.node_guid, softhca::sysfs::node_guid(0).to_be());
    assert_eq!(
        write(command::QUERY_DEVICE).run(&device).err(),
        Some(libc::ENOSPC),
        "libibverbs' first question"
    );
}

#[test]
fn what_is_not_there_is_said() {
    let device = Device::open();
    assert_eq!(write(4).run(&device).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(new(9, 0).run(&device).err(), Some(libc::EPROTONOSUPPORT), "flows");
    assert_eq!(new(object::PD, 99).run(&device).err(), Some(libc::EPROTONOSUPPORT));
    let port = |port| {
        let command = new(object::DEVICE, method::QUERY_PORT).constant(attr::QUERY_PORT_NUM, port);
        command.output(attr::QUERY_PORT_RESP, 48).run(&device)
    };
    assert!(port(1).is_ok());
    assert_eq!(port(2).err(), Some(libc::EINVAL));
    let gid = |index| {
        let command = new(object::DEVICE, method::QUERY_GID_ENTRY).constant(attr::GID_ENTRY_PORT, 1);
        let command = command.constant(attr::GID_ENTRY_INDEX, index).number(attr::GID_ENTRY_FLAGS, 0);
        command.output(attr::GID_ENTRY_RESP, 32).run(&device)
    };
    assert!(gid(0).is_ok());
    assert_eq!(gid(1).err(), Some(libc::EINVAL));
    for (object, method) in [
        (object::PD, 0),
        (object::MR, 1),
        (object::CQ, 1),
        (object::QP, 1),
        (object::SRQ, 1),
        (object::AH, 0),
    ] {
        assert_eq!(destroy(&device, object, method, 77), Err(libc::ENOENT), "{object}");
    }
    // SAFETY: the path is a C string. There are at most 8 devices.
    let fd = unsafe { hooks::open(c"/dev/infiniband/uverbs7".as_ptr(), libc::O_RDWR, 0) };
    assert_eq!((fd, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    // SAFETY: the hook must refuse an address that is not mapped, which this test checks.
    let result = unsafe { hooks::ioctl(device.0, RDMA_VERBS_IOCTL, std::ptr::dangling_mut()) };
    assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
}

#[test]
fn objects_in_use_stay() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = create_qp(&device, &parts, 2, &asked).unwrap();
    let memory = [0u8; 100];
    let mr = reg_mr(&device, parts.pd, memory.as_ptr() as u64, 100, memory.as_ptr() as u64).unwrap();
    assert_eq!(mr.lkey, mr.rkey);
    assert_eq!(destroy(&device, object::CQ, method::DESTROY, parts.cq), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Err(libc::EBUSY));
    let free_uar = || new(object::UAR, method::UAR_DESTROY).handle(attr::UAR_HANDLE, parts.uar).run(&device);
    assert_eq!(free_uar().err(), Some(libc::EBUSY));
    assert_eq!(
        destroy(&device, object::MR, method::MR_DESTROY, qp),
        Err(libc::EINVAL),
        "another kind of object"
    );
    let gone = new(object::QP, method::DESTROY).handle(attr::HANDLE, qp).output(attr::DESTROY_RESP, 4);
    assert_eq!(gone.run(&device).unwrap().output::<u32>(attr::DESTROY_RESP), 0, "no events");
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Err(libc::EBUSY), "the region");
    assert_eq!(destroy(&device, object::MR, method::MR_DESTROY, mr.mr_handle), Ok(()));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Ok(()));
    assert_eq!(destroy(&device, object::CQ, method::DESTROY, parts.cq), Ok(()));
    assert!(free_uar().is_ok());
}

#[test]
fn memory_that_is_not_there_is_a_fault() {
    let device = Device::open();
    let mut parts = parts(&device);
    assert_eq!(reg_mr(&device, parts.pd, 4096, 100, 0).err(), Some(libc::EFAULT));
    assert_eq!(reg_mr(&device, parts.pd, 4096, 0, 0).err(), Some(libc::EINVAL));
    assert_eq!(reg_mr(&device, 999, parts.rings.ring(), 100, 0).err(), Some(libc::EINVAL));
    let good = a_cq(parts.rings);
    assert_eq!(create_cq(&device, 15, &CreateCq { buf_addr: 4096, ..good }), Err(libc::EFAULT));
    assert_eq!(create_cq(&device, 15, &CreateCq { db_addr: 4096, ..good }), Err(libc::EFAULT));
    assert_eq!(create_cq(&device, 15, &CreateCq { buf_addr: good.buf_addr + 4, ..good }), Err(libc::EINVAL));
    assert_eq!(create_cq(&device, 15, &CreateCq { cqe_size: 32, ..good }), Err(libc::EINVAL));
    assert_eq!(create_cq(&device, 15, &CreateCq { flags: 1 << 0, ..good }), Err(libc::EOPNOTSUPP), "padding");
    assert_eq!(create_cq(&device, 15, &CreateCq { flags: 1 << 5, ..good }), Err(libc::EINVAL), "unknown");
    assert_eq!(create_cq(&device, 15, &CreateCq { cqe_comp_en: 1, ..good }), Err(libc::EOPNOTSUPP));
    assert_eq!(create_cq(&device, u32::MAX, &good), Err(libc::EINVAL));
    assert_eq!(create_cq_on(&device, 1, 15, &good), Err(libc::EINVAL), "there is one completion vector");
    let good = a_qp(&mut parts);
    let refused = |asked: CreateQp| create_qp(&device, &parts, 2, &asked).unwrap_err();
    assert_eq!(refused(CreateQp { buf_addr: 4096, ..good }), libc::EFAULT);
    assert_eq!(refused(CreateQp { db_addr: 0, ..good }), libc::EFAULT);
    assert_eq!(refused(CreateQp { sq_wqe_count: 15, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { rq_wqe_count: u32::MAX, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { bfreg_index: 7, ..good }), libc::EINVAL);
    assert_eq!(refused(CreateQp { flags: 1 << 2, ..good }), libc::EINVAL);
    let with_flags = |flags: u64| {
        create_qp_with(&device, &parts, 2, &good, |command| {
            command.without(attr::QP_FLAGS).attribute(attr::QP_FLAGS, 8, flags)
        })
    };
    assert_eq!(with_flags(1 << 8), Err(libc::EINVAL), "of raw packets only");
}

#[test]
fn attributes_of_a_queue_pair_come_back() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp_handle = create_qp(&device, &parts, 2, &asked).unwrap();
    let modify = |change: ModifyQp| {
        let change = ModifyQp { qp_handle, ..change };
        write(command::MODIFY_QP).input(attr::CORE_IN, &change).run(&device).map(|_| ())
    };
    let none = ModifyQp::new_zeroed();
    let init = ModifyQp {
        attr_mask: ibv::IBV_QP_STATE | ibv::IBV_QP_PORT | ibv::IBV_QP_PKEY_INDEX | ibv::IBV_QP_ACCESS_FLAGS,
        qp_state: 1,
        port_num: 1,
        qp_access_flags: 6,
        ..none
    };
    assert_eq!(modify(ModifyQp { port_num: 2, ..init }), Err(libc::EINVAL));
    assert_eq!(modify(ModifyQp { attr_mask: ibv::IBV_QP_STATE, ..init }), Err(libc::EINVAL));
    assert_eq!(modify(ModifyQp { attr_mask: ibv::IBV_QP_CAP, ..none }), Err(libc::EINVAL));
    let drained = ModifyQp { attr_mask: ibv::IBV_QP_STATE, qp_state: ibv::IBV_QPS_SQD as u8, ..none };
    assert_eq!(modify(drained), Err(libc::EINVAL));
    assert_eq!(modify(init), Ok(()));
    let mut rtr = ModifyQp {
        attr_mask: ibv::IBV_QP_STATE
            | ibv::IBV_QP_AV
            | ibv::IBV_QP_PATH_MTU
            | ibv::IBV_QP_DEST_QPN
            | ibv::IBV_QP_RQ_PSN
            | ibv::IBV_QP_MAX_DEST_RD_ATOMIC
            | ibv::IBV_QP_MIN_RNR_TIMER,
        qp_state: 2,
        path_mtu: 4,
        dest_qp_num: 0x123,
        rq_psn: 77,
        min_rnr_timer: 12,
        max_dest_rd_atomic: 3,
        ..none
    };
    rtr.dest.is_global = 1;
    rtr.dest.dgid[15] = 9;
    for port in [0, 7] {
        rtr.dest.port_num = port;
        assert_eq!(modify(rtr), Err(libc::EINVAL), "the address's port is the queue pair's");
    }
    rtr.dest.port_num = 1;
    rtr.dest.sgid_index = 5;
    assert_eq!(modify(rtr), Err(libc::EINVAL), "there is one GID");
    rtr.dest.sgid_index = 0;
    rtr.dest.traffic_class = 33;
    assert_eq!(modify(rtr), Ok(()));
    let asked = QueryQp { qp_handle, ..QueryQp::new_zeroed() };
    let query =
        write(command::QUERY_QP).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 128).run(&device);
    let answer: QueryQpResp = query.unwrap().output(attr::CORE_OUT);
    assert_eq!((answer.qp_state, answer.path_mtu, answer.dest_qp_num, answer.rq_psn), (2, 4, 0x123, 77));
    assert_eq!(
        (answer.port_num, answer.qp_access_flags, answer.sq_sig_all, answer.max_send_wr),
        (1, 6, 1, 16)
    );
    assert_eq!((answer.dest.dgid[15], answer.dest.traffic_class), (9, 33));
    assert_eq!((answer.max_recv_wr, answer.max_recv_sge), (16, 1), "what was given: 10 were asked for");
    let reset = ModifyQp { attr_mask: ibv::IBV_QP_STATE, ..none };
    assert_eq!(modify(reset), Ok(()));
    assert_eq!(modify(ModifyQp { qp_state: 3, ..reset }), Err(libc::EINVAL), "not from RESET");
}

#[test]
fn closing_takes_everything_and_an_exhausted_card_says_so() {
    let _alone = CARD.write();
    let [device, other] = [(); 2].map(|()| Device(Device::descriptor(), None));
    let mut allocated = 0;
    let refused = loop {
        match alloc_pd(&device) {
            Ok(_) => allocated += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((refused, allocated), (libc::ENOMEM, softhca::card::LIMITS.max_pd));
    assert_eq!(alloc_pd(&other), Err(libc::ENOMEM), "it is the same card");
    drop(device);
    assert!(alloc_pd(&other).is_ok(), "all of them went with their context");
}
