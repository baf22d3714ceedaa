//! The devices on a PCI bus: a bridge for each, and the device below it.

use super::{PART, VENDOR, file, link};
use crate::card::LinkLayer;
use std::fs;
use std::io;
use std::path::Path;

/// PCI domain of all software devices, which no machine is known to use.
const DOMAIN: &str = "50f7";
/// PCI device ID of the bridges: a ConnectX's own switch.
const BRIDGE: u32 = 0x197b;

/// The nearest processors: those of NUMA node 0, or all.
struct NearestProcessors {
    node: &'static str,
    cpus: String,
}

impl NearestProcessors {
    fn of_this_machine() -> Self {
        let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
        match read("/sys/devices/system/node/node0/cpulist") {
            Ok(cpus) => NearestProcessors { node: "0", cpus },
            Err(_) => NearestProcessors {
                node: "-1",
                cpus: read("/sys/devices/system/cpu/online").unwrap_or_default(),
            },
        }
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        file(&folder.join("numa_node"), self.node)?;
        file(&folder.join("local_cpulist"), &self.cpus)?;
        file(&folder.join("local_cpus"), &mask_of(&self.cpus))
    }
}

/// Converts a list of processors, such as `0-3,8`, to a mask of 32-bit words, the highest first.
fn mask_of(list: &str) -> String {
    let mut words = vec![0u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        if words.len() <= last / 32 {
            words.resize(last / 32 + 1, 0);
        }
        (first..=last).for_each(|cpu| words[cpu / 32] |= 1 << (cpu % 32));
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// Writes the files that bridges and devices share.
fn write_common(folder: &Path, device: u32, class: u32) -> io::Result<()> {
    NearestProcessors::of_this_machine().write(folder)?;
    let texts = [
        ("vendor", format!("{VENDOR:#06x}")),
        ("device", format!("{device:#06x}")),
        ("subsystem_vendor", format!("{VENDOR:#06x}")),
        ("subsystem_device", "0x0000".to_owned()),
        ("class", format!("{class:#08x}")),
        ("revision", "0x00".to_owned()),
        ("irq", "0".to_owned()),
        ("enable", "1".to_owned()),
        ("current_link_speed", "16.0 GT/s PCIe".to_owned()),
        ("max_link_speed", "32.0 GT/s PCIe".to_owned()),
        ("current_link_width", "16".to_owned()),
        ("max_link_width", "16".to_owned()),
    ];
    for (name, text) in texts {
        file(&folder.join(name), &text)?;
    }
    let (base, sub, interface) = (class >> 16, class >> 8 & 0xff, class & 0xff);
    let alias = format!(
        "pci:v{VENDOR:08X}d{device:08X}sv{VENDOR:08X}sd00000000bc{base:02X}sc{sub:02X}i{interface:02X}"
    );
    file(&folder.join("modalias"), &alias)?;
    let slot = folder.file_name().unwrap_or_default().to_string_lossy();
    let event = format!(
        "PCI_CLASS={class:X}\nPCI_ID={VENDOR:04X}:{device:04X}\nPCI_SUBSYS_ID={VENDOR:04X}:0000\nPCI_SLOT_NAME={slot}\nMODALIAS={alias}"
    );
    file(&folder.join("uevent"), &event)
}

/// Writes a bus in `/sys/class/pci_bus`; `folder`, relative to `sys`, is its bridge.
fn write_bus(sys: &Path, folder: &str, bus: &str) -> io::Result<()> {
    fs::create_dir_all(sys.join(folder).join("pci_bus").join(bus))?;
    let target = Path::new("../..").join(folder).join("pci_bus").join(bus);
    link(&target, &sys.join("class/pci_bus").join(bus))
}

/// Writes the host bridge of all devices.
pub(super) fn write_root(sys: &Path) -> io::Result<()> {
    fs::create_dir_all(sys.join("bus/pci/drivers/mlx5_core"))?;
    write_bus(sys, &format!("devices/pci{DOMAIN}:00"), &format!("{DOMAIN}:00"))
}

/// Writes the device with an index and its bridge. Returns the device's folder, relative to `sys`.
pub(super) fn write_function(sys: &Path, index: usize, link_layer: LinkLayer) -> io::Result<String> {
    let bus = index + 1;
    let bridge_name = format!("{DOMAIN}:00:{bus:02x}.0");
    let bridge = format!("devices/pci{DOMAIN}:00/{bridge_name}");
    let name = format!("{DOMAIN}:{bus:02x}:00.0");
    let function = format!("{bridge}/{name}");
    // Bridge to another PCI bus; InfiniBand and Ethernet controller.
    let class = match link_layer {
        LinkLayer::InfiniBand => 0x02_0700,
        LinkLayer::Ethernet => 0x02_0000,
    };
    write_common(&sys.join(&bridge), BRIDGE, 0x06_0400)?;
    write_common(&sys.join(&function), PART, class)?;
    write_bus(sys, &bridge, &format!("{DOMAIN}:{bus:02x}"))?;
    link(Path::new("../../../../bus/pci"), &sys.join(&bridge).join("subsystem"))?;
    link(Path::new("../../../../../bus/pci"), &sys.join(&function).join("subsystem"))?;
    link(Path::new("../../../../../bus/pci/drivers/mlx5_core"), &sys.join(&function).join("driver"))?;
    for (folder, name) in [(&bridge, &bridge_name), (&function, &name)] {
        link(&Path::new("../../..").join(folder), &sys.join("bus/pci/devices").join(name))?;
    }
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_become_masks() {
        for (list, mask) in [
            ("0", "00000001"),
            ("0-3,8", "0000010f"),
            ("0-31", "ffffffff"),
            ("31-32", "00000001,80000000"),
            ("", "00000000"),
        ] {
            assert_eq!(mask_of(list), mask, "{list}");
        }
    }
}
