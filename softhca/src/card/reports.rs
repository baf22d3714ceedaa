//! Reports of a card to its program: asynchronous events, and findings of the strict checker.

use crate::liberties::note_refusal;
use std::collections::VecDeque;
use std::fmt;

/// An asynchronous event of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// An armed completion queue got an entry of the kind that it was armed for.
    Completion {
        /// Its number.
        cqn: u32,
    },
    /// A completion queue overran and takes no more entries.
    CqError {
        /// Its number.
        cqn: u32,
    },
    /// A queue pair failed in a way that no completion reports.
    QpFatal {
        /// Its number.
        qpn: u32,
    },
    /// The remote side sent a request that violates the transport's rules.
    QpRequestError {
        /// Its number.
        qpn: u32,
    },
    /// The remote side used a wrong key, bound or right.
    QpAccessError {
        /// Its number.
        qpn: u32,
    },
    /// A management datagram arrived. [`Card::take_management`](super::Card::take_management) returns it.
    Management,
    /// A queue pair with a shared receive queue failed, and takes no more receives from it.
    LastReceive {
        /// Its number.
        qpn: u32,
    },
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit {
        /// Its number.
        srqn: u32,
    },
    /// The ring of a shared receive queue is inconsistent, and the card takes no more from it.
    SrqError {
        /// Its number.
        srqn: u32,
    },
    /// The first packet arrived while the queue pair was in RTR.
    CommunicationEstablished {
        /// Its number.
        qpn: u32,
    },
}

/// Consequence of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// A card would accept this, and the software card has. The diagnostic is advice: the program works by luck, or is
    /// only unusual.
    Accepted,
    /// A card would not accept this: the request or message failed or was dropped, the doorbell was ignored, or the
    /// work request never completes.
    Refused,
}

/// A finding about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The consequence.
    pub verdict: Verdict,
    /// The queue pair, if one is concerned.
    pub qpn: Option<u32>,
    /// Index of the work-queue entry, if one is concerned.
    pub index: Option<u16>,
    /// The violated field or rule.
    pub field: &'static str,
    /// The value found and the value expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(qpn) = self.qpn {
            write!(f, "queue pair {qpn:#x}")?;
        }
        if let Some(index) = self.index {
            write!(f, " WQE {index}")?;
        }
        write!(f, " {}: {}", self.field, self.message)
    }
}

/// Maximum number of diagnostics that a card keeps. Older ones are only in the log.
const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    kept: VecDeque<Diagnostic>,
}

impl Diagnostics {
    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        match diagnostic.verdict {
            Verdict::Refused => {
                tracing::warn!(%diagnostic, "a card would not accept this");
                note_refusal(diagnostic.to_string());
            }
            Verdict::Accepted => tracing::info!(%diagnostic, "advice: a card would accept this"),
        }
        self.keep(diagnostic);
    }

    /// Reports what a check has found that the program's user has asked for.
    pub(crate) fn found(&mut self, diagnostic: Diagnostic) {
        tracing::warn!(%diagnostic, "the program works by luck");
        self.keep(diagnostic);
    }

    fn keep(&mut self, diagnostic: Diagnostic) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(diagnostic);
    }

    pub(crate) fn count(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn all(&self) -> Vec<Diagnostic> {
        self.kept.iter().cloned().collect()
    }
}
