//! A kernel's checks of every command, before the method's function: header and attributes.

use super::super::srqs::{a_srq, create_srq_with};
use super::*;
use crate::uapi::ioctl::DRIVER;
use std::os::fd::AsRawFd;

const UNKNOWN: i32 = libc::EPROTONOSUPPORT;

fn query_port() -> Command {
    new(object::DEVICE, method::QUERY_PORT)
        .constant(attr::QUERY_PORT_NUM, 1)
        .output(attr::QUERY_PORT_RESP, 48)
}

/// Gives the last attribute another value.
fn altered(mut command: Command, alter: impl FnOnce(&mut Attr)) -> Command {
    alter(command.attrs.last_mut().unwrap());
    command
}

#[test]
fn headers() {
    let device = Device::open();
    let header = |alter: &dyn Fn(&mut Header)| errno_of(query_port().run_as(&device, alter));
    // The driver's numbers of attributes, which this method does not have.
    let many = |count: u16| {
        let more =
            |command: Command, i| altered(command.attribute(DRIVER + 100 + i, 0, 0), |attr| attr.flags = 0);
        errno_of((0..count).fold(query_port(), more).run(&device))
    };
    let inval = libc::EINVAL;
    let ioctl = "ib_uverbs_ioctl";
    compare(&[
        (ioctl, "the length of another count", inval, header(&|header| header.length += 16)),
        (ioctl, "another count", inval, header(&|header| header.num_attrs += 1)),
        (ioctl, "a page of attributes", 0, many(252)),
        (ioctl, "more than a page", inval, many(253)),
        (ioctl, "a reserved field", UNKNOWN, header(&|header| header.reserved1 = 1)),
        (ioctl, "another reserved field", UNKNOWN, header(&|header| header.reserved2 = 1)),
        (
            ioctl,
            "a reserved field, and another driver",
            UNKNOWN,
            header(&|header| (header.reserved1, header.driver_id) = (1, 2)),
        ),
        ("ib_uverbs_cmd_verbs", "another driver", inval, header(&|header| header.driver_id = 2)),
        (
            "ib_uverbs_cmd_verbs",
            "another driver, and no such method",
            inval,
            header(&|header| (header.driver_id, header.method_id) = (2, 99)),
        ),
        ("ib_uverbs_cmd_verbs", "no such object", UNKNOWN, header(&|header| header.object_id = 99)),
        ("ib_uverbs_cmd_verbs", "no such method", UNKNOWN, header(&|header| header.method_id = 99)),
    ]);
}

