//! `gdsync doctor` on recorded trees of several machines, and on this one.

mod given;
mod slots;
mod topologies;
mod tree;

use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use tree::Tree;

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gdsync"))
        .arg("doctor")
        .args(arguments)
        .env_remove("GDSYNC_LOG")
        .output()
        .unwrap()
}

/// The doctor's report on a tree.
struct Said {
    report: Value,
    code: Option<i32>,
}

impl Said {
    fn of(tree: &Tree) -> Said {
        let output = doctor(&["--json", "--root", tree.root().to_str().unwrap()]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.is_empty(), "{stderr}");
        Said { report: gdsync_test_support::command::row(&output.stdout), code: output.status.code() }
    }

    fn checks(&self) -> Vec<&Value> {
        let families = self.report["families"].as_array().unwrap();
        families.iter().flat_map(|family| family["checks"].as_array().unwrap()).collect()
    }

    /// Asserts a check's status, and words of its observation and its remedy.
    #[track_caller]
    fn has(&self, name: &str, status: &str, seen: &str, remedy: &str) {
        let found = self.checks().into_iter().find(|check| check["name"] == name);
        let check = found.unwrap_or_else(|| panic!("no check {name}: {:#}", self.report));
        assert_eq!(check["status"], status, "{check:#}");
        assert!(check["seen"].as_str().unwrap().contains(seen), "{check:#}");
        assert!(check["remedy"].as_str().unwrap_or_default().contains(remedy), "{check:#}");
    }

    fn paths(&self) -> Vec<[&str; 3]> {
        let paths = self.report["paths"].as_array().unwrap();
        paths
            .iter()
            .map(|path| {
                [&path["gpu"], &path["card"], &path["class"]].map(|value| value.as_str().unwrap_or("?"))
            })
            .collect()
    }
}

fn tree(description: &str, libraries: &str) -> Tree {
    let tree = Tree::build(description);
    tree.file("/libraries.json", libraries);
    tree
}

#[test]
fn a_machine_as_it_should_be_passes() {
    let said = Said::of(&tree(topologies::DGX, topologies::DGX_LIBRARIES));
    let troubled: Vec<_> = said.checks().into_iter().filter(|check| check["status"] != "pass").collect();
    assert!(troubled.is_empty(), "{troubled:#?}");
    assert_eq!(said.code, Some(0));
    said.has("NVIDIA driver", "pass", "580.159.04, open", "");
    said.has("CUDA", "pass", "13.0: GPU 0 NVIDIA H100 80GB HBM3 at 0000:1a:00.0; GPU 1", "");
    said.has("dma-buf", "pass", "Linux 6.8.0-45-generic, GPU 0, GPU 1, ibv_reg_dmabuf_mr", "");
    said.has("peer memory", "pass", "nor nv_peer_mem is loaded, and need not be", "");
    said.has("mlx5_0 link", "pass", "16 of 16 lanes, 32.0 GT/s PCIe of 32.0 GT/s PCIe", "");
    // Its link rests.
    said.has("GPU 0 link", "pass", "16 of 16 lanes", "");
    said.has("GPU 0 BAR1", "pass", "128 GiB", "");
    said.has("mlx5_1 relaxed ordering", "pass", "allowed", "");
    said.has("mlx5_0 port 1 partition", "pass", "0xffff at index 0", "");
    said.has("GPU memory for cards", "pass", "by dma-buf", "");
    said.has("gdrdrv", "pass", "2.5", "");
    said.has("rdma-core", "pass", "libibverbs of release 50.0, libmlx5 of release 50.0", "");
    said.has("RDMA devices", "pass", "mlx5_0 (mlx5_core), mlx5_1 (mlx5_core)", "");
    said.has("mlx5_1 firmware", "pass", "28.39.1002, MT4129", "");
    said.has("mlx5_0 port 1", "pass", "ACTIVE, LinkUp, InfiniBand", "");
    said.has(
        "mlx5_1 waits",
        "pass",
        "(wait_on_data) yes, for completion queues (cd) yes, firmware 28.39.1002",
        "",
    );
    said.has("locked memory", "pass", "unlimited", "");
    said.has("locked memory of services", "pass", "slurmd infinity", "");
    said.has("channels of a GPU", "pass", "not set: 8, and 32 for gdsync's own commands", "");
    said.has("container", "pass", "none that shows itself", "");
    said.has("IOMMU", "pass", "dmar0 (kernel: intel_iommu=on iommu=pt): identity", "");
    said.has("ACS", "pass", "4 bridges", "");
    said.has("GPU 1 nearest card", "pass", "mlx5_1 (PIX)", "");
    let paths = [
        ["GPU 0", "mlx5_0", "PIX"],
        ["GPU 0", "mlx5_1", "SYS"],
        ["GPU 1", "mlx5_0", "SYS"],
        ["GPU 1", "mlx5_1", "PIX"],
    ];
    assert_eq!(said.paths(), paths);
}

