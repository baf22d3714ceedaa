//! `gdsync simulate`: random programs on simulated cards, each in one thread, at virtual time. A seed repeats
//! to the bit.
//!
//! A run is a row of episodes with the seeds S, S + 1, and so on, on the threads of [`jobs`]. Each has its own cards, links
//! and faults ([`episode`]), is performed by [`stage`], and checked by [`check`] down to each completion and byte.

mod bench;
mod cards;
mod check;
mod driven;
mod episode;
mod jobs;
mod kept;
mod library;
mod link;
mod lists;
mod post;
mod program;
mod rings;
mod settle;
mod stage;
mod totals;

use episode::{Episode, Wishes};
use gdsync_cli::cli::{NO_FAULTS, SimulateOptions};
use gdsync_cli::failure::Failure;
use gdsync_cli::interrupt;
use gdsync_cli::text;
use gdsync_sys::contain::contain;
use jobs::{Outcome, perform_all};
use program::Step;
use softhca::explore::shrink;
use softhca::faults::FaultPlan;
use softhca::liberties::{Liberties, Schedule};
use stage::perform;
use std::convert::Infallible;
use std::path::PathBuf;
use totals::Totals;

/// Maximum number of runs in which a failing program is shrunk.
const RUNS: usize = 2000;

/// Runs the episodes that the options ask for.
///
/// # Errors
/// The first failure: its seed, and the shortest program that was found to fail.
pub(crate) fn run(options: &SimulateOptions) -> Result<(), Failure> {
    let wishes = wishes(options)?;
    let (first, last) = options.seeds.unwrap_or((options.seed, u64::MAX));
    let most = if options.seeds.is_some() { u64::MAX } else { options.operations };
    let (mut operations, mut refused) = (0, None);
    // Which episodes there are depends on nothing that is performed.
    let episodes = (first..last).map_while(|seed| {
        if operations >= most || interrupt::requested() {
            return None;
        }
        let made = Episode::new(seed, &wishes).map_err(|error| refused = Some(error)).ok()?;
        operations += made.steps.len() as u64;
        Some(made)
    });
    let jobs = options.jobs.map_or_else(gdsync_sys::host::cores, |jobs| jobs as usize);
    let Outcome { totals, failure } = perform_all(episodes, jobs);
    match (failure, refused) {
        (Some((episode, error)), _) => Err(explain(&episode, &error, totals.steps).into()),
        (None, Some(error)) => Err(error.into()),
        (None, None) => text::print_text(&describe(&totals, first)),
    }
}

fn wishes(options: &SimulateOptions) -> Result<Wishes, Failure> {
    let faults = match options.faults.as_deref() {
        Some(NO_FAULTS) => Some(FaultPlan::new(0, Vec::new())),
        Some(plan) => Some(plan.parse()?),
        None => None,
    };
    let liberties = options.liberties.as_ref().map(|text| text.parse::<Liberties>()).transpose()?;
    let read =
        |file: &PathBuf| Schedule::read(file).map_err(|problem| format!("{}: {problem}", file.display()));
    let schedule = options.schedule.as_ref().map(read).transpose()?;
    Ok(Wishes { faults, schedule: schedule.or(liberties.map(Schedule::from)) })
}

/// Performs an episode; a panic of a card is a failure of it, too.
fn attempt(episode: &Episode) -> Result<Totals, String> {
    contain(|| perform(episode)).unwrap_or_else(|panic| Err(format!("the card panics: {panic}")))
}

/// Returns the fewest steps of an episode that fail, with what goes wrong then.
fn shortest(episode: &Episode, error: &str) -> (Vec<Step>, String) {
    let (mut runs, mut last, kind) = (0, error.to_owned(), kind_of(error));
    // The rest at the end stays: without it, each other step that lets the cards work would be needed.
    let (rest, steps) = episode
        .steps
        .split_last()
        .map_or((&[][..], &[][..]), |(rest, steps)| (std::slice::from_ref(rest), steps));
    let with = |steps: &[Step]| Episode { steps: [steps, rest].concat(), ..episode.clone() };
    let fails = |steps: &[Step]| {
        let failure = attempt(&with(steps)).err().filter(|failure| kind_of(failure) == kind);
        if let Some(failure) = &failure {
            last.clone_from(failure);
        }
        Ok::<bool, Infallible>(failure.is_some())
    };
    let goes_on = |_| {
        runs += 1;
        runs < RUNS
    };
    let Ok(steps) = shrink(steps.to_vec(), fails, goes_on);
    ([&steps, rest].concat(), last)
}

/// Returns what all failures of a kind have in common: their words, without the step and without numbers.
fn kind_of(error: &str) -> String {
    let words = error.split_once("): ").map_or(error, |(_, words)| words);
    words.chars().filter(char::is_ascii_alphabetic).collect()
}

