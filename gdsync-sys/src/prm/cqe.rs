//! Completion queue entries (CQEs) of 64 bytes: `struct mlx5_cqe64` and its error form `struct mlx5_err_cqe`.

use super::wqe::Opcode;
use super::{UnknownCode, getters, wire_codes};
use std::fmt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const CQE_SIZE: usize = 64;
/// The owner bit of `op_own`, which alternates with each lap of the ring.
pub const OWNER_BIT: u8 = 1;
/// `op_own` of an unwritten entry, with owner bit 1: a stream that waits for owner 0 waits past it.
pub const OP_OWN_INVALID: u8 = 0xf1;
/// Offset of the last 32-bit word: WQE counter, signature, `op_own`.
pub const LAST_DWORD: usize = 60;
/// The owner bit in that word, as a little-endian number.
pub const OWNER_MASK_DWORD: u32 = 1 << 24;

wire_codes! {
    /// Opcodes of completion entries (`MLX5_CQE_*`).
    CqeOpcode, "CQE opcode" {
        /// A send work request completed.
        Requester = 0,
        /// An RDMA write with immediate consumed a receive.
        RespWriteImm = 1,
        /// A send consumed a receive.
        RespSend = 2,
        /// A send with immediate consumed a receive.
        RespSendImm = 3,
        /// A send with invalidate consumed a receive.
        RespSendInval = 4,
        /// The queue was resized.
        Resize = 5,
        /// No packet.
        NoPacket = 6,
        /// Signature error.
        SignatureError = 12,
        /// A send work request failed.
        RequesterError = 13,
        /// A receive failed.
        ResponderError = 14,
        /// The card has not written the entry.
        Invalid = 15,
    }
}

wire_codes! {
    /// Syndromes of error entries (`MLX5_CQE_SYNDROME_*`).
    Syndrome, "CQE syndrome" {
        /// The receive is too short, or the message too long.
        LocalLength = 0x01,
        /// The work request is malformed.
        LocalQpOperation = 0x02,
        /// A local key, bound or access right is violated.
        LocalProtection = 0x04,
        /// The queue pair had failed before.
        WrFlush = 0x05,
        /// A memory window could not be bound.
        MwBind = 0x06,
        /// The response is malformed.
        BadResponse = 0x10,
        /// The remote side used a wrong key, bound or right.
        LocalAccess = 0x11,
        /// The remote side cannot execute the request.
        RemoteInvalidRequest = 0x12,
        /// A remote key, bound or access right is violated.
        RemoteAccess = 0x13,
        /// The remote side had an internal failure.
        RemoteOperation = 0x14,
        /// The remote side does not respond.
        RetryExceeded = 0x15,
        /// The remote side had no receive posted for too long.
        RnrRetryExceeded = 0x16,
        /// The remote side gave up.
        RemoteAborted = 0x22,
    }
}

/// [`PathFields::level_or_l3_type`] on Ethernet: a GRH, in 40 bytes (`MLX5_CQE_ROCE_L3_HEADER_TYPE_GRH` of the kernel).
pub const L3_GRH: u8 = 0;
/// [`PathFields::level_or_l3_type`] on Ethernet: an IPv6 header, in 40 bytes.
pub const L3_IPV6: u8 = 1;
/// [`PathFields::level_or_l3_type`] on Ethernet: an IPv4 header, in the last 20 of 40 bytes.
pub const L3_IPV4: u8 = 2;

/// The source of a message in a responder entry, besides the remote queue pair. Messages of connections have only the
/// LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathFields {
    /// Source LID; 0 on Ethernet.
    pub slid: u16,
    /// InfiniBand: service level. Ethernet: type of the network header, such as [`L3_IPV4`].
    pub level_or_l3_type: u8,
    /// True if the first 40 bytes of the receive hold a network header.
    pub has_grh: bool,
}

/// A completion entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe64 {
    reserved0: [u8; 17],
    ml_path: u8,
    reserved18: [u8; 4],
    slid: U16,
    flags_rqpn: U32,
    hds_ip_ext: u8,
    l4_hdr_type: u8,
    vlan_info: U16,
    srqn_uidx: U32,
    imm_inval_pkey: [u8; 4],
    app: u8,
    app_op: u8,
    app_info: U16,
    byte_cnt: U32,
    timestamp: U64,
    sop_drop_qpn: U32,
    wqe_counter: U16,
    signature: u8,
    pub(super) op_own: u8,
}

/// Offset of the vendor's syndrome in an error entry (`mlx5_err_cqe.vendor_err_synd`): inside `timestamp`.
const VENDOR_SYNDROME: usize = 54;
/// Offset of the syndrome in an error entry (`mlx5_err_cqe.syndrome`).
const SYNDROME: usize = 55;

impl Cqe64 {
    fn blank(opcode: CqeOpcode, qpn: u32, wqe_opcode: u8, wqe_counter: u16) -> Self {
        Cqe64 {
            sop_drop_qpn: U32::new(u32::from(wqe_opcode) << 24 | qpn & 0xff_ffff),
            wqe_counter: U16::new(wqe_counter),
            op_own: (opcode as u8) << 4,
            ..Cqe64::new_zeroed()
        }
    }

    /// Creates the entry of a completed send. `wqe_counter` is the index of its first basic block.
    pub fn requester(wqe_opcode: Opcode, qpn: u32, wqe_counter: u16, byte_count: u32) -> Self {
        let blank = Self::blank(CqeOpcode::Requester, qpn, wqe_opcode as u8, wqe_counter);
        Cqe64 { byte_cnt: U32::new(byte_count), ..blank }
    }

