//! Which faults the cards inject, and what was counted of them.

use super::plan::Random;
use super::tally::RuleTally;
use gdsync_cli::cli::NO_FAULTS;
use softhca::faults::{FAULTS_VARIABLE, FaultPlan};
use std::process::Command;

/// A plan with every kind of fault that queue pairs survive, or can be reset after; the seed
/// decides how often.
pub(super) fn of_seed(seed: u64) -> String {
    let mut random = Random::new(seed ^ 0xfa17);
    let mut chance = |most: f64| {
        let fraction = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
        format!("p={:.6}", most * (0.25 + 0.75 * fraction))
    };
    let mut rules = vec![
        format!("drop {}", chance(0.0008)),
        format!("drop dir=in {}", chance(0.0004)),
        format!("duplicate {}", chance(0.004)),
        format!("delay=300us {}", chance(0.002)),
        format!("delay=5ms {}", chance(0.0002)),
        format!("hold=5 {}", chance(0.002)),
        format!("rnr {}", chance(0.001)),
        format!("late=200us {}", chance(0.002)),
        format!("late=10ms {}", chance(0.0001)),
        format!("gone access=local {}", chance(0.000_02)),
        format!("gone access=remote {}", chance(0.000_04)),
    ];
    for syndrome in [
        "local-length",
        "local-qp-operation",
        "local-protection",
        "remote-access",
        "remote-invalid-request",
        "remote-operation",
        "retry-exceeded",
        "rnr-retry-exceeded",
        "flush",
    ] {
        rules.push(format!("fail={syndrome} {}", chance(0.000_04)));
    }
    for syndrome in ["remote-access", "remote-invalid-request", "remote-operation"] {
        rules.push(format!("fail={syndrome} dir=in {}", chance(0.000_04)));
    }
    format!("seed={seed}; {}", rules.join("; "))
}

/// Tells a process that is about to start which faults its cards inject: with a seed of its own, as
/// all cards would draw the same otherwise.
pub(super) fn apply(
    command: &mut Command,
    plan: &str,
    rank: usize,
) -> Result<(), gdsync_cli::failure::Failure> {
    if plan == NO_FAULTS {
        command.env_remove(FAULTS_VARIABLE);
        return Ok(());
    }
    let mut plan: FaultPlan = plan.parse()?;
    plan.seed = plan.seed.wrapping_add(rank as u64);
    command.env(FAULTS_VARIABLE, plan.to_string());
    Ok(())
}

/// What this process's own cards have counted.
pub(super) fn counts() -> Vec<RuleTally> {
    let rules = softhca::fault_counts().into_iter().map(|count| RuleTally {
        rule: count.rule.to_string(),
        matched: count.matched,
        injected: count.injected,
    });
    rules.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdsync_cli::cli::soak_faults;

    #[test]
    fn a_seed_makes_a_plan_of_every_kind() {
        for seed in 0..50 {
            let text = of_seed(seed);
            let plan: FaultPlan = text.parse().unwrap();
            assert_eq!(plan.rules.len(), 23);
            assert_eq!(soak_faults(&text), Ok(plan.to_string()));
        }
        assert_eq!(of_seed(3), of_seed(3));
        assert_ne!(of_seed(3), of_seed(4));
    }

    #[test]
    fn each_process_draws_for_itself() {
        let plan_of = |plan, rank| {
            let mut command = Command::new("x");
            apply(&mut command, plan, rank).unwrap();
            let mut set = command.get_envs().filter(|(name, _)| *name == FAULTS_VARIABLE);
            set.next().unwrap().1.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(plan_of("seed=7; drop", 0).as_deref(), Some("seed=7; drop"));
        assert_eq!(plan_of("seed=7; drop", 2).as_deref(), Some("seed=9; drop"));
        assert_eq!(plan_of(NO_FAULTS, 1), None);
    }
}
