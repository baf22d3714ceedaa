use super::*;
use crate::control::message::Contribution;
use gdsync_sys::pause::Pause;
use gdsync_test_support::pair;

/// The connected transports of a team. The card gives a request up after 34 s.
fn transports(size: u32, period: Duration) -> (ProtectionDomain, Vec<RcTransport>) {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let options = ControlOptions { connect: ConnectOptions::default().timeout(20), period };
    let rc = |rank| RcTransport::new(&pd, QueuePairConfig::default(), (rank, size), options).unwrap();
    let mut transports: Vec<_> = (0..size).map(rc).collect();
    for own in 0..size {
        for other in (0..size).filter(|other| *other != own) {
            let remote = transports[other as usize].endpoint(own).unwrap().unwrap();
            transports[own as usize].connect(other, &remote, options.connect).unwrap();
        }
    }
    (pd, transports)
}

fn contribution(number: u32, bytes: usize) -> Message {
    Message::Contribution(Contribution { epoch: 0, number, bytes: vec![number as u8; bytes] })
}

fn encoded(message: &Message) -> Encoded {
    Encoded::new(message.encode())
}

/// Polls all until a rank has received so many messages.
fn hear(transports: &mut [RcTransport], rank: usize, count: usize) -> Vec<(u32, Message)> {
    let (mut heard, mut pause) = (Vec::new(), Pause::new());
    while heard.len() < count {
        for (at, rc) in transports.iter_mut().enumerate() {
            let events = rc.poll();
            assert_eq!(events.dead, []);
            heard.extend(events.arrived.into_iter().filter(|_| at == rank));
        }
        pause.pause();
        assert!(pause.elapsed() < pair::LONG, "{} of {count}", heard.len());
    }
    heard
}

#[test]
fn messages_arrive_once_and_in_order_however_many_wait() {
    const COUNT: u32 = 100;
    let (_pd, mut transports) = transports(3, Duration::from_millis(1));
    // Some messages are inline, others must wait for slots and for receives.
    let messages: Vec<_> = (0..COUNT).map(|number| contribution(number, number as usize * 5)).collect();
    for message in &messages {
        let encoded = encoded(message);
        (1..3).for_each(|rank| transports[0].send(rank, &encoded));
        transports[2].send(1, &encoded);
    }
    assert!(!transports[0].is_flushed(1) && transports[0].is_flushed(0));
    let heard = hear(&mut transports, 1, 2 * COUNT as usize);
    for sender in [0, 2] {
        let of: Vec<_> =
            heard.iter().filter(|(rank, _)| *rank == sender).map(|(_, one)| one.clone()).collect();
        assert_eq!(of, messages);
    }
    let mut pause = Pause::new();
    while !(0..3).all(|rank| transports[0].is_flushed(rank)) {
        transports.iter_mut().for_each(|rc| _ = rc.poll());
        pause.pause();
    }
}

#[test]
fn a_rank_that_takes_nothing_holds_nobody_else_up_and_is_not_dead() {
    let (_pd, mut transports) = transports(3, Duration::from_millis(1));
    // More messages than rank 2 has receives, none of which it takes.
    let messages: Vec<_> = (0..200).map(|number| contribution(number, 100)).collect();
    messages.iter().for_each(|message| transports[0].send(2, &encoded(message)));
    let one = contribution(0, 300);
    transports[0].send(1, &encoded(&one));
    let (awake, asleep) = transports.split_at_mut(2);
    assert_eq!(hear(awake, 1, 1), [(0, one)]);
    assert!(!awake[0].is_flushed(2));
    _ = asleep;
    let heard = hear(&mut transports, 2, messages.len());
    assert!(heard.into_iter().map(|(_, message)| message).eq(messages));
}

