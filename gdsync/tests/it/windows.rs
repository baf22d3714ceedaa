//! Memory windows: what they open, for whom and until when, and which changes are refused.

use gdsync::persistent::PersistentSend;
use gdsync::qp::Trigger;
use gdsync::queue::{RequestError, Syndrome, WorkKind};
use gdsync::verbs::{Transport, WindowError};
use gdsync::{
    Access, Batch, ConnectOptions, MemoryRegion, MemoryWindow, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, RemoteMemory, WindowAccess, WorkRequest,
};
use gdsync_test_support::pair::{Pair, content, cpu, device, fill, poll, queue_pair, soft, synchronize};
use std::sync::atomic::Ordering;

const WRITE: WindowAccess = WindowAccess::REMOTE_WRITE;
/// Bytes of the region, and the part of it that the window opens.
const BYTES: usize = 256;
const PART: std::ops::Range<usize> = 64..128;

/// A pair, and memory of the right side that the left one reaches by a window only.
struct Bed {
    pair: Pair,
    region: MemoryRegion,
    window: MemoryWindow,
}

fn bed() -> Bed {
    Bed::with(QueuePairConfig::default().access(Access::all()))
}

impl Bed {
    fn with(config: QueuePairConfig<'_>) -> Bed {
        let pair = Pair::with(config, ConnectOptions::default());
        let region = closed_region(&pair.pd);
        let window = MemoryWindow::new(&pair.pd).unwrap();
        Bed { pair, region, window }
    }

    /// Binds the window to its part of the region. Returns what the peer may use.
    fn bind(&self, access: WindowAccess) -> RemoteMemory {
        let slice = self.region.slice(PART).unwrap();
        self.pair.right.post_send(WorkRequest::bind(&self.window, &slice, access).wr_id(7)).unwrap();
        let done = poll(&self.pair.right.send_cq());
        assert_eq!((done.kind, done.wr_id, done.byte_len), (WorkKind::MemoryWindow, 7, 0));
        assert_eq!(done.status, Ok(()));
        self.window.remote().unwrap()
    }

    fn invalidate(&self) {
        self.pair.right.post_send(WorkRequest::invalidate(&self.window)).unwrap();
        let done = poll(&self.pair.right.send_cq());
        assert_eq!((done.kind, done.status), (WorkKind::MemoryWindow, Ok(())));
    }

    /// Writes by the left side. Returns the syndrome of a failure.
    fn write(&self, remote: RemoteMemory) -> Option<Syndrome> {
        write(&self.pair.left, remote)
    }

    fn number(&self, at: usize) -> u64 {
        self.region.words64()[at / 8].load(Ordering::Relaxed)
    }

    /// Why the right side does not bind the window to a slice.
    fn refused(&self, memory: &MemoryRegion, access: WindowAccess) -> QueueError {
        let slice = memory.slice(..).unwrap();
        let error = self.pair.right.prepare(WorkRequest::bind(&self.window, &slice, access)).unwrap_err();
        assert_eq!(self.window.remote(), None, "{error}");
        error
    }
}

