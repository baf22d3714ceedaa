//! Attributes of a device and its port.

use crate::verbs_bed::*;
use gdsync_sys::verbs::*;
use gdsync_test_support::process::alone;
use softhca::card::PKEYS_VARIABLE;
use std::ffi::CStr;

#[test]
fn a_device_states_its_limits() {
    let bed = Bed::new();
    let mut attr: ibv_device_attr = zeroed();
    // SAFETY: the context is open.
    assert_eq!(unsafe { (api().query_device)(bed.context, &mut attr) }, 0);
    // SAFETY: zero terminated, as the whole struct was zero before.
    let version = unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) }.to_str().unwrap();
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!((attr.phys_port_cnt, attr.max_pkeys, attr.atomic_cap), (1, 1, 1));
    assert_eq!((attr.max_qp_wr, attr.max_cqe), (1 << 15, (1 << 22) - 1));
    assert!(attr.max_qp >= 1000 && attr.max_cq >= 1000 && attr.max_mr >= 1000 && attr.max_pd >= 1000);
    assert_eq!(attr.node_guid, attr.sys_image_guid);

    // The stated maximum is granted.
    let cq = bed.cq(attr.max_cqe as u32);
    let mut qp_attr = bed.qp_attr(cq, cq);
    qp_attr.cap = ibv_qp_cap {
        max_send_wr: attr.max_qp_wr as u32 / 4,
        max_recv_wr: attr.max_qp_wr as u32,
        max_send_sge: 1,
        max_recv_sge: attr.max_sge as u32,
        max_inline_data: 0,
    };
    // SAFETY: everything named is alive.
    let qp = unsafe { (api().mlx5dv_create_qp)(bed.context, &mut qp_attr, NULL.cast()) };
    assert!(!qp.is_null());
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}

#[test]
fn a_port_is_active_infiniband() {
    let bed = Bed::new();
    let mut attr = ibv_port_attr { port_cap_flags2: 77, active_speed_ex: 99, ..Default::default() };
    // SAFETY: the context is open.
    assert_eq!(unsafe { (api().query_port)(bed.context, 1, &mut attr) }, 0);
    assert_eq!((attr.state, attr.phys_state), (IBV_PORT_ACTIVE, 5));
    assert_eq!((attr.max_mtu, attr.active_mtu), (IBV_MTU_4096, IBV_MTU_4096));
    assert_eq!((attr.link_layer, attr.max_msg_sz), (IBV_LINK_LAYER_INFINIBAND, 1 << 30));
    assert_eq!((attr.gid_tbl_len, attr.pkey_tbl_len), (1, 1));
    assert!(attr.active_width > 0 && attr.active_speed > 0);
    assert_eq!(
        (attr.port_cap_flags2, attr.active_speed_ex),
        (77, 99),
        "not the exported function's to write"
    );
    bed.close();
}

#[test]
fn the_table_of_partition_keys_follows_the_setting() {
    let test = "the_table_of_partition_keys_follows_the_setting";
    if !alone(module_path!(), test, &[(PKEYS_VARIABLE, "0xffff,0x8001,0x0002")]) {
        return;
    }
    let bed = Bed::new();
    let (mut device, mut port) = (zeroed::<ibv_device_attr>(), ibv_port_attr::default());
    // SAFETY: the context is open.
    unsafe {
        assert_eq!((api().query_device)(bed.context, &mut device), 0);
        assert_eq!((api().query_port)(bed.context, 1, &mut port), 0);
    }
    assert_eq!((device.max_pkeys, port.pkey_tbl_len, port.bad_pkey_cntr), (3, 3, 0));
    let cq = bed.cq(16);
    let qp = bed.qp(cq);
    let to_init = |pkey_index| ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        port_num: 1,
        pkey_index,
        ..ibv_qp_attr::default()
    };
    assert_eq!(modify(qp, &to_init(3), INIT_MASK), libc::EINVAL);
    assert_eq!(modify(qp, &to_init(2), INIT_MASK), 0);
    assert_eq!(query(qp).0.pkey_index, 2);
    destroy_qp(qp);
    destroy_cq(cq);
    bed.close();
}
