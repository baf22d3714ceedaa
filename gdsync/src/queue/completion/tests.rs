use super::*;
use crate::queue::error::OrderError;
use crate::queue::test_ring;
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::wqe::Opcode;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const ENTRIES: u32 = 4;

fn queue() -> CompletionState {
    CompletionState::new(test_ring(ENTRIES, CQE_SIZE))
}

/// Writes entry `index` as the card does, with the owner bit of its lap.
fn card_writes(state: &mut CompletionState, index: u32) {
    let owner = (index / ENTRIES) % 2 == 1;
    let cqe = Cqe64::requester(Opcode::Send, 7, index as u16, 0).with_owner(owner);
    state.ring.write(index, cqe.as_bytes());
}

/// Returns whether the ring's content satisfies a stream's wait now.
fn satisfied(op: PeerOp, state: &CompletionState, index: u32) -> bool {
    let word = state.ring.word(index, LAST_DWORD).load(Ordering::Relaxed);
    match op {
        PeerOp::PollAnd { value, .. } => word & value != 0,
        PeerOp::PollNor { value, .. } => !(word | value) != 0,
        other => panic!("{other:?} is no wait"),
    }
}

#[test]
fn a_wait_is_satisfied_by_its_own_lap_only() {
    let mut state = queue();
    for expected in 0..6 * ENTRIES {
        state.reserve(true).unwrap();
        let index = state.prepare_wait().unwrap();
        assert_eq!(index, expected);
        let wait = state.wait_op(index);
        assert!(!satisfied(wait, &state, index), "entry {index} before it is written");
        assert!(state.peek().is_none());
        card_writes(&mut state, index);
        assert!(satisfied(wait, &state, index), "entry {index} after it is written");
        let timeline = Timeline::new(0).unwrap();
        state.post_wait(index, &timeline, TimelinePoint(1));
        assert_eq!(state.peek().unwrap().index, index);
        state.advance();
        assert_eq!(
            doorbell::ci_value(state.ring.record().load(Ordering::Relaxed)),
            index,
            "the stream has to see it"
        );
        timeline.declare_passed(TimelinePoint(1));
        state.unreserve(true);
        state.recycle();
        assert_eq!(doorbell::ci_value(state.ring.record().load(Ordering::Relaxed)), index + 1);
    }
}

#[test]
fn an_error_entry_satisfies_the_wait_too() {
    let mut state = queue();
    state.reserve(true).unwrap();
    let index = state.prepare_wait().unwrap();
    let wait = state.wait_op(index);
    let cqe = Cqe64::error(CqeOpcode::RequesterError, 8, 7, 0, Syndrome::RemoteAccess, 0);
    state.ring.write(0, cqe.as_bytes());
    assert!(satisfied(wait, &state, 0));
}

#[derive(Clone, Debug)]
enum Action {
    Reserve,
    CardWrites,
    PrepareWait,
    PostWait(prop::sample::Index),
    CancelWait(prop::sample::Index),
    StreamPasses,
    Poll,
    /// The queue pair has failed; the card was rung for some of the unwritten entries.
    Release(prop::sample::Index),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => Just(Action::Reserve),
        3 => Just(Action::CardWrites),
        2 => Just(Action::PrepareWait),
        2 => any::<prop::sample::Index>().prop_map(Action::PostWait),
        1 => any::<prop::sample::Index>().prop_map(Action::CancelWait),
        2 => Just(Action::StreamPasses),
        3 => Just(Action::Poll),
        1 => any::<prop::sample::Index>().prop_map(Action::Release),
    ]
}

proptest! {
    /// The card never gets an entry that a wait still needs, never overruns, and every completion is polled once,
    /// whatever waits were ended before it came.
    #[test]
    fn entries_are_recycled_only_when_everybody_has_seen_them(actions in proptest::collection::vec(action(), 1..300)) {
        let (mut state, timeline) = (queue(), Timeline::new(0).unwrap());
        let (mut outstanding, mut written, mut polled) = (0u32, 0u32, 0u32);
        let mut prepared: Vec<u32> = Vec::new();
        let mut posted: VecDeque<(u32, TimelinePoint)> = VecDeque::new();
        let mut points = 0;
        // Streams pass waits for entries before this one, written or not.
        let mut released = 0;
        for action in actions {
            match action {
                Action::Reserve => outstanding += u32::from(state.reserve(true).is_ok()),
                Action::CardWrites if written < polled + outstanding => {
                    let consumed = doorbell::ci_value(state.ring.record().load(Ordering::Relaxed));
                    prop_assert!(written - consumed < ENTRIES, "the ring would overrun");
                    card_writes(&mut state, written);
                    written += 1;
                }
                Action::PrepareWait => {
                    if let Ok(index) = state.prepare_wait() {
                        prop_assert!(index >= polled && index < polled + outstanding && !prepared.contains(&index));
                        prepared.push(index);
                    }
                }
                Action::PostWait(which) if !prepared.is_empty() => {
                    let index = prepared.swap_remove(which.index(prepared.len()));
                    points += 1;
                    state.post_wait(index, &timeline, TimelinePoint(points));
                    posted.push_back((index, TimelinePoint(points)));
                }
                Action::CancelWait(which) if !prepared.is_empty() => {
                    let index = prepared.swap_remove(which.index(prepared.len()));
                    state.cancel_wait(index);
                }
                // In stream order, if the entry is written or the wait was ended.
                Action::StreamPasses
                    if posted.front().is_some_and(|(index, _)| satisfied(state.wait_op(*index), &state, *index)) =>
                {
                    let (index, point) = posted.pop_front().unwrap();
                    prop_assert!(index < written.max(released), "the stream passed entry {} too early", index);
                    timeline.declare_passed(point);
                }
                Action::Release(which) => {
                    let unwritten = polled + outstanding - written;
                    let rung = which.index(unwritten as usize + 1) as u32;
                    state.end_waits(&[(7, written - polled + rung)], unwritten - rung, &[]);
                    if rung == 0 {
                        released = released.max(written + unwritten);
                        for (index, _) in &posted {
                            prop_assert!(state.has_come(*index), "entry {} is still waited for", index);
                        }
                    }
                }
                Action::Poll => match state.peek() {
                    Some(raw) => {
                        prop_assert_eq!((raw.index, raw.cqe.wqe_counter()), (polled, polled as u16));
                        state.advance();
                        state.unreserve(true);
                        (polled, outstanding) = (polled + 1, outstanding - 1);
                    }
                    None => prop_assert_eq!(polled, written),
                },
                _ => {}
            }
            let missed = posted.iter().find(|(index, _)| {
                *index < written && !satisfied(state.wait_op(*index), &state, *index)
            });
            prop_assert!(missed.is_none(), "the stream would miss entry {:?}", missed);
            let consumed = doorbell::ci_value(state.ring.record().load(Ordering::Relaxed));
            prop_assert!(consumed <= polled);
            let needed = prepared.iter().chain(posted.iter().map(|(index, _)| index));
            prop_assert!(needed.min().is_none_or(|oldest| consumed <= *oldest), "an entry was given back too early");
        }
    }
}

