//! The order in which bytes reach memory.

use super::*;
use crate::card::DataOrdering;

/// Writes a message, and reads it when its last byte has arrived, or when it has completed.
fn message(bed: &mut Bed, polls_last_byte: bool) -> bool {
    bed.write(0..256, bed.pair.target);
    if polls_last_byte {
        bed.wait("the last byte", |pair| {
            (pair.target.bytes()[255] == pair.source.bytes()[255]).then_some(())
        });
    } else {
        bed.completion();
    }
    bed.has_arrived(0..256)
}

#[test]
fn the_last_byte_of_a_message_says_nothing_of_the_others() {
    luck_ends(LibertyKinds::PIECES, |bed| message(bed, true), |bed| message(bed, false));
}

/// Sends a message, and reads it when its last byte has arrived, or when it has completed.
fn received(bed: &mut Bed, polls_last_byte: bool) -> bool {
    bed.pair.right.post_recv(&[bed.pair.target.data(0..256)]);
    bed.pair.left.post(Opcode::Send, &[bed.pair.source.data(0..256).as_bytes()]);
    if polls_last_byte {
        bed.wait("the last byte", |pair| {
            (pair.target.bytes()[255] == pair.source.bytes()[255]).then_some(())
        });
    } else {
        bed.wait("the receive", |pair| pair.right.cq.poll());
    }
    bed.has_arrived(0..256)
}

#[test]
fn a_receive_is_filled_when_it_has_completed() {
    luck_ends(LibertyKinds::PIECES, |bed| received(bed, true), |bed| received(bed, false));
}

/// Reads the target into the source, and looks at it when its last byte has arrived, or when it has completed.
fn read(bed: &mut Bed, polls_last_byte: bool) -> bool {
    bed.pair.target.bytes().fill(9);
    let (remote, data) = (bed.pair.target.remote(0), bed.pair.source.data(0..256));
    bed.pair.left.post(Opcode::RdmaRead, &[remote.as_bytes(), data.as_bytes()]);
    if polls_last_byte {
        bed.wait("the last byte", |pair| (pair.source.bytes()[255] == 9).then_some(()));
    } else {
        bed.completion();
    }
    bed.has_arrived(0..256)
}

#[test]
fn a_read_is_there_when_it_has_completed() {
    let kinds = LibertyKinds::PIECES | LibertyKinds::COMPLETIONS;
    luck_ends(kinds, |bed| read(bed, true), |bed| read(bed, false));
}

/// Writes data and then a flag to another region. The data is read when the flag has arrived. The correct program sends
/// the flag after the data has completed.
fn flagged(bed: &mut Bed, access: Access, waits: bool) -> bool {
    let pair = &mut bed.pair;
    let data = Region::new(&pair.card, pair.pdn, 512, everything() | access);
    let flag = Region::new(&pair.card, pair.pdn, 512, everything());
    pair.target = data;
    bed.write(0..256, data);
    if waits {
        bed.completion();
    }
    bed.write(256..264, flag);
    bed.wait("the flag", |pair| (flag.bytes()[256..264] == pair.source.bytes()[256..264]).then_some(()));
    bed.has_arrived(0..256)
}

#[test]
fn a_flag_may_pass_data_for_a_region_of_relaxed_ordering() {
    luck_ends(
        LibertyKinds::RELAXED,
        |bed| flagged(bed, Access::RELAXED_ORDERING, false),
        |bed| flagged(bed, Access::RELAXED_ORDERING, true),
    );
}

/// Runs the program of [`flagged`] with ordinary regions on a queue pair whose program has asked for an order.
fn asked(liberties: Option<Liberties>, ordering: DataOrdering, waits: bool) -> bool {
    let mut bed = Bed::with(liberties, 512, QpChange { ordering: Some(ordering), ..QpChange::default() });
    flagged(&mut bed, Access::empty(), waits)
}

