use super::*;
use crate::control::message::Contribution;
use gdsync_sys::pause::Pause;
use gdsync_test_support::pair;

const SIZE: u32 = 6;
/// A rank that shares a queue pair with rank 0.
const ENDS: u32 = DCIS as u32;

fn transports() -> Vec<DcTransport> {
    // The card gives a request up after 4.096 µs * 2^20 * 8: 34 s.
    let patient = ConnectOptions::default().timeout(20);
    let pd = ProtectionDomain::new(&pair::device()).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let dc = |rank| DcTransport::new(&pd, QueuePairConfig::default(), access, (rank, SIZE), patient).unwrap();
    let mut transports: Vec<_> = (0..SIZE).map(dc).collect();
    let targets: Vec<_> =
        transports.iter().map(|dc| (dc.target().endpoint().unwrap(), dc.target().key())).collect();
    for dc in &mut transports {
        let own = dc.rank;
        for (rank, (remote, key)) in (0..).zip(&targets).filter(|(rank, _)| *rank != own) {
            let address = dc.address(remote, *key, patient).unwrap();
            dc.connect(rank, address);
        }
    }
    transports
}

#[test]
fn messages_do_not_wait_for_the_probe_of_a_rank_that_has_ended() {
    let mut transports = transports();
    drop(transports.remove(ENDS as usize));
    let [kernels, sender, ..] = &mut transports[..] else { unreachable!() };
    // It is time for a probe of each.
    assert!(sender.poll(Duration::ZERO, |_| true).dead.is_empty());
    assert!(sender.peers[ENDS as usize].probe.is_some());
    let message = Message::Contribution(Contribution { epoch: 0, number: 0, bytes: b"part".to_vec() });
    sender.send(0, message.clone());
    let (mut pause, mut arrived) = (Pause::new(), Vec::new());
    while arrived.is_empty() {
        arrived = kernels.poll(Duration::MAX, |_| true).arrived;
        assert!(
            sender.poll(Duration::MAX, |_| true).dead.is_empty(),
            "it waited until the rank was given up"
        );
        pause.pause();
    }
    assert_eq!(arrived, [(1, message)]);
    assert!(sender.peers[ENDS as usize].probe.is_some());
}
