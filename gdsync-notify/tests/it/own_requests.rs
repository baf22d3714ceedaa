//! Requests of the program on the queue pairs of a team's queue.

use crate::notify::in_one_hand;
use crate::ranks::{LONG, Prepare, config};
use gdsync::queue::FailureCause;
use gdsync::{RemoteMemory, WorkRequest};
use gdsync_notify::{ConnectionKind, NotifyError, Operation, Segment, Team};
use std::time::Duration;

/// Numbers that programs choose: counters, an address, and the ends of those that are left to them. The first is that of the
/// queue's first request if both count from 1.
const NUMBERS: [u64; 8] = [1, 0, 2, 0x7fff_dead_beef, (1 << 52) - 1, (1 << 53) + 1, u64::MAX - 1, u64::MAX];

fn two() -> Vec<(Team, Segment)> {
    in_one_hand(2, &config().connections(ConnectionKind::Each), 8, 1)
}

#[test]
fn requests_of_the_program_do_not_count_as_those_of_the_queue() {
    let teams = two();
    let (queue, segment) = (teams[0].0.queue(0).unwrap(), &teams[0].1);
    let queue_pair = queue.queue_pair(1).unwrap();
    for (number, value) in NUMBERS.into_iter().zip(1..) {
        queue_pair.post_send(WorkRequest::nop().wr_id(number)).unwrap();
        let notify = Operation::Notify { rank: 1, to: segment, id: 0, value };
        let sends = queue.sends(notify).unwrap();
        // Nothing has posted it, whatever the program's request completes as.
        let flushed = queue.flush(Duration::from_millis(20));
        assert!(matches!(flushed, Err(NotifyError::Post { rank: 1, .. })), "{number:#x}: {flushed:?}");
        drop(sends);
        queue.post(notify).unwrap();
        queue.flush(LONG).unwrap();
        assert_eq!(teams[1].1.notify_reset(0).unwrap(), value, "{number:#x}");
    }
}

#[test]
fn a_failed_request_of_the_program_fails_those_of_the_queue() {
    for number in NUMBERS {
        let teams = two();
        let (queue, segment) = (teams[0].0.queue(0).unwrap(), &teams[0].1);
        let nowhere = RemoteMemory { addr: 64, len: 4, rkey: 0xdead_be00 };
        let wrong = WorkRequest::write_inline(&[1; 4], nowhere).wr_id(number);
        queue.queue_pair(1).unwrap().post_send(wrong).unwrap();
        // The queue pair may have failed by now.
        let posted = queue.notify(1, segment, 0, 7);
        for result in [posted.and_then(|()| queue.flush(LONG)), queue.flush(LONG), queue.ping(1, LONG)] {
            assert!(
                matches!(result, Err(NotifyError::Failed { rank: 1, cause: FailureCause::Work(_) })),
                "{number:#x}: {result:?}"
            );
        }
        assert_eq!(teams[1].1.notify_reset(0).unwrap(), 0, "it was behind the failed one");
        queue.flush_rank(0, LONG).unwrap();
    }
}