#[test]
fn a_renewed_connection_keeps_what_is_early_and_gives_slots_back() {
    let (pd, mut transports) = transports(2, Duration::from_millis(1));
    for round in 0..2 * SEND_BUFFERS as u32 {
        // Posted and not taken.
        transports[0].send(1, &encoded(&contribution(round, 100)));
        transports[0].send_waiting(&mut Events::default());
        let gone = transports[0].cut(1);
        assert!(gone.arrived.is_empty() && transports[0].is_flushed(1));
        // Another process takes the place of rank 1.
        let new = RcTransport::new(
            &pd,
            QueuePairConfig::default(),
            (1, 2),
            ControlOptions {
                connect: ConnectOptions::default().timeout(20),
                period: Duration::from_millis(1),
            },
        );
        transports[1] = new.unwrap();
        transports[0].renew(&pd, 1).unwrap();
        let ends = [transports[0].endpoint(1).unwrap().unwrap(), transports[1].endpoint(0).unwrap().unwrap()];
        let options = ConnectOptions::default().timeout(20);
        transports[0].connect(1, &ends[1], options).unwrap();
        transports[1].connect(0, &ends[0], options).unwrap();
        // It sends before this rank knows that all are connected.
        let word = contribution(round, 200);
        transports[1].send(0, &encoded(&word));
        let mut pause = Pause::new();
        let early = |rc: &RcTransport| rc.peers[1].as_ref().and_then(|peer| Some(peer.early.as_ref()?.len()));
        while early(&transports[0]) != Some(1) {
            transports[1].poll();
            assert!(transports[0].poll().arrived.is_empty());
            pause.pause();
        }
        assert_eq!(transports[0].begin(), [(1, word)]);
        let answer = contribution(round, 300);
        transports[0].send(1, &encoded(&answer));
        assert_eq!(hear(&mut transports, 1, 1), [(0, answer)]);
    }
}

#[test]
fn a_cut_connection_is_silent_and_a_failed_one_is_a_death() {
    let (_pd, mut transports) = transports(3, Duration::ZERO);
    transports[0].peers[1].as_ref().unwrap().queue_pair.abort().unwrap();
    // Found without a message.
    assert!(matches!(transports[0].poll().dead[..], [(1, DeathCause::NoAnswer(FailureCause::Aborted))]));
    transports[0].cut(1);
    assert_eq!(transports[0].poll().dead, []);
    // Received before the cut, not after it.
    let (mut heard, mut pause) = (Vec::new(), Pause::new());
    transports[2].send(0, &encoded(&contribution(1, 9)));
    while heard.is_empty() {
        transports[2].poll();
        heard.extend(transports[0].poll().arrived);
        pause.pause();
    }
    assert_eq!(heard, [(2, contribution(1, 9))]);
    assert!(transports[0].cut(2).has_sent && !transports[0].cut(2).has_sent);
    transports[2].send(0, &encoded(&contribution(2, 9)));
    transports[0].send(2, &encoded(&contribution(3, 9)));
    assert!(transports[0].is_flushed(2));
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(20) {
        transports[2].poll();
        assert!(transports[0].poll().arrived.is_empty());
    }
}

fn content(slice: &Slice, send_buffers: &SendBuffers, slot: usize) -> Vec<u8> {
    let mut bytes = vec![0; slice.len()];
    send_buffers.memory.read(slot * send_buffers.slot_bytes, &mut bytes);
    bytes
}

#[test]
fn a_letter_has_one_place_and_keeps_it_while_it_is_in_flight() {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let mut send_buffers = SendBuffers::new(&pd, 2, 64).unwrap();
    let [one, two, three] = [b"one", b"two", b"3ee"].map(|text| Encoded::new(text.to_vec()));
    let mut send = |encoded: &Encoded| {
        let (slot, slice) = send_buffers.place(encoded).unwrap()?;
        send_buffers.posted(slot);
        assert_eq!(content(&slice, &send_buffers, slot), **encoded);
        Some(slot)
    };
    let first = send(&one).unwrap();
    assert_eq!(send(&one), Some(first));
    let second = send(&two).unwrap();
    assert_ne!(first, second);
    assert_eq!(send(&three), None, "there is no room");
    send_buffers.done(first);
    assert!(send_buffers.place(&three).unwrap().is_none(), "one is under way still");
    send_buffers.done(first);
    let (slot, slice) = send_buffers.place(&three).unwrap().unwrap();
    assert_eq!((slot, content(&slice, &send_buffers, slot)), (first, b"3ee".to_vec()));
    assert!(send_buffers.place(&two).unwrap().is_some_and(|(slot, _)| slot == second));
}
