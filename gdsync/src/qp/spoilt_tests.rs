//! Failures that a program cannot cause through the library: the tests corrupt work requests in the rings.

use super::testing::{LONG, poll};
use crate::queue::{FailureCause, Syndrome};
use crate::{
    Access, Batch, CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairConfig, SoftStream, Stream, WorkRequest,
};

struct Rig {
    left: QueuePair,
    right: QueuePair,
    region: MemoryRegion,
    stream: Stream<SoftStream>,
}

fn rig() -> Rig {
    let device = Device::software().unwrap();
    let pd = ProtectionDomain::new(&device).unwrap();
    let config = QueuePairConfig::default();
    let (left, right) = (QueuePair::new(&pd, config).unwrap(), QueuePair::new(&pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE).unwrap();
    Rig { left, right, region, stream: Stream::new(SoftStream::new().unwrap()).unwrap() }
}

fn kind(queue: &CompletionQueue) -> Option<Syndrome> {
    poll(queue).status.unwrap_err().kind()
}

fn failed_with(queue_pair: &QueuePair, syndrome: Syndrome) -> bool {
    matches!(queue_pair.failure(), Some(FailureCause::Work(error)) if error.kind() == Some(syndrome))
}

#[test]
fn a_local_access_error_wakes_the_stream_and_flushes_what_follows() {
    let Rig { left, right, region, stream } = rig();
    let slices = [region.slice(..).unwrap()];
    right.post_recv(&slices, 0).unwrap();
    let bad = left.prepare(WorkRequest::send(&slices)).unwrap();
    left.inner.send().spoil_key();
    let after = left.prepare(WorkRequest::send(&slices)).unwrap();
    let waits = [left.send_cq().prepare_wait().unwrap(), left.send_cq().prepare_wait().unwrap()];
    let [first, second] = waits.map(|wait| wait.checked().unwrap());
    let statuses = [first.status(), second.status()];
    stream.post(Batch::new().send(bad).send(after).wait_checked(first).wait_checked(second)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{stream:?}");
    let told = statuses.map(|status| status.get().unwrap().unwrap_err().kind());
    assert_eq!(told, [Some(Syndrome::LocalProtection), Some(Syndrome::WrFlush)]);
    assert!(failed_with(&left, Syndrome::LocalProtection), "{:?}", left.failure());
    assert_eq!(kind(&left.send_cq()), Some(Syndrome::LocalProtection));
    assert_eq!(kind(&left.send_cq()), Some(Syndrome::WrFlush));
    left.reset().unwrap();
    assert_eq!(left.failure(), None);
}

#[test]
fn a_remote_operation_error_is_told_on_both_sides() {
    let Rig { left, right, region, stream } = rig();
    let slices = [region.slice(..).unwrap()];
    right.post_recv(&slices, 0).unwrap();
    right.inner.recv.lock().spoil_key();
    let send = left.prepare(WorkRequest::send(&slices)).unwrap();
    let (sent, arrived) = (left.send_cq().prepare_wait().unwrap(), right.recv_cq().prepare_wait().unwrap());
    stream.post(Batch::new().send(send).wait(sent).wait(arrived)).unwrap();
    assert!(stream.synchronize_timeout(LONG).unwrap(), "{stream:?}");
    assert_eq!(kind(&left.send_cq()), Some(Syndrome::RemoteOperation));
    assert_eq!(kind(&right.recv_cq()), Some(Syndrome::LocalProtection));
    assert!(failed_with(&left, Syndrome::RemoteOperation) && failed_with(&right, Syndrome::LocalProtection));
}
