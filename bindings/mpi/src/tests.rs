//! Requests and queues of several ranks in one process, without MPI.

use crate::collective::Reduction;
use crate::connection::{refusal, to_bytes};
use crate::error::{Class, Failure};
use crate::memory::Buffer;
use crate::partitions::Layout;
use crate::queue::{self, Queue};
use crate::request::RequestKind;
use crate::request::{Request, abort, poll_partition_flags};
use crate::stream::AnyStream;
use gdsync::{Batch, PinnedMemory};
use gdsync_notify::collective::{Element, Operation};
use std::sync::Arc;

mod card_waits;
mod links;
mod lives;

fn memory(bytes: &[u8]) -> PinnedMemory {
    let memory = PinnedMemory::allocate(bytes.len()).unwrap();
    memory.write(0, bytes);
    memory
}

fn content(memory: &PinnedMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

fn buffer(memory: &PinnedMemory) -> Buffer {
    Buffer { address: memory.addr().get() as usize, bytes: memory.len() }
}

fn request(kind: RequestKind) -> Arc<Request> {
    // SAFETY: the tests keep the memory longer than the requests, and use it as they are ordered.
    Arc::new(unsafe { Request::new(kind) })
}

fn transfer(sends: bool, memory: &PinnedMemory) -> Arc<Request> {
    request(RequestKind::Transfer { sends, buffer: buffer(memory) })
}

fn queue() -> Arc<Queue> {
    Queue::new(AnyStream::software().unwrap()).unwrap()
}

/// Connects each of the ranks' requests with its peers.
fn matched(ranks: &[Arc<Request>]) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for (rank, request) in ranks.iter().enumerate() {
        let peers: Vec<_> = request
            .state
            .lock()
            .peers
            .iter()
            .map(|peer| (peer.side.rank as usize, peer.side.sends))
            .collect();
        for (index, (peer, sends)) in peers.into_iter().enumerate() {
            let line = request.connection_info(index)?.to_string();
            lines.push((rank, index, peer, sends, line));
        }
    }
    for (rank, index, peer, sends, _) in &lines {
        let is_other = |(from, _, to, theirs, _): &&(usize, usize, usize, bool, String)| {
            from == peer && to == rank && theirs != sends
        };
        let (.., line) = lines.iter().find(is_other).unwrap();
        ranks[*rank].connect(*index, &to_bytes(line))?;
    }
    ranks.iter().try_for_each(|request| request.complete_match().map(drop))
}

/// Connects a transfer's sides, whose ranks are not in the request.
fn pair(send: &Arc<Request>, receive: &Arc<Request>) -> Result<u64, Failure> {
    let (info, reply) = (send.connection_info(0)?, receive.connection_info(0)?);
    receive.connect(0, &to_bytes(&info.to_string()))?;
    send.connect(0, &to_bytes(&reply.to_string()))?;
    send.complete_match()?;
    receive.complete_match()
}

fn started(queue: &Queue, requests: &[&Arc<Request>]) -> Result<(), Failure> {
    let list: Vec<_> = requests.iter().map(|request| Arc::clone(request)).enumerate().collect();
    queue.start(&list)
}

#[test]
fn a_transfer_is_started_many_times() {
    let (source, target) = (memory(&[0; 64]), memory(&[9; 100]));
    let (send, receive, queue) = (transfer(true, &source), transfer(false, &target), queue());
    assert_eq!(pair(&send, &receive).unwrap(), 64);
    for round in 0..50 {
        source.write(0, &[round; 64]);
        started(&queue, &[&receive, &send]).unwrap();
        queue.enqueue_wait().unwrap();
        queue.synchronize().unwrap();
        let expected: Vec<u8> = [vec![round; 64], vec![9; 36]].concat();
        assert_eq!(content(&target), expected);
    }
    started(&queue, &[&receive, &send]).unwrap();
    assert_eq!((send.wait().unwrap(), receive.wait().unwrap()), (0, 64));
    // The CPU has already waited for the requests.
    queue.enqueue_wait().unwrap();
    queue.synchronize().unwrap();
    [send, receive].into_iter().for_each(queue::free_request);
}

