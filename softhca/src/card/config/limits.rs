//! Limits of a card.

use crate::setting::{self, SettingError};

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
    /// Scatter/gather elements of a receive.
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
    max_qp: 1 << 16,
    max_qp_wr: 1 << 15,
    max_cq: 1 << 16,
    max_cqe: 1 << 22,
    max_mr: 1 << 20,
    max_key_entries: 1 << 16,
    device_memory: 1 << 18,
    max_pd: 1 << 16,
    max_send_sge: 61,
    max_recv_sge: 64,
    max_rd_atomic: 16,
    max_message: 1 << 30,
    max_datagram: 4096,
    max_recordless_qp: 1 << 8,
    max_xrcd: 1 << 16,
    max_srq: 1 << 16,
    max_srq_entries: 1 << 15,
    max_groups: 1 << 8,
    max_group_members: 240,
    max_srq_sge: 63,
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
}
