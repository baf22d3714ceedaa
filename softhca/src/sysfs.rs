//! A substitute for sysfs: the files that libibverbs reads to find its devices.
//!
//! Source: `Documentation/ABI/stable/sysfs-class-infiniband` of Linux, and the files that rdma-core
//! 44 and 56 open.

use crate::card::LinkLayer;
use std::fs;
use std::io;
use std::path::Path;

/// Firmware version of software devices: major, minor, subminor.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// PCI vendor of the cards with this interface: Mellanox.
pub const VENDOR: u32 = 0x15b3;
/// PCI device: ConnectX-7.
pub const PART: u32 = 0x1021;
/// The device number of the file that substitutes devices: /dev/null.
const DEVICE_NUMBER: &str = "1:3";

/// Node GUID of a device, in host byte order. It depends on the index alone: all processes share
/// one sysfs, and each has its own cards.
pub fn node_guid(index: usize) -> u64 {
    0x0200_00ff_fe80_0000 | index as u64
}

/// Writes the files for a list of devices into `root`, which then is a value for `SYSFS_PATH`.
/// Other files stay.
///
/// # Errors
/// The operating system's, if a folder or file cannot be created.
pub fn write(root: &Path, devices: &[LinkLayer]) -> io::Result<()> {
    let verbs = root.join("class/infiniband_verbs");
    file(&verbs.join("abi_version"), "6")?;
    for (index, link) in devices.iter().enumerate() {
        let name = format!("mlx5_{index}");
        let device = verbs.join(format!("uverbs{index}"));
        file(&device.join("ibdev"), &name)?;
        file(&device.join("dev"), DEVICE_NUMBER)?;
        file(&device.join("abi_version"), "1")?;
        let device = root.join("class/infiniband").join(&name);
        let guid = node_guid(index);
        let guid = [48, 32, 16, 0].map(|shift| format!("{:04x}", guid >> shift & 0xffff)).join(":");
        file(&device.join("node_type"), "1: CA")?;
        file(&device.join("node_desc"), &format!("software card {index}"))?;
        file(&device.join("node_guid"), &guid)?;
        file(&device.join("sys_image_guid"), &guid)?;
        file(&device.join("fw_ver"), FIRMWARE)?;
        file(&device.join("hca_type"), &format!("MT{PART}"))?;
        file(&device.join("hw_rev"), "0")?;
        file(&device.join("board_id"), "SOFTHCA")?;
        let alias = format!("pci:v{VENDOR:08X}d{PART:08X}sv{VENDOR:08X}sd00000000bc02sc07i00");
        file(&device.join("device/modalias"), &alias)?;
        file(&device.join("device/vendor"), &format!("{VENDOR:#06x}"))?;
        file(&device.join("device/device"), &format!("{PART:#06x}"))?;
        let port = device.join("ports/1");
        let link = match link {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        };
        file(&port.join("link_layer"), link)?;
        file(&port.join("pkeys/0"), "0xffff")?;
    }
    Ok(())
}

/// Files of sysfs end with a newline.
fn file(path: &Path, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, format!("{content}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_described() {
        let root = std::env::temp_dir().join(format!("softhca-sysfs-{}", std::process::id()));
        write(&root, &[LinkLayer::InfiniBand, LinkLayer::Ethernet]).unwrap();
        let read = |path: &str| fs::read_to_string(root.join("class").join(path)).unwrap();
        assert_eq!(read("infiniband_verbs/uverbs1/ibdev"), "mlx5_1\n");
        assert_eq!(read("infiniband/mlx5_1/node_guid"), "0200:00ff:fe80:0001\n");
        assert_eq!(read("infiniband/mlx5_1/ports/1/link_layer"), "Ethernet\n");
        assert!(read("infiniband/mlx5_0/device/modalias").starts_with("pci:v000015B3d00001021sv"));
        fs::remove_dir_all(&root).unwrap();
        let file = root.with_extension("file");
        fs::write(&file, "").unwrap();
        assert!(write(&file, &[LinkLayer::InfiniBand]).is_err(), "a file is no folder");
        fs::remove_file(&file).unwrap();
    }
}
