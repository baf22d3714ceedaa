//! The address vector of a datagram WQE.

use std::fmt;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Address vector of a datagram: `struct mlx5_wqe_av`, 48 bytes, which is the whole datagram segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AddressVector {
    qkey: U32,
    reserved: U32,
    dqp_dct: U32,
    stat_rate_sl: u8,
    fl_mlid: u8,
    rlid: U16,
    reserved0: [u8; 4],
    rmac: [u8; 6],
    tclass: u8,
    hop_limit: u8,
    grh_gid_fl: U32,
    rgid: [u8; 16],
}

impl AddressVector {
    /// Returns the access key of a DC target, which replaces the Q_Key.
    pub fn dc_key(&self) -> u64 {
        u64::from(self.qkey.get()) << 32 | u64::from(self.reserved.get())
    }

    /// Returns the vector with the access key of a DC target.
    pub fn with_dc_key(self, key: u64) -> Self {
        AddressVector { qkey: U32::new((key >> 32) as u32), reserved: U32::new(key as u32), ..self }
    }
}

/// Bit of `dqp_dct`: the vector is 48 bytes long (`MLX5_EXTENDED_UD_AV`).
const EXTENDED_AV: u32 = 1 << 31;
/// Bit of `grh_gid_fl`: a global route is used.
const GRH: u32 = 1 << 30;

/// The fields of an [`AddressVector`], in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressFields {
    /// Q_Key.
    pub qkey: u32,
    /// Destination queue pair, 24 bits.
    pub qpn: u32,
    /// Static rate, 4 bits.
    pub static_rate: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Source path bits, 7 bits.
    pub path_bits: u8,
    /// Destination LID, or the UDP source port on RoCE v2.
    pub dlid: u16,
    /// Destination MAC (RoCE).
    pub mac: [u8; 6],
    /// Global route, if any.
    pub grh: Option<GrhFields>,
}

/// Global route of an [`AddressVector`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrhFields {
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source GID index, 8 bits.
    pub gid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Destination GID.
    pub gid: [u8; 16],
}

impl AddressVector {
    /// Creates an extended (48-byte) address vector.
    pub fn new(fields: &AddressFields) -> Self {
        let grh = fields.grh.unwrap_or_default();
        let grh_bit = if fields.grh.is_some() { GRH } else { 0 };
        AddressVector {
            qkey: U32::new(fields.qkey),
            reserved: U32::ZERO,
            dqp_dct: U32::new(EXTENDED_AV | fields.qpn & 0xff_ffff),
            stat_rate_sl: fields.static_rate << 4 | fields.service_level & 0xf,
            fl_mlid: fields.path_bits & 0x7f,
            rlid: U16::new(fields.dlid),
            reserved0: [0; 4],
            rmac: fields.mac,
            tclass: grh.traffic_class,
            hop_limit: grh.hop_limit,
            grh_gid_fl: U32::new(grh_bit | u32::from(grh.gid_index) << 20 | grh.flow_label & 0xf_ffff),
            rgid: grh.gid,
        }
    }

    /// Returns the vector with the queue pair (24 bits) and the Q_Key of a datagram, which address handles lack.
    pub fn with_destination(self, qpn: u32, qkey: u32) -> Self {
        let dqp_dct = U32::new(EXTENDED_AV | qpn & 0xff_ffff);
        AddressVector { qkey: U32::new(qkey), dqp_dct, ..self }
    }

    /// Returns true if the extended bit is set. Without it, only the first 16 bytes exist.
    pub fn is_extended(&self) -> bool {
        self.dqp_dct.get() & EXTENDED_AV != 0
    }

    /// Returns the fields of the global route, even if the bit for it is 0: on RoCE, where every packet has one,
    /// libmlx5 leaves the bit 0.
    pub fn route(&self) -> GrhFields {
        let word = self.grh_gid_fl.get();
        GrhFields {
            traffic_class: self.tclass,
            hop_limit: self.hop_limit,
            gid_index: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            gid: self.rgid,
        }
    }

    /// Returns its fields.
    pub fn fields(&self) -> AddressFields {
        AddressFields {
            qkey: self.qkey.get(),
            qpn: self.dqp_dct.get() & 0xff_ffff,
            static_rate: self.stat_rate_sl >> 4,
            service_level: self.stat_rate_sl & 0xf,
            path_bits: self.fl_mlid & 0x7f,
            dlid: self.rlid.get(),
            mac: self.rmac,
            grh: (self.grh_gid_fl.get() & GRH != 0).then(|| self.route()),
        }
    }
}

