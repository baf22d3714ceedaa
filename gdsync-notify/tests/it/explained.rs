//! What waits for notifications that do not come say about their cause.

use crate::notify::in_one_hand;
use crate::ranks::{LONG, config};
use gdsync::memop::{Condition, Word32};
use gdsync::{Batch, PinnedMemory, SoftStream, Stream};
use gdsync_notify::{ConnectionKind, Operation, WaitNotification};
use std::time::Duration;

#[test]
fn the_rank_that_has_not_set_a_notification_is_named_with_its_process() {
    let teams = in_one_hand(2, &config().connections(ConnectionKind::Each), 8, 8);
    let (team, segment) = &teams[0];
    segment.expect_from(0..4, 1).unwrap();
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    stream.post(Batch::new().wait_notification(&segment.notification(3).unwrap())).unwrap();
    assert!(!stream.synchronize_timeout(Duration::from_millis(30)).unwrap());
    let pair = team.queue(0).unwrap().queue_pair(1).unwrap().number();
    let peer = teams[1].0.queue(0).unwrap().queue_pair(0).unwrap().number();
    let of_peer = format!(
        "queue pair {pair:#x}, peer queue pair {peer:#x} (pid {}), which has no send outstanding",
        std::process::id()
    );
    let said = stream.explain_wait().unwrap();
    assert!(said.starts_with("wait until notification 3 of rank 1 and 0xffffffff, for "), "{said}");
    assert!(said.ends_with(&format!("s: rank 1 has not set notification 3; {of_peer}")), "{said}");
    // By the CPU.
    assert_eq!(segment.notify_waitsome(0..4, Duration::ZERO).unwrap(), None);
    assert_eq!(
        segment.explain_wait(0..4).unwrap().unwrap(),
        format!("rank 1 has not set one of the notifications 0 to 3; {of_peer}")
    );
    let said = segment.explain_wait(6..7).unwrap().unwrap();
    assert!(said.starts_with("no rank has set notification 6; ") && said.contains(&of_peer), "{said}");
    assert!(segment.explain_wait(7..9).is_err());

    teams[1].0.queue(0).unwrap().notify(0, segment, 3, 1).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap());
    assert_eq!(stream.explain_wait(), None);
}

#[test]
fn the_ranks_whose_requests_hold_up_a_flush_are_named() {
    for kind in [ConnectionKind::Each, ConnectionKind::Dynamic] {
        let teams = in_one_hand(3, &config().connections(kind), 8, 1);
        let (team, segment) = &teams[0];
        let queue = team.queue(0).unwrap();
        assert_eq!(queue.explain_flush(), None);
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        let word = Word32::new(&PinnedMemory::allocate(4).unwrap(), 0).unwrap();
        stream.post(Batch::new().wait_value32(&word, Condition::Eq, 1)).unwrap();
        for rank in [1, 2] {
            let sends = queue.prepare(Operation::Notify { rank, to: segment, id: 0, value: 1 }).unwrap();
            stream.post(sends.fold(Batch::new(), Batch::send)).unwrap();
        }
        let said = queue.explain_flush().unwrap();
        assert!(said.starts_with("requests to rank 1, 2 have not completed; queue pair 0x"), "{said}");
        if let Ok(pair) = queue.queue_pair(1) {
            assert!(said.contains(&format!("queue pair {:#x}", pair.number())), "{said}");
        }
        word.store(1);
        queue.flush(LONG).unwrap();
        assert_eq!(queue.explain_flush(), None);
    }
}

#[test]
fn a_rank_whose_connections_have_failed_is_said_to_be_cut_off() {
    let teams = in_one_hand(2, &config().connections(ConnectionKind::Each), 8, 1);
    let (team, segment) = &teams[0];
    team.queue(0).unwrap().queue_pair(1).unwrap().abort().unwrap();
    assert!(segment.notify_waitsome(0..1, Duration::ZERO).unwrap().is_none());
    let deadline = std::time::Instant::now() + LONG;
    loop {
        let said = segment.explain_wait(0..1).unwrap().unwrap();
        if said.starts_with("no rank has set notification 0, and all connections with rank 1 have failed: ") {
            assert!(said.contains("is in the error state"), "{said}");
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{said}");
    }
}
