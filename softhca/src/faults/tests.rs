use super::*;
use crate::liberties::{Decisions, Schedule, Work};
use gdsync_sys::prm::cqe::Syndrome;
use proptest::prelude::*;
use std::time::Duration;

fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn packet(direction: Direction, qpn: u32, kind: PacketKind) -> Crossing {
    Crossing { direction, qpn, kind: Some(kind), is_reliable: true, is_request: true, psn: 5 }
}

/// Decides about a packet without a schedule.
fn crosses(faults: &Faults, packet: &Crossing) -> Fate {
    faults.crosses(packet, None, &mut Decisions::default())
}

fn faults(text: &str) -> Faults {
    let faults = Faults::new(0);
    faults.set(Some(&plan(text)));
    faults
}

#[test]
fn the_text_form_says_everything_and_comes_back() {
    let text = "seed=42; drop nth=3 dir=in kind=send,ack qp=0x41; delay=200us every=10; hold=4 p=0.125 times=9; rnr; \
                fail=remote-access nth=5; late=1ms dir=out; gone nth=2 key=0x1234 access=remote; duplicate; die nth=100";
    let plan = plan(text);
    assert_eq!(plan.to_string(), text);
    assert_eq!((plan.seed, plan.rules.len()), (42, 9));
    assert_eq!(plan.rules[1].action, Action::Delay(Duration::from_micros(200)));
    assert_eq!(plan.rules[4].action, Action::Fail(Syndrome::RemoteAccess));
    let lines = "# what happened on Tuesday\nseed=0x2a\n  drop nth=1 # the first\n\n;; rnr times=2;";
    assert_eq!(self::plan(lines).to_string(), "seed=42; drop nth=1; rnr times=2");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let cases = [
        ("drop; delay", 1, 7, "delay", "begins with"),
        ("drop\n  rnr nth=0", 2, 7, "nth=0", "begins at 1"),
        ("drop nth=1 every=2", 1, 12, "every=2", "already"),
        ("drop p=1.5", 1, 6, "p=1.5", "from 0 to 1"),
        ("drop p=NaN", 1, 6, "p=NaN", "from 0 to 1"),
        ("drop kind=sned", 1, 6, "kind=sned", "read-response"),
        ("drop colour=red", 1, 6, "colour=red", "a condition is"),
        ("drop now", 1, 6, "now", "NAME=VALUE"),
        ("fail=bad-luck", 1, 1, "fail=bad-luck", "remote-access"),
        ("fail=retry-exceeded dir=in", 1, 1, "fail=retry-exceeded", "dir=out"),
        ("rnr dir=out", 1, 1, "rnr", "leave out dir"),
        ("drop key=1", 1, 1, "drop", "only `gone`"),
        ("gone qp=1", 1, 1, "gone", "key and access"),
        ("delay=1h", 1, 1, "delay=1h", "ns, us, ms or s"),
        ("delay=99999999999999999s", 1, 1, "delay=99999999999999999s", "ns, us, ms or s"),
        ("late=61s", 1, 1, "late=61s", "hung run"),
        ("hold=0", 1, 1, "hold=0", "65535"),
        ("drop qp=0x1000000", 1, 6, "qp=0x1000000", "below"),
        ("drop qp=+1", 1, 6, "qp=+1", "number"),
        ("drop dir=up", 1, 6, "dir=up", "`in` or `out`"),
        ("gone access=mine", 1, 6, "access=mine", "`local` or `remote`"),
        ("seed=x", 1, 1, "seed=x", "number"),
        ("seed=1 drop", 1, 8, "drop", "stands alone"),
    ];
    for (text, line, column, found, problem) in cases {
        let error = text.parse::<FaultPlan>().unwrap_err();
        assert_eq!((error.line, error.column, error.found.as_str()), (line, column, found), "{text}");
        assert!(error.problem.contains(problem), "{text}: {error}");
        assert!(error.to_string().contains(&format!("line {line}, column {column}")));
    }
    assert!("drop;".repeat(20_000).parse::<FaultPlan>().unwrap_err().problem.contains("65536"));
}

