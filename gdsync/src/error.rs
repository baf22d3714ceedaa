//! Errors, one type for each family of operations. Every message names the value, the limit and what to do.

use crate::cuda::Placement;
use crate::memop::Condition;
use crate::memory::timeline::Blocked;
use crate::queue::failure::{FailureCause, ResetBlocker};
use crate::verbs::device::PortState;
use crate::verbs::gid::{GidKind, LinkLayer};
use crate::verbs::transport::Transport;
use std::io;

/// Errors of devices and of the objects made on them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verbs call failed.
    #[error("{call} failed{}: {source}", context(.detail))]
    Verbs {
        /// The verbs function.
        call: &'static str,
        /// What it was asked for.
        detail: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The system's libraries are not usable.
    #[error(transparent)]
    Load(#[from] gdsync_sys::system::LoadError),
    /// The kernel has no RDMA support.
    #[error(
        "the kernel has no RDMA support loaded: `modprobe ib_uverbs mlx5_ib`, and see that the card is there with `lspci`"
    )]
    NoKernelSupport,
    /// No device of that name, or none at all.
    #[error("no device {}: the {provider} provider has {}", wanted(.name), listed(.present))]
    NoDevice {
        /// Name asked for, if one was.
        name: Option<String>,
        /// The provider that was asked.
        provider: &'static str,
        /// Names of the devices that are there.
        present: Vec<String>,
    },
    /// The device is not driven by mlx5.
    #[error(
        "device {name} is not an mlx5 device: gdsync rings mlx5 doorbells itself and needs direct verbs (libmlx5)"
    )]
    NotMlx5 {
        /// Its name.
        name: String,
    },
    /// The port carries no traffic.
    #[error(
        "port {port} of {device} is {state}, but must be ACTIVE: check cable and switch{}",
        if *.link == LinkLayer::Ethernet { ", and that its network interface is up (`ip link`)" } else { ", and that a subnet manager runs (opensm)" }
    )]
    PortNotActive {
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
        /// Its state.
        state: PortState,
        /// What its link speaks.
        link: LinkLayer,
    },
    /// The port has no global identifier to use.
    #[error(
        "port {port} of {device} has no GID {}: it has {}",
        .index.map_or_else(|| "to use".to_owned(), |index| format!("at index {index}")),
        if .present.is_empty() { "none (give its network interface an address)".to_owned() } else { format!("those at {present:?}") }
    )]
    NoGid {
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
        /// The index asked for, if one was.
        index: Option<u32>,
        /// Indices of those that it has.
        present: Vec<u32>,
    },
    /// The remote side's packets look different on the wire.
    #[error(
        "this side uses {own} addresses and the remote side {remote}: use ports of the same kind, or choose a GID index of the same kind"
    )]
    OtherWire {
        /// What this side uses.
        own: GidKind,
        /// What the remote side uses.
        remote: GidKind,
    },
    /// A protection domain of another context.
    #[error("the protection domain belongs to another context than device {device}: allocate one there")]
    OtherContext {
        /// Name of the device.
        device: String,
    },
    /// The device has no queue pairs of that transport.
    #[error("device {device} has no {transport} queue pairs: use another transport or another device")]
    NoTransport {
        /// Name of the device.
        device: String,
        /// The transport asked for.
        transport: Transport,
    },
    /// Datagrams need no connection.
    #[error(
        "queue pair {qpn:#x} is UD, which is never connected: make an AddressHandle, and say where each request goes"
    )]
    Connectionless {
        /// Its number.
        qpn: u32,
    },
    /// A completion queue of another device.
    #[error("the completion queue belongs to another opening of a device than {device}: make it there")]
    OtherDevice {
        /// Name of the queue pair's device.
        device: String,
    },
    /// A null pointer was given for a verbs object.
    #[error("the {what} is a null pointer: did the call that made it fail?")]
    Null {
        /// The object's C type.
        what: &'static str,
    },
    /// A value is outside its limits.
    #[error("{what} is {value}, but {limit}: {remedy}")]
    OutOfRange {
        /// What was given.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The limit, in words.
        limit: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A queue's memory cannot lie where it was asked for.
    #[error("a queue cannot have memory of the {placement}: {reason}")]
    Placement {
        /// Where.
        placement: Placement,
        /// Why.
        reason: String,
    },
    /// Memory could not be had.
    #[error("cannot map {len} bytes of memory: {source}")]
    Memory {
        /// Bytes asked for.
        len: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// An endpoint or remote memory description does not parse.
    #[error("{what} does not parse: {reason}")]
    Parse {
        /// What was parsed.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] crate::cuda::CudaError),
    /// Queues could not be made or changed by commands of the device.
    #[error(transparent)]
    Devx(#[from] crate::qp::devx::DevxError),
    /// GPU memory could not be registered with the card.
    #[error(
        "{len} bytes of GPU memory cannot be registered: as a dma-buf: {dma_buf}; through peer memory (modprobe nvidia-peermem): {peer_memory}"
    )]
    GpuRegistration {
        /// Bytes asked for.
        len: usize,
        /// Why not as a dma-buf.
        dma_buf: String,
        /// Why not through peer memory.
        peer_memory: String,
    },
    /// Streams of the GPU could not be sure to see what a card writes.
    #[error(
        "GPU {gpu} shows a card's writes in no order and has no flush: let cards write into host memory, and copy in stream order"
    )]
    GpuConsistency {
        /// The GPU.
        gpu: i32,
    },
    /// The provider described a queue in a way that gdsync cannot work with.
    #[error("the provider described {what} as {value}, which gdsync cannot drive")]
    Layout {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Something of the queue pair's last connection is outstanding.
    #[error("queue pair {qpn:#x} cannot be reset: {blocker}")]
    NotDrained {
        /// Its number.
        qpn: u32,
        /// What is in the way.
        blocker: ResetBlocker,
    },
    /// A thread of the library could not be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The queue pair is in the wrong state.
    #[error("queue pair {qpn:#x} is {state}, but must be {needed}")]
    State {
        /// Its number.
        qpn: u32,
        /// Its state.
        state: &'static str,
        /// The state that the call needs.
        needed: &'static str,
    },
}

