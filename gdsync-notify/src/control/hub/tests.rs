use super::*;
use crate::control::message::Part;
use gdsync_sys::pause::Pause;
use gdsync_test_support::pair;

const SIZE: u32 = 6;
/// Reached by the same queue pair as rank 0.
const ENDS: u32 = LANES as u32;

/// The hubs of a team.
fn hubs() -> Vec<Hub> {
    // The card gives a request up after 4.096 µs * 2^20, eight times: 34 s.
    let patient = ConnectOptions::default().timeout(20);
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let hub = |rank| Hub::new(&pd, QueuePairConfig::default(), access, (rank, SIZE), patient).unwrap();
    let mut hubs: Vec<_> = (0..SIZE).map(hub).collect();
    let targets: Vec<_> =
        hubs.iter().map(|hub| (hub.target().endpoint().unwrap(), hub.target().key())).collect();
    for hub in &mut hubs {
        let own = hub.rank;
        for (rank, (remote, key)) in (0..).zip(&targets).filter(|(rank, _)| *rank != own) {
            let address = hub.address(remote, *key, patient).unwrap();
            hub.connect(rank, address);
        }
    }
    hubs
}

#[test]
fn messages_do_not_wait_for_the_probe_of_a_rank_that_has_ended() {
    let mut hubs = hubs();
    drop(hubs.remove(ENDS as usize));
    let [taker, sender, ..] = &mut hubs[..] else { unreachable!() };
    // It is time for a probe of each.
    assert!(sender.poll(Duration::ZERO, |_| true).dead.is_empty());
    assert!(sender.ranks[ENDS as usize].probe.is_some());
    let message = Message::Part(Part { epoch: 0, number: 0, bytes: b"part".to_vec() });
    sender.send(0, message.clone());
    let (mut pause, mut arrived) = (Pause::new(), Vec::new());
    while arrived.is_empty() {
        arrived = taker.poll(Duration::MAX, |_| true).arrived;
        assert!(
            sender.poll(Duration::MAX, |_| true).dead.is_empty(),
            "it waited until the rank was given up"
        );
        pause.pause();
    }
    assert_eq!(arrived, [(1, message)]);
    assert!(sender.ranks[ENDS as usize].probe.is_some());
}
