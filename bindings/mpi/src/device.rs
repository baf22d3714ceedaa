//! The card of the process, and what the environment says of it.

use crate::error::{Class, Failure};
use gdsync::verbs::{Provider, provider};
use gdsync::{ConnectOptions, Device, ProtectionDomain};
use std::sync::OnceLock;

/// `software`, or the name of one of the system's cards. By default, the system's first mlx5 card, or else the
/// software card.
const DEVICE: &str = "GDSYNC_MPI_DEVICE";
/// Milliseconds after which a silent peer is given up, at least.
const PEER_TIMEOUT: &str = "GDSYNC_MPI_PEER_TIMEOUT_MS";
/// Bytes of one work request, at most.
const PART: &str = "GDSYNC_MPI_PART_BYTES";

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
    pub(crate) connection: ConnectOptions,
    /// Bytes of one work request, at most.
    pub(crate) part: u64,
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
    let pd = ProtectionDomain::new(&open()?)?;
    // Of two threads, one sets it; the other's card is closed.
    Ok(DOMAIN.get_or_init(|| Domain { pd, connection, part }))
}

fn number(variable: &str, default: u64) -> Result<u64, Failure> {
    match std::env::var(variable) {
        Err(_) => Ok(default),
        Ok(text) => text.parse().ok().filter(|value| *value > 0).ok_or_else(|| {
            let text =
                format!("{variable} is {text:?}, which is no number from 1 on: unset it or correct it");
            Failure::new(Class::Argument, text)
        }),
    }
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