#[test]
fn rules_count_what_meets_their_conditions() {
    let faults = faults("drop nth=2 kind=send; drop every=3 qp=7 dir=in; drop times=2 kind=ack");
    let sends: Vec<Fate> =
        (0..3).map(|_| crosses(&faults, &packet(Direction::Out, 1, PacketKind::Send))).collect();
    assert_eq!(sends, [Fate::Passes, Fate::Lost, Fate::Passes]);
    let third: Vec<Fate> =
        (0..6).map(|_| crosses(&faults, &packet(Direction::In, 7, PacketKind::Write))).collect();
    assert_eq!(third.iter().filter(|fate| **fate == Fate::Lost).count(), 2);
    let acks: Vec<Fate> =
        (0..4).map(|_| crosses(&faults, &packet(Direction::Out, 1, PacketKind::Ack))).collect();
    assert_eq!(acks, [Fate::Lost, Fate::Lost, Fate::Passes, Fate::Passes]);
    let counts: Vec<(u64, u64)> = faults.counts().iter().map(|c| (c.matched, c.injected)).collect();
    assert_eq!(counts, [(3, 1), (6, 2), (4, 2)]);
    assert_eq!(faults.counts()[0].to_string(), "drop nth=2 kind=send: 1 of 3");
}

#[test]
fn the_log_names_the_packet_that_meets_a_fault() {
    let read = packet(Direction::In, 0x1804d, PacketKind::Read);
    assert_eq!(read.to_string(), "read psn 0x5 to qp 0x1804d");
    let answer = Crossing { direction: Direction::Out, kind: None, ..read };
    assert_eq!(answer.to_string(), "packet psn 0x5 from qp 0x1804d");
}

#[test]
fn each_action_happens_to_its_own_events_only() {
    let faults = faults("rnr; fail=remote-operation; late=3ms dir=in; gone key=5; duplicate; hold=2 dir=in");
    let send = packet(Direction::Out, 1, PacketKind::Send);
    assert_eq!(crosses(&faults, &send), Fate::Fails(Syndrome::RemoteOperation));
    assert_eq!(crosses(&faults, &Crossing { is_request: false, ..send }), Fate::Duplicated);
    assert_eq!(crosses(&faults, &Crossing { is_request: false, is_reliable: false, ..send }), Fate::Passes);
    let delayed = Fate::Delayed { at_most: plan::LONGEST_HOLD, others: Some(2) };
    assert_eq!(crosses(&faults, &packet(Direction::In, 1, PacketKind::Send)), delayed);
    assert_eq!(
        faults.refuses(1, PacketKind::Send, Work::of_qp(0), &mut Decisions::default()),
        Some(Refused::NotReady)
    );
    assert_eq!(faults.completion_delay(Direction::In, 1, None), Some(Duration::from_millis(3)));
    assert_eq!(faults.completion_delay(Direction::Out, 1, None), None);
    assert!(faults.is_gone(5, Side::Local) && !faults.is_gone(6, Side::Local));
    faults.set(None);
    assert!(!faults.is_on() && faults.counts().is_empty());
    assert_eq!(crosses(&faults, &send), Fate::Passes);
}

#[test]
fn death_is_for_good_until_faults_end() {
    let faults = faults("die nth=2");
    let send = packet(Direction::Out, 1, PacketKind::Send);
    assert_eq!([0, 1, 2].map(|_| crosses(&faults, &send)), [Fate::Passes, Fate::Lost, Fate::Lost]);
    assert_eq!(crosses(&faults, &packet(Direction::In, 9, PacketKind::Ack)), Fate::Lost);
    faults.set(None);
    assert_eq!(crosses(&faults, &send), Fate::Passes);
}

