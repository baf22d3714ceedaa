//! The attributes of a connection, and the plain data that its two sides exchange over a channel of the program.

use crate::memory::{OutOfBounds, resolve};
use crate::util::options::options;
use crate::verbs::{Error, Gid, GidKind, Mtu, OutOfRange, ParseError};
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::str::FromStr;

options! {
    /// Attributes of a connection. The defaults suit a switched fabric of one site.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ConnectOptions
    /// 268 ms and 7 retries (a silent peer fails after about 2 s), unlimited RNR retries at 0.64 ms, 16 reads (the
    /// limit of mlx5 cards); service level and traffic class 0, 64 hops.
    default {
        /// Local ACK timeout code: 4.096 µs * 2^timeout; 0 never times out.
        timeout: u8 = 16,
        /// Transport retries before an error, 0 to 7.
        retry_count: u8 = 7,
        /// Receiver-not-ready retries before an error, 0 to 6; 7 sets no limit.
        rnr_retry: u8 = 7,
        /// Pause that this side asks for when it has no receive posted: a code of the IB specification's RNR table.
        min_rnr_timer: u8 = 12,
        /// RDMA reads in flight, in each direction.
        max_reads: u8 = 16,
        /// Service level: the virtual lane on InfiniBand, the VLAN priority on Ethernet.
        service_level: u8 = 0,
        /// Path MTU, by default and at most the smaller active MTU of the two ports. Both sides must use the same.
        mtu: Option<Mtu> = None,
        /// On InfiniBand, also address the remote port by its GID, as a router between subnets needs it. Implied if
        /// the subnet prefixes of the two ports differ. On Ethernet, GIDs are the only addresses.
        global: bool = false,
        /// Traffic class of the global route. On RoCE v2, switches classify by its upper 6 bits (DSCP) in the IP
        /// header.
        traffic_class: u8 = 0,
        /// Flow label of the global route, 20 bits.
        flow_label: u32 = 0,
        /// Hop limit of the global route: the number of routers that a packet may pass.
        hop_limit: u8 = 64,
    }
}

impl ConnectOptions {
    pub(crate) fn check(&self, max_reads: u32) -> Result<(), Error> {
        let remedy = "choose a smaller value";
        for (what, value, limit) in [
            ("timeout", self.timeout.into(), 31),
            ("retry_count", self.retry_count.into(), 7),
            ("rnr_retry", self.rnr_retry.into(), 7),
            ("min_rnr_timer", self.min_rnr_timer.into(), 31),
            ("service_level", self.service_level.into(), 15),
            ("flow_label", self.flow_label, (1 << 20) - 1),
            ("max_reads", self.max_reads.into(), max_reads),
        ] {
            if value > limit {
                let limit = format!("at most {limit} is possible");
                return Err(Error::OutOfRange(OutOfRange { what, value: value.into(), limit, remedy }));
            }
        }
        Ok(())
    }
}

/// Address of a queue pair, for the remote side's [`crate::QueuePair::connect`].
///
/// Its text form is `kind:lid:qpn:psn:mtu:gid`: the kind is `ib`, `roce1` or `roce2`, the numbers
/// are hexadecimal, with 32 digits for the GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// Sequence number of the first packet that it will send, 24 bits.
    pub psn: u32,
    /// Packet format on the wire; both sides must use the same.
    pub kind: GidKind,
    /// Local identifier of its port; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier of its port.
    pub gid: Gid,
    /// Largest path MTU of its port.
    pub mtu: Mtu,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{:x}:{:x}:{:x}:{:x}:",
            self.kind.short(),
            self.lid,
            self.qpn,
            self.psn,
            self.mtu as i32
        )?;
        self.gid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::Parse(ParseError { what: "endpoint", reason });
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [kind, lid, qpn, psn, mtu, gid] = parts[..] else {
            return Err(bad(format!(
                "{text:?} has {} fields, not the 6 of kind:lid:qpn:psn:mtu:gid",
                parts.len()
            )));
        };
        let number = |name: &str, field: &str, max: u32| match u32::from_str_radix(field, 16) {
            Ok(value) if value <= max => Ok(value),
            Ok(value) => Err(bad(format!("{name} {value:#x} is over {max:#x}"))),
            Err(error) => Err(bad(format!("{name} {field:?}: {error}"))),
        };
        let mtu = number("mtu", mtu, 0xff)?;
        let gid =
            (gid.len() == 32 && !gid.starts_with('+')).then(|| u128::from_str_radix(gid, 16).ok()).flatten();
        let known = GidKind::ALL.into_iter().find(|known| known.short() == kind);
        Ok(Endpoint {
            kind: known.ok_or_else(|| bad(format!("kind {kind:?} is none of ib, roce1, roce2")))?,
            lid: number("lid", lid, 0xffff)? as u16,
            qpn: number("qpn", qpn, 0xff_ffff)?,
            psn: number("psn", psn, 0xff_ffff)?,
            mtu: Mtu::from_raw(mtu as i32).ok_or_else(|| bad(format!("mtu code {mtu}")))?,
            gid: Gid(gid
                .ok_or_else(|| bad(format!("the gid is not 32 hexadecimal digits in {text:?}")))?
                .to_be_bytes()),
        })
    }
}

