use super::*;
use Fate::{Covered, Kept};
use Item::{Copy, Fence, Send, WaitChecked, WaitCq, WaitWord, Writes};

fn plan(items: &[Item], caps: &MemOpCaps, merged: bool) -> (Chunk, Vec<Fate>) {
    let mut planner = Planner::default();
    let chunk = planner.plan(items.iter().copied(), caps, merged);
    (chunk, planner.fates().to_vec())
}

fn fates(items: &[Item]) -> Vec<Fate> {
    plan(items, &MemOpCaps::FULL, true).1
}

#[test]
fn the_last_send_of_a_queue_pair_rings_for_all() {
    assert_eq!(fates(&[Send(1), Send(1), Send(1)]), [Covered, Covered, Kept]);
    assert_eq!(fates(&[Send(1), Send(2), Send(1), Send(3)]), [Covered, Kept, Kept, Kept]);
    assert_eq!(fates(&[Send(1), Writes(2), Send(1)]), [Covered, Kept, Kept]);
}

#[test]
fn no_send_is_moved_across_a_wait_or_a_fence() {
    for between in [WaitCq(9, 0), WaitChecked, WaitWord, Fence] {
        assert_eq!(fates(&[Send(1), between, Send(1)]), [Kept, Kept, Kept], "{between:?}");
    }
}

#[test]
fn the_latest_completion_of_a_queue_is_waited_for() {
    assert_eq!(fates(&[WaitCq(1, 4), WaitCq(2, 0), WaitCq(1, 5)]), [Covered, Kept, Kept]);
    assert_eq!(fates(&[WaitCq(1, 5), WaitCq(1, 3), WaitCq(1, 4)]), [Kept, Covered, Covered]);
    assert_eq!(fates(&[WaitCq(1, u32::MAX), WaitCq(1, 0)]), [Covered, Kept], "indices are cyclic");
    assert_eq!(fates(&[WaitCq(1, 4), WaitChecked, WaitChecked, WaitCq(1, 7)]), [Covered, Kept, Kept, Kept]);
}

#[test]
fn anything_else_ends_a_run_of_waits() {
    for between in [Send(1), WaitWord, Writes(1), Fence] {
        assert_eq!(fates(&[WaitCq(1, 0), between, WaitCq(1, 1)]), [Kept, Kept, Kept], "{between:?}");
    }
}

#[test]
fn operations_and_points_are_counted() {
    let all = |count| vec![Kept; count];
    let cases: [(&[Item], _, _); 6] = [
        (&[Send(1), Send(1)], (2, 0, false), (4, 0, false)),
        // Two doorbells; two waits and one point.
        (&[Send(1), Send(2), WaitCq(1, 0), WaitCq(2, 0)], (7, 1, true), (8, 2, true)),
        // The point of the run is the batch's.
        (&[WaitCq(1, 0), WaitCq(1, 1), Send(1)], (4, 1, true), (6, 2, false)),
        // Before the wait for a word there is one.
        (&[WaitCq(1, 0), Send(1), WaitWord], (5, 1, false), (5, 1, false)),
        (&[WaitCq(1, 0), Fence, WaitCq(1, 1)], (5, 2, true), (5, 2, true)),
        (&[Writes(3), WaitWord], (4, 0, false), (4, 0, false)),
    ];
    for (items, merged, plain) in cases {
        let figures = |chunk: Chunk| (chunk.operations, chunk.points, chunk.closed);
        assert_eq!(figures(plan(items, &MemOpCaps::FULL, true).0), merged, "{items:?}");
        let (chunk, fates) = plan(items, &MemOpCaps::FULL, false);
        assert_eq!((figures(chunk), fates), (plain, all(items.len())), "{items:?}");
    }
}

#[test]
fn what_does_not_fit_begins_the_next_submission() {
    let caps = MemOpCaps { max_ops: 5, ..MemOpCaps::FULL };
    // Two doorbells and the closing point.
    let (chunk, fates) = plan(&[Send(1), Send(2), Send(1), Send(3), Send(1)], &caps, true);
    assert_eq!((chunk.count, chunk.operations), (3, 4));
    assert_eq!(fates, [Covered, Kept, Kept], "the send of the next submission covers none of this one");
    // A wait that is covered always fits.
    let run = [WaitCq(1, 0), WaitCq(2, 0), WaitCq(3, 0), WaitCq(4, 0), WaitCq(1, 1), WaitCq(5, 0)];
    let (chunk, fates) = plan(&run, &caps, true);
    assert_eq!((chunk.count, chunk.operations, chunk.closed), (5, 5, true));
    assert_eq!(fates, [Covered, Kept, Kept, Kept, Kept]);
    let (chunk, _) = plan(&run, &caps, false);
    assert_eq!((chunk.count, chunk.operations), (2, 4));
}

#[test]
fn a_copy_is_by_itself_and_one_descriptor_always_goes() {
    let caps = MemOpCaps { max_ops: 1, ..MemOpCaps::FULL };
    for merged in [true, false] {
        assert_eq!(plan(&[Copy, Send(1)], &MemOpCaps::FULL, merged).0.count, 1);
        assert_eq!(plan(&[Send(1), Copy], &MemOpCaps::FULL, merged).0.count, 1);
        assert_eq!(plan(&[Send(1), Send(2)], &caps, merged).0.count, 1);
    }
}

#[test]
fn backends_that_need_more_operations_have_them_counted() {
    let caps = MemOpCaps { writes_are_fenced: false, flush_after_wait: true, ..MemOpCaps::FULL };
    let items = [Send(1), WaitCq(1, 0), WaitCq(2, 0), WaitWord];
    // Four; two waits, their flush and their point, which has a barrier; a wait and its flush.
    assert_eq!(plan(&items, &caps, true).0.operations, 4 + 2 + 1 + 2 + 2);
    assert_eq!(plan(&items, &caps, false).0.operations, 4 + 3 + 3 + 2);
}
