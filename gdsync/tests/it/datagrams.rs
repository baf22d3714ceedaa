//! Datagrams: their destinations, their receive completions, and those that cannot arrive.

use gdsync::queue::{GRH_BYTES, RequestError, Syndrome, WorkKind};
use gdsync::verbs::{AddressHandle, LinkLayer, QueuePairError, Transport};
use gdsync::{
    Access, Batch, ConnectOptions, Error, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, RemoteMemory, WorkRequest,
};
use gdsync_test_support::pair::{self, device, poll, ring, soft, synchronize};

const QKEY: u32 = 0x0a0b_0c0d;

fn config() -> QueuePairConfig<'static> {
    QueuePairConfig::default().transport(Transport::Ud).qkey(QKEY)
}

/// Two queue pairs, and the address of the right one.
struct Post {
    pd: ProtectionDomain,
    left: QueuePair,
    right: QueuePair,
    to_right: AddressHandle,
}

impl Post {
    fn new() -> Self {
        Self::with(ConnectOptions::default())
    }

    fn with(options: ConnectOptions) -> Self {
        let pd = ProtectionDomain::new(&device()).unwrap();
        let (left, right) =
            (pair::queue_pair(&pd, config()).unwrap(), pair::queue_pair(&pd, config()).unwrap());
        let to_right = left.address_handle(&right.endpoint().unwrap(), options).unwrap();
        Post { pd, left, right, to_right }
    }

    fn region(&self, len: usize) -> MemoryRegion {
        MemoryRegion::allocate(&self.pd, len, Access::LOCAL_WRITE).unwrap()
    }

    fn to_right<'a>(&'a self, request: WorkRequest<'a>) -> WorkRequest<'a> {
        request.to(&self.to_right, self.right.number(), QKEY)
    }

    fn receive(&self, region: &MemoryRegion, wr_id: u64) {
        self.right.post_recv(&[region.slice(..).unwrap()], wr_id).unwrap();
    }
}

fn data(region: &MemoryRegion, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    region.read(GRH_BYTES, &mut bytes);
    bytes
}

#[test]
fn datagrams_arrive_behind_their_header() {
    for global in [false, true] {
        let post = Post::with(ConnectOptions::default().global(global).service_level(2));
        let (source, target) = (post.region(100), post.region(GRH_BYTES + 100));
        source.write(0, &[7; 100]);
        post.receive(&target, 1);
        let slices = [source.slice(..60).unwrap(), source.slice(60..).unwrap()];
        ring(post.left.prepare(post.to_right(WorkRequest::send(&slices).wr_id(3))).unwrap());
        let sent = poll(&post.left.send_cq());
        assert_eq!((sent.wr_id, sent.kind, sent.status, sent.source), (3, WorkKind::Send, Ok(()), None));
        let completion = poll(&post.right.recv_cq());
        assert_eq!((completion.wr_id, completion.status), (1, Ok(())));
        assert_eq!(completion.byte_len as usize, GRH_BYTES + 100);
        assert_eq!(data(&target, 100), [7; 100]);
        let from = completion.source.unwrap();
        assert_eq!((from.qp_num, completion.qp_num), (post.left.number(), post.right.number()));
        let left = post.left.endpoint().unwrap();
        let ethernet = left.kind.link() == LinkLayer::Ethernet;
        assert_eq!(from.header.is_some(), global || ethernet);
        assert_eq!((from.lid, from.service_level), (left.lid, if ethernet { 0 } else { 2 }));
    }
}

#[test]
fn a_datagram_is_answered_by_what_its_completion_says() {
    for global in [false, true] {
        let post = Post::with(ConnectOptions::default().global(global));
        let (question, answer) = (post.region(GRH_BYTES + 8), post.region(GRH_BYTES + 8));
        post.receive(&question, 0);
        post.left.post_recv(&[answer.slice(..).unwrap()], 0).unwrap();
        post.left.post_send(post.to_right(WorkRequest::send_inline(b"question").immediate(11))).unwrap();
        let completion = poll(&post.right.recv_cq());
        assert_eq!(completion.immediate, Some(11));
        let mut header = [0; GRH_BYTES];
        question.read(0, &mut header);
        let own = post.right.endpoint().unwrap();
        let sender = completion.source.unwrap().endpoint(&own, &header).unwrap();
        let left = post.left.endpoint().unwrap();
        assert_eq!((sender.qpn, sender.lid, sender.gid), (left.qpn, left.lid, left.gid));
        let back = post.right.address_handle(&sender, ConnectOptions::default()).unwrap();
        post.right.post_send(WorkRequest::send_inline(b"answered").to(&back, sender.qpn, QKEY)).unwrap();
        assert_eq!(poll(&post.left.recv_cq()).status, Ok(()));
        assert_eq!(data(&answer, 8), b"answered");
    }
}

