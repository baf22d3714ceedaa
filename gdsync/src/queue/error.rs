//! Errors of preparing, posting and polling. None of them loses anything.

use crate::memop::WordError;
use crate::memory::{Blocked, OutOfBounds};
use crate::queue::FailureCause;
use crate::verbs::Transport;

/// Why a queue refuses work. Nothing is lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room now.
    #[error(transparent)]
    Full(#[from] QueueFull),
    /// The request itself is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The queue pair's state does not allow it.
    #[error(transparent)]
    State(#[from] StateError),
    /// It is out of order.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The completion queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// A slice lies outside its memory.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// A stream cannot name the word, or wait for it.
    #[error(transparent)]
    Word(#[from] WordError),
}

/// A lack of room. The same call may succeed later, after completions were polled or a stream has made progress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFull {
    /// No room for the work request in the send queue.
    #[error(
        "the send queue has {free} of {capacity} blocks free and the request needs {needed}: poll the send completion queue"
    )]
    SendQueue {
        /// 64-byte blocks that the request needs.
        needed: u32,
        /// Blocks that are free.
        free: u32,
        /// Blocks of the queue.
        capacity: u32,
    },
    /// No room in the receive queue.
    #[error("all {capacity} receives are posted: poll the receive completion queue")]
    ReceiveQueue {
        /// Receives that the queue holds.
        capacity: u32,
    },
    /// The completion queue could overrun: completions are not polled yet.
    #[error("the completion queue has {entries} entries and all of them may be needed: poll it")]
    CompletionQueue {
        /// Its entries.
        entries: u32,
    },
    /// The completion queue could overrun: a stream has not read its oldest entries yet.
    #[error("the oldest completion entry waits for a stream: {0}")]
    Stream(Blocked),
    /// The master of a trigger holds its most sends without knowing them to be released.
    #[error(
        "the trigger's master holds {sends} sends, and no more, and does not know them to be released: have earlier tickets written, or give the trigger a larger master (MasterConfig::sends)"
    )]
    Master {
        /// The most sends that it holds.
        sends: u32,
    },
    /// A prepared wait, not posted yet, occupies the oldest entry of the completion queue.
    #[error("the oldest completion entry is held by a prepared wait: post it or drop it")]
    PreparedWait,
    /// There is no memory for the word by which a kernel reports its progress.
    #[error("no memory for a progress word: {reason}")]
    NoMemory {
        /// The operating system's error.
        reason: String,
    },
}

/// Why a work request is invalid, whatever the state of its queue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Too many scatter/gather elements.
    #[error(
        "the request has {given} scatter/gather elements, the queue allows {limit}: create it with more, or merge them"
    )]
    TooManySegments {
        /// Elements given.
        given: usize,
        /// Elements allowed.
        limit: u32,
    },
    /// Too many inline bytes.
    #[error(
        "the request carries {given} bytes inline, the queue allows {limit}: create it with more, or send from a memory region"
    )]
    InlineTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        limit: u32,
    },
    /// The message is too long.
    #[error("the message has {given} bytes, the port allows {limit}: split it")]
    MessageTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The memory region belongs to another protection domain than the queue pair.
    #[error(
        "memory region {lkey:#x} belongs to another protection domain than queue pair {qpn:#x}: register it there"
    )]
    WrongDomain {
        /// Key of the region.
        lkey: u32,
        /// The queue pair.
        qpn: u32,
    },
    /// The memory region belongs to another protection domain than the shared receive queue.
    #[error(
        "memory region {lkey:#x} belongs to another protection domain than shared receive queue {srqn:#x}: register it there"
    )]
    OtherDomain {
        /// Key of the region.
        lkey: u32,
        /// Number of the shared receive queue.
        srqn: u32,
    },
    /// The card would write to a region that does not allow it.
    #[error(
        "the card would write to memory region {lkey:#x}, which was registered without Access::LOCAL_WRITE"
    )]
    NotWritable {
        /// Key of the region.
        lkey: u32,
    },
    /// The transport does not have the operation.
    #[error(
        "{operation} is not possible on a {transport} queue pair: RC has every operation, UC sends and RDMA writes, UD sends that have an address, DC what has a target"
    )]
    NotOnTransport {
        /// The operation.
        operation: &'static str,
        /// The queue pair's transport.
        transport: Transport,
    },
    /// The device does not have the operation.
    #[error("the device has no {operation} (Device::attributes tells): do without, or use another device")]
    NotOnDevice {
        /// The operation.
        operation: &'static str,
    },
    /// A datagram without a destination.
    #[error("a request on a UD queue pair needs an address: say where it goes with WorkRequest::to")]
    NoDestination,
    /// A DC request without a target.
    #[error("a request on a DC queue pair needs a target: say where it goes with WorkRequest::to_target")]
    NoTarget,
    /// An invalid queue pair number.
    #[error("queue pair number {qpn:#x} has more than 24 bits: use the remote endpoint's")]
    BadDestination {
        /// The number given.
        qpn: u32,
    },
    /// The address handle is of another port or protection domain than the queue pair.
    #[error(
        "the address handle belongs to another protection domain or port than queue pair {qpn:#x}: make one with that queue pair"
    )]
    OtherAddress {
        /// The queue pair.
        qpn: u32,
    },
    /// A collector cannot wait for a completion queue of another device.
    #[error(
        "completion queue {cqn:#x} is of another opening of a device than the collector: make the collector there"
    )]
    OtherDevice {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// The result of an atomic operation has the wrong length.
    #[error("the result of an atomic operation has 8 bytes, the slice {given}: give it 8")]
    AtomicResult {
        /// Bytes given.
        given: usize,
    },
    /// The target of an atomic operation is not aligned.
    #[error("the target of an atomic operation is {addr:#x}, which is no multiple of 8: align it")]
    AtomicTarget {
        /// Its remote address.
        addr: u64,
    },
}

