//! The work requests that bind a memory window of type 2, and that close it.
//!
//! Both are changes of the window's key ([`super::umr`]) whose control segment has the opcode
//! [`Opcode::Umr`](super::wqe::Opcode::Umr) and names the key. They are those of libmlx5
//! (`providers/mlx5/qp.c`, `set_bind_wr`), which has the request behind each of them begin with a
//! small fence ([`CtrlFlags::FENCE_INITIATOR_SMALL`](super::wqe::CtrlFlags::FENCE_INITIATOR_SMALL)).

use super::umr::{ANY_QP, KeyAccess, KeyContextSeg, KeyFields, KeyMask, UmrCtrlSeg, UmrFlags};
use super::wqe::{DataSeg, SEGMENT};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most bytes of a window: those of the one entry that its translation has.
pub const MAX_WINDOW: u64 = 1 << 31;
/// Entries of a translation are written in fours.
const ENTRIES: usize = 4;

/// What both change, and how.
const FLAGS: UmrFlags = UmrFlags::INLINE.union(UmrFlags::TRANSLATION_OFFSET);
const MASK: KeyMask = KeyMask::FREE.union(KeyMask::TAG).union(KeyMask::QPN);
/// What binding changes, too.
const BIND_MASK: KeyMask = KeyMask::LEN
    .union(KeyMask::START_ADDR)
    .union(KeyMask::LOCAL_WRITE)
    .union(KeyMask::REMOTE_READ)
    .union(KeyMask::REMOTE_WRITE)
    .union(KeyMask::ATOMIC);

/// Binds a window, which must be closed, to a part of a region: 176 bytes behind the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WindowBind {
    change: UmrCtrlSeg,
    context: KeyContextSeg,
    memory: DataSeg,
    padding: [DataSeg; ENTRIES - 1],
}

impl WindowBind {
    /// The last 8 bits of the key become `tag`. Requests to the queue pair `qpn` may use the window,
    /// whose first address is `start_addr`; `memory` is the part of the region, of at most
    /// [`MAX_WINDOW`] bytes.
    pub fn new(qpn: u32, tag: u8, access: KeyAccess, start_addr: u64, memory: DataSeg) -> Self {
        let len = memory.byte_count().into();
        let fields = KeyFields { closed: false, access, qpn, tag, start_addr, len };
        WindowBind {
            change: UmrCtrlSeg::new(FLAGS | UmrFlags::CHECK_FREE, MASK | BIND_MASK, ENTRIES as u16),
            context: KeyContextSeg::new(&fields),
            memory,
            padding: [DataSeg::new(0, 0, 0); ENTRIES - 1],
        }
    }
}

/// Closes a window of this queue pair: 112 bytes behind the control segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WindowClose {
    change: UmrCtrlSeg,
    context: KeyContextSeg,
}

impl WindowClose {
    /// The last 8 bits of the key become 0.
    #[expect(clippy::new_without_default, reason = "a work request is no default")]
    pub fn new() -> Self {
        let fields = KeyFields { closed: true, qpn: ANY_QP, ..KeyFields::default() };
        WindowClose {
            change: UmrCtrlSeg::new(FLAGS | UmrFlags::CHECK_QPN, MASK, 0),
            context: KeyContextSeg::new(&fields),
        }
    }
}

const _: () = assert!(size_of::<WindowBind>() == 11 * SEGMENT && size_of::<WindowClose>() == 7 * SEGMENT);

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes from an offset on, the others zero.
    fn bytes<const N: usize>(parts: &[(usize, &[u8])]) -> [u8; N] {
        let mut all = [0; N];
        parts.iter().for_each(|(at, part)| all[*at..at + part.len()].copy_from_slice(part));
        all
    }

    #[test]
    fn a_bind_is_that_of_libmlx5() {
        let memory = DataSeg::new(0x40, 0x0500, 0x1010);
        let bind = WindowBind::new(0x0a_0b0c, 7, KeyAccess::REMOTE_READ | KeyAccess::ATOMIC, 0x20, memory);
        let expected = bytes(&[
            // Inline, check free, translation offset; four entries; the mask.
            (0, &[0xb0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x3c, 0x60, 0x41]),
            (48, &[0, 0, 0x50, 0, 0x0a, 0x0b, 0x0c, 7]),
            (64, &[0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x40]),
            (112, &[0, 0, 0, 0x40, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x10]),
        ]);
        assert_eq!(bind.as_bytes(), expected as [u8; 176]);
    }

    #[test]
    fn a_close_is_that_of_libmlx5() {
        let expected = bytes(&[
            (0, &[0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0x60, 0]),
            (48, &[0x40, 0, 0, 0, 0xff, 0xff, 0xff, 0]),
        ]);
        assert_eq!(WindowClose::new().as_bytes(), expected as [u8; 112]);
    }
}