    /// Creates the entry of a completed receive. `rq_index` is the index of the receive; `imm` is the immediate in
    /// wire order.
    pub fn responder(
        opcode: CqeOpcode,
        local_qpn: u32,
        remote_qpn: u32,
        rq_index: u16,
        byte_count: u32,
        imm: [u8; 4],
        solicited: bool,
    ) -> Self {
        let blank = Self::blank(opcode, local_qpn, 0, rq_index);
        Cqe64 {
            flags_rqpn: U32::new(remote_qpn & 0xff_ffff),
            imm_inval_pkey: imm,
            byte_cnt: U32::new(byte_count),
            op_own: blank.op_own | u8::from(solicited) << 1,
            ..blank
        }
    }

    /// Creates the entry of a failed work request: `opcode` is [`CqeOpcode::RequesterError`] or
    /// [`CqeOpcode::ResponderError`].
    pub fn error(
        opcode: CqeOpcode,
        wqe_opcode: u8,
        qpn: u32,
        wqe_counter: u16,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Self {
        let mut cqe = Self::blank(opcode, qpn, wqe_opcode, wqe_counter);
        cqe.timestamp = U64::new(u64::from(vendor) << 8 | syndrome as u64);
        cqe
    }

    /// Creates an unwritten entry: all zeroes except `op_own`.
    pub fn invalid() -> Self {
        Cqe64 { op_own: OP_OWN_INVALID, ..Self::blank(CqeOpcode::Invalid, 0, 0, 0) }
    }

    /// Returns the entry with another owner bit.
    pub fn with_owner(self, owner: bool) -> Self {
        Cqe64 { op_own: self.op_own & !OWNER_BIT | u8::from(owner), ..self }
    }

    /// Returns the entry with the time of the card's clock. Error entries have none: the bytes hold the syndromes.
    pub fn with_timestamp(self, clock: u64) -> Self {
        if self.is_error() { self } else { Cqe64 { timestamp: U64::new(clock), ..self } }
    }

    /// Creates the entry after which the queue continues in another ring (`MLX5_CQE_RESIZE_CQ`).
    pub fn resize() -> Self {
        Self::blank(CqeOpcode::Resize, 0, 0, 0)
    }

    /// Returns the entry with the queue pair's user index in `srqn_uidx` (24 bits), which identifies a queue pair in
    /// CQE version 1.
    pub fn with_user_index(self, index: u32) -> Self {
        Cqe64 { srqn_uidx: U32::new(index & 0xff_ffff), ..self }
    }

    /// Returns the entry with the message's path.
    pub fn with_path(self, path: PathFields) -> Self {
        let bits = u32::from(path.has_grh) << 28 | u32::from(path.level_or_l3_type & 0xf) << 24;
        let flags_rqpn = U32::new(bits | self.flags_rqpn.get() & 0xff_ffff);
        Cqe64 { flags_rqpn, slid: U16::new(path.slid), ..self }
    }

    /// Returns the message's path.
    pub fn path(&self) -> PathFields {
        let flags = self.flags_rqpn.get();
        PathFields {
            slid: self.slid.get(),
            level_or_l3_type: (flags >> 24 & 0xf) as u8,
            has_grh: flags >> 28 & 3 != 0,
        }
    }
}

getters! { Cqe64, self:
    /// The queue pair's user index (CQE version 1).
    user_index -> u32 { self.srqn_uidx.get() & 0xff_ffff }
    /// The owner bit.
    owner -> bool { self.op_own & OWNER_BIT != 0 }
    /// The opcode.
    ///
    /// # Errors
    /// [`UnknownCode`].
    opcode -> Result<CqeOpcode, UnknownCode> { CqeOpcode::try_from(self.op_own >> 4) }
    /// True for the two error opcodes.
    is_error -> bool { matches!(self.opcode(), Ok(CqeOpcode::RequesterError | CqeOpcode::ResponderError)) }
    /// True if the sender requested a solicited event.
    is_solicited -> bool { self.op_own & 2 != 0 }
    /// Number of the local queue pair.
    qpn -> u32 { self.sop_drop_qpn.get() & 0xff_ffff }
    /// Opcode of the send WQE (requester entries).
    wqe_opcode -> u8 { (self.sop_drop_qpn.get() >> 24) as u8 }
    /// First basic block of the send WQE, or index of the receive, modulo 2^16.
    wqe_counter -> u16 { self.wqe_counter.get() }
    /// Bytes received or read.
    byte_count -> u32 { self.byte_cnt.get() }
    /// Immediate data in wire order.
    imm -> [u8; 4] { self.imm_inval_pkey }
    /// Number of the remote queue pair (responder entries).
    remote_qpn -> u32 { self.flags_rqpn.get() & 0xff_ffff }
    /// The syndrome byte of an error entry.
    raw_syndrome -> u8 { self.as_bytes()[SYNDROME] }
    /// The syndrome of an error entry.
    ///
    /// # Errors
    /// [`UnknownCode`].
    syndrome -> Result<Syndrome, UnknownCode> { Syndrome::try_from(self.raw_syndrome()) }
    /// The vendor's syndrome byte of an error entry.
    vendor_syndrome -> u8 { self.as_bytes()[VENDOR_SYNDROME] }
}

impl fmt::Display for Cqe64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode() {
            Ok(opcode) => write!(f, "{opcode:?}")?,
            Err(_) => write!(f, "op_own {:#04x}", self.op_own)?,
        }
        write!(f, " owner {} qpn {:#x} counter {}", u8::from(self.owner()), self.qpn(), self.wqe_counter())?;
        if self.is_error() {
            let (syndrome, vendor) = (self.raw_syndrome(), self.vendor_syndrome());
            return write!(f, " syndrome {syndrome:#04x} vendor {vendor:#04x}");
        }
        write!(f, " bytes {}", self.byte_count())
    }
}

#[cfg(test)]
mod tests;
