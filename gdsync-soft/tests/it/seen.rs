//! Programs that look for devices by themselves: in `/sys`, in `/dev`, and by netlink.

use gdsync_test_support::compiler::Compiler;
use gdsync_test_support::folder::Folder;
use gdsync_test_support::programs::{Ended, lacks, run, soft, tool};
use gdsync_test_support::root;
use std::path::Path;

/// Runs a script on an InfiniBand and an Ethernet device.
fn shell(name: &str, script: &str) -> Ended {
    let temporary = Folder::new(name);
    let mut command = soft("ib,roce", Path::new("/bin/sh"), temporary.path());
    command.args(["-c", script]);
    let ended = run(command);
    assert_eq!(temporary.content(), 0, "{}", ended.text);
    ended
}

#[test]
fn files_of_devices_are_where_every_program_looks() {
    let script = "
        ls /dev/infiniband /sys/class/infiniband /sys/class/infiniband_verbs
        test -r /dev/infiniband/uverbs0 && test -c /dev/infiniband/uverbs1 && test ! -h /dev/infiniband/uverbs1 && echo devices
        test -e /dev/infiniband/uverbs2 || echo no third
        realpath /sys/class/infiniband/mlx5_1/device /dev/infiniband/uverbs0
        readlink -f /sys/class/infiniband/mlx5_0/device
        basename $(readlink /sys/class/infiniband/mlx5_0/device)
        cat /sys/bus/pci/devices/50f7:02:00.0/vendor /sys/class/pci_bus/50f7:01/../../50f7:01:00.0/class
        cat /sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3 /sys/class/infiniband/mlx5_0/ports/1/state
    ";
    let expected = "/dev/infiniband:
rdma_cm
uverbs0
uverbs1

/sys/class/infiniband:
mlx5_0
mlx5_1

/sys/class/infiniband_verbs:
abi_version
uverbs0
uverbs1
devices
no third
/sys/devices/pci50f7:00/50f7:00:02.0/50f7:02:00.0
/dev/infiniband/uverbs0
/sys/devices/pci50f7:00/50f7:00:01.0/50f7:01:00.0
50f7:01:00.0
0x15b3
0x020700
RoCE v2
4: ACTIVE
";
    assert_eq!(shell("seen-files", script).succeeded(), expected);
}

/// Returns the words after `name` in each line that has it.
fn values<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.split_once(name).map(|(_, value)| value.trim())).collect()
}

#[test]
fn ibstat_and_ibv_devinfo_agree() {
    let test = "ibstat_and_ibv_devinfo_agree";
    let (Some(_), Some(_)) = (tool(test, "ibstat"), tool(test, "ibv_devinfo")) else { return };
    let seen = shell("seen-ibstat", "ibstat");
    let described = shell("seen-devinfo", "ibv_devinfo -v");
    let (seen, described) = (seen.succeeded(), described.succeeded());
    let hex = |guid: &str| format!("0x{}", guid.replace(':', ""));
    let guids = values(described, "node_guid:").iter().map(|guid| hex(guid)).collect::<Vec<_>>();
    assert_eq!(values(seen, "Node GUID:"), guids, "{seen}");
    let guids = values(described, "sys_image_guid:").iter().map(|guid| hex(guid)).collect::<Vec<_>>();
    assert_eq!(values(seen, "System image GUID:"), guids, "{seen}");
    assert_eq!(values(seen, "Link layer:"), values(described, "link_layer:"), "{seen}");
    assert_eq!(values(seen, "Rate:"), ["200", "200"], "{seen}");
    assert_eq!(values(described, "active_width:"), ["4X (2)", "4X (2)"], "{described}");
    assert_eq!(values(described, "active_speed:"), ["50.0 Gbps (64)", "50.0 Gbps (64)"], "{described}");
    assert_eq!(
        (values(seen, "State:"), values(seen, "Physical state:")),
        (vec!["Active"; 2], vec!["LinkUp"; 2])
    );
    assert_eq!(values(described, "phys_state:"), ["LINK_UP (5)"; 2], "{described}");
    // Each process has its own card: InfiniBand's has a LID, with which the port's GUID ends.
    let (lids, guids) = (values(seen, "Base lid:"), values(seen, "Port GUID:"));
    let lid: u16 = lids[0].parse().unwrap();
    assert!(lid > 0 && guids[0].ends_with(&format!("{lid:04x}")), "{seen}");
    assert_eq!(lids[1], "0", "Ethernet: {seen}");
}

