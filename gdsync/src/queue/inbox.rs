//! From the owner of a send queue to whoever takes the queue's lock: what was posted without it.
//!
//! One thread at a time posts (a queue with one owner), and one takes at a time (under the lock): their
//! words are loaded and stored, and nothing is locked. A post fills a slot and then counts itself; what
//! is taken was counted before. A slot is filled again only when its request has retired, which is
//! after it was taken. There are as many slots as blocks in the ring, and each request has a block at
//! least, so no slot is missing.

use crate::util::sync::atomic::{AtomicU64, Ordering};

/// A request that was posted: what its completion needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    /// Its first block.
    pub(crate) first: u32,
    /// At most 16.
    pub(crate) blocks: u16,
    pub(crate) signaled: bool,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    /// Of each slot, the two words of a request. A power of two of them.
    slots: Box<[[AtomicU64; 2]]>,
    /// Blocks before this one are free: written under the lock of the queue.
    tail: AtomicU64,
    /// Requests posted that ask for a completion: written by the owner.
    signaled: AtomicU64,
}

impl Inbox {
    /// For a ring with that many blocks, a power of two, of which those before `tail` are free.
    pub(crate) fn new(blocks: u32, tail: u32) -> Self {
        let slots = (0..blocks).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Inbox { slots, tail: AtomicU64::new(tail.into()), signaled: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn slot(&self, index: u64) -> Option<&[AtomicU64; 2]> {
        self.slots.get(index as usize & self.slots.len().wrapping_sub(1))
    }

    /// Puts down the request that is the owner's post number `index`. Whoever then learns of that post
    /// (acquire) finds it.
    #[inline(always)]
    pub(crate) fn put(&self, index: u64, request: Posted) {
        let Posted { wr_id, first, blocks, signaled } = request;
        let rest = u64::from(first) << 32 | u64::from(blocks) << 1 | u64::from(signaled);
        if let Some([id, other]) = self.slot(index) {
            id.store(wr_id, Ordering::Relaxed);
            other.store(rest, Ordering::Relaxed);
        }
    }

    /// Takes post number `index`, of which the caller has learnt, and which has not retired.
    pub(crate) fn take(&self, index: u64) -> Option<Posted> {
        let [id, other] = self.slot(index)?;
        let (wr_id, rest) = (id.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
        let (first, blocks) = ((rest >> 32) as u32, (rest as u32 >> 1) as u16);
        Some(Posted { wr_id, first, blocks, signaled: rest & 1 == 1 })
    }

    /// The first block that is not free.
    #[inline]
    pub(crate) fn tail(&self) -> u32 {
        self.tail.load(Ordering::Acquire) as u32
    }

    /// Blocks before this one are free: their requests were taken.
    pub(crate) fn free(&self, tail: u32) {
        self.tail.store(tail.into(), Ordering::Release);
    }

    /// So many requests with a completion were posted.
    #[inline(always)]
    pub(crate) fn expect(&self, signaled: u32) {
        self.signaled.store(signaled.into(), Ordering::Release);
    }

    /// How many requests with a completion were posted, modulo 2^32.
    pub(crate) fn signaled(&self) -> u32 {
        self.signaled.load(Ordering::Acquire) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn requests_come_out_as_they_went_in(
            requests in prop::collection::vec((any::<u64>(), any::<u32>(), 1u16..=16, any::<bool>()), 1..40),
            blocks in 0u32..5,
            start: u32,
        ) {
            let inbox = Inbox::new(1 << blocks, start);
            prop_assert_eq!(inbox.tail(), start);
            for (index, (wr_id, first, blocks, signaled)) in (u64::from(start)..).zip(requests) {
                let request = Posted { wr_id, first, blocks, signaled };
                inbox.put(index, request);
                prop_assert_eq!(inbox.take(index), Some(request));
            }
        }
    }
}