#[test]
fn a_card_that_does_not_wait_is_told_with_what_that_costs() {
    let whole = topologies::DGX_LIBRARIES;
    let said = |data: bool, queues: bool| {
        let answer = format!("\"mlx5_0\": {{\"says\": {{\"data\": {data}, \"queues\": {queues}}}}}");
        let libraries = whole.replace("\"mlx5_0\": {\"says\": {\"data\": true, \"queues\": true}}", &answer);
        assert_ne!(libraries, whole);
        Said::of(&tree(topologies::DGX, &libraries))
    };
    let neither = said(false, false);
    neither.has(
        "mlx5_0 waits",
        "warn",
        "no, for completion queues (cd) no",
        "registers (root, or PeerMapping",
    );
    neither.has("mlx5_1 waits", "pass", "yes", "");
    let check = neither.checks().into_iter().find(|check| check["name"] == "mlx5_0 waits").unwrap();
    assert!(check["why"].as_str().unwrap().contains("longer with each peer"), "{check:#}");
    said(true, false).has("mlx5_0 waits", "warn", "(wait_on_data) yes", "--doorbells card");
    let told = "{\"says\": {\"data\": true, \"queues\": true, \"more\": {\"time\": true, \"ignore_overrun\": false, \"recordless\": 256}}}";
    let featured = Said::of(&tree(
        topologies::DGX,
        &whole.replacen("{\"says\": {\"data\": true, \"queues\": true}}", told, 1),
    ));
    featured.has("mlx5_0 waits", "pass", "(wait_on_time) yes, queues that ignore overruns (cq_oi) no", "");
    featured.has("mlx5_0 waits", "pass", "without doorbell records up to 256", "");
    // Not recorded, or not answered.
    Said::of(&Tree::build(topologies::TWO_SOCKETS)).has("mlx5_0 waits", "skip", "does not say", "");
    let broken =
        whole.replace("{\"says\": {\"data\": true, \"queues\": true}}", "{\"broken\": \"no answer\"}");
    Said::of(&tree(topologies::DGX, &broken)).has("mlx5_0 waits", "skip", "no answer", "");
}