#[test]
fn entries_of_a_queue_pair_that_is_gone_keep_their_places() {
    let mut state = queue();
    let write = |state: &mut CompletionState, index: u32, qpn: u32| {
        let cqe = Cqe64::requester(Opcode::Send, qpn, index as u16, 0).with_owner((index / ENTRIES) % 2 == 1);
        state.ring.write(index, cqe.as_bytes());
    };
    // Two of queue pair 7 and one of queue pair 8 are written; one more of 7 is outstanding.
    (0..4).for_each(|_| state.reserve(true).unwrap());
    for (index, qpn) in [(0, 7), (1, 8), (2, 7)] {
        write(&mut state, index, qpn);
    }
    (0..3).for_each(|_| state.unreserve(true));
    state.forget(7);
    state.forget(7);
    assert_eq!((state.reserved, state.expected), (3, 3), "what is written is still to come");
    assert_eq!(state.prepare_wait().unwrap(), 0);
    state.cancel_wait(0);
    assert!(state.reserve(true).is_ok() && state.reserve(true).is_err(), "the ring has four entries");
    state.unreserve(true);
    for (index, is_left_behind) in [(0, true), (1, false), (2, true)] {
        assert_eq!(state.peek().unwrap().index, index);
        state.advance();
        assert_eq!(state.take_orphaned(index), is_left_behind);
        assert!(!state.take_orphaned(index), "only once");
    }
    state.unreserve(true);
    assert_eq!((state.reserved, state.expected), (0, 0));
    assert!(matches!(
        state.prepare_wait(),
        Err(QueueError::Order(OrderError::NothingToWaitFor { waits: 0 }))
    ));
}

#[test]
fn an_ended_wait_is_no_completion_and_gives_way_to_one() {
    let mut state = queue();
    let timeline = Timeline::new(0).unwrap();
    for index in 0..3 * ENTRIES {
        state.reserve(true).unwrap();
        assert_eq!(state.prepare_wait().unwrap(), index);
        let point = TimelinePoint(u64::from(index) + 1);
        state.post_wait(index, &timeline, point);
        // Rung work is in flight: its completion comes first.
        state.end_waits(&[(7, 1)], 1, &[]);
        assert!(!state.has_come(index) && !state.is_wait_ended(index));
        state.end_waits(&[(7, 0)], 1, &[]);
        assert!(state.is_wait_ended(index) && satisfied(state.wait_op(index), &state, index));
        assert!(state.peek().is_none() && state.read(index).is_none());
        timeline.declare_passed(point);
        card_writes(&mut state, index);
        state.end_waits(&[(7, 1)], 1, &[]);
        assert!(!state.is_wait_ended(index));
        assert_eq!(state.peek().unwrap().cqe.wqe_counter(), index as u16);
        state.advance();
        state.unreserve(true);
    }
}

#[test]
fn only_waits_for_sends_that_are_not_posted_run_ahead_of_them() {
    let mut state = queue();
    let timelines = [(); 2].map(|()| Timeline::new(0).unwrap());
    (0..4).for_each(|_| state.reserve(true).unwrap());
    (0..4).for_each(|index| assert_eq!(state.prepare_wait().unwrap(), index));
    // The last two of four sends are not posted.
    for index in 0..4 {
        assert_eq!(state.is_of_unposted(index, 2), index >= 2);
        assert!(!state.is_of_unposted(index, 0) && state.is_of_unposted(index, 4));
    }
    state.post_wait(1, &timelines[0], TimelinePoint(1));
    state.post_wait(3, &timelines[1], TimelinePoint(1));
    let ahead = |state: &CompletionState, unposted| {
        [Some(&timelines[0]), Some(&timelines[1]), None]
            .map(|timeline| state.awaited_of_unposted(unposted, timeline))
    };
    assert_eq!(ahead(&state, 2), [None, Some(3), Some(3)]);
    assert_eq!(ahead(&state, 3), [Some(1), Some(3), Some(1)]);
    assert_eq!(ahead(&state, 0), [None; 3]);
    // After polling one, the same sends are not posted.
    card_writes(&mut state, 0);
    state.advance();
    state.unreserve(true);
    assert_eq!(ahead(&state, 2), [None, Some(3), Some(3)]);
    timelines[1].declare_passed(TimelinePoint(1));
    assert_eq!(ahead(&state, 2), [None; 3]);
}