/// Tells of a failure, with the shortest program that fails.
fn explain(episode: &Episode, error: &str, before: u64) -> String {
    let Episode { seed, cards, .. } = *episode;
    let (steps, last) = shortest(episode, error);
    let mut text = format!(
        "seed {seed}, after {before} operations of earlier seeds: {error}\n\
         Repeat it with `gdsync lab simulate --seeds {seed}..{}`. The shortest of its programs that fails has {} of {} \
         operations, on {cards} cards:\n",
        seed + 1,
        steps.len(),
        episode.steps.len(),
    );
    for (number, link) in episode.links.iter().enumerate() {
        text += &format!("  link {number}: {:?} between cards {:?}", link.kind, link.cards);
        let shared = if link.shared { ", shared receives" } else { "" };
        let ends = link.library.map(|ends| format!(", by the library: {ends:?}{shared}"));
        text += &format!("{}\n", ends.unwrap_or_default());
    }
    if let Some(faults) = &episode.faults {
        text += &format!("  faults: {faults}\n");
    }
    let habits = [
        (episode.errors_hold, "error entries do not count for WAITs"),
        (episode.late, "the library's threads stand still while a link is reset"),
    ];
    habits.iter().filter(|(is, _)| *is).for_each(|(_, habit)| text += &format!("  {habit}\n"));
    steps.iter().for_each(|step| text += &format!("  {step}\n"));
    text + &format!("It fails at {last}")
}

/// Returns the result of a run in words.
fn describe(totals: &Totals, first: u64) -> String {
    let Totals { episodes, steps, requests, starts, completions, waits, packets, faults, time, hash } =
        totals;
    format!(
        "{steps} operations in {episodes} episodes (seeds {first}..{}): {requests} work requests, {starts} of them persistent, \
         {completions} completions, {waits} awaited by streams, {packets} packets, {faults} faults, {:.3} s of the cards' time; hash {hash:016x}\n",
        first + episodes,
        time.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_to_the_bit() {
        let run = |seeds: std::ops::Range<u64>| {
            let mut totals = Totals::default();
            for seed in seeds {
                totals.add(&attempt(&Episode::new(seed, &Wishes::default()).unwrap()).unwrap());
            }
            totals
        };
        let first = run(1..41);
        assert_eq!(run(1..41), first);
        assert_ne!(run(2..42).hash, first.hash);
        assert!(first.completions > 100 && first.packets > 100 && first.faults > 0, "{first:?}");
        assert!(first.waits > 20 && first.starts > 5, "the library: {first:?}");
        let fails_masters = |seed| {
            let episode = Episode::new(seed, &Wishes::default()).unwrap();
            episode.steps.iter().any(|step| matches!(step, Step::FailMaster { .. }))
        };
        assert!((1..41).any(fails_masters));
    }

    #[test]
    fn retries_may_be_used_up_while_a_message_waits_for_its_receive() {
        // By held packets, with a time-out of 4 ms; by lost ones.
        for seed in [28777, 207329] {
            let episode = Episode::plain(seed, &Wishes::default()).unwrap();
            assert!(!episode.may_fail);
            assert_eq!(attempt(&episode).map(drop), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn streams_that_wait_for_each_other_are_ended_while_a_message_waits_for_its_receive() {
        // One of the streams is to announce that receive, and the card sends the message again and again.
        let episode = Episode::plain(166_684, &Wishes::default()).unwrap();
        assert_eq!(attempt(&episode).map(drop), Ok(()));
    }

    #[test]
    fn a_lost_message_does_not_write_to_its_receive_after_the_next_message() {
        // On an unreliable connection, to a region of relaxed ordering.
        let episode = Episode::plain(238_903, &Wishes::default()).unwrap();
        assert_eq!(attempt(&episode).map(drop), Ok(()));
    }

    #[test]
    fn the_card_may_flush_receives_after_what_faults_hold_back() {
        // Delayed packets, with starts of persistent receives at a reset.
        let episode = Episode::plain(196, &Wishes::default()).unwrap();
        assert_eq!(attempt(&episode).map(drop), Ok(()));
    }

    #[test]
    fn both_members_of_a_group_get_its_datagrams() {
        let wishes = Wishes { faults: Some(FaultPlan::new(0, Vec::new())), ..Wishes::default() };
        let is_group = |link: &program::LinkPlan| link.kind == program::Kind::Group;
        let mut episode =
            (1..).map(|seed| Episode::new(seed, &wishes).unwrap()).find(|one| one.links.iter().any(is_group));
        let episode = episode.as_mut().unwrap();
        episode.links.retain(is_group);
        episode.links.truncate(1);
        let sends = episode.steps.iter().filter_map(|step| match step {
            Step::Post { work, .. } if work.what == program::What::SendImm => Some(Step::Post {
                link: 0,
                side: 0,
                work: program::Work { signaled: true, rung: true, ..*work },
            }),
            _ => None,
        });
        let receives = |side| Step::Receives { link: 0, side, count: 3 };
        let ends = [Step::Settle { seed: 1 }];
        episode.steps = [receives(0), receives(1)].into_iter().chain(sends.take(3)).chain(ends).collect();
        assert_eq!(attempt(episode).map(|totals| totals.completions), Ok(3 + 2 * 3));
    }

    #[test]
    fn a_failure_is_shrunk_to_what_it_needs() {
        let plan = "drop p=0.000001; fail=remote-access kind=write p=1".parse().unwrap();
        let wishes = Wishes { faults: Some(plan), ..Wishes::default() };
        let mut episode = (1..).find_map(|seed| {
            let episode = Episode::new(seed, &wishes).ok()?;
            let has_write = episode.links.iter().any(|link| link.kind == program::Kind::Rc);
            has_write.then_some(episode)
        });
        let episode = episode.as_mut().unwrap();
        episode.may_fail = false;
        let error = attempt(episode).unwrap_err();
        assert!(error.contains("a failure without a reason"), "{error}");
        let (steps, last) = shortest(episode, &error);
        assert!(steps.len() <= 3, "{steps:?}");
        assert_eq!(kind_of(&last), kind_of(&error));
        assert!(explain(episode, &error, 7).contains("after 7 operations"));
    }
}
