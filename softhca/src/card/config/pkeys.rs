//! Partition keys (P_Keys): the table of a port, and the rule by which packets pass.

use crate::card::port::LinkLayer;
use crate::packet::DEFAULT_PKEY;
use crate::setting::{self, SettingError};
use std::str::FromStr;
use std::sync::Arc;

/// Environment variable with the [`PkeyTable`] of the InfiniBand ports of this process: 1 to 128 keys separated by `,`,
/// such as `0xffff,0x8001,0x0002`. Unset, it has the default key alone. Ethernet ports always have the default key
/// alone, as on real cards; the variable is refused if no device of the process has an InfiniBand port.
pub const PKEYS_VARIABLE: &str = "SOFTHCA_PKEYS";

/// The bit of a full member. The others name the partition.
pub const FULL_MEMBER: u16 = 0x8000;
/// Maximum number of keys: as on ConnectX cards.
const MOST: usize = 128;

/// Returns whether a packet with one key is accepted where the other one is (IB specification, 10.9.3): the partition is
/// the same, and one of the two is a full member of it.
#[inline]
pub(crate) fn are_partners(one: u16, other: u16) -> bool {
    (one ^ other) & !FULL_MEMBER == 0 && (one | other) & FULL_MEMBER != 0
}

/// A port's table of partition keys. It has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PkeyTable(Arc<[u16]>);

impl Default for PkeyTable {
    /// The default key alone.
    fn default() -> Self {
        PkeyTable([DEFAULT_PKEY].into())
    }
}

impl PkeyTable {
    /// Returns the table of the InfiniBand ports of a process with these devices.
    ///
    /// # Errors
    /// [`SettingError::Malformed`] for malformed keys, and for any if no device has an InfiniBand port.
    pub fn of_devices(devices: &[LinkLayer]) -> Result<Self, SettingError> {
        let Some(text) = setting::value(PKEYS_VARIABLE) else { return Ok(Self::default()) };
        parse(&text, devices).map_err(|problem| SettingError::malformed(PKEYS_VARIABLE, &text, problem))
    }

    /// Returns the table of a port with this link layer, of the process's tables.
    #[must_use]
    pub(crate) fn of_port(self, link: LinkLayer) -> Self {
        if link == LinkLayer::Ethernet { Self::default() } else { self }
    }

    /// Returns the keys.
    pub fn keys(&self) -> &[u16] {
        &self.0
    }

    /// Returns a key by its index; the default key past the table.
    pub(crate) fn key(&self, index: u16) -> u16 {
        self.0.get(usize::from(index)).copied().unwrap_or(DEFAULT_PKEY)
    }

    /// Returns the index of the first key with which packets of another key pass.
    pub(crate) fn partner_of(&self, pkey: u16) -> Option<u16> {
        self.0.iter().position(|own| are_partners(*own, pkey)).map(|index| index as u16)
    }

    /// Returns the index of a partition's key (`ib_find_cached_pkey`): the first of a full member, or else the last of a
    /// limited one.
    pub fn index_of(&self, pkey: u16) -> Option<u16> {
        let full = self.0.iter().position(|own| *own == pkey | FULL_MEMBER);
        let limited = || self.0.iter().rposition(|own| *own == pkey & !FULL_MEMBER);
        full.or_else(limited).map(|index| index as u16)
    }
}

impl FromStr for PkeyTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keys = text.split(',').map(|word| {
            let word = word.trim();
            let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
            let key = match digits {
                // No sign, which the parser of numbers allows.
                Some(digits) if !digits.starts_with('+') => u16::from_str_radix(digits, 16).ok(),
                _ => None,
            };
            key.filter(|key| key & !FULL_MEMBER != 0).ok_or_else(|| {
                format!(
                    "`{word}` is no partition key: give 0x0001 to 0x7fff for a limited member, 0x8001 to 0xffff for a full one"
                )
            })
        });
        let keys = keys.collect::<Result<Vec<u16>, String>>()?;
        if keys.len() > MOST {
            return Err(format!("it has {} keys: a port's table has at most {MOST}", keys.len()));
        }
        Ok(PkeyTable(keys.into()))
    }
}

fn parse(text: &str, devices: &[LinkLayer]) -> Result<PkeyTable, String> {
    let table = text.parse()?;
    match devices.contains(&LinkLayer::InfiniBand) {
        true => Ok(table),
        false => Err("no device has an InfiniBand port, and an Ethernet port (RoCE) has the default key 0xffff alone: unset \
                      it, or give a device of link layer `ib`"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LinkLayer::{Ethernet, InfiniBand};

    #[test]
    fn keys_are_partners_in_one_partition_unless_both_are_limited() {
        for (one, other, expected) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x8001, true),
            (0x8001, 0x0001, true),
            (0x0001, 0x0001, false),
            (0x8001, 0x8002, false),
            (0x8001, 0x0002, false),
            (0x8001, 0xffff, false),
        ] {
            assert_eq!(
                (are_partners(one, other), are_partners(other, one)),
                (expected, expected),
                "{one:#x} {other:#x}"
            );
        }
    }

    #[test]
    fn a_key_is_found_as_the_kernel_finds_it() {
        let table: PkeyTable = "0x7fff, 0x8001,0x0002,0x0001,0x8001,0x0002".parse().unwrap();
        assert_eq!(table.keys(), [0x7fff, 0x8001, 2, 1, 0x8001, 2]);
        let index = |pkey| table.index_of(pkey);
        assert_eq!(
            [index(0xffff), index(0x7fff), index(0x0001), index(0x8001)],
            [Some(0), Some(0), Some(1), Some(1)]
        );
        assert_eq!([index(0x8002), index(0x8003)], [Some(5), None]);
        let partner = |pkey| table.partner_of(pkey);
        assert_eq!(
            [partner(0xffff), partner(0x7fff), partner(0x0001), partner(0x8001)],
            [Some(0), None, Some(1), Some(1)]
        );
        assert_eq!([table.key(2), table.key(6)], [2, DEFAULT_PKEY]);
        assert_eq!(PkeyTable::default().keys(), [DEFAULT_PKEY]);
        assert_eq!(
            (table.clone().of_port(InfiniBand), table.clone().of_port(Ethernet)),
            (table, PkeyTable::default())
        );
    }

    #[test]
    fn what_is_no_table_is_an_error_that_says_why() {
        let infiniband = [Ethernet, InfiniBand];
        assert_eq!(parse("0XFFFF", &infiniband).unwrap(), PkeyTable::default());
        let most = vec!["0x8001"; MOST].join(",");
        assert_eq!(parse(&most, &infiniband).unwrap().keys().len(), MOST);
        for word in ["0", "0x0", "0x8000", "0x10000", "-1", "0x+1", "ffff", "65535", "0xfffg", ""] {
            let error = parse(&format!("0xffff,{word}"), &infiniband).unwrap_err();
            assert!(error.starts_with(&format!("`{word}` is no partition key")), "{error}");
        }
        let error = parse(&format!("{most},0xffff"), &infiniband).unwrap_err();
        assert!(error.contains("129 keys") && error.contains("at most 128"), "{error}");
        let error = parse("0xffff", &[Ethernet; 2]).unwrap_err();
        assert!(error.contains("unset it") && error.contains("RoCE"), "{error}");
    }
}
