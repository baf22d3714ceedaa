//! Parsers of the values on the command line, and the values that are words.

use super::{MAX_BATCH, MAX_EXCHANGES, MAX_SIZE};
use clap::ValueEnum;
use gdsync::advanced::QueueApi;
use gdsync::cuda::GpuList;
use gdsync::stream::DoorbellPath;
use gdsync::verbs::{Mtu, Transport};
use gdsync_notify::ConnectionKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use softhca::card::LinkLayer;
use softhca::devices::MAX_DEVICES;
use softhca::faults::{Action, FaultPlan};
use softhca::liberties::{Liberties, LibertyKinds};
use std::time::Duration;

pub(super) fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a whole number of 0 or more"))
}

pub(super) fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= 10_000.0 => Ok(minutes),
        _ => Err(format!("{text} is no number of minutes above 0, up to 10000")),
    }
}

pub(super) fn positive(text: &str) -> Result<u64, String> {
    match count(text) {
        Ok(0) | Err(_) => Err(format!("{text} is not a whole number of 1 or more")),
        Ok(value) => Ok(value),
    }
}

pub(super) fn posts(text: &str) -> Result<u64, String> {
    match positive(text)? {
        posts if posts > MAX_EXCHANGES => {
            Err(format!("{posts} is more than the {MAX_EXCHANGES} posts that are counted: give fewer"))
        }
        posts => Ok(posts),
    }
}

/// Parses words of kinds of decisions, of which there is one at least.
pub(super) fn liberty_kinds(text: &str) -> Result<LibertyKinds, String> {
    let kinds = LibertyKinds::of_words(text)?;
    if kinds.is_empty() { Err("it names no kind".to_owned()) } else { Ok(kinds) }
}

/// Checks liberties and returns their text, which the card parses again.
pub(super) fn liberties(text: &str) -> Result<String, String> {
    text.parse::<Liberties>().map(|liberties| liberties.to_string())
}

pub(super) fn ordinal(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is not the number of a GPU, counted from 0"))
}

pub(super) fn gid_index(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is not an index of a GID, counted from 0"))
}

pub(super) fn mtu(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok().filter(|bytes| Mtu::from_bytes(*bytes).is_some());
    bytes.ok_or_else(|| format!("{text} is none of 256, 512, 1024, 2048, 4096"))
}

/// Devices of the software card: the text on the command line, and its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoftDevices {
    pub text: String,
    pub layers: Vec<LinkLayer>,
}

pub(super) fn soft_devices(text: &str) -> Result<SoftDevices, String> {
    match softhca::devices::parse(text) {
        Some(layers) => Ok(SoftDevices { text: text.to_owned(), layers }),
        None => {
            Err(format!("{text} is neither a number from 1 to {MAX_DEVICES} nor a list of `ib` and `roce`"))
        }
    }
}

pub(super) fn procs(text: &str) -> Result<u64, String> {
    positive(text).ok().filter(|value| *value <= 2).ok_or_else(|| format!("{text} is neither 1 nor 2"))
}

pub(super) fn batch(text: &str) -> Result<u64, String> {
    let value = positive(text)?;
    if value > MAX_BATCH {
        Err(format!("{value} is more than the {MAX_BATCH} that fit a queue"))
    } else {
        Ok(value)
    }
}

pub(super) fn copy_size(text: &str) -> Result<u64, String> {
    let bytes = crate::size::parse(text)?;
    match (64..=256 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("{text} is no size from 64 bytes to 256MiB")),
    }
}

/// Message sizes in bytes; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

/// Returns `first` and its doublings up to `last`.
pub(super) fn powers(first: u64, last: u64) -> Vec<u64> {
    std::iter::successors(Some(first), |size| size.checked_mul(2)).take_while(|size| *size <= last).collect()
}

/// Parses a list of sizes, or a range of powers of two.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    let Some((first, last)) = text.split_once("..") else {
        return text.split(',').map(size).collect::<Result<_, _>>().map(Sizes);
    };
    match (size(first)?, size(last)?) {
        (0, _) => {
            Err(format!("{text} begins with 0, which stays 0 when it is doubled: begin with 1 byte or more"))
        }
        (first, last) if first > last => {
            Err(format!("{text} ends before it begins: give the smaller size first"))
        }
        (first, last) => Ok(Sizes(powers(first, last))),
    }
}

/// As [`sizes`], for copies, which have at least a byte.
pub(super) fn card_sizes(text: &str) -> Result<Sizes, String> {
    let sizes = sizes(text)?;
    if sizes.0.contains(&0) {
        return Err(format!(
            "{text} has a write of 0 bytes, which copies nothing: begin with 1 byte or more"
        ));
    }
    Ok(sizes)
}

/// Parses a time above 0 and up to a day.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = seconds.zip(number.parse::<f64>().ok()).map(|(unit, number)| unit * number);
    match seconds.filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(format!(
            "{text} is no time above 0, up to 24h: give a number with ms, s, m or h, such as 10s"
        )),
    }
}

