use super::*;
use crate::control::message::Part;
use gdsync_sys::pause::Pause;
use gdsync_test_support::pair;

/// The meshes of a team, connected. The card gives a request up after 34 s.
fn meshes(size: u32, period: Duration) -> (ProtectionDomain, Vec<Mesh>) {
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let watch = Watch { connect: ConnectOptions::default().timeout(20), period };
    let mesh = |rank| Mesh::new(&pd, QueuePairConfig::default(), (rank, size), watch).unwrap();
    let mut meshes: Vec<_> = (0..size).map(mesh).collect();
    for own in 0..size {
        for other in (0..size).filter(|other| *other != own) {
            let remote = meshes[other as usize].endpoint(own).unwrap().unwrap();
            meshes[own as usize].connect(other, &remote, watch.connect).unwrap();
        }
    }
    (pd, meshes)
}

fn part(number: u32, bytes: usize) -> Message {
    Message::Part(Part { epoch: 0, number, bytes: vec![number as u8; bytes] })
}

fn letter(message: &Message) -> Letter {
    Letter::new(message.encode())
}

/// Polls all until a rank has heard so many messages.
fn hear(meshes: &mut [Mesh], rank: usize, count: usize) -> Vec<(u32, Message)> {
    let (mut heard, mut pause) = (Vec::new(), Pause::new());
    while heard.len() < count {
        for (at, mesh) in meshes.iter_mut().enumerate() {
            let news = mesh.poll();
            assert_eq!(news.dead, []);
            heard.extend(news.arrived.into_iter().filter(|_| at == rank));
        }
        pause.pause();
        assert!(pause.elapsed() < pair::LONG, "{} of {count}", heard.len());
    }
    heard
}

#[test]
fn messages_arrive_once_and_in_order_however_many_wait() {
    const COUNT: u32 = 100;
    let (_pd, mut meshes) = meshes(3, Duration::from_millis(1));
    // Some fit into the request, others have to wait for slots and for receives.
    let messages: Vec<_> = (0..COUNT).map(|number| part(number, number as usize * 5)).collect();
    for message in &messages {
        let letter = letter(message);
        (1..3).for_each(|rank| meshes[0].send(rank, &letter));
        meshes[2].send(1, &letter);
    }
    assert!(!meshes[0].is_flushed(1) && meshes[0].is_flushed(0));
    let heard = hear(&mut meshes, 1, 2 * COUNT as usize);
    for sender in [0, 2] {
        let of: Vec<_> =
            heard.iter().filter(|(rank, _)| *rank == sender).map(|(_, one)| one.clone()).collect();
        assert_eq!(of, messages);
    }
    let mut pause = Pause::new();
    while !(0..3).all(|rank| meshes[0].is_flushed(rank)) {
        meshes.iter_mut().for_each(|mesh| _ = mesh.poll());
        pause.pause();
    }
}

#[test]
fn a_rank_that_takes_nothing_holds_nobody_else_up_and_is_not_dead() {
    let (_pd, mut meshes) = meshes(3, Duration::from_millis(1));
    // More than rank 2 has receives for, of which it takes none.
    let messages: Vec<_> = (0..200).map(|number| part(number, 100)).collect();
    messages.iter().for_each(|message| meshes[0].send(2, &letter(message)));
    let one = part(0, 300);
    meshes[0].send(1, &letter(&one));
    let (awake, asleep) = meshes.split_at_mut(2);
    assert_eq!(hear(awake, 1, 1), [(0, one)]);
    assert!(!awake[0].is_flushed(2));
    _ = asleep;
    let heard = hear(&mut meshes, 2, messages.len());
    assert!(heard.into_iter().map(|(_, message)| message).eq(messages));
}

#[test]
fn a_renewed_connection_keeps_what_is_early_and_gives_slots_back() {
    let (pd, mut meshes) = meshes(2, Duration::from_millis(1));
    for round in 0..2 * LETTERS as u32 {
        // Posted, and not taken.
        meshes[0].send(1, &letter(&part(round, 100)));
        meshes[0].send_waiting(&mut News::default());
        let gone = meshes[0].cut(1);
        assert!(gone.arrived.is_empty() && meshes[0].is_flushed(1));
        // Another process is in the place of rank 1.
        let new = Mesh::new(
            &pd,
            QueuePairConfig::default(),
            (1, 2),
            Watch { connect: ConnectOptions::default().timeout(20), period: Duration::from_millis(1) },
        );
        meshes[1] = new.unwrap();
        meshes[0].renew(&pd, 1).unwrap();
        let ends = [meshes[0].endpoint(1).unwrap().unwrap(), meshes[1].endpoint(0).unwrap().unwrap()];
        let options = ConnectOptions::default().timeout(20);
        meshes[0].connect(1, &ends[1], options).unwrap();
        meshes[1].connect(0, &ends[0], options).unwrap();
        // It speaks before this rank knows that all are connected.
        let word = part(round, 200);
        meshes[1].send(0, &letter(&word));
        let mut pause = Pause::new();
        let early = |mesh: &Mesh| mesh.links[1].as_ref().and_then(|link| Some(link.early.as_ref()?.len()));
        while early(&meshes[0]) != Some(1) {
            meshes[1].poll();
            assert!(meshes[0].poll().arrived.is_empty());
            pause.pause();
        }
        assert_eq!(meshes[0].begin(), [(1, word)]);
        let answer = part(round, 300);
        meshes[0].send(1, &letter(&answer));
        assert_eq!(hear(&mut meshes, 1, 1), [(0, answer)]);
    }
}

#[test]
fn a_cut_connection_is_silent_and_a_failed_one_is_a_death() {
    let (_pd, mut meshes) = meshes(3, Duration::ZERO);
    meshes[0].links[1].as_ref().unwrap().queue_pair.abort().unwrap();
    // Found without a message.
    assert!(matches!(meshes[0].poll().dead[..], [(1, DeathCause::NoAnswer(FailureCause::Aborted))]));
    meshes[0].cut(1);
    assert_eq!(meshes[0].poll().dead, []);
    // Heard before the cut, and not after it.
    let (mut heard, mut pause) = (Vec::new(), Pause::new());
    meshes[2].send(0, &letter(&part(1, 9)));
    while heard.is_empty() {
        meshes[2].poll();
        heard.extend(meshes[0].poll().arrived);
        pause.pause();
    }
    assert_eq!(heard, [(2, part(1, 9))]);
    assert!(meshes[0].cut(2).has_sent && !meshes[0].cut(2).has_sent);
    meshes[2].send(0, &letter(&part(2, 9)));
    meshes[0].send(2, &letter(&part(3, 9)));
    assert!(meshes[0].is_flushed(2));
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(20) {
        meshes[2].poll();
        assert!(meshes[0].poll().arrived.is_empty());
    }
}
