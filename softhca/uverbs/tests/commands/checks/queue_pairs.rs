//! CREATE_QP, MODIFY_QP's values, QUERY_QP, OPEN_QP.

use super::super::dc::create_initiator;
use super::super::srqs::{a_srq, create_srq, create_srq_with};
use super::super::xrc::{create_target, open_xrcd};
use super::*;
use crate::uapi::mlx5::{ModifyQpResp, QP_DC_INITIATOR, QP_DC_TARGET};
use crate::uapi::queues::OpenQp;
use ibv::*;

const RC: u32 = 2;
const UC: u32 = 3;
const UD: u32 = 4;
const RAW_PACKET: u32 = 8;
const XRC_INI: u32 = 9;
const DRIVER: u32 = 0xff;

#[test]
fn create_qp() {
    let device = Device::open();
    let mut parts = parts(&device);
    let good = a_qp(&mut parts);
    let [basic, ..] = create_srq(&device, parts.pd, 0, [15, 1], &a_srq(Rings::new())).unwrap();
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let [of_xrc, ..] = create_srq_with(&device, parts.pd, 1, [15, 1], &a_srq(Rings::new()), |command| {
        command.handle(attr::SRQ_XRCD, xrcd).handle(attr::SRQ_CQ, parts.cq)
    })
    .unwrap();
    let with = |kind, asked: &CreateQp, more: &dyn Fn(Command) -> Command| {
        errno_of(create_qp_with(&device, &parts, kind, asked, more))
    };
    let named = |kind, id, handle| with(kind, &good, &|command| command.without(id).handle(id, handle));
    let lacking = |kind, id| with(kind, &good, &|command| command.without(id));
    let flagged = |kind, flags: u64| {
        with(kind, &good, &|command| command.without(attr::QP_FLAGS).attribute(attr::QP_FLAGS, 8, flags))
    };
    let asked = |asked: CreateQp| with(RC, &asked, &|command| command);
    let driver = |flags| with(DRIVER, &CreateQp { flags, ..good }, &|command| command);
    let source = |kind| with(kind, &good, &|command| command.number(attr::QP_SOURCE_QPN, 5));
    let raw = if crate::privilege::has(crate::privilege::NET_RAW) { libc::EOPNOTSUPP } else { libc::EPERM };
    let (multicast, fcs, vlan, padding) = (1 << 1, 1 << 8, 1 << 9, 1 << 11);
    let handler = "UVERBS_METHOD_QP_CREATE";
    let (flags, create) = ("check_creation_flags", "process_create_flags");
    let (inval, noent, notsup) = (libc::EINVAL, libc::ENOENT, libc::EOPNOTSUPP);
    compare(&[
        (handler, "a type that does not exist", inval, named(5, attr::QP_PD, parts.pd)),
        (handler, "raw packets", raw, named(RAW_PACKET, attr::QP_PD, parts.pd)),
        (handler, "no domain", noent, lacking(RC, attr::QP_PD)),
        (handler, "no queue for sends", noent, lacking(RC, attr::QP_SEND_CQ)),
        (handler, "no queue for receives", noent, lacking(UD, attr::QP_RECV_CQ)),
        (handler, "XRC initiators need none for receives", 0, lacking(XRC_INI, attr::QP_RECV_CQ)),
        ("rdma_lookup_get_uobject", "no such domain", noent, named(RC, attr::QP_PD, 999)),
        ("rdma_lookup_get_uobject", "another kind of object", inval, named(RC, attr::QP_PD, parts.cq)),
        (handler, "an XRC domain", inval, named(RC, attr::QP_XRCD, xrcd)),
        (handler, "an SRQ of an XRC initiator", inval, named(XRC_INI, attr::QP_SRQ, basic)),
        (handler, "an SRQ of XRC", inval, named(RC, attr::QP_SRQ, of_xrc)),
        ("uverbs_get_flags32", "an unknown flag", inval, flagged(RC, 1 << 40)),
        (flags, "multicast loopback on RC", inval, flagged(RC, multicast)),
        (flags, "multicast loopback on UC", inval, flagged(UC, multicast)),
        (flags, "multicast loopback on UD", 0, flagged(UD, multicast)),
        (flags, "checksums on UD", inval, flagged(UD, fcs)),
        (flags, "VLANs on UD", inval, flagged(UD, vlan)),
        (flags, "padding on RC", inval, flagged(RC, padding)),
        (create, "padding on UD", notsup, flagged(UD, padding)),
        (create, "a source number on RC", notsup, source(RC)),
        ("process_vendor_flags", "no type of the driver", inval, driver(0)),
        ("process_vendor_flags", "both types of the driver", inval, driver(QP_DC_TARGET | QP_DC_INITIATOR)),
        ("process_vendor_flags", "an unknown flag", inval, asked(CreateQp { flags: 1 << 30, ..good })),
        ("check_ucmd_data", "a reserved field", inval, asked(CreateQp { reserved: 1, ..good })),
        ("check_qp_attr", "receives of a DC initiator", inval, driver(QP_DC_INITIATOR)),
        ("check_qp_attr", "a DC target without an SRQ", inval, driver(QP_DC_TARGET)),
        ("set_user_buf_size", "no power of two", inval, asked(CreateQp { sq_wqe_count: 3, ..good })),
        ("set_user_buf_size", "too many", inval, asked(CreateQp { sq_wqe_count: 1 << 16, ..good })),
        ("set_rq_size", "a wide stride", inval, asked(CreateQp { rq_wqe_shift: 33, ..good })),
        ("ib_umem_get", "no memory there", libc::EFAULT, asked(CreateQp { buf_addr: 4096, ..good })),
        ("mlx5_ib_db_map_user", "no record there", libc::EFAULT, asked(CreateQp { db_addr: 4096, ..good })),
    ]);
    // A target of XRC has its domain instead of everything else.
    let target = |more: &dyn Fn(Command) -> Command| {
        let command = new(object::QP, method::CREATE)
            .handle(attr::HANDLE, 0)
            .attribute(attr::QP_USER_HANDLE, 8, 1)
            .input(attr::QP_CAP, &QpCap::new_zeroed())
            .constant(attr::QP_TYPE, 10)
            .output(attr::QP_RESP_CAP, 20)
            .output(attr::QP_RESP_NUM, 4)
            .input(attr::UHW_IN, &good);
        errno_of(more(command).run(&device))
    };
    let of = |command: Command| command.handle(attr::QP_XRCD, xrcd);
    compare(&[
        (handler, "no XRC domain", noent, target(&|command| command)),
        (handler, "a domain, too", inval, target(&|command| of(command).handle(attr::QP_PD, parts.pd))),
        (handler, "a queue, too", inval, target(&|command| of(command).handle(attr::QP_RECV_CQ, parts.cq))),
        (handler, "its domain", 0, target(&of)),
    ]);
}

