//! The speed of InfiniBand's timers: time-outs, and the intervals derived from them.

use crate::setting::{self, SettingError};
use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;
use std::time::Duration;

/// Environment variable with the [`Speed`] of every card of this process. If it is malformed, no card starts.
/// Cards of different speeds refuse links to each other, so all processes of a job need the same value.
pub const SPEED_VARIABLE: &str = "SOFTHCA_CLOCK";

/// The factor by which a card's timers run faster than InfiniBand's: 1 to [`Speed::MAX`].
///
/// Tests of failures wait for time-outs: missing acknowledgements, receivers that are not ready, peers that
/// end, connection requests without an answer. At speed 20 they wait a twentieth of the time. Times that a
/// program can measure with its own clock stay: WAIT for a time, timestamps of completions, the moderation of
/// events, the delays of a fault plan. So does the time that processes of the system get for an action.
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
    /// The highest speed. The time-outs of hardware exceed the needs of a busy machine by about that factor.
    pub const MAX: u8 = 20;

    /// Makes a speed of `times`; `None` if it is not 1 to [`Self::MAX`].
    pub fn new(times: u8) -> Option<Speed> {
        NonZeroU8::new(times).filter(|times| times.get() <= Self::MAX).map(Speed)
    }

    /// Returns the factor.
    pub fn times(self) -> u8 {
        self.0.get()
    }

    /// Returns how long an InfiniBand timer set to `time` runs.
    pub fn of(self, time: Duration) -> Duration {
        time / u32::from(self.times())
    }

    /// Returns the speed that the environment gives.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub fn from_environment() -> Result<Speed, SettingError> {
        Ok(setting::parsed(SPEED_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

impl Default for Speed {
    /// The speed of hardware.
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
