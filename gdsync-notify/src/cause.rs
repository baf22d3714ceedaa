//! Why notifications do not come, and requests do not complete.

use crate::error::NotifyError;
use crate::liveness::RankSet;
use crate::memory::SharedSegment;
use crate::notifications::{ALL, ANY};
use gdsync::memop::{Gone, WaitCause};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

/// The ranks that may set some notifications of this rank's part of a segment. It does not keep the segment.
#[derive(Debug)]
pub(crate) struct Unset {
    segment: Weak<SharedSegment>,
    ids: Range<u32>,
}

impl Unset {
    pub(crate) fn of(segment: &Arc<SharedSegment>, ids: Range<u32>) -> Self {
        Unset { segment: Arc::downgrade(segment), ids }
    }

    /// Returns the senders: [`ANY`] and [`ALL`] among them.
    fn senders(&self, segment: &SharedSegment) -> RankSet {
        self.ids.clone().map(|id| segment.notifications.sender_or_any(id)).collect()
    }
}

impl WaitCause for Unset {
    fn cause(&self) -> Option<String> {
        if let Some(gone) = self.gone() {
            return Some(gone.reason);
        }
        let segment = self.segment.upgrade()?;
        let senders = self.senders(&segment);
        let (first, last) = (self.ids.start, self.ids.end.saturating_sub(1));
        let what = match first == last {
            true => format!("notification {first}"),
            false => format!("one of the notifications {first} to {last}"),
        };
        let mut known = match (senders.contains(&ALL), senders.contains(&ANY)) {
            (true, _) => "a rank has not come to this step of the collective".to_owned(),
            (_, true) => format!("no rank has set {what}"),
            _ => {
                let ranks = Vec::from_iter(senders.iter().map(u32::to_string)).join(", ");
                format!("rank {ranks} has not set {what}")
            }
        };
        for (rank, cause) in segment.liveness.cut() {
            if senders.contains(&rank) || senders.range(ALL..).next().is_some() {
                known += &format!(", and all connections with rank {rank} have failed: {cause}");
            }
        }
        Some(known)
    }

    fn queue_pairs(&self) -> Vec<u32> {
        let Some(segment) = self.segment.upgrade() else { return Vec::new() };
        let senders = self.senders(&segment);
        let any = senders.range(ALL..).next().is_some();
        let of_ranks = (0..).zip(segment.liveness.queue_pairs());
        of_ranks.filter(|(rank, _)| any || senders.contains(rank)).flat_map(|(_, all)| all.clone()).collect()
    }

    fn gone(&self) -> Option<Gone> {
        let segment = self.segment.upgrade()?;
        let (rank, _) = self.ids.clone().find_map(|id| segment.notifications.status(id))?;
        let error = segment.liveness.check_released(rank).err()?;
        let rank = matches!(error, NotifyError::PeerDead { .. }).then_some(rank);
        Some(Gone { rank, reason: error.to_string() })
    }

    fn hold(&self, hold: &Arc<AtomicBool>) {
        if let Some(segment) = self.segment.upgrade() {
            self.ids.clone().for_each(|id| segment.notifications.hold(id, hold));
        }
    }
}

/// Requests of a queue that have not completed.
#[derive(Debug)]
pub(crate) struct Uncompleted {
    ranks: Vec<u32>,
    queue_pairs: Vec<u32>,
}

impl Uncompleted {
    /// Takes the ranks, each with the queue pair that reaches it.
    pub(crate) fn of(ranks: impl Iterator<Item = (u32, u32)>) -> Self {
        let (ranks, mut queue_pairs): (Vec<u32>, Vec<u32>) = ranks.unzip();
        // Those of DC reach several ranks.
        queue_pairs.sort_unstable();
        queue_pairs.dedup();
        Uncompleted { ranks, queue_pairs }
    }
}

impl WaitCause for Uncompleted {
    fn cause(&self) -> Option<String> {
        let ranks: Vec<String> = self.ranks.iter().map(u32::to_string).collect();
        (!ranks.is_empty()).then(|| format!("requests to rank {} have not completed", ranks.join(", ")))
    }

    fn queue_pairs(&self) -> Vec<u32> {
        self.queue_pairs.clone()
    }
}
