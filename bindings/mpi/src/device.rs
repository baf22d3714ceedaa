//! The card of the process, and what the environment says of it.

use crate::error::{Class, Failure};
use gdsync::verbs::{Provider, RegistrationCache, provider};
use gdsync::{ConnectOptions, Device, ProtectionDomain};
use std::sync::OnceLock;

/// `software`, or the name of one of the system's cards. By default, the system's first mlx5 card, or else the
/// software card.
const DEVICE: &str = "GDSYNC_MPI_DEVICE";
/// Milliseconds after which a silent peer is given up, at least.
const PEER_TIMEOUT: &str = "GDSYNC_MPI_PEER_TIMEOUT_MS";
/// Bytes of one work request, at most.
const PART: &str = "GDSYNC_MPI_PART_BYTES";
/// Whether the card holds a send back until its receive is posted (1), or repeats it until then (0).
const HOLD: &str = "GDSYNC_MPI_HOLD_SENDS";

/// Whether the card waits in front of and behind each list of transfers (1): then a stream starts a list, and waits for
/// it, by one memory operation each.
const CARD_WAITS: &str = "GDSYNC_MPI_CARD_WAITS";
/// From how many waits on the card collects them; unset: the stream waits for each, or, where [`CARD_WAITS`] is 1, for
/// one alone.
const COLLECT: &str = "GDSYNC_MPI_COLLECT_FROM";
/// From so many on, a word is fewer operations than waits.
const COLLECT_FROM: u32 = 2;

/// Unit tests have peers that stay silent.
const DEFAULT_PEER_TIMEOUT: u64 = if cfg!(test) { 1_000 } else { 20_000 };
/// Cards take messages up to 2 GiB.
const DEFAULT_PART: u64 = 1 << 30;
/// The retries of a message, and its first transmission.
const TRANSMISSIONS: u64 = 8;
/// The longest code of an acknowledgement's time-out.
const LAST_CODE: u8 = 31;

/// Where all requests of the process live.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) pd: ProtectionDomain,
    /// Of the buffers of messages.
    pub(crate) cache: RegistrationCache,
    pub(crate) connection: ConnectOptions,
    /// Bytes of one work request, at most.
    pub(crate) part: u64,
    /// The card holds sends back until their receives are posted.
    pub(crate) holds_sends: bool,
    /// One write of a stream starts a list.
    pub(crate) starts_by_word: bool,
}

impl Domain {
    /// `software` or `system`: both sides of a leg have the same.
    pub(crate) fn provider(&self) -> &'static str {
        match self.pd.device().provider() {
            Provider::Software => "software",
            _ => "system",
        }
    }
}

/// The domain. The first call opens the card.
pub(crate) fn domain() -> Result<&'static Domain, Failure> {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    if let Some(known) = DOMAIN.get() {
        return Ok(known);
    }
    let timeout = number(PEER_TIMEOUT, DEFAULT_PEER_TIMEOUT)?;
    // A send that starts before its receive comes again after 10 µs (InfiniBand, table 45), for as long as it takes.
    let connection = ConnectOptions::default().timeout(timeout_code(timeout)).rnr_retry(7).min_rnr_timer(1);
    let part = number(PART, DEFAULT_PART)?;
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
    // Of two threads, one sets it; the other's card is closed.
    let cache = RegistrationCache::new(&pd);
    Ok(DOMAIN.get_or_init(|| Domain { pd, cache, connection, part, holds_sends, starts_by_word }))
}

/// By default where a repeated message costs more than telling the other side: an mlx5 card repeats after 10 µs at the
/// least. The software card is asked for less work by repeating (docs/results.md).
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

/// Whether the card waits for lists of transfers.
pub(crate) fn card_waits() -> Result<bool, Failure> {
    match std::env::var(CARD_WAITS).as_deref() {
        Err(_) | Ok("0") => Ok(false),
        Ok("1") => Ok(true),
        Ok(other) => Err(neither(CARD_WAITS, other)),
    }
}

/// From how many waits on a stream has the card collect them.
pub(crate) fn collect_from() -> Result<Option<u32>, Failure> {
    let asked = setting(COLLECT)?.map(|waits| u32::try_from(waits).unwrap_or(u32::MAX));
    Ok(asked.or(card_waits()?.then_some(COLLECT_FROM)))
}

fn number(variable: &str, default: u64) -> Result<u64, Failure> {
    Ok(setting(variable)?.unwrap_or(default))
}

/// A number from 1 on, if it is set.
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

/// The code of an acknowledgement's time-out (4.096 µs * 2^code) with which all transmissions take that many
/// milliseconds, or a little longer.
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
