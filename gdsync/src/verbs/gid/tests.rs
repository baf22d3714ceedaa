use super::*;

fn gid(text: &str) -> Gid {
    Gid(text.parse::<Ipv6Addr>().unwrap().octets())
}

fn table(entries: &[(&str, GidKind)]) -> Vec<GidEntry> {
    let entry =
        |(index, (text, kind)): (u32, &(&str, GidKind))| GidEntry { index, gid: gid(text), kind: *kind };
    (0..).zip(entries).map(entry).collect()
}

#[test]
fn the_best_gid_is_chosen() {
    use GidKind::{InfiniBand, RoceV1, RoceV2};
    let (local, global, ipv4) = ("fe80::1", "2001:db8::1", "::ffff:10.0.0.1");
    for (entries, best) in [
        (&[("fe80::1", InfiniBand), ("fec0::1", InfiniBand)][..], 0),
        (&[(local, RoceV1), (local, RoceV2), (ipv4, RoceV1), (ipv4, RoceV2)], 3),
        (&[(local, RoceV1), (ipv4, RoceV1), (local, RoceV2)], 2),
        (&[(local, RoceV2), (global, RoceV2)], 1),
        (&[(global, RoceV2), (ipv4, RoceV2), (ipv4, RoceV2)], 1),
    ] {
        assert_eq!(choose(&table(entries), "mlx5_0", 1, None).unwrap().index, best, "{entries:?}");
    }
}

#[test]
fn a_gid_index_is_taken_as_it_is() {
    let entries = table(&[("fe80::1", GidKind::RoceV1), ("::ffff:10.0.0.1", GidKind::RoceV2)]);
    assert_eq!(choose(&entries, "mlx5_0", 1, Some(0)).unwrap().kind, GidKind::RoceV1);
    let text = choose(&entries, "mlx5_0", 1, Some(2)).unwrap_err().to_string();
    assert_eq!(text, "port 1 of mlx5_0 has no GID at index 2: it has those at [0, 1]");
    let text = choose(&[], "mlx5_0", 1, None).unwrap_err().to_string();
    assert!(text.contains("no GID to use: it has none (give its network interface an address)"), "{text}");
}

#[test]
fn kinds_are_read_as_the_kernel_spells_them() {
    use LinkLayer::{Ethernet, InfiniBand};
    for (text, link, kind) in [
        ("IB/RoCE v1\n", InfiniBand, Some(GidKind::InfiniBand)),
        ("IB/RoCE v1\n", Ethernet, Some(GidKind::RoceV1)),
        ("RoCE v2\n", Ethernet, Some(GidKind::RoceV2)),
        ("RoCE v9\n", Ethernet, None),
    ] {
        assert_eq!(GidKind::from_sysfs(text, link), kind);
    }
    assert_eq!([0, 1, 2].map(GidKind::from_raw), GidKind::ALL.map(Some));
    assert_eq!(GidKind::from_raw(3), None);
}

#[test]
fn an_unknown_link_layer_is_named() {
    assert_eq!(link_layer(0).unwrap(), LinkLayer::InfiniBand);
    assert_eq!(link_layer(2).unwrap(), LinkLayer::Ethernet);
    let text = link_layer(7).unwrap_err().to_string();
    assert!(text.contains("port link layer as 7"), "{text}");
}
