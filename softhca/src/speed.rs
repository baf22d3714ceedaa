//! How fast the timers of InfiniBand run: time-outs, and what is measured by them.

use crate::setting::{self, SettingError};
use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;
use std::time::Duration;

/// Environment variable with the [`Speed`] of every card of this process. With a malformed one no card
/// starts. Cards of different speeds refuse links to each other, so all processes of a job have the same.
pub const SPEED_VARIABLE: &str = "SOFTHCA_CLOCK";

/// How many times as fast as InfiniBand's the timers of a card run: 1 to [`Speed::MAX`].
///
/// Tests of failures wait for time-outs: acknowledgements that do not come, receivers that are not ready, peers that
/// end, connections that nobody answers. At speed 20 they wait for a twentieth of the time. What a program
/// measures by a clock of its own is not faster: WAIT for a time, timestamps of completions, the moderation of
/// events, the delays of a fault plan. Nor is the time that a process of the system is given to do something.
///
/// ```
/// use softhca::Speed;
/// use std::time::Duration;
/// let speed: Speed = "20".parse()?;
/// assert_eq!(speed.of(Duration::from_millis(100)), Duration::from_millis(5));
/// assert_eq!(Speed::default().of(Duration::from_millis(100)), Duration::from_millis(100));
/// assert!("21".parse::<Speed>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Speed(NonZeroU8);

impl Speed {
    /// The highest speed. Time-outs of hardware have a margin of about that much over what a busy machine needs.
    pub const MAX: u8 = 20;

    /// So many times as fast; `None` if it is not 1 to [`Self::MAX`].
    pub fn new(times: u8) -> Option<Speed> {
        NonZeroU8::new(times).filter(|times| times.get() <= Self::MAX).map(Speed)
    }

    /// How many times as fast.
    pub fn times(self) -> u8 {
        self.0.get()
    }

    /// How long a timer of InfiniBand runs that is set to `time`.
    pub fn of(self, time: Duration) -> Duration {
        time / u32::from(self.times())
    }

    /// The speed that the environment gives.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub fn from_environment() -> Result<Speed, SettingError> {
        Ok(setting::parsed(SPEED_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

impl Default for Speed {
    /// That of hardware.
    fn default() -> Self {
        Speed(NonZeroU8::MIN)
    }
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().ok().and_then(Speed::new).ok_or_else(|| {
            format!(
                "it is no whole number from 1 to {}: give how many times as fast as hardware's the timers run, or unset it for 1",
                Self::MAX
            )
        })
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_speed_comes_back_from_its_text_and_others_are_refused() {
        for times in 1..=Speed::MAX {
            let speed: Speed = times.to_string().parse().unwrap();
            assert_eq!((speed.times(), speed.to_string()), (times, times.to_string()));
        }
        for text in ["", "0", "21", "256", "-1", "1.5", "20x", "fast", " 2"] {
            let error = text.parse::<Speed>().unwrap_err();
            assert!(error.contains("from 1 to 20") && error.contains("unset it"), "{text}: {error}");
        }
        assert_eq!((Speed::new(0), Speed::new(Speed::MAX + 1)), (None, None));
    }

    #[test]
    fn timers_are_divided_and_never_longer() {
        let time = Duration::from_nanos(4096 << 14);
        for times in 1..=Speed::MAX {
            let speed = Speed::new(times).unwrap();
            assert_eq!(speed.of(time), time / u32::from(times));
            assert_eq!(speed.of(Duration::ZERO), Duration::ZERO);
        }
    }
}
