//! Commands of DEVX, their events and files. A refusal of the device is EREMOTEIO: the card lacks the command.

use super::super::dc::with_srq;
use super::super::srqs::{a_srq, create_srq, create_srq_with};
use super::super::xrc::open_xrcd;
use super::*;
use crate::hooks::reads;
use crate::uapi::devx::{attr as devx, method as call, object as kind};
use crate::uapi::ioctl::DRIVER;
use crate::uapi::mlx5::QP_DC_TARGET;
use gdsync_sys::prm::command::{header, mkey, opcode};
use gdsync_sys::prm::field::Field;

const INVAL: i32 = libc::EINVAL;
const REFUSED: i32 = libc::EREMOTEIO;
/// Room for the answer of every command here.
const ROOM: usize = 512;

/// A command for the object of a number. A device ignores the number where there is none.
fn input(code: u16, number: u32) -> Vec<u8> {
    with(code, &[(header::NUMBER, number)])
}

fn with(code: u16, fields: &[(Field, u32)]) -> Vec<u8> {
    let mut input = vec![0; mkey::BYTES];
    header::OPCODE.put(&mut input, code);
    for (field, value) in fields {
        field.put(&mut input, *value);
    }
    input
}

fn create(device: &Device, input: &[u8]) -> Result<(u32, u32), i32> {
    let command = new(kind::DEVX_OBJ, call::OBJ_CREATE).handle(devx::HANDLE, 0);
    let answer = command.input(devx::OBJ_IN, input).output(devx::OBJ_OUT, 16).run(device)?;
    Ok((answer.created(devx::HANDLE), header::NUMBER.get32(&answer.output::<[u8; 16]>(devx::OBJ_OUT))))
}

fn ask(device: &Device, method: u16, handle: u32, input: &[u8]) -> i32 {
    let command = new(kind::DEVX_OBJ, method).handle(devx::HANDLE, handle);
    errno_of(command.input(devx::OBJ_IN, input).output(devx::OBJ_OUT, ROOM).run(device))
}

fn general(device: &Device, input: &[u8]) -> i32 {
    let command = new(kind::DEVX, call::OTHER).input(devx::OTHER_IN, input);
    errno_of(command.output(devx::OTHER_OUT, ROOM).run(device))
}

/// A file of DEVX: for answers, or for events with these flags.
fn file(device: &Device, flags: Option<u32>) -> Result<u32, i32> {
    let of = if flags.is_some() { kind::DEVX_ASYNC_EVENT_FD } else { kind::DEVX_ASYNC_CMD_FD };
    let command = new(of, call::FD_ALLOC).handle(devx::HANDLE, 0);
    let add = |command: Command, flags| command.number(devx::EVENT_FD_FLAGS, flags);
    Ok(flags.into_iter().fold(command, add).run(device)?.created(devx::HANDLE))
}

