use super::*;
use proptest::prelude::*;

fn rule() -> impl Strategy<Value = Rule> {
    let kind = (0u32..13).prop_map(|bit| LibertyKinds::from_bits_truncate(1 << bit));
    let subject = (0usize..4, 0u32..50, 0u32..50);
    let subjects =
        proptest::option::of(subject.prop_map(|(word, first, more)| {
            (Subject::new(Subject::WORDS[word], first).unwrap(), first + more)
        }));
    let process = proptest::option::of("[a-z][a-z0-9+/._-]{0,8}");
    let number = || proptest::option::of(0u32..20);
    (kind, any::<bool>(), process, number(), subjects, number()).prop_map(
        |(kind, half, process, qp, subjects, packet)| Rule { kind, half, process, qp, subjects, packet },
    )
}

fn decision() -> impl Strategy<Value = Decision> {
    ((0u32..13), 0u32..4, 0usize..4, 0u32..8, 0u32..3).prop_map(|(bit, qp, word, number, packet)| {
        let subject = Subject::new(Subject::WORDS[word], number).unwrap();
        let packet = if subject.has_packets() { packet } else { 0 };
        Decision { kind: LibertyKinds::from_bits_truncate(1 << bit), work: Work { qp, subject, packet } }
    })
}

proptest! {
    #[test]
    fn the_text_form_comes_back(
        seed: u64,
        micros in proptest::option::of(1u64..1_000_000),
        faults in 0u16..16,
        rules in proptest::collection::vec(rule(), 0..6),
    ) {
        let (hold, faults) = (micros.map(Duration::from_micros), LibertyKinds::from_bits_truncate(faults << 9));
        let schedule = Schedule { seed, hold, faults, rules };
        prop_assert_eq!(schedule.to_string().parse(), Ok(schedule));
    }

    #[test]
    fn parsing_never_panics(text in "[a-z0-9 .#\n]{0,60}") {
        let _ = text.parse::<Schedule>();
    }

    #[test]
    fn a_rule_for_one_decision_names_it_and_no_other(one in decision(), other in decision()) {
        let rule = Rule::single("rank1", one);
        prop_assert_eq!(rule.decision(), Some(one));
        prop_assert_eq!(rule.to_string().parse(), Ok(rule.clone()));
        let schedule = Schedule { rules: vec![rule], ..Schedule::default() };
        let own = OwnRules::new(&schedule, Some("rank1"));
        prop_assert_eq!(own.choice(one), Choice::Always);
        prop_assert_eq!(own.choice(other) == Choice::Always, one == other);
        for process in [None, Some("rank2")] {
            prop_assert_eq!(OwnRules::new(&schedule, process).choice(one), Choice::Never);
        }
    }
}

#[test]
fn parts_of_a_name_that_are_left_out_mean_all() {
    let of = |text: &str, decision: &str| {
        let schedule: Schedule = text.parse().unwrap();
        let rule: Rule = decision.parse().unwrap();
        OwnRules::new(&schedule, Some("a")).choice(rule.decision().unwrap())
    };
    let decision = "fetch qp 2 request 7 packet 0";
    for text in
        ["fetch", "fetch in a", "fetch qp 2", "fetch request 5..7", "fetch in a qp 2 request 7 packet 0"]
    {
        assert_eq!(of(text, decision), Choice::Always, "{text}");
    }
    for text in
        ["pieces", "fetch in b", "fetch qp 3", "fetch request 5..6", "fetch message 7", "fetch packet 1", ""]
    {
        assert_eq!(of(text, decision), Choice::Never, "{text}");
    }
    assert_eq!(of("fetch half", decision), Choice::Half);
    assert_eq!(of("fetch half\nfetch qp 2", decision), Choice::Always);
}

#[test]
fn what_is_no_schedule_is_refused_by_line() {
    for (text, part) in [
        ("fetch\norder", "line 2: `order` is none of its words"),
        ("seed", "`` is no number, which `seed` has"),
        ("seed x", "`x` is no number"),
        ("seed 1 2", "`2` follows the value"),
        ("hold 5", "`5` is no time from 1us to 1000ms"),
        ("hold 0us", "is no time"),
        ("hold 1001ms", "is no time"),
        ("fetch in", "`in` has no process"),
        ("fetch qp", "`` is no number, which `qp` has"),
        ("fetch qp 1 half", "`half` is out of place"),
        ("fetch request 5..4", "the range 5..4 has nothing in it"),
    ] {
        let error = text.parse::<Schedule>().unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}
