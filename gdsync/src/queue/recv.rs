//! The state of a receive queue.

use crate::memory::{HostAddr, Timeline};
use crate::queue::status::Claims;
use crate::queue::{Claim, OrderError, PeerOp, QueueError, QueueFull, Ring};
use crate::verbs::MemoryRegionInner;
use gdsync_sys::prm::doorbell;
use gdsync_sys::prm::wqe::DataSeg;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// A receive whose completion was not polled.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    /// Keeps the memory that the card writes.
    pub(super) _regions: Vec<Arc<MemoryRegionInner>>,
}

/// Writes a receive into a ring's entry: the bytes before its segments, and the segments.
pub(super) fn write_receive(ring: &mut Ring, index: u32, front: &[u8], segments: &[DataSeg]) {
    let mut wqe = Vec::with_capacity(ring.stride());
    wqe.extend_from_slice(front);
    for segment in segments {
        wqe.extend_from_slice(segment.as_bytes());
    }
    if wqe.len() < ring.stride() {
        wqe.extend_from_slice(DataSeg::terminator().as_bytes());
    }
    ring.write(index, &wqe);
}

/// The state of one receive queue, under its lock. Indices count work requests from 0 on, modulo 2^32.
#[derive(Debug)]
pub(crate) struct RecvState {
    /// None if the queue pair uses a shared receive queue.
    ring: Option<Ring>,
    tail: u32,
    entries: VecDeque<Entry>,
    /// Receives of persistent requests, by index: polling does not return their completions.
    pub(crate) claims: Claims,
    /// Receives at the end that no stream was given yet.
    prepared: u32,
    /// The stream that announces the newest receives, unless it is known to have done so.
    announcer: Option<Arc<Timeline>>,
}

impl RecvState {
    pub(crate) fn new(ring: Option<Ring>) -> Self {
        RecvState {
            ring,
            tail: 0,
            entries: VecDeque::new(),
            claims: Claims::default(),
            prepared: 0,
            announcer: None,
        }
    }

    pub(crate) fn check_room(&self) -> Result<(), QueueError> {
        let capacity = self.ring.as_ref().map_or(0, Ring::entries);
        if self.entries.len() as u32 >= capacity {
            Err(QueueError::Full(QueueFull::ReceiveQueue { capacity }))
        } else {
            Ok(())
        }
    }

    /// Returns the index of the next receive.
    fn head(&self) -> u32 {
        self.tail.wrapping_add(self.entries.len() as u32)
    }

    /// Writes a receive into the ring and announces it to the card. The caller has checked the turn, the room and
    /// the number of segments.
    pub(crate) fn post(&mut self, segments: &[DataSeg], wr_id: u64, regions: Vec<Arc<MemoryRegionInner>>) {
        self.write(segments, wr_id, regions);
        self.publish(self.head());
    }

    /// Writes a receive into the ring, for a stream to announce. The completion goes to `claim`. The caller has
    /// made the checks of [`Self::post`].
    pub(crate) fn prepare(
        &mut self,
        segments: &[DataSeg],
        regions: Vec<Arc<MemoryRegionInner>>,
        claim: Arc<Claim>,
    ) {
        self.claims.add(self.head().into(), claim);
        self.write(segments, 0, regions);
        self.prepared += 1;
    }

    fn write(&mut self, segments: &[DataSeg], wr_id: u64, regions: Vec<Arc<MemoryRegionInner>>) {
        let head = self.head();
        let Some(ring) = &mut self.ring else { return };
        write_receive(ring, head, &[], segments);
        // The stream's store of the record does not depend on the kind of memory that the ring is in.
        ring.drain();
        self.entries.push_back(Entry { wr_id, _regions: regions });
    }

    fn publish(&self, end: u32) {
        // The card reads an entry once it sees the record: `publish` orders the two.
        self.ring.iter().for_each(|ring| ring.publish(doorbell::record(end)));
    }

    /// Refuses receives behind unannounced ones, which their announcement would also announce, unless the same
    /// stream announces both.
    pub(crate) fn check_turn(&mut self, qpn: u32, stream: Option<&Arc<Timeline>>) -> Result<(), QueueError> {
        let receives = self.unannounced();
        let is_same = match (&self.announcer, stream) {
            (Some(announcer), Some(stream)) => Arc::ptr_eq(announcer, stream),
            _ => false,
        };
        if receives == 0 || self.prepared == 0 && is_same {
            return Ok(());
        }
        Err(QueueError::Order(OrderError::ReceivesOnStream { qpn, receives }))
    }

    pub(crate) fn unannounced(&mut self) -> u32 {
        let Some(ring) = self.ring.as_ref().filter(|_| self.announcer.is_some()) else {
            return self.prepared;
        };
        let record = doorbell::record_value(ring.record().load(Ordering::Acquire));
        let unannounced = (self.head() as u16).wrapping_sub(record);
        if unannounced == 0 {
            self.announcer = None;
        }
        unannounced.into()
    }

