//! Lists of persistent requests under the faults of the software card. Faults concern the whole process, so each test
//! has a separate one.

#![cfg(feature = "software-card")]

use gdsync::persistent::{PersistentRecv, PersistentSend, Request, start_all, wait_all};
use gdsync::queue::Syndrome;
use gdsync::{ConnectOptions, MemoryRegion, QueuePairConfig};
use gdsync_test_support::pair::{LONG, Pair, content, drain_and_reconnect, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};

fn runs(test: &str) -> bool {
    if on_system() {
        skipped(test, "faults are injected into the software card of this process");
        return false;
    }
    alone(module_path!(), test, &[])
}

fn pair() -> Pair {
    let options = ConnectOptions::default().timeout(9).retry_count(7).min_rnr_timer(1);
    Pair::with(QueuePairConfig::default().send_depth(64).recv_depth(64), options)
}

fn requests(pair: &Pair, source: &MemoryRegion, target: &MemoryRegion) -> (PersistentSend, PersistentRecv) {
    let send = PersistentSend::send(&pair.left, &[source.slice(..).unwrap()]).unwrap();
    (send, PersistentRecv::new(&pair.right, &[target.slice(..).unwrap()]).unwrap())
}

#[test]
fn what_the_fabric_loses_doubles_and_delays_arrives_once_and_in_order() {
    if !runs("what_the_fabric_loses_doubles_and_delays_arrives_once_and_in_order") {
        return;
    }
    let pair = pair();
    let (source, target) = (pair.region(64), pair.region(64));
    let (mut send, mut recv) = requests(&pair, &source, &target);
    let stream = soft();
    for plan in [
        "seed=7; drop p=0.1",
        "duplicate every=3",
        "seed=9; delay=300us p=0.3",
        "rnr every=3",
        "seed=11; late=300us p=0.3",
    ] {
        softhca::set_faults(Some(plan.parse().unwrap()));
        for round in 0..40u8 {
            let (memory, arrived) = (source.clone(), target.clone());
            stream.launch(move || assert_eq!(memory.write(0, &[round; 64]), 64)).unwrap();
            let mut list: [&mut dyn Request; 2] = [&mut send, &mut recv];
            start_all(&mut list, &stream, LONG).unwrap();
            wait_all(&mut list, &stream, LONG).unwrap();
            stream.launch(move || assert_eq!(content(&arrived), [round; 64], "round {round}")).unwrap();
        }
        synchronize(&stream);
        assert!(softhca::fault_counts().iter().any(|count| count.injected > 0), "{plan}");
        assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
    }
    softhca::set_faults(None);
}

#[test]
fn a_peer_that_no_packet_reaches_fails_the_list_and_it_works_again() {
    if !runs("a_peer_that_no_packet_reaches_fails_the_list_and_it_works_again") {
        return;
    }
    let pair = pair();
    let (source, target) = (pair.region(64), pair.region(64));
    let (mut send, mut recv) = requests(&pair, &source, &target);
    let stream = soft();
    for _ in 0..2 {
        softhca::set_faults(Some("drop".parse().unwrap()));
        let mut list: [&mut dyn Request; 2] = [&mut send, &mut recv];
        start_all(&mut list, &stream, LONG).unwrap();
        wait_all(&mut list[..1], &stream, LONG).unwrap();
        synchronize(&stream);
        let told = send.complete(LONG).unwrap().unwrap().status.unwrap_err();
        assert_eq!(told.kind(), Some(Syndrome::RetryExceeded));
        softhca::set_faults(None);
        pair.right.abort().unwrap();
        assert!(recv.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
        drain_and_reconnect(&pair);
        let mut list: [&mut dyn Request; 2] = [&mut send, &mut recv];
        start_all(&mut list, &stream, LONG).unwrap();
        wait_all(&mut list, &stream, LONG).unwrap();
        synchronize(&stream);
        assert_eq!(send.complete(LONG).unwrap().unwrap().status, Ok(()));
        assert_eq!(recv.complete(LONG).unwrap().unwrap().status, Ok(()));
    }
}
