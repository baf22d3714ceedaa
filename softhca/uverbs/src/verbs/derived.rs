//! What the driver and the device derive from a program's values for queue pairs: the rights in force, and options.

use crate::context::Context;
use crate::uapi::queues::ModifyQp;
use gdsync_sys::verbs as ibv;
use softhca::card::{Access, LinkLayer, Transport};

/// The version of ECE options, in their upper 4 bits. The card has version 1, without any option.
const ECE_VERSION: u32 = 0xf << 28;
const ECE_NONE: u32 = 1 << 28;

/// Returns the ECE options (enhanced connection establishment, annex A18 of the specification's volume 1) that are in
/// force if a program asks for some. Only cards on Ethernet have them.
pub(super) fn ece(context: &Context, asked: u32) -> u32 {
    let has_version = asked & ECE_VERSION != 0 && context.card().link_layer() == LinkLayer::Ethernet;
    if has_version { ECE_NONE } else { 0 }
}

/// Access rights as the driver remembers them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    asked: u32,
    depth: u8,
}

impl Rights {
    /// Returns the rights in force if a change sets them: reads and atomics need a queue of their results
    /// (`set_qpc_atomic_flags`; a DC target has one). The driver ignores other flags.
    pub(super) fn change(&mut self, asked: &ModifyQp, transport: Transport) -> Option<Access> {
        let has = |bit| asked.attr_mask & bit != 0;
        if has(ibv::IBV_QP_ACCESS_FLAGS) {
            self.asked = asked.qp_access_flags;
        }
        if has(ibv::IBV_QP_MAX_DEST_RD_ATOMIC) {
            self.depth = asked.max_dest_rd_atomic;
        }
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let can =
            if self.depth > 0 || transport == Transport::DcTarget { remote } else { Access::REMOTE_WRITE };
        has(ibv::IBV_QP_ACCESS_FLAGS | ibv::IBV_QP_MAX_DEST_RD_ATOMIC)
            .then(|| Access::from_bits_truncate(self.asked) & can)
    }
}