    /// Gives the prepared receives to a stream. Returns the operation that announces them.
    pub(crate) fn give_to_stream(&mut self, timeline: &Arc<Timeline>) -> PeerOp {
        self.prepared = 0;
        self.announcer = Some(timeline.clone());
        let addr = self.ring.as_ref().map_or(0, |ring| ring.record().as_ptr() as u64);
        PeerOp::StoreDword { addr: HostAddr(addr), value: doorbell::record(self.head()) }
    }

    /// Undoes [`Self::give_to_stream`] for that many receives.
    pub(crate) fn take_from_stream(&mut self, receives: u32) {
        self.prepared = receives;
    }

    /// Removes the prepared receives from the queue.
    pub(crate) fn take_back(&mut self) {
        for _ in 0..std::mem::take(&mut self.prepared) {
            self.entries.pop_back();
            self.claims.forget(self.head().into());
        }
    }

    /// Announces the prepared receives, if there are no other unannounced ones.
    pub(crate) fn announce(&mut self) {
        self.prepared = 0;
        self.publish(self.head());
    }

    /// Returns the claims on receives that a stream was given and has not announced.
    pub(crate) fn given_claims(&mut self) -> impl Iterator<Item = &Arc<Claim>> {
        let given = self.unannounced().saturating_sub(self.prepared);
        let first = self.head().wrapping_sub(self.prepared).wrapping_sub(given);
        let is_given = move |serial: u64| (serial as u32).wrapping_sub(first) < given;
        self.claims.iter().filter(move |(serial, _)| is_given(*serial)).map(|(_, claim)| claim)
    }

    pub(crate) fn announce_lost(&mut self) {
        if self.announcer.as_ref().is_some_and(|announcer| announcer.is_dead()) {
            self.announcer = None;
            self.publish(self.head().wrapping_sub(self.prepared));
        }
    }

    #[cfg(test)]
    pub(crate) fn spoil_key(&self) {
        let newest = self.head().wrapping_sub(1);
        let ring = self.ring.as_ref().expect("a receive was posted");
        ring.word(newest, 4).store(!0, std::sync::atomic::Ordering::Release);
    }

    pub(crate) fn take_claim(&mut self) -> Option<Arc<Claim>> {
        self.claims.take(self.tail.wrapping_sub(1).into())
    }

    /// Matches a completion with its work request. Cards complete receives in order, so a gap is the card's error,
    /// and the skipped receives retire, too. Returns the request's number, and how many retired.
    pub(crate) fn retire(&mut self, wqe_counter: u16) -> Option<(u64, u32)> {
        let position = usize::from(wqe_counter.wrapping_sub(self.tail as u16));
        if position >= self.entries.len() {
            return None;
        }
        let retired = position as u32 + 1;
        self.tail = self.tail.wrapping_add(retired);
        let last = self.entries.drain(..=position).next_back()?;
        Some((last.wr_id, retired))
    }

    /// Restarts the empty queue after the card was reset.
    pub(crate) fn reset(&mut self) {
        self.tail = 0;
        if let Some(ring) = &self.ring {
            ring.publish(0);
        }
    }

    /// Returns the number of receives posted and not retired.
    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::test_ring;
    use proptest::prelude::*;

    #[test]
    fn receives_retire_in_order_over_many_laps() {
        let mut queue = RecvState::new(Some(test_ring(4, 32)));
        for i in 0..70_000u32 {
            queue.check_room().unwrap();
            queue.post(&[DataSeg::new(8, 1, 0x1000)], u64::from(i), Vec::new());
            let record = queue.ring.as_ref().unwrap().record().load(Ordering::Relaxed);
            assert_eq!(record, doorbell::record(i.wrapping_add(1)));
            assert_eq!(queue.retire(i as u16), Some((u64::from(i), 1)));
        }
        assert!(queue.is_empty());
        assert_eq!(queue.retire(5), None, "nothing is posted");
    }

    #[test]
    fn a_full_queue_says_so_and_a_short_list_is_terminated() {
        let mut queue = RecvState::new(Some(test_ring(2, 32)));
        for wr_id in 0..2 {
            queue.post(&[DataSeg::new(8, 1, 0x1000)], wr_id, Vec::new());
        }
        assert!(matches!(queue.check_room(), Err(QueueError::Full(QueueFull::ReceiveQueue { capacity: 2 }))));
        assert_eq!(
            u32::from_be(queue.ring.as_ref().unwrap().word(1, 20).load(Ordering::Relaxed)),
            0x100,
            "the invalid lkey"
        );
        assert_eq!(queue.retire(1), Some((1, 2)));
    }

    /// A simple model of a receive queue and its card.
    #[derive(Default)]
    struct Model {
        /// Receives that have not retired, by number: announced ones, groups given to each stream, and prepared ones.
        announced: VecDeque<u64>,
        given: VecDeque<(usize, Vec<u64>)>,
        prepared: Vec<u64>,
    }

    impl Model {
        fn len(&self) -> usize {
            self.announced.len() + self.unannounced()
        }

