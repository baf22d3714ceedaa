//! The rungs of the ladder, in the order in which things break.

mod card;
mod errors;
mod gpu;
mod life;
mod opening;
mod queues;
mod requests;
mod streams;
mod transports;
mod windows;

use super::probe::Probe;
use gdsync_cli::failure::Failure;

/// A step: a small program on one card, run in a separate process.
pub(super) struct Step {
    /// `family.what`.
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The remedy if it fails on a card.
    pub(super) advice: &'static str,
    /// Time after which it counts as hung.
    pub(super) limit_s: u64,
    /// Left out by `--quick`: it waits for transport time-outs.
    pub(super) is_slow: bool,
    pub(super) needs_gpu: bool,
    pub(super) run: fn(&Probe) -> Result<(), Failure>,
}

impl Step {
    const fn new(
        name: &'static str,
        about: &'static str,
        advice: &'static str,
        run: fn(&Probe) -> Result<(), Failure>,
    ) -> Self {
        Step { name, about, advice, limit_s: 20, is_slow: false, needs_gpu: false, run }
    }

    const fn slow(self) -> Self {
        Step { is_slow: true, limit_s: 40, ..self }
    }

    const fn on_gpu(self) -> Self {
        Step { needs_gpu: true, limit_s: 60, ..self }
    }
}

/// All steps.
pub(super) fn all() -> impl Iterator<Item = &'static Step> {
    let families: [&[Step]; 10] = [
        opening::STEPS,
        queues::STEPS,
        requests::STEPS,
        transports::STEPS,
        errors::STEPS,
        windows::STEPS,
        life::STEPS,
        streams::STEPS,
        card::STEPS,
        gpu::STEPS,
    ];
    families.into_iter().flatten()
}

pub(super) fn named(name: &str) -> Option<&'static Step> {
    all().find(|step| step.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_step_has_its_own_name_and_says_what_to_do() {
        let names: BTreeSet<_> = all().map(|step| step.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 60, "{}", names.len());
        for step in all() {
            assert!(
                step.name
                    .split_once('.')
                    .is_some_and(|(family, what)| !family.is_empty() && !what.is_empty())
            );
            assert!(step.advice.len() > 20 && !step.about.ends_with('.'), "{}", step.name);
            assert!(named(step.name).is_some());
        }
        assert!(named("open.nothing").is_none());
    }
}
