//! What queue pairs give to the timeline ([`gdsync_trace`]).

use crate::queue::{Completion, Doorbell, PollError, Release};
use crate::verbs::GidEntry;
use gdsync_trace::{Kind, event};

/// The low 16 bits of a card's node in the fabric: a GID ends with it.
fn node(gid: &GidEntry) -> u32 {
    let [.., high, low] = gid.gid.0;
    u16::from_be_bytes([high, low]).into()
}

/// A queue pair was made, with its doorbell register there.
pub(super) fn made(device: &str, gid: &GidEntry, number: u32, register: u64) {
    gdsync_trace::name_card(node(gid), device);
    event(Kind::QueuePair, || [register, u64::from(node(gid)) << 32 | u64::from(number), 0]);
}

/// A send is in its queue, and the card does not know it.
#[inline(always)]
pub(super) fn prepared(release: &Release) {
    if let Release::Ring(Doorbell { register, value, .. }) = release {
        event(Kind::PreparedSend, || [register.get(), *value, 0]);
    }
}

/// The CPU has looked for a completion.
#[inline(always)]
pub(super) fn polled(found: Option<Result<Completion, PollError>>) -> Result<Option<Completion>, PollError> {
    if let Some(Ok(Completion { qp_num, wr_id, .. })) = &found {
        event(Kind::Polled, || [(*qp_num).into(), *wr_id, 0]);
    }
    found.transpose()
}
