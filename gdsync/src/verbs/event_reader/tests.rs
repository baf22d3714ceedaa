use super::*;
use crate::qp::ResetError;
use crate::queue::FailureCause;
use crate::queue::error::StateError;
use crate::{
    Batch, ConnectOptions, Device, ProtectionDomain, QueueError, QueuePair, QueuePairConfig, SoftStream,
    Stream, WorkRequest,
};
use gdsync_sys::verbs::{self, ibv_qp_attr};

/// A limit that no wait exceeds, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);

fn pair(config: QueuePairConfig<'_>) -> (Device, QueuePair, QueuePair) {
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    (device, left, right)
}

/// An event as the card reports it.
fn event(code: i32, element: ibv_async_element) -> ibv_async_event {
    ibv_async_event { element, event_type: code }
}

#[test]
fn codes_are_named_and_unknown_ones_kept() {
    for code in -1..20 {
        let kind = AsyncEventKind::from_raw(code);
        assert_eq!(kind.is_fatal(), [0, 1, 2, 3, 8, 10, 14].contains(&code), "{kind}");
        let known = [0, 1, 2, 3, 4, 8, 9, 10, 14, 16];
        assert_eq!(matches!(kind, AsyncEventKind::Other(_)), !known.contains(&code));
    }
    assert_eq!(AsyncEventKind::from_raw(77).to_string(), "asynchronous event 77");
    let told = AsyncEvent {
        kind: AsyncEventKind::PortError,
        queue_pairs: vec![0x12],
        shared_receives: None,
        port: Some(1),
    };
    assert_eq!(told.to_string(), "port down, port 1, queue pair 0x12");
}

#[test]
fn an_overrun_completion_queue_fails_the_queue_pair_and_wakes_its_streams() {
    let (device, left, right) = pair(QueuePairConfig::default());
    let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
    right.post_recv(&[], 1).unwrap();
    right.post_recv(&[], 2).unwrap();
    let waits = [right.recv_cq().prepare_wait().unwrap(), right.recv_cq().prepare_wait().unwrap()];
    let [first, second] = waits;
    stream.post(Batch::new().wait(first)).unwrap();
    // The library never lets a queue overrun: a corrupted consumer index makes the card find the queue full.
    right.recv_cq().inner.lock().spoil_consumer_index();
    left.post_send(WorkRequest::send(&[])).unwrap();
    let mut seen = Vec::new();
    while let Some(event) =
        device.next_event(Duration::from_millis(if seen.is_empty() { 30_000 } else { 100 })).unwrap()
    {
        if event.queue_pairs == [right.number()] {
            seen.push(event.kind);
        }
        if seen.contains(&AsyncEventKind::CompletionQueueError) {
            break;
        }
    }
    assert!(seen.contains(&AsyncEventKind::CompletionQueueError), "{seen:?}");
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{stream:?}");
    assert!(matches!(right.failure(), Some(FailureCause::Event(_))), "{:?}", right.failure());
    // The card writes nothing here any more. A wait that is posted now continues, too.
    stream.post(Batch::new().wait(second)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{stream:?}");
    assert!(
        right.recv_cq().poll().unwrap().is_none(),
        "the CPU is shown nothing that the card did not write"
    );
    assert!(matches!(right.post_recv(&[], 3), Err(QueueError::State(StateError::Failed { .. }))));
    let error = right.reset().unwrap_err();
    assert!(
        matches!(
            error,
            ResetError::Blocked { blocker: crate::queue::ResetBlocker::CompletionQueueLost(_), .. }
        ),
        "{error}"
    );
}

#[test]
fn events_of_queue_pairs_ports_and_devices_fail_those_that_they_concern() {
    for (code, failed) in [(1, [true, false]), (10, [true, true]), (8, [true, true]), (9, [false, false])] {
        let (device, left, right) = pair(QueuePairConfig::default());
        let stream = Stream::new(SoftStream::new().unwrap()).unwrap();
        left.post_recv(&[], 0).unwrap();
        stream.post(Batch::new().wait(left.recv_cq().prepare_wait().unwrap())).unwrap();
        let element = match code {
            1 => ibv_async_element { qp: left.inner.object.verbs().unwrap().as_ptr() },
            _ => ibv_async_element { port_num: 1 },
        };
        if code == 1 {
            // As the card does before it reports that.
            let mut attr = ibv_qp_attr { qp_state: verbs::IBV_QPS_ERR, ..ibv_qp_attr::default() };
            let raw = left.inner.object.verbs().unwrap();
            // SAFETY: the queue pair is alive, and the attributes are valid.
            let rc = unsafe {
                (device.inner.api.modify_qp)(raw.as_ptr(), &mut attr, verbs::IBV_QP_STATE as libc::c_int)
            };
            assert_eq!(rc, 0);
        }
        let event = event(code, element);
        let concerned = device.inner.queue_pairs.concerned(Element::of(&event));
        let told = take_event(&device.inner, &event, &concerned);
        assert_eq!(told.queue_pairs.contains(&right.number()), code != 1);
        assert_eq!([left.failure().is_some(), right.failure().is_some()], failed, "{told}");
        assert_eq!(
            stream.synchronize_timeout(if failed[0] { LONG } else { Duration::from_millis(20) }).unwrap(),
            failed[0]
        );
        left.abort().unwrap();
        assert!(stream.synchronize_timeout(LONG).unwrap());
    }
}
