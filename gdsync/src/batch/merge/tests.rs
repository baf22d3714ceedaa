use super::*;
use Descriptor::{Barrier, Bytes, Wait32, WaitCq};
use Fate::{Covered, Kept};
use LastPoint::{AtEnd, BeforeWrite, Earlier};

type Key = Descriptor<SendKey, Option<WaitKey>, (), Option<usize>>;

impl<K: Copy> Keyed<K> for K {
    fn key(&self, _caps: &MemOpCaps) -> K {
        *self
    }
}

const WAIT_CHECKED: Key = WaitCq(None);
const WAIT_WORD: Key = Wait32((), crate::memop::Condition::Eq, 0);
const COPY: Key = Bytes(None);

const fn wait(queue: u64, index: u32) -> Key {
    WaitCq(Some(WaitKey { queue, index, device: 0 }))
}

const fn ring(queue_pair: u64) -> Key {
    Descriptor::Send(SendKey::Doorbell(queue_pair))
}

const fn release(trigger: u64) -> Key {
    Descriptor::Send(SendKey::Trigger(trigger))
}

const fn bytes(words: usize) -> Key {
    Bytes(Some(words))
}

#[test]
fn receives_and_tickets_stand_between_sends_and_not_between_waits_as_writes_do() {
    type Key = Descriptor<SendKey, Option<WaitKey>, (), Option<usize>, (), ()>;
    let send = || Key::Send(SendKey::Doorbell(1));
    let wait = |index| Key::WaitCq(Some(WaitKey { queue: 1, index, device: 0 }));
    let list = |between: Key| [send(), between, send(), wait(0), between, wait(1)];
    let mut planner = Planner::default();
    for fences in [0, 1] {
        let caps = MemOpCaps { writes_are_fenced: fences == 0, ..MemOpCaps::FULL };
        let writes = planner.plan(&list(Key::Write32((), 0)), &caps, true);
        let fates = planner.fates.clone();
        for own in [Key::Receives(()), Key::Ticket(())] {
            let announced = planner.plan(&list(own), &caps, true);
            assert_eq!(announced.operations, writes.operations + 2 * fences);
            assert!(planner.fates == fates && fates == [Covered, Kept, Kept, Kept, Kept, Kept]);
        }
    }
}

fn plan(items: &[Key], caps: &MemOpCaps, merged: bool) -> (Chunk, Vec<Fate>) {
    let mut planner = Planner::default();
    let chunk = planner.plan(items, caps, merged);
    (chunk, planner.fates.to_vec())
}

fn fates(items: &[Key]) -> Vec<Fate> {
    plan(items, &MemOpCaps::FULL, true).1
}

#[test]
fn the_last_send_of_a_trigger_releases_all() {
    let (chunk, fates) =
        plan(&[release(8), bytes(1), release(8), ring(1), release(9)], &MemOpCaps::FULL, true);
    assert_eq!(fates, [Covered, Kept, Kept, Kept, Kept]);
    // A write, a word, two for the doorbell, a word.
    assert_eq!(chunk.operations, 1 + 1 + 2 + 1);
    let unfenced = MemOpCaps { writes_are_fenced: false, ..MemOpCaps::FULL };
    assert_eq!(plan(&[release(1), release(1)], &unfenced, true).0.operations, 2);
    assert_eq!(plan(&[release(1), release(1)], &MemOpCaps::FULL, false).0.operations, 2);
}

#[test]
fn runs_for_many_queues_are_collected() {
    use Fate::Collected;
    let plan = |from: u32, items: &[Key]| {
        let mut planner = Planner { collecting: Some(Collecting { device: 0, from }), ..Planner::default() };
        let chunk = planner.plan(items, &MemOpCaps::FULL, true);
        (chunk.operations, planner.fates.to_vec())
    };
    let other = WaitCq(Some(WaitKey { queue: 9, index: 0, device: 1 }));
    let run = [wait(1, 0), other, wait(2, 0), wait(1, 1), WAIT_CHECKED, wait(3, 0), wait(3, 1)];
    // The point, the other device's queue, the status word, the arrival word.
    let expected = [Covered, Kept, Collected, Collected, Kept, Covered, Collected];
    assert_eq!(plan(3, &run), (1 + 3, expected.to_vec()));
    let expected = [Covered, Kept, Kept, Kept, Kept, Covered, Kept];
    assert_eq!(plan(4, &run), (1 + 5, expected.to_vec()));
    // Each run counts separately.
    let runs = [wait(1, 0), wait(2, 0), ring(1), wait(1, 1), wait(2, 1), wait(3, 0)];
    let expected = [Kept, Kept, Kept, Collected, Collected, Collected];
    assert_eq!(plan(3, &runs), (2 + 1 + 2 + 1 + 1, expected.to_vec()));
    // A collected wait covers one for an earlier entry.
    let run = [wait(1, 5), wait(2, 0), wait(1, 3)];
    assert_eq!(plan(2, &run), (2, vec![Collected, Collected, Covered]));
}

#[test]
fn the_last_send_of_a_queue_pair_rings_for_all() {
    assert_eq!(fates(&[ring(1), ring(1), ring(1)]), [Covered, Covered, Kept]);
    assert_eq!(fates(&[ring(1), ring(2), ring(1), ring(3)]), [Covered, Kept, Kept, Kept]);
    assert_eq!(fates(&[ring(1), bytes(2), ring(1)]), [Covered, Kept, Kept]);
}