/// The path between GPUs, and their nodes.
#[test]
fn gpus_without_access_to_each_other_are_told_with_their_way() {
    let whole = topologies::DGX_LIBRARIES;
    let said = Said::of(&tree(topologies::DGX, whole));
    said.has("GPU 0 and GPU 1", "pass", "access both ways, by NVLink, at NUMA nodes 0 and 1", "");
    said.has("GPU 0 NUMA node", "pass", "0", "");
    said.has("GPU 1 NUMA node", "pass", "1: CPUs 48-95 (`numactl --cpunodebind=1 --membind=1`)", "");
    let pair = &said.report["pairs"][0];
    assert_eq!((&pair["way"], &pair["access"]), (&"NVLINK".into(), &serde_json::json!([true, true])));

    let without = |old: &str, new: &str, count: usize| {
        let libraries = whole.replacen(old, new, count);
        assert_ne!(libraries, whole);
        Said::of(&tree(topologies::DGX, &libraries))
    };
    let (nvlink, pcie) = (r#""access": true, "atomics": true"#, r#""access": true, "atomics": false"#);
    let said = without(nvlink, pcie, 2);
    said.has("GPU 0 and GPU 1", "pass", "access both ways, over PCI Express (SYS)", "");
    let none = r#""access": false, "atomics": false"#;
    let said = without(nvlink, none, 2);
    said.has("GPU 0 and GPU 1", "warn", "no access; over PCI Express (SYS)", "nvidia-smi topo -p2p r");
    assert_eq!((said.code, &said.report["pairs"][0]["way"]), (Some(0), &"SYS".into()));
    let said = without(nvlink, none, 1);
    said.has("GPU 0 and GPU 1", "warn", "GPU 1 reaches GPU 0, not the other way", "host memory");
    // A driver that does not report it, and an older record.
    let said = without(r#"{"from": 1,"#, r#"{"from": 7,"#, 1);
    said.has("GPU 0 and GPU 1", "skip", "does not say", "");
    let folder = tree(topologies::DGX, whole);
    let text = doctor(&["--root", folder.root().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let table = text.split("Access between GPUs\n").nth(1).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][2..], ["X", "NVLINK"], "{table}");
    assert_eq!(rows[2][2..], ["NVLINK", "X"], "{table}");
    // One GPU has no pair.
    let single = Said::of(&tree(topologies::WRONG, topologies::WRONG_LIBRARIES));
    assert_eq!(single.report["pairs"].as_array().unwrap().len(), 0);
}

#[test]
fn a_gpu_that_processes_share_in_time_slices_is_told_with_the_way_out() {
    let whole = topologies::DGX_LIBRARIES;
    Said::of(&tree(topologies::DGX, whole)).has("GPU 1 among processes", "pass", "shared by MPS", "");
    let said = Said::of(&tree(topologies::DGX, &whole.replacen("\"mps\": true", "\"mps\": false", 1)));
    said.has("GPU 0 among processes", "warn", "take turns", "nvidia-cuda-mps-control -d");
    said.has("GPU 1 among processes", "pass", "shared by MPS", "");
    assert_eq!(said.code, Some(0));
    // A driver that does not know the attribute; and an older record.
    let unknown = whole.replace("\"mps\": true", "\"mps\": null");
    Said::of(&tree(topologies::DGX, &unknown)).has("GPU 0 among processes", "skip", "does not say", "");
    let wrong = Said::of(&tree(topologies::WRONG, topologies::WRONG_LIBRARIES));
    wrong.has("GPU 0 among processes", "skip", "does not say", "");
}

#[test]
fn peer_memory_is_not_asked_for_where_dma_bufs_work() {
    let said = Said::of(&tree(topologies::DGX, topologies::DGX_LIBRARIES));
    said.has("peer memory", "pass", "need not be: dma-bufs work", "");
    said.has("GPU memory for cards", "pass", "by dma-buf", "");
    // A module without that information.
    let unlisted = format!("{}/sys/module/nvidia_peermem/version = 580.159.04\\n\n", topologies::DGX);
    let said = Said::of(&tree(&unlisted, topologies::DGX_LIBRARIES));
    said.has(
        "peer memory",
        "pass",
        "nvidia-peermem 580.159.04 is loaded; whether ib_core knows it is not shown",
        "",
    );
}

#[test]
fn a_card_at_the_other_processor_is_told_with_the_way_out() {
    let said = Said::of(&Tree::build(topologies::TWO_SOCKETS));
    assert_eq!(said.paths(), [["0000:0a:00.0", "mlx5_0", "SYS"]]);
    said.has("0000:0a:00.0 nearest card", "warn", "mlx5_0 (SYS)", "slot");
    said.has("NVIDIA driver", "warn", "535.104.05, proprietary", "nvidia-peermem");
    said.has("PeerMappingOverride", "warn", "not set", "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"");
    said.has("EnableStreamMemOPs", "pass", "0, not needed", "");
    said.has("dma-buf", "warn", "5.4.0-100-generic is older than 5.12", "boot Linux 5.12");
    said.has("peer memory", "warn", "neither", "modprobe nvidia-peermem");
    said.has("GPU memory for cards", "fail", "neither", "nvidia-open");
    said.has("IOMMU", "warn", "ivhd0: DMA-FQ for 0000:0a:00.0, 0000:81:00.0", "iommu=pt");
    said.has("ACS", "pass", "through the processor anyway", "");
    said.has("mlx5_0 port 1", "warn", "DOWN, Disabled, Ethernet", "ip link set");
    said.has("locked memory", "warn", "64 KiB", "memlock unlimited");
    // Not recorded, so not reported.
    said.has("CUDA", "skip", "not recorded", "");
    said.has("rdma-core", "skip", "not recorded", "");
    assert_eq!(said.code, Some(1), "GPU memory cannot be registered there");
}

#[test]
fn a_virtual_machine_is_told_as_it_shows_itself() {
    let said = Said::of(&Tree::build(topologies::VIRTUAL));
    assert_eq!(said.paths(), [["0000:00:05.0", "mlx5_0", "PHB"]]);
    said.has("0000:00:05.0 nearest card", "warn", "as this virtual machine shows it", "--hca mlx5_0");
    said.has("IOMMU", "pass", "none in use; the hypervisor's", "");
    said.has("ACS", "pass", "no bridge between", "");
    said.has("PeerMappingOverride", "skip", "there is no /proc/driver/nvidia/params", "");
    said.has("locked memory", "skip", "there is no /proc/self/limits", "");
    said.has("mlx5_0 port 1", "warn", "INIT, LinkUp, InfiniBand", "opensm");
    said.has("dma-buf", "skip", "CUDA was not asked", "");
    said.has("GPU memory for cards", "skip", "not known", "");
    assert_eq!(said.code, Some(0));
}

#[test]
fn wrong_parameters_are_named_one_by_one() {
    let said = Said::of(&tree(topologies::WRONG, topologies::WRONG_LIBRARIES));
    assert_eq!((said.code, said.paths()), (Some(1), vec![["GPU 0", "mlx5_0", "PXB"]]));
    said.has("PeerMappingOverride", "warn", "0", "PeerMappingOverride=1;");
    said.has("GPU 0 stream operations", "fail", "wait for NOR no", "Volta");
    said.has("GPU 0 order of writes", "warn", "no flush", "host memory");
    said.has(
        "dma-buf",
        "warn",
        "the driver makes none of GPU 0; libibverbs has no ibv_reg_dmabuf_mr",
        "rdma-core 34",
    );
    said.has(
        "peer memory",
        "warn",
        "nv_peer_mem 1.3-0, but ib_core knows others only",
        "modprobe -r nv_peer_mem",
    );
    said.has("GPU memory for cards", "fail", "neither", "");
    said.has("gdrdrv", "warn", "2.4 is loaded, but there is no /dev/gdrdrv", "mknod");
    said.has("software card", "fail", "SOFTHCA_DEVICES is 99", "unset");
    said.has(
        "RDMA devices",
        "fail",
        "cannot open mlx5_0 (system: mlx5_0: ibv_open_device failed: Permission",
        "uverbs",
    );
    said.has("rdma-core", "pass", "libibverbs of release unknown", "");
    said.has(
        "IOMMU",
        "warn",
        "dmar0 (kernel: intel_iommu=on): DMA for 0000:18:00.0, 0000:1b:00.0",
        "iommu=pt",
    );
    let redirected = "redirected by 0000:17:00.0 (request redirect, completion redirect); unreadable: 0000:17:01.0 (only 64 bytes";
    said.has("ACS", "warn", redirected, "setpci -s 0000:17:00.0 ECAP_ACS+0x6.w=0000");
}

#[test]
fn a_bridge_that_cannot_be_read_is_unknown_rather_than_good() {
    let tree = Tree::build(&topologies::WRONG.replace("acs=1d", "acs=0"));
    Said::of(&tree).has("ACS", "skip", "unknown of 0000:17:01.0 (only 64 bytes", "as root");
    // As if nothing were readable.
    let config = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/config";
    fs::remove_file(tree.at(config)).unwrap();
    fs::create_dir(tree.at(config)).unwrap();
    Said::of(&tree).has(
        "ACS",
        "skip",
        "0000:17:00.0 (/sys/bus/pci/devices/0000:17:00.0/config cannot be read",
        "",
    );
}

#[test]
fn a_machine_with_nothing_has_absent_parts_and_the_software_card() {
    let recorded = tree(topologies::NOTHING, topologies::NOTHING_LIBRARIES);
    let said = Said::of(&recorded);
    assert_eq!((said.code, said.paths().len()), (Some(0), 0));
    said.has("NVIDIA driver", "absent", "no GPU and no driver", "gdsync pingpong");
    said.has("CUDA", "absent", "libcuda.so.1 cannot be loaded", "");
    said.has("software card", "pass", "softhca0 port 1 ACTIVE, InfiniBand: works here", "");
    said.has("rdma-core", "absent", "libibverbs.so.1 cannot be loaded", "apt-get install");
    said.has("RDMA devices", "absent", "none", "the software one");
    said.has("GPU nearest card", "skip", "neither GPU nor card", "");
    said.has("IOMMU", "pass", "none in use", "");
    let text = doctor(&["--root", recorded.root().to_str().unwrap()]);
    let text = String::from_utf8(text.stdout).unwrap();
    let summary = &said.report["summary"];
    let expected = format!(
        "\n{} pass, 0 warn, 0 fail, 4 absent, {} skipped\nVerdict: software streams and the software card work here; absent: NVIDIA driver, CUDA, rdma-core, RDMA devices\n",
        summary["pass"], summary["skip"]
    );
    assert!(text.ends_with(&expected), "{text}");
    assert_eq!(said.report["verdict"], expected.lines().last().unwrap());
    // Observations begin in one column.
    let column = |seen: &str| text.lines().find_map(|line| line.find(seen)).unwrap();
    assert_eq!(column("no GPU and no driver"), column("softhca0 port 1"));
    assert_eq!(column("no GPU and no driver"), column("do:  "));
    assert!(!text.contains("why: "), "{text}");
    let problems = doctor(&["--problems", "--root", recorded.root().to_str().unwrap()]);
    assert_eq!(String::from_utf8(problems.stdout).unwrap(), expected.trim_start());
}

#[test]
fn problems_alone_are_shown_with_the_verdict() {
    let slow = topologies::DGX_LIBRARIES
        .replace("\"mlx5_0\": {\"says\": {\"data\": true", "\"mlx5_0\": {\"says\": {\"data\": false");
    let machine = tree(topologies::DGX, &slow);
    let root = machine.root().to_str().unwrap();
    let text = String::from_utf8(doctor(&["--problems", "--root", root]).stdout).unwrap();
    let statuses = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let statuses: Vec<&str> = statuses.collect();
    assert!(statuses.len() == 1 && statuses[0].starts_with("  WARN    mlx5_0 waits"), "{text}");
    let verdict = "Verdict: streams of GPUs and RDMA cards work here; could be better: mlx5_0 waits";
    assert_eq!(text.lines().last(), Some(verdict));
    let report = doctor(&["--problems", "--json", "--root", root]);
    let report = gdsync_test_support::command::row(&report.stdout);
    let families = report["families"].as_array().unwrap();
    assert!(families.len() == 1 && families[0]["checks"].as_array().unwrap().len() == 1, "{report:#}");
    assert!(report["summary"]["pass"].as_u64().unwrap() > 10, "{report:#}");
}

#[test]
fn drivers_that_are_missing_are_failures_where_their_hardware_is() {
    let description = "
        /proc/sys/kernel/osrelease = 6.8.0
        /sys/module/ext4/
        /sys/class/net/
        pci pci0000:00/0000:00:05.0 vendor=0x10de class=0x030200 numa=0
        pci pci0000:00/0000:00:06.0 vendor=0x15b3 class=0x020000 numa=0";
    let said = Said::of(&Tree::build(description));
    said.has("NVIDIA driver", "fail", "not loaded, with a GPU at 0000:00:05.0", "modprobe nvidia");
    said.has("RDMA devices", "fail", "network functions of NVIDIA at 0000:00:06.0", "modprobe mlx5_ib");
    assert_eq!(said.code, Some(1));
    let verdict = said.report["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("Verdict: does not work here: NVIDIA driver, RDMA devices"), "{verdict}");
}

#[test]
fn an_empty_tree_is_unknown_throughout() {
    let said = Said::of(&Tree::build("/proc/"));
    assert_eq!(said.code, Some(0));
    for name in [
        "NVIDIA driver",
        "CUDA",
        "dma-buf",
        "peer memory",
        "IOMMU",
        "ACS",
        "GPU nearest card",
        "locked memory",
        "channels of a GPU",
        "container",
        "locked memory of services",
    ] {
        said.has(name, "skip", "", "");
    }
}

#[test]
fn a_root_that_is_no_tree_is_an_error() {
    let output = doctor(&["--root", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all is no folder"));
    let tree = tree("/proc/", "{\"cuda\": 1}");
    let output = doctor(&["--root", tree.root().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("libraries.json"));
}

#[test]
fn this_machine_is_examined_whatever_it_has() {
    let output = doctor(&["--json"]);
    let report: Value = gdsync_test_support::command::row(&output.stdout);
    let failed = report["summary"]["fail"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(failed > 0)), "{report:#}");
    for check in
        report["families"].as_array().unwrap().iter().flat_map(|family| family["checks"].as_array().unwrap())
    {
        let troubled = check["status"] == "warn" || check["status"] == "fail";
        assert!(!troubled || check["remedy"].is_string(), "{check:#}");
        assert!(
            !check["seen"].as_str().unwrap().is_empty() && !check["why"].as_str().unwrap().is_empty(),
            "{check:#}"
        );
    }
}
