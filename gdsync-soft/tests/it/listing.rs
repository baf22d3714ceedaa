//! Tools that list devices.

use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{run, soft, tool};

#[test]
fn devices_are_listed() {
    let Some(tool) = tool("devices_are_listed", "ibv_devices") else { return };
    let temporary = Folder::new("devices");
    let listed = run(soft("3", &tool, temporary.path()));
    let text = listed.succeeded();
    for (name, guid) in
        [("mlx5_0", "020000fffe800000"), ("mlx5_1", "020000fffe800001"), ("mlx5_2", "020000fffe800002")]
    {
        assert!(text.lines().any(|line| line.contains(name) && line.contains(guid)), "{text}");
    }
    assert_eq!(text.matches("mlx5_").count(), 3, "{text}");
    assert_eq!(temporary.content(), 0);
}

#[test]
fn devices_of_both_link_layers_are_described() {
    let Some(tool) = tool("devices_of_both_link_layers_are_described", "ibv_devinfo") else { return };
    let temporary = Folder::new("devinfo");
    let mut command = soft("ib,roce", &tool, temporary.path());
    command.arg("-v");
    let described = run(command);
    let text = described.succeeded();
    let (ib, roce) = text.split_once("mlx5_1").unwrap();
    let has = |part: &str, name: &str, value: &str| {
        let found =
            part.lines().any(|line| line.trim().strip_prefix(name).is_some_and(|rest| rest.trim() == value));
        assert!(found, "{name} {value}: {part}");
    };
    for part in [ib, roce] {
        has(part, "state:", "PORT_ACTIVE (4)");
        has(part, "atomic_cap:", "ATOMIC_HCA (1)");
        has(part, "max_qp_wr:", "32768");
        has(part, "vendor_part_id:", "4129");
    }
    has(ib, "link_layer:", "InfiniBand");
    has(ib, "gid_tbl_len:", "1");
    has(roce, "link_layer:", "Ethernet");
    has(roce, "port_lid:", "0");
    has(roce, "gid_tbl_len:", "4");
    let gids = roce.lines().filter(|line| line.contains("GID[")).collect::<Vec<_>>();
    assert_eq!(gids.len(), 4, "{roce}");
    assert!(gids[0].contains("fe80:") && gids[0].contains("RoCE v1"), "{roce}");
    assert!(gids[3].contains("::ffff:10.83.") && gids[3].contains("RoCE v2"), "{roce}");
}

#[test]
fn a_single_device_can_be_asked_for_and_others_are_not_there() {
    let Some(tool) = tool("a_single_device_can_be_asked_for", "ibv_devinfo") else { return };
    let temporary = Folder::new("one-device");
    let ask = |name: &str| {
        let mut command = soft("2", &tool, temporary.path());
        command.args(["-d", name]);
        run(command)
    };
    assert!(ask("mlx5_1").succeeded().contains("mlx5_1"));
    assert_ne!(ask("mlx5_2").code, Some(0));
}
