//! A port's files, and the network interface that an Ethernet port names.

use super::file;
use super::live::LiveFile;
use crate::card::{LinkLayer, PkeyTable};
use std::ffi::CString;
use std::path::Path;
use std::{fs, io};

/// Counters of events that never happen on the software fabric, which has no symbols, buffers or lanes that
/// could fail, and no multicast.
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

/// Writes the folder of a port. Values that the running card answers are 0 in it.
pub(super) fn write(port: &Path, link_layer: LinkLayer, pkeys: &PkeyTable) -> io::Result<()> {
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
    // Milliseconds for which a driver may cache the counters: none.
    file(&port.join("hw_counters/lifespan"), "0")?;
    for live in LiveFile::all(types.len(), pkeys.keys().len()) {
        file(&port.join(live.name()), &live.unknown())?;
    }
    Ok(())
}

/// The loopback interface. It has the same index in every network namespace.
const LOOPBACK: (&str, u32) = ("lo", 1);

/// Returns the network interface of Ethernet ports and its index: the one of the default route, or the
/// loopback interface without one. UCX compares it with the routes to a peer's address.
pub fn interface() -> (String, u32) {
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    let found = default_route(&routes).and_then(|name| {
        let name_and_zero = CString::new(name).ok()?;
        // SAFETY: a C string.
        let index = unsafe { libc::if_nametoindex(name_and_zero.as_ptr()) };
        (index != 0).then(|| (name.to_owned(), index))
    });
    found.unwrap_or((LOOPBACK.0.to_owned(), LOOPBACK.1))
}

/// Returns the interface of the first default route in a table of `/proc/net/route`: interface, destination,
/// gateway, flags, two counts, metric, mask.
fn default_route(routes: &str) -> Option<&str> {
    let fields = routes.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut defaults = fields.filter(|fields| {
        let field = |index: usize| fields.get(index).copied();
        (field(1), field(7)) == (Some("00000000"), Some("00000000"))
    });
    defaults.next()?.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_the_default_route_is_found() {
        let header = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let near = "eth1\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let far = "eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        assert_eq!(default_route(&format!("{header}{near}{far}")), Some("eth0"));
        assert_eq!(default_route(&format!("{header}{near}")), None);
        assert_eq!((default_route(""), default_route("Iface\nshort\n")), (None, None));
        let (name, index) = interface();
        assert!(!name.is_empty() && index > 0);
    }
}
