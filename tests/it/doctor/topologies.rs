//! Descriptions of machines by their files.

/// Two GPUs and two cards in pairs, each pair below its own switch with ACS off, and with its own processor; every
/// module that it needs is loaded. Half of a DGX.
pub(crate) const DGX: &str = r#"
/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:  gcc version 12.2.0\n
/proc/driver/nvidia/params = ModifyDeviceFiles: 1\nEnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n
/proc/sys/kernel/osrelease = 6.8.0-45-generic\n
/proc/cmdline = BOOT_IMAGE=/vmlinuz intel_iommu=on iommu=pt quiet\n
/proc/cpuinfo = processor : 0\nflags : fpu vme sse2\n
/proc/self/limits = Max locked memory         unlimited            unlimited            bytes\n
/proc/self/status = CapEff: 0000000000000000\n
/proc/self/environ = HOME=/root
/proc/1/cgroup = 0::/init.scope\n
/etc/systemd/system/
/etc/systemd/system.conf = [Manager]\n#DefaultLimitMEMLOCK=8M\n
/usr/lib/systemd/system/slurmd.service = [Service]\nExecStart=/usr/sbin/slurmd\nLimitMEMLOCK=infinity\n
/proc/self/maps = 7f00-7f01 r-xp 0 fe:00 1  /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.50.0\n7f02-7f03 r-xp 0 fe:00 2  /usr/lib/x86_64-linux-gnu/libmlx5.so.1.25.50.0\n
/dev/gdrdrv = \n
/sys/module/gdrdrv/version = 2.5\n
/sys/class/iommu/dmar0/
/sys/kernel/iommu_groups/10/type = identity\n
/sys/devices/system/node/online = 0-1\n
/sys/devices/system/node/node1/cpulist = 48-95\n
pci pci0000:15/0000:15:01.0 vendor=0x8086 class=0x060400 numa=0 acs=1d
pci pci0000:15/0000:15:01.0/0000:16:00.0 vendor=0x1000 class=0x060400 numa=0
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0 vendor=0x1000 class=0x060400 numa=0 acs=0
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0 vendor=0x1000 class=0x060400 numa=0 acs=0
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 vendor=0x15b3 class=0x020700 numa=0 group=10 driver=mlx5_core lanes=16,16 speed=32.0_GT/s_PCIe,32.0_GT/s_PCIe relaxed=1
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1a:00.0 vendor=0x10de class=0x030200 numa=0 group=10 lanes=16,16 speed=2.5_GT/s_PCIe,32.0_GT/s_PCIe bar1=0x2000000000
pci pci0000:97/0000:97:01.0 vendor=0x8086 class=0x060400 numa=1 acs=1d
pci pci0000:97/0000:97:01.0/0000:98:00.0 vendor=0x1000 class=0x060400 numa=1
pci pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0 vendor=0x1000 class=0x060400 numa=1 acs=0
pci pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0 vendor=0x1000 class=0x060400 numa=1 acs=0
pci pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0 vendor=0x15b3 class=0x020700 numa=1 group=10 driver=mlx5_core lanes=16,16 speed=32.0_GT/s_PCIe,32.0_GT/s_PCIe relaxed=1
pci pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:01.0/0000:9b:00.0 vendor=0x10de class=0x030200 numa=1 group=10 lanes=16,16 speed=2.5_GT/s_PCIe,32.0_GT/s_PCIe bar1=0x2000000000
card mlx5_0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 fw=28.39.1002 state=4:_ACTIVE phys=5:_LinkUp layer=InfiniBand pkey=0xffff
card mlx5_1 pci0000:97/0000:97:01.0/0000:98:00.0/0000:99:00.0/0000:9a:00.0 fw=28.39.1002 state=4:_ACTIVE phys=5:_LinkUp layer=InfiniBand pkey=0xffff
"#;

/// The libraries' answers there.
pub(crate) const DGX_LIBRARIES: &str = r#"{
  "cuda": {"says": {"version": 13000, "gpus": [
    {"ordinal": 0, "name": "NVIDIA H100 80GB HBM3", "pci_address": "0000:1a:00.0", "ops_64_bit": true, "wait_nor": true,
     "flush_remote_writes": false, "writes_ordering": "owner", "consistency": "ordered", "dma_buf": true,
     "mps": true},
    {"ordinal": 1, "name": "NVIDIA H100 80GB HBM3", "pci_address": "0000:9b:00.0", "ops_64_bit": true, "wait_nor": true,
     "flush_remote_writes": false, "writes_ordering": "owner", "consistency": "ordered", "dma_buf": true,
     "mps": true}], "peers": [
    {"from": 0, "to": 1, "access": true, "atomics": true}, {"from": 1, "to": 0, "access": true, "atomics": true}]}},
  "verbs": {"says": {"dma_buf": true, "ports": [
    {"device": "mlx5_0", "port": 1, "state": "ACTIVE", "link": "InfiniBand", "firmware": "28.39.1002"},
    {"device": "mlx5_1", "port": 1, "state": "ACTIVE", "link": "InfiniBand", "firmware": "28.39.1002"}], "waits": {
    "mlx5_0": {"says": {"data": true, "queues": true}}, "mlx5_1": {"says": {"data": true, "queues": true}}}}},
  "software": {"says": [{"device": "softhca0", "port": 1, "state": "ACTIVE", "link": "InfiniBand", "firmware": "0.1.0"}]}
}"#;