#[test]
fn a_stream_sends_datagrams_and_waits_for_them() {
    let post = Post::new();
    let (stream, target) = (soft(), post.region(GRH_BYTES + 8));
    for round in 0..300u64 {
        post.receive(&target, round);
        let bytes = round.to_le_bytes();
        let send = post.left.prepare(post.to_right(WorkRequest::send_inline(&bytes))).unwrap();
        let (sent, arrived) = (post.left.send_cq().prepare_wait(), post.right.recv_cq().prepare_wait());
        stream.post(Batch::new().send(send).wait(sent.unwrap()).wait(arrived.unwrap())).unwrap();
        let seen = target.clone();
        stream.launch(move || assert_eq!(data(&seen, 8), bytes)).unwrap();
        synchronize(&stream);
        assert_eq!(poll(&post.right.recv_cq()).wr_id, round);
        assert_eq!(poll(&post.left.send_cq()).status, Ok(()));
    }
}

#[test]
fn a_datagram_of_the_mtu_arrives_and_a_longer_one_is_refused() {
    let post = Post::new();
    let most = post.left.max_message() as usize;
    let (source, target) = (post.region(most + 1), post.region(GRH_BYTES + most));
    source.write(0, &vec![5; most]);
    post.receive(&target, 0);
    let slices = [source.slice(..most).unwrap()];
    post.left.post_send(post.to_right(WorkRequest::send(&slices))).unwrap();
    assert_eq!(poll(&post.right.recv_cq()).byte_len as usize, GRH_BYTES + most);
    assert_eq!(data(&target, most), vec![5; most]);
    let slices = [source.slice(..).unwrap()];
    let error = post.left.post_send(post.to_right(WorkRequest::send(&slices))).unwrap_err();
    let named = matches!(error, QueueError::Request(RequestError::MessageTooLong { given, limit }) if given == limit + 1);
    assert!(named && most <= 4096, "{error}");
}

