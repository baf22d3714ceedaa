//! Segments of send work-queue entries (WQEs): a control segment and its opcode's segments, in units of 16 bytes. A
//! WQE occupies whole 64-byte basic blocks, and may wrap around the send queue's end between any two of them.

use super::{UnknownCode, getters, wire_codes};
use std::fmt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a basic block (`MLX5_SEND_WQE_BB`).
pub const BASIC_BLOCK: usize = 64;
/// Bytes of a segment unit, the unit of `ds`.
pub const SEGMENT: usize = 16;
/// Largest `ds`: the field has 6 bits.
pub const MAX_DS: u8 = 63;
/// The lkey that ends a short scatter list (`MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;
/// Top bit of an inline segment's byte count (`MLX5_INLINE_SEG`).
pub const INLINE_FLAG: u32 = 0x8000_0000;

wire_codes! {
    /// Opcodes of send WQEs (`MLX5_OPCODE_*`).
    Opcode, "WQE opcode" {
        /// Does nothing.
        Nop = 0x00,
        /// Send that invalidates a remote key.
        SendInval = 0x01,
        /// RDMA write.
        RdmaWrite = 0x08,
        /// RDMA write with immediate.
        RdmaWriteImm = 0x09,
        /// Send.
        Send = 0x0a,
        /// Send with immediate.
        SendImm = 0x0b,
        /// TCP segmentation offload.
        Tso = 0x0e,
        /// Waits for a completion queue, a word of memory or a time ([`super::wait`]).
        Wait = 0x0f,
        /// RDMA read.
        RdmaRead = 0x10,
        /// Compare and swap.
        AtomicCs = 0x11,
        /// Fetch and add.
        AtomicFa = 0x12,
        /// Masked compare and swap.
        AtomicMaskedCs = 0x14,
        /// Masked fetch and add.
        AtomicMaskedFa = 0x15,
        /// Releases the work requests of another queue ([`super::wait`]).
        SendEnable = 0x17,
        /// Fast memory registration.
        Fmr = 0x19,
        /// Local invalidate.
        LocalInval = 0x1b,
        /// Reads local memory and discards it.
        Dump = 0x23,
        /// User-mode memory registration.
        Umr = 0x25,
        /// Memory-to-memory operation.
        Mmo = 0x2f,
    }
}

bitflags::bitflags! {
    /// The `fm_ce_se` byte of a control segment.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CtrlFlags: u8 {
        /// Solicited event at the receiver (`MLX5_WQE_CTRL_SOLICITED`).
        const SOLICITED = 1 << 1;
        /// Writes a completion entry on success, too (`MLX5_WQE_CTRL_CQ_UPDATE`).
        const CQ_UPDATE = 2 << 2;
        /// Initiator small fence (`MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE`).
        const FENCE_INITIATOR_SMALL = 1 << 5;
        /// Starts after all earlier reads and atomics (`MLX5_WQE_CTRL_FENCE`).
        const FENCE = 4 << 5;
    }
}

/// Control segment: `struct mlx5_wqe_ctrl_seg`, 16 bytes, first of every send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CtrlSeg {
    opmod_idx_opcode: U32,
    qpn_ds: U32,
    signature: u8,
    dci_stream_channel_id: U16,
    fm_ce_se: u8,
    imm: [u8; 4],
}

impl CtrlSeg {
    /// Creates a segment: `index` in basic blocks, 6-bit `ds` in 16-byte units with this one, the immediate big endian.
    pub fn new(opcode: Opcode, index: u16, qpn: u32, ds: u8, flags: CtrlFlags, imm: [u8; 4]) -> Self {
        CtrlSeg {
            opmod_idx_opcode: U32::new(u32::from(index) << 8 | opcode as u32),
            qpn_ds: U32::new(qpn << 8 | u32::from(ds & MAX_DS)),
            signature: 0,
            dci_stream_channel_id: U16::ZERO,
            fm_ce_se: flags.bits(),
            imm,
        }
    }

    /// Returns the segment with an opcode modifier.
    #[must_use]
    pub fn with_opmod(mut self, opmod: u8) -> Self {
        let low = self.opmod_idx_opcode.get() & 0xff_ffff;
        self.opmod_idx_opcode = U32::new(u32::from(opmod) << 24 | low);
        self
    }

    /// Returns the doorbell register's value that announces this WQE: its first 8 bytes, in one native word.
    pub fn doorbell(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.as_bytes()[..8]);
        u64::from_ne_bytes(bytes)
    }
}

getters! { CtrlSeg, self:
    /// The opcode.
    /// # Errors
    /// [`UnknownCode`].
    opcode -> Result<Opcode, UnknownCode> { Opcode::try_from(self.raw_opcode()) }
    /// The opcode byte.
    raw_opcode -> u8 { self.opmod_idx_opcode.get() as u8 }
    /// Modifier of the opcode.
    opmod -> u8 { (self.opmod_idx_opcode.get() >> 24) as u8 }
    /// Index of the WQE's first basic block, modulo 2^16.
    index -> u16 { (self.opmod_idx_opcode.get() >> 8) as u16 }
    /// Queue pair number, 24 bits.
    qpn -> u32 { self.qpn_ds.get() >> 8 }
    /// Size of the WQE in 16-byte units.
    ds -> u8 { self.qpn_ds.get() as u8 & MAX_DS }
    /// Fence, completion and event flags, including unknown bits.
    flags -> CtrlFlags { CtrlFlags::from_bits_retain(self.fm_ce_se) }
    /// Completion mode, bits 3:2: 0 on error only, 1 on the first error, 2 always, 3 always with an event.
    completion_mode -> u8 { self.fm_ce_se >> 2 & 3 }
    /// Fence mode, bits 7:5.
    fence_mode -> u8 { self.fm_ce_se >> 5 }
    /// Immediate data, or the key to invalidate, in wire order.
    imm -> [u8; 4] { self.imm }
}