#[test]
fn creations_and_general_commands() {
    let device = Device::open();
    let plain = Device::plain();
    plain.begin(0);
    let made = |input: &[u8]| errno_of(create(&device, input));
    let sized = |input: usize, output: usize| {
        let command = new(kind::DEVX_OBJ, call::OBJ_CREATE).handle(devx::HANDLE, 0);
        let bytes = with(opcode::ALLOC_PD, &[]);
        errno_of(command.input(devx::OBJ_IN, &bytes[..input]).output(devx::OBJ_OUT, output).run(&device))
    };
    let handler = "MLX5_IB_METHOD_DEVX_OBJ_CREATE";
    let is_creation = "devx_is_obj_create_cmd";
    compare(&[
        ("uverbs_process_attr", "no header", INVAL, sized(15, 16)),
        ("uverbs_process_attr", "no room for a header", INVAL, sized(16, 15)),
        (handler, "a domain", 0, sized(16, 16)),
        (handler, "another function of the device", INVAL, {
            made(&with(opcode::ALLOC_PD, &[(header::VHCA_TUNNEL_ID, 1)]))
        }),
        ("devx_get_uid", "a context without DEVX", INVAL, {
            errno_of(create(&plain, &with(opcode::ALLOC_PD, &[])))
        }),
        (is_creation, "no opcode", INVAL, made(&with(0x999, &[]))),
        (is_creation, "a query", INVAL, made(&with(opcode::QUERY_CQ, &[]))),
        (is_creation, "a send queue", REFUSED, made(&with(0x904, &[]))),
        (is_creation, "a new entry of a flow table", REFUSED, made(&with(opcode::SET_FLOW_TABLE_ENTRY, &[]))),
        (is_creation, "another entry of a flow table", INVAL, {
            made(&with(opcode::SET_FLOW_TABLE_ENTRY, &[(header::OP_MOD, 1)]))
        }),
        (is_creation, "a signature", REFUSED, made(&with(opcode::CREATE_PSV, &[(header::NUM_PSV, 1)]))),
        (is_creation, "two signatures", INVAL, made(&with(opcode::CREATE_PSV, &[(header::NUM_PSV, 2)]))),
    ]);
    let number =
        |method, id| errno_of(new(kind::DEVX, method).number(DRIVER, id).output(DRIVER + 1, 4).run(&device));
    let umem = |device: &Device| {
        let command = new(kind::DEVX_UMEM, call::UMEM_REG).handle(devx::HANDLE, 0).output(devx::UMEM_ID, 4);
        let command = command.attribute(devx::UMEM_ADDR, 8, Rings::new().ring());
        errno_of(command.attribute(devx::UMEM_LEN, 8, 4096).run(device))
    };
    let is_general = "devx_is_general_cmd";
    let nop = with(opcode::NOP, &[]);
    let capabilities = with(opcode::QUERY_HCA_CAP, &[]);
    compare(&[
        (is_general, "a creation", INVAL, general(&device, &with(opcode::CREATE_CQ, &[]))),
        (is_general, "before the range", INVAL, general(&device, &with(0xaff, &[]))),
        (is_general, "in the range", REFUSED, general(&device, &with(0xcff, &[]))),
        (is_general, "behind the range", INVAL, general(&device, &with(0xd00, &[]))),
        (is_general, "nothing", 0, general(&device, &nop)),
        ("devx_get_uid", "nothing, without DEVX", INVAL, general(&plain, &nop)),
        ("devx_is_whitelist_cmd", "capabilities, without DEVX", 0, general(&plain, &capabilities)),
        ("mlx5_comp_eqn_get", "the first vector", 0, number(call::QUERY_EQN, 0)),
        ("mlx5_comp_eqn_get", "a vector past the last", INVAL, number(call::QUERY_EQN, 1)),
        ("bfregn_to_uar_index", "a page of the library's", INVAL, number(call::QUERY_UAR, 0)),
        ("MLX5_IB_METHOD_DEVX_UMEM_REG", "without rights", 0, umem(&device)),
        ("MLX5_IB_METHOD_DEVX_UMEM_REG", "without DEVX", INVAL, umem(&plain)),
    ]);
}

/// The card's number of an object.
fn number_of(device: &Device, kind: u16, handle: u32) -> u32 {
    crate::process::context(device.0).unwrap().objects.lock().number(kind, handle).unwrap()
}

