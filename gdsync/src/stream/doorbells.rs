//! How a stream's doorbells reach the card.

use crate::cuda::Placement;
use std::fmt;

/// How doorbells are to reach the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellPath {
    /// The stream stores to the card's register where it can reach it, else the proxy does.
    #[default]
    Auto,
    /// The stream stores to the card's register. Posting fails where it cannot reach it.
    Direct,
    /// The stream stores to a mailbox in pinned memory, and a thread of this process forwards it: works wherever a stream can
    /// reach pinned memory, and costs the time that the thread takes to notice. It sleeps while nothing is to be forwarded.
    Proxy,
}

/// How doorbells do reach the card, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doorbells {
    /// The stream stores to the card's register.
    Direct,
    /// A thread of this process forwards them.
    Proxy {
        /// Why.
        reason: String,
    },
}

impl Doorbells {
    pub(super) fn at_first(path: DoorbellPath) -> Self {
        match path {
            DoorbellPath::Auto | DoorbellPath::Direct => Doorbells::Direct,
            DoorbellPath::Proxy => Doorbells::Proxy { reason: "asked for".to_owned() },
        }
    }
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doorbells::Direct => f.pad("direct"),
            Doorbells::Proxy { reason } => f.pad(&format!("proxy ({reason})")),
        }
    }
}

/// Options of a [`crate::Stream`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct StreamOptions {
    /// How doorbells are to reach the card.
    pub doorbells: DoorbellPath,
    /// Whose memory the word lies in by which the stream tells how far it has come. The CPU looks at it often.
    pub timeline: Placement,
    /// Every batch says when the stream has passed it, instead of one in many. That is a memory operation more for each that does not
    /// end with waits; but what the stream has passed is known without asking the driver, whatever has become of the stream since.
    /// (Copies of bytes excepted, of which the next batch tells.)
    pub always_signal: bool,
}

impl StreamOptions {
    /// Sets how doorbells are to reach the card.
    pub fn doorbells(mut self, path: DoorbellPath) -> Self {
        self.doorbells = path;
        self
    }

    /// Sets whose memory the stream's progress word lies in.
    pub fn timeline(mut self, placement: Placement) -> Self {
        self.timeline = placement;
        self
    }

    /// Sets [`StreamOptions::always_signal`](#structfield.always_signal).
    pub fn always_signal(mut self, always_signal: bool) -> Self {
        self.always_signal = always_signal;
        self
    }
}