#[test]
fn netlink_tells_links_and_devices() {
    if tool("netlink_tells_links_and_devices", "rdma").is_none() {
        return;
    }
    let links = shell("seen-link", "rdma link");
    let lines: Vec<&str> = links.succeeded().lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid "), "{lines:?}");
    let interface = shell("seen-ndev", "cat /sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0");
    let expected =
        "link mlx5_1/1 state ACTIVE physical_state LINK_UP netdev ".to_owned() + interface.succeeded().trim();
    assert!(lines[1].starts_with(&expected), "{lines:?}");
    let devices = shell("seen-dev", "rdma dev show mlx5_1; rdma system");
    let text = devices.succeeded();
    assert!(
        text.contains("1: mlx5_1: node_type ca fw ") && text.contains("node_guid 0200:00ff:fe80:0001"),
        "{text}"
    );
    assert!(text.contains("netns shared copy-on-fork on"), "{text}");
    assert_ne!(shell("seen-none", "rdma link show mlx5_2/1").code, Some(0));
}

#[test]
fn counters_count_for_every_process() {
    if tool("counters_count_for_every_process", "ib_write_bw").is_none() {
        return;
    }
    let port = gdsync_test_support::programs::free_port();
    let script = format!(
        "cd / && of() {{ cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_$1; }}
        of xmit_data; of rcv_packets
        ib_write_bw -p {port} -n 100 -s 65536 >/dev/null & sleep 1
        ib_write_bw -p {port} -n 100 -s 65536 localhost >/dev/null && wait $! || exit 1
        of xmit_data; of rcv_packets
        cat /sys/class/infiniband/mlx5_0/ports/1/hw_counters/rx_write_requests /sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data"
    );
    let ended = shell("seen-counters", &script);
    let counts: Vec<u64> = ended.succeeded().lines().map(|line| line.parse().unwrap()).collect();
    let [before, packets_before, octets, packets, writes, other] = counts[..] else { panic!("{counts:?}") };
    assert_eq!((before, packets_before, other), (0, 0, 0), "{counts:?}");
    // The writes and the acknowledgements.
    assert!(octets >= 100 * 65536 / 4 && packets > writes && writes >= 100, "{counts:?}");
}

