//! The card of the process, and the environment variables that configure it.

use crate::error::{Class, Failure};
use gdsync::verbs::{Provider, RegistrationCache, provider};
use gdsync::{ConnectOptions, Device, ProtectionDomain};
use std::sync::OnceLock;

/// `software`, or the name of one of the system's cards. The default is the system's first mlx5 card, or else the software card.
const DEVICE: &str = "GDSYNC_MPI_DEVICE";
/// The least time in milliseconds after which a silent peer is given up.
const PEER_TIMEOUT: &str = "GDSYNC_MPI_PEER_TIMEOUT_MS";
/// The largest length of a work request in bytes.
const PART: &str = "GDSYNC_MPI_PART_BYTES";
/// 1: the card holds a send back until its receive is posted. 0: it repeats the send until then.
const HOLD: &str = "GDSYNC_MPI_HOLD_SENDS";

/// 1: the card waits before and after each list of transfers, so a stream starts a list, and waits for it, by one memory operation
/// each.
const CARD_WAITS: &str = "GDSYNC_MPI_CARD_WAITS";
/// The number of waits from which on the card collects them. Unset: the stream waits for each; or, if [`CARD_WAITS`] is 1,
/// [`COLLECT_FROM`].
const COLLECT: &str = "GDSYNC_MPI_COLLECT_FROM";
/// From this number on, one wait for a collector's word takes fewer operations.
const COLLECT_FROM: u32 = 2;

const DEFAULT_PEER_TIMEOUT: u64 = if cfg!(test) { 1_000 } else { 20_000 };
/// The limit of cards is 2 GiB.
const DEFAULT_PART: u64 = 1 << 30;
/// The transmissions of a message: the first one and its retries.
const TRANSMISSIONS: u64 = 8;
const LAST_CODE: u8 = 31;

/// The protection domain and the settings of all requests.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) pd: ProtectionDomain,
    /// Registrations of the buffers of messages.
    pub(crate) cache: RegistrationCache,
    pub(crate) connection: ConnectOptions,
    pub(crate) fragment_bytes: u64,
    /// True if the card holds sends back until their receives are posted.
    pub(crate) holds_sends: bool,
    /// True if one write of a stream starts a list.
    pub(crate) starts_by_word: bool,
}

impl Domain {
    /// `software` or `system`, which both sides must have in common.
    pub(crate) fn provider(&self) -> &'static str {
        match self.pd.device().provider() {
            Provider::Software => "software",
            _ => "system",
        }
    }
}

/// Returns the domain. The first call opens the card.
pub(crate) fn domain() -> Result<&'static Domain, Failure> {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    if let Some(known) = DOMAIN.get() {
        return Ok(known);
    }
    let timeout = number(PEER_TIMEOUT, DEFAULT_PEER_TIMEOUT)?;
    // A send that starts before its receive is repeated after 10 µs (InfiniBand, table 45), without limit.
    let connection = ConnectOptions::default().timeout(timeout_code(timeout)).rnr_retry(7).min_rnr_timer(1);
    let fragment_bytes = number(PART, DEFAULT_PART)?;
    let device = open()?;
    let (asked, is_software) = (std::env::var(HOLD).ok(), device.provider() == Provider::Software);
    let (waits, starts_by_word) = (device.card_waits()?, card_waits()?);
    if starts_by_word && !(waits.data && waits.queues) {
        let text = format!(
            "{CARD_WAITS} is 1, and the card does not wait for words and completion queues: unset it"
        );
        return Err(Failure::new(Class::Unsupported, text));
    }
    let holds_sends = match holds_sends(asked.as_deref(), waits.data, is_software && !starts_by_word)? {
        false if starts_by_word => {
            let text =
                format!("{HOLD} is 0, and {CARD_WAITS} is 1, which takes the former: unset one of them");
            return Err(Failure::new(Class::Argument, text));
        }
        holds => holds,
    };
    let pd = ProtectionDomain::new(&device)?;
    // If two threads race, the second one's card is closed.
    let cache = RegistrationCache::new(&pd);
    Ok(DOMAIN.get_or_init(|| Domain { pd, cache, connection, fragment_bytes, holds_sends, starts_by_word }))
}

