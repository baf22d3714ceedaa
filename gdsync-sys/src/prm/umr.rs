//! Segments of user-mode memory registration (UMR): a work request that modifies a memory key.
//!
//! The request consists of a control segment whose immediate is the key, [`UmrCtrlSeg`], [`KeyContextSeg`], and the
//! new translation in entries of 16 bytes: [`DataSeg`](super::wqe::DataSeg)s, or one [`StridedHeader`] and its
//! [`StridedEntry`]s.

use super::getters;
use std::mem::offset_of;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Queue pair number of a key that is valid for all queue pairs.
pub const ANY_QP: u32 = 0xff_ffff;
/// The bit of [`KeyContextSeg`]'s first byte that marks a key as free, that is, unusable
/// (`MLX5_WQE_MKEY_CONTEXT_FREE`).
const CLOSED: u8 = 1 << 6;

bitflags::bitflags! {
    /// Flags of [`UmrCtrlSeg`] (`MLX5_WQE_UMR_CTRL_FLAG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct UmrFlags: u8 {
        /// The request fails unless it is posted on the key's queue pair.
        const CHECK_QPN = 1 << 3;
        /// `offset` is the first entry of the translation that changes.
        const TRANSLATION_OFFSET = 1 << 4;
        /// The request fails unless the key is free.
        const CHECK_FREE = 1 << 5;
        /// The translation is in the request.
        const INLINE = 1 << 7;
    }
}

bitflags::bitflags! {
    /// The attributes of a key that a request modifies (`MLX5_WQE_UMR_CTRL_MKEY_MASK_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct KeyMask: u64 {
        /// Length.
        const LEN = 1 << 0;
        /// First address.
        const START_ADDR = 1 << 6;
        /// The last 8 bits of the key.
        const TAG = 1 << 13;
        /// Queue pair.
        const QPN = 1 << 14;
        /// Right of local writes.
        const LOCAL_WRITE = 1 << 18;
        /// Right of remote reads.
        const REMOTE_READ = 1 << 19;
        /// Right of remote writes.
        const REMOTE_WRITE = 1 << 20;
        /// Right of atomics.
        const ATOMIC = 1 << 21;
        /// The free bit.
        const FREE = 1 << 29;
    }
}

bitflags::bitflags! {
    /// Rights of [`KeyContextSeg`] (`MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct KeyAccess: u8 {
        /// Local reads.
        const LOCAL_READ = 1 << 2;
        /// Local writes.
        const LOCAL_WRITE = 1 << 3;
        /// Remote reads.
        const REMOTE_READ = 1 << 4;
        /// Remote writes.
        const REMOTE_WRITE = 1 << 5;
        /// Atomics.
        const ATOMIC = 1 << 6;
    }
}

/// UMR control segment: `struct mlx5_wqe_umr_ctrl_seg`, 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UmrCtrlSeg {
    flags: u8,
    reserved: [u8; 3],
    octowords: U16,
    offset: U16,
    mask: U64,
    reserved_end: [u8; 32],
}

impl UmrCtrlSeg {
    /// Modifies the attributes in `mask`, and replaces the translation by one of `entries` entries of 16 bytes; 0
    /// keeps it.
    pub fn new(flags: UmrFlags, mask: KeyMask, entries: u16) -> Self {
        UmrCtrlSeg {
            flags: flags.bits(),
            octowords: U16::new(entries),
            mask: U64::new(mask.bits()),
            ..Self::new_zeroed()
        }
    }
}

getters! { UmrCtrlSeg, self:
    /// Flags, including unknown bits.
    flags -> UmrFlags { UmrFlags::from_bits_retain(self.flags) }
    /// The modified attributes, including unknown bits.
    mask -> KeyMask { KeyMask::from_bits_retain(self.mask.get()) }
    /// Entries of the new translation.
    entries -> u16 { self.octowords.get() }
    /// The first modified entry.
    offset -> u16 { self.offset.get() }
}

/// New attributes of a key: `struct mlx5_wqe_mkey_context_seg`, 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct KeyContextSeg {
    free: u8,
    reserved1: u8,
    access: u8,
    sf: u8,
    qpn_mkey: U32,
    reserved2: U32,
    flags_pd: U32,
    start_addr: U64,
    len: U64,
    bsf_octowords: U32,
    reserved3: [U32; 4],
    translation_octowords: U32,
    reserved4: [u8; 3],
    log_page_size: u8,
    reserved5: U32,
}

/// The attributes of [`KeyContextSeg`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFields {
    /// True if the key is free: requests that use it fail.
    pub closed: bool,
    /// Rights.
    pub access: KeyAccess,
    /// Queue pair, or [`ANY_QP`].
    pub qpn: u32,
    /// The last 8 bits of the key.
    pub tag: u8,
    /// First address.
    pub start_addr: u64,
    /// Length in bytes.
    pub len: u64,
}

impl KeyContextSeg {
    /// Creates a segment with these attributes.
    pub fn new(fields: &KeyFields) -> Self {
        KeyContextSeg {
            free: if fields.closed { CLOSED } else { 0 },
            access: fields.access.bits(),
            qpn_mkey: U32::new(fields.qpn << 8 | u32::from(fields.tag)),
            start_addr: U64::new(fields.start_addr),
            len: U64::new(fields.len),
            ..Self::new_zeroed()
        }
    }