/// Memory of the remote side: an address there, a length, and its remote key.
///
/// Plain data, to be sent over a channel of the program's choice; its text form is `addr:len:rkey` in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    /// First address, in the remote side's address space.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

impl RemoteMemory {
    /// A part of it.
    ///
    /// # Errors
    /// [`OutOfBounds`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<RemoteMemory, OutOfBounds> {
        let Range { start, end } = resolve(range, self.len)?;
        Ok(RemoteMemory { addr: self.addr.wrapping_add(start), len: end - start, rkey: self.rkey })
    }
}

impl fmt::Display for RemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:{:x}", self.addr, self.len, self.rkey)
    }
}

impl FromStr for RemoteMemory {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::Parse(ParseError { what: "remote memory", reason });
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [addr, len, rkey] = parts[..] else {
            return Err(bad(format!("{text:?} has {} fields, not the 3 of addr:len:rkey", parts.len())));
        };
        let number = |field: &str| u64::from_str_radix(field, 16).map_err(|e| bad(format!("{field:?}: {e}")));
        let rkey = u32::try_from(number(rkey)?).map_err(|e| bad(format!("rkey {rkey:?}: {e}")))?;
        Ok(RemoteMemory { addr: number(addr)?, len: number(len)?, rkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_form_round_trips(qpn in 0u32..1 << 24, psn in 0u32..1 << 24, lid: u16, gid: [u8; 16], mtu in 1i32..6, kind in 0usize..3) {
            let (kind, mtu) = (GidKind::ALL[kind], Mtu::from_raw(mtu).unwrap());
            let endpoint = Endpoint { qpn, psn, kind, lid, gid: Gid(gid), mtu };
            prop_assert_eq!(endpoint.to_string().parse::<Endpoint>().unwrap(), endpoint);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,80}") {
            let _ = text.parse::<Endpoint>();
        }
    }

    #[test]
    fn each_bad_field_is_named() {
        let gid = "00112233445566778899aabbccddeeff";
        for (text, word) in [
            ("ib:1:2:3".to_owned(), "4 fields"),
            (format!("roce2:10000:2:3:4:{gid}"), "lid"),
            (format!("roce2:1:1000000:3:4:{gid}"), "qpn"),
            (format!("roce2:1:2:x:4:{gid}"), "psn"),
            (format!("roce2:1:2:3:9:{gid}"), "mtu code 9"),
            (format!("roce2:1:2:3:4:+{}", &gid[1..]), "gid"),
            (format!("roce3:1:2:3:4:{gid}"), "kind"),
            ("roce2:1:2:3:4:ff".to_owned(), "gid"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn remote_memory_is_cut_within_bounds() {
        let whole = RemoteMemory { addr: 0x1000, len: 16, rkey: 7 };
        assert_eq!(whole.slice(4..).unwrap(), RemoteMemory { addr: 0x1004, len: 12, rkey: 7 });
        assert_eq!(whole.slice(..=15).unwrap(), whole);
        assert_eq!(whole.slice(16..).unwrap().len, 0);
        assert!(matches!(whole.slice(8..17), Err(OutOfBounds { start: 8, end: 17, len: 16 })));
        #[expect(clippy::reversed_empty_ranges, reason = "this is the mistake under test")]
        let reversed = whole.slice(9..8);
        assert!(reversed.is_err());
    }

    #[test]
    fn malformed_text_is_refused_with_the_field() {
        for text in ["", "1:2", "1:2:3:4", "x:2:3", "1:2:100000000", "-1:2:3"] {
            assert!(text.parse::<RemoteMemory>().is_err(), "{text}");
        }
        let error = "1:zz:3".parse::<RemoteMemory>().unwrap_err().to_string();
        assert!(error.contains("\"zz\""), "{error}");
    }

    proptest! {
        #[test]
        fn remote_memory_round_trips(addr: u64, len: u64, rkey: u32) {
            let memory = RemoteMemory { addr, len, rkey };
            prop_assert_eq!(memory.to_string().parse::<RemoteMemory>().unwrap(), memory);
        }
    }
}
