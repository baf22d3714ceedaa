//! Asynchronous events.

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
