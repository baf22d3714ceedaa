//! Stand-ins for the files in which Linux describes RDMA devices: `/sys` and `/dev/infiniband`.
//!
//! [`write`](fn@write) creates them in a private folder, at the paths of a machine with cards; the preload
//! library redirects the [`OWNED`] paths there. A [`LiveFile`] differs between processes, as each has its own
//! cards: it is empty here, and the preload library answers it from the running card.
//!
//! Source: `Documentation/ABI/stable/sysfs-class-infiniband` and `testing/sysfs-bus-pci` of Linux, and the
//! files that rdma-core 44 to 56, UCX 1.13 and NCCL 2.28 open.

mod live;
mod pci;
mod port;

pub use live::LiveFile;
pub use port::interface;

use crate::card::{Counters, LinkLayer, PkeyTable};
use gdsync_sys::file_limit::within_file_limit;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Firmware version of software devices: major, minor, subminor.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// PCI vendor of the cards with this interface: Mellanox.
const VENDOR: u32 = 0x15b3;
/// PCI device: ConnectX-7.
pub const PART: u32 = 0x1021;
/// The device file of a device, and its number, major and minor: stat(2) and access(2) find this one, open(2)
/// of a device returns another file.
const STAND_IN: &str = "/dev/null";
const DEVICE: (u32, u32) = (1, 3);
/// The number of a device's file, as makedev(3) composes it.
pub const DEVICE_NUMBER: u64 = (DEVICE.0 as u64) << 8 | DEVICE.1 as u64;
/// The prefix of an InfiniBand port's GIDs.
pub const SUBNET_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// Name of the connection manager's device.
pub const MANAGER: &str = "rdma_cm";
/// Version of the connection manager's interface (`RDMA_USER_CM_ABI_VERSION`).
pub const MANAGER_ABI: u32 = 4;

/// The folder with the ports' counter files, one for each device.
const COUNTERS: &str = "counters";

/// Returns the file with the counters of a device's port, for all processes.
pub fn counters(root: &Path, index: usize) -> PathBuf {
    root.join(COUNTERS).join(format!("mlx5_{index}"))
}

/// Prefixes of the paths that the private folder replaces: the system's own files below them are hidden.
pub const OWNED: [&str; 6] = [
    "/dev/infiniband",
    "/sys/class/infiniband",
    "/sys/class/misc/rdma_cm",
    "/sys/bus/pci/devices/50f7:",
    "/sys/class/pci_bus/50f7:",
    "/sys/devices/pci50f7:",
];

/// Returns the node GUID of a device, in host byte order. It depends on the index alone: all processes share
/// one sysfs, and each has its own cards.
pub fn node_guid(index: usize) -> u64 {
    0x0200_00ff_fe80_0000 | index as u64
}

/// Formats a GUID as sysfs does.
fn guid_text(guid: u64) -> String {
    [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff)).join(":")
}

/// Writes the files for a list of devices into `root`, and leaves other files there. InfiniBand ports have as many files
/// of partition keys as `pkeys`.
///
/// # Errors
/// The operating system's, if a folder, file or link cannot be created.
pub fn write(root: &Path, devices: &[LinkLayer], pkeys: &PkeyTable) -> io::Result<()> {
    let sys = root.join("sys");
    fs::create_dir_all(sys.join("class/infiniband"))?;
    fs::create_dir_all(root.join(COUNTERS))?;
    file(&sys.join("class/infiniband_verbs/abi_version"), "6")?;
    pci::write_root(&sys)?;
    let manager = sys.join("class/misc").join(MANAGER);
    file(&manager.join("abi_version"), &MANAGER_ABI.to_string())?;
    file(&manager.join("dev"), &format!("{}:{}", DEVICE.0, DEVICE.1))?;
    link(Path::new(STAND_IN), &root.join("dev/infiniband").join(MANAGER))?;
    for (index, link_layer) in devices.iter().enumerate() {
        let (name, verbs) = (format!("mlx5_{index}"), format!("uverbs{index}"));
        let function = pci::write_function(&sys, index, *link_layer)?;
        let of_function = |class: &str, name: &str| -> io::Result<_> {
            let place = sys.join(&function).join(class).join(name);
            fs::create_dir_all(&place)?;
            let own = Path::new(&function).file_name().unwrap_or_default();
            link(&Path::new("../../..").join(own), &place.join("device"))?;
            link(&Path::new("../../../../../..").join("class").join(class), &place.join("subsystem"))?;
            let target = Path::new("../..").join(&function).join(class).join(name);
            link(&target, &sys.join("class").join(class).join(name))?;
            Ok(place)
        };
        let device = of_function("infiniband_verbs", &verbs)?;
        file(&device.join("ibdev"), &name)?;
        file(&device.join("dev"), &format!("{}:{}", DEVICE.0, DEVICE.1))?;
        file(&device.join("abi_version"), "1")?;
        let device = of_function("infiniband", &name)?;
        let guid = guid_text(node_guid(index));
        file(&device.join("node_type"), "1: CA")?;
        file(&device.join("node_desc"), &format!("software card {index}"))?;
        file(&device.join("node_guid"), &guid)?;
        file(&device.join("sys_image_guid"), &guid)?;
        file(&device.join("fw_ver"), FIRMWARE)?;
        file(&device.join("hca_type"), &format!("MT{PART}"))?;
        file(&device.join("hw_rev"), "0")?;
        file(&device.join("board_id"), "SOFTHCA")?;
        let pkeys = pkeys.clone().of_port(*link_layer);
        port::write(&device.join("ports/1"), *link_layer, &pkeys)?;
        // In full length: a process with a limit on the size of files counts, too.
        Counters::in_file(&counters(root, index))?;
        let devices = root.join("dev/infiniband");
        fs::create_dir_all(&devices)?;
        link(Path::new(STAND_IN), &devices.join(verbs))?;
    }
    Ok(())
}