#[test]
fn requests_in_the_wrong_state_are_refused() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 8]));
    let (send, receive, queue) = (transfer(true, &source), transfer(false, &target), queue());
    let refused = |list: &[&Arc<Request>], word: &str| {
        let failure = started(&queue, list).unwrap_err();
        assert_eq!(failure.class, Class::Request);
        assert!(failure.text.contains(word), "{failure}");
    };
    refused(&[&send], "request 0 of the list is not matched");
    assert_eq!(send.complete_match().unwrap_err().class, Class::Request);
    pair(&send, &receive).unwrap();
    refused(&[&receive, &send, &send], "request 2 of the list is in it twice");
    started(&queue, &[&receive, &send]).unwrap();
    refused(&[&receive], "started already");
    assert_eq!(send.connection_info(1).unwrap_err().class, Class::Argument);
    queue.enqueue_wait().unwrap();
    queue.synchronize().unwrap();
    assert_eq!(content(&target), [1; 8]);
}

#[test]
fn what_does_not_fit_is_refused_on_both_sides() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 4]));
    let (send, receive) = (transfer(true, &source), transfer(false, &target));
    let failure = pair(&send, &receive).unwrap_err();
    assert_eq!(failure.class, Class::Truncate);
    let there = send.connect(0, &to_bytes(&refusal(&failure))).unwrap_err();
    assert_eq!(there.class, Class::Truncate);
    assert!(there.text.contains("the message has 8 bytes, and the receive 4"), "{there}");

    let barrier = request(RequestKind::Barrier { rank: 0, size: 2 });
    let info = send.connection_info(0).unwrap();
    let failure = barrier.connection_info(0).and_then(|_| barrier.connect(0, &to_bytes(&info.to_string())));
    assert!(failure.unwrap_err().text.contains("barrier-of-2"));
    let length = info.fragment_bytes;
    for (fragment_bytes, provider, word) in
        [(length + 1, "software", "PART_BYTES"), (length, "abacus", "DEVICE")]
    {
        let provider = provider.to_owned();
        let other = crate::connection::ConnectionInfo { fragment_bytes, provider, ..info.clone() };
        let receive = transfer(false, &source);
        receive.connection_info(0).unwrap();
        let failure = receive.connect(0, &to_bytes(&other.to_string())).unwrap_err();
        assert!(failure.text.contains(word), "{failure}");
    }
}

#[test]
fn a_transfer_without_its_peer_fails() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 8]));
    let (send, receive, queue) = (transfer(true, &source), transfer(false, &target), queue());
    pair(&send, &receive).unwrap();
    started(&queue, &[&receive]).unwrap();
    queue.enqueue_wait().unwrap();
    abort(&receive.state.lock().peers);
    let failure = queue.synchronize().unwrap_err();
    assert_eq!(failure.class, Class::Peer);
    assert_eq!(started(&queue, &[&receive]).unwrap_err().class, Class::Peer);
    // A failure is reported once.
    queue.synchronize().unwrap();
}

fn all_reduce(size: u32, numbers: u64) {
    let input = |rank: u32| (0..numbers).flat_map(move |at| (at * 10 + u64::from(rank)).to_ne_bytes());
    let inputs: Vec<_> = (0..size).map(|rank| memory(&input(rank).collect::<Vec<_>>())).collect();
    let outputs: Vec<_> = (0..size).map(|_| memory(&vec![0; numbers as usize * 8])).collect();
    let ranks: Vec<_> = (0..size)
        .map(|rank| {
            let source = Some(buffer(&inputs[rank as usize]));
            let target = buffer(&outputs[rank as usize]);
            let (element, operation) = (Element::U64, Operation::Sum);
            let reduction = Reduction { source, target, element, operation };
            request(RequestKind::Allreduce { reduction, rank, size })
        })
        .collect();
    matched(&ranks).unwrap();
    let queues: Vec<_> = ranks.iter().map(|_| queue()).collect();
    for _round in 0..3 {
        for (queue, rank) in queues.iter().zip(&ranks) {
            started(queue, &[rank]).unwrap();
            queue.enqueue_wait().unwrap();
        }
    }
    queues.iter().for_each(|queue| queue.synchronize().unwrap());
    let of_ranks = u64::from(size * (size - 1) / 2);
    let expected = (0..numbers).flat_map(|at| (at * 10 * u64::from(size) + of_ranks).to_ne_bytes());
    let expected: Vec<_> = expected.collect();
    assert!(outputs.iter().all(|output| content(output) == expected), "{numbers} numbers among {size}");
}

#[test]
fn all_reduces_of_every_size() {
    for size in 1..=9 {
        // By doubling, and by a ring.
        [7, 5000].into_iter().for_each(|numbers| all_reduce(size, numbers));
    }
}