fn closed_region(pd: &ProtectionDomain) -> MemoryRegion {
    MemoryRegion::allocate(pd, BYTES, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
}

fn write(from: &QueuePair, remote: RemoteMemory) -> Option<Syndrome> {
    from.post_send(WorkRequest::write_inline(b"8 bytes!", remote)).unwrap();
    let status = poll(&from.send_cq()).status;
    status.err().map(|error| error.kind().unwrap())
}

#[test]
fn a_window_opens_its_part_until_it_is_invalidated() {
    let bed = bed();
    fill(&bed.region, 1);
    let remote = bed.bind(WRITE | WindowAccess::REMOTE_READ);
    assert_eq!((remote.len, remote.addr), (64, bed.region.remote().addr + 64));
    assert_eq!(bed.write(remote.slice(56..).unwrap()), None);
    let back = bed.pair.region(64);
    bed.pair.left.post_send(WorkRequest::read(&[back.slice(..).unwrap()], remote)).unwrap();
    assert_eq!(poll(&bed.pair.left.send_cq()).status, Ok(()));
    assert_eq!((&content(&back)[..], &content(&back)[56..]), (&content(&bed.region)[PART], &b"8 bytes!"[..]));

    bed.invalidate();
    assert_eq!(bed.window.remote(), None);
    let before = content(&bed.region);
    assert_eq!(bed.write(remote), Some(Syndrome::RemoteAccess));
    assert_eq!(content(&bed.region), before, "nothing was written");
}

#[test]
fn the_key_of_an_earlier_bind_opens_nothing() {
    let bed = bed();
    let before = bed.bind(WRITE);
    bed.invalidate();
    let after = bed.bind(WRITE);
    assert_ne!(before.rkey, after.rkey);
    assert_eq!(bed.write(after), None);
    assert_eq!(bed.write(before), Some(Syndrome::RemoteAccess));
}

#[test]
fn a_window_opens_no_more_than_its_part_and_its_rights() {
    type Spoil = fn(&Bed, RemoteMemory) -> RemoteMemory;
    let cases: [(&str, WindowAccess, Spoil); 3] = [
        ("beyond the part", WRITE, |_, remote| RemoteMemory { addr: remote.addr + 57, ..remote }),
        ("no right to write", WindowAccess::REMOTE_READ, |_, remote| remote),
        ("the region's key", WRITE, |bed, _| bed.region.remote()),
    ];
    for (name, access, spoil) in cases {
        let bed = bed();
        let remote = bed.bind(access);
        assert_eq!(bed.write(spoil(&bed, remote)), Some(Syndrome::RemoteAccess), "{name}");
        assert_eq!(content(&bed.region), [0; BYTES], "{name}");
    }
}

#[test]
fn only_the_peer_of_the_queue_pair_that_has_bound_it_may_use_a_window() {
    let bed = bed();
    let remote = bed.bind(WRITE);
    let config = QueuePairConfig::default();
    let [left, right] = [(); 2].map(|()| queue_pair(&bed.pair.pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    assert_eq!(write(&left, remote), Some(Syndrome::RemoteAccess));
    let error = right.post_send(WorkRequest::invalidate(&bed.window)).unwrap_err();
    let (owner, qpn) = (bed.pair.right.number(), right.number());
    assert!(
        matches!(error, QueueError::Window(WindowError::OtherQueuePair { owner: a, qpn: b, .. }) if (a, b) == (owner, qpn))
    );
    assert_eq!(bed.write(remote), None, "it is open still");
}

#[test]
fn atomics_and_addresses_from_0() {
    let bed = bed();
    let remote = bed.bind(WindowAccess::REMOTE_ATOMIC | WindowAccess::ZERO_BASED);
    assert_eq!((remote.addr, remote.len), (0, 64));
    bed.region.words64()[72 / 8].store(40, Ordering::Relaxed);
    let result = bed.pair.region(8);
    let place = result.slice(..).unwrap();
    bed.pair.left.post_send(WorkRequest::fetch_add(&place, remote.slice(8..16).unwrap(), 2)).unwrap();
    assert_eq!(poll(&bed.pair.left.send_cq()).status, Ok(()));
    assert_eq!((bed.number(72), result.words64()[0].load(Ordering::Relaxed)), (42, 40));
}

#[test]
fn streams_bind_tell_and_invalidate() {
    let bed = bed();
    let stream = soft();
    let slice = bed.region.slice(PART).unwrap();
    for round in 0..300u32 {
        // A send behind the bind gives the peer the key.
        let bind =
            bed.pair.right.prepare(WorkRequest::bind(&bed.window, &slice, WRITE).unsignaled()).unwrap();
        let remote = bed.window.remote().unwrap();
        bed.pair.left.post_recv(&[], 0).unwrap();
        let message = WorkRequest::send(&[]).immediate(remote.rkey);
        let message = bed.pair.right.prepare(message).unwrap();
        let told = bed.pair.right.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(bind).send(message).wait(told)).unwrap();
        let key = poll(&bed.pair.left.recv_cq()).immediate.unwrap();
        assert_eq!(bed.write(RemoteMemory { rkey: key, ..remote }), None, "round {round}");
        let close = bed.pair.right.prepare(WorkRequest::invalidate(&bed.window)).unwrap();
        let closed = bed.pair.right.send_cq().prepare_wait().unwrap();
        stream.post(Batch::new().send(close).wait(closed)).unwrap();
        for kind in [WorkKind::Send, WorkKind::MemoryWindow] {
            let done = poll(&bed.pair.right.send_cq());
            assert_eq!((done.kind, done.status), (kind, Ok(())));
        }
    }
    synchronize(&stream);
}

#[test]
fn a_trigger_releases_a_bind() {
    let pd = ProtectionDomain::new(&device()).unwrap();
    let trigger = Trigger::new(&pd).unwrap();
    let [left, right] = [QueuePairConfig::default(), QueuePairConfig::default().trigger(&trigger)]
        .map(|config| queue_pair(&pd, config).unwrap());
    left.connect(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    right.connect(&left.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let (region, window) = (closed_region(&pd), MemoryWindow::new(&pd).unwrap());
    let slice = region.slice(PART).unwrap();
    drop(right.prepare(WorkRequest::bind(&window, &slice, WRITE)).unwrap());
    assert_eq!(window.remote(), None, "taken back");
    let bind = right.prepare(WorkRequest::bind(&window, &slice, WRITE)).unwrap();
    assert_eq!(right.send_cq().poll().unwrap(), None);
    cpu().post_send(bind).unwrap();
    assert_eq!(poll(&right.send_cq()).status, Ok(()));
    assert_eq!(write(&left, window.remote().unwrap()), None);
}

#[test]
fn a_send_of_the_peer_invalidates_a_window() {
    let bed = bed();
    let remote = bed.bind(WRITE);
    assert!(bed.pair.device.attributes().unwrap().send_invalidate);
    bed.pair.right.post_recv(&[], 3).unwrap();
    bed.pair.left.post_send(WorkRequest::send_invalidate(&[], remote.rkey)).unwrap();
    assert_eq!(poll(&bed.pair.left.send_cq()).status, Ok(()));
    let arrived = poll(&bed.pair.right.recv_cq());
    assert_eq!((arrived.wr_id, arrived.invalidated), (3, Some(remote.rkey)));
    assert!(!bed.window.note_invalidated(remote.rkey ^ 1), "another key");
    assert!(!bed.window.note_invalidated(remote.rkey ^ 0x100), "another window's");
    assert!(bed.window.note_invalidated(remote.rkey));
    assert_eq!(bed.window.remote(), None);
    let again = bed.bind(WRITE);
    assert_eq!(bed.write(again), None);
    assert_eq!(bed.write(remote), Some(Syndrome::RemoteAccess));
}

#[test]
fn an_invalidation_that_comes_second_fails() {
    let bed = bed();
    let remote = bed.bind(WRITE);
    bed.pair.right.post_recv(&[], 0).unwrap();
    bed.pair.left.post_send(WorkRequest::send_invalidate(&[], remote.rkey)).unwrap();
    assert_eq!(poll(&bed.pair.right.recv_cq()).invalidated, Some(remote.rkey));
    // The window was not told.
    bed.pair.right.post_send(WorkRequest::invalidate(&bed.window)).unwrap();
    let error = poll(&bed.pair.right.send_cq()).status.unwrap_err();
    assert_eq!(error.kind(), Some(Syndrome::MwBind), "{error}");
    assert!(!bed.window.note_invalidated(remote.rkey));
    let slice = bed.region.slice(PART).unwrap();
    let error = bed.pair.left.prepare(WorkRequest::bind(&bed.window, &slice, WRITE)).unwrap_err();
    assert!(matches!(error, QueueError::Window(WindowError::Unknown { .. })), "{error}");
}

#[test]
fn the_window_keeps_its_region_and_requests_keep_the_window() {
    let Bed { pair, region, window } = bed();
    let slice = region.slice(PART).unwrap();
    let bind = pair.right.prepare(WorkRequest::bind(&window, &slice, WRITE)).unwrap();
    let (remote, memory) = (window.remote().unwrap(), region.memory().clone());
    drop((slice, region));
    cpu().post_send(bind).unwrap();
    assert_eq!(poll(&pair.right.send_cq()).status, Ok(()));
    assert_eq!(write(&pair.left, remote), None);
    let mut bytes = [0; 8];
    memory.read(PART.start, &mut bytes);
    assert_eq!(&bytes, b"8 bytes!");
    // An invalidation is prepared, so the window is not gone yet; then it is.
    let close = pair.right.prepare(WorkRequest::nop()).unwrap();
    drop((window, close));
    assert_eq!(write(&pair.left, remote), Some(Syndrome::RemoteAccess));
}

#[test]
fn unreliable_connections_have_windows_and_datagrams_do_not() {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let bed = Bed::with(QueuePairConfig::default().transport(Transport::Uc).access(access));
    let remote = bed.bind(WRITE);
    bed.pair.right.post_recv(&[], 0).unwrap();
    bed.pair.left.post_send(WorkRequest::write_inline(b"8 bytes!", remote).immediate(1)).unwrap();
    assert_eq!(poll(&bed.pair.right.recv_cq()).immediate, Some(1));
    assert_eq!(content(&bed.region)[PART.start..][..8], *b"8 bytes!");
    let config = QueuePairConfig::default().transport(Transport::Ud);
    let datagrams = queue_pair(&bed.pair.pd, config).unwrap();
    let error = datagrams.prepare(WorkRequest::invalidate(&bed.window)).unwrap_err();
    assert!(error.to_string().contains("a change of a memory window is not possible on a UD"), "{error}");
}

#[test]
fn changes_that_cannot_be_are_refused_with_what_is_wrong() {
    let bed = bed();
    let right = bed.pair.right.number();
    let slice = bed.region.slice(PART).unwrap();

    let other = ProtectionDomain::new(&bed.pair.device).unwrap();
    let elsewhere = MemoryWindow::new(&other).unwrap();
    let error = bed.pair.right.prepare(WorkRequest::bind(&elsewhere, &slice, WRITE)).unwrap_err();
    assert!(
        matches!(error, QueueError::Window(WindowError::OtherDomain { qpn, .. }) if qpn == right),
        "{error}"
    );
    let error = bed.refused(&closed_region(&other), WRITE);
    assert!(
        matches!(error, QueueError::Request(RequestError::WrongDomain { qpn, .. }) if qpn == right),
        "{error}"
    );

    let region = bed.pair.region(8);
    let error = bed.refused(&region, WRITE);
    assert!(matches!(error, QueueError::Window(WindowError::NoBindAccess { lkey }) if lkey == region.lkey()));
    assert!(error.to_string().contains("Access::MW_BIND"), "{error}");
    let readable = MemoryRegion::allocate(&bed.pair.pd, 8, Access::MW_BIND).unwrap();
    for access in [WRITE, WindowAccess::REMOTE_ATOMIC] {
        let error = bed.refused(&readable, access);
        assert!(matches!(error, QueueError::Request(RequestError::NotWritable { .. })), "{error}");
    }
    assert!(bed.region.slice(200..BYTES + 1).is_err(), "beyond the region");
    let nothing = bed.region.slice(8..8).unwrap();
    let error = bed.pair.right.prepare(WorkRequest::bind(&bed.window, &nothing, WRITE)).unwrap_err();
    assert!(matches!(error, QueueError::Window(WindowError::Length { given: 0, .. })), "{error}");

    let error = bed.pair.right.prepare(WorkRequest::invalidate(&bed.window)).unwrap_err();
    assert!(matches!(error, QueueError::Window(WindowError::NotBound { .. })), "{error}");
    bed.bind(WRITE);
    for side in [&bed.pair.left, &bed.pair.right] {
        let error = side.prepare(WorkRequest::bind(&bed.window, &slice, WRITE)).unwrap_err();
        assert!(
            matches!(error, QueueError::Window(WindowError::InUse { qpn, .. }) if qpn == right),
            "{error}"
        );
    }
    // None of it has done harm.
    assert_eq!(bed.write(bed.window.remote().unwrap()), None);
}

#[test]
fn a_window_whose_change_was_flushed_takes_no_other() {
    let bed = bed();
    let slice = bed.region.slice(PART).unwrap();
    let bind = bed.pair.right.prepare(WorkRequest::bind(&bed.window, &slice, WRITE)).unwrap();
    bed.pair.right.abort().unwrap();
    drop(bind);
    let flushed = poll(&bed.pair.right.send_cq());
    assert!(flushed.status.unwrap_err().is_flush());
    assert_eq!(bed.window.remote(), None);
    let error = bed.pair.left.prepare(WorkRequest::bind(&bed.window, &slice, WRITE)).unwrap_err();
    assert!(matches!(error, QueueError::Window(WindowError::Unknown { .. })), "{error}");
}

#[test]
fn persistent_writes_go_through_a_window() {
    let bed = bed();
    let remote = bed.bind(WRITE);
    let source = bed.pair.region(64);
    let mut write = PersistentSend::write(&bed.pair.left, &[source.slice(..).unwrap()], remote).unwrap();
    let stream = soft();
    for round in 0..3 {
        let sent = fill(&source, round);
        write.start(&stream).unwrap();
        let done = write.complete(gdsync_test_support::pair::LONG).unwrap().unwrap();
        assert_eq!((done.status, &content(&bed.region)[PART]), (Ok(()), &sent[..]));
    }
    bed.invalidate();
    write.start(&stream).unwrap();
    let done = write.complete(gdsync_test_support::pair::LONG).unwrap().unwrap();
    assert_eq!(done.status.unwrap_err().kind(), Some(Syndrome::RemoteAccess));
}
