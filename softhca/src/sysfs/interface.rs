//! The network interface that an Ethernet port names.

use std::ffi::CString;
use std::fs;

/// The loopback interface. It has the same index in every network namespace.
const LOOPBACK: (&str, u32) = ("lo", 1);

/// The network interface of Ethernet ports, and its index: the one by which this machine reaches others,
/// or the loopback interface of a machine that reaches none. UCX compares it with the routes to a peer's
/// address.
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

/// The interface of the first route of all addresses, in a table of `/proc/net/route`: interface,
/// destination, gateway, flags, two counts, metric, mask.
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