/// Why a queue pair or a completion queue takes no work in its state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The queue pair is not connected.
    #[error("queue pair {qpn:#x} is not connected: call connect() first")]
    NotConnected {
        /// Its number.
        qpn: u32,
    },
    /// Kernels drive the queue pair.
    #[error("queue pair {qpn:#x} is driven by kernels: end them, and call DeviceQp::detach_device")]
    DeviceAttached {
        /// Its number.
        qpn: u32,
    },
    /// The queue pair has failed.
    #[error(
        "queue pair {qpn:#x} is in the error state ({cause}): poll it dry and reset() it, or make a new one"
    )]
    Failed {
        /// Its number.
        qpn: u32,
        /// The first error.
        cause: FailureCause,
    },
    /// The card has the send already, so a kernel cannot ring for it.
    #[error(
        "sends of queue pair {qpn:#x} are released by a trigger, and not by a doorbell: take the ticket (PreparedSend::into_ticket)"
    )]
    Triggered {
        /// Its number.
        qpn: u32,
    },
    /// The queue pair uses a shared receive queue.
    #[error("queue pair {qpn:#x} takes its receives from a shared receive queue: post them there")]
    SharedReceives {
        /// Its number.
        qpn: u32,
    },
    /// The queue pair takes no receives.
    #[error("queue pair {qpn:#x} is a DC initiator, which only sends: messages come to a DcTarget")]
    DcInitiatorCannotReceive {
        /// Its number.
        qpn: u32,
    },
    /// The card takes no more receives from the shared receive queue.
    #[error("shared receive queue {srqn:#x} has failed: make a new one, and new queue pairs")]
    SharedReceivesFailed {
        /// Its number.
        srqn: u32,
    },
    /// The queue pair's own trigger releases its sends.
    #[error(
        "queue pair {qpn:#x} has a trigger of its own, which releases its sends: start its requests without another"
    )]
    OwnTrigger {
        /// Its number.
        qpn: u32,
    },
    /// The queue pair has no trigger.
    #[error("queue pair {qpn:#x} has no trigger: make it with QueuePairConfig::trigger")]
    NoTrigger {
        /// Its number.
        qpn: u32,
    },
    /// The master of the queue pair's trigger has failed, and the queue pairs with sends that it held are being failed.
    #[error(
        "the master of the trigger of queue pair {qpn:#x} has failed: try again, and reset() the queue pair once it has failed, too"
    )]
    MasterFailed {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// The completion queue has no channel, so it raises no events.
    #[error(
        "completion queue {cqn:#x} has no completion channel: make it with CompletionQueueConfig::channel"
    )]
    NoChannel {
        /// Its number.
        cqn: u32,
    },
    /// The completion queue has overrun, and the card writes nothing there any more.
    #[error("completion queue {cqn:#x} has overrun and is lost: make new queue pairs")]
    CompletionQueueLost {
        /// Its number.
        cqn: u32,
    },
}

