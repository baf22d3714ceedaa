//! Shared receive queues.

use super::*;
use crate::uapi::mlx5::{CreateSrq, CreateSrqResp};
use crate::uapi::queues::{ModifySrq, QuerySrq, QuerySrqResp, SRQ_LIMIT, SRQ_MAX_WR};

/// Returns handle, `max_wr` and `max_sge` of a new queue.
pub(super) fn create_srq(
    device: &Device,
    pd: u32,
    kind: u32,
    [max_wr, max_sge]: [u32; 2],
    asked: &CreateSrq,
) -> Result<[u32; 3], i32> {
    create_srq_with(device, pd, kind, [max_wr, max_sge], asked, |command| command)
}

/// As [`create_srq`], with attributes added by `more`.
pub(super) fn create_srq_with(
    device: &Device,
    pd: u32,
    kind: u32,
    [max_wr, max_sge]: [u32; 2],
    asked: &CreateSrq,
    more: impl FnOnce(Command) -> Command,
) -> Result<[u32; 3], i32> {
    let command = new(object::SRQ, method::CREATE)
        .handle(attr::HANDLE, 0)
        .handle(attr::SRQ_PD, pd)
        .attribute(attr::SRQ_USER_HANDLE, 8, 0x9abc)
        .constant(attr::SRQ_TYPE, kind)
        .number(attr::SRQ_MAX_WR, max_wr)
        .number(attr::SRQ_MAX_SGE, max_sge)
        .number(attr::SRQ_LIMIT, 0)
        .output(attr::SRQ_RESP_MAX_WR, 4)
        .output(attr::SRQ_RESP_MAX_SGE, 4)
        .input(attr::UHW_IN, asked)
        .output(attr::UHW_OUT, size_of::<CreateSrqResp>());
    let answer = more(command).run(device)?;
    assert_ne!(answer.output::<CreateSrqResp>(attr::UHW_OUT).srqn, 0);
    let given = |id| answer.output::<u32>(id);
    Ok([answer.created(attr::HANDLE), given(attr::SRQ_RESP_MAX_WR), given(attr::SRQ_RESP_MAX_SGE)])
}

pub(super) fn a_srq(rings: &mut Rings) -> CreateSrq {
    CreateSrq { buf_addr: rings.ring(), db_addr: rings.record(), ..CreateSrq::new_zeroed() }
}

fn modify(device: &Device, srq_handle: u32, attr_mask: u32, srq_limit: u32) -> Result<(), i32> {
    let asked = ModifySrq { srq_handle, attr_mask, max_wr: 31, srq_limit };
    write(command::MODIFY_SRQ).input(attr::CORE_IN, &asked).run(device).map(drop)
}

fn query(device: &Device, srq_handle: u32) -> Result<QuerySrqResp, i32> {
    let asked = QuerySrq { srq_handle, ..QuerySrq::new_zeroed() };
    let size = size_of::<QuerySrqResp>();
    let answer = write(command::QUERY_SRQ).input(attr::CORE_IN, &asked).output(attr::CORE_OUT, size);
    Ok(answer.run(device)?.output(attr::CORE_OUT))
}

#[test]
fn a_shared_queue_lives_as_long_as_its_users_and_reports_its_limit() {
    let device = Device::open();
    let mut parts = parts(&device);
    let srq = a_srq(Rings::new());
    let [handle, max_wr, max_sge] = create_srq(&device, parts.pd, 0, [9, 2], &srq).unwrap();
    assert_eq!((max_wr, max_sge), (15, 2), "a power of two, less one; as asked");
    assert_eq!(modify(&device, handle, SRQ_MAX_WR, 0), Err(libc::EINVAL), "as the driver");
    assert_eq!(modify(&device, handle, SRQ_LIMIT, 16), Err(libc::EINVAL));
    assert_eq!(modify(&device, 999, SRQ_LIMIT, 1), Err(libc::EINVAL));
    assert_eq!(query(&device, 999).err(), Some(libc::EINVAL));
    let now = query(&device, handle).unwrap();
    assert_eq!((now.max_wr, now.max_sge, now.srq_limit), (15, 2, 0));
    // Nothing is posted: the limit is passed at once, and one event stays unread.
    assert_eq!(modify(&device, handle, SRQ_LIMIT, 5), Ok(()));
    assert_eq!(query(&device, handle).unwrap().srq_limit, 0);

    let asked = CreateQp { rq_wqe_count: 0, ..a_qp(&mut parts) };
    let qp = create_qp_with(&device, &parts, 2, &asked, |command| command.handle(attr::QP_SRQ, handle));
    let [qp, other] = [qp.unwrap(), parts.cq];
    let refused = create_qp_with(&device, &parts, 2, &asked, |command| command.handle(attr::QP_SRQ, other));
    assert_eq!(refused, Err(libc::EINVAL), "another kind of object");
    assert_eq!(destroy(&device, object::SRQ, method::DESTROY, handle), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::PD, method::ONLY_DESTROY, parts.pd), Err(libc::EBUSY));
    assert_eq!(destroy(&device, object::QP, method::DESTROY, qp), Ok(()));
    let gone = new(object::SRQ, method::DESTROY).handle(attr::HANDLE, handle).output(attr::DESTROY_RESP, 4);
    assert_eq!(gone.run(&device).unwrap().output::<u32>(attr::DESTROY_RESP), 0, "the event was taken back");
    assert_eq!(destroy(&device, object::SRQ, method::DESTROY, handle), Err(libc::ENOENT));
}

#[test]
fn a_shared_queue_that_cannot_be_is_refused() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let good = a_srq(Rings::new());
    let refused = |sizes, asked: &CreateSrq| create_srq(&device, pd, 0, sizes, asked).unwrap_err();
    assert_eq!(refused([15, 1], &CreateSrq { buf_addr: 4096, ..good }), libc::EFAULT);
    assert_eq!(refused([15, 1], &CreateSrq { db_addr: 4096, ..good }), libc::EFAULT);
    assert_eq!(refused([15, 1], &CreateSrq { buf_addr: good.buf_addr + 4, ..good }), libc::EINVAL);
    assert_eq!(refused([15, 1], &CreateSrq { flags: 1, ..good }), libc::EOPNOTSUPP, "signatures");
    assert_eq!(refused([1 << 15, 1], &good), libc::EINVAL);
    assert_eq!(refused([15, 32], &good), libc::EINVAL);
    assert_eq!(create_srq(&device, 999, 0, [15, 1], &good), Err(libc::ENOENT), "no such domain");
    assert_eq!(create_srq(&device, pd, 2, [15, 1], &good), Err(libc::EINVAL), "matching of tags");
    assert_eq!(create_srq(&device, pd, 3, [15, 1], &good), Err(libc::EINVAL), "no type at all");
    let attributes: QueryDeviceResp = write(command::QUERY_DEVICE)
        .output(attr::CORE_OUT, size_of::<QueryDeviceResp>())
        .run(&device)
        .unwrap()
        .output(attr::CORE_OUT);
    assert_eq!((attributes.max_srq_wr, attributes.max_srq_sge), ((1 << 15) - 1, 31), "what creation accepts");
    assert!(attributes.max_srq > 0);
}