fn modify_with(
    device: &Device,
    asked: &ModifyQp,
    more: impl FnOnce(Command) -> Command,
) -> Result<ModifyQpResp, i32> {
    let command = write(command::MODIFY_QP).input(attr::CORE_IN, asked).output(attr::UHW_OUT, 16);
    Ok(more(command).run(device)?.output(attr::UHW_OUT))
}

fn modify(device: &Device, asked: &ModifyQp) -> i32 {
    errno_of(modify_with(device, asked, |command| command))
}

fn query(device: &Device, qp_handle: u32, attr_mask: u32) -> Result<QueryQpResp, i32> {
    let asked = QueryQp { qp_handle, attr_mask, ..QueryQp::new_zeroed() };
    let command = write(command::QUERY_QP).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 128);
    Ok(command.run(device)?.output(attr::CORE_OUT))
}

const TO_INIT: u32 = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
const TO_RTR: u32 = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
const TO_RTS: u32 = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Values that a change to INIT, RTR or RTS accepts.
fn good(qp_handle: u32, qp_state: u8) -> ModifyQp {
    let attr_mask = [0, TO_INIT, TO_RTR, TO_RTS][usize::from(qp_state)] | IBV_QP_STATE;
    let mut good = ModifyQp { qp_handle, qp_state, attr_mask, ..ModifyQp::new_zeroed() };
    (good.port_num, good.dest.port_num, good.path_mtu) = (1, 1, 3);
    (good.max_rd_atomic, good.max_dest_rd_atomic, good.qp_access_flags) = (1, 1, 0xf);
    good
}