#[test]
fn inline_data_up_to_the_limit_and_slices_up_to_the_queues() {
    let pd = ProtectionDomain::new(&device()).unwrap();
    let post =
        Post { left: pair::queue_pair(&pd, config().inline(200).send_segments(20)).unwrap(), ..Post::new() };
    let right = pair::queue_pair(&pd, config()).unwrap();
    let to = post.left.address_handle(&right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let target = MemoryRegion::allocate(&pd, 2000, Access::LOCAL_WRITE).unwrap();
    let most = post.left.max_inline() as usize;
    assert!(most >= 200);
    let bytes: Vec<u8> = (0..most).map(|i| i as u8).collect();
    right.post_recv(&[target.slice(..).unwrap()], 0).unwrap();
    post.left.post_send(WorkRequest::send_inline(&bytes).to(&to, right.number(), QKEY)).unwrap();
    assert_eq!(poll(&right.recv_cq()).status, Ok(()));
    assert_eq!(data(&target, most), bytes);
    let slices: Vec<_> = (0..20).map(|i| target.slice(i..i + 1).unwrap()).collect();
    right.post_recv(&[target.slice(1000..).unwrap()], 0).unwrap();
    post.left.post_send(WorkRequest::send(&slices).to(&to, right.number(), QKEY)).unwrap();
    assert_eq!(poll(&right.recv_cq()).byte_len as usize, GRH_BYTES + 20);
}

#[test]
fn datagrams_with_another_q_key_or_without_a_receive_are_dropped_in_silence() {
    let post = Post::new();
    let target = post.region(GRH_BYTES + 8);
    // No receive.
    post.left.post_send(post.to_right(WorkRequest::send_inline(b"none"))).unwrap();
    assert_eq!(poll(&post.left.send_cq()).status, Ok(()));
    // Later datagrams arrive in order, which proves that the others were dropped.
    post.receive(&target, 1);
    let wrong = WorkRequest::send_inline(b"wrong").to(&post.to_right, post.right.number(), QKEY + 1);
    post.left.post_send(wrong).unwrap();
    // The same if no queue pair has that number.
    post.left.post_send(WorkRequest::send_inline(b"nobody").to(&post.to_right, 0xff_fff0, QKEY)).unwrap();
    post.left.post_send(post.to_right(WorkRequest::send_inline(b"right"))).unwrap();
    (0..3).for_each(|_| assert_eq!(poll(&post.left.send_cq()).status, Ok(())));
    assert_eq!(poll(&post.right.recv_cq()).byte_len as usize, GRH_BYTES + 5);
    assert_eq!(data(&target, 5), b"right");
    assert!(post.right.recv_cq().poll().unwrap().is_none());
    assert!(post.left.failure().is_none() && post.right.failure().is_none());
}

#[test]
fn a_receive_without_room_for_the_header_fails() {
    let post = Post::new();
    let target = post.region(GRH_BYTES + 4);
    post.receive(&target, 9);
    post.left.post_send(post.to_right(WorkRequest::send_inline(b"too long"))).unwrap();
    assert_eq!(poll(&post.left.send_cq()).status, Ok(()));
    let completion = poll(&post.right.recv_cq());
    assert_eq!((completion.wr_id, completion.source), (9, None));
    assert_eq!(completion.status.unwrap_err().kind(), Some(Syndrome::LocalLength));
    assert!(post.right.failure().is_some());
}

#[test]
fn what_datagrams_cannot_do_is_refused() {
    let post = Post::new();
    let region = post.region(8);
    let (slices, place) = ([region.slice(..).unwrap()], region.slice(..).unwrap());
    let remote = RemoteMemory { addr: 0, len: 8, rkey: 1 };
    let requests = [
        WorkRequest::write(&slices, remote),
        WorkRequest::write(&slices, remote).immediate(1),
        WorkRequest::read(&slices, remote),
        WorkRequest::fetch_add(&place, remote, 1),
    ];
    for request in requests {
        let error = post.left.prepare(post.to_right(request.clone())).unwrap_err();
        let named = matches!(
            error,
            QueueError::Request(RequestError::NotOnTransport { transport: Transport::Ud, .. })
        );
        assert!(named, "{request:?}: {error}");
    }
    let error = post.left.prepare(WorkRequest::send(&slices)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::NoDestination)), "{error}");
    let error = post.left.prepare(WorkRequest::send(&[]).to(&post.to_right, 1 << 24, QKEY)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::BadDestination { .. })), "{error}");
    let other = Post::new();
    let error = post.left.prepare(WorkRequest::send(&[]).to(&other.to_right, 1, QKEY)).unwrap_err();
    assert!(matches!(error, QueueError::Request(RequestError::OtherAddress { .. })), "{error}");
    let error = post.left.connect(&post.right.endpoint().unwrap(), ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::Connectionless { .. })), "{error}");
    // None of that failed the queue pair.
    post.left.post_send(WorkRequest::nop().wr_id(4)).unwrap();
    assert_eq!((poll(&post.left.send_cq()).wr_id, post.left.failure()), (4, None));
    // A connection has a fixed address.
    let pair = pair::Pair::new();
    let to = pair.left.address_handle(&pair.right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let error = pair.left.prepare(WorkRequest::send(&[]).to(&to, 1, QKEY)).unwrap_err();
    assert!(
        matches!(error, QueueError::Request(RequestError::NotOnTransport { transport: Transport::Rc, .. })),
        "{error}"
    );
}

#[test]
fn an_address_lives_until_the_work_that_names_it_has_completed() {
    let post = Post::new();
    let target = post.region(GRH_BYTES + 8);
    let (stream, gate) = (soft(), post.region(8));
    let word = gate.word32(0).unwrap();
    post.receive(&target, 0);
    let to = post.left.address_handle(&post.right.endpoint().unwrap(), ConnectOptions::default()).unwrap();
    let request = WorkRequest::send_inline(b"kept").to(&to, post.right.number(), QKEY);
    let send = post.left.prepare(request).unwrap();
    stream.post(Batch::new().wait_value32(&word, gdsync::memop::Condition::Eq, 1).send(send)).unwrap();
    drop(to);
    word.store(1);
    assert_eq!(poll(&post.right.recv_cq()).status, Ok(()));
    assert_eq!(poll(&post.left.send_cq()).status, Ok(()));
    assert_eq!(data(&target, 4), b"kept");
    synchronize(&stream);
}
