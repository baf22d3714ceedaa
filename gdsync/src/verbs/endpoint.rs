//! What one side of a connection sends to the other. The program chooses the channel.

use crate::verbs::{Error, Gid, GidKind, Mtu, ParseError};
use std::fmt;
use std::str::FromStr;

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
    /// What its packets look like on the wire; the remote side's have to look the same.
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
}