#[test]
fn no_send_is_moved_across_a_wait_or_a_fence() {
    for between in [wait(9, 0), WAIT_CHECKED, WAIT_WORD, Barrier] {
        assert_eq!(fates(&[ring(1), between, ring(1)]), [Kept, Kept, Kept], "{between:?}");
    }
}

#[test]
fn the_latest_completion_of_a_queue_is_waited_for() {
    assert_eq!(fates(&[wait(1, 4), wait(2, 0), wait(1, 5)]), [Covered, Kept, Kept]);
    assert_eq!(fates(&[wait(1, 5), wait(1, 3), wait(1, 4)]), [Kept, Covered, Covered]);
    assert_eq!(fates(&[wait(1, u32::MAX), wait(1, 0)]), [Covered, Kept], "indices are cyclic");
    assert_eq!(fates(&[wait(1, 4), WAIT_CHECKED, WAIT_CHECKED, wait(1, 7)]), [Covered, Kept, Kept, Kept]);
}

#[test]
fn anything_else_ends_a_run_of_waits() {
    for between in [ring(1), WAIT_WORD, bytes(1), Barrier] {
        assert_eq!(fates(&[wait(1, 0), between, wait(1, 1)]), [Kept, Kept, Kept], "{between:?}");
    }
}

#[test]
fn operations_and_points_are_counted() {
    let all = |count| vec![Kept; count];
    let cases: [(&[Key], _, _); 8] = [
        (&[ring(1), ring(1)], (2, 0, Earlier), (4, 0, Earlier)),
        // Two doorbells, two waits and one point.
        (&[ring(1), ring(2), wait(1, 0), wait(2, 0)], (7, 1, AtEnd), (8, 2, AtEnd)),
        // The point of the run is the batch's.
        (&[wait(1, 0), wait(1, 1), ring(1)], (4, 1, AtEnd), (6, 2, Earlier)),
        // It is before the program's last write.
        (&[wait(1, 0), ring(1), bytes(1)], (5, 1, BeforeWrite), (5, 1, Earlier)),
        (&[wait(1, 0), bytes(1), ring(1)], (5, 1, AtEnd), (5, 1, Earlier)),
        // There is one before the wait for a word.
        (&[wait(1, 0), ring(1), WAIT_WORD], (5, 1, Earlier), (5, 1, Earlier)),
        (&[wait(1, 0), Barrier, wait(1, 1)], (5, 2, AtEnd), (5, 2, AtEnd)),
        (&[bytes(3), WAIT_WORD], (4, 0, Earlier), (4, 0, Earlier)),
    ];
    for (items, merged, unmerged) in cases {
        let figures = |chunk: Chunk| (chunk.operations, chunk.points, chunk.last_point);
        assert_eq!(figures(plan(items, &MemOpCaps::FULL, true).0), merged, "{items:?}");
        let (chunk, fates) = plan(items, &MemOpCaps::FULL, false);
        assert_eq!((figures(chunk), fates), (unmerged, all(items.len())), "{items:?}");
    }
}

#[test]
fn what_does_not_fit_begins_the_next_submission() {
    let caps = MemOpCaps { max_ops: 5, ..MemOpCaps::FULL };
    // Two doorbells and the closing point.
    let (chunk, fates) = plan(&[ring(1), ring(2), ring(1), ring(3), ring(1)], &caps, true);
    assert_eq!((chunk.count, chunk.operations), (3, 4));
    assert_eq!(fates, [Covered, Kept, Kept], "the send of the next submission covers none of this one");
    // A covered wait always fits.
    let run = [wait(1, 0), wait(2, 0), wait(3, 0), wait(4, 0), wait(1, 1), wait(5, 0)];
    let (chunk, fates) = plan(&run, &caps, true);
    assert_eq!((chunk.count, chunk.operations, chunk.last_point), (5, 5, AtEnd));
    assert_eq!(fates, [Covered, Kept, Kept, Kept, Kept]);
    let (chunk, _) = plan(&run, &caps, false);
    assert_eq!((chunk.count, chunk.operations), (2, 4));
}

#[test]
fn a_copy_is_by_itself_and_one_descriptor_always_goes() {
    let caps = MemOpCaps { max_ops: 1, ..MemOpCaps::FULL };
    for merged in [true, false] {
        assert_eq!(plan(&[COPY, ring(1)], &MemOpCaps::FULL, merged).0.count, 1);
        assert_eq!(plan(&[ring(1), COPY], &MemOpCaps::FULL, merged).0.count, 1);
        assert_eq!(plan(&[ring(1), ring(2)], &caps, merged).0.count, 1);
    }
}

#[test]
fn backends_that_need_more_operations_have_them_counted() {
    let caps = MemOpCaps { writes_are_fenced: false, flush_after_wait: true, ..MemOpCaps::FULL };
    let items = [ring(1), wait(1, 0), wait(2, 0), WAIT_WORD];
    // Four; two waits, their flush and their point, which has a barrier; a wait and its flush.
    assert_eq!(plan(&items, &caps, true).0.operations, 4 + 2 + 1 + 2 + 2);
    assert_eq!(plan(&items, &caps, false).0.operations, 4 + 3 + 3 + 2);
}
