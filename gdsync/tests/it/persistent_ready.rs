//! Sends that the card delays until the other side has posted their receives.

use crate::persistent_lists::{gate, recv_of, send_of};
use gdsync::advanced::MasterConfig;
use gdsync::persistent::{PersistentError, PersistentRecv, PersistentSend, Request, start_all, wait_all};
use gdsync::qp::CardWord;
use gdsync::queue::Syndrome;
use gdsync::verbs::QueuePairError;
use gdsync::{
    Access, ConnectOptions, Device, Error, MemoryRegion, ProtectionDomain, QueueError, QueuePair,
    QueuePairConfig, SoftStream, Stream, Trigger,
};
use gdsync_test_support::pair::{self, LONG, Pair, content, soft, synchronize};
use gdsync_test_support::process::alone;
use gdsync_test_support::{on_system, skipped};
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(20);

/// A message, its receive, and the announcement of the receive, on a card that does not retry messages without a
/// receive.
struct Ready {
    pair: Pair,
    source: MemoryRegion,
    target: MemoryRegion,
    word: CardWord,
    send: PersistentSend,
    receive: PersistentRecv,
    ready: PersistentSend,
}

impl Ready {
    fn with(config: QueuePairConfig<'_>) -> Self {
        let pair = Pair::with(config, ConnectOptions::default().rnr_retry(0));
        Self::of(pair)
    }

    fn of(pair: Pair) -> Self {
        let (source, target) = (pair.region(8), pair.region(8));
        let words = MemoryRegion::allocate(&pair.pd, 8, Access::all()).unwrap();
        let word = CardWord::in_region(&words, 0).unwrap();
        let send = send_of(&pair.left, &source, 0).card_wait(&word).unwrap();
        let receive = recv_of(&pair.right, &target, 0);
        let ready = PersistentSend::write_start_count(&pair.right, word.remote()).unwrap();
        Ready { pair, source, target, word, send, receive, ready }
    }

    fn start_receive(&mut self, stream: &Stream<SoftStream>) {
        start_all(&mut [&mut self.receive, &mut self.ready], stream, LONG).unwrap();
    }

    fn number(&self) -> u64 {
        Trigger::word_of(self.word.load().unwrap())
    }

    fn complete(&mut self) {
        for request in [&mut self.send, &mut self.ready] {
            assert_eq!(request.complete(LONG).unwrap().unwrap().status, Ok(()));
        }
        let done = self.receive.complete(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.byte_len), (Ok(()), 8));
    }
}

#[test]
fn a_message_goes_when_its_receive_is_there_and_not_before() {
    let mut both = Ready::with(QueuePairConfig::default());
    let (sender, receiver) = (soft(), soft());
    for round in 1..=100u64 {
        both.source.write(0, &round.to_ne_bytes());
        start_all(&mut [&mut both.send], &sender, LONG).unwrap();
        wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
        if round < 4 {
            std::thread::sleep(SHORT);
            assert!(!sender.synchronize_timeout(Duration::ZERO).unwrap(), "the card holds it back");
            assert_eq!(both.number(), round - 1);
        }
        both.start_receive(&receiver);
        wait_all(&mut [&mut both.receive], &receiver, LONG).unwrap();
        synchronize(&sender);
        synchronize(&receiver);
        assert_eq!(content(&both.target), round.to_ne_bytes());
        assert_eq!(both.number(), round);
    }
    both.complete();
}

/// One side's stream performs several starts before the other one begins, and no start waits for the announcements of
/// the receives.
#[test]
fn many_starts_are_outstanding() {
    let mut both = Ready::with(QueuePairConfig::default().send_depth(64).recv_depth(64));
    let (sender, receiver) = (soft(), soft());
    let late = gate(&receiver);
    for _ in 0..20 {
        start_all(&mut [&mut both.send], &sender, LONG).unwrap();
        wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
        both.start_receive(&receiver);
        wait_all(&mut [&mut both.receive], &receiver, LONG).unwrap();
    }
    std::thread::sleep(SHORT);
    assert_eq!(both.number(), 0);
    late.store(1);
    synchronize(&sender);
    synchronize(&receiver);
    assert_eq!(both.number(), 20);
    both.complete();
}

#[test]
fn a_trigger_and_the_other_side_both_release_a_send() {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let trigger = Trigger::new(&pd).unwrap();
    let (left, right) = (
        pair::queue_pair(&pd, QueuePairConfig::default().trigger(&trigger)).unwrap(),
        pair::queue_pair(&pd, QueuePairConfig::default()).unwrap(),
    );
    let options = ConnectOptions::default().rnr_retry(0);
    left.connect(&right.endpoint().unwrap(), options).unwrap();
    right.connect(&left.endpoint().unwrap(), options).unwrap();
    let mut both = Ready::of(Pair { device: pd.device(), pd, left, right });
    let (sender, receiver) = (soft(), soft());
    for is_sender_first in [true, false, true] {
        let late = gate(if is_sender_first { &receiver } else { &sender });
        start_all(&mut [&mut both.send], &sender, LONG).unwrap();
        wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
        both.start_receive(&receiver);
        wait_all(&mut [&mut both.receive], &receiver, LONG).unwrap();
        std::thread::sleep(SHORT);
        assert!(!sender.synchronize_timeout(Duration::ZERO).unwrap());
        late.store(1);
        synchronize(&sender);
        synchronize(&receiver);
    }
    both.complete();
}

