//! The fabric of a simulation: queues in the memory of one process, between cards that one thread serves. It uses no
//! socket, no shared memory and no time, and gives numbers in turn: the same work in the same order meets the same
//! packets.

use super::error::FabricError;
use super::groups::Group;
use super::network::Network;
use super::packet::{NUMBERS, Node, PayloadPart, SendOutcome, Sink};
use super::peers::{OtherSpeed, RoundRobin};
use super::sleeper::Sleeper;
use crate::os::host::copy_piece;
use crate::speed::Speed;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Maximum number of packets on a link: few, so that links are full at times.
const ROOM: usize = 32;

/// The links between the cards of a simulation. Clones share their state.
#[derive(Clone, Default)]
pub(crate) struct Hub(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The number of the last card that has joined.
    last: u16,
    /// Rounds of the cards that live.
    rounds: BTreeMap<Node, u64>,
    /// Links by their ends: the receiver, and the sender.
    links: BTreeMap<(Node, Node), Link>,
    /// Multicast groups, each with the cards that have members.
    groups: BTreeSet<(Group, Node)>,
    sent: u64,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
}

/// The packets from one card to another. Positions count packets.
#[derive(Default)]
struct Link {
    packets: VecDeque<Packet>,
    sent: u64,
    taken: u64,
}

struct Packet {
    /// The header, and the payload.
    bytes: Vec<u8>,
    header: usize,
}

impl Hub {
    /// Connects a card.
    ///
    /// # Errors
    /// [`FabricError::NoLid`] after as many cards as there are numbers; [`FabricError::System`] without a descriptor.
    pub(super) fn join(&self) -> Result<Local, FabricError> {
        let mut state = self.0.lock();
        if state.last >= *NUMBERS.end() {
            return Err(FabricError::NoLid { last: ErrorKind::AddrInUse.into() });
        }
        let sleeper = Arc::new(Sleeper::new(false)?);
        state.last += 1;
        let number = state.last;
        state.rounds.insert(number.into(), 0);
        Ok(Local { hub: self.clone(), number, sleeper, position: 0, round_robin: RoundRobin::default() })
    }

    /// Returns the number of packets that are on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.lock().links.values().map(|link| link.packets.len()).sum()
    }

    /// Returns the number of packets that cards have sent.
    pub(crate) fn sent(&self) -> u64 {
        self.0.lock().sent
    }
}

/// A card's access to the fabric of a simulation.
pub(super) struct Local {
    hub: Hub,
    number: u16,
    sleeper: Arc<Sleeper>,
    position: u64,
    round_robin: RoundRobin,
}

impl Local {
    fn node(&self) -> Node {
        self.number.into()
    }

    /// Takes the next packet from a card.
    fn next(&self, from: Node) -> Option<Packet> {
        let mut state = self.hub.0.lock();
        let link = state.links.get_mut(&(self.node(), from))?;
        let packet = link.packets.pop_front()?;
        link.taken += 1;
        Some(packet)
    }
}

impl Network for Local {
    fn number(&self) -> u16 {
        self.number
    }

    fn speed(&self) -> Speed {
        Speed::default()
    }

    fn take_refused(&mut self) -> Vec<OtherSpeed> {
        Vec::new()
    }

    fn sleeper(&self) -> Arc<Sleeper> {
        self.sleeper.clone()
    }

    unsafe fn try_send(&mut self, node: Node, header: &[u8], payload: &[PayloadPart]) -> SendOutcome {
        let state = &mut *self.hub.0.lock();
        if !state.rounds.contains_key(&node) {
            return SendOutcome::Unreachable;
        }
        let link = state.links.entry((node, self.node())).or_default();
        if link.packets.len() >= ROOM {
            return SendOutcome::Full;
        }
        let mut bytes = state.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(header);
        for &(from, len) in payload {
            let start = bytes.len();
            bytes.resize(start + len, 0);
            // SAFETY: the caller guarantees the payload; the buffer has just grown by that length.
            if let Err(gone) = unsafe { copy_piece(from, bytes[start..].as_mut_ptr(), len) } {
                return SendOutcome::Unreadable(gone);
            }
        }
        link.packets.push_back(Packet { bytes, header: header.len() });
        link.sent += 1;
        self.position = link.sent;
        state.sent += 1;
        SendOutcome::Sent
    }

    fn is_full(&self, node: Node, _: usize, _: usize) -> bool {
        self.hub.0.lock().links.get(&(node, self.node())).is_some_and(|link| link.packets.len() >= ROOM)
    }

    fn is_alive(&mut self, node: Node) -> bool {
        self.hub.0.lock().rounds.contains_key(&node)
    }