#[test]
fn chance_follows_the_seed_and_the_probability() {
    let draws = |text: &str| -> Vec<bool> {
        let faults = faults(text);
        let send = packet(Direction::Out, 1, PacketKind::Send);
        (0..2000).map(|_| crosses(&faults, &send) == Fate::Lost).collect()
    };
    let lost = |draws: Vec<bool>| draws.into_iter().filter(|lost| *lost).count();
    assert_eq!(draws("seed=1; drop p=0.25"), draws("seed=1; drop p=0.25"));
    assert_ne!(draws("seed=1; drop p=0.25"), draws("seed=2; drop p=0.25"));
    // The seeds are fixed, so these numbers are too.
    assert!((400..600).contains(&lost(draws("seed=1; drop p=0.25"))));
    assert_eq!((lost(draws("drop p=0")), lost(draws("drop p=1"))), (0, 2000));
}

/// Other queue pairs, and the number of the card in the fabric, change nothing for a queue pair.
#[test]
fn chances_of_a_queue_pair_are_its_own() {
    let (alone, among) = (faults("seed=1; drop p=0.25"), faults("seed=1; drop p=0.25"));
    let send = |qpn| packet(Direction::Out, qpn, PacketKind::Send);
    for _ in 0..200 {
        let other = crosses(&among, &send(2));
        let own = [crosses(&alone, &send(1)), crosses(&among, &send(0x7f_8001))];
        assert_eq!(own[0], own[1], "the other's is {other:?}");
    }
    let both = |qpn| (0..200).map(move |_| qpn);
    let of = |qpn| both(qpn).map(|qpn| crosses(&among, &send(qpn))).collect::<Vec<_>>();
    assert_ne!(of(3), of(4));
}

#[test]
fn a_rule_of_the_api_that_makes_no_sense_does_nothing() {
    let faults = Faults::new(0);
    let never = Rule { which: Which::Every(0), ..Rule::new(Action::Drop) };
    faults.set(Some(&FaultPlan::new(0, vec![never])));
    assert_eq!(crosses(&faults, &packet(Direction::Out, 1, PacketKind::Send)), Fate::Passes);
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let time = (0u64..60_000_000_000).prop_map(Duration::from_nanos);
    let action = prop_oneof![
        Just(Action::Drop),
        Just(Action::Duplicate),
        Just(Action::Die),
        time.clone().prop_map(Action::Delay),
        time.prop_map(Action::Late),
        (1u32..65536).prop_map(Action::Hold),
        (0usize..9).prop_map(|index| Action::Fail(plan::SYNDROMES[index].0)),
    ];
    let which = prop_oneof![
        (1u64..).prop_map(Which::Nth),
        (1u64..).prop_map(Which::Every),
        (0.0..=1.0f64).prop_map(Which::Chance),
    ];
    let kinds = prop::collection::vec(0usize..10, 0..4).prop_map(|indices| {
        indices.into_iter().fold(Kinds::empty(), |kinds, index| kinds.with(PacketKind::ALL[index].0))
    });
    let outward = prop_oneof![Just(None), Just(Some(Direction::Out))];
    (action, which, prop::option::of(1u64..), outward, kinds, prop::option::of(0u32..1 << 24)).prop_map(
        |(action, which, times, direction, kinds, qpn)| Rule {
            which,
            times,
            direction,
            kinds,
            qpn,
            ..Rule::new(action)
        },
    )
}

use super::plan;