impl fmt::Display for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = self.fields();
        let (qpn, qkey) = (fields.qpn, fields.qkey);
        write!(f, "to qpn {qpn:#x} qkey {qkey:#x} lid {} sl {}", fields.dlid, fields.service_level)?;
        match fields.grh {
            Some(grh) => write!(f, " gid {}", std::net::Ipv6Addr::from(grh.gid)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn address_vector_bytes() {
        // mlx5dv.h, struct mlx5_wqe_av; libmlx5 sets bit 31 of dqp_dct and bit 30 of grh_gid_fl.
        let grh =
            GrhFields { traffic_class: 7, hop_limit: 64, gid_index: 3, flow_label: 0x12345, gid: [0xee; 16] };
        let fields = AddressFields {
            qkey: 0x1111_2222,
            qpn: 0x33_4455,
            static_rate: 2,
            service_level: 5,
            path_bits: 1,
            dlid: 0x6677,
            mac: [1, 2, 3, 4, 5, 6],
            grh: Some(grh),
        };
        let vector = AddressVector::new(&fields);
        let mut bytes =
            vec![0x11, 0x11, 0x22, 0x22, 0, 0, 0, 0, 0x80, 0x33, 0x44, 0x55, 0x25, 0x01, 0x66, 0x77];
        bytes.extend([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 64, 0x40, 0x31, 0x23, 0x45]);
        bytes.extend([0xee; 16]);
        assert_eq!(vector.as_bytes(), bytes);
        assert_eq!(vector.fields(), fields);
        assert!(vector.is_extended());
        // On RoCE the route's bit is 0 although its fields are valid.
        bytes[28] = 0;
        let roce = AddressVector::read_from_bytes(&bytes).unwrap();
        assert_eq!((roce.fields().grh, roce.route()), (None, grh));
        bytes[8] = 0;
        assert!(!AddressVector::read_from_bytes(&bytes).unwrap().is_extended());
        let other = vector.with_destination(0xff0b_0c0d, 0x44);
        assert_eq!(other.fields(), AddressFields { qpn: 0x0b_0c0d, qkey: 0x44, ..fields });
        assert!(AddressVector::read_from_bytes(&[0; 48]).unwrap().with_destination(1, 2).is_extended());
        let local = AddressFields { grh: None, ..fields };
        assert_eq!(AddressVector::new(&local).fields(), local);
    }

    #[test]
    fn an_access_key_takes_the_first_8_bytes() {
        // mlx5dv.h, struct mlx5_wqe_av: `dc_key` shares a union with the Q_Key and the word after it.
        let vector = AddressVector::new(&AddressFields { dlid: 7, ..AddressFields::default() });
        let vector = vector.with_destination(0x12_3456, 0).with_dc_key(0x0102_0304_0506_0708);
        assert_eq!(vector.as_bytes()[..16], [1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x12, 0x34, 0x56, 0, 0, 0, 7]);
        assert_eq!((vector.dc_key(), vector.fields().qpn), (0x0102_0304_0506_0708, 0x12_3456));
        assert!(vector.is_extended());
    }

    #[test]
    fn a_vector_prints_on_one_line() {
        let mut gid = [0; 16];
        gid[0] = 0xfe;
        gid[1] = 0x80;
        gid[15] = 1;
        let grh = GrhFields { gid, ..GrhFields::default() };
        let fields = AddressFields { qpn: 0x11, qkey: 0x22, dlid: 3, service_level: 4, ..Default::default() };
        assert_eq!(AddressVector::new(&fields).to_string(), "to qpn 0x11 qkey 0x22 lid 3 sl 4");
        let global = AddressVector::new(&AddressFields { grh: Some(grh), ..fields });
        assert_eq!(global.to_string(), "to qpn 0x11 qkey 0x22 lid 3 sl 4 gid fe80::1");
    }

    proptest! {
        #[test]
        fn vectors_round_trip(qkey: u32, qpn in 0u32..1 << 24, rate in 0u8..16, level in 0u8..16, path in 0u8..128,
                              dlid: u16, mac: [u8; 6], global: bool, tclass: u8, hops: u8, index: u8,
                              flow in 0u32..1 << 20, gid: [u8; 16]) {
            let grh = GrhFields { traffic_class: tclass, hop_limit: hops, gid_index: index, flow_label: flow, gid };
            let fields = AddressFields {
                qkey, qpn, static_rate: rate, service_level: level, path_bits: path, dlid, mac, grh: global.then_some(grh),
            };
            prop_assert_eq!(AddressVector::new(&fields).fields(), fields);
        }

        #[test]
        fn any_bytes_are_a_vector(bytes: [u8; 48]) {
            let vector = AddressVector::read_from_bytes(&bytes).unwrap();
            prop_assert_eq!(vector.as_bytes(), bytes);
            prop_assert!(!vector.to_string().is_empty());
        }
    }
}
