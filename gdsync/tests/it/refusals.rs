//! Devices and ports that gdsync cannot use, and other sources of GID tables: the software card's table of entry
//! points, with one entry replaced.

#![cfg(feature = "software-card")]

use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
use gdsync::queue::RequestError;
use gdsync::verbs::{GidKind, OpenError, PortError, PortState, QueuePairError, Transport, provider};
use gdsync::{
    Access, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, WorkRequest,
};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::VerbsTable;
use gdsync_sys::mlx5dv::mlx5dv_qp_init_attr;
use gdsync_sys::verbs::{
    self, ibv_context, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex,
};
use libc::{c_int, size_t, ssize_t};

fn table(change: impl FnOnce(&mut VerbsTable)) -> &'static VerbsApi {
    let mut table = **provider::software();
    change(&mut table);
    // SAFETY: the software card's entries, except for one or two of this file, each of which behaves, or fails, as
    // its manual page says.
    Box::leak(Box::new(unsafe { VerbsApi::new(table) }))
}

#[test]
fn a_device_that_is_not_mlx5_is_refused_by_name() {
    unsafe extern "C" fn never(_: *mut ibv_device) -> bool {
        false
    }
    let api = table(|api| api.mlx5dv_is_supported = never);
    for name in [None, Some("softhca0")] {
        let error = Device::open(api, name).unwrap_err();
        assert!(matches!(&error, Error::Open(OpenError::NotMlx5 { name }) if name == "softhca0"), "{error}");
        assert!(error.to_string().contains("softhca0 is not an mlx5 device"), "{error}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let text = Device::open(provider::software(), Some("mlx5_9")).unwrap_err().to_string();
    assert!(text.contains("no device named mlx5_9") && text.contains("softhca0"), "{text}");
}

unsafe extern "C" fn port_that_is_down(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's arguments, passed on; the struct is valid.
    unsafe {
        let rc = (provider::software().query_port)(context, port, attr);
        (*attr).state = verbs::IBV_PORT_DOWN;
        rc
    }
}

#[test]
fn a_port_that_is_not_active_is_refused() {
    let device = Device::open(table(|api| api.query_port = port_that_is_down), None).unwrap();
    assert_eq!(device.port(1).unwrap().state, PortState::Down);
    let pd = ProtectionDomain::new(&device).unwrap();
    let error = QueuePair::new(&pd, QueuePairConfig::default()).unwrap_err();
    assert!(
        matches!(error, Error::Port(PortError::NotActive { port: 1, state: PortState::Down, .. })),
        "{error}"
    );
    assert!(error.to_string().contains("is DOWN, but must be ACTIVE"), "{error}");
}

#[test]
fn a_transport_that_the_device_lacks_is_named() {
    unsafe extern "C" fn connections_only(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        mlx5_attr: *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp {
        // SAFETY: the caller's arguments are valid, and passed on; errno is the thread's.
        unsafe {
            if [verbs::IBV_QPT_UD, verbs::IBV_QPT_DRIVER].contains(&(*attr).qp_type) {
                *libc::__errno_location() = libc::EOPNOTSUPP;
                return std::ptr::null_mut();
            }
            (provider::software().mlx5dv_create_qp)(context, attr, mlx5_attr)
        }
    }
    let device = Device::open(table(|api| api.mlx5dv_create_qp = connections_only), None).unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let make = |transport| QueuePair::new(&pd, QueuePairConfig::default().transport(transport));
    let error = make(Transport::Ud).unwrap_err();
    assert!(
        matches!(&error, Error::QueuePair(QueuePairError::NoTransport { transport: Transport::Ud, .. })),
        "{error}"
    );
    assert!(error.to_string().contains("has no UD queue pairs"), "{error}");
    assert!(make(Transport::Rc).is_ok() && make(Transport::Uc).is_ok());
    let receives = SharedReceiveQueue::new(&pd, 4).unwrap();
    let target = DcTarget::new(&pd, &receives, DcTargetConfig::default()).map(drop);
    for refused in [make(Transport::Dc).map(drop), target] {
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, Error::QueuePair(QueuePairError::NoTransport { transport: Transport::Dc, device }) if device == "softhca0"),
            "{error}"
        );
    }
}

#[test]
fn a_size_beyond_the_devices_is_named_with_the_limit() {
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let config = QueuePairConfig::default;
    for (config, said) in [
        (config().send_depth(1 << 20), "send_depth is 1048576, but this device has at most 32768"),
        (config().recv_depth(1 << 20), "recv_depth is 1048576, but this device has at most 32768"),
        // The completion queue would be too long, too.
        (config().send_depth(1 << 30), "send_depth is 1073741824, but this device has at most 32768"),
        (config().inline(100_000), "inline is 100000, but this device has at most 972"),
    ] {
        let error = QueuePair::new(&pd, config).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn a_device_without_atomics_is_not_asked_for_them() {
    unsafe extern "C" fn without(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        // SAFETY: the caller's arguments, passed on; the struct is valid.
        unsafe {
            let rc = (provider::software().query_device)(context, attr);
            (*attr).atomic_cap = verbs::IBV_ATOMIC_NONE;
            rc
        }
    }
    let device = Device::open(table(|api| api.query_device = without), None).unwrap();
    assert!(!device.attributes().unwrap().atomics);
    assert!(Device::software().unwrap().attributes().unwrap().atomics);
    let pd = ProtectionDomain::new(&device).unwrap();
    let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
    queue_pair.connect(&queue_pair.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let place = region.slice(..).unwrap();
    let error = queue_pair.prepare(WorkRequest::fetch_add(&place, region.remote(), 1)).unwrap_err();
    assert!(
        matches!(error, QueueError::Request(RequestError::NotOnDevice { operation: "atomic operations" })),
        "{error}"
    );
}

#[test]
fn a_port_that_is_not_there_is_named() {
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let error = QueuePair::new(&pd, QueuePairConfig::default().port(2)).unwrap_err().to_string();
    assert!(error.contains("ibv_query_port") && error.contains("port 2"), "{error}");
    let error = QueuePair::new(&pd, QueuePairConfig::default().gid_index(Some(200))).unwrap_err();
    assert!(matches!(error, Error::Port(PortError::NoGid { index: Some(200), .. })), "{error}");
    assert!(QueuePair::new(&pd, QueuePairConfig::default().pkey_index(9)).is_err());
}

unsafe extern "C" fn no_query(
    _: *mut ibv_context,
    _: *mut ibv_gid_entry,
    _: size_t,
    _: u32,
    _: size_t,
) -> ssize_t {
    -(libc::EOPNOTSUPP as ssize_t)
}

#[test]
fn without_the_table_query_the_gids_are_found_one_by_one() {
    // Open throughout: a card that is started again has another address.
    let device = Device::software().unwrap();
    let expected = device.gids(1).unwrap();
    assert!(!expected.is_empty());
    for api in [table(|api| api.query_gid_table = None), table(|api| api.query_gid_table = Some(no_query))] {
        assert_eq!(Device::open(api, None).unwrap().gids(1).unwrap(), expected);
    }
}

#[test]
fn a_table_query_that_fails_is_an_error() {
    unsafe extern "C" fn fails(
        _: *mut ibv_context,
        _: *mut ibv_gid_entry,
        _: size_t,
        _: u32,
        _: size_t,
    ) -> ssize_t {
        -(libc::EIO as ssize_t)
    }
    let device = Device::open(table(|api| api.query_gid_table = Some(fails)), None).unwrap();
    let error = device.gids(1).unwrap_err();
    let Error::Verbs { call: "ibv_query_gid_table", source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.raw_os_error(), Some(libc::EIO));
}

#[test]
fn only_the_ports_own_gids_of_known_kinds_are_used() {
    unsafe extern "C" fn three(
        _: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        room: size_t,
        _: u32,
        _: size_t,
    ) -> ssize_t {
        let entry = |gid_index, port_num, gid_type| ibv_gid_entry {
            gid_index,
            port_num,
            gid_type,
            ..Default::default()
        };
        let table = [
            entry(4, 2, verbs::IBV_GID_TYPE_ROCE_V2),
            entry(5, 1, 77),
            entry(6, 1, verbs::IBV_GID_TYPE_ROCE_V2),
        ];
        for (i, entry) in table.iter().enumerate().take(room) {
            // SAFETY: there is room for that many.
            unsafe { entries.add(i).write(*entry) };
        }
        table.len().min(room) as ssize_t
    }
    unsafe extern "C" fn three_entries(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller's arguments, passed on; the struct is valid.
        unsafe {
            let rc = (provider::software().query_port)(context, port, attr);
            (*attr).gid_tbl_len = 3;
            rc
        }
    }
    let api = table(|api| {
        api.query_gid_table = Some(three);
        api.query_port = three_entries;
    });
    let gids = Device::open(api, None).unwrap().gids(1).unwrap();
    assert_eq!(
        gids.iter().map(|entry| (entry.index, entry.kind)).collect::<Vec<_>>(),
        [(6, GidKind::RoceV2)]
    );
}

#[test]
fn without_a_usable_gid_a_queue_pair_is_refused() {
    unsafe extern "C" fn none(
        _: *mut ibv_context,
        _: *mut ibv_gid_entry,
        _: size_t,
        _: u32,
        _: size_t,
    ) -> ssize_t {
        0
    }
    let device = Device::open(table(|api| api.query_gid_table = Some(none)), None).unwrap();
    let error = device.choose_gid(1, None).unwrap_err();
    assert!(
        matches!(&error, Error::Port(PortError::NoGid { port: 1, index: None, present, .. }) if present.is_empty()),
        "{error}"
    );
    let pd = ProtectionDomain::new(&device).unwrap();
    assert!(matches!(
        QueuePair::new(&pd, QueuePairConfig::default()),
        Err(Error::Port(PortError::NoGid { .. }))
    ));
}
