//! Segments of send work-queue entries (WQEs).
//!
//! A WQE is a control segment and its opcode's segments, in units of 16 bytes. It occupies whole 64-byte basic blocks
//! of the send queue, and may wrap around the queue's end between any two of them.

pub use super::av::{AddressFields, AddressVector, GrhFields};
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
    /// Creates a control segment. `index` is in basic blocks, `ds` (6 bits) in 16-byte units including this segment;
    /// `imm` is the immediate in wire order, big endian.
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
    ///
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
        write!(
            f,
            " index {} qpn {:#x} ds {} flags {:#04x}",
            self.index(),
            self.qpn(),
            self.ds(),
            self.fm_ce_se
        )
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
    /// Creates a segment with the queue's number, 24 bits.
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