#[test]
fn objects_by_handle_and_number() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = create_qp(&device, &parts, 2, &asked).unwrap();
    let [srq, ..] = create_srq(&device, parts.pd, 0, [15, 1], &a_srq(Rings::new())).unwrap();
    let of_target = CreateQp { flags: QP_DC_TARGET, ..CreateQp::new_zeroed() };
    let target = with_srq(&device, &parts, srq, 0xff, &of_target).unwrap();
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let xrc = |command: Command| command.handle(attr::SRQ_XRCD, xrcd).handle(attr::SRQ_CQ, parts.cq);
    let [xrc, ..] = create_srq_with(&device, parts.pd, 1, [15, 1], &a_srq(Rings::new()), xrc).unwrap();
    let [qpn, dctn] = [qp, target].map(|handle| number_of(&device, object::QP, handle));
    let [srqn, xrcn] = [srq, xrc].map(|handle| number_of(&device, object::SRQ, handle));
    let (cqn, pdn) = (number_of(&device, object::CQ, parts.cq), number_of(&device, object::PD, parts.pd));
    let (domain, own_pdn) = create(&device, &with(opcode::ALLOC_PD, &[])).unwrap();
    let of_keys = [(mkey::PD, own_pdn), (mkey::ACCESS_MODE_1_0, mkey::MODE_KLM.into())];
    let (key, key_number) = create(&device, &with(opcode::CREATE_MKEY, &of_keys)).unwrap();
    let memory = vec![0u8; 4096];
    let at = memory.as_ptr() as u64;
    let region = reg_mr(&device, parts.pd, at, 100, at).unwrap();
    let query = |handle, code, number| ask(&device, call::OBJ_QUERY, handle, &input(code, number));
    let modify = |handle, code, number| ask(&device, call::OBJ_MODIFY, handle, &input(code, number));
    let id = "devx_is_valid_obj_id";
    compare(&[
        ("lookup_get_idr_uobject", "no object", libc::ENOENT, query(999, opcode::QUERY_QP, qpn)),
        ("devx_is_obj_query_cmd", "a transition", INVAL, query(qp, opcode::RST2INIT_QP, qpn)),
        ("devx_is_obj_query_cmd", "a query of capabilities", INVAL, query(qp, opcode::QUERY_HCA_CAP, qpn)),
        (id, "a queue pair", 0, query(qp, opcode::QUERY_QP, qpn)),
        (id, "another number", INVAL, query(qp, opcode::QUERY_QP, qpn + 1)),
        (id, "another kind", INVAL, query(qp, opcode::QUERY_DCT, qpn)),
        (id, "a completion queue", 0, query(parts.cq, opcode::QUERY_CQ, cqn)),
        (id, "a completion queue as a queue pair", INVAL, query(parts.cq, opcode::QUERY_QP, cqn)),
        (id, "a target", REFUSED, query(target, opcode::QUERY_DCT, dctn)),
        (id, "a target as a queue pair", INVAL, query(target, opcode::QUERY_QP, dctn)),
        (id, "a shared receive queue", REFUSED, query(srq, opcode::QUERY_RMP, srqn)),
        (id, "a shared receive queue as one of XRC", INVAL, query(srq, opcode::QUERY_XRC_SRQ, srqn)),
        (id, "a shared receive queue of XRC", REFUSED, query(xrc, opcode::QUERY_XRC_SRQ, xrcn)),
        (id, "a shared receive queue of XRC as a pool", INVAL, query(xrc, opcode::QUERY_RMP, xrcn)),
        (id, "a key", REFUSED, query(key, opcode::QUERY_MKEY, key_number)),
        (id, "a key of verbs", INVAL, query(region.mr_handle, opcode::QUERY_MKEY, region.lkey >> 8)),
        (id, "a domain", INVAL, query(parts.pd, opcode::QUERY_QP, pdn)),
        (id, "a domain of DEVX", INVAL, query(domain, opcode::QUERY_QP, own_pdn)),
        ("devx_is_obj_modify_cmd", "a query", INVAL, modify(qp, opcode::QUERY_QP, qpn)),
        // SQD_RTS_QP.
        ("devx_is_obj_modify_cmd", "no modification", INVAL, modify(qp, 0x50c, qpn)),
        (id, "to RESET", 0, modify(qp, opcode::TO_RST_QP, qpn)),
        (id, "another queue pair", INVAL, modify(qp, opcode::TO_RST_QP, qpn + 1)),
        (id, "the size of a completion queue", REFUSED, modify(parts.cq, opcode::MODIFY_CQ, cqn)),
        (id, "the limit of a pool", REFUSED, modify(srq, opcode::MODIFY_RMP, srqn)),
        (id, "the limit of XRC", REFUSED, modify(xrc, opcode::ARM_XRC_SRQ, xrcn)),
        (id, "a target's violations", REFUSED, modify(target, opcode::ARM_DCT_FOR_KEY_VIOLATION, dctn)),
        ("MLX5_IB_METHOD_DEVX_OBJ_MODIFY", "another function of the device", INVAL, {
            let fields = [(header::VHCA_TUNNEL_ID, 1), (header::NUMBER, qpn)];
            ask(&device, call::OBJ_MODIFY, qp, &with(opcode::TO_RST_QP, &fields))
        }),
        ("rdma_lookup_get_uobject", "a queue pair of verbs to destroy", INVAL, {
            errno_of(new(kind::DEVX_OBJ, call::OBJ_DESTROY).handle(devx::HANDLE, qp).run(&device))
        }),
    ]);
}

