//! Two ends of a connection, without cards: the test carries the messages.

use super::*;
use crate::cm::message::tests::request;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn asks(now: Instant) -> (Connection, Message) {
    asks_at(Speed::default(), now)
}

fn asks_at(speed: Speed, now: Instant) -> (Connection, Message) {
    let request = Message { local_id: 7, remote_id: 0, ..request(b"hello") };
    (Connection::ask(&request, speed, now), request)
}

fn end() -> End {
    End { qpn: 55, psn: 99, responder_resources: 2, initiator_depth: 9, rnr_retry_count: 5, ..End::default() }
}

fn sent(reaction: Reaction) -> Message {
    assert_eq!(reaction.event, None);
    reaction.send.unwrap()
}

fn event_of(reaction: Reaction) -> ConnectionEvent {
    assert_eq!(reaction.send, None);
    reaction.event.unwrap()
}

/// An established connection: the active end, and the passive one.
fn established(now: Instant) -> [Connection; 2] {
    let (mut near, request) = asks(now);
    let mut far = Connection::answer(8, &request, Speed::default());
    let mra = far.acknowledgement().unwrap();
    assert_eq!((mra.kind, mra.local_id, mra.remote_id), (MessageKind::Mra, 8, 7));
    assert_eq!(near.arrive(&mra, now), Reaction::default());
    assert_eq!(near.phase, Phase::MraReqRcvd);
    let rep = far.accept(end(), b"welcome".to_vec(), now).unwrap();
    assert_eq!(event_of(near.arrive(&rep, now)), ConnectionEvent::Replied { private: b"welcome".to_vec() });
    let rtu = near.ready().unwrap();
    assert_eq!(event_of(far.arrive(&rtu, now)), ConnectionEvent::Established);
    assert_eq!([near.phase, far.phase], [Phase::Established; 2]);
    [near, far]
}

#[test]
fn a_connection_is_made_and_each_end_knows_the_other() {
    let now = Instant::now();
    let [near, far] = established(now);
    assert_eq!((near.peer.qpn, near.peer.psn, far.peer.qpn), (55, 99, 0x12_3456));
    assert_eq!((near.gids.source, far.gids.source), ([1; 16], [2; 16]));
    // The accepting end has announced that it reads 9 at a time, and serves 2.
    assert_eq!((near.own.responder_resources, near.own.initiator_depth), (9, 2));
    assert_eq!((far.own.responder_resources, far.own.initiator_depth), (2, 9));
    assert_eq!((near.own.retry_count, near.own.rnr_retry_count, far.own.retry_count), (6, 5, 6));
    assert_eq!((near.next_timer(), far.next_timer()), (None, None));
}

#[test]
fn the_end_that_is_asked_sees_the_depths_of_the_other_side() {
    let (_, request) = asks(Instant::now());
    let far = Connection::answer(8, &request, Speed::default());
    // The request announces 3 served and 4 read at a time.
    assert_eq!((far.own.responder_resources, far.own.initiator_depth), (4, 3));
}

#[test]
fn either_end_disconnects_and_both_wait_for_late_packets() {
    let now = Instant::now();
    let [mut near, mut far] = established(now);
    let dreq = near.disconnect(now).unwrap();
    assert_eq!(event_of(far.arrive(&dreq, now)), ConnectionEvent::Disconnected { timed_out: false });
    assert_eq!(far.arrive(&dreq, now), Reaction::default(), "the program has not answered yet");
    let drep = far.disconnect(now).unwrap();
    assert_eq!(event_of(near.arrive(&drep, now)), ConnectionEvent::Disconnected { timed_out: false });
    assert_eq!([near.phase, far.phase], [Phase::TimeWait; 2]);
    assert_eq!(sent(far.arrive(&dreq, now)).kind, MessageKind::Drep, "the first was lost");
    assert_eq!(near.disconnect(now), None);
    assert_eq!(near.expire(now), Reaction::default());
    assert_eq!(event_of(near.expire(now + SECOND)), ConnectionEvent::TimeWaitOver);
    assert_eq!((near.phase, near.next_timer()), (Phase::Idle, None));
}

#[test]
fn both_ends_may_disconnect_at_once() {
    let now = Instant::now();
    let [mut near, mut far] = established(now);
    let (from_near, from_far) = (near.disconnect(now).unwrap(), far.disconnect(now).unwrap());
    for (end, message) in [(&mut near, from_far), (&mut far, from_near)] {
        assert_eq!(event_of(end.arrive(&message, now)), ConnectionEvent::Disconnected { timed_out: false });
        assert_eq!(end.phase, Phase::DreqRcvd);
    }
    let drep = near.abandon(now).unwrap();
    assert_eq!((drep.kind, far.arrive(&drep, now).event.is_some()), (MessageKind::Drep, true));
    assert!(near.is_over() && far.is_over());
}

