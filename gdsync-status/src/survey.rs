//! The cause of a wait, derived from the answers of all processes of this host. `gdsync top` and the errors of time-outs
//! share it and its words.

use crate::ask::{Process, ask_listed};
use crate::name::{self, ProcessState, state_of};
use crate::publish;
use crate::status::{Card, Peer, QueuePair, Wait, ipv4};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::time::Duration;

/// The most queue pairs of a wait that are all named.
const FEW: usize = 4;

/// The answers of all processes of this user.
#[derive(Debug, Default)]
pub struct Survey {
    /// The processes, in the order of their ids.
    pub processes: Vec<Process>,
    /// The numbers of this user's cards on the fabric of this host; `None` if they are not known.
    cards: Option<HashSet<u16>>,
    /// The process of each card that has answered, by the card's address.
    owners: HashMap<u64, u32>,
}

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerProcess {
    /// The queue pair, as [`Peer`] prints it.
    pub address: String,
    /// The card's process, if it belongs to this user on this host.
    pub pid: Option<u32>,
    /// The rank that a launcher has given the process.
    pub rank: Option<u32>,
    /// Its state.
    pub state: ProcessState,
}

impl fmt::Display for PeerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            ProcessState::Ended => Some("ended"),
            ProcessState::Stopped => Some("stopped by a signal"),
            ProcessState::Runs | ProcessState::Unknown => None,
        };
        let (pid, rank) =
            (self.pid.map(|pid| format!("pid {pid}")), self.rank.map(|rank| format!("rank {rank}")));
        let known: Vec<String> = [pid, rank, state.map(str::to_owned)].into_iter().flatten().collect();
        f.write_str(&self.address)?;
        if known.is_empty() { Ok(()) } else { write!(f, " ({})", known.join(", ")) }
    }
}

impl Survey {
    /// Queries all processes of this user, as [`ask_all`](crate::ask_all) does. The caller holds no lock of a source of this
    /// process.
    ///
    /// # Errors
    /// The list of names cannot be read.
    pub fn take(within: Duration) -> io::Result<Self> {
        let table = name::table()?;
        let mut processes = ask_listed(&name::listed(&table), within);
        // This process's own part needs no thread that has no CPU.
        let own = processes.iter_mut().find(|one| one.pid == std::process::id() && one.status.is_err());
        own.into_iter().for_each(|own| own.status = Ok(publish::own()));
        Ok(Survey { cards: Some(name::cards(&table)), ..Self::of(processes) })
    }

    /// Makes one of these answers.
    pub fn of(processes: Vec<Process>) -> Self {
        let cards = |process: &Process| -> Vec<_> {
            let cards = process.status.iter().flat_map(|status| &status.cards);
            cards.map(|card| (card.node, process.pid)).collect()
        };
        let owners = processes.iter().flat_map(cards).collect();
        Survey { processes, cards: None, owners }
    }

    fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    fn cards(&self, pid: u32) -> impl Iterator<Item = &Card> {
        self.process(pid).into_iter().flat_map(|process| &process.status).flat_map(|status| &status.cards)
    }

    /// Returns the other side of a queue pair's connection.
    pub fn peer(&self, pair: &QueuePair) -> Option<PeerProcess> {
        let peer = pair.peer?;
        let owner = self.owners.get(&peer.node).copied().filter(|_| peer.node != 0);
        let pid = owner.or(Some(peer.pid).filter(|pid| *pid != 0));
        let status = pid.and_then(|pid| self.process(pid)).and_then(|process| process.status.as_ref().ok());
        let state = match (status, pid) {
            (Some(_), _) => ProcessState::Runs,
            (None, Some(pid)) => state_of(pid),
            (None, None) if self.is_gone(peer.node) => ProcessState::Ended,
            (None, None) => ProcessState::Unknown,
        };
        Some(PeerProcess {
            address: peer.to_string(),
            pid,
            rank: status.and_then(|status| status.rank),
            state,
        })
    }

