//! A port's files.

use super::live::LiveFile;
use super::{file, interface};
use crate::card::LinkLayer;
use std::io;
use std::path::Path;

/// Counters of what never happens on the software fabric: it has no symbols, buffers or lanes that could
/// fail, and no multicast.
const NEVER: [&str; 15] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_xmit_wait",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
];

/// Writes the folder of a port. What the running card answers is 0 in it.
pub(super) fn write(port: &Path, link_layer: LinkLayer) -> io::Result<()> {
    let is_ethernet = link_layer == LinkLayer::Ethernet;
    for (name, text) in [
        ("state", "4: ACTIVE"),
        ("phys_state", "5: LinkUp"),
        ("rate", "200 Gb/sec (4X HDR)"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("cap_mask", &format!("{:#010x}", link_layer.capability_flags())),
        ("link_layer", if is_ethernet { "Ethernet" } else { "InfiniBand" }),
        ("pkeys/0", "0xffff"),
    ] {
        file(&port.join(name), text)?;
    }
    // The table of `Card::gids`.
    let types: &[&str] = match link_layer {
        LinkLayer::InfiniBand => &["IB/RoCE v1"],
        LinkLayer::Ethernet => &["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"],
    };
    for (index, kind) in types.iter().enumerate() {
        file(&port.join(format!("gid_attrs/types/{index}")), kind)?;
        if is_ethernet {
            file(&port.join(format!("gid_attrs/ndevs/{index}")), &interface().0)?;
        }
    }
    for name in NEVER {
        file(&port.join("counters").join(name), "0")?;
    }
    // Milliseconds for which a driver may repeat what it has read: none.
    file(&port.join("hw_counters/lifespan"), "0")?;
    for live in LiveFile::all(types.len()) {
        file(&port.join(live.name()), &live.unknown())?;
    }
    Ok(())
}