#[test]
fn messages_are_sent_again_until_they_are_answered() {
    let start = Instant::now();
    let (mut near, request) = asks(start);
    let mut now = start;
    for _ in 0..MAX_RETRIES {
        assert_eq!(near.expire(now), Reaction::default(), "not yet");
        now = near.next_timer().unwrap();
        assert_eq!(sent(near.expire(now)), request);
    }
    now = near.next_timer().unwrap();
    assert_eq!(event_of(near.expire(now)), ConnectionEvent::Unreachable);
    assert_eq!((near.phase, near.next_timer()), (Phase::Idle, None));
    assert!(now - start > RESPONSE_TIMEOUT * u32::from(MAX_RETRIES));
}

#[test]
fn an_acknowledged_request_has_much_more_time() {
    let now = Instant::now();
    let (mut near, request) = asks(now);
    let mra = Connection::answer(8, &request, Speed::default()).acknowledgement().unwrap();
    near.arrive(&mra, now);
    assert_eq!(near.next_timer(), Some(now + SERVICE_TIMEOUT));
}

#[test]
fn every_time_runs_at_the_speed_of_the_card() {
    let (speed, now) = (Speed::new(20).unwrap(), Instant::now());
    let (mut near, request) = asks_at(speed, now);
    let mut far = Connection::answer(8, &request, speed);
    assert_eq!(near.next_timer(), Some(now + RESPONSE_TIMEOUT / 20));
    let again = near.next_timer().unwrap();
    assert_eq!(sent(near.expire(again)), request);
    assert_eq!(near.next_timer(), Some(again + RESPONSE_TIMEOUT / 20));
    near.arrive(&far.acknowledgement().unwrap(), now);
    assert_eq!(near.next_timer(), Some(now + SERVICE_TIMEOUT / 20));
    near.arrive(&far.accept(end(), Vec::new(), now).unwrap(), now);
    far.arrive(&near.ready().unwrap(), now);
    let drep = far.arrive(&near.disconnect(now).unwrap(), now).event.and_then(|_| far.disconnect(now));
    near.arrive(&drep.unwrap(), now);
    assert_eq!([near.next_timer(), far.next_timer()], [Some(now + TIME_WAIT / 20); 2]);
}

#[test]
fn lost_replies_and_lost_answers_to_them_come_again() {
    let now = Instant::now();
    let (mut near, request) = asks(now);
    let mut far = Connection::answer(8, &request, Speed::default());
    let rep = far.accept(end(), Vec::new(), now).unwrap();
    let later = far.next_timer().unwrap();
    assert_eq!(sent(far.expire(later)), rep);
    near.arrive(&rep, now);
    assert_eq!(near.arrive(&rep, now), Reaction::default(), "the program is not ready yet");
    near.ready().unwrap();
    assert_eq!(sent(near.arrive(&rep, now)).kind, MessageKind::Rtu);
    // It has been repeated once already.
    let silent = (0..MAX_RETRIES).map(|_| far.expire(far.next_timer().unwrap())).last().unwrap();
    assert_eq!(event_of(silent), ConnectionEvent::Unreachable);
}

#[test]
fn a_disconnection_that_is_not_answered_ends_in_time() {
    let now = Instant::now();
    let [mut near, _] = established(now);
    near.disconnect(now).unwrap();
    let silent = (0..=MAX_RETRIES).map(|_| near.expire(near.next_timer().unwrap())).last().unwrap();
    assert_eq!(event_of(silent), ConnectionEvent::Disconnected { timed_out: true });
    assert_eq!(near.phase, Phase::TimeWait);
}

#[test]
fn rejections_reach_the_other_end_with_their_reason() {
    let now = Instant::now();
    let (mut near, request) = asks(now);
    let mut far = Connection::answer(8, &request, Speed::default());
    let rej = far.reject(reason::CONSUMER_DEFINED, b"no".to_vec(), now).unwrap();
    assert_eq!(far.acknowledgement(), Some(rej.clone()), "should the request come again");
    let rejected = ConnectionEvent::Rejected { reason: 28, private: b"no".to_vec() };
    assert_eq!(event_of(near.arrive(&rej, now)), rejected);
    assert_eq!(near.ready().err(), Some(Errno::INVALID));
    assert_eq!(far.accept(end(), Vec::new(), now).err(), Some(Errno::INVALID));
    assert_eq!(far.reject(reason::CONSUMER_DEFINED, Vec::new(), now).err(), Some(Errno::INVALID));
    // The active end may reject the reply.
    let (mut near, request) = asks(now);
    let mut far = Connection::answer(8, &request, Speed::default());
    near.arrive(&far.accept(end(), Vec::new(), now).unwrap(), now);
    let rej = near.reject(reason::CONSUMER_DEFINED, Vec::new(), now).unwrap();
    assert!(matches!(event_of(far.arrive(&rej, now)), ConnectionEvent::Rejected { reason: 28, .. }));
    let [mut near, _] = established(now);
    assert!(matches!(event_of(near.arrive(&rej, now)), ConnectionEvent::Rejected { .. }));
    assert_eq!(near.phase, Phase::TimeWait);
}

