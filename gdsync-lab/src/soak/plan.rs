//! Random choices of a soak, derived from its seed: the messages, which the receiver can derive as well, and the cards'
//! faults.

use super::region::Region;
use super::tally::RuleTally;
use gdsync_cli::cli::NO_FAULTS;
use gdsync_cli::failure::Failure;
use gdsync_cli::pattern::Pattern;
use softhca::faults::{FAULTS_VARIABLE, FaultPlan};
use std::process::Command;

/// Maximum message size in bytes: more than a packet of the software card holds.
pub(super) const LONGEST: usize = 96 << 10;

/// A small generator (splitmix64, Steele, Lea and Flood 2014): one step for each number.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Send,
    SendImmediate,
    WriteImmediate,
}

/// A message, which both sides derive from its number.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) how: How,
    pub(super) length: usize,
    content: Pattern,
}

impl Planned {
    /// Derives message `number` of the end `sender` (ends are numbered over all links).
    pub(super) fn new(seed: u64, sender: u64, number: u64) -> Self {
        let mut random = Random::new(seed ^ sender.wrapping_mul(0xd129_0f53_2d1b_5d95) ^ number << 20);
        let how = [How::Send, How::SendImmediate, How::WriteImmediate][random.below(3) as usize];
        // Mostly short, some long, some empty.
        let longest = [0, 8, 64, 512, 4096, 4096, 20_000, LONGEST as u64][random.below(8) as usize];
        let length = random.below(longest + 1) as usize;
        Planned { how, length, content: Pattern { seed: random.next() } }
    }

    /// Returns the immediate of a message that has one.
    pub(super) fn immediate(number: u64) -> u32 {
        number as u32 ^ 0x5a5a_0000
    }

    /// Returns the number of an immediate, as far as it fits.
    pub(super) fn number(immediate: u32) -> u32 {
        immediate ^ 0x5a5a_0000
    }

    pub(super) fn at_most(self, longest: usize) -> Self {
        Planned { length: self.length.min(longest), ..self }
    }

    /// Changes the message to a form that kernels send.
    pub(super) fn by_kernels(self) -> Self {
        Planned { how: How::Send, ..self }
    }

    pub(super) fn fill(&self, region: &Region, at: usize) -> Result<(), Failure> {
        region.fill(self.content, at, self.length)
    }

    pub(super) fn is_in(&self, region: &Region, at: usize) -> Result<bool, Failure> {
        region.holds(self.content, (at, 0), self.length)
    }
}

/// Returns a plan with every kind of fault that queue pairs survive, or can be reset after; the seed determines the
/// rates.
pub(super) fn faults_of_seed(seed: u64) -> String {
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

/// Sets the faults of a process's cards, with a separate seed: otherwise all cards would draw the same.
pub(super) fn set_faults(command: &mut Command, plan: &str, rank: usize) -> Result<(), Failure> {
    if plan == NO_FAULTS {
        command.env_remove(FAULTS_VARIABLE);
        return Ok(());
    }
    let mut plan: FaultPlan = plan.parse()?;
    plan.seed = plan.seed.wrapping_add(rank as u64);
    command.env(FAULTS_VARIABLE, plan.to_string());
    Ok(())
}

pub(super) fn fault_counts() -> Vec<RuleTally> {
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
    use gdsync::{Access, Device, MemoryRegion, ProtectionDomain};
    use gdsync_cli::cli::soak_faults;
    use std::sync::atomic::Ordering;

    #[test]
    fn both_sides_make_the_same_message_and_every_byte_counts() {
        let device = Device::software().unwrap();
        let pd = ProtectionDomain::new(&device).unwrap();
        let region = MemoryRegion::allocate(&pd, 2 * LONGEST, Access::LOCAL_WRITE).unwrap();
        let memory = region.memory().clone();
        let region = Region::Near(region);
        let mut kinds = [false; 3];
        for number in 0..300 {
            let planned = Planned::new(7, 3, number);
            kinds[planned.how as usize] = true;
            assert!(planned.length <= LONGEST);
            planned.fill(&region, 64).unwrap();
            let same = Planned::new(7, 3, number);
            assert!(same.is_in(&region, 64).unwrap());
            if planned.length > 0 {
                let at = 64 + planned.length - 1;
                let byte = &memory.bytes()[at];
                byte.store(byte.load(Ordering::Relaxed) ^ 1, Ordering::Relaxed);
                assert!(!same.is_in(&region, 64).unwrap(), "message {number} of {} bytes", planned.length);
            }
        }
        assert_eq!(kinds, [true; 3]);
        let content = Pattern { seed: 9 };
        content.fill(&memory, 0, 4096);
        assert!(
            content.check(&memory, 80, 80, 1001).is_ok() && content.check(&memory, 80, 88, 1001).is_err()
        );
    }

    #[test]
    fn a_seed_makes_a_plan_of_every_kind() {
        for seed in 0..50 {
            let text = faults_of_seed(seed);
            let plan: FaultPlan = text.parse().unwrap();
            assert_eq!(plan.rules.len(), 23);
            assert_eq!(soak_faults(&text), Ok(plan.to_string()));
        }
        assert_eq!(faults_of_seed(3), faults_of_seed(3));
        assert_ne!(faults_of_seed(3), faults_of_seed(4));
    }

    #[test]
    fn each_process_draws_for_itself() {
        let plan_of = |plan, rank| {
            let mut command = Command::new("x");
            set_faults(&mut command, plan, rank).unwrap();
            let mut set = command.get_envs().filter(|(name, _)| *name == FAULTS_VARIABLE);
            set.next().unwrap().1.map(|value| value.to_string_lossy().into_owned())
        };
        assert_eq!(plan_of("seed=7; drop", 0).as_deref(), Some("seed=7; drop"));
        assert_eq!(plan_of("seed=7; drop", 2).as_deref(), Some("seed=9; drop"));
        assert_eq!(plan_of(NO_FAULTS, 1), None);
    }
}