/// Returns whether sends are held back. By default they are if a repetition costs more than a clear-to-send write: an mlx5 card repeats
/// after 10 µs at the least, but the software card has less work with repetitions (docs/results.md).
fn holds_sends(asked: Option<&str>, waits: bool, is_software: bool) -> Result<bool, Failure> {
    match asked {
        None => Ok(waits && !is_software),
        Some("0") => Ok(false),
        Some("1") if waits => Ok(true),
        Some("1") => {
            let text = format!("{HOLD} is 1, and the card does not wait for words in memory: unset it");
            Err(Failure::new(Class::Unsupported, text))
        }
        Some(other) => Err(neither(HOLD, other)),
    }
}

fn neither(variable: &str, value: &str) -> Failure {
    let text = format!("{variable} is {value:?}, neither 0 nor 1: unset it or correct it");
    Failure::new(Class::Argument, text)
}

/// Returns whether the card waits for lists of transfers.
pub(crate) fn card_waits() -> Result<bool, Failure> {
    match std::env::var(CARD_WAITS).as_deref() {
        Err(_) | Ok("0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => Err(neither(CARD_WAITS, other)),
    }
}

/// Returns the number of waits from which on the card collects them for a stream.
pub(crate) fn collect_from() -> Result<Option<u32>, Failure> {
    let asked = setting(COLLECT)?.map(|waits| u32::try_from(waits).unwrap_or(u32::MAX));
    Ok(asked.or(card_waits()?.then_some(COLLECT_FROM)))
}

fn number(variable: &str, default: u64) -> Result<u64, Failure> {
    Ok(setting(variable)?.unwrap_or(default))
}

/// Returns a variable's value, a number from 1 on, if it is set.
fn setting(variable: &str) -> Result<Option<u64>, Failure> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    let number = text.parse().ok().filter(|value| *value > 0);
    number.map(Some).ok_or_else(|| {
        let text = format!("{variable} is {text:?}, which is no number from 1 on: unset it or correct it");
        Failure::new(Class::Argument, text)
    })
}

fn open() -> Result<Device, Failure> {
    let wanted = std::env::var(DEVICE).ok();
    match wanted.as_deref() {
        Some("software") => Ok(Device::software()?),
        Some(name) => {
            let opened = provider::system().and_then(|system| Device::open(system, Some(name)));
            opened.map_err(|error| Failure::from(error).about(format!("{DEVICE}={name}")))
        }
        None => match provider::system().and_then(|system| Device::open(system, None)) {
            Ok(device) => Ok(device),
            Err(error) => {
                tracing::debug!(%error, "no card of the system: the software card takes its place");
                Ok(Device::software()?)
            }
        },
    }
}

/// Returns the code of the acknowledgement timeout (4.096 µs * 2^code) with which all transmissions take that many milliseconds, or
/// a little longer.
fn timeout_code(milliseconds: u64) -> u8 {
    let each = milliseconds.saturating_mul(1_000_000) / TRANSMISSIONS;
    (1..LAST_CODE).find(|code| 4096u64 << code >= each).unwrap_or(LAST_CODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_held_back_where_the_card_waits_and_telling_costs_less() {
        let held =
            |asked, waits, is_software| holds_sends(asked, waits, is_software).map_err(|error| error.class);
        assert_eq!(
            [held(None, true, false), held(None, true, true), held(None, false, false)],
            [Ok(true), Ok(false), Ok(false)]
        );
        assert_eq!([held(Some("1"), true, true), held(Some("0"), true, false)], [Ok(true), Ok(false)]);
        assert_eq!(held(Some("1"), false, false), Err(Class::Unsupported));
        assert_eq!(held(Some("yes"), true, false), Err(Class::Argument));
    }

    #[test]
    fn all_transmissions_take_as_long_as_asked_for() {
        for milliseconds in [1, 10, 2_000, 20_000, 600_000] {
            let all = |code: u8| TRANSMISSIONS * (4096u64 << code) / 1_000_000;
            let code = timeout_code(milliseconds);
            assert!(all(code) >= milliseconds, "{milliseconds} ms: {code}");
            assert!(code == 1 || all(code - 1) <= milliseconds, "{milliseconds} ms: {code}");
        }
        assert_eq!(timeout_code(u64::MAX), LAST_CODE);
    }
}