#[test]
fn a_program_that_sees_no_card_is_told_of() {
    let test = "a_program_that_sees_no_card_is_told_of";
    let compiler = Compiler::c("c11").options(["-static"]);
    if let Err(why) = compiler.probe("") {
        return lacks(test, &format!("{why} (packages gcc, libc6-dev)"));
    }
    let folder = Folder::new("static");
    let source = folder.path().join("static.c");
    std::fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let program = compiler.build(&source);
    let temporary = Folder::new("static-run");
    let ended = run(soft("1", &program.path(), temporary.path()));
    assert_eq!(
        (ended.code, ended.text.lines().count()),
        (Some(3), 1),
        "it runs all the same: {}",
        ended.text
    );
    assert!(
        ended.text.contains("no software card") && ended.text.contains("statically linked"),
        "{}",
        ended.text
    );
    assert_eq!(run(soft("1", Path::new("/bin/true"), temporary.path())).text, "");
    // Programs started by the command, with every function that starts one: reported once in a run.
    let said = |ended: &Ended| ended.text.matches("softhca: no software card").count();
    let mut twice = soft("1", Path::new("/bin/sh"), temporary.path());
    twice.args(["-c", "\"$0\"; \"$0\"; exit $?"]).arg(program.path());
    let ended = run(twice);
    assert_eq!((ended.code, said(&ended)), (Some(3), 1), "{}", ended.text);
    let starter = Compiler::c("gnu11").build(&root().join("gdsync-soft/tests/seen/paths.c"));
    for how in ["execl", "execlp", "execle", "execv", "execvp"] {
        let mut command = soft("1", &starter.path(), temporary.path());
        command.arg(how).arg(program.path());
        let ended = run(command);
        assert_eq!((ended.code, said(&ended)), (Some(3), 1), "{how}: {}", ended.text);
        let mut command = soft("1", &starter.path(), temporary.path());
        let ended = run({
            command.args([how, "/bin/true"]);
            command
        });
        assert_eq!((ended.code, ended.text.as_str()), (Some(0), ""), "{how}");
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn files_are_found_by_patterns_walks_and_relative_paths() {
    let compiler = Compiler::c("gnu11");
    if let Err(why) = compiler.probe("") {
        return lacks(
            "files_are_found_by_patterns_walks_and_relative_paths",
            &format!("{why} (package gcc)"),
        );
    }
    let program = compiler.build(&root().join("gdsync-soft/tests/seen/paths.c"));
    let temporary = Folder::new("seen-paths");
    assert_eq!(run(soft("ib,roce", &program.path(), temporary.path())).succeeded(), "");
    assert_eq!(temporary.content(), 0);
}

/// Runs `tests/seen/NAME.c`, whose output is nothing, on a device of each link layer.
fn is_silent(test: &str, name: &str, header: &str, library: &str, arguments: &[String]) {
    let compiler = Compiler::c("gnu11");
    if let Err(why) = compiler.probe(&format!("#include <{header}>")) {
        return lacks(test, &format!("{why} (packages gcc, libibverbs-dev, librdmacm-dev)"));
    }
    let source = root().join("gdsync-soft/tests/seen").join(name).with_extension("c");
    let program = compiler.libraries([library, "-libverbs", "-lpthread"]).build(&source);
    for devices in ["ib", "roce"] {
        let temporary = Folder::new(name);
        let mut command = soft(devices, &program.path(), temporary.path());
        command.args(arguments);
        let ended = run(command);
        // The library says why a card does not start.
        let others = ended.succeeded().lines().filter(|line| !line.starts_with("softhca: "));
        assert_eq!(others.count(), 0, "{devices}: {}", ended.text);
        // A card that gets no plain name of a LID looks for the user's key, whose folder stays.
        let of_the_run = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_string_lossy().starts_with("gdsync-run")
        };
        assert!(!temporary.path().read_dir().unwrap().any(of_the_run), "{devices}");
    }
}

#[test]
fn files_that_are_kept_open_are_read_anew() {
    is_silent("files_that_are_kept_open_are_read_anew", "kept", "infiniband/verbs.h", "-libverbs", &[]);
}

#[test]
fn the_end_of_an_identifier_frees_its_port() {
    let port = gdsync_test_support::programs::free_port().to_string();
    is_silent("the_end_of_an_identifier_frees_its_port", "ports", "rdma/rdma_cma.h", "-lrdmacm", &[port]);
}

#[test]
fn too_few_files_and_too_small_ones_are_errors() {
    for what in ["files", "size"] {
        let test = "too_few_files_and_too_small_ones_are_errors";
        is_silent(test, "scarce", "rdma/rdma_cma.h", "-lrdmacm", &[what.to_owned()]);
    }
}

#[test]
fn threads_with_the_smallest_stack_call_verbs() {
    let test = "threads_with_the_smallest_stack_call_verbs";
    is_silent(test, "scarce", "rdma/rdma_cma.h", "-lrdmacm", &["threads".to_owned()]);
}

#[test]
fn the_limit_on_the_size_of_files_is_named() {
    let temporary = Folder::new("seen-size");
    let limited = |script: &str| {
        let command = soft("ib", Path::new("/bin/sh"), temporary.path());
        let mut outer = std::process::Command::new("/bin/sh");
        outer.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
        outer.env("TMPDIR", temporary.path());
        run(outer)
    };
    let ended = limited("ulimit -f 8; exec \"$@\" -c true");
    assert_eq!(ended.code, Some(1), "{}", ended.text);
    assert!(ended.text.contains("RLIMIT_FSIZE") && ended.text.contains("ulimit -f"), "{}", ended.text);
    if tool("the_limit_on_the_size_of_files_is_named", "ibv_devinfo").is_some() {
        let ended = limited("exec \"$@\" -c 'ulimit -f 8; ibv_devinfo'");
        assert!(ended.code.is_some_and(|code| code < 128), "{}", ended.text);
        assert!(ended.text.contains("RLIMIT_FSIZE") && ended.text.contains("ulimit -f"), "{}", ended.text);
    }
    assert_eq!(temporary.content(), 0);
}

#[test]
fn a_small_address_space_is_an_error() {
    let test = "a_small_address_space_is_an_error";
    let Some(tool) = tool(test, "ibv_devinfo") else { return };
    let temporary = Folder::new("seen-space");
    let ends = (10_000..46_000).step_by(2_000).map(|kib| {
        let mut command = soft("ib", Path::new("/bin/sh"), temporary.path());
        command.args(["-c", "ulimit -v \"$0\" && exec \"$1\"", &kib.to_string()]).arg(&tool);
        let ended = run(command);
        let by_signal = 129..=192;
        assert!(ended.code.is_some_and(|code| !by_signal.contains(&code)), "{kib} KiB: {}", ended.text);
        ended.text
    });
    let texts: Vec<String> = ends.collect();
    let said = "the card cannot start: the process cannot have 8 MiB more memory; raise the limit";
    assert!(texts.iter().any(|text| text.contains(said)), "{texts:?}");
    assert!(texts[texts.len() - 1].contains("PORT_ACTIVE"), "{texts:?}");
}
