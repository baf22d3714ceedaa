//! What users meet: slots, windows, divided GPUs, GIDs, partitions, control groups, firmware, two ways to GPU memory.

use super::{Said, topologies, tree};

/// The machine as it should be, with changed files.
fn changed(from: &str, to: &str) -> Said {
    assert!(topologies::DGX.contains(from), "{from}");
    Said::of(&tree(&topologies::DGX.replacen(from, to, 1), topologies::DGX_LIBRARIES))
}

fn with(lines: &str) -> Said {
    Said::of(&tree(&format!("{}{lines}\n", topologies::DGX), topologies::DGX_LIBRARIES))
}

#[test]
fn a_narrow_or_slow_link_is_named() {
    let said = changed("lanes=16,16", "lanes=8,16");
    said.has("mlx5_0 link", "warn", "8 of 16 lanes", "slot of its width");
    let said = changed("speed=32.0_GT/s_PCIe", "speed=16.0_GT/s_PCIe");
    said.has("mlx5_0 link", "warn", "16.0 GT/s PCIe of 32.0 GT/s PCIe", "LnkSta");
    let said = changed("lanes=16,16", "lanes=0,255");
    said.has("mlx5_0 link", "skip", "does not know its width", "");
}

#[test]
fn a_platform_that_forbids_relaxed_ordering_is_named() {
    changed("relaxed=1", "relaxed=0").has("mlx5_0 relaxed ordering", "warn", "forbidden", "CAP_EXP+8.w");
    // Users see 64 bytes.
    changed("relaxed=1", "relaxed=1 config=64").has(
        "mlx5_0 relaxed ordering",
        "skip",
        "does not show it",
        "root",
    );
}

#[test]
fn a_small_window_is_named() {
    let said = changed("bar1=0x2000000000", "bar1=0x10000000");
    said.has("GPU 0 BAR1", "warn", "256 MiB: at most so much", "Resizable BAR");
}

#[test]
fn a_divided_gpu_is_named() {
    let said = with("/proc/driver/nvidia/capabilities/gpu1/mig/gi1/access = DeviceFileMinor: 3");
    said.has("GPU 1 instances", "warn", "1 by MIG", "nvidia-smi -i 1 -mig 0");
    // A GPU that could be divided has the folder without instances.
    let said = with("/proc/driver/nvidia/capabilities/gpu1/mig/config = x");
    assert!(said.checks().iter().all(|check| check["name"] != "GPU 1 instances"));
}

#[test]
fn roce_without_version_2_is_named() {
    let port = "layer=InfiniBand pkey=0xffff";
    changed(port, "layer=Ethernet gid=IB/RoCE_v1").has(
        "mlx5_0 port 1 GIDs",
        "warn",
        "0 of 1 by RoCE v2",
        "ip addr add",
    );
    changed(port, "layer=Ethernet gid=RoCE_v2").has("mlx5_0 port 1 GIDs", "pass", "1 of 1 by RoCE v2", "");
}

#[test]
fn another_partition_is_named() {
    changed("pkey=0xffff", "pkey=0x8001").has(
        "mlx5_0 port 1 partition",
        "warn",
        "0x8001 at index 0, not the default",
        "pkey_index",
    );
    changed("pkey=0xffff", "pkey=0x7fff").has(
        "mlx5_0 port 1 partition",
        "warn",
        "limited member",
        "ALL=full",
    );
    changed("pkey=0xffff", "pkey=none").has("mlx5_0 port 1 partition", "skip", "no partition key", "");
}

#[test]
fn a_group_with_few_objects_is_named() {
    let group = "/proc/self/cgroup = 0::/kubepods/pod7\\n\n/sys/fs/cgroup/kubepods/pod7/rdma.max = ";
    let said = with(&format!("{group}mlx5_0 hca_handle=max hca_object=500\\n"));
    said.has("RDMA control group", "warn", "hca_object=500", "/kubepods/pod7/rdma.max");
    let said = with(&format!("{group}mlx5_0 hca_handle=100 hca_object=max\\n"));
    said.has("RDMA control group", "pass", "hca_handle=100", "");
}

#[test]
fn firmware_that_is_too_old_for_its_card_is_named() {
    let old = topologies::DGX_LIBRARIES.replacen("\"data\": true", "\"data\": false", 1);
    Said::of(&tree(topologies::DGX, &old)).has("mlx5_0 waits", "warn", "28.39.1002", "update its firmware");
    let older = old.replace("28.39.1002", "20.39.1002");
    Said::of(&tree(topologies::DGX, &older)).has(
        "mlx5_0 waits",
        "warn",
        "20.39.1002",
        "a ConnectX-7 or newer",
    );
}

#[test]
fn two_ways_to_gpu_memory_are_named() {
    let said = with(
        "/sys/module/nvidia_peermem/version = 580.159.04\n/sys/kernel/mm/memory_peers/nv_mem/version = 580.159.04",
    );
    said.has(
        "peer memory",
        "warn",
        "nvidia-peermem 580.159.04, known to ib_core as nv_mem, beside dma-bufs",
        "modprobe -r nvidia-peermem",
    );
    said.has("GPU memory for cards", "pass", "by dma-buf", "");
}