#[test]
fn a_flag_may_pass_data_where_the_program_has_asked_for_out_of_order_placement() {
    let usual = |seed| Some(Liberties { seed, kinds: LibertyKinds::USUAL });
    for ordering in [DataOrdering::WritesInAnyOrder, DataOrdering::AnyOrder] {
        assert!(asked(None, ordering, false), "an orderly card");
        assert!((0..SEEDS).any(|seed| !asked(usual(seed), ordering, false)), "{ordering:?}");
        assert!((0..SEEDS).all(|seed| asked(usual(seed), ordering, true)), "{ordering:?}");
    }
}

#[test]
fn a_flag_passes_data_on_a_network_that_routes_adaptively_unless_the_program_forbids_it() {
    let adaptive = |seed| Some(Liberties { seed, kinds: LibertyKinds::UNORDERED });
    luck_ends(
        LibertyKinds::UNORDERED,
        |bed| flagged(bed, Access::empty(), false),
        |bed| flagged(bed, Access::empty(), true),
    );
    assert!((0..SEEDS).all(|seed| asked(adaptive(seed), DataOrdering::InOrder, false)));
    let bed = |seed| Bed::new(adaptive(seed), 512);
    assert!((0..SEEDS).all(|seed| flagged(&mut bed(seed), Access::empty(), true)));
}

#[test]
fn a_flag_never_passes_data_for_an_ordinary_region() {
    for seed in 0..SEEDS {
        let mut bed = Bed::new(Some(Liberties { seed, kinds: LibertyKinds::USUAL }), 512);
        assert!(flagged(&mut bed, Access::empty(), false), "seed {seed}");
    }
}

#[test]
fn reads_atomics_and_receives_order_relaxed_data() {
    for (seed, follower) in (0..SEEDS).flat_map(|seed| (0..3).map(move |follower| (seed, follower))) {
        let mut bed = Bed::new(Some(Liberties { seed, kinds: LibertyKinds::USUAL }), 512);
        let pair = &mut bed.pair;
        let access = everything() | Access::REMOTE_ATOMIC;
        let (counter, copy) = (
            Region::new(&pair.card, pair.pdn, 8, access),
            Region::new(&pair.card, pair.pdn, 512, everything()),
        );
        pair.target = Region::new(&pair.card, pair.pdn, 512, access | Access::RELAXED_ORDERING);
        pair.right.post_recv(&[copy.data(0..8)]);
        bed.write(0..256, bed.pair.target);
        let (left, word) = (&mut bed.pair.left, copy.data(256..264));
        match follower {
            0 => {
                let (remote, place) = (bed.pair.target.remote(0), copy.data(0..256));
                left.post(Opcode::RdmaRead, &[remote.as_bytes(), place.as_bytes()]);
                (0..2).for_each(|_| _ = bed.completion());
                assert_eq!(copy.bytes()[..256], bed.pair.source.bytes()[..256], "seed {seed}");
            }
            1 => {
                let one = gdsync_sys::prm::wqe::AtomicSeg::new(1, 0);
                let remote = counter.remote(0);
                left.post(Opcode::AtomicFa, &[remote.as_bytes(), one.as_bytes(), word.as_bytes()]);
                bed.wait("the atomic", |_| (counter.bytes()[0] != 0).then_some(()));
                assert!(bed.has_arrived(0..256), "seed {seed}");
            }
            _ => {
                left.post(Opcode::Send, &[&inline(&[1])]);
                bed.wait("the receive", |pair| pair.right.cq.poll());
                assert!(bed.has_arrived(0..256), "seed {seed}");
            }
        }
    }
}

#[test]
fn memory_that_is_deregistered_is_not_written_any_more() {
    let mut deferred = 0;
    for seed in 0..SEEDS {
        let mut bed = Bed::new(Some(Liberties { seed, kinds: LibertyKinds::PIECES }), 512);
        bed.write(0..256, bed.pair.target);
        bed.step();
        deferred += usize::from(!bed.has_arrived(0..256));
        bed.pair.card.deregister_memory(bed.pair.target.key).unwrap();
        assert!(bed.has_arrived(0..256), "what was taken is written before");
        bed.pair.target.bytes().fill(0);
        bed.settle();
        assert!(bed.pair.target.bytes().iter().all(|byte| *byte == 0), "seed {seed}");
    }
    assert!(deferred > 0);
}