#[test]
fn modify_qp() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = super::create_qp(&device, &parts, RC, &asked).unwrap();
    // From the state before, with one value changed.
    let to = |state: u8, alter: &dyn Fn(&mut ModifyQp)| {
        for state in 0..state {
            assert_eq!(modify(&device, &good(qp, state)), 0);
        }
        let mut asked = good(qp, state);
        alter(&mut asked);
        modify(&device, &asked)
    };
    let uhw = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let asked = good(qp, 0);
        errno_of(modify_with(&device, &asked, |command| command.input(attr::UHW_IN, bytes.as_slice())))
    };
    let (inval, notsup) = (libc::EINVAL, libc::EOPNOTSUPP);
    let (core, driver) = ("modify_qp", "mlx5_ib_modify_qp");
    compare(&[
        (core, "no such queue pair", inval, to(1, &|asked| asked.qp_handle = 999)),
        (core, "another kind of object", inval, to(1, &|asked| asked.qp_handle = parts.pd)),
        ("ib_uverbs_modify_qp", "an unknown attribute", notsup, to(1, &|asked| asked.attr_mask |= 1 << 21)),
        ("ib_uverbs_modify_qp", "a rate limit", notsup, to(1, &|asked| asked.attr_mask |= IBV_QP_RATE_LIMIT)),
        (core, "port 0", inval, to(1, &|asked| asked.port_num = 0)),
        (core, "port 2", inval, to(1, &|asked| asked.port_num = 2)),
        (core, "a state above ERR", inval, to(1, &|asked| asked.qp_state = 7)),
        (driver, "a partition past the table", inval, to(1, &|asked| asked.pkey_index = 128)),
        (driver, "unknown rights, which it ignores", 0, to(1, &|asked| asked.qp_access_flags = !0)),
        (core, "port 0 of the address", inval, to(2, &|asked| asked.dest.port_num = 0)),
        (core, "port 2 of the address", inval, to(2, &|asked| asked.dest.port_num = 2)),
        (
            "rdma_fill_sgid_attr",
            "a source past the table",
            inval,
            to(2, &|asked| {
                (asked.dest.is_global, asked.dest.sgid_index) = (1, 200);
            }),
        ),
        ("ib_rate_to_mlx5", "rate 1", inval, to(2, &|asked| asked.dest.static_rate = 1)),
        ("ib_rate_to_mlx5", "a rate above 800 Gbit/s", inval, to(2, &|asked| asked.dest.static_rate = 24)),
        ("ib_rate_to_mlx5", "a rate", 0, to(2, &|asked| asked.dest.static_rate = 7)),
        ("__mlx5_ib_modify_qp", "MTU 0", inval, to(2, &|asked| asked.path_mtu = 0)),
        ("__mlx5_ib_modify_qp", "MTU 6", inval, to(2, &|asked| asked.path_mtu = 6)),
        ("validate_rd_atomic", "many reads to it", inval, to(2, &|asked| asked.max_dest_rd_atomic = 17)),
        ("validate_rd_atomic", "many reads", inval, to(3, &|asked| asked.max_rd_atomic = 17)),
        ("_ib_modify_qp", "a PSN of 25 bits", 0, to(2, &|asked| asked.rq_psn = 1 << 24 | 5)),
        ("MLX5_SET remote_qpn", "a number of 25 bits", 0, to(2, &|asked| asked.dest_qp_num = 1 << 24 | 9)),
        ("MLX5_SET min_rnr_nak", "a timer of 6 bits", 0, to(2, &|asked| asked.min_rnr_timer = 32 | 3)),
        (driver, "a short part of the driver", inval, uhw(&[0; 3])),
        (driver, "an unknown mask of the driver", notsup, uhw(&[2, 0, 0, 0])),
        (driver, "out-of-order data placement (`get_dp_ooo_cap`)", 0, uhw(&[1, 0, 0, 0])),
        (driver, "a reserved field of the driver", notsup, uhw(&[0, 0, 1 << 16, 0])),
        (driver, "ECE options, which InfiniBand ignores", 0, uhw(&[0, 0, 0, 1 << 28])),
    ]);
    let wide = &|asked: &mut ModifyQp| {
        (asked.timeout, asked.retry_cnt, asked.rnr_retry, asked.sq_psn) =
            (32 | 14, 8 | 5, 8 | 6, 1 << 31 | 7);
        asked.max_rd_atomic = 7;
    };
    assert_eq!(to(3, wide), 0, "fields take their lower bits");
    let now = query(&device, qp, 0).unwrap();
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry, now.sq_psn), (14, 5, 6, 7));
    assert_eq!(now.max_rd_atomic, 8, "the context has logarithms, to which the driver rounds up");
}