    /// Returns whether no card of this host has the address of a card of this host any more.
    fn is_gone(&self, node: u64) -> bool {
        let is_here = |cards: &HashSet<u16>| u16::try_from(node).is_ok_and(|number| cards.contains(&number));
        node != 0 && ipv4(node).is_none() && self.cards.as_ref().is_some_and(|cards| !is_here(cards))
    }

    /// Describes queue pairs of a process that a wait depends on, a text for each. Of more than four, it describes only
    /// those that wait or have failed, and those with a stopped or ended peer.
    pub fn causes(&self, pid: u32, queue_pairs: &[u32]) -> Vec<String> {
        let all = self.cards(pid).flat_map(|card| &card.queue_pairs);
        let is_said = |pair: &QueuePair| queue_pairs.len() <= FEW || self.is_remarkable(pair);
        let named = all.filter(|pair| queue_pairs.contains(&pair.number) && is_said(pair));
        named.map(|pair| format!("queue pair {:#x}{}", pair.number, self.state(pair))).collect()
    }

    fn is_remarkable(&self, pair: &QueuePair) -> bool {
        let state = self.peer(pair).map_or(ProcessState::Unknown, |peer| peer.state);
        pair.wait.is_some()
            || has_failed(pair)
            || matches!(state, ProcessState::Stopped | ProcessState::Ended)
    }

    /// Describes the wait of a stream, or, with the queue pair, that of a queue pair.
    pub fn describe(&self, pid: u32, wait: &Wait, own: Option<&QueuePair>) -> String {
        let mut text = wait.what.clone();
        if let Some(pair) = own.filter(|_| wait.queue_pairs.is_empty()) {
            return text + &self.history(pair);
        }
        let causes = self.causes(pid, &wait.queue_pairs);
        if !causes.is_empty() {
            text += &format!(": {}", causes.join("; "));
        }
        text
    }

    /// Describes the state of a queue pair and of its peer.
    fn state(&self, pair: &QueuePair) -> String {
        let own = match &pair.wait {
            Some(wait) => format!(" waits for {}", wait.what) + &wait.time.map_or_else(String::new, since),
            None if has_failed(pair) => " is in the error state".to_owned(),
            None => String::new(),
        };
        own + &self.history(pair)
    }

    fn history(&self, pair: &QueuePair) -> String {
        let resent = match pair.resends {
            0 => String::new(),
            1 => ", resent once".to_owned(),
            count => format!(", resent {count} times"),
        };
        let peer = self.peer(pair).map(|peer| format!(", peer {peer}{}", self.state_of_peer(pair)));
        resent + &peer.unwrap_or_default()
    }

    /// Says why the peer of a queue pair that waits for nothing itself may have sent nothing.
    fn state_of_peer(&self, pair: &QueuePair) -> String {
        let peer = pair.peer.filter(|_| pair.wait.is_none());
        match peer.and_then(|peer| self.pair_of(peer)) {
            Some(other) if has_failed(other) => " in the error state".to_owned(),
            Some(QueuePair { wait: Some(wait), .. }) => {
                format!(", which waits for {}", wait.what) + &wait.time.map_or_else(String::new, since)
            }
            Some(other) if other.outstanding == 0 && other.blocks == 0 => {
                ", which has no send outstanding".to_owned()
            }
            _ => String::new(),
        }
    }

    fn pair_of(&self, peer: Peer) -> Option<&QueuePair> {
        let pid = self.owners.get(&peer.node)?;
        let card = self.cards(*pid).find(|card| card.node == peer.node)?;
        card.queue_pairs.iter().find(|pair| pair.number == peer.queue_pair)
    }
}

/// The softhca's name of the state.
fn has_failed(pair: &QueuePair) -> bool {
    pair.state == "Err"
}