/// A refused list takes its sends back, together with the card's waits.
#[test]
fn a_refused_list_leaves_nothing_that_waits() {
    let mut both = Ready::with(QueuePairConfig::default().send_depth(2).recv_depth(4));
    let (sender, receiver) = (soft(), soft());
    let mut others: Vec<_> = (0..200).map(|_| send_of(&both.pair.left, &both.source, 0)).collect();
    let others = others.iter_mut().map(|other| other as &mut dyn Request);
    let mut list: Vec<&mut dyn Request> =
        [&mut both.send as &mut dyn Request].into_iter().chain(others).collect();
    let error = start_all(&mut list, &sender, Duration::ZERO).unwrap_err();
    assert!(matches!(error.source, PersistentError::Queue(QueueError::Full(_))), "{error}");
    assert!(!both.send.is_active());
    // The first start is still the first one.
    both.start_receive(&receiver);
    start_all(&mut [&mut both.send], &sender, LONG).unwrap();
    wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
    synchronize(&sender);
    both.complete();
}

/// A delayed message sends nothing to the other side. When the program releases it, the card sends it.
#[test]
fn a_program_that_has_waited_long_enough_lets_a_message_go() {
    let mut both = Ready::with(QueuePairConfig::default());
    let sender = soft();
    start_all(&mut [&mut both.send], &sender, LONG).unwrap();
    wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
    std::thread::sleep(SHORT);
    assert!(!sender.synchronize_timeout(Duration::ZERO).unwrap());
    both.word.raise(1).unwrap();
    synchronize(&sender);
    let done = both.send.complete(LONG).unwrap().unwrap();
    assert_eq!(done.status.unwrap_err().kind(), Some(Syndrome::RnrRetryExceeded));
    // A word only grows.
    both.word.raise(0).unwrap();
    assert_eq!(both.number(), 1);
}

#[test]
fn an_abort_flushes_what_is_held_back() {
    let mut both = Ready::with(QueuePairConfig::default());
    let sender = soft();
    start_all(&mut [&mut both.send], &sender, LONG).unwrap();
    wait_all(&mut [&mut both.send], &sender, LONG).unwrap();
    both.pair.left.abort().unwrap();
    synchronize(&sender);
    assert!(both.send.complete(LONG).unwrap().unwrap().status.is_err());
}

/// The card continues to wait for the word of a dropped request, and performs the send.
#[test]
fn the_word_stays_as_long_as_the_card_waits_for_it() {
    let mut both = Ready::with(QueuePairConfig::default());
    let (sender, receiver) = (soft(), soft());
    start_all(&mut [&mut both.send], &sender, LONG).unwrap();
    synchronize(&sender);
    let Ready { pair, source, target, word, send, mut receive, mut ready } = both;
    drop((send, word, source));
    start_all(&mut [&mut receive, &mut ready], &receiver, LONG).unwrap();
    assert_eq!(receive.complete(LONG).unwrap().unwrap().status, Ok(()));
    drop((pair, target));
}

#[test]
fn words_behind_which_nothing_can_be_sent_are_refused() {
    let pair = Pair::new();
    let region = pair.region(8);
    let other = ProtectionDomain::new(&pair.device).unwrap();
    let foreign = MemoryRegion::allocate(&other, 8, Access::all()).unwrap();
    let refused = |queue_pair: &QueuePair, word: &CardWord| {
        let slices =
            if queue_pair.number() == pair.left.number() { vec![region.slice(..).unwrap()] } else { vec![] };
        match PersistentSend::send(queue_pair, &slices).unwrap().card_wait(word).unwrap_err() {
            Error::QueuePair(error) => error,
            error => panic!("{error}"),
        }
    };
    let word = CardWord::in_region(&foreign, 0).unwrap();
    assert_eq!(refused(&pair.left, &word), QueuePairError::OtherDomain);
    assert!(matches!(CardWord::in_region(&foreign, 4), Err(Error::Word(_))));
    // Without room for its number.
    let small = pair::queue_pair(&pair.pd, QueuePairConfig::default().inline(0)).unwrap();
    if small.max_inline() < 8 {
        let error = PersistentSend::write_start_count(&small, region.remote()).unwrap_err();
        assert!(matches!(error, QueueError::Request(_)), "{error}");
    }
    if on_system() {
        return skipped(
            "words_behind_which_nothing_can_be_sent_are_refused",
            "masters of the software provider",
        );
    }
    let trigger = Trigger::new(&pair.pd).unwrap().with_master(MasterConfig::default()).unwrap();
    let released = QueuePair::new(&pair.pd, QueuePairConfig::default().trigger(&trigger)).unwrap();
    let words = MemoryRegion::allocate(&pair.pd, 8, Access::all()).unwrap();
    let error = refused(&released, &CardWord::in_region(&words, 0).unwrap());
    assert_eq!(error, QueuePairError::MasterWaits { qpn: released.number() });
    assert!(error.to_string().contains("without a master"), "{error}");
}

#[test]
fn a_card_that_does_not_wait_holds_nothing_back() {
    let test = "a_card_that_does_not_wait_holds_nothing_back";
    if on_system() {
        return skipped(test, "settings of the software provider");
    }
    if !alone(module_path!(), test, &[("SOFTHCA_WAITS", "off")]) {
        return;
    }
    let pd = ProtectionDomain::new(&Device::software().unwrap()).unwrap();
    let queue_pair = QueuePair::new(&pd, QueuePairConfig::default()).unwrap();
    let region = MemoryRegion::allocate(&pd, 8, Access::all()).unwrap();
    let word = CardWord::in_region(&region, 0).unwrap();
    let error = PersistentSend::send(&queue_pair, &[]).unwrap().card_wait(&word).unwrap_err();
    assert!(matches!(error, Error::QueuePair(QueuePairError::NoCardWaits { .. })), "{error}");
}