#[test]
fn what_is_given_up_tells_the_other_end() {
    let now = Instant::now();
    let (mut near, request) = asks(now);
    let rej = near.abandon(now).unwrap();
    assert_eq!((rej.kind, rej.code, near.is_over()), (MessageKind::Rej, reason::TIMEOUT, true));
    let mut far = Connection::answer(8, &request, Speed::default());
    assert!(matches!(
        event_of(far.arrive(&rej, now)),
        ConnectionEvent::Rejected { reason: reason::TIMEOUT, .. }
    ));
    let mut far = Connection::answer(8, &request, Speed::default());
    let rej = far.abandon(now).unwrap();
    assert_eq!((rej.kind, rej.code, far.is_over()), (MessageKind::Rej, reason::CONSUMER_DEFINED, true));
    assert_eq!(far.abandon(now), None);
    let [mut near, _] = established(now);
    assert_eq!(near.abandon(now).unwrap().kind, MessageKind::Dreq);
    assert!(!near.is_over(), "until the other end knows");
}

#[test]
fn a_message_that_arrives_before_the_ready_to_use_establishes() {
    let now = Instant::now();
    let (_, request) = asks(now);
    let mut far = Connection::answer(8, &request, Speed::default());
    assert_eq!(far.communication_established().err(), Some(Errno::INVALID));
    far.accept(end(), Vec::new(), now).unwrap();
    assert_eq!(event_of(far.communication_established().unwrap()), ConnectionEvent::Established);
    assert_eq!(far.communication_established().err(), Some(Errno(libc::EISCONN)));
    assert_eq!(far.next_timer(), None);
}

#[test]
fn a_peer_that_ends_disconnects_what_was_connected() {
    let now = Instant::now();
    let [mut near, mut far] = established(now);
    far.disconnect(now);
    for end in [&mut near, &mut far] {
        assert_eq!(event_of(end.peer_ended(now)), ConnectionEvent::Disconnected { timed_out: false });
        assert_eq!(end.peer_ended(now), Reaction::default());
    }
    let (mut near, _) = asks(now);
    assert_eq!(event_of(near.peer_ended(now)), ConnectionEvent::Unreachable);
}

#[test]
fn service_ids_are_resolved_or_refused() {
    let now = Instant::now();
    let asked = Message { kind: MessageKind::SidrReq, local_id: 7, remote_id: 0, ..request(b"") };
    let mut near = Connection::ask(&asked, Speed::default(), now);
    let mut far = Connection::answer(8, &asked, Speed::default());
    assert_eq!((far.acknowledgement(), far.phase), (None, Phase::SidrReqRcvd));
    let reply = far.accept(end(), b"here".to_vec(), now).unwrap();
    assert_eq!(far.acknowledgement(), Some(reply.clone()), "should the request come again");
    assert_eq!(event_of(near.arrive(&reply, now)), ConnectionEvent::Resolved { private: b"here".to_vec() });
    assert_eq!((near.peer.qpn, near.phase, near.disconnect(now)), (55, Phase::Idle, None));
    let mut near = Connection::ask(&asked, Speed::default(), now);
    let refusal = Connection::answer(8, &asked, Speed::default()).reject(28, Vec::new(), now).unwrap();
    let refused = ConnectionEvent::Refused { status: status::REJECT, private: Vec::new() };
    assert_eq!(event_of(near.arrive(&refusal, now)), refused);
    let mut near = Connection::ask(&asked, Speed::default(), now);
    assert_eq!((near.abandon(now), near.is_over()), (None, true));
    let mut near = Connection::ask(&asked, Speed::default(), now);
    assert!(event_of(near.arrive(&answer_unmatched(&asked).unwrap(), now)) != refused);
}

