//! Management datagrams.

use super::*;
use crate::card::management::{MAX_MANAGEMENT, ManagementDatagram};
use crate::faults::FaultPlan;
use std::sync::Mutex;

fn card(link: LinkLayer) -> (Card, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    (Card::stopped(link, Box::new(move |event| sink.lock().unwrap().push(event))).unwrap(), events)
}

fn step(card: &Card) {
    let mut engine = card.shared.engine.lock();
    engine.step(Instant::now());
    card.shared.deliver_events(engine);
}

fn arrived(card: &Card) -> Vec<ManagementDatagram> {
    let mut taken = Vec::new();
    until("datagrams arrive", || {
        step(card);
        taken.extend(card.take_management());
        (!taken.is_empty()).then_some(())
    });
    taken
}

#[test]
fn datagrams_reach_another_card_and_the_card_itself() {
    let ((near, near_events), (far, far_events)) = (card(LinkLayer::InfiniBand), card(LinkLayer::Ethernet));
    assert!(!near.is_linked(far.node()) && near.is_linked(near.node()));
    near.send_management(far.node(), 0, &[5; MAX_MANAGEMENT]).unwrap();
    let expected = ManagementDatagram { source: near.node(), pkey_index: 0, bytes: vec![5; MAX_MANAGEMENT] };
    assert_eq!(arrived(&far), [expected]);
    assert_eq!(*far_events.lock().unwrap(), [Event::Management]);
    assert!(near.is_linked(far.node()));
    near.send_management(near.node(), 0, b"self").unwrap();
    assert_eq!(
        near.take_management(),
        [ManagementDatagram { source: near.node(), pkey_index: 0, bytes: b"self".to_vec() }]
    );
    assert_eq!(*near_events.lock().unwrap(), [Event::Management]);
    assert!(near.send_management(far.node(), 0, &[0; MAX_MANAGEMENT + 1]).is_err());
    near.send_management(0xbfff_0000, 0, b"nowhere").unwrap();
    let node = far.node();
    drop(far);
    until("the link ends", || {
        step(&near);
        (!near.is_linked(node)).then_some(())
    });
    assert!(near.take_management().is_empty());
}

#[test]
fn faults_lose_and_delay_datagrams() {
    let (near, _) = card(LinkLayer::InfiniBand);
    let (far, _) = card(LinkLayer::InfiniBand);
    let plan: FaultPlan = "drop nth=1 kind=management; delay=5ms nth=2 kind=management".parse().unwrap();
    near.set_faults(Some(&plan));
    for byte in 1..=3 {
        near.send_management(far.node(), 0, &[byte]).unwrap();
    }
    assert!(far.take_management().is_empty());
    let mut taken = Vec::new();
    until("the delay is over", || {
        step(&near);
        step(&far);
        taken.extend(far.take_management().into_iter().map(|datagram| datagram.bytes[0]));
        (taken.len() == 2).then_some(())
    });
    assert_eq!(taken, [2, 3], "the first is lost, and those behind the second wait for it");
}

#[test]
fn too_many_delayed_datagrams_are_lost() {
    let (near, _) = card(LinkLayer::InfiniBand);
    near.set_faults(Some(&"delay=1ms kind=management".parse().unwrap()));
    (0..1000u32).for_each(|i| near.send_management(near.node(), 0, &i.to_be_bytes()).unwrap());
    near.set_faults(None);
    let mut taken = 0;
    until("the delayed ones arrive", || {
        step(&near);
        taken += near.take_management().len();
        near.shared.engine.lock().delayed.is_empty().then_some(())
    });
    assert!((1..1000).contains(&taken), "{taken}");
}