#[test]
fn attributes() {
    let device = Device::open();
    let pd = alloc_pd(&device).unwrap();
    let run = |command: Command| errno_of(command.run(&device));
    let unknown = |flags| {
        altered(new(object::DEVICE, method::QUERY_PORT).attribute(99, 4, 0), |attr| attr.flags = flags)
    };
    let with_port =
        |command: Command| command.constant(attr::QUERY_PORT_NUM, 1).output(attr::QUERY_PORT_RESP, 48);
    let gid = |flags_len| {
        let command = new(object::DEVICE, method::QUERY_GID_ENTRY).constant(attr::GID_ENTRY_PORT, 1);
        let command =
            command.constant(attr::GID_ENTRY_INDEX, 0).attribute(attr::GID_ENTRY_FLAGS, flags_len, 0);
        run(command.output(attr::GID_ENTRY_RESP, 32))
    };
    let response = |len| run(query_port().without(attr::QUERY_PORT_RESP).output(attr::QUERY_PORT_RESP, len));
    let pdn = |len| {
        new(object::PD, method::PD_QUERY).handle(attr::PD_QUERY_HANDLE, pd).output(attr::PD_QUERY_PDN, len)
    };
    let (inval, notsup, set, get) = (libc::EINVAL, libc::EOPNOTSUPP, "uverbs_set_attr", "uverbs_get_flags64");
    let process = "uverbs_process_attr";
    compare(&[
        (set, "one that the method lacks", UNKNOWN, run(with_port(unknown(ATTR_MANDATORY)))),
        (set, "one that it may pass over", 0, run(with_port(unknown(0)))),
        (set, "twice", inval, run(query_port().constant(attr::QUERY_PORT_NUM, 1))),
        (set, "a bad one, then one that it lacks", inval, {
            run(query_port().constant(attr::QUERY_PORT_NUM, 1).attribute(99, 4, 0))
        }),
        (process, "a constant of 4 bytes", inval, {
            run(query_port().without(attr::QUERY_PORT_NUM).number(attr::QUERY_PORT_NUM, 1))
        }),
        (process, "flags of 8 bytes", 0, gid(8)),
        (process, "flags of 4 bytes", 0, gid(4)),
        (process, "flags of 2 bytes", inval, gid(2)),
        (process, "an answer without room", inval, run(pdn(2))),
        (process, "an answer with more room", inval, run(pdn(8))),
        (process, "a structure that has grown", 0, response(64)),
        (process, "a structure without its oldest fields", inval, response(40)),
        (process, "a reserved field", inval, run(altered(query_port(), |attr| attr.attr_data = 1))),
        ("ib_uverbs_run_method", "a missing one", inval, run(query_port().without(attr::QUERY_PORT_RESP))),
        (
            "uverbs_copy_to",
            "no memory there",
            libc::EFAULT,
            run(altered(query_port(), |attr| attr.data = 4096)),
        ),
    ]);
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let capacities = |count: usize, last: u32| {
        let mut cap = [16, 10, 1, 1, 0, 0, 0];
        cap[count - 1] = last;
        let with = |command: Command| command.without(attr::QP_CAP).input(attr::QP_CAP, &cap[..count]);
        errno_of(create_qp_with(&device, &parts, 2, &asked, with))
    };
    let flags = |len| {
        let with = |command: Command| command.without(attr::QP_FLAGS).attribute(attr::QP_FLAGS, len, 1 << 12);
        errno_of(create_qp_with(&device, &parts, 2, &asked, with))
    };
    compare(&[
        (process, "fields of zeros of the future", 0, capacities(6, 0)),
        (process, "a field of the future", notsup, capacities(6, 1)),
        (process, "a structure that is too short", inval, capacities(4, 1)),
        (get, "flags of 6 bytes", inval, flags(6)),
        (get, "flags of 8 bytes", 0, flags(8)),
    ]);
}

