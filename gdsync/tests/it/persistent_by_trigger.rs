//! Lists that one write of a trigger's word starts.

use crate::persistent_lists::{gate, recv_of, send_of};
use gdsync::persistent::{
    ListError, PersistentError, PersistentRecv, PersistentSend, Request, start_all, start_all_by_trigger,
    wait_all,
};
use gdsync::qp::CardWord;
use gdsync::queue::{OrderError, QueueError, RequestError, StateError, Syndrome};
use gdsync::stream::{PostFailure, Posted, StreamOptions};
use gdsync::{
    ConnectOptions, MemoryRegion, ProtectionDomain, QueuePairConfig, SoftStream, Stream, Trigger, WorkRequest,
};
use gdsync_test_support::pair::{self, LONG, Pair, content, soft, synchronize};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(20);
const PEERS: usize = 12;

/// A message to each of several peers, whose receives announce when they may be written.
struct Peer {
    pair: Pair,
    source: MemoryRegion,
    target: MemoryRegion,
    send: PersistentSend,
    receive: PersistentRecv,
    ready: PersistentSend,
}

impl Peer {
    /// A card that does not retry messages without a receive: all arrive when their receives are there.
    fn new(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Self {
        let queue_pair = || pair::queue_pair(pd, config).unwrap();
        let (left, right) = (queue_pair(), queue_pair());
        let options = ConnectOptions::default().rnr_retry(0);
        left.connect(&right.endpoint().unwrap(), options).unwrap();
        right.connect(&left.endpoint().unwrap(), options).unwrap();
        let pair = Pair { device: pd.device(), pd: pd.clone(), left, right };
        let (source, target, words) = (pair.region(8), pair.region(8), pair.region(8));
        let word = CardWord::in_region(&words, 0).unwrap();
        let send = send_of(&pair.left, &source, 0).card_wait(&word).unwrap();
        let receive = recv_of(&pair.right, &target, 0);
        let ready = PersistentSend::write_start_count(&pair.right, word.remote()).unwrap();
        Peer { pair, source, target, send, receive, ready }
    }

    /// The requests that its sending and its receiving side start.
    fn both(&mut self) -> [&mut dyn Request; 3] {
        [&mut self.send, &mut self.receive, &mut self.ready]
    }

    /// The requests for which streams wait.
    fn awaited(&mut self) -> [&mut dyn Request; 2] {
        [&mut self.send, &mut self.receive]
    }

    fn complete(&mut self) {
        for request in [&mut self.send, &mut self.ready] {
            assert_eq!(request.complete(LONG).unwrap().unwrap().status, Ok(()));
        }
        assert_eq!(self.receive.complete(LONG).unwrap().unwrap().status, Ok(()));
    }
}

fn domain() -> ProtectionDomain {
    ProtectionDomain::new(&pair::device()).unwrap()
}

fn one() -> (ProtectionDomain, Trigger, Peer) {
    let pd = domain();
    let (trigger, peer) = (Trigger::new(&pd).unwrap(), Peer::new(&pd, QueuePairConfig::default()));
    (pd, trigger, peer)
}

fn start_both(peer: &mut Peer, stream: &Stream<SoftStream>, trigger: &Trigger) -> Result<Posted, ListError> {
    start_all_by_trigger(&mut peer.both(), stream, trigger, LONG)
}

fn queue_error(result: Result<Posted, ListError>) -> (Option<usize>, QueueError) {
    let ListError { index, source } = result.unwrap_err();
    match source {
        PersistentError::Queue(error) | PersistentError::Post(PostFailure::Queue(error)) => (index, error),
        error => panic!("{error}"),
    }
}

/// With the card's waits, a start and a wait of many peers are a memory operation each, and no message comes before
/// the stream has started its receive.
#[test]
fn one_write_starts_a_list_and_one_wait_ends_it() {
    let pd = domain();
    let trigger = Trigger::new(&pd).unwrap();
    let options = StreamOptions::default().collect_from(Some(2));
    let stream = Stream::with_options(SoftStream::new().unwrap(), options).unwrap();
    let mut peers: Vec<_> = (0..PEERS).map(|_| Peer::new(&pd, QueuePairConfig::default())).collect();
    for round in 0..40u64 {
        for peer in &peers {
            peer.source.write(0, &round.to_ne_bytes());
        }
        let late = (round % 8 == 0).then(|| gate(&stream));
        let mut all: Vec<_> = peers.iter_mut().flat_map(Peer::both).collect();
        let posted = start_all_by_trigger(&mut all, &stream, &trigger, LONG).unwrap();
        assert_eq!((posted.operations, posted.submissions), (1, 1));
        if let Some(late) = late {
            let mut awaited: Vec<_> = peers.iter_mut().flat_map(Peer::awaited).collect();
            let posted = wait_all(&mut awaited, &stream, LONG).unwrap();
            // The word of the collector, and the point of the timeline.
            assert_eq!((posted.operations, posted.submissions), (2, 1));
            std::thread::sleep(SHORT);
            let before = round.wrapping_sub(1).to_ne_bytes();
            assert!(round == 0 || peers.iter().all(|peer| content(&peer.target) == before));
            late.store(1);
        } else {
            let mut awaited: Vec<_> = peers.iter_mut().flat_map(Peer::awaited).collect();
            wait_all(&mut awaited, &stream, LONG).unwrap();
        }
        synchronize(&stream);
        assert!(peers.iter().all(|peer| content(&peer.target) == round.to_ne_bytes()));
    }
    peers.iter_mut().for_each(Peer::complete);
}

/// Both sides start many rounds before either stream has reached the first one.
#[test]
fn rounds_wait_behind_each_other() {
    let (_pd, trigger, mut peer) = one();
    let other = Trigger::new(&peer.pair.pd).unwrap();
    let (sender, receiver) = (soft(), soft());
    let late = [gate(&sender), gate(&receiver)];
    for _ in 0..5 {
        start_all_by_trigger(&mut [&mut peer.send], &sender, &trigger, LONG).unwrap();
        wait_all(&mut [&mut peer.send], &sender, LONG).unwrap();
        start_all_by_trigger(&mut [&mut peer.receive, &mut peer.ready], &receiver, &other, LONG).unwrap();
        wait_all(&mut [&mut peer.receive], &receiver, LONG).unwrap();
    }
    std::thread::sleep(SHORT);
    late.iter().for_each(|late| late.store(1));
    synchronize(&sender);
    synchronize(&receiver);
    peer.complete();
}

/// A queue pair may be started by doorbells, and by several triggers, one after the other.
#[test]
fn ways_of_starting_follow_each_other() {
    let (pd, first, mut peer) = one();
    let second = Trigger::new(&pd).unwrap();
    let (stream, next) = (soft(), soft());
    for trigger in [Some(&first), None, Some(&second), Some(&first), None] {
        match trigger {
            Some(trigger) => start_both(&mut peer, &stream, trigger).unwrap(),
            None => start_all(&mut peer.both(), &stream, LONG).unwrap(),
        };
        wait_all(&mut peer.awaited(), &stream, LONG).unwrap();
        synchronize(&stream);
        peer.complete();
    }
    // Another stream may write the word once the first has.
    start_both(&mut peer, &next, &first).unwrap();
    peer.complete();
}

#[test]
fn what_another_stream_has_still_to_do_is_not_overtaken() {
    let (pd, trigger, mut peer) = one();
    let mut second = Peer::new(&pd, QueuePairConfig::default());
    let (stream, other) = (soft(), soft());
    let late = gate(&stream);
    start_both(&mut peer, &stream, &trigger).unwrap();
    // The trigger's word.
    let (index, error) = queue_error(start_both(&mut second, &other, &trigger));
    assert_eq!(index, None);
    assert!(matches!(error, QueueError::Order(OrderError::TriggerOnOtherStream { .. })), "{error}");
    assert!(!second.send.is_active() && !second.receive.is_active());
    // Doorbells of the same queue pair.
    start_all(&mut [&mut second.send], &stream, LONG).unwrap();
    let mut again = send_of(&second.pair.left, &second.source, 0);
    let free = Trigger::new(&pd).unwrap();
    let (index, error) = queue_error(start_all_by_trigger(&mut [&mut again], &other, &free, LONG));
    assert_eq!(index, Some(0));
    assert!(matches!(error, QueueError::Order(OrderError::OtherStream { .. })), "{error}");
    // Sends that are prepared.
    let third = Peer::new(&pd, QueuePairConfig::default());
    let prepared = third.pair.left.prepare(WorkRequest::send(&[])).unwrap();
    let mut again = send_of(&third.pair.left, &third.source, 0);
    let (_, error) = queue_error(start_all_by_trigger(&mut [&mut again], &other, &free, LONG));
    assert!(matches!(error, QueueError::Order(OrderError::OutOfOrder { .. })), "{error}");
    drop(prepared);
    // Receives that a stream has yet to announce.
    let mut announced = recv_of(&third.pair.right, &third.target, 0);
    announced.start(&stream).unwrap();
    let mut again = recv_of(&third.pair.right, &third.target, 0);
    let (_, error) = queue_error(start_all_by_trigger(&mut [&mut again], &stream, &free, LONG));
    assert!(matches!(error, QueueError::Order(OrderError::ReceivesOnStream { .. })), "{error}");
    late.store(1);
    synchronize(&stream);
    peer.complete();
}

#[test]
fn queue_pairs_of_other_domains_and_with_triggers_are_refused() {
    let (pd, trigger, mut peer) = one();
    let stream = soft();
    let foreign = Trigger::new(&ProtectionDomain::new(&peer.pair.device).unwrap()).unwrap();
    let (index, error) = queue_error(start_both(&mut peer, &stream, &foreign));
    assert_eq!(index, Some(0));
    assert!(matches!(error, QueueError::Request(RequestError::WrongDomain { .. })), "{error}");
    let own = pair::queue_pair(&pd, QueuePairConfig::default().trigger(&trigger)).unwrap();
    let mut send = send_of(&own, &peer.source, 0);
    let result = start_all_by_trigger(&mut [&mut peer.send, &mut send], &stream, &trigger, LONG);
    let (index, error) = queue_error(result);
    assert_eq!(index, Some(1));
    assert_eq!(error, QueueError::State(StateError::OwnTrigger { qpn: own.number() }));
    assert!(error.to_string().contains("without another"), "{error}");
    assert!(!peer.send.is_active());
}

/// A list that is refused leaves nothing in any queue: as many starts as before have room.
#[test]
fn a_refused_list_takes_no_room() {
    let (pd, trigger, mut peer) = one();
    let stream = soft();
    let mut small = Peer::new(&pd, QueuePairConfig::default().send_depth(2).recv_depth(2));
    let late = gate(&stream);
    let mut others: Vec<_> = (0..200).map(|_| send_of(&small.pair.left, &small.source, 0)).collect();
    for _ in 0..50 {
        let others = others.iter_mut().map(|other| other as &mut dyn Request);
        let mut list: Vec<_> = peer.both().into_iter().chain(others).collect();
        let (_, error) = queue_error(start_all_by_trigger(&mut list, &stream, &trigger, Duration::ZERO));
        assert!(matches!(error, QueueError::Full(_)), "{error}");
    }
    start_both(&mut peer, &stream, &trigger).unwrap();
    start_both(&mut small, &stream, &trigger).unwrap();
    late.store(1);
    peer.complete();
    small.complete();
}

#[test]
fn an_active_request_is_refused() {
    let (_pd, trigger, mut peer) = one();
    let stream = soft();
    let late = gate(&stream);
    start_both(&mut peer, &stream, &trigger).unwrap();
    let error = start_all_by_trigger(&mut [&mut peer.receive], &stream, &trigger, LONG).unwrap_err();
    assert!(matches!(error, ListError { index: Some(0), source: PersistentError::Active }), "{error}");
    late.store(1);
    peer.complete();
}

/// Work that a failed stream will not release can never be released: it fails, too.
#[test]
fn a_stream_that_fails_ends_what_waits_for_its_ticket() {
    let (_pd, trigger, mut peer) = one();
    let stream = soft();
    let late = gate(&stream);
    stream.launch(|| panic!("a broken kernel")).unwrap();
    start_both(&mut peer, &stream, &trigger).unwrap();
    late.store(1);
    assert!(stream.synchronize_timeout(LONG).is_err());
    for request in [&mut peer.send, &mut peer.ready] {
        let done = request.complete(LONG).unwrap().expect("it ends");
        assert_eq!(done.status.unwrap_err().kind(), Some(Syndrome::WrFlush));
    }
    assert!(peer.receive.complete(LONG).unwrap().unwrap().status.is_err());
}

/// Threads that start lists by one trigger on one stream take turns.
#[test]
fn threads_share_a_trigger() {
    let pd = domain();
    let (trigger, stream) = (Trigger::new(&pd).unwrap(), soft());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut peer = Peer::new(&pd, QueuePairConfig::default());
                for _ in 0..200 {
                    start_both(&mut peer, &stream, &trigger).unwrap();
                    wait_all(&mut peer.awaited(), &stream, LONG).unwrap();
                }
                peer.complete();
            });
        }
    });
}

/// The stream continues if work of a list fails before its ticket is written, and after.
#[test]
fn an_abort_flushes_what_waits_for_a_ticket() {
    let (_pd, trigger, mut peer) = one();
    let stream = soft();
    let late = gate(&stream);
    start_both(&mut peer, &stream, &trigger).unwrap();
    wait_all(&mut peer.awaited(), &stream, LONG).unwrap();
    peer.pair.left.abort().unwrap();
    peer.pair.right.abort().unwrap();
    late.store(1);
    synchronize(&stream);
    for request in [&mut peer.send, &mut peer.ready] {
        let done = request.complete(LONG).unwrap().unwrap();
        assert_eq!(done.status.unwrap_err().kind(), Some(Syndrome::WrFlush));
    }
    assert!(peer.receive.complete(LONG).unwrap().unwrap().status.is_err());
    let (_, error) = queue_error(start_both(&mut peer, &stream, &trigger));
    assert!(matches!(error, QueueError::State(StateError::Failed { .. })), "{error}");
}