#[test]
fn rights_need_a_queue_of_results() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let [with, without] = [(); 2].map(|()| super::create_qp(&device, &parts, RC, &asked).unwrap());
    let rights = |qp| query(&device, qp, 0).unwrap().qp_access_flags;
    for (qp, depth, expected) in [(with, 1, 0xe), (without, 0, 2)] {
        assert_eq!(modify(&device, &good(qp, 1)), 0);
        assert_eq!(rights(qp), 2, "`set_qpc_atomic_flags`: writes only, and none of the local rights");
        assert_eq!(modify(&device, &ModifyQp { max_dest_rd_atomic: depth, ..good(qp, 2) }), 0);
        assert_eq!((rights(qp), query(&device, qp, 0).unwrap().max_dest_rd_atomic), (expected, 1));
    }
}

#[test]
fn query_and_open_qp() {
    let device = Device::open();
    let mut parts = parts(&device);
    let [srq, ..] = create_srq(&device, parts.pd, 0, [15, 1], &a_srq(Rings::new())).unwrap();
    let asked = CreateQp { flags: QP_DC_TARGET, ..CreateQp::new_zeroed() };
    let target = create_qp_with(&device, &parts, DRIVER, &asked, |command| command.handle(attr::QP_SRQ, srq));
    let target = target.unwrap();
    let ask = |mask| errno_of(query(&device, target, mask));
    let early = ask(IBV_QP_STATE);
    assert_eq!(modify(&device, &good(target, 1)), 0);
    let mut ready = ModifyQp {
        attr_mask: IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER,
        ..good(target, 2)
    };
    ready.dest.static_rate = 41;
    let with_any_rate = modify(&device, &ready);
    let again = create_initiator(&device, &mut parts, None).unwrap();
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let asked = a_qp(&mut parts);
    let (_, qpn) = create_target(&device, xrcd, &asked).unwrap();
    let open = |qpn, qp_type, pd_handle| {
        let asked = OpenQp { qpn, qp_type, pd_handle, ..OpenQp::new_zeroed() };
        errno_of(write(command::OPEN_QP).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 32).run(&device))
    };
    let inval = libc::EINVAL;
    compare(&[
        ("mlx5_ib_dct_query_qp", "a target before RTR", inval, early),
        ("mlx5_ib_modify_dct", "any rate", 0, with_any_rate),
        ("mlx5_ib_dct_query_qp", "a target in RTR", 0, ask(IBV_QP_STATE | IBV_QP_AV)),
        ("mlx5_ib_dct_query_qp", "what it does not have", inval, ask(IBV_QP_QKEY)),
        ("ib_uverbs_query_qp", "no such queue pair", inval, errno_of(query(&device, 999, 0))),
        ("ib_uverbs_query_qp", "any attribute", 0, errno_of(query(&device, again, !0))),
        ("ib_uverbs_open_qp", "no such domain", inval, open(qpn, 10, 999)),
        ("ib_open_qp", "no target", inval, open(qpn, 2, xrcd)),
        ("ib_open_qp", "no such number", inval, open(qpn + 1, 10, xrcd)),
        ("ib_open_qp", "its number", 0, open(qpn, 10, xrcd)),
    ]);
}