/// An order violation: sends are posted in the order of their preparation, and waits follow the work that completes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// Sends of one queue pair are posted in an order other than that of their preparation.
    #[error(
        "send {serial} of queue pair {qpn:#x} is posted before send {expected}, which was prepared earlier: post or drop that one first"
    )]
    OutOfOrder {
        /// The queue pair.
        qpn: u32,
        /// The send that was to be posted.
        serial: u64,
        /// The oldest send that is not posted.
        expected: u64,
    },
    /// The send was prepared before the queue pair was reset.
    #[error("send {serial} of queue pair {qpn:#x} was prepared before reset(): drop it and prepare it again")]
    Stale {
        /// The queue pair.
        qpn: u32,
        /// The send that was to be posted.
        serial: u64,
    },
    /// Earlier sends of the queue pair are outstanding on another stream.
    #[error(
        "earlier sends of queue pair {qpn:#x} are outstanding on another stream ({blocked}): synchronize it first"
    )]
    OtherStream {
        /// The queue pair.
        qpn: u32,
        /// The stream's position.
        blocked: Blocked,
    },
    /// Sends of one trigger are released in an order other than that of their preparation.
    #[error(
        "ticket {ticket} is released before ticket {expected} of the same trigger, whose send was prepared earlier: post or drop that send first, or use two triggers"
    )]
    TicketOutOfOrder {
        /// The ticket of the send that was to be released.
        ticket: u64,
        /// The oldest ticket that is not released.
        expected: u64,
    },
    /// Another stream has not written the trigger yet.
    #[error(
        "another stream has still to write an earlier ticket of the trigger ({blocked}): synchronize it first"
    )]
    TriggerOnOtherStream {
        /// That stream's position.
        blocked: Blocked,
    },
    /// Only one kind of sends may be outstanding: those that a master releases, or those that the CPU posts.
    #[error(
        "sends of queue pair {qpn:#x} are outstanding that were handed over in the other way (prepared for the trigger's master, or posted by the CPU): poll until they have completed, or hand this one over as they were"
    )]
    MixedCpuAndMasterSends {
        /// The queue pair.
        qpn: u32,
    },
    /// A send would follow, on the same stream, a wait that it alone ends: the stream would hang.
    #[error(
        "send {serial} of queue pair {qpn:#x} follows, on the same stream, the wait for completion {index} of queue {cqn:#x}, which this send or a later one has to end: post the send before the wait, or on another stream"
    )]
    SendAfterOwnWait {
        /// The queue pair.
        qpn: u32,
        /// The send that was to be posted.
        serial: u64,
        /// Number of the completion queue.
        cqn: u32,
        /// Index of the completion.
        index: u32,
    },
    /// A stream has not reached receives of persistent requests yet.
    #[error(
        "a stream has still to reach {receives} receives of persistent requests on queue pair {qpn:#x}: synchronize it first, or start more on the same stream"
    )]
    ReceivesOnStream {
        /// The queue pair.
        qpn: u32,
        /// Receives that the card does not know yet.
        receives: u32,
    },
    /// A wait that nothing would satisfy.
    #[error(
        "nothing is prepared or posted that would complete here after {waits} waits: prepare the send, or post the receive, before the wait"
    )]
    NothingToWaitFor {
        /// Waits prepared beyond the last polled entry.
        waits: u32,
    },
}

/// Why polling a completion queue yields no completion.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The card wrote a completion that makes no sense.
    #[error("completion entry {index} makes no sense: {reason}")]
    BadCompletion {
        /// Index of the entry since the queue was made.
        index: u32,
        /// The reason.
        reason: String,
    },
    /// Kernels drive the queue pair.
    #[error("queue pair {qpn:#x} is driven by kernels: end them, and call DeviceQp::detach_device")]
    DeviceAttached {
        /// Its number.
        qpn: u32,
    },
}
