//! Errors of verbs objects. Every message names the value, the limit and the remedy.

use crate::cuda::{CudaError, Gpu, PlacementError};
use crate::memop::WordError;
use crate::verbs::{GidKind, LinkLayer, PortState, Transport};
use std::{fmt, io};

/// Errors of devices and of the objects made on them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verbs call failed.
    #[error("{call} failed{}: {source}", context(.detail))]
    Verbs {
        /// The verbs function.
        call: &'static str,
        /// The arguments.
        detail: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port cannot be used, or not with the remote one.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The queue pair cannot be created or connected.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// GPU memory cannot be registered.
    #[error(transparent)]
    Registration(#[from] RegistrationError),
    /// A value is outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A queue's memory cannot be allocated in the requested place.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Memory could not be allocated.
    #[error("cannot map {len} bytes of memory: {source}")]
    Memory {
        /// The requested length in bytes.
        len: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// A thread of the library could not be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The text form of an endpoint or of remote memory is invalid.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The word is not one that a stream can name.
    #[error(transparent)]
    Word(#[from] WordError),
    /// CUDA failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// DEVX commands could not create or change queues.
    #[error(transparent)]
    Devx(#[from] DevxError),
}

/// The reason why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system's libraries are not usable.
    #[error(transparent)]
    Load(#[from] gdsync_sys::system::LoadError),
    /// The kernel has no RDMA support.
    #[error(
        "the kernel has no RDMA support loaded: `modprobe ib_uverbs mlx5_ib`, and see that the card is there with `lspci`"
    )]
    NoKernelSupport,
    /// A setting of the software card in the environment is invalid.
    #[error("the software card does not start: {reason}")]
    Setting {
        /// The setting, its value, and the error.
        reason: String,
    },
    /// No device of that name, or none at all.
    #[error("no device {}: the {provider} provider has {}", wanted(.name), listed(.present))]
    NoDevice {
        /// The requested name, if any.
        name: Option<String>,
        /// The provider.
        provider: &'static str,
        /// Names of the provider's devices.
        present: Vec<String>,
    },
    /// The device is not an mlx5 device.
    #[error(
        "device {name} is not an mlx5 device: gdsync rings mlx5 doorbells itself and needs direct verbs (libmlx5)"
    )]
    NotMlx5 {
        /// Its name.
        name: String,
    },
    /// The pointer to a verbs object is null.
    #[error("the {what} is a null pointer: did the call that made it fail?")]
    Null {
        /// The object's C type.
        what: &'static str,
    },
    /// The protection domain belongs to another context.
    #[error("the protection domain belongs to another context than device {device}: allocate one there")]
    OtherContext {
        /// Name of the device.
        device: String,
    },
}

/// The reason why a port cannot be used, or not with the remote one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The port carries no traffic.
    #[error(
        "port {port} of {device} is {state}, but must be ACTIVE: check cable and switch{}",
        if *.link == LinkLayer::Ethernet { ", and that its network interface is up (`ip link`)" } else { ", and that a subnet manager runs (opensm)" }
    )]
    NotActive {
        /// Name of the device.
        device: String,
        /// Number of the port.
        port: u8,
        /// Its state.
        state: PortState,
        /// Its link layer.
        link: LinkLayer,
    },
    /// The port has no usable GID.
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
        /// The requested index, if any.
        index: Option<u32>,
        /// Indices of its GIDs.
        present: Vec<u32>,
    },
    /// The two sides use different packet formats on the wire.
    #[error(
        "this side uses {own} addresses and the remote side {remote}: use ports of the same kind, or choose a GID index of the same kind"
    )]
    GidKindMismatch {
        /// The format of this side.
        own: GidKind,
        /// The format of the remote side.
        remote: GidKind,
    },
}