    /// Returns its attributes.
    pub fn fields(&self) -> KeyFields {
        KeyFields {
            closed: self.free & CLOSED != 0,
            access: KeyAccess::from_bits_retain(self.access),
            qpn: self.qpn_mkey.get() >> 8,
            tag: self.qpn_mkey.get() as u8,
            start_addr: self.start_addr.get(),
            len: self.len.get(),
        }
    }
}

/// Header of a strided translation: `struct mlx5_wqe_umr_repeat_block_seg`, 16 bytes. It has
/// [`StridedHeader::OPERATION`] at the position of other entries' key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StridedHeader {
    byte_count: U32,
    operation: U32,
    repeat: U32,
    reserved: U16,
    entries: U16,
}

impl StridedHeader {
    /// The mark of a header.
    pub const OPERATION: u32 = 0x400;

    /// Creates a header of `repeat` rounds of `byte_count` bytes, with one block of each of `entries` entries.
    pub fn new(byte_count: u32, repeat: u32, entries: u16) -> Self {
        StridedHeader {
            byte_count: U32::new(byte_count),
            operation: U32::new(Self::OPERATION),
            repeat: U32::new(repeat),
            reserved: U16::ZERO,
            entries: U16::new(entries),
        }
    }
}

getters! { StridedHeader, self:
    /// True if the bytes are a header.
    is_header -> bool { self.operation.get() == Self::OPERATION }
    /// Bytes of a round.
    byte_count -> u32 { self.byte_count.get() }
    /// Rounds.
    repeat -> u32 { self.repeat.get() }
    /// Number of following entries.
    entries -> u16 { self.entries.get() }
}

/// Entry of a strided translation: `struct mlx5_wqe_umr_repeat_ent_seg`, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StridedEntry {
    stride: U16,
    byte_count: U16,
    key: U32,
    addr: U64,
}

impl StridedEntry {
    /// Creates an entry for blocks of `byte_count` bytes, `stride` bytes apart.
    pub fn new(stride: u16, byte_count: u16, key: u32, addr: u64) -> Self {
        StridedEntry {
            stride: U16::new(stride),
            byte_count: U16::new(byte_count),
            key: U32::new(key),
            addr: U64::new(addr),
        }
    }
}

getters! { StridedEntry, self:
    /// Bytes from one block to the next.
    stride -> u16 { self.stride.get() }
    /// Bytes of a block.
    byte_count -> u16 { self.byte_count.get() }
    /// Key of the blocks.
    key -> u32 { self.key.get() }
    /// Address of the first block.
    addr -> u64 { self.addr.get() }
}

const _: () = {
    assert!(size_of::<UmrCtrlSeg>() == 48 && offset_of!(UmrCtrlSeg, octowords) == 4);
    assert!(offset_of!(UmrCtrlSeg, offset) == 6 && offset_of!(UmrCtrlSeg, mask) == 8);
    assert!(size_of::<KeyContextSeg>() == 64 && offset_of!(KeyContextSeg, access) == 2);
    assert!(offset_of!(KeyContextSeg, qpn_mkey) == 4 && offset_of!(KeyContextSeg, flags_pd) == 12);
    assert!(offset_of!(KeyContextSeg, start_addr) == 16 && offset_of!(KeyContextSeg, len) == 24);
    assert!(offset_of!(KeyContextSeg, translation_octowords) == 52);
    assert!(offset_of!(KeyContextSeg, log_page_size) == 59);
    assert!(size_of::<StridedHeader>() == 16 && offset_of!(StridedHeader, operation) == 4);
    assert!(offset_of!(StridedHeader, repeat) == 8 && offset_of!(StridedHeader, entries) == 14);
    assert!(size_of::<StridedEntry>() == 16 && offset_of!(StridedEntry, byte_count) == 2);
    assert!(offset_of!(StridedEntry, key) == 4 && offset_of!(StridedEntry, addr) == 8);
};

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn segments_are_those_of_the_header() {
        let flags = UmrFlags::INLINE | UmrFlags::CHECK_FREE;
        let ctrl = UmrCtrlSeg::new(flags, KeyMask::LEN | KeyMask::FREE, 4);
        assert_eq!(ctrl.as_bytes()[..16], [0xa0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 1]);
        assert_eq!((ctrl.flags(), ctrl.entries(), ctrl.offset()), (flags, 4, 0));
        assert_eq!(ctrl.mask(), KeyMask::LEN | KeyMask::FREE);
        let fields = KeyFields {
            closed: true,
            access: KeyAccess::REMOTE_READ | KeyAccess::ATOMIC,
            qpn: 0x01_0203,
            tag: 4,
            start_addr: 0x1000,
            len: 0x20,
        };
        let context = KeyContextSeg::new(&fields);
        assert_eq!(context.as_bytes()[..8], [0x40, 0, 0x50, 0, 1, 2, 3, 4]);
        assert_eq!(context.fields(), fields);
        let header = StridedHeader::new(7, 3, 2);
        assert_eq!(header.as_bytes(), [0, 0, 0, 7, 0, 0, 4, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
        assert!(header.is_header());
        let entry = StridedEntry::new(9, 7, 0x500, 0x10);
        assert_eq!(entry.as_bytes(), [0, 9, 0, 7, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x10]);
    }
}