/// A workstation with two processors: the card is in a slot of the other processor, on Ethernet, with its interface
/// down. No library was queried.
pub(crate) const TWO_SOCKETS: &str = r#"
/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n
/proc/driver/nvidia/params = RegistryDwords: ""\nEnableStreamMemOPs: 0\n
/proc/sys/kernel/osrelease = 5.4.0-100-generic\n
/proc/cmdline = quiet\n
/proc/self/limits = Max locked memory         65536                65536                bytes\n
/proc/self/status = CapEff: 0000000000000000\n
/sys/module/nvidia/version = 535.104.05\n
/sys/class/iommu/ivhd0/
/sys/kernel/iommu_groups/1/type = DMA-FQ\n
/sys/kernel/iommu_groups/2/type = DMA-FQ\n
/sys/devices/system/node/online = 0-1\n
pci pci0000:00/0000:00:03.1 vendor=0x1022 class=0x060400 numa=0 acs=1d
pci pci0000:00/0000:00:03.1/0000:0a:00.0 vendor=0x10de class=0x030000 numa=0 group=1
pci pci0000:80/0000:80:01.1 vendor=0x1022 class=0x060400 numa=1 acs=1d
pci pci0000:80/0000:80:01.1/0000:81:00.0 vendor=0x15b3 class=0x020000 numa=1 group=2 driver=mlx5_core
card mlx5_0 pci0000:80/0000:80:01.1/0000:81:00.0 fw=22.31.1014 state=1:_DOWN phys=3:_Disabled layer=Ethernet
"#;

/// A virtual machine with a GPU and a card on its only bus: no ACS, no IOMMU.
pub(crate) const VIRTUAL: &str = r#"
/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n
/proc/sys/kernel/osrelease = 6.1.0-28-amd64\n
/proc/cpuinfo = processor : 0\nflags : fpu vme hypervisor sse2\n
/proc/cmdline = quiet\n
/sys/class/iommu/
/sys/module/nvidia/version = 570.86.15\n
/sys/devices/system/node/online = 0\n
pci pci0000:00/0000:00:05.0 vendor=0x10de class=0x030200 numa=-1
pci pci0000:00/0000:00:06.0 vendor=0x15b3 class=0x020700 numa=-1 driver=mlx5_core
card mlx5_0 pci0000:00/0000:00:06.0 fw=28.39.1002 state=2:_INIT phys=5:_LinkUp layer=InfiniBand
"#;

/// A GPU and a card below switches, with every module loaded and wrong parameters: ACS redirects, the IOMMU
/// translates, the driver does not support peers; one bridge is unreadable.
pub(crate) const WRONG: &str = r#"
/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n
/proc/driver/nvidia/params = EnableStreamMemOPs: 0\nRegistryDwords: "PeerMappingOverride=0;RmMsg=1"\n
/proc/sys/kernel/osrelease = 6.8.0\n
/proc/cmdline = intel_iommu=on\n
/proc/self/limits = Max locked memory         8388608              8388608              bytes\n
/proc/self/status = CapEff: 0000000000000000\n
/sys/module/gdrdrv/version = 2.4\n
/sys/module/nv_peer_mem/version = 1.3-0\n
/sys/kernel/mm/memory_peers/other/version = 1\n
/sys/class/iommu/dmar0/
/sys/kernel/iommu_groups/7/type = DMA\n
pci pci0000:15/0000:15:01.0 vendor=0x8086 class=0x060400 numa=0
pci pci0000:15/0000:15:01.0/0000:16:00.0 vendor=0x1000 class=0x060400 numa=0
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0 vendor=0x1000 class=0x060400 numa=0 acs=1d
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 vendor=0x10de class=0x030200 numa=0 group=7
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0 vendor=0x1000 class=0x060400 numa=0 config=64
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0 vendor=0x1000 class=0x060400 numa=0
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0 vendor=0x1000 class=0x060400 numa=0 acs=13
pci pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0 vendor=0x15b3 class=0x020700 numa=0 group=7 driver=mlx5_core
card mlx5_0 pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0/0000:1a:00.0/0000:1b:00.0 fw=28.39.1002 state=4:_ACTIVE phys=5:_LinkUp layer=InfiniBand
"#;

/// The libraries of the previous machine: too old, or refusing.
pub(crate) const WRONG_LIBRARIES: &str = r#"{
  "cuda": {"says": {"version": 12040, "gpus": [
    {"ordinal": 0, "name": "NVIDIA T4", "pci_address": "0000:18:00.0", "ops_64_bit": true, "wait_nor": false,
     "flush_remote_writes": false, "writes_ordering": "none", "consistency": "impossible", "dma_buf": false}]}},
  "verbs": {"says": {"dma_buf": false, "ports": [], "notes": ["system: mlx5_0: ibv_open_device failed: Permission denied"]}},
  "software": {"broken": "SOFTHCA_DEVICES is 99"}
}"#;

/// A machine without GPU and card, but with buses, and folders of modules and classes.
pub(crate) const NOTHING: &str = r#"
/proc/sys/kernel/osrelease = 6.8.0-45-generic\n
/proc/cmdline = quiet\n
/proc/self/limits = Max locked memory         8388608              8388608              bytes\n
/proc/self/status = CapEff: 0000000000000000\n
/sys/class/net/
/sys/module/ext4/
pci pci0000:00/0000:00:03.0 vendor=0x1af4 class=0x020000 numa=-1
"#;

/// The libraries' answers on a machine with nothing installed.
pub(crate) const NOTHING_LIBRARIES: &str = r#"{
  "cuda": {"absent": "there is no CUDA driver here (libcuda.so.1 cannot be loaded): install the NVIDIA driver"},
  "verbs": {"absent": "libibverbs.so.1 cannot be loaded (not found): install rdma-core"},
  "software": {"says": [{"device": "softhca0", "port": 1, "state": "ACTIVE", "link": "InfiniBand", "firmware": "0.1.0"}]}
}"#;
