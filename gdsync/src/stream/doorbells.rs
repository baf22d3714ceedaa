//! How a stream's doorbells reach the card.

use crate::cuda::Placement;
use crate::util::options::options;
use std::fmt;

/// How doorbells are to reach the card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DoorbellPath {
    /// The stream stores to the card's register where it can reach it, else the proxy does.
    #[default]
    Auto,
    /// The stream stores to the card's register. Posting fails where it cannot reach it.
    Direct,
    /// The stream stores to a mailbox in pinned memory, and a thread of this process forwards it:
    /// works wherever a stream can reach pinned memory, and costs the time that the thread takes to
    /// notice. It sleeps while nothing is to be forwarded.
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

options! {
    /// Options of a [`crate::Stream`].
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct StreamOptions
    /// Doorbells by [`DoorbellPath::Auto`], the progress word in host memory, a signal once in many
    /// batches.
    default {
        /// How doorbells are to reach the card.
        doorbells: DoorbellPath = DoorbellPath::Auto,
        /// Whose memory the word lies in by which the stream tells how far it has come. The CPU
        /// looks at it often.
        timeline: Placement = Placement::Host,
        /// In a batch, runs of waits for completions of at least that many queues are the
        /// card's: a [`crate::Collector`] waits for them, and the stream for one word. What a wait
        /// promises stays. By default the stream waits for each queue itself. Where the card cannot
        /// wait, or waits for too much already, the stream does.
        collect_from: Option<u32> = None,
        /// Whose memory that collector's word lies in: [`crate::qp::CollectorConfig::word`].
        collect_in: Placement = Placement::Host,
        /// Every batch says when the stream has passed it, instead of one in many. That is a memory
        /// operation more for each that does not end with waits; but what the stream has passed is
        /// known without asking the driver, whatever has become of the stream since. (Copies of
        /// bytes excepted, of which the next batch tells.)
        always_signal: bool = false,
    }
}