#[test]
fn handles_and_files() {
    let [device, other] = [(); 2].map(|()| Device::open());
    let pd = alloc_pd(&device).unwrap();
    let query = |data: u64| {
        let command = new(object::PD, method::PD_QUERY).attribute(attr::PD_QUERY_HANDLE, 0, data);
        command.output(attr::PD_QUERY_PDN, 4)
    };
    let run = |command: Command| errno_of(command.run(&device));
    let channel = |device: &Device| {
        let command = write(command::CREATE_COMP_CHANNEL).output(attr::CORE_OUT, 4);
        command.run(device).unwrap().output::<u32>(attr::CORE_OUT)
    };
    let events = |device: &Device| {
        let command = new(object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC).handle(attr::ASYNC_EVENT_FD, 0);
        command.run(device).unwrap().created(attr::ASYNC_EVENT_FD)
    };
    let create = |id, data: u64| {
        let command = new(object::CQ, method::CREATE).handle(attr::HANDLE, 0).number(attr::CQ_CQE, 15);
        let command = command.attribute(attr::CQ_USER_HANDLE, 8, 1).number(attr::CQ_COMP_VECTOR, 0);
        let command = command.output(attr::CQ_RESP_CQE, 4).input(attr::UHW_IN, &a_cq(Rings::new()));
        run(command.output(attr::UHW_OUT, 8).attribute(id, 0, data))
    };
    let [own, theirs] = [channel(&device), channel(&other)];
    let [own_events, their_events] = [events(&device), events(&other)];
    let cq = create_cq(&device, 15, &a_cq(Rings::new())).unwrap();
    let no_queue = create_srq_with(&device, pd, 0, [15, 1], &a_srq(Rings::new()), |command| {
        command.handle(attr::SRQ_CQ, 999).attribute(99, 0, 0)
    });
    let (inval, bad, noent) = (libc::EINVAL, libc::EBADF, libc::ENOENT);
    let (process, idr, fd) = ("uverbs_process_attr", "lookup_get_idr_uobject", "lookup_get_fd_uobject");
    let (channels, asynchronous) = (attr::CQ_COMP_CHANNEL, attr::CQ_EVENT_FD);
    compare(&[
        (process, "a handle with a length", inval, {
            run(query(pd.into()).without(attr::PD_QUERY_HANDLE).number(attr::PD_QUERY_HANDLE, pd))
        }),
        (process, "the object before the next attribute", noent, errno_of(no_queue)),
        (idr, "no such object", noent, run(query(999))),
        (idr, "more than 32 bits", noent, run(query(1 << 32 | u64::from(pd)))),
        (idr, "a negative number", inval, run(query(u64::MAX))),
        ("rdma_lookup_get_uobject", "an object of another kind", inval, run(query(cq.into()))),
        ("ib_uverbs_run_method", "no such object, and a missing attribute", noent, {
            run(query(999).without(attr::PD_QUERY_PDN))
        }),
        (fd, "more than 32 bits", inval, create(channels, 1 << 32 | u64::from(own))),
        (fd, "no file", bad, create(channels, 999_999)),
        (fd, "a negative number", bad, create(channels, u64::MAX)),
        (fd, "another file", bad, create(channels, device.0 as u64)),
        (fd, "a channel of another device", bad, create(channels, theirs.into())),
        (fd, "its own channel", 0, create(channels, own.into())),
        (fd, "a channel for asynchronous events", bad, create(asynchronous, own.into())),
        (fd, "events of another device", bad, create(asynchronous, their_events.into())),
        (fd, "its own events", 0, create(asynchronous, own_events.into())),
    ]);
    for file in [own, theirs, own_events, their_events] {
        assert_eq!(hooks::close(file as i32), 0);
    }
}

#[test]
fn devices_without_a_context() {
    let device = Device::plain();
    let run = |command: Command| errno_of(command.run(&device));
    let inval = libc::EINVAL;
    let get = "ib_uverbs_get_ucontext";
    compare(&[
        (get, "a query", inval, run(query_port())),
        ("alloc_uobj", "an object", inval, {
            run(new(object::ASYNC_EVENT, method::ASYNC_EVENT_ALLOC).handle(attr::ASYNC_EVENT_FD, 0))
        }),
        (get, "an object of the older commands", inval, errno_of(alloc_pd(&device))),
        ("lookup_get_idr_uobject", "an object that cannot be", libc::ENOENT, {
            errno_of(destroy(&device, object::PD, method::ONLY_DESTROY, 1))
        }),
        ("UVERBS_METHOD_INVOKE_WRITE", "without room", libc::ENOSPC, run(write(command::QUERY_DEVICE))),
    ]);
    device.begin(0);
    let file = std::fs::File::open("/proc/self/status").unwrap();
    let import = new(object::DEVICE, method::QUERY_CONTEXT);
    compare(&[
        (get, "a query", 0, run(query_port())),
        ("ib_uverbs_run_method", "no room for what libmlx5 must know", inval, run(import)),
        ("lookup_get_fd_uobject", "a file of the system", libc::EBADF, {
            let command = new(object::CQ, method::CREATE);
            run(command.attribute(attr::CQ_COMP_CHANNEL, 0, file.as_raw_fd() as u64))
        }),
    ]);
}
