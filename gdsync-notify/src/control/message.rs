//! The wire format of control messages: a header of 12 bytes (kind 1, zero 3, epoch 4, number 4; little endian), then
//! the payload. Parsing is pure and strict.

use super::agreement::Proposal;
use crate::liveness::RankSet;

const HEADER: usize = 12;
/// Most bytes of a rank's contribution to an exchange.
pub(super) const MAX_CONTRIBUTION: usize = 500;

const CONTRIBUTION: u8 = 1;
const PROPOSAL: u8 = 2;
const DECISION: u8 = 3;
const WITHDRAWAL: u8 = 4;
const DEAD: u8 = 5;
const CUT: u8 = 6;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A rank's contribution to an exchange.
    Contribution(Contribution),
    /// A rank's proposal in the agreement on dead ranks.
    Proposal(Proposal),
    /// The sender has seen a death and takes no part in exchanges of that epoch any more.
    Withdrawal { epoch: u32 },
    /// All of the sender's connections with these ranks, which may live, have failed: nothing more arrives over them.
    Cut { epoch: u32, ranks: RankSet },
    /// The sender has found ranks dead.
    Dead { epoch: u32, dead: RankSet },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contribution {
    /// The number of agreements before the exchange.
    pub(super) epoch: u32,
    /// The number of earlier exchanges in the epoch.
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
}

pub(super) fn longest(size: u32) -> usize {
    HEADER + MAX_CONTRIBUTION.max(size.div_ceil(64) as usize * 8)
}

impl Message {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, epoch, number) = match self {
            Message::Contribution(contribution) => (CONTRIBUTION, contribution.epoch, contribution.number),
            Message::Proposal(said) => (if said.is_decided { DECISION } else { PROPOSAL }, said.epoch, 0),
            Message::Withdrawal { epoch } => (WITHDRAWAL, *epoch, 0),
            Message::Cut { epoch, .. } => (CUT, *epoch, 0),
            Message::Dead { epoch, .. } => (DEAD, *epoch, 0),
        };
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(epoch.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        match self {
            Message::Contribution(contribution) => bytes.extend(&contribution.bytes),
            Message::Proposal(said) => bytes.extend(encode_set(&said.dead)),
            Message::Withdrawal { .. } => {}
            Message::Cut { ranks, .. } => bytes.extend(encode_set(ranks)),
            Message::Dead { dead, .. } => bytes.extend(encode_set(dead)),
        }
        bytes
    }

    /// Returns `None` if the bytes are no message of a team of that size.
    pub(super) fn decode(bytes: &[u8], size: u32) -> Option<Self> {
        let (header, payload) = bytes.split_first_chunk::<HEADER>()?;
        let [kind, 0, 0, 0, e0, e1, e2, e3, n0, n1, n2, n3] = *header else { return None };
        let (epoch, number) = (u32::from_le_bytes([e0, e1, e2, e3]), u32::from_le_bytes([n0, n1, n2, n3]));
        match (kind, number) {
            (CONTRIBUTION, _) if payload.len() <= MAX_CONTRIBUTION => {
                Some(Message::Contribution(Contribution { epoch, number, bytes: payload.to_vec() }))
            }
            (PROPOSAL | DECISION, 0) => {
                let dead = decode_set(payload, size)?;
                Some(Message::Proposal(Proposal { epoch, is_decided: kind == DECISION, dead }))
            }
            (DEAD, 0) => Some(Message::Dead { epoch, dead: decode_set(payload, size)? }),
            (WITHDRAWAL, 0) if payload.is_empty() => Some(Message::Withdrawal { epoch }),
            (CUT, 0) => Some(Message::Cut { epoch, ranks: decode_set(payload, size)? }),
            _ => None,
        }
    }
}

/// Encodes a set of ranks as a bitmap in words of 64 bits, little endian, without zero words at the end.
fn encode_set(set: &RankSet) -> Vec<u8> {
    let words = set.last().map_or(0, |last| *last as usize / 64 + 1);
    let mut bytes = vec![0; words * 8];
    set.iter().for_each(|rank| bytes[*rank as usize / 8] |= 1 << (rank % 8));
    bytes
}

/// Decodes a set of ranks below `size`. Returns `None` for any other bytes.
fn decode_set(bytes: &[u8], size: u32) -> Option<RankSet> {
    let (words, []) = bytes.as_chunks::<8>() else { return None };
    let is_canonical = words.last().is_none_or(|word| *word != [0; 8]);
    let bits = |byte: u8| (0..8).filter(move |bit| byte >> bit & 1 != 0);
    let ranks = (0..).zip(bytes).flat_map(|(at, byte)| bits(*byte).map(move |bit| at * 8 + bit));
    let set: RankSet = ranks.collect();
    (is_canonical && set.last().is_none_or(|last| *last < size)).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u32 = 200;

    fn message() -> impl Strategy<Value = Message> {
        let contribution =
            (any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..=MAX_CONTRIBUTION));
        let said = (any::<u32>(), any::<bool>(), prop::collection::vec(0..SIZE, 0..10));
        let dead = (any::<u32>(), prop::collection::vec(0..SIZE, 0..10));
        let cut = dead.clone();
        prop_oneof![
            dead.prop_map(|(epoch, dead)| Message::Dead { epoch, dead: dead.into_iter().collect() }),
            contribution.prop_map(|(epoch, number, bytes)| Message::Contribution(Contribution {
                epoch,
                number,
                bytes
            })),
            said.prop_map(|(epoch, is_decided, dead)| {
                Message::Proposal(Proposal { epoch, is_decided, dead: dead.into_iter().collect() })
            }),
            any::<u32>().prop_map(|epoch| Message::Withdrawal { epoch }),
            cut.prop_map(|(epoch, ranks)| Message::Cut { epoch, ranks: ranks.into_iter().collect() }),
        ]
    }

    proptest! {
        #[test]
        fn a_set_holds_what_was_inserted_and_round_trips(ranks in prop::collection::btree_set(0u32..300, 0..20), garbage: Vec<u8>) {
            let bytes = encode_set(&ranks);
            let has = |rank: &u32| bytes.get(*rank as usize / 8).is_some_and(|byte| byte >> (rank % 8) & 1 != 0);
            prop_assert!((0..400).all(|rank| has(&rank) == ranks.contains(&rank)));
            prop_assert_eq!(decode_set(&bytes, 300), Some(ranks));
            if let Some(set) = decode_set(&garbage, 64) {
                prop_assert!(set.iter().all(|rank| *rank < 64));
                prop_assert_eq!(encode_set(&set), garbage);
            }
        }

        #[test]
        fn messages_round_trip_and_fit(message in message()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() <= longest(SIZE));
            prop_assert_eq!(Message::decode(&bytes, SIZE), Some(message));
        }

        #[test]
        fn what_is_no_message_is_refused(kind in 0u8..8, mut bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let [first, zeroes @ ..] = &mut bytes[..] {
                *first = kind;
                zeroes.iter_mut().take(3).for_each(|byte| *byte = 0);
            }
            if let Some(message) = Message::decode(&bytes, SIZE) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