#[test]
fn a_barrier_waits_for_all_and_fails_for_all() {
    let ranks: Vec<_> = (0..3).map(|rank| request(RequestKind::Barrier { rank, size: 3 })).collect();
    matched(&ranks).unwrap();
    let queues: Vec<_> = ranks.iter().map(|_| queue()).collect();
    let enter = |rank: usize| {
        started(&queues[rank], &[&ranks[rank]]).unwrap();
        queues[rank].enqueue_wait().unwrap();
    };
    let is_through =
        |rank: usize| queues[rank].stream.synchronize(std::time::Duration::from_millis(20)).unwrap();
    enter(0);
    enter(1);
    assert!(!is_through(0) && !is_through(1));
    enter(2);
    queues.iter().for_each(|queue| queue.synchronize().unwrap());

    // The next rounds of a rank are on two queues, of which the first has not reached its start yet.
    let (go, other) = (gdsync::memop::Word32::new(&memory(&[0; 4]), 0).unwrap(), queue());
    let blocked = Batch::new().wait_value32(&go, gdsync::memop::Condition::Geq, 1);
    queues[0].stream.post(blocked, || {}).unwrap();
    enter(0);
    started(&other, &[&ranks[0]]).unwrap();
    other.enqueue_wait().unwrap();
    for _ in 0..2 {
        enter(1);
        enter(2);
    }
    assert!(!other.stream.synchronize(std::time::Duration::from_millis(20)).unwrap());
    go.store(1);
    queues.iter().chain([&other]).for_each(|queue| queue.synchronize().unwrap());

    // Rank 2 aborts in the next round.
    enter(0);
    enter(1);
    abort(&ranks[2].state.lock().peers);
    let failures: Vec<_> = std::thread::scope(|scope| {
        let waits: Vec<_> =
            queues[..2].iter().map(|queue| scope.spawn(|| queue.synchronize().unwrap_err())).collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    });
    assert!(failures.iter().all(|failure| failure.class == Class::Peer), "{failures:?}");
}

#[test]
fn a_queue_is_known_until_it_is_freed() {
    let queue = queue();
    let name = Arc::as_ptr(&queue).addr();
    assert!(Arc::ptr_eq(&queue::find(name).unwrap(), &queue));
    drop(queue);
    assert!(queue::find(name).unwrap_err().text.contains("until it is freed"));
    assert_eq!(queue::find(0).unwrap_err().class, Class::Argument);
}

fn partitioned(sends: bool, memory: &PinnedMemory, partitions: u32) -> Arc<Request> {
    let layout = Layout { partitions, bytes: memory.len() as u64 / u64::from(partitions) };
    request(RequestKind::Partitioned { sends, buffer: buffer(memory), layout })
}

fn start(request: &Request) -> Result<(), Failure> {
    request.with_partitions(|partitions, route| partitions.start(route))
}

fn ready(request: &Request, index: i32) -> Result<(), Failure> {
    request.with_partitions(|partitions, route| partitions.ready(index, route))
}

fn has_arrived(request: &Request, index: i32) -> Result<bool, Failure> {
    request.with_partitions(|partitions, route| partitions.arrived(index, route))
}

#[test]
fn partitions_arrive_in_any_order_and_not_before_the_receive_starts() {
    let (source, target) = (memory(&[0; 12]), memory(&[9; 12]));
    let (send, receive) = (partitioned(true, &source, 4), partitioned(false, &target, 4));
    // A round starts before its sides are matched.
    source.write(0, &[1; 12]);
    start(&send).unwrap();
    ready(&send, 2).unwrap();
    assert_eq!(pair(&send, &receive).unwrap(), 12);
    for round in 1..20 {
        if round > 1 {
            source.write(0, &[round; 12]);
            start(&send).unwrap();
            ready(&send, 2).unwrap();
        }
        // The write waits for the gate: the receive is still in its last round.
        std::thread::yield_now();
        assert_eq!(content(&target), [if round > 1 { round - 1 } else { 9 }; 12]);
        start(&receive).unwrap();
        while !has_arrived(&receive, 2).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(content(&target)[6..9], [round; 3]);
        assert!(!has_arrived(&receive, 0).unwrap());
        [3, 0, 1].into_iter().for_each(|index| ready(&send, index).unwrap());
        assert_eq!((send.wait().unwrap(), receive.wait().unwrap()), (0, 12));
        assert_eq!(content(&target), [round; 12]);
        assert!(has_arrived(&receive, 0).unwrap(), "a round that has ended is complete");
    }
    [send, receive].into_iter().for_each(queue::free_request);
}