/// The reason why a queue pair cannot be created or connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The device does not support queue pairs of that transport.
    #[error("device {device} has no {transport} queue pairs: use another transport or another device")]
    NoTransport {
        /// Name of the device.
        device: String,
        /// The requested transport.
        transport: Transport,
    },
    /// UD and DC queue pairs are not connected.
    #[error(
        "queue pair {qpn:#x} is {transport}, which is never connected by the program: say where each request goes, to {}",
        if *.transport == Transport::Dc { "a DcAddress (WorkRequest::to_target)" } else { "an AddressHandle (WorkRequest::to)" }
    )]
    Connectionless {
        /// Its number.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// Only DC queue pairs send to DC targets.
    #[error("queue pair {qpn:#x} is {transport}: only one of Transport::Dc sends to a DC target")]
    NotAnInitiator {
        /// Its number.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// DC initiators take no receives.
    #[error(
        "a DC queue pair sends, and takes no receives: give the shared receive queue to a DcTarget, which the other side sends to"
    )]
    DcInitiatorCannotReceive,
    /// A trigger cannot release the sends of a DC queue pair.
    #[error(
        "a trigger does not release the sends of a DC queue pair: have streams ring its doorbell, or use RC queue pairs"
    )]
    NotTriggered,
    /// The card cannot wait.
    #[error(
        "the card of device {device} does not wait for {what} (`gdsync doctor` says which do): release sends by doorbells, and have the stream wait for each queue"
    )]
    NoCardWaits {
        /// Name of the device.
        device: String,
        /// The object that it cannot wait for.
        what: &'static str,
    },
    /// The device does not support queues that release others.
    #[error(
        "device {device} cannot have the master of a trigger ({reason}): use the trigger without one, and each of its queue pairs waits for the word itself"
    )]
    NoMasters {
        /// Name of the device.
        device: String,
        /// The reason.
        reason: &'static str,
    },
    /// A trigger with queue pairs or other handles cannot be given a master.
    #[error("the trigger is in use already: give it its master before anything else is made with it")]
    TriggerInUse,
    /// The trigger, or the word for which the card waits, belongs to another protection domain.
    #[error("the trigger or word belongs to another protection domain than the queue pair: make it there")]
    OtherDomain,
    /// The trigger's master waits for the queue pair, which cannot have another wait.
    #[error(
        "the sends of queue pair {qpn:#x} are released by the master of its trigger, and wait for nothing else: use a trigger without a master"
    )]
    MasterWaits {
        /// Its number.
        qpn: u32,
    },
    /// The completion queue is another queue pair's private one, in which streams wait for persistent requests.
    #[error(
        "completion queue {cqn:#x} is another queue pair's own, and streams wait there for its persistent requests: share one that CompletionQueue::new has made"
    )]
    PrivateCompletionQueue {
        /// Its number.
        cqn: u32,
    },
    /// The completion queue, channel or shared receive queue belongs to another device.
    #[error(
        "the completion queue, channel or shared receive queue belongs to another opening of a device than {device}: make it there"
    )]
    OtherDevice {
        /// Name of the device.
        device: String,
    },
    /// The completion queue is too small for all receives of the shared receive queue.
    #[error(
        "completion queue {cqn:#x} has no room for the {posted} receives that are posted to the shared receive queue: poll it, or make a larger one"
    )]
    NoRoomForReceives {
        /// Number of the completion queue.
        cqn: u32,
        /// Posted receives.
        posted: u32,
    },
    /// The provider's description of a queue is one that gdsync does not support.
    #[error("the provider described {what} as {value}, which gdsync cannot drive")]
    Layout {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The queue pair is in the wrong state.
    #[error("queue pair {qpn:#x} is {state}, but must be {needed}")]
    State {
        /// Its number.
        qpn: u32,
        /// Its state.
        state: &'static str,
        /// The required state.
        needed: &'static str,
    },
}

impl QueuePairError {
    pub(crate) fn layout(what: &'static str, value: impl Into<u64>) -> Error {
        QueuePairError::Layout { what, value: value.into() }.into()
    }
}

/// The reason why GPU memory cannot be registered with a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistrationError {
    /// The card refused the memory.
    #[error(
        "{len} bytes of {} cannot be registered: as a dma-buf: {dma_buf}; through peer memory (modprobe nvidia-peermem): {peer_memory}",
        Gpu::from_device(*.gpu)
    )]
    Refused {
        /// The GPU of the memory.
        gpu: i32,
        /// The requested length in bytes.
        len: usize,
        /// The reason against a dma-buf.
        dma_buf: String,
        /// The reason against peer memory.
        peer_memory: String,
    },
    /// Streams of the GPU might not see the card's writes.
    #[error(
        "{} shows a card's writes in no order and has no flush: let cards write into host memory, and copy in stream order",
        Gpu::from_device(*.gpu)
    )]
    NoOrder {
        /// The GPU.
        gpu: i32,
    },
}

