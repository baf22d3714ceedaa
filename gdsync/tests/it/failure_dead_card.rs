//! A card that goes silent while its process lives: the view of both sides, and the new device that takes its place.

#![cfg(feature = "software-card")]

use gdsync::queue::{FailureCause, Syndrome};
use gdsync::verbs::provider;
use gdsync::{
    Access, Batch, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig,
    WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, drain, poll, soft, synchronize};
use gdsync_test_support::process::alone;
use std::thread;
use std::time::{Duration, Instant};

struct Side {
    queue_pair: QueuePair,
    region: MemoryRegion,
}

/// A queue pair on one of the two software cards of this process.
fn side(card: &str) -> Side {
    let device = Device::open(provider::software(), Some(card)).unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    Side { queue_pair: QueuePair::new(&pd, QueuePairConfig::default()).unwrap(), region }
}

fn connect(one: &Side, other: &Side) {
    // 4.096 µs * 2^13, eight times: a quarter of a second, in which a living card answers even on a busy machine.
    let options = ConnectOptions::default().timeout(13).retry_count(7);
    for (own, remote) in [(one, other), (other, one)] {
        own.queue_pair.connect(&remote.queue_pair.endpoint().unwrap(), options).unwrap();
    }
}

fn exchange(from: &Side, to: &Side, byte: u8) {
    let stream = soft();
    assert_eq!(from.region.write(0, &[byte; 64]), 64);
    to.queue_pair.post_recv(&[to.region.slice(..).unwrap()], 1).unwrap();
    let slices = [from.region.slice(..).unwrap()];
    let send = from.queue_pair.prepare(WorkRequest::send(&slices)).unwrap();
    let sent = from.queue_pair.send_cq().prepare_wait().unwrap().checked().unwrap();
    let status = sent.status();
    let arrived = to.queue_pair.recv_cq().prepare_wait().unwrap();
    stream.post(Batch::new().send(send).wait_checked(sent).wait(arrived)).unwrap();
    synchronize(&stream);
    assert_eq!(status.get(), Some(Ok(())));
    assert_eq!(poll(&from.queue_pair.send_cq()).status, Ok(()));
    assert_eq!(poll(&to.queue_pair.recv_cq()).status, Ok(()));
    assert_eq!(pair::content(&to.region), [byte; 64]);
}

/// Sends to a side that no longer answers, and returns the result.
fn unanswered(queue_pair: &QueuePair, request: WorkRequest<'_>) {
    let stream = soft();
    let send = queue_pair.prepare(request).unwrap();
    let wait = queue_pair.send_cq().prepare_wait().unwrap().checked().unwrap();
    let status = wait.status();
    stream.post(Batch::new().send(send).wait_checked(wait)).unwrap();
    synchronize(&stream);
    let error = status.get().unwrap().unwrap_err();
    assert_eq!(error.kind(), Some(Syndrome::RetryExceeded));
    assert_eq!(queue_pair.failure(), Some(FailureCause::Work(error)));
    assert_eq!(poll(&queue_pair.send_cq()).status, Err(error));
    assert_eq!(stream.outstanding(), 0);
}

/// The same on the card that replaces the dead one. The library's threads may hold the old card a moment longer than
/// the program: the thread of checked waits drops a wait after it has reported its outcome.
fn reborn(mortal: Side) -> Side {
    // On one host all cards of a device have the same address: the numbers of their queue pairs tell them apart.
    let card = |side: &Side| side.queue_pair.endpoint().unwrap().qpn >> 15;
    let gone = card(&mortal);
    drop(mortal);
    let deadline = Instant::now() + LONG;
    loop {
        let born = side("softhca0");
        if card(&born) != gone {
            return born;
        }
        assert!(Instant::now() < deadline, "the dead card is still there");
        drop(born);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_card_that_dies_is_given_up_by_both_sides_and_replaced() {
    let test = "a_card_that_dies_is_given_up_by_both_sides_and_replaced";
    if !alone(module_path!(), test, &[("SOFTHCA_DEVICES", "2")]) {
        return;
    }
    let (mortal, other) = (side("softhca0"), side("softhca1"));
    connect(&mortal, &other);
    exchange(&mortal, &other, 1);

    // Streams of both sides wait for the other when it dies of a write, which only one card sends.
    let waiting: Vec<_> = [&mortal, &other]
        .into_iter()
        .map(|one| {
            let stream = soft();
            one.queue_pair.post_recv(&[], 7).unwrap();
            stream.post(Batch::new().wait(one.queue_pair.recv_cq().prepare_wait().unwrap())).unwrap();
            stream
        })
        .collect();
    softhca::set_faults(Some("die kind=write nth=1 times=1".parse().unwrap()));
    let target = other.region.remote();
    unanswered(&mortal.queue_pair, WorkRequest::write_inline(&[9], target));
    assert_eq!(softhca::fault_counts()[0].injected, 1);
    assert_eq!(pair::content(&other.region), [1; 64], "the write was not heard");
    // The dead card's work is flushed; the other side learns nothing, and waits until it sends something itself.
    synchronize(&waiting[0]);
    assert!(poll(&mortal.queue_pair.recv_cq()).status.unwrap_err().is_flush());
    assert!(!waiting[1].query().unwrap());
    assert_eq!(other.queue_pair.failure(), None);
    unanswered(&other.queue_pair, WorkRequest::send(&[]));
    synchronize(&waiting[1]);
    assert!(poll(&other.queue_pair.recv_cq()).status.unwrap_err().is_flush());

    // The same queue pair on the dead card, connected again, remains deaf.
    for one in [&mortal, &other] {
        drain(&one.queue_pair);
    }
    connect(&mortal, &other);
    unanswered(&mortal.queue_pair, WorkRequest::send(&[]));
    drain(&other.queue_pair);
    // A new opening of the device, after the last handle of the old one, is another card. The plan is still in force.
    let born = reborn(mortal);
    connect(&born, &other);
    exchange(&born, &other, 2);
    exchange(&other, &born, 3);
}