impl fmt::Display for CtrlSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode() {
            Ok(opcode) => write!(f, "{opcode:?}")?,
            Err(_) => write!(f, "opcode {:#04x}", self.raw_opcode())?,
        }
        let (index, qpn, ds) = (self.index(), self.qpn(), self.ds());
        write!(f, " index {index} qpn {qpn:#x} ds {ds} flags {:#04x}", self.fm_ce_se)
    }
}

/// Remote address segment: `struct mlx5_wqe_raddr_seg`, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RemoteAddrSeg {
    raddr: U64,
    rkey: U32,
    reserved: U32,
}

impl RemoteAddrSeg {
    /// Creates a segment with remote address and key.
    pub fn new(addr: u64, rkey: u32) -> Self {
        RemoteAddrSeg { raddr: U64::new(addr), rkey: U32::new(rkey), reserved: U32::ZERO }
    }
}

getters! { RemoteAddrSeg, self:
    /// Remote address.
    addr -> u64 { self.raddr.get() }
    /// Remote key.
    rkey -> u32 { self.rkey.get() }
}

/// XRC segment: `struct mlx5_wqe_xrc_seg`, 16 bytes; the remote shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XrcSeg {
    xrc_srqn: U32,
    reserved: [u8; 12],
}

impl XrcSeg {
    /// Creates a segment with the queue's number (24 bits).
    pub fn new(srqn: u32) -> Self {
        XrcSeg { xrc_srqn: U32::new(srqn & 0xff_ffff), reserved: [0; 12] }
    }

    /// Returns the queue's number.
    pub fn srqn(&self) -> u32 {
        self.xrc_srqn.get() & 0xff_ffff
    }
}

const _: () = assert!(size_of::<XrcSeg>() == SEGMENT);

/// Data segment: `struct mlx5_wqe_data_seg`, 16 bytes; one scatter/gather element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DataSeg {
    byte_count: U32,
    lkey: U32,
    addr: U64,
}

impl DataSeg {
    /// Creates an element. The card reads a byte count of 0 as 2^31 (PRM), so builders of WQEs omit empty elements.
    pub fn new(byte_count: u32, lkey: u32, addr: u64) -> Self {
        DataSeg { byte_count: U32::new(byte_count), lkey: U32::new(lkey), addr: U64::new(addr) }
    }

    /// Creates the element that ends a scatter list early.
    pub fn terminator() -> Self {
        DataSeg::new(0, INVALID_LKEY, 0)
    }

    /// Returns true for [`DataSeg::terminator`].
    pub(crate) fn is_terminator(&self) -> bool {
        self.byte_count.get() == 0 && self.lkey.get() == INVALID_LKEY
    }
}

getters! { DataSeg, self:
    /// Length in bytes.
    byte_count -> u32 { self.byte_count.get() }
    /// Local key.
    lkey -> u32 { self.lkey.get() }
    /// Address.
    addr -> u64 { self.addr.get() }
}

/// Inline data segment's header: `struct mlx5_wqe_inl_data_seg`, 4 bytes; the data follow, padded to 16 bytes in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InlineSeg {
    byte_count: U32,
}

impl InlineSeg {
    /// Creates a header for that many bytes (31 bits).
    pub fn new(byte_count: u32) -> Self {
        InlineSeg { byte_count: U32::new(byte_count | INLINE_FLAG) }
    }

    /// Returns the length of the data in bytes, without the header.
    pub fn byte_count(&self) -> u32 {
        self.byte_count.get() & !INLINE_FLAG
    }

    /// Returns true if a segment that begins with these bytes is inline.
    pub fn is_inline(first: [u8; 4]) -> bool {
        u32::from_be_bytes(first) & INLINE_FLAG != 0
    }
}

/// Atomic segment: `struct mlx5_wqe_atomic_seg`, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AtomicSeg {
    swap_add: U64,
    compare: U64,
}

impl AtomicSeg {
    /// Creates a segment with the value to swap in or to add, and the value to compare with (0 for an addition).
    pub fn new(swap_add: u64, compare: u64) -> Self {
        AtomicSeg { swap_add: U64::new(swap_add), compare: U64::new(compare) }
    }
}

getters! { AtomicSeg, self:
    /// The value to swap in or to add.
    swap_add -> u64 { self.swap_add.get() }
    /// The value to compare with.
    compare -> u64 { self.compare.get() }
}

/// Address vector, the whole datagram segment: `struct mlx5_wqe_av`, 48 bytes.
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

    /// Returns the global route, even if its bit is 0: libmlx5 leaves it 0 on RoCE, where every packet has a route.
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

    /// Returns the access key of a DC target, which replaces the Q_Key.
    pub fn dc_key(&self) -> u64 {
        u64::from(self.qkey.get()) << 32 | u64::from(self.reserved.get())
    }

    /// Returns the vector with the access key of a DC target.
    pub fn with_dc_key(self, key: u64) -> Self {
        AddressVector { qkey: U32::new((key >> 32) as u32), reserved: U32::new(key as u32), ..self }
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

impl fmt::Display for RemoteAddrSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "remote {:#x} rkey {:#x}", self.addr(), self.rkey())
    }
}

impl fmt::Display for DataSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_terminator() {
            return f.write_str("end of list");
        }
        write!(f, "data {:#x} lkey {:#x} bytes {}", self.addr(), self.lkey(), self.byte_count())
    }
}

impl fmt::Display for InlineSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inline bytes {}", self.byte_count())
    }
}

impl fmt::Display for AtomicSeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "atomic swap/add {:#x} compare {:#x}", self.swap_add(), self.compare())
    }
}

#[cfg(test)]
mod tests;
