use super::*;

#[test]
fn the_text_form_comes_back() {
    for bits in 1..LibertyKinds::DROP.bits() {
        let liberties = Liberties { seed: 1 << 40, kinds: LibertyKinds::from_bits_truncate(bits) };
        assert_eq!(liberties.to_string().parse(), Ok(liberties));
    }
    assert_eq!("7".parse::<Liberties>().unwrap().to_string(), "7");
    let known = WORDS.iter().fold(LibertyKinds::empty(), |all, (_, kind)| all | *kind);
    assert_eq!(known, LibertyKinds::all());
    let rest = LibertyKinds::UNORDERED | LibertyKinds::FAULTS;
    assert_eq!(LibertyKinds::all() - LibertyKinds::USUAL, rest);
}

#[test]
fn what_is_none_is_refused() {
    for text in ["", " ", "fetch", "-1", "18446744073709551616"] {
        assert!(text.parse::<Liberties>().unwrap_err().contains("seed"), "{text}");
    }
    let error = "1 fetch order".parse::<Liberties>().unwrap_err();
    assert!(error.starts_with("`order` is none of its words, which are fetch, pieces"), "{error}");
    let error = "1 fetch drop".parse::<Liberties>().unwrap_err();
    assert!(error.starts_with("drop is a fault"), "{error}");
}

fn work(qp: u32, number: u32) -> Work {
    Work { qp, subject: Subject::Request(number), packet: 0 }
}

/// Returns the pauses of 100 requests of a queue pair.
fn pauses(decisions: &mut Decisions, kind: LibertyKinds, qp: u32) -> Vec<Option<Duration>> {
    (0..100).map(|number| decisions.pause(kind, work(qp, number))).collect()
}

#[test]
fn a_seed_and_names_decide_and_other_kinds_are_not_taken() {
    let of = |seed, card, qp| {
        let schedule = Liberties { seed, kinds: LibertyKinds::FETCH }.into();
        let mut decisions = Decisions::new(Some(&schedule), card);
        assert!(decisions.has(LibertyKinds::FETCH) && !decisions.has(LibertyKinds::ATOMICS));
        assert_eq!(pauses(&mut decisions, LibertyKinds::ATOMICS, qp), [None; 100]);
        let pauses = pauses(&mut decisions, LibertyKinds::FETCH, qp);
        assert!(pauses.iter().flatten().all(|pause| *pause < LONGEST_PAUSE));
        let taken = pauses.iter().flatten().count();
        assert!((30..70).contains(&taken), "{taken} of 100");
        pauses
    };
    assert_eq!(of(1, 0, 0), of(1, 0, 0));
    assert!(of(1, 0, 0) != of(1, 1, 0) && of(1, 0, 0) != of(2, 0, 0) && of(1, 0, 0) != of(1, 0, 1));
    let mut none = Decisions::default();
    assert!(!none.is_on() && none.take(LibertyKinds::FETCH, work(0, 0)).is_none());
}

/// The order in which decisions are made, and other decisions in between, change nothing.
#[test]
fn the_order_of_decisions_does_not_matter() {
    let schedule = Liberties { seed: 9, kinds: LibertyKinds::USUAL }.into();
    let mut forwards = Decisions::new(Some(&schedule), 0);
    let mut backwards = Decisions::new(Some(&schedule), 0);
    let there = pauses(&mut forwards, LibertyKinds::FETCH, 3);
    let other: Vec<_> = (0..100)
        .rev()
        .map(|n| {
            backwards.take(LibertyKinds::PIECES, work(3, n));
            backwards.pause(LibertyKinds::FETCH, work(3, n))
        })
        .collect();
    assert!(there.iter().eq(other.iter().rev()));
}

/// A single decision does what it did among others.
#[test]
fn a_single_decision_draws_as_among_half_of_all() {
    let half: Schedule = Liberties { seed: 5, kinds: LibertyKinds::PIECES }.into();
    let mut among = Decisions::new(Some(&half), 0);
    let drawn = |decisions: &mut Decisions, number| {
        let mut draw = decisions.take(LibertyKinds::PIECES, work(2, number))?;
        let mut list: Vec<u32> = (0..20).collect();
        draw.shuffle(&mut list);
        Some((draw.below(1000), list))
    };
    let taken = (0..100).find(|number| drawn(&mut among, *number).is_some()).unwrap();
    let rule: Rule = format!("pieces qp 2 request {taken} packet 0").parse().unwrap();
    let single = Schedule { seed: 5, rules: vec![rule], ..Schedule::default() };
    let mut alone = Decisions::new(Some(&single), 0);
    assert_eq!(drawn(&mut among, taken), drawn(&mut alone, taken));
    assert!((0..100).filter(|number| *number != taken).all(|number| drawn(&mut alone, number).is_none()));
    let (_, list) = drawn(&mut alone, taken).unwrap();
    assert!(!list.is_sorted());
    assert_eq!(list.iter().sum::<u32>(), 190, "shuffling loses nothing");
}

#[test]
fn a_schedule_holds_back_as_long_as_it_says() {
    let schedule: Schedule = "hold 7ms\nfetch".parse().unwrap();
    let mut decisions = Decisions::new(Some(&schedule), 0);
    assert_eq!(pauses(&mut decisions, LibertyKinds::FETCH, 0), [Some(Duration::from_millis(7)); 100]);
    assert_eq!(decisions.longest_hold(), Duration::from_millis(7));
    assert_eq!(Decisions::default().longest_hold(), LONGEST_PAUSE);
}