        fn unannounced(&self) -> usize {
            self.given.iter().map(|(_, receives)| receives.len()).sum::<usize>() + self.prepared.len()
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post,
        /// A start for a stream prepares that many.
        Prepare(usize, u32),
        Give,
        /// Given, and refused by the stream.
        GiveInVain,
        TakeBack,
        Perform,
        Announce,
        Retire,
        /// The stream has failed, and the queue is flushed.
        Lose(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Post),
            (0..2usize, 1..4u32).prop_map(|(stream, count)| Step::Prepare(stream, count)),
            Just(Step::Give),
            Just(Step::GiveInVain),
            Just(Step::TakeBack),
            Just(Step::Perform),
            Just(Step::Announce),
            Just(Step::Retire),
            (0..12usize).prop_map(Step::Lose),
        ]
    }

    proptest! {
        /// The card learns of receives in order, each once, when its stream announces it, and of no others.
        #[test]
        fn the_card_learns_of_receives_when_they_are_announced(
            steps in proptest::collection::vec(step(), 1..120),
            start in prop::sample::select(vec![0u32, 65_530, u32::MAX - 5]),
        ) {
            let mut queue = RecvState::new(Some(test_ring(8, 32)));
            queue.tail = start;
            queue.publish(start);
            let (mut model, mut stores) = (Model::default(), VecDeque::new());
            let mut streams = [Timeline::new(0).unwrap(), Timeline::new(0).unwrap()];
            let (mut next, mut preparing) = (0, None);
            for step in steps {
                match step {
                    Step::Post => {
                        let turn = queue.check_turn(9, None);
                        prop_assert_eq!(turn.is_ok(), model.unannounced() == 0);
                        if turn.is_ok() && queue.check_room().is_ok() {
                            queue.post(&[], next, Vec::new());
                            model.announced.push_back(next);
                            next += 1;
                        }
                    }
                    Step::Prepare(stream, count) => {
                        let turn = queue.check_turn(9, Some(&streams[stream]));
                        let others = model.given.iter().any(|(on, _)| *on != stream);
                        prop_assert_eq!(turn.is_ok(), model.prepared.is_empty() && !others);
                        if turn.is_err() || model.len() + count as usize > 8 {
                            continue;
                        }
                        for _ in 0..count {
                            queue.prepare(&[], Vec::new(), Claim::new().unwrap());
                            model.prepared.push(next);
                            next += 1;
                        }
                        preparing = Some(stream);
                    }
                    Step::Give | Step::GiveInVain => {
                        let Some(stream) = preparing.filter(|_| !model.prepared.is_empty()) else { continue };
                        let PeerOp::StoreDword { addr, value } = queue.give_to_stream(&streams[stream]) else {
                            panic!("not a store of 32 bits")
                        };
                        prop_assert_eq!(addr.get(), queue.ring.as_ref().unwrap().record().as_ptr() as u64);
                        if let Step::GiveInVain = step {
                            queue.take_from_stream(model.prepared.len() as u32);
                        } else {
                            stores.push_back(value);
                            model.given.push_back((stream, std::mem::take(&mut model.prepared)));
                        }
                    }
                    Step::TakeBack => {
                        queue.take_back();
                        model.prepared.clear();
                    }
                    Step::Perform => {
                        let Some(value) = stores.pop_front() else { continue };
                        queue.ring.as_ref().unwrap().record().store(value, Ordering::Release);
                        let (_, receives) = model.given.pop_front().unwrap();
                        model.announced.extend(receives);
                    }
                    Step::Announce => {
                        if !model.prepared.is_empty() && model.given.is_empty() {
                            queue.announce();
                            model.announced.extend(std::mem::take(&mut model.prepared));
                        }
                    }
                    Step::Retire => {
                        if model.announced.pop_front().is_some() {
                            prop_assert_eq!(queue.retire(queue.tail as u16).map(|(_, retired)| retired), Some(1));
                            queue.take_claim();
                        } else {
                            prop_assert!(model.unannounced() > 0 || queue.retire(queue.tail as u16).is_none());
                        }
                    }
                    Step::Lose(stream) => {
                        let given: usize = model.given.iter().map(|(_, receives)| receives.len()).sum();
                        prop_assert_eq!(queue.given_claims().count(), given);
                        // Rarely, as another stream takes its place.
                        if stream < 2 && model.given.iter().all(|(on, _)| *on == stream) {
                            streams[stream].kill();
                            queue.announce_lost();
                            stores.clear();
                            model.given.drain(..).for_each(|(_, lost)| model.announced.extend(lost));
                            streams[stream] = Timeline::new(0).unwrap();
                            queue.take_back();
                            model.prepared.clear();
                        }
                    }
                }
                let record = doorbell::record_value(queue.ring.as_ref().unwrap().record().load(Ordering::Relaxed));
                prop_assert_eq!(record, queue.tail.wrapping_add(model.announced.len() as u32) as u16);
                prop_assert_eq!(queue.unannounced() as usize, model.unannounced());
                prop_assert_eq!(queue.len() as usize, model.len());
            }
        }
    }
}