/// The reason why DEVX commands could not create or change queues ([`crate::advanced::QueueApi::Devx`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevxError {
    /// The device refused a command.
    #[error("the device refused {command} ({detail}): {status}, syndrome {syndrome:#010x}: {}", .status.remedy())]
    Refused {
        /// Name of the command, as in the PRM.
        command: &'static str,
        /// Its arguments.
        detail: String,
        /// The status.
        status: DevxStatus,
        /// The vendor's code for the cause, from the firmware.
        syndrome: u32,
    },
    /// The device takes no DEVX commands from programs.
    #[error(
        "device {device} takes no commands from programs ({reason}): make its queues by verbs (QueueApi::Verbs)"
    )]
    Unavailable {
        /// Name of the device.
        device: String,
        /// The reason.
        reason: &'static str,
    },
    /// A verbs queue pair cannot complete in a completion queue that DEVX commands made.
    #[error(
        "completion queue {cqn:#x} was made by commands, where a queue pair of verbs cannot complete: make both by commands, or both by verbs"
    )]
    CqMadeByDevx {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// A completion queue that DEVX commands made has no completion channel.
    #[error(
        "a completion queue that is made by commands, or lies in a GPU's memory, has no completion channel: have verbs make it in the host's memory, where queue pairs that commands make complete, too"
    )]
    NoChannel,
    /// A queue pair that DEVX commands make has its private receive queue.
    #[error(
        "a queue pair that is made by commands has a receive queue of its own: have verbs make one that takes from a shared receive queue"
    )]
    NoSharedReceives,
    /// DEVX commands make RC, UC and UD queue pairs only.
    #[error(
        "commands make no DC queue pairs here: have verbs make it (QueueApi::Verbs), in the host's memory"
    )]
    NoDc,
}

/// Status of a DEVX command that the device refused (`MLX5_CMD_STAT_*` of `mlx5_ifc.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DevxStatus(pub u8);

/// Status, name, remedy.
const KNOWN: &[(u8, &str, &str)] = &[
    (0x01, "internal error", "look into the kernel's log"),
    (0x02, "bad operation", "this firmware does not have the command: make the queues by verbs"),
    (0x03, "bad parameter", "ask for smaller queues, or other attributes"),
    (0x04, "bad system state", "look into the kernel's log"),
    (0x05, "bad resource", "an object that the command names is not there"),
    (0x06, "resource busy", "destroy what uses it first"),
    (0x08, "limit exceeded", "the device has no more of them: destroy some"),
    (0x09, "bad resource state", "the object is in another state than the command needs"),
    (0x0a, "bad index", "an object that the command names is not there"),
    (0x0f, "no resources", "the device has no more of them: destroy some"),
    (0x10, "bad queue pair state", "the queue pair is in another state than the command needs"),
    (0x50, "bad input length", "this firmware has another layout of the command: make the queues by verbs"),
    (0x51, "bad output length", "this firmware has another layout of the command: make the queues by verbs"),
];

impl DevxStatus {
    fn known(self) -> Option<&'static (u8, &'static str, &'static str)> {
        KNOWN.iter().find(|(code, ..)| *code == self.0)
    }

    pub(super) fn remedy(self) -> &'static str {
        self.known().map_or("look into the kernel's log", |(.., remedy)| remedy)
    }
}

impl fmt::Display for DevxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((code, name, _)) => write!(f, "{name} (status {code:#04x})"),
            None => write!(f, "status {:#04x}", self.0),
        }
    }
}

/// A value is outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}, but {limit}: {remedy}")]
pub struct OutOfRange {
    /// Name of the value.
    pub what: &'static str,
    /// Its value.
    pub value: u64,
    /// The limit, in words.
    pub limit: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// A text form is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} does not parse: {reason}")]
pub struct ParseError {
    /// Name of the text form.
    pub what: &'static str,
    /// The reason.
    pub reason: String,
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
