use super::*;
use crate::card::{Card, LinkLayer};
use crate::testing::{again, role};

/// Starts a card that has nothing to decide.
fn start_a_card() -> Result<(), String> {
    let card = Card::start(LinkLayer::InfiniBand, Box::new(drop));
    card.map(drop).map_err(|error| error.to_string())
}

/// Runs this test again in another process: cards of other tests would follow the schedules.
fn alone(test: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let ended = again(&format!("explore::closure::tests::{test}"), "alone").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    false
}

#[test]
fn a_closure_that_uses_no_card_is_refused_and_one_that_fails_too() {
    if !alone("a_closure_that_uses_no_card_is_refused_and_one_that_fails_too") {
        return;
    }
    assert!(matches!(explore(Limits::default(), || Ok(())), Err(Refusal::NothingToDecide)));
    assert!(matches!(explore(Limits::default(), start_a_card), Err(Refusal::NothingToDecide)));
    for (fails, text) in [
        (Box::new(|| Err("no".to_owned())) as Box<dyn FnMut() -> Result<(), String>>, "no"),
        (Box::new(|| panic!("out of cheese")), "out of cheese"),
        (Box::new(|| panic!("{} of cheese", "out")), "out of cheese"),
    ] {
        let Err(Refusal::Fails(why)) = explore(Limits::default(), fails) else { panic!("{text}") };
        assert_eq!(why, text);
    }
}