#[test]
fn partitions_in_the_wrong_state_are_refused() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 8]));
    let (send, receive) = (partitioned(true, &source, 2), partitioned(false, &target, 2));
    let refused = |result: Result<(), Failure>, class, word: &str| {
        let failure = result.unwrap_err();
        assert_eq!(failure.class, class, "{failure}");
        assert!(failure.text.contains(word), "{failure}");
    };
    refused(ready(&send, 0), Class::Request, "is not started");
    start(&send).unwrap();
    refused(start(&send), Class::Request, "is started already");
    refused(ready(&send, 2), Class::Argument, "partition is 2");
    refused(ready(&send, -1), Class::Argument, "partition is -1");
    ready(&send, 1).unwrap();
    refused(ready(&send, 1), Class::Request, "ready already");
    refused(ready(&receive, 1), Class::Request, "receives");
    refused(has_arrived(&send, 1).map(drop), Class::Request, "sends");
    refused(has_arrived(&receive, 7).map(drop), Class::Argument, "has 2");
    refused(started(&queue(), &[&send]), Class::Request, "partitioned");
    refused(start(&transfer(true, &source)), Class::Request, "not partitioned");
    let (fewer, more) = (partitioned(true, &source, 2), partitioned(false, &target, 4));
    start(&more).unwrap();
    refused(pair(&fewer, &more).map(drop), Class::Argument, "partitions-2-of-4-bytes");
    more.abandon_match();
    refused(has_arrived(&more, 0).map(drop), Class::Request, "has not matched");
    refused(more.wait().map(drop), Class::Request, "has not matched");
}

#[test]
fn partitions_without_their_peer_fail() {
    let (source, target) = (memory(&[1; 8]), memory(&[0; 8]));
    let (send, receive) = (partitioned(true, &source, 2), partitioned(false, &target, 2));
    pair(&send, &receive).unwrap();
    start(&receive).unwrap();
    abort(&receive.state.lock().peers);
    start(&send).unwrap();
    ready(&send, 0).unwrap();
    // The round ends even though one partition is never ready.
    assert_eq!(send.wait().unwrap_err().class, Class::Peer);
    assert_eq!(receive.wait().unwrap_err().class, Class::Peer);
    // The queue pair has failed: no other round starts.
    start(&send).unwrap_err();
    assert_eq!(send.wait().unwrap(), 0);
}

#[test]
fn partitions_that_kernels_flag_are_sent() {
    let (source, target) = (memory(&[0; 6]), memory(&[9; 6]));
    let (send, receive) = (partitioned(true, &source, 3), partitioned(false, &target, 3));
    pair(&send, &receive).unwrap();
    // Without a current context of a GPU, the addresses are for the CPU. They stay the same.
    assert_eq!(
        (send.partition_flags().unwrap(), receive.partition_flags().is_ok()),
        (send.partition_flags().unwrap(), true)
    );
    let flagged = |request: &Request, index| {
        request.with_partitions(|partitions, _| Ok(partitions.flags()?.is_set(index))).unwrap_or(false)
    };
    let flag = |index| {
        send.with_partitions(|partitions, _| {
            partitions.flags()?.set(index);
            Ok(())
        })
    };
    for round in 1..4 {
        source.write(0, &[round; 6]);
        start(&send).unwrap();
        start(&receive).unwrap();
        flag(1).unwrap();
        while !flagged(&receive, 1) {
            assert!(poll_partition_flags() >= 2, "both rounds go on");
        }
        assert_eq!((content(&target)[2..4].to_vec(), flagged(&receive, 0)), (vec![round; 2], false));
        flag(0).unwrap();
        // The CPU may send partitions, too.
        ready(&send, 2).unwrap();
        while !(flagged(&receive, 0) && flagged(&receive, 2)) {
            poll_partition_flags();
        }
        assert_eq!((send.wait().unwrap(), receive.wait().unwrap()), (0, 6));
        assert_eq!(content(&target), [round; 6]);
    }
    let late = partitioned(true, &source, 3);
    start(&late).unwrap();
    assert_eq!(late.partition_flags().unwrap_err().class, Class::Request);
}
