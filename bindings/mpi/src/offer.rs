//! What one side of a leg sends to the other when they match: a line of text.

use crate::error::{Class, Failure, cut};
use gdsync::{Endpoint, RemoteMemory};
use std::fmt;
use std::str::FromStr;

/// Bytes of an offer, with its zero: `GDSYNC_MPI_OFFER` of `c/engine.h`.
pub(crate) const OFFER: usize = 320;
const MAGIC: &str = "gdsync-mpi/4";
const NO_ENDPOINT: &str = "none";

/// One side of a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// What both sides must agree on, in a word: `transfer`, or the collective with its shape.
    pub(crate) shape: String,
    /// Bytes of the message, or of the receive.
    pub(crate) bytes: u64,
    /// Bytes of one work request, at most.
    pub(crate) part: u64,
    /// The provider of the card.
    pub(crate) provider: String,
    /// None of a leg that carries nothing.
    pub(crate) endpoint: Option<Endpoint>,
    /// What the other side may write to: of a partitioned receive, its buffer; of a send whose card waits for words, the
    /// word that says how many receives are posted; and else of no length.
    pub(crate) memory: RemoteMemory,
    /// The queue pair for probes, where the card waits for lists of transfers.
    pub(crate) life: Option<Endpoint>,
}

impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Offer { shape, bytes, part, provider, endpoint, memory, life } = self;
        write!(f, "{MAGIC} offer {shape} {bytes} {part} {provider} ")?;
        match endpoint {
            Some(endpoint) => write!(f, "{endpoint}")?,
            None => f.write_str(NO_ENDPOINT)?,
        }
        write!(f, " {memory}")?;
        life.iter().try_for_each(|life| write!(f, " {life}"))
    }
}

/// The line of a side that cannot match.
pub(crate) fn refusal(failure: &Failure) -> String {
    format!("{MAGIC} refusal {} {}", failure.class as i32, failure.text)
}

/// The line in C's form: cut where it is too long, which only refusals are.
pub(crate) fn to_bytes(line: &str) -> [u8; OFFER] {
    let mut bytes = [0; OFFER];
    let line = cut(line, OFFER - 1).as_bytes();
    bytes[..line.len()].copy_from_slice(line);
    bytes
}

/// Reads the other side's line.
///
/// # Errors
/// Its refusal, with its class; a line that is none.
pub(crate) fn read(bytes: &[u8; OFFER]) -> Result<Offer, Failure> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(OFFER);
    let line = String::from_utf8_lossy(&bytes[..end]);
    let not_ours = || {
        let text = format!("the peer says {line:?}: is its library the same version as this one?");
        Failure::new(Class::Other, text)
    };
    let rest = line.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')).ok_or_else(not_ours)?;
    if let Some(refusal) = rest.strip_prefix("refusal ") {
        let (class, text) = refusal.split_once(' ').unwrap_or((refusal, ""));
        let class = Class::of(class.parse().unwrap_or_default());
        return Err(Failure::new(class, format!("the peer cannot match: {text}")));
    }
    rest.strip_prefix("offer ").and_then(|offer| offer.parse().ok()).ok_or_else(not_ours)
}

impl FromStr for Offer {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        let (shape, bytes, part) = (word()?.to_owned(), word()?.parse(), word()?.parse::<u64>());
        let (provider, endpoint) = (word()?.to_owned(), word()?);
        let endpoint = (endpoint != NO_ENDPOINT).then(|| endpoint.parse().map_err(drop)).transpose()?;
        let part = part.ok().filter(|part| *part > 0).ok_or(())?;
        let bytes = bytes.map_err(drop)?;
        let memory = word()?.parse().map_err(drop)?;
        let life = words.next().map(str::parse).transpose().map_err(drop)?;
        Ok(Offer { shape, bytes, part, provider, endpoint, memory, life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        Offer {
            shape: "transfer".to_owned(),
            bytes: 1 << 40,
            part: 1 << 30,
            provider: "software".to_owned(),
            endpoint: Some("roce2:0:12:3:3:00000000000000000000ffff0a000001".parse().unwrap()),
            memory: RemoteMemory { addr: 0x7fff_0000_1000, len: 1 << 40, rkey: 0x1234 },
            life: None,
        }
    }

    #[test]
    fn offers_and_refusals_arrive_as_they_were() {
        let with_life = Offer { life: offer().endpoint, ..offer() };
        for offer in [offer(), with_life, Offer { endpoint: None, ..offer() }] {
            assert_eq!(read(&to_bytes(&offer.to_string())).unwrap(), offer);
        }
        let failure = Failure::new(Class::Truncate, "x".repeat(2 * OFFER));
        let error = read(&to_bytes(&refusal(&failure))).unwrap_err();
        assert_eq!(error.class, Class::Truncate);
        assert!(error.text.contains("xxx"), "{error}");
    }

    #[test]
    fn the_longest_offer_has_room() {
        let shape = format!("partitions-{}-of-{}-bytes", u32::MAX, u64::MAX);
        let memory = RemoteMemory { addr: u64::MAX, len: u64::MAX, rkey: u32::MAX };
        let life = offer().endpoint;
        let longest = Offer { shape, bytes: u64::MAX, part: u64::MAX, memory, life, ..offer() };
        assert_eq!(read(&to_bytes(&longest.to_string())).unwrap(), longest);
    }

    #[test]
    fn lines_of_others_are_refused() {
        let good = offer().to_string();
        let lines = ["", "hello", "gdsync-mpi/4", "gdsync-mpi/3 offer", &good.replace(" 1073741824 ", " 0 ")];
        for line in lines {
            let error = read(&to_bytes(line)).unwrap_err();
            assert_eq!(error.class, Class::Other);
            assert!(error.text.contains("version"), "{line}: {error}");
        }
    }
}