    fn is_linked(&mut self, node: Node) -> bool {
        self.is_alive(node) && self.hub.0.lock().links.contains_key(&(node, self.node()))
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn has_taken(&self, node: Node, position: u64) -> bool {
        self.hub.0.lock().links.get(&(node, self.node())).is_none_or(|link| link.taken >= position)
    }

    fn rounds(&self, node: Node) -> Option<u64> {
        self.hub.0.lock().rounds.get(&node).copied()
    }

    fn end_round(&mut self) {
        if let Some(rounds) = self.hub.0.lock().rounds.get_mut(&self.node()) {
            *rounds += 1;
        }
    }

    fn arrived(&mut self, node: Node) -> u64 {
        self.hub.0.lock().links.get(&(self.node(), node)).map_or(0, |link| link.sent)
    }

    fn has_received(&self, node: Node, position: u64) -> bool {
        self.hub.0.lock().links.get(&(self.node(), node)).is_none_or(|link| link.taken >= position)
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn Sink) -> usize {
        let node = self.node();
        let to_this = (node, 0)..=(node, Node::MAX);
        let mut senders: Vec<Option<Node>> =
            self.hub.0.lock().links.range(to_this).map(|((_, from), _)| Some(*from)).collect();
        let mut turns = std::mem::take(&mut self.round_robin);
        let taken = turns.poll(&mut senders, budget, |from, share| {
            let mut count = 0;
            while count < share
                && let Some(Packet { bytes, header }) = self.next(*from)
            {
                let (header, payload) = bytes.split_at(header);
                sink.take(*from, header, [(payload.as_ptr(), payload.len()), (payload.as_ptr(), 0)]);
                // The buffer is used again.
                sink.settle();
                self.hub.0.lock().spare.push(bytes);
                count += 1;
            }
            (count, true)
        });
        self.round_robin = turns;
        taken
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn join(&mut self, group: &Group) -> io::Result<()> {
        self.hub.0.lock().groups.insert((*group, self.node()));
        Ok(())
    }

    fn leave(&mut self, group: &Group) {
        self.hub.0.lock().groups.remove(&(*group, self.node()));
    }

    fn members(&self, group: &Group) -> Vec<Node> {
        let state = self.hub.0.lock();
        state.groups.range((*group, 0)..=(*group, Node::MAX)).map(|(_, node)| *node).collect()
    }

    fn close(&mut self) {
        let node = self.node();
        let state = &mut *self.hub.0.lock();
        state.rounds.remove(&node);
        state.groups.retain(|(_, member)| *member != node);
        state.links.retain(|(to, _), _| *to != node);
    }

    /// A simulation has no thread that sleeps.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    fn cancel_sleep(&mut self) {}

    fn finish_sleep(&mut self) {}
}

impl Drop for Local {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::peers::SHARE;

    fn send(from: &mut Local, to: &Local, payload: &[u8]) -> SendOutcome {
        let half = payload.len() / 2;
        let parts = [&payload[..half], &payload[half..]].map(|part| (part.as_ptr(), part.len()));
        // SAFETY: the parts are slices.
        unsafe { from.try_send(to.node(), b"head", &parts) }
    }

    fn take(at: &mut Local, budget: usize) -> Vec<(Node, Vec<u8>)> {
        let mut taken = Vec::new();
        at.poll(budget, &mut |from: Node, header: &[u8], [(payload, len), _]: [PayloadPart; 2]| {
            assert_eq!(header, b"head");
            // SAFETY: the payload is readable while it is handled.
            taken.push((from, unsafe { std::slice::from_raw_parts(payload, len) }.to_vec()));
        });
        taken
    }

    #[test]
    fn packets_come_in_order_from_each_card_and_links_are_full_at_times() {
        let hub = Hub::default();
        let [mut a, mut b, mut c] = [(); 3].map(|()| hub.join().unwrap());
        assert_eq!([&a, &b, &c].map(|card| card.number), [1, 2, 3]);
        for byte in 0..ROOM as u8 {
            assert_eq!(send(&mut a, &c, &[byte, 1]), SendOutcome::Sent);
        }
        assert_eq!((send(&mut a, &c, &[7]), a.is_full(3, 4, 1)), (SendOutcome::Full, true));
        assert_eq!((a.position(), c.arrived(1)), (ROOM as u64, ROOM as u64));
        assert_eq!(send(&mut b, &c, &[]), SendOutcome::Sent);
        let first = take(&mut c, 20);
        assert_eq!(first.iter().filter(|(from, _)| *from == 1).count(), SHARE);
        assert!(first.contains(&(2, vec![])));
        assert!(a.has_taken(3, SHARE as u64) && !a.has_taken(3, SHARE as u64 + 1));
        assert!(c.has_received(1, SHARE as u64) && !c.has_received(1, ROOM as u64));
        let rest = take(&mut c, ROOM).into_iter().map(|(_, payload)| payload[0]);
        assert!(rest.eq(SHARE as u8..ROOM as u8));
        assert_eq!(hub.sent(), ROOM as u64 + 1);
    }

    #[test]
    fn a_group_has_the_cards_that_have_joined_it_and_live() {
        let hub = Hub::default();
        let [mut a, mut b, mut c] = [(); 3].map(|()| hub.join().unwrap());
        let (group, other) = ([0xff; 16], [0xfe; 16]);
        for card in [&mut c, &mut a, &mut b] {
            card.join(&group).unwrap();
        }
        b.join(&other).unwrap();
        assert!(a.has_groups());
        assert_eq!((a.members(&group), a.members(&other)), (vec![1, 2, 3], vec![2]));
        c.leave(&group);
        b.close();
        assert_eq!((a.members(&group), a.members(&other)), (vec![1], vec![]));
    }

    #[test]
    fn a_card_that_has_ended_is_not_reached_and_what_it_has_sent_is() {
        let hub = Hub::default();
        let (mut a, mut b) = (hub.join().unwrap(), hub.join().unwrap());
        assert_eq!((send(&mut a, &b, &[1]), send(&mut b, &a, &[2])), (SendOutcome::Sent, SendOutcome::Sent));
        b.end_round();
        assert_eq!((a.rounds(2), a.is_linked(2)), (Some(1), true));
        let gone = b.node();
        drop(b);
        assert_eq!((a.is_alive(gone), a.rounds(gone), a.is_linked(gone)), (false, None, false));
        // SAFETY: there is no payload.
        assert_eq!(unsafe { a.try_send(gone, b"head", &[]) }, SendOutcome::Unreachable);
        assert_eq!(take(&mut a, 8), [(gone, vec![2])]);
        assert_eq!(hub.join().unwrap().number, 3, "numbers are not used again");
    }
}