/// Formats the duration of a wait.
pub fn since(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds >= 120.0 => format!(", for {:.0} min", seconds / 60.0),
        seconds if seconds >= 1.0 => format!(", for {seconds:.1} s"),
        seconds => format!(", for {:.0} ms", seconds * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn pair(number: u32, peer: (u64, u32), wait: Option<&str>) -> QueuePair {
        let wait = wait.map(|what| Wait { what: what.to_owned(), ..Wait::default() });
        let peer = Some(Peer { node: peer.0, queue_pair: peer.1, pid: 0 });
        QueuePair { number, peer, wait, state: "Rts".to_owned(), ..QueuePair::default() }
    }

    fn process(pid: u32, rank: Option<u32>, node: u64, queue_pairs: Vec<QueuePair>) -> Process {
        let cards = vec![Card { node, queue_pairs, ..Card::default() }];
        Process { pid, name: "program".to_owned(), status: Ok(Status { rank, cards, ..Status::default() }) }
    }

    #[test]
    fn a_wait_is_described_by_what_both_sides_know() {
        let waiting =
            QueuePair { resends: 4544, ..pair(0x40, (6, 0x41), Some("a receive of the peer (RNR)")) };
        let survey = Survey::of(vec![
            process(1, None, 5, vec![waiting.clone(), pair(0x50, (6, 0x51), None)]),
            process(2, Some(1), 6, vec![pair(0x41, (5, 0x40), None), pair(0x51, (5, 0x50), None)]),
        ]);
        let wait = |queue_pairs: &[u32]| Wait {
            what: "completion 3 of queue 0x44".to_owned(),
            queue_pairs: queue_pairs.to_vec(),
            ..Wait::default()
        };
        let rnr = "a receive of the peer (RNR), resent 4544 times, peer queue pair 0x41 (pid 2, rank 1)";
        assert_eq!(
            survey.describe(1, &wait(&[0x40]), None),
            format!("completion 3 of queue 0x44: queue pair 0x40 waits for {rnr}")
        );
        assert_eq!(survey.describe(1, waiting.wait.as_ref().unwrap(), Some(&waiting)), rnr);
        assert_eq!(
            survey.causes(1, &[0x50, 0x99]),
            ["queue pair 0x50, peer queue pair 0x51 (pid 2, rank 1), which has no send outstanding"]
        );
        assert_eq!(survey.causes(1, &[0x40, 0x50, 1, 2, 3]).len(), 1, "the other one waits for nothing");
        assert_eq!(survey.describe(3, &wait(&[0x40]), None), "completion 3 of queue 0x44", "no such process");
    }

    #[test]
    fn a_peer_that_has_ended_or_stands_still_is_told_from_one_that_is_not_known() {
        let survey = |cards: Option<&[u16]>| Survey {
            cards: cards.map(|cards| cards.iter().copied().collect()),
            ..Survey::of(vec![process(1, None, 5, vec![pair(0x40, (6, 0x41), None)])])
        };
        let ended = ["queue pair 0x40, peer queue pair 0x41 (ended)"];
        assert_eq!(survey(Some(&[5])).causes(1, &[0x40]), ended);
        for cards in [None, Some(&[5, 6][..])] {
            assert_eq!(survey(cards).causes(1, &[0x40]), ["queue pair 0x40, peer queue pair 0x41"]);
        }
        // Another host's.
        let mut other = pair(0x40, (0x7f00_0001_0006, 0x41), None);
        let text = |pair: &QueuePair| survey(Some(&[5])).peer(pair).unwrap().to_string();
        assert_eq!(text(&other), "127.0.0.1 queue pair 0x41");
        // Known by the card's link.
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        other.peer = Some(Peer { node: 6, queue_pair: 0x41, pid: child.id() });
        assert_eq!(text(&other), format!("queue pair 0x41 (pid {})", child.id()));
        // SAFETY: a plain system call, for a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGSTOP) }, 0);
        while !text(&other).ends_with(", stopped by a signal)") {}
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(text(&other), format!("queue pair 0x41 (pid {}, ended)", child.id()));
    }

    #[test]
    fn the_time_of_a_wait_has_a_fitting_unit() {
        let text = |ms| since(Duration::from_millis(ms));
        assert_eq!([text(20), text(4900), text(180_000)], [", for 20 ms", ", for 4.9 s", ", for 3 min"]);
    }
}
