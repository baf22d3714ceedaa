//! Limits of a card, and its rules for work requests that wait.

use crate::fabric::OWN_QPN_BITS;
use crate::setting;
use crate::setting::SettingError;
use std::str::FromStr;

/// Environment variable that limits the objects of each kind of a card of this process: queue pairs, completion queues,
/// memory regions, protection domains, shared receive queues, XRC domains. It lets a program run out of objects early.
pub const OBJECTS_VARIABLE: &str = "SOFTHCA_OBJECTS";
/// Minimum of the variable: programs need some objects to start.
const FEWEST_OBJECTS: u32 = 16;

/// Limits of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of one completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Ranges of a key that refers to other keys.
    pub max_key_entries: u32,
    /// Bytes of device memory.
    pub device_memory: u64,
    /// Protection domains.
    pub max_pd: u32,
    /// Scatter/gather elements of a send: 63 segments minus control and remote address.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive: those of 512 bytes (`max_wqe_sz_rq` of the device).
    pub max_recv_sge: u32,
    /// RDMA reads and atomics in flight per queue pair.
    pub max_rd_atomic: u8,
    /// Bytes of a message on a connection.
    pub max_message: u32,
    /// Bytes of a datagram: the port's MTU.
    pub max_datagram: u32,
    /// Queue pairs without a doorbell record of sends.
    pub max_recordless_qp: u32,
    /// XRC domains.
    pub max_xrcd: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Entries of one shared receive queue.
    pub max_srq_entries: u32,
    /// Multicast groups that queue pairs are attached to.
    pub max_groups: u32,
    /// Queue pairs of one multicast group.
    pub max_group_members: u32,
    /// Scatter elements of a receive of a shared queue: one fewer than of other receives, for the linking segment.
    pub max_srq_sge: u32,
}

/// The default limits of a software card.
pub const LIMITS: Limits = Limits {
    // All the numbers that a card has for them on the fabric of one host.
    max_qp: 1 << OWN_QPN_BITS,
    max_qp_wr: 1 << 15,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    max_mr: 1 << 20,
    max_key_entries: 1 << 16,
    device_memory: 1 << 18,
    max_pd: 1 << 16,
    max_send_sge: 61,
    max_recv_sge: 32,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    max_datagram: 4096,
    max_recordless_qp: 1 << 8,
    max_xrcd: 1 << 16,
    max_srq: 1 << 16,
    max_srq_entries: 1 << 15,
    max_groups: 1 << 8,
    max_group_members: 240,
    max_srq_sge: 31,
};

impl Limits {
    /// Returns the default limits with at most `most` objects of each kind.
    pub fn of_objects(most: u32) -> Limits {
        Limits {
            max_qp: LIMITS.max_qp.min(most),
            max_cq: LIMITS.max_cq.min(most),
            max_mr: LIMITS.max_mr.min(most),
            max_pd: LIMITS.max_pd.min(most),
            max_xrcd: LIMITS.max_xrcd.min(most),
            max_srq: LIMITS.max_srq.min(most),
            ..LIMITS
        }
    }

    /// Returns the limits from the environment.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub(crate) fn from_environment() -> Result<Limits, SettingError> {
        setting::value(OBJECTS_VARIABLE).map_or(Ok(LIMITS), |text| parse(&text))
    }
}

fn parse(text: &str) -> Result<Limits, SettingError> {
    let most = text.parse().ok().filter(|most| (FEWEST_OBJECTS..=LIMITS.max_mr).contains(most));
    most.map(Limits::of_objects).ok_or_else(|| {
        let allowed = format!(
            "it is no whole number from {FEWEST_OBJECTS} to {}: give how many objects of a kind a card has at most, or unset it",
            LIMITS.max_mr
        );
        SettingError::malformed(OBJECTS_VARIABLE, text, allowed)
    })
}

/// Environment variable with the [`WaitRules`] of all cards of this process: words separated by `,` or spaces.
///
/// | word | rule |
/// |---|---|
/// | `off` | [`WaitRules::supported`] is false |
/// | `no-cd` | [`WaitRules::cross_channel`] is false |
/// | `errors-hold` | [`WaitRules::errors_count`] is false |
pub const WAITS_VARIABLE: &str = "SOFTHCA_WAITS";

/// How a card treats work requests that wait.
///
/// ```
/// use softhca::card::WaitRules;
/// assert_eq!("errors-hold".parse(), Ok(WaitRules { errors_count: false, ..WaitRules::default() }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRules {
    /// True if the card has WAIT and SEND_EN, and reports the capabilities. Otherwise such work requests fail, as on
    /// cards before ConnectX-7. Default: true.
    pub supported: bool,
    /// True if the card has WAIT for completion queues and SEND_EN (capability `cd`), besides WAIT for words and times,
    /// which have separate capabilities. Default: true.
    pub cross_channel: bool,
    /// True if an error entry satisfies a WAIT for a completion queue like any other. Otherwise no entry from the first
    /// error entry on does. Default: true, because the modifier of that WAIT is named `CQ_PI` (DPDK's `mlx5_prm.h`)
    /// after the producer index, which counts all entries; the behaviour of hardware is not published.
    pub errors_count: bool,
}

impl Default for WaitRules {
    fn default() -> Self {
        WaitRules { supported: true, cross_channel: true, errors_count: true }
    }
}

impl FromStr for WaitRules {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rules = WaitRules::default();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word {
                "off" => rules.supported = false,
                "no-cd" => rules.cross_channel = false,
                "errors-hold" => rules.errors_count = false,
                _ => {
                    return Err(format!(
                        "`{word}` is none of its words, which are off, no-cd and errors-hold"
                    ));
                }
            }
        }
        Ok(rules)
    }
}

impl WaitRules {
    /// Returns whether the card has WAIT for completion queues and SEND_EN.
    pub fn has_cross_channel(&self) -> bool {
        self.supported && self.cross_channel
    }

    /// Returns the rules from the environment.
    ///
    /// # Errors
    /// [`SettingError::Malformed`].
    pub(crate) fn from_environment() -> Result<WaitRules, SettingError> {
        Ok(setting::parsed(WAITS_VARIABLE, str::parse)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_lowers_limits_and_raises_none() {
        let few = parse("16").unwrap();
        assert_eq!([few.max_qp, few.max_cq, few.max_mr, few.max_pd, few.max_srq, few.max_xrcd], [16; 6]);
        assert_eq!((few.max_cqe, few.max_message), (LIMITS.max_cqe, LIMITS.max_message));
        assert_eq!(parse(&LIMITS.max_mr.to_string()), Ok(LIMITS));
        for text in ["15", "0", "-1", "1048577", "many", "4096.0"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("SOFTHCA_OBJECTS is `{text}`"))
                    && error.contains("from 16 to 1048576"),
                "{error}"
            );
        }
    }

    #[test]
    fn words_switch_rules_off_and_others_are_refused() {
        let parse = |text: &str| text.parse::<WaitRules>();
        let all = WaitRules::default();
        assert_eq!(parse(""), Ok(all));
        assert_eq!(parse("off"), Ok(WaitRules { supported: false, ..all }));
        assert_eq!(parse("no-cd"), Ok(WaitRules { cross_channel: false, ..all }));
        assert_eq!(
            parse(" errors-hold, off"),
            Ok(WaitRules { supported: false, errors_count: false, ..all })
        );
        assert!(all.has_cross_channel());
        assert!(!parse("no-cd").unwrap().has_cross_channel() && !parse("off").unwrap().has_cross_channel());
        assert!(parse("on").unwrap_err().contains("`on` is none of its words"));
    }
}