#[test]
fn answers_in_files() {
    let device = Device::open();
    let cq = create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    let number = number_of(&device, object::CQ, cq);
    let [answers, events] = [None, Some(0)].map(|flags| file(&device, flags).unwrap());
    let asked = |handle, room: u64, to| {
        let command = new(kind::DEVX_OBJ, call::OBJ_ASYNC_QUERY).handle(devx::HANDLE, handle);
        let command = command.input(devx::OBJ_IN, input(opcode::QUERY_CQ, number).as_slice());
        let command = command.attribute(devx::ASYNC_QUERY_OUT_LEN, 8, room).handle(devx::ASYNC_QUERY_FD, to);
        errno_of(command.attribute(devx::ASYNC_QUERY_WR_ID, 8, 7).run(&device))
    };
    let handler = "MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY";
    compare(&[
        ("_uverbs_get_const", "room of more than 16 bits", INVAL, asked(cq, 1 << 16, answers)),
        ("lookup_get_fd_uobject", "a file of events", libc::EBADF, asked(cq, 16, events)),
        ("lookup_get_fd_uobject", "no file", libc::EBADF, asked(cq, 16, 999_999)),
        ("lookup_get_idr_uobject", "no object", libc::ENOENT, asked(999, 16, answers)),
        (handler, "an answer", 0, asked(cq, 16, answers)),
        (handler, "an answer without room", 0, asked(cq, 0, answers)),
    ]);
    let mut room = [0u8; 64];
    let mut read = |len| {
        // SAFETY: `room` has room for that many bytes.
        let got = unsafe { reads::read(answers as i32, room.as_mut_ptr().cast(), len) };
        if got < 0 { io::Error::last_os_error().raw_os_error().unwrap() } else { -got as i32 }
    };
    // SAFETY: the call accesses no memory of the process.
    assert_eq!(unsafe { libc::fcntl(answers as i32, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    let reading = "devx_async_cmd_event_read";
    // Bytes read are negative here.
    compare(&[
        (reading, "no room for the first", libc::ENOSPC, read(23)),
        (reading, "the first, which stayed", -24, read(64)),
        (reading, "the second", -8, read(64)),
        (reading, "no third", libc::EAGAIN, read(64)),
        (reading, "nothing, also for no byte", libc::EAGAIN, read(0)),
    ]);
    drop(device);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::fcntl(answers as i32, libc::F_SETFL, 0) }, 0);
    compare(&[(reading, "the device is closed", libc::EIO, read(64))]);
    assert_eq!([answers, events].map(|file| hooks::close(file as i32)), [0; 2]);
}

#[test]
fn subscriptions() {
    let device = Device::open();
    let plain = Device::plain();
    plain.begin(0);
    let (object, _) = create(&device, &with(opcode::ALLOC_PD, &[])).unwrap();
    let pd = alloc_pd(&device).unwrap();
    let [events, answers] = [Some(1), None].map(|flags| file(&device, flags).unwrap());
    let of_plain = file(&plain, Some(0)).unwrap();
    // SAFETY: the call accesses no memory of the process.
    let counter = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } as u32;
    let on = |device: &Device, to, more: &dyn Fn(Command) -> Command| {
        let command = new(kind::DEVX, call::SUBSCRIBE_EVENT).handle(devx::SUBSCRIBE_FD, to);
        errno_of(more(command).run(device))
    };
    // A list of one event is in the attribute itself.
    let list = |command: Command, kinds: &[u16]| match kinds {
        [kind] => command.attribute(devx::SUBSCRIBE_EVENTS, 2, (*kind).into()),
        kinds => command.input(devx::SUBSCRIBE_EVENTS, kinds),
    };
    let port = |to| on(&device, to, &|command| list(command, &[9]));
    let of = |handle, kinds: &[u16]| {
        on(&device, events, &|command| list(command.handle(devx::SUBSCRIBE_OBJECT, handle), kinds))
    };
    let counted = |kinds: &[u16], fd| {
        let add = |command: Command| {
            command.handle(devx::SUBSCRIBE_OBJECT, object).number(devx::SUBSCRIBE_EVENTFD, fd)
        };
        on(&device, events, &|command| list(add(command), kinds))
    };
    let handler = "MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT";
    let (fd, legacy, counting) = ("lookup_get_fd_uobject", "is_valid_events_legacy", "eventfd_ctx_fdget");
    compare(&[
        (handler, "the port", 0, port(events)),
        (handler, "without DEVX", INVAL, on(&plain, of_plain, &|command| list(command, &[9]))),
        (fd, "a file of answers", libc::EBADF, port(answers)),
        (fd, "a file of another device", libc::EBADF, port(of_plain)),
        (fd, "no file", libc::EBADF, port(999_999)),
        ("rdma_lookup_get_uobject", "an object of verbs", INVAL, of(pd, &[0])),
        ("lookup_get_idr_uobject", "no object", libc::ENOENT, of(999, &[0])),
        (
            "uverbs_process_attr",
            "no event",
            INVAL,
            on(&device, events, &|command| command.attribute(devx::SUBSCRIBE_EVENTS, 0, 0)),
        ),
        (
            "uverbs_attr_ptr_get_array_size",
            "one event and a half",
            INVAL,
            on(&device, events, &|command| command.attribute(devx::SUBSCRIBE_EVENTS, 3, 9)),
        ),
        (handler, "16 events", 0, of(object, &[0; 16])),
        (handler, "17 events", INVAL, of(object, &[0; 17])),
        (legacy, "no such event", INVAL, of(object, &[0x77])),
        (legacy, "an error of an XRQ", 0, of(object, &[0x18])),
        (legacy, "the port, of an object", INVAL, of(object, &[9])),
        (legacy, "a completion, of no object", INVAL, on(&device, events, &|command| list(command, &[0]))),
        (legacy, "no such event, and no eventfd", INVAL, counted(&[0x77], 999_999)),
        (counting, "no file", libc::EBADF, counted(&[0], 999_999)),
        (counting, "another file", INVAL, counted(&[0], device.0 as u32)),
        (counting, "an eventfd", 0, counted(&[0], counter)),
        (
            handler,
            "an eventfd, and a cookie",
            INVAL,
            on(&device, events, &|command| {
                let command =
                    command.number(devx::SUBSCRIBE_EVENTFD, counter).attribute(devx::SUBSCRIBE_COOKIE, 8, 0);
                list(command, &[9])
            }),
        ),
        ("uverbs_get_flags64", "a file with unknown flags", INVAL, errno_of(file(&device, Some(2)))),
        ("ib_uverbs_run_method", "a file without flags", INVAL, {
            errno_of(new(kind::DEVX_ASYNC_EVENT_FD, call::FD_ALLOC).handle(devx::HANDLE, 0).run(&device))
        }),
    ]);
    for file in [events, answers, of_plain, counter] {
        assert_eq!(hooks::close(file as i32), 0);
    }
}