proptest! {
    #[test]
    fn every_plan_comes_back_from_its_text(seed: u64, rules in prop::collection::vec(any_rule(), 0..6)) {
        let plan = FaultPlan::new(seed, rules);
        prop_assert_eq!(plan.to_string().parse::<FaultPlan>(), Ok(plan));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(drop|delay=|hold=|p=|kind=|seed=|[0-9a-z=;# \n\u{e9}]){0,12}") {
        if let Ok(plan) = text.parse::<FaultPlan>() {
            prop_assert_eq!(plan.to_string().parse::<FaultPlan>(), Ok(plan));
        }
    }
}

/// Returns whether each of 40 packets is lost, of which each comes twice.
fn lost(faults: &Faults, schedule: &str) -> Vec<[bool; 2]> {
    let schedule: Schedule = schedule.parse().unwrap();
    let mut decisions = Decisions::of(Some(&schedule), (None, 0), None);
    faults.follow(&decisions);
    let send = packet(Direction::Out, 1, PacketKind::Send);
    let mut is_lost = |number| {
        faults.crosses(&send, Some(Work::of_qp(0).of_request(number, 0)), &mut decisions) == Fate::Lost
    };
    (0..40).map(|number| [is_lost(number), is_lost(number)]).collect()
}

#[test]
fn a_schedule_decides_in_place_of_chance_and_by_names() {
    let faults = faults("drop p=0.9");
    let by_chance = lost(&faults, "");
    assert!(by_chance.iter().flatten().filter(|lost| **lost).count() > 50, "{by_chance:?}");
    assert_eq!(lost(&faults, "faults drop"), [[false; 2]; 40]);
    assert_eq!(faults.counts()[0].injected, by_chance.iter().flatten().filter(|lost| **lost).count() as u64);
    let half = lost(&faults, "faults drop\nseed 3\ndrop half");
    let count = half.iter().filter(|lost| **lost == [true, false]).count();
    assert!(
        (10..30).contains(&count) && half.iter().all(|lost| !lost[1]),
        "what is repeated passes: {half:?}"
    );
    let single = lost(&faults, "faults drop\ndrop qp 0 request 7 packet 0");
    assert!((0..40).all(|number| single[number] == [number == 7, false]), "{single:?}");
    // Without a plan.
    faults.set(None);
    assert_eq!(lost(&faults, "drop qp 0 request 7 packet 0"), single);
    assert!(faults.is_on());
    assert_eq!(lost(&faults, "faults drop"), [[false; 2]; 40]);
    assert!(!faults.is_on());
}

#[test]
fn counts_of_a_plan_and_packets_without_a_name_stay_the_plan_s() {
    let faults = faults("drop nth=3; drop p=1 dir=in");
    let lost = lost(&faults, "faults drop");
    assert_eq!(lost.iter().flatten().filter(|lost| **lost).count(), 1);
    let mut decisions = Decisions::of(Some(&"faults drop".parse().unwrap()), (None, 0), None);
    let arriving = packet(Direction::In, 1, PacketKind::Send);
    assert_eq!(faults.crosses(&arriving, None, &mut decisions), Fate::Lost);
}

#[test]
fn each_kind_of_a_schedule_is_its_fault() {
    let faults = Faults::new(0);
    let schedule: Schedule = "hold 3ms\ndrop qp 0\nduplicate qp 1\ndelay qp 2\nrnr qp 3".parse().unwrap();
    let mut decisions = Decisions::of(Some(&schedule), (None, 0), None);
    faults.follow(&decisions);
    let send = packet(Direction::Out, 1, PacketKind::Send);
    let mut fate = |qp, is_reliable| {
        let work = Work::of_qp(qp).of_request(u32::from(is_reliable), 0);
        faults.crosses(&Crossing { is_reliable, ..send }, Some(work), &mut decisions)
    };
    let late = Fate::Delayed { at_most: Duration::from_millis(3), others: None };
    let reliable = [0, 1, 2, 3].map(|qp| fate(qp, true));
    assert_eq!(reliable, [Fate::Lost, Fate::Duplicated, late, Fate::Passes]);
    assert_eq!(fate(1, false), Fate::Passes);
    let mut refused = |qp| faults.refuses(1, PacketKind::Send, Work::of_qp(qp), &mut decisions);
    let refusals = [refused(0), refused(3), refused(3)];
    assert_eq!(refusals, [None, Some(Refused::NotReady), None], "it is ready when the request comes again");
}