/// Parses a polling interval; a shorter one would load the observed processes.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < Duration::from_millis(100) => {
            Err(format!("{text} is less than the 100ms that are between two looks at least"))
        }
        interval => Ok(interval),
    }
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    match crate::size::parse(text)? {
        bytes if bytes > MAX_SIZE => {
            Err(format!("{text} is more than the {} that a message can have", crate::size::text(MAX_SIZE)))
        }
        bytes => Ok(bytes),
    }
}

pub const NO_FAULTS: &str = "none";

/// Parses a number of operations, which may have an exponent.
pub(super) fn operations(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(count) if (1.0..=1e15).contains(&count) => Ok(count as u64),
        _ => Err(format!("{text} is no number of operations from 1 to 1e15")),
    }
}

/// Parses a range of seeds.
pub(super) fn seeds(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    let seeds: Option<(u64, u64)> = ends.filter(|(first, end)| first < end);
    seeds.ok_or_else(|| format!("{text} is no range of seeds such as 1..100"))
}

/// Parses a fault plan, or `none`.
pub(super) fn simulated_faults(text: &str) -> Result<String, String> {
    if text == NO_FAULTS {
        return Ok(text.to_owned());
    }
    text.parse::<FaultPlan>().map(|plan| plan.to_string()).map_err(|error| error.to_string())
}

/// Parses a fault plan that a soak can survive, or `none`.
pub fn soak_faults(text: &str) -> Result<String, String> {
    if text == NO_FAULTS {
        return Ok(text.to_owned());
    }
    let plan: FaultPlan = text.parse().map_err(|error| format!("{error}"))?;
    if plan.rules.iter().any(|rule| rule.action == Action::Die) {
        return Err("a card that dies for good ends the soak: leave `die` out".to_owned());
    }
    Ok(plan.to_string())
}

pub(super) fn gpus_as_text<S: Serializer>(list: &Option<GpuList>, to: S) -> Result<S::Ok, S::Error> {
    list.as_ref().map(GpuList::to_string).serialize(to)
}

pub(super) fn gpus_of_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<GpuList>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

/// Defines an enum of words, each with its value in the library.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident for $type:ident: $($(#[$help:meta])* $word:ident => $value:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name {
            $($(#[$help])* $word,)*
        }

        impl From<$name> for $type {
            fn from(choice: $name) -> Self {
                match choice {
                    $($name::$word => $type::$value,)*
                }
            }
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Send into a posted receive
    Send,
    /// RDMA write, then an inline RDMA write of a flag word that the other side waits for
    Write,
    /// RDMA write with immediate, which completes a receive
    WriteImm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A stream
    Stream,
    /// The CPU
    Cpu,
}

choice! {
    Service for Transport:
    /// Reliable connection
    Rc => Rc,
    /// Unreliable connection
    Uc => Uc,
    /// Unreliable datagrams
    Ud => Ud,
}

choice! {
    DoorbellChoice for DoorbellPath:
    /// The stream stores to the card's register where it can reach it, else as with `proxy`
    Auto => Auto,
    /// The stream stores to the card's register
    Direct => Direct,
    /// The stream stores to a mailbox, and a thread forwards it
    Proxy => Proxy,
    // The card's waits send the stream's messages, so the stream rings no doorbell.
    /// None: the CPU hands sends to the card at once, and the card waits for a word that the stream writes
    Card => Auto,
}

choice! {
    QueueChoice for QueueApi:
    /// Verbs
    Verbs => Verbs,
    /// Commands in the device's own language
    Devx => Devx,
}

choice! {
    /// The connections among the ranks of a team.
    Connections for ConnectionKind:
    /// The default for a team of its size
    Size => Auto,
    /// A queue pair to each rank
    Each => Each,
    /// Dynamically connected transport
    Dynamic => Dynamic,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Options {
        #[serde(serialize_with = "gpus_as_text", deserialize_with = "gpus_of_text")]
        gpu: Option<GpuList>,
    }

    #[test]
    fn a_list_is_the_same_in_another_process() {
        for gpu in [None, Some("all".parse().unwrap()), Some("0,1".parse().unwrap())] {
            let options = Options { gpu };
            let text = serde_json::to_string(&options).unwrap();
            assert_eq!(serde_json::from_str::<Options>(&text).unwrap(), options);
        }
        assert!(serde_json::from_str::<Options>(r#"{"gpu": "x"}"#).is_err());
    }

    #[test]
    fn a_plan_is_checked_before_anything_starts() {
        assert_eq!(soak_faults("none").as_deref(), Ok("none"));
        assert_eq!(soak_faults("drop nth=3").as_deref(), Ok("seed=0; drop nth=3"));
        assert!(soak_faults("drop nth=0").unwrap_err().contains("nth=0"));
        assert!(soak_faults("drop; die nth=9").unwrap_err().contains("leave `die` out"));
    }
}