#[test]
fn strangers_are_answered_once_and_for_all() {
    let answer = |kind| answer_unmatched(&Message::new(kind, 5, 6)).map(|answer| (answer.kind, answer.code));
    assert_eq!(answer(MessageKind::Req), Some((MessageKind::Rej, reason::INVALID_SERVICE_ID)));
    assert_eq!(answer(MessageKind::Rep), Some((MessageKind::Rej, reason::INVALID_COMM_ID)));
    assert_eq!(answer(MessageKind::Dreq), Some((MessageKind::Drep, 0)));
    assert_eq!(answer(MessageKind::SidrReq), Some((MessageKind::SidrRep, status::UNSUPPORTED)));
    for kind in
        [MessageKind::Mra, MessageKind::Rej, MessageKind::Rtu, MessageKind::Drep, MessageKind::SidrRep]
    {
        assert_eq!(answer(kind), None, "or two strangers would answer each other for ever");
    }
    let answer = answer_unmatched(&Message::new(MessageKind::Dreq, 5, 6)).unwrap();
    assert_eq!((answer.local_id, answer.remote_id), (6, 5));
}

/// A step of two ends: messages are carried, lost or repeated, programs act, time passes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Carry { index: usize, keep: bool },
    Lose(usize),
    Accept,
    Ready,
    Reject(bool),
    Disconnect(bool),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<usize>(), any::<bool>()).prop_map(|(index, keep)| Step::Carry { index, keep }),
        1 => any::<usize>().prop_map(Step::Lose),
        2 => Just(Step::Accept),
        2 => Just(Step::Ready),
        1 => any::<bool>().prop_map(Step::Reject),
        1 => any::<bool>().prop_map(Step::Disconnect),
        2 => Just(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn whatever_the_network_does_each_end_is_told_once_how_it_ends(steps in prop::collection::vec(step(), 1..60)) {
        let mut now = Instant::now();
        let (near, first) = asks(now);
        let mut ends = [near, Connection::answer(8, &first, Speed::default())];
        // The messages in flight, with their destinations.
        let mut wire = vec![(0, ends[1].acknowledgement().unwrap())];
        let mut told: [Vec<ConnectionEvent>; 2] = [Vec::new(), Vec::new()];
        let mut react = |at: usize, reaction: Reaction, wire: &mut Vec<(usize, Message)>| {
            wire.extend(reaction.send.map(|message| (1 - at, message)));
            told[at].extend(reaction.event);
        };
        let send = |at: usize, message: Option<Message>| Reaction { send: message.inspect(|m| assert_eq!(m.local_id, [7, 8][at])), event: None };
        for step in steps {
            match step {
                Step::Carry { index, keep } if !wire.is_empty() => {
                    let index = index % wire.len();
                    let (to, message) = if keep { wire[index].clone() } else { wire.remove(index) };
                    // The request itself goes to the manager.
                    if message.kind != MessageKind::Req {
                        let reaction = ends[to].arrive(&message, now);
                        react(to, reaction, &mut wire);
                    }
                }
                Step::Lose(index) if !wire.is_empty() => drop(wire.remove(index % wire.len())),
                Step::Accept => {
                    let rep = ends[1].accept(end(), Vec::new(), now).ok();
                    react(1, send(1, rep), &mut wire);
                }
                Step::Ready => {
                    let rtu = ends[0].ready().ok();
                    react(0, send(0, rtu), &mut wire);
                }
                Step::Reject(far) => {
                    let rej = ends[usize::from(far)].reject(28, Vec::new(), now).ok();
                    react(far.into(), send(far.into(), rej), &mut wire);
                }
                Step::Disconnect(far) => {
                    let message = ends[usize::from(far)].disconnect(now);
                    react(far.into(), send(far.into(), message), &mut wire);
                }
                Step::Wait => {
                    let next = ends.iter().filter_map(Connection::next_timer).min();
                    now = next.unwrap_or(now).max(now);
                    for (at, end) in ends.iter_mut().enumerate() {
                        let reaction = end.expire(now);
                        react(at, reaction, &mut wire);
                    }
                }
                Step::Carry { .. } | Step::Lose(_) => {}
            }
        }
        // Silence: every timer runs out.
        for (at, end) in ends.iter_mut().enumerate() {
            while let Some(timer) = end.next_timer() {
                told[at].extend(end.expire(timer).event);
            }
        }
        for told in told {
            let count = |is: fn(&ConnectionEvent) -> bool| told.iter().filter(|happened| is(happened)).count();
            let replies = count(|h| matches!(h, ConnectionEvent::Replied { .. }));
            prop_assert!(replies <= 1);
            prop_assert!(count(|h| matches!(h, ConnectionEvent::Established)) <= 1);
            prop_assert!(count(|h| matches!(h, ConnectionEvent::TimeWaitOver)) <= 1);
            let failures = count(|h| matches!(h, ConnectionEvent::Unreachable | ConnectionEvent::Rejected { .. }));
            prop_assert!(failures <= 1);
        }
    }
}
