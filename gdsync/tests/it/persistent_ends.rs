//! Other ends of lists of persistent requests: failures of a queue pair or a stream, and dropped lists.

use crate::persistent_lists::{Both, gate, recv_of, send_of};
use gdsync::persistent::{PersistentError, PersistentSend, Request, start_all, wait_all};
use gdsync::queue::{StateError, Status, Syndrome, WorkError};
use gdsync::{QueueError, RemoteMemory};
use gdsync_test_support::pair::{LONG, Pair, content, drain_and_reconnect, soft, synchronize};
use std::time::Duration;

#[test]
fn a_failure_ends_its_own_wait_and_the_statuses_say_whose_it_is() {
    let (good, bad) = (Pair::new(), Pair::new());
    let source = good.region(8);
    let target = good.region(8);
    let nowhere = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    let elsewhere = bad.region(8);
    let mut fine = PersistentSend::write(&good.left, &[source.slice(..).unwrap()], target.remote()).unwrap();
    let mut fails = PersistentSend::write(&bad.left, &[elsewhere.slice(..).unwrap()], nowhere).unwrap();
    let mut behind = PersistentSend::send(&bad.left, &[elsewhere.slice(..).unwrap()]).unwrap();
    let mut flushed = recv_of(&bad.left, &elsewhere, 0);
    let stream = soft();
    let gate = gate(&stream);
    let mut list: [&mut dyn Request; 4] = [&mut fine, &mut fails, &mut behind, &mut flushed];
    start_all(&mut list, &stream, LONG).unwrap();
    wait_all(&mut list, &stream, LONG).unwrap();
    let statuses = [&fine, &fails, &behind].map(|one| one.status().unwrap());
    let arrival = flushed.status().unwrap();
    gate.store(1);
    synchronize(&stream);
    let kind = |status: &Status| status.get().unwrap().err().and_then(WorkError::kind);
    let [first, second, third] = &statuses;
    assert_eq!((kind(first), kind(second)), (None, Some(Syndrome::RemoteAccess)));
    assert_eq!((kind(third), kind(&arrival)), (Some(Syndrome::WrFlush), Some(Syndrome::WrFlush)));
    let told = fails.complete(LONG).unwrap().unwrap().status.unwrap_err();
    assert_eq!(told.kind(), Some(Syndrome::RemoteAccess));
    assert!(behind.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    assert!(flushed.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    assert_eq!(fine.complete(LONG).unwrap().unwrap().status, Ok(()));
    drain_and_reconnect(&bad);
    let mut arrives = recv_of(&bad.right, &elsewhere, 0);
    let mut list: [&mut dyn Request; 3] = [&mut fine, &mut behind, &mut arrives];
    start_all(&mut list, &stream, LONG).unwrap();
    wait_all(&mut list, &stream, LONG).unwrap();
    synchronize(&stream);
    assert_eq!(arrives.complete(LONG).unwrap().unwrap().status, Ok(()));
}

#[test]
fn a_failure_ends_the_wait_of_another_stream_for_receives_that_were_not_announced() {
    let pair = Pair::new();
    let target = pair.region(16);
    let (stream, other) = (soft(), soft());
    let gate = gate(&stream);
    let mut receives = [recv_of(&pair.right, &target, 0), recv_of(&pair.right, &target, 8)];
    let mut list: Vec<&mut dyn Request> = receives.iter_mut().map(|one| one as _).collect();
    start_all(&mut list, &stream, LONG).unwrap();
    wait_all(&mut list, &other, LONG).unwrap();
    assert!(!other.synchronize_timeout(Duration::from_millis(10)).unwrap());
    pair.right.abort().unwrap();
    assert!(other.synchronize_timeout(LONG).unwrap(), "{:?}", other.oldest_wait());
    for receive in &mut receives {
        assert!(receive.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    }
    gate.store(1);
    synchronize(&stream);
    drain_and_reconnect(&pair);
}

#[test]
fn an_active_list_may_be_dropped() {
    let mut both = Both::new();
    let stream = soft();
    let gate = gate(&stream);
    start_all(&mut both.list(), &stream, LONG).unwrap();
    wait_all(&mut both.list(), &stream, LONG).unwrap();
    let Both { pair, source, target, sends, receives } = both;
    drop((sends, receives));
    source.write(0, &[7; 32]);
    gate.store(1);
    synchronize(&stream);
    assert_eq!(content(&target), [7; 32]);
    // The program's polls return no completions, and the queues are free again.
    assert!(pair.left.send_cq().poll().unwrap().is_none() && pair.right.recv_cq().poll().unwrap().is_none());
    // Queue pairs are dropped while a stream has yet to reach the starts.
    let gate = self::gate(&stream);
    let mut receive = recv_of(&pair.right, &target, 0);
    let mut send = send_of(&pair.left, &source, 0);
    let mut list: [&mut dyn Request; 2] = [&mut receive, &mut send];
    start_all(&mut list, &stream, LONG).unwrap();
    wait_all(&mut list, &stream, LONG).unwrap();
    drop(pair);
    gate.store(1);
    synchronize(&stream);
    drop((send, receive));
}

#[test]
fn a_stream_that_fails_flushes_what_it_was_given_and_has_not_come_to() {
    let mut both = Both::new();
    let stream = soft();
    let gate = gate(&stream);
    stream.launch(|| panic!("a kernel fails")).unwrap();
    start_all(&mut both.list(), &stream, LONG).unwrap();
    wait_all(&mut both.list(), &stream, LONG).unwrap();
    gate.store(1);
    assert!(stream.synchronize().is_err());
    for recv in &mut both.receives {
        assert!(recv.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    }
    for send in &mut both.sends {
        assert!(send.complete(LONG).unwrap().unwrap().status.unwrap_err().is_flush());
    }
    let error = start_all(&mut both.list(), &stream, LONG).unwrap_err();
    assert!(matches!(error.source, PersistentError::Queue(QueueError::State(StateError::Failed { .. }))));
    drain_and_reconnect(&both.pair);
    let error = start_all(&mut both.list(), &stream, LONG).unwrap_err();
    assert!(error.index.is_none() && matches!(error.source, PersistentError::Post(_)), "{error}");
    drain_and_reconnect(&both.pair);
    let stream = soft();
    start_all(&mut both.list(), &stream, LONG).unwrap();
    both.complete();
}
