//! Socket addresses, as programs give them to the connection manager.

use crate::uapi::ucm::Storage;
use softhca::fabric::is_own;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

/// Family of [`Address::Ib`] (`AF_IB` of Linux).
const AF_IB: u16 = 27;
/// The service IDs that contain a port number of an IP port space (`RDMA_IB_IP_PS_MASK`).
const IP_SPACE: u64 = 0xffff_ffff_ffff_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    V4(SocketAddrV4),
    V6(SocketAddrV6),
    Ib(IbAddress),
}

/// `struct sockaddr_ib`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IbAddress {
    pub(crate) pkey: u16,
    pub(crate) flow: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) service_id: u64,
    pub(crate) mask: u64,
    pub(crate) scope: u64,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

impl Address {
    /// Parses the address at the start of the bytes; `None` for another family, or for too few bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Address> {
        let port = || array(bytes, 2).map(u16::from_be_bytes);
        match i32::from(u16::from_ne_bytes(array(bytes, 0)?)) {
            libc::AF_INET => {
                array::<16>(bytes, 0)?;
                let ip: [u8; 4] = array(bytes, 4)?;
                Some(Address::V4(SocketAddrV4::new(ip.into(), port()?)))
            }
            libc::AF_INET6 => {
                let ip: [u8; 16] = array(bytes, 8)?;
                let flow = u32::from_be_bytes(array(bytes, 4)?);
                let scope = u32::from_ne_bytes(array(bytes, 24)?);
                Some(Address::V6(SocketAddrV6::new(ip.into(), port()?, flow, scope)))
            }
            family if family == i32::from(AF_IB) => Some(Address::Ib(IbAddress {
                pkey: port()?,
                flow: u32::from_be_bytes(array(bytes, 4)?),
                gid: array(bytes, 8)?,
                service_id: u64::from_be_bytes(array(bytes, 24)?),
                mask: u64::from_be_bytes(array(bytes, 32)?),
                scope: u64::from_ne_bytes(array(bytes, 40)?),
            })),
            _ => None,
        }
    }

    /// Returns the structure, and its length in bytes.
    pub(crate) fn store(&self) -> (Storage, usize) {
        let mut bytes = [0; size_of::<Storage>()];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        match self {
            Address::V4(address) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(2, &address.port().to_be_bytes());
                put(4, &address.ip().octets());
            }
            Address::V6(address) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(2, &address.port().to_be_bytes());
                put(4, &address.flowinfo().to_be_bytes());
                put(8, &address.ip().octets());
                put(24, &address.scope_id().to_ne_bytes());
            }
            Address::Ib(address) => {
                put(0, &AF_IB.to_ne_bytes());
                put(2, &address.pkey.to_be_bytes());
                put(4, &address.flow.to_be_bytes());
                put(8, &address.gid);
                put(24, &address.service_id.to_be_bytes());
                put(32, &address.mask.to_be_bytes());
                put(40, &address.scope.to_ne_bytes());
            }
        }
        (bytes, self.len())
    }

    /// Returns the length of its family's structure in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Address::V4(_) => 16,
            Address::V6(_) => 28,
            Address::Ib(_) => 48,
        }
    }

    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::V4(address) => Some((*address.ip()).into()),
            Address::V6(address) => Some((*address.ip()).into()),
            Address::Ib(_) => None,
        }
    }

    /// Returns the IP address that it is, or that its GID is.
    pub(crate) fn ip_or_gid(&self) -> IpAddr {
        match self {
            Address::Ib(address) => Ipv6Addr::from(address.gid).into(),
            Address::V4(address) => (*address.ip()).into(),
            Address::V6(address) => address.ip().to_canonical(),
        }
    }

    /// Returns whether it names no interface. Addresses of the loopback interface name none either (`cma_any_addr`), except
    /// those that cards have.
    pub(crate) fn is_any(&self) -> bool {
        let ip = self.ip_or_gid();
        ip.is_unspecified() || ip.is_loopback() && !matches!(ip, IpAddr::V4(ip) if is_own(ip))
    }

    pub(crate) fn is_same_interface(&self, other: &Address) -> bool {
        match (self, other) {
            (Address::Ib(one), Address::Ib(other)) => one.gid == other.gid,
            _ => self.ip().is_some() && self.ip() == other.ip(),
        }
    }

    pub(crate) fn is_same_family(&self, other: &Address) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns the port number; 0 if none is chosen.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Address::V4(address) => address.port(),
            Address::V6(address) => address.port(),
            Address::Ib(address) => address.service_id as u16,
        }
    }

    /// Returns the port space in the service ID of an InfiniBand address.
    pub(crate) fn ib_space(&self) -> Option<u64> {
        match self {
            Address::Ib(address) => Some(address.service_id & IP_SPACE),
            _ => None,
        }
    }

    pub(crate) fn with_port(self, port: u16) -> Address {
        match self {
            Address::V4(address) => Address::V4(SocketAddrV4::new(*address.ip(), port)),
            Address::V6(mut address) => {
                address.set_port(port);
                Address::V6(address)
            }
            Address::Ib(address) => Address::Ib(IbAddress {
                service_id: address.service_id & IP_SPACE | u64::from(port),
                mask: u64::MAX,
                ..address
            }),
        }
    }

    /// Returns the address of this family that names no interface and no port.
    pub(crate) fn any_like(&self) -> Address {
        match self {
            Address::V4(_) => Address::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
            Address::V6(_) => Address::V6(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 0, 0, 0)),
            Address::Ib(address) => Address::Ib(IbAddress {
                gid: [0; 16],
                service_id: address.service_id & IP_SPACE,
                mask: IP_SPACE,
                ..*address
            }),
        }
    }

    /// Returns the address of an interface, with a port.
    pub(crate) fn of(ip: IpAddr, port: u16) -> Address {
        match ip {
            IpAddr::V4(ip) => Address::V4(SocketAddrV4::new(ip, port)),
            IpAddr::V6(ip) => Address::V6(SocketAddrV6::new(ip, port, 0, 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> [Address; 3] {
        let ib = IbAddress {
            pkey: 0xffff,
            flow: 0x12345,
            gid: [7; 16],
            service_id: 0x0106_1f40,
            mask: IP_SPACE,
            scope: 3,
        };
        [
            Address::V4("192.0.2.1:8000".parse().unwrap()),
            Address::V6(SocketAddrV6::new("2001:db8::1".parse().unwrap(), 8000, 5, 6)),
            Address::Ib(ib),
        ]
    }

    #[test]
    fn addresses_come_back() {
        for address in samples() {
            let (bytes, len) = address.store();
            assert_eq!(Address::parse(&bytes), Some(address));
            assert_eq!(Address::parse(&bytes[..len]), Some(address));
            assert_eq!(Address::parse(&bytes[..len - 1]), None);
            assert_eq!((address.port(), address.is_any()), (8000, false));
            assert_eq!(address.with_port(9).port(), 9);
            let any = address.any_like();
            assert!(any.is_any() && any.port() == 0 && any.is_same_family(&address));
            assert!(!any.is_same_interface(&address) && address.is_same_interface(&address.with_port(1)));
        }
        assert_eq!(samples()[2].ib_space(), Some(0x0106_0000));
        // Octets as in the C structure: family, port, address.
        assert_eq!(samples()[0].store().0[..8], [2, 0, 0x1f, 0x40, 192, 0, 2, 1]);
        assert_eq!(Address::parse(&[1, 0, 0, 0]), None, "AF_UNIX");
        assert_eq!(Address::parse(&[2]), None);
    }

    #[test]
    fn addresses_of_the_loopback_interface_name_no_interface() {
        for ip in ["127.0.0.1", "127.0.0.5", "::1"] {
            let address = Address::of(ip.parse().unwrap(), 8000);
            assert!(address.is_any() && address != address.any_like(), "{ip}");
        }
        let Address::Ib(ib) = samples()[2] else { unreachable!() };
        assert!(Address::Ib(IbAddress { gid: Ipv6Addr::LOCALHOST.octets(), ..ib }).is_any());
    }
}