fn context(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn wanted(name: &Option<String>) -> String {
    name.as_ref().map_or_else(|| "found".to_owned(), |name| format!("named {name}"))
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Errors of queues: preparing, posting receives, polling. Nothing is lost by any of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// No room for the work request in the send queue.
    #[error(
        "the send queue has {free} of {capacity} blocks free and the request needs {needed}: poll the send completion queue"
    )]
    SendQueueFull {
        /// 64-byte blocks that the request needs.
        needed: u32,
        /// Blocks that are free.
        free: u32,
        /// Blocks of the queue.
        capacity: u32,
    },
    /// No room in the receive queue.
    #[error("all {capacity} receives are posted: poll the receive completion queue")]
    ReceiveQueueFull {
        /// Receives that the queue holds.
        capacity: u32,
    },
    /// The completion queue could overrun: completions are not polled yet.
    #[error("the completion queue has {entries} entries and all of them may be needed: poll it")]
    CompletionQueueFull {
        /// Its entries.
        entries: u32,
    },
    /// The completion queue could overrun: a stream still has to look at its oldest entries.
    #[error("the oldest completion entry waits for a stream: {0}")]
    WouldBlock(Blocked),
    /// A prepared wait, not posted yet, holds the oldest entry of the completion queue.
    #[error("the oldest completion entry is held by a prepared wait: post it or drop it")]
    HeldByPreparedWait,
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
    /// A slice lies outside its memory.
    #[error("bytes {start}..{end} lie outside the {len} bytes of the memory region")]
    OutOfBounds {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the region.
        len: u64,
    },
    /// A write of bytes is too long.
    #[error("a write of {given} bytes is longer than the {limit} that one takes: split it")]
    WriteTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A word lies outside its memory or is not aligned.
    #[error("offset {offset} is no aligned {size}-byte word within {len} bytes")]
    BadWord {
        /// Byte offset.
        offset: usize,
        /// Word size in bytes.
        size: usize,
        /// Length of the memory.
        len: usize,
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
        "{operation} is not possible on a {transport} queue pair: RC has every operation, UC sends and RDMA writes, UD sends that have an address"
    )]
    NotOnTransport {
        /// What was asked for.
        operation: &'static str,
        /// The queue pair's transport.
        transport: Transport,
    },
    /// The device does not have the operation.
    #[error("the device has no {operation} (Device::attributes tells): do without, or use another device")]
    NotOnDevice {
        /// What was asked for.
        operation: &'static str,
    },
    /// A datagram that goes nowhere.
    #[error("a request on a UD queue pair needs an address: say where it goes with WorkRequest::to")]
    NoDestination,
    /// A queue pair that cannot be.
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
    /// The result of an atomic operation has no place.
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
    /// A wait that nothing would satisfy.
    #[error(
        "nothing is prepared or posted that would complete here after {waits} waits: prepare the send, or post the receive, before the wait"
    )]
    NothingToWaitFor {
        /// Waits prepared beyond what the CPU has polled.
        waits: u32,
    },
    /// A wait that no value of the word satisfies.
    #[error("no word is {condition:?} {value:#x}: a stream that waits for it never goes on")]
    NeverSatisfied {
        /// The condition.
        condition: Condition,
        /// The value compared with.
        value: u64,
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
    /// The queue pair is not connected.
    #[error("queue pair {qpn:#x} is not connected: call connect() first")]
    NotConnected {
        /// Its number.
        qpn: u32,
    },
    /// The queue pair was handed over to kernels.
    #[error("queue pair {qpn:#x} is driven by kernels: end them, and call DeviceQp::detach_device")]
    DeviceAttached {
        /// Its number.
        qpn: u32,
    },
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
    /// The completion queue has overrun, and the card writes nothing there any more.
    #[error("completion queue {cqn:#x} has overrun and is lost: make new queue pairs")]
    CompletionQueueLost {
        /// Its number.
        cqn: u32,
    },
    /// Earlier sends of the queue pair are outstanding on another stream.
    #[error(
        "earlier sends of queue pair {qpn:#x} are outstanding on another stream ({blocked}): synchronize it first"
    )]
    OtherStream {
        /// The queue pair.
        qpn: u32,
        /// Where they are.
        blocked: Blocked,
    },
    /// There is no memory for the word by which a kernel says that it has passed.
    #[error("no memory for a progress word: {reason}")]
    NoTimeline {
        /// The operating system's error.
        reason: String,
    },
    /// The card wrote a completion that makes no sense.
    #[error("completion entry {index} makes no sense: {reason}")]
    BadCompletion {
        /// Index of the entry since the queue was made.
        index: u32,
        /// What is wrong.
        reason: String,
    },
}

impl QueueError {
    /// True if the same call may succeed later, after completions were polled or a stream has made progress.
    pub fn is_full(&self) -> bool {
        matches!(
            self,
            QueueError::SendQueueFull { .. }
                | QueueError::ReceiveQueueFull { .. }
                | QueueError::CompletionQueueFull { .. }
                | QueueError::WouldBlock(_)
                | QueueError::HeldByPreparedWait
        )
    }
}
