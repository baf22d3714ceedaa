//! Attributes of a port: its state, MTU, link layer and global identifiers.

use gdsync_sys::verbs;
use std::fmt;

/// The default port. Ports are counted from 1.
pub const DEFAULT_PORT: u8 = 1;

/// State and address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttributes {
    /// Its number, from 1.
    pub port: u8,
    /// Logical state.
    pub state: PortState,
    /// Its link layer.
    pub link: LinkLayer,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Active path MTU, if its code is known.
    pub mtu: Option<Mtu>,
    /// Longest message in bytes.
    pub max_message: u32,
}

/// Logical state of a port (`enum ibv_port_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortState {
    /// No link.
    Down,
    /// Link, not configured.
    Init,
    /// Configured, not in use.
    Armed,
    /// In use.
    Active,
    /// Another code.
    Other(i32),
}

impl PortState {
    pub(super) fn from_raw(raw: i32) -> Self {
        match raw {
            verbs::IBV_PORT_DOWN => PortState::Down,
            verbs::IBV_PORT_INIT => PortState::Init,
            verbs::IBV_PORT_ARMED => PortState::Armed,
            verbs::IBV_PORT_ACTIVE => PortState::Active,
            other => PortState::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Down => f.pad("DOWN"),
            PortState::Init => f.pad("INIT"),
            PortState::Armed => f.pad("ARMED"),
            PortState::Active => f.pad("ACTIVE"),
            PortState::Other(code) => f.pad(&format!("state {code}")),
        }
    }
}

/// A path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names say it: bytes")]
pub enum Mtu {
    Bytes256 = verbs::IBV_MTU_256,
    Bytes512 = verbs::IBV_MTU_512,
    Bytes1024 = verbs::IBV_MTU_1024,
    Bytes2048 = verbs::IBV_MTU_2048,
    Bytes4096 = verbs::IBV_MTU_4096,
}

impl Mtu {
    /// In bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// The MTU of that number of bytes, if any.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    const ALL: [Mtu; 5] = [Mtu::Bytes256, Mtu::Bytes512, Mtu::Bytes1024, Mtu::Bytes2048, Mtu::Bytes4096];

    pub(crate) fn from_raw(raw: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| *mtu as i32 == raw)
    }
}

/// A global identifier, displayed as an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&std::net::Ipv6Addr::from(self.0).to_string())
    }
}

impl Gid {
    /// The first half, which identifies the subnet.
    pub(crate) fn subnet_prefix(self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }
}

/// The packet format of a GID (`enum ibv_gid_type`). Both sides must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames with their own type, which routers do not forward.
    RoceV1,
    /// RoCE version 2: UDP.
    RoceV2,
}

impl GidKind {
    pub(crate) const ALL: [GidKind; 3] = [GidKind::InfiniBand, GidKind::RoceV1, GidKind::RoceV2];

    pub(super) fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            verbs::IBV_GID_TYPE_IB => Some(GidKind::InfiniBand),
            verbs::IBV_GID_TYPE_ROCE_V1 => Some(GidKind::RoceV1),
            verbs::IBV_GID_TYPE_ROCE_V2 => Some(GidKind::RoceV2),
            _ => None,
        }
    }

    /// Parses the kernel's name in sysfs (`drivers/infiniband/core/cache.c`, `ib_cache_gid_type_str`): RoCE version 1
    /// shares its name with InfiniBand.
    pub(super) fn from_sysfs(text: &str, link: LinkLayer) -> Option<Self> {
        match (text.trim(), link) {
            ("IB/RoCE v1", LinkLayer::InfiniBand) => Some(GidKind::InfiniBand),
            ("IB/RoCE v1", LinkLayer::Ethernet) => Some(GidKind::RoceV1),
            ("RoCE v2", _) => Some(GidKind::RoceV2),
            _ => None,
        }
    }

    /// The link layer of such packets.
    pub fn link(self) -> LinkLayer {
        match self {
            GidKind::InfiniBand => LinkLayer::InfiniBand,
            GidKind::RoceV1 | GidKind::RoceV2 => LinkLayer::Ethernet,
        }
    }

    /// Its name in an endpoint's text form.
    pub(crate) fn short(self) -> &'static str {
        match self {
            GidKind::InfiniBand => "ib",
            GidKind::RoceV1 => "roce1",
            GidKind::RoceV2 => "roce2",
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        })
    }
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: a subnet manager assigns local identifiers (LIDs), which address ports.
    InfiniBand,
    /// Ethernet (RoCE): GIDs address ports.
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GidEntry {
    /// Its index in the table, for [`crate::QueuePairConfig::gid_index`].
    pub index: u32,
    /// The identifier.
    pub gid: Gid,
    /// Its packet format.
    pub kind: GidKind,
}
