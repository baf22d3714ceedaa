//! What a rank sends, receives and reduces in the rounds of a collective, as plain data: schedules are made, and run on
//! paper, without a card.

use std::ops::Range;

/// One side of a message between two ranks, as matching knows it. Two ranks have at most one in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    pub(crate) peer: u32,
    pub(crate) sends: bool,
    /// It gets a queue pair. Another one is matched for the comparison only.
    pub(crate) carries: bool,
}

/// These bytes of the output are sent.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) peer: u32,
    pub(crate) bytes: Range<usize>,
}

/// Where a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// At the same bytes of the output.
    Output,
    /// From there on in the memory for arrivals, to be reduced into the same bytes of the output.
    Arrivals(usize),
}

/// These bytes of the peer's output are received.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) peer: u32,
    pub(crate) bytes: Range<usize>,
    pub(crate) into: Target,
}

/// A round ends when its messages have completed, and what it has received is reduced.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) send: Option<Send>,
    pub(crate) receive: Option<Receive>,
}

impl Round {
    /// Sends to a peer what the output has, and receives into the output from another one.
    pub(crate) fn moves(to: u32, sent: Range<usize>, from: u32, received: Range<usize>) -> Self {
        Round {
            send: Some(Send { peer: to, bytes: sent }),
            receive: Some(Receive { peer: from, bytes: received, into: Target::Output }),
        }
    }
}

/// The rounds of a rank.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) rounds: Vec<Round>,
    /// A round starts the receives of so many rounds behind it, so that messages find theirs.
    pub(crate) ahead: usize,
}

impl Schedule {
    /// Bytes of the memory for arrivals.
    pub(crate) fn arrivals(&self) -> usize {
        let end = |receive: &Receive| match receive.into {
            Target::Output => 0,
            Target::Arrivals(at) => at + receive.bytes.len(),
        };
        self.rounds.iter().filter_map(|round| round.receive.as_ref()).map(end).max().unwrap_or(0)
    }

    /// How many receives have been started when a round has started its own.
    pub(crate) fn started(&self, round: usize) -> usize {
        let until = (round.saturating_add(self.ahead).saturating_add(1)).min(self.rounds.len());
        self.rounds[..until].iter().filter(|round| round.receive.is_some()).count()
    }

    /// The sides of its messages, each once.
    pub(crate) fn sides(&self) -> Vec<Side> {
        let side = |peer, sends| Side { peer, sends, carries: true };
        let mut all = Vec::new();
        for round in &self.rounds {
            let send = round.send.as_ref().map(|send| side(send.peer, true));
            let receive = round.receive.as_ref().map(|receive| side(receive.peer, false));
            for side in send.into_iter().chain(receive) {
                if !all.contains(&side) {
                    all.push(side);
                }
            }
        }
        all
    }
}
