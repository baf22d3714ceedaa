//! Dynamically connected transport.

use super::srqs::{a_srq, create_srq};
use super::*;
use crate::uapi::mlx5::{ModifyQpResp, QP_DC_INITIATOR, QP_DC_TARGET};

const DRIVER: u32 = 0xff;

#[test]
fn a_target_answers_its_number_when_it_is_ready() {
    let device = Device::open();
    let mut parts = parts(&device);
    let [srq, ..] = create_srq(&device, parts.pd, 0, [15, 1], &a_srq(Rings::new())).unwrap();
    // As libmlx5 does: without memory, and with the access key instead of another address.
    let asked = CreateQp { flags: QP_DC_TARGET, sq_buf_addr: 0x1234_5678_9abc, ..CreateQp::new_zeroed() };
    assert_eq!(create_qp(&device, &parts, DRIVER, &asked), Err(libc::EINVAL), "without a shared queue");
    assert_eq!(with_srq(&device, &parts, srq, 2, &asked), Err(libc::EINVAL), "another type");
    let both = CreateQp { flags: QP_DC_TARGET | QP_DC_INITIATOR, ..asked };
    assert_eq!(with_srq(&device, &parts, srq, DRIVER, &both), Err(libc::EINVAL));
    let qp_handle = with_srq(&device, &parts, srq, DRIVER, &asked).unwrap();
    let modify = |asked| {
        let command = write(command::MODIFY_QP).input(attr::CORE_IN, &ModifyQp { qp_handle, ..asked });
        Ok::<ModifyQpResp, i32>(command.output(attr::UHW_OUT, 16).run(&device)?.output(attr::UHW_OUT))
    };
    let none = ModifyQp::new_zeroed();
    let basic = ibv::IBV_QP_STATE | ibv::IBV_QP_PORT | ibv::IBV_QP_PKEY_INDEX;
    let init = ModifyQp { attr_mask: basic | ibv::IBV_QP_ACCESS_FLAGS, qp_state: 1, port_num: 1, ..none };
    assert!(modify(init).is_ok());
    let rtr_mask = ibv::IBV_QP_STATE | ibv::IBV_QP_AV | ibv::IBV_QP_PATH_MTU;
    let rtr = ModifyQp { attr_mask: rtr_mask, qp_state: 2, path_mtu: 3, min_rnr_timer: 12, ..none };
    assert_eq!(modify(rtr).err(), Some(libc::EINVAL), "the timer is missing");
    let mut rtr = rtr;
    rtr.dest.port_num = 1;
    let ready = modify(ModifyQp { attr_mask: rtr_mask | ibv::IBV_QP_MIN_RNR_TIMER, ..rtr }).unwrap();
    assert!(ready.response_length >= 8 && ready.dctn != 0, "{ready:?}");
    let down = ModifyQp { attr_mask: ibv::IBV_QP_STATE, ..none };
    assert_eq!(modify(down).err(), Some(libc::EINVAL), "a target only goes up");

    let initiator = create_initiator(&device, &mut parts, Some(srq)).unwrap();
    assert_eq!(destroy(&device, object::SRQ, method::DESTROY, srq), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::QP, method::DESTROY, qp_handle), Ok(()));
    assert_eq!(destroy(&device, object::SRQ, method::DESTROY, srq), Ok(()), "an initiator has no receives");
    assert_eq!(destroy(&device, object::QP, method::DESTROY, initiator), Ok(()));
}

/// Returns the handle of a new initiator, which has no receives.
pub(super) fn create_initiator(device: &Device, parts: &mut Parts, srq: Option<u32>) -> Result<u32, i32> {
    let asked = CreateQp { flags: QP_DC_INITIATOR, rq_wqe_count: 0, ..a_qp(parts) };
    let cap = QpCap { max_send_wr: 16, ..QpCap::new_zeroed() };
    create_qp_with(device, parts, DRIVER, &asked, |command| {
        let command = command.without(attr::QP_CAP).input(attr::QP_CAP, &cap);
        srq.into_iter().fold(command, |command, srq| command.handle(attr::QP_SRQ, srq))
    })
}

pub(super) fn with_srq(
    device: &Device,
    parts: &Parts,
    srq: u32,
    kind: u32,
    asked: &CreateQp,
) -> Result<u32, i32> {
    create_qp_with(device, parts, kind, asked, |command| command.handle(attr::QP_SRQ, srq))
}