/// Writes a file, with a newline at its end as in sysfs.
fn file(path: &Path, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    within_file_limit(|| fs::write(path, format!("{content}\n")))
}

/// Creates a link at `place`, and its folder if it is missing.
fn link(target: &Path, place: &Path) -> io::Result<()> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    symlink(target, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_described() {
        let root = std::env::temp_dir().join(format!("softhca-sysfs-{}", std::process::id()));
        let three = "0xffff,0x8001,0x0002".parse().unwrap();
        write(&root, &[LinkLayer::InfiniBand, LinkLayer::Ethernet], &three).unwrap();
        let sys = root.join("sys");
        let read = |path: &str| fs::read_to_string(sys.join("class").join(path)).unwrap();
        assert_eq!(read("infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("infiniband/mlx5_1/node_guid"), "0200:00ff:fe80:0001\n");
        assert_eq!(read("infiniband/mlx5_1/ports/1/link_layer"), "Ethernet\n");
        assert_eq!(read("infiniband/mlx5_1/ports/1/gid_attrs/types/3"), "RoCE v2\n");
        let pkeys = |index| {
            fs::read_dir(sys.join(format!("class/infiniband/mlx5_{index}/ports/1/pkeys"))).unwrap().count()
        };
        assert_eq!((pkeys(0), pkeys(1)), (3, 1));
        assert!(read("infiniband/mlx5_0/device/modalias").starts_with("pci:v000015B3d00001021sv"));
        // Paths by which programs go from a device to its place on the bus, and back.
        let place = sys.join("devices/pci50f7:00/50f7:00:02.0/50f7:02:00.0");
        for way in [
            "class/infiniband/mlx5_1/device",
            "class/infiniband_verbs/uverbs1/device",
            "bus/pci/devices/50f7:02:00.0",
            "class/pci_bus/50f7:02/../../50f7:02:00.0",
            "class/infiniband/mlx5_1/subsystem/mlx5_1/device",
        ] {
            let found = sys.join(way).canonicalize().unwrap();
            assert_eq!(found, place.canonicalize().unwrap(), "{way}");
        }
        assert_eq!(read("infiniband/mlx5_1/device/class"), "0x020000\n");
        assert_eq!(read("infiniband/mlx5_0/device/../class"), "0x060400\n", "the bridge");
        assert!(root.join("dev/infiniband/uverbs1").exists() && root.join("dev/infiniband/rdma_cm").exists());
        for prefix in OWNED {
            let parent = root.join(&prefix[1..]);
            let name = parent.file_name().unwrap().to_string_lossy().into_owned();
            let mut siblings = fs::read_dir(parent.parent().unwrap()).unwrap();
            let begins = |entry: io::Result<fs::DirEntry>| {
                entry.unwrap().file_name().to_string_lossy().starts_with(&name)
            };
            assert!(siblings.any(begins), "{prefix} names nothing");
        }
        fs::remove_dir_all(&root).unwrap();
        let file = root.with_extension("file");
        fs::write(&file, "").unwrap();
        assert!(write(&file, &[LinkLayer::InfiniBand], &three).is_err(), "a file is no folder");
        fs::remove_file(&file).unwrap();
    }
}
