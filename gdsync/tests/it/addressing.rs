//! Connections over both link layers, on software cards.

#![cfg(feature = "software-card")]

use gdsync::verbs::{GidKind, LinkLayer, Mtu, PortError, provider};
use gdsync::{
    Access, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    WorkRequest,
};
use gdsync_test_support::pair::*;
use gdsync_test_support::process::alone;

/// Runs the test in a process that has an InfiniBand and a RoCE card: the first use of a card determines the cards of
/// a process.
fn with_both_cards(test: &str, body: fn()) {
    if alone(module_path!(), test, &[("SOFTHCA_DEVICES", "ib,roce")]) {
        body();
    }
}

fn domain(name: &str) -> ProtectionDomain {
    ProtectionDomain::new(&Device::open(provider::software(), Some(name)).unwrap()).unwrap()
}

/// One message from a to b.
fn exchange(pd: &ProtectionDomain, a: &QueuePair, b: &QueuePair, options: ConnectOptions) {
    a.connect(&b.endpoint().unwrap(), options).unwrap();
    b.connect(&a.endpoint().unwrap(), options).unwrap();
    let source = MemoryRegion::allocate(pd, 5000, Access::empty()).unwrap();
    let target = MemoryRegion::allocate(pd, 5000, Access::LOCAL_WRITE).unwrap();
    let bytes = fill(&source, 7);
    b.post_recv(&[target.slice(..).unwrap()], 1).unwrap();
    ring(a.prepare(WorkRequest::send(&[source.slice(..).unwrap()])).unwrap());
    assert_eq!(poll(&b.recv_cq()).status, Ok(()));
    assert_eq!(poll(&a.send_cq()).status, Ok(()));
    assert_eq!(content(&target), bytes);
}

#[test]
fn every_gid_of_an_ethernet_port_carries_messages() {
    with_both_cards("every_gid_of_an_ethernet_port_carries_messages", || {
        let pd = domain("softhca1");
        let device = Device::open(provider::software(), Some("softhca1")).unwrap();
        let port = device.port(1).unwrap();
        assert_eq!((port.link, port.lid), (LinkLayer::Ethernet, 0));
        let gids = device.gids(1).unwrap();
        assert_eq!(gids.len(), 4);
        for asked in gids.iter().map(|entry| Some(entry.index)).chain([None]) {
            let config = QueuePairConfig::default().gid_index(asked);
            let pair = [(); 2].map(|()| QueuePair::new(&pd, config).unwrap());
            let endpoint = pair[0].endpoint().unwrap();
            let entry = device.choose_gid(1, asked).unwrap();
            assert_eq!((endpoint.kind, endpoint.gid, endpoint.lid), (entry.kind, entry.gid, 0));
            let options = ConnectOptions::default().mtu(Some(Mtu::Bytes1024)).traffic_class(0x60);
            exchange(&pd, &pair[0], &pair[1], options);
        }
        assert_eq!(device.choose_gid(1, None).unwrap().kind, GidKind::RoceV2);
    });
}

#[test]
fn infiniband_is_addressed_with_a_global_route_where_asked() {
    let pd = ProtectionDomain::new(&device()).unwrap();
    for global in [false, true] {
        let pair = [(); 2].map(|()| QueuePair::new(&pd, QueuePairConfig::default()).unwrap());
        exchange(&pd, &pair[0], &pair[1], ConnectOptions::default().global(global));
    }
}

#[test]
fn sides_that_do_not_understand_each_other_are_told_so() {
    with_both_cards("sides_that_do_not_understand_each_other_are_told_so", || {
        let infiniband = QueuePair::new(&domain("softhca0"), QueuePairConfig::default()).unwrap();
        let roce = domain("softhca1");
        let side = |index| QueuePair::new(&roce, QueuePairConfig::default().gid_index(Some(index))).unwrap();
        let (v1, v2) = (side(0), side(1));
        for (own, remote) in [(&infiniband, &v2), (&v2, &infiniband), (&v1, &v2)] {
            let remote = remote.endpoint().unwrap().to_string().parse().unwrap();
            let error = own.connect(&remote, ConnectOptions::default()).unwrap_err();
            assert!(matches!(error, Error::Port(PortError::GidKindMismatch { .. })), "{error}");
        }
        // They are unaffected.
        exchange(&roce, &v2, &side(1), ConnectOptions::default());
    });
}

#[test]
fn connection_options_that_a_port_cannot_have_are_refused() {
    let pd = ProtectionDomain::new(&device()).unwrap();
    let pair = [(); 2].map(|()| QueuePair::new(&pd, QueuePairConfig::default()).unwrap());
    let mut remote = pair[1].endpoint().unwrap();
    remote.mtu = Mtu::Bytes512;
    let good = ConnectOptions::default();
    for (options, said) in [
        (good.mtu(Some(Mtu::Bytes1024)), "path MTU is 1024, but the two ports take at most 512"),
        (good.flow_label(1 << 20), "flow_label is 1048576"),
        (good.max_reads(255), "max_reads is 255"),
        (good.timeout(32), "timeout is 32"),
    ] {
        let error = pair[0].connect(&remote, options).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
