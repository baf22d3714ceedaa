//! XRC: domains, shared queues, and queue pairs with several handles.

use super::srqs::{a_srq, create_srq_with};
use super::*;
use crate::uapi::queues::{CloseXrcd, OpenQp, OpenQpResp, OpenXrcd};
use std::fs::File;
use std::os::fd::AsRawFd;

pub(super) fn open_xrcd(device: &Device, fd: i32, oflags: i32) -> Result<u32, i32> {
    let asked = OpenXrcd { response: 0, fd: fd as u32, oflags: oflags as u32 };
    let command = write(command::OPEN_XRCD).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 4);
    Ok(command.run(device)?.output(attr::CORE_OUT))
}

pub(super) fn close_xrcd(device: &Device, xrcd_handle: u32) -> Result<(), i32> {
    // Short structures are in the attribute itself.
    let len = size_of::<CloseXrcd>() as u16;
    write(command::CLOSE_XRCD).attribute(attr::CORE_IN, len, xrcd_handle.into()).run(device).map(drop)
}

/// Returns handle and number of a new target.
pub(super) fn create_target(device: &Device, xrcd: u32, asked: &CreateQp) -> Result<(u32, u32), i32> {
    let command = new(object::QP, method::CREATE)
        .handle(attr::HANDLE, 0)
        .handle(attr::QP_XRCD, xrcd)
        .attribute(attr::QP_USER_HANDLE, 8, 0x5678)
        .input(attr::QP_CAP, &QpCap::new_zeroed())
        .constant(attr::QP_TYPE, 10)
        .output(attr::QP_RESP_CAP, 20)
        .output(attr::QP_RESP_NUM, 4)
        .input(attr::UHW_IN, asked)
        .output(attr::UHW_OUT, 40);
    let answer = command.run(device)?;
    Ok((answer.created(attr::HANDLE), answer.output(attr::QP_RESP_NUM)))
}

fn query(device: &Device, qp_handle: u32) -> Result<QueryQpResp, i32> {
    let asked = QueryQp { qp_handle, ..QueryQp::new_zeroed() };
    let command = write(command::QUERY_QP).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, 128);
    Ok(command.run(device)?.output(attr::CORE_OUT))
}

#[test]
fn a_file_names_a_domain() {
    let [device, other] = [Device::open(), Device::open()];
    let file = File::open("/proc/self/exe").unwrap();
    let fd = file.as_raw_fd();
    assert_eq!(open_xrcd(&device, fd, 0), Err(libc::EAGAIN), "it is not open");
    assert_eq!(open_xrcd(&device, 999_999, libc::O_CREAT), Err(libc::EBADF));
    let first = open_xrcd(&device, fd, libc::O_CREAT).unwrap();
    assert_eq!(open_xrcd(&device, fd, libc::O_CREAT | libc::O_EXCL), Err(libc::EINVAL));
    let [again, elsewhere] = [open_xrcd(&device, fd, 0).unwrap(), open_xrcd(&other, fd, 0).unwrap()];
    assert_eq!(close_xrcd(&device, first), Ok(()));
    assert_eq!(destroy(&device, object::XRCD, method::ONLY_DESTROY, again), Ok(()));
    assert_eq!(close_xrcd(&device, again), Err(libc::ENOENT));
    assert_eq!(close_xrcd(&other, elsewhere), Ok(()));
    assert_eq!(open_xrcd(&other, fd, 0), Err(libc::EAGAIN), "the last has closed it");
    let [one, two] = [(); 2].map(|()| open_xrcd(&device, -1, 0).unwrap());
    assert_eq!((close_xrcd(&device, one), close_xrcd(&device, two)), (Ok(()), Ok(())));
}

#[test]
fn targets_and_shared_queues_use_a_domain() {
    let device = Device::open();
    let mut parts = parts(&device);
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let asked = a_srq(Rings::new());
    let create = |kind, cq| {
        create_srq_with(&device, parts.pd, kind, [15, 1], &asked, |command| {
            command.handle(attr::SRQ_XRCD, xrcd).handle(attr::SRQ_CQ, cq).output(attr::SRQ_RESP_NUM, 4)
        })
    };
    assert_eq!(create(1, parts.pd).err(), Some(libc::EINVAL), "another kind of object");
    let [srq, ..] = create(1, parts.cq).unwrap();
    // Programs may ask for receives in vain.
    let asked = a_qp(&mut parts);
    let (target, _) = create_target(&device, xrcd, &asked).unwrap();
    assert_eq!(create_target(&device, srq, &asked).err(), Some(libc::EINVAL));
    // The kernel looks the queue for receives up, and does not use it.
    let sender = create_qp(&device, &parts, 9, &asked);
    // Attributes of the other side are ignored, as by the kernel.
    let init = ModifyQp {
        qp_handle: sender.unwrap(),
        attr_mask: ibv::IBV_QP_STATE
            | ibv::IBV_QP_PORT
            | ibv::IBV_QP_PKEY_INDEX
            | ibv::IBV_QP_ACCESS_FLAGS
            | ibv::IBV_QP_MIN_RNR_TIMER,
        qp_state: 1,
        port_num: 1,
        ..ModifyQp::new_zeroed()
    };
    let modify = |asked| write(command::MODIFY_QP).input(attr::CORE_IN, &asked).run(&device).map(drop);
    assert_eq!(modify(ModifyQp { qp_handle: target, ..init }), Err(libc::EINVAL));
    assert_eq!(modify(init), Ok(()));

    assert_eq!(close_xrcd(&device, xrcd), Err(libc::EBUSY));
    let number = |handle| query(&device, handle);
    assert_eq!(number(target).unwrap().qp_state, 0);
    assert_eq!(destroy(&device, object::SRQ, method::DESTROY, srq), Ok(()));
    assert_eq!(destroy(&device, object::QP, method::DESTROY, target), Ok(()));
    assert_eq!(close_xrcd(&device, xrcd), Ok(()));
}

#[test]
fn a_target_is_opened_by_its_number() {
    let device = Device::open();
    let mut parts = parts(&device);
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let asked = CreateQp { sq_wqe_count: 0, rq_wqe_count: 0, ..a_qp(&mut parts) };
    let (first, qpn) = create_target(&device, xrcd, &asked).unwrap();
    let open = |qpn, qp_type, pd_handle| {
        let asked = OpenQp { qpn, qp_type, pd_handle, ..OpenQp::new_zeroed() };
        let command = write(command::OPEN_QP).input(attr::CORE_IN, &asked);
        Ok(command.output(attr::CORE_OUT, 32).run(&device)?.output::<OpenQpResp>(attr::CORE_OUT))
    };
    let second = open(qpn, 10, xrcd).unwrap();
    assert_eq!(open(qpn, 2, xrcd).err(), Some(libc::EINVAL), "no target");
    assert_eq!(open(qpn, 10, parts.pd).err(), Some(libc::EINVAL), "no XRC domain");
    assert_eq!(destroy(&device, object::QP, method::DESTROY, first), Ok(()));
    assert_eq!(query(&device, second.qp_handle).unwrap().qp_state, 0, "it lives");
    assert_eq!(close_xrcd(&device, xrcd), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::QP, method::DESTROY, second.qp_handle), Ok(()));
    assert_eq!(close_xrcd(&device, xrcd), Ok(()));
}
