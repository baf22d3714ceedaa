//! Time-outs and periods of probes, and the ranks to probe.

use gdsync::ConnectOptions;
use std::time::{Duration, SystemTime};

const TIMEOUT_UNIT: Duration = Duration::from_nanos(4096);

/// The time-out of an attempt.
fn attempt(code: u8) -> Duration {
    TIMEOUT_UNIT * (1 << code.min(31))
}

/// Shortest time after which a control connection fails: busy machines answer late.
const SHORTEST: Duration = Duration::from_secs(1);
/// Ranks of the largest team in which each rank probes all others at a time.
const MOST_WITH_ALL: u32 = 64;
/// Ranks that each rank probes at a time in larger teams.
const PROBED: u32 = 8;

/// The options of control connections, which find a dead rank before the team's own connections fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ControlOptions {
    pub(crate) connect: ConnectOptions,
    pub(crate) period: Duration,
}

impl ControlOptions {
    pub(crate) fn of(team: ConnectOptions) -> Self {
        // A receiver without posted receives is not dead.
        let team = team.rnr_retry(7);
        let (timeout, retries) = (team.timeout, team.retry_count);
        // IB specification, 9.7.6.1.3: a time-out of 0 never ends.
        if timeout == 0 {
            return ControlOptions { connect: team, period: SHORTEST };
        }
        // One attempt fewer than the team's connections: the first probe after a death finds it.
        if retries >= 3 && attempt(timeout) * u32::from(retries) >= SHORTEST {
            return ControlOptions {
                connect: team.retry_count(retries - 1),
                period: attempt(timeout) * 3 / 4,
            };
        }
        let limit = attempt(timeout) * (u32::from(retries) + 1);
        let shortest = (1..31).find(|code| attempt(*code) * 8 >= SHORTEST).unwrap_or(31);
        let code = (shortest..31).take_while(|code| attempt(*code) * 9 <= limit).last().unwrap_or(shortest);
        ControlOptions { connect: team.timeout(code).retry_count(7), period: attempt(code) * 3 / 4 }
    }

    /// Returns the time within which a message arrives, unless the rank is dead or takes none.
    pub(super) fn patience(self) -> Duration {
        match self.connect.timeout {
            0 => SHORTEST,
            timeout => attempt(timeout) * (u32::from(self.connect.retry_count) + 1) + self.period,
        }
    }
}

///
/// In a team of up to 64 ranks these are all others. In a larger one they are eight, evenly spaced, and the next eight
/// in the next period. Periods follow the clock, so each rank is probed by eight others in every period as far as the
/// hosts' clocks agree. A rank that finds a death tells the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeTurn {
    own: u32,
    size: u32,
    /// The distances from this rank, minus 1, modulo the stride, that are probed.
    remainder: u32,
    /// Distance between two probed ranks.
    stride: u32,
}

impl ProbeTurn {
    pub(super) fn now((own, size): (u32, u32), period: Duration) -> Self {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::at((own, size), clock.as_nanos() / period.as_nanos().max(1))
    }

    fn at((own, size): (u32, u32), number: u128) -> Self {
        let stride = Self::stride(size);
        let remainder = (number % u128::from(stride)) as u32;
        ProbeTurn { own, size, remainder, stride }
    }

    fn stride(size: u32) -> u32 {
        if size <= MOST_WITH_ALL { 1 } else { (size - 1).div_ceil(PROBED) }
    }

    pub(super) fn probes(self, rank: u32) -> bool {
        let distance = (rank + self.size - self.own) % self.size;
        distance != 0 && (distance - 1) % self.stride == self.remainder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_found_within_the_time_out_of_the_team() {
        let whole = |options: ConnectOptions| {
            TIMEOUT_UNIT * (1 << options.timeout) * (u32::from(options.retry_count) + 1)
        };
        for (timeout, retries) in (1..24).flat_map(|timeout| (0..8).map(move |retries| (timeout, retries))) {
            let team = ConnectOptions::default().timeout(timeout).retry_count(retries).rnr_retry(0);
            let options = ControlOptions::of(team);
            // A probe may be late by the poll period.
            let latest = whole(options.connect) + options.period * 5 / 4;
            let limit = whole(team).max(Duration::from_millis(1300));
            assert!(latest <= limit, "{timeout} {retries}: {latest:?} {options:?}");
            // One lost packet or late answer is no death.
            assert!(options.connect.retry_count >= 2 && whole(options.connect) >= SHORTEST, "{options:?}");
            assert_eq!(options.connect.rnr_retry, 7);
        }
        assert_eq!(ControlOptions::of(ConnectOptions::default().timeout(0)).connect.timeout, 0);
    }

    #[test]
    fn every_rank_is_probed_in_every_period_by_all_or_by_several() {
        for size in [2, 3, 64, 65, 66, 100, 512, 1000] {
            let stride = ProbeTurn::stride(size);
            for number in 0..u128::from(stride) + 1 {
                let by = |rank| {
                    (0..size)
                        .filter(move |own| ProbeTurn::at((*own, size), number).probes(rank))
                        .collect::<Vec<_>>()
                };
                for rank in (0..size).step_by(1 + size as usize / 9) {
                    let (by, expected) = (by(rank), if size <= 64 { size - 1 } else { PROBED });
                    assert!(!by.contains(&rank));
                    assert!(by.len() as u32 + 1 >= expected && by.len() as u32 <= expected, "{size}: {by:?}");
                    // They are not adjacent, because a host that fails takes adjacent ranks along.
                    let near = by.windows(2).filter(|pair| pair[1] - pair[0] < stride);
                    assert!(near.count() <= 1, "{size} {stride}: {by:?}");
                }
            }
        }
    }

    #[test]
    fn every_rank_probes_every_other_in_turn() {
        for size in [2, 64, 65, 200] {
            let periods = u128::from(ProbeTurn::stride(size));
            for rank in (0..size).filter(|rank| *rank != 7 % size) {
                let own = (7 % size, size);
                let times = (1000..1000 + periods).filter(|number| ProbeTurn::at(own, *number).probes(rank));
                assert_eq!(times.count(), 1, "{rank} of {size}");
            }
            assert!(!ProbeTurn::now((1, size), Duration::ZERO).probes(1), "not itself");
        }
    }
}
