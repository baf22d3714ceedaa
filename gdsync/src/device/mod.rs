//! Queue pairs, triggers and collectors for kernels, as plain data, and the run-time compiler of kernels.

#[deny(unsafe_code)]
mod headers;
mod layout;
#[deny(unsafe_code)]
mod mailbox;
pub mod nvrtc;
pub(crate) mod raw;

pub use headers::headers;
pub use layout::{CollectorData, DeviceQpData, STATE_BYTES, TriggerData};

use crate::cuda::CudaError;
use crate::memop::{MemOpStream, StreamError};
use crate::memory::HostAddr;
use crate::qp::{QueuePair, QueuePairInner};
use crate::queue::QueueError;
use crate::queue::completion::{BorrowedCompletions, Unread};
use crate::queue::outcome::WorkError;
use crate::queue::send::BorrowedSends;
use crate::stream::{DoorbellPath, Doorbells};
use crate::util::options::options;
use crate::verbs::Transport;
use layout::{ERROR_WORK, MAILBOX, Progress, StateMemory, VERSION};
use mailbox::Mailbox;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

options! {
    /// Options for attaching a queue pair to a device.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct DeviceQpOptions
    /// Doorbells through the register if kernels reach it, else through a mailbox; one second; pinned memory.
    default {
        /// How kernels ring the card.
        doorbells: DoorbellPath = DoorbellPath::Auto,
        /// How long a kernel's thread waits for another in the middle of a call before the queue pair counts as failed.
        stall: Duration = Duration::from_secs(1),
    }
    no setters {
        /// GPU memory for the indices that the threads of kernels share: at least [`STATE_BYTES`], for this queue
        /// pair alone. By default, they are in pinned memory, and each atomic operation of a kernel crosses PCIe.
        state: Option<crate::cuda::GpuMemory> = None,
    }
}

impl DeviceQpOptions {
    /// Sets [`DeviceQpOptions::state`](#structfield.state).
    pub fn state(mut self, memory: &crate::cuda::GpuMemory) -> Self {
        self.state = Some(memory.clone());
        self
    }
}

/// The progress of kernels in 64-byte blocks. Each request takes one block (`put_signal` makes two requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceQpProgress {
    /// Blocks that callers have reserved.
    pub reserved: u64,
    /// Blocks for which the card was rung.
    pub posted: u64,
    /// Completed blocks, as far as a kernel has polled.
    pub completed: u64,
    /// The first failure that the card has reported, as far as a kernel has polled.
    pub error: Option<WorkError>,
}

/// A queue pair whose send queue and send completion queue kernels drive, through `gdsync/device_verbs.cuh`.
///
/// The CPU and streams keep the receives. The program keeps the memory regions that kernels name alive until the
/// requests have completed.
///
/// While this lives, the CPU and streams can neither post sends nor poll the send completion queue
/// ([`StateError::DeviceAttached`](crate::queue::StateError::DeviceAttached)). [`DeviceQp::detach_device`] ends that,
/// and so does the drop of this, if nothing is outstanding; otherwise the drop aborts the queue pair, which can then
/// only be dropped.
///
/// # Kernels
/// [`DeviceQp::data`] is for kernels of the device that the queue pair is attached to. The code that launches them
/// (which is `unsafe`) promises that they have ended before this is dropped.
///
/// ```
/// use gdsync::{Device, ProtectionDomain, QueuePair, stream::Cpu};
/// use std::time::Duration;
/// # let queue_pair = QueuePair::new(&ProtectionDomain::new(&Device::software()?)?, Default::default())?;
/// # queue_pair.connect(&queue_pair.endpoint()?, Default::default())?;
/// // For threads of this process; a `CudaStream` instead of `Cpu` names its GPU.
/// let kernels = queue_pair.attach_device(&Cpu::new(), &Default::default())?;
/// let _argument_of_kernels = kernels.data();
/// assert!(queue_pair.send_cq().poll().is_err());
/// kernels.detach_device(Duration::from_secs(30))?;
/// assert!(queue_pair.send_cq().poll()?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceQp {
    queue_pair: Arc<QueuePairInner>,
    data: DeviceQpData,
    doorbells: Doorbells,
    mailbox: Option<Arc<Mailbox>>,
    state: StateMemory,
    detached: Mutex<bool>,
}

impl QueuePair {
    /// Attaches the queue pair to a device, whose kernels then drive it: to the GPU of a CUDA stream, or to threads
    /// of this process ([`crate::stream::Cpu`]), which can use the same header.
    ///
    /// The queue pair must be connected and idle: nothing prepared or in flight, and all completions polled. No other
    /// queue may complete in its send completion queue.
    ///
    /// # Errors
    /// [`DeviceQpError`] names the obstacle. Nothing has changed then.
    pub fn attach_device(
        &self,
        device: &impl MemOpStream,
        options: &DeviceQpOptions,
    ) -> Result<DeviceQp, DeviceQpError> {
        DeviceQp::new(&self.inner, device, options)
    }
}

impl DeviceQp {
    fn new(
        queue_pair: &Arc<QueuePairInner>,
        device: &impl MemOpStream,
        options: &DeviceQpOptions,
    ) -> Result<Self, DeviceQpError> {
        let qpn = queue_pair.number;
        if queue_pair.config.transport != Transport::Rc {
            return Err(DeviceQpError::Transport { qpn, transport: queue_pair.config.transport });
        }
        let state = StateMemory::new(options.state.as_ref())?;
        let (sends, completions) = attach(queue_pair)?;
        // From here on, its drop detaches the queues if anything fails.
        let mut device_qp = DeviceQp {
            queue_pair: queue_pair.clone(),
            data: data(qpn, &sends, &completions, options.stall),
            doorbells: Doorbells::Direct,
            mailbox: None,
            state,
            detached: Mutex::new(false),
        };
        let head = u64::from(sends.head);
        let indices = Progress {
            reserved: head,
            ready: head,
            posted: head,
            completed: head,
            consumed: completions.next.into(),
            error: 0,
        };
        device_qp.state.start(&indices)?;
        device_qp.translate(&sends, &completions, device, options.doorbells)?;
        Ok(device_qp)
    }

    fn translate(
        &mut self,
        sends: &BorrowedSends,
        completions: &BorrowedCompletions,
        device: &impl MemOpStream,
        path: DoorbellPath,
    ) -> Result<(), DeviceQpError> {
        let address = |at: HostAddr, len: usize| device.translate(at, len).map(|found| found.get());
        self.data.send_ring = address(sends.ring, sends.blocks as usize * 64)?;
        self.data.send_record = address(sends.record, 4)?;
        self.data.completion_ring = address(completions.ring, completions.entries as usize * 64)?;
        self.data.completion_record = address(completions.record, 4)?;
        self.data.state = self.state.address(device)?;
        let reason = match path {
            DoorbellPath::Proxy => "asked for".to_owned(),
            DoorbellPath::Auto | DoorbellPath::Direct => match address(sends.register, 8) {
                Ok(register) => {
                    self.data.doorbell = register;
                    return Ok(());
                }
                Err(StreamError::Unreachable { reason, .. }) if path == DoorbellPath::Auto => reason,
                Err(error) => return Err(error.into()),
            },
        };
        let mailbox = Mailbox::open(&self.queue_pair, sends.head.into())?;
        let at = mailbox.addr();
        self.mailbox = Some(mailbox);
        self.data.doorbell = address(at, 8)?;
        self.data.flags |= MAILBOX;
        self.doorbells = Doorbells::Proxy { reason };
        Ok(())
    }

    /// Returns the argument of kernels.
    pub fn data(&self) -> DeviceQpData {
        self.data
    }

    /// Returns how kernels ring the card, and why.
    pub fn doorbells(&self) -> &Doorbells {
        &self.doorbells
    }

    /// Returns the number of the queue pair.
    pub fn qp_num(&self) -> u32 {
        self.queue_pair.number
    }

    /// Returns the progress of kernels. While they run, the numbers are read at slightly different times.
    ///
    /// # Errors
    /// [`DeviceQpError::Cuda`] if they are in GPU memory and cannot be read.
    pub fn progress(&self) -> Result<DeviceQpProgress, DeviceQpError> {
        let Progress { reserved, posted, completed, error, .. } = self.state.read()?;
        Ok(DeviceQpProgress { reserved, posted, completed, error: work_error(error) })
    }
}

/// The failure in the error word of kernels, if the card reported one.
fn work_error(error: u64) -> Option<WorkError> {
    let [syndrome, vendor, ..] = error.to_le_bytes();
    (error & ERROR_WORK != 0).then_some(WorkError::new(syndrome, vendor))
}

/// All fields except the addresses.
fn data(qpn: u32, sends: &BorrowedSends, completions: &BorrowedCompletions, stall: Duration) -> DeviceQpData {
    DeviceQpData {
        send_mask: sends.blocks - 1,
        completion_mask: completions.entries - 1,
        qpn,
        // Every request may have a CQE: unsignaled ones have one when the queue pair fails.
        limit: sends.blocks.min(completions.entries),
        version: VERSION,
        stall_ns: u64::try_from(stall.as_nanos()).unwrap_or(u64::MAX),
        ..DeviceQpData::default()
    }
}

/// Attaches both queues, or neither.
fn attach(queue_pair: &Arc<QueuePairInner>) -> Result<(BorrowedSends, BorrowedCompletions), DeviceQpError> {
    let qpn = queue_pair.number;
    let alone = queue_pair.send_cq.attached().is_ok_and(|attached| {
        matches!(&attached[..], [one] if Arc::ptr_eq(one, queue_pair))
            && !Arc::ptr_eq(&queue_pair.send_cq, &queue_pair.recv_cq)
    });
    let mut completions = queue_pair.send_cq.lock();
    let mut send = queue_pair.send();
    queue_pair.life.check_connected().map_err(DeviceQpError::NotReady)?;
    if !alone {
        return Err(DeviceQpError::SharedCompletionQueue { qpn });
    }
    if completions.is_lost() {
        return Err(DeviceQpError::CompletionQueueLost { qpn });
    }
    let sends = send.attach().map_err(|sends| DeviceQpError::Sends { qpn, sends })?;
    let attached = completions.attach(qpn).map_err(|unread| {
        send.detach(sends.head);
        match unread {
            Unread::Completions(completions) => DeviceQpError::Completions { qpn, completions },
            Unread::Waits(waits) => DeviceQpError::Waits { qpn, waits },
        }
    })?;
    let status = queue_pair.life.lock();
    // If the queue pair has failed meanwhile, the card reports that to the kernel.
    queue_pair.life.is_ready.store(false, Ordering::Release);
    drop(status);
    Ok((sends, attached))
}

/// Rings the card for blocks that a kernel has written.
fn ring_attached(queue_pair: &QueuePairInner, end: u32) {
    let send = queue_pair.send();
    if let Some(doorbell) = send.attached_doorbell(end) {
        // SAFETY: record and register belong to this queue pair, which is alive; the lock orders the stores.
        unsafe { doorbell.ring() };
    }
}

/// Errors of [`crate::QueuePair::attach_device`] and [`crate::device::DeviceQp`]. Unless the
/// variant says otherwise, nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceQpError {
    /// The queue pair is not RC, the only transport to which kernels post.
    #[error("queue pair {qpn:#x} is {transport}, and kernels drive RC ones: make it with Transport::Rc")]
    Transport {
        /// Its number.
        qpn: u32,
        /// Its transport.
        transport: Transport,
    },
    /// The queue pair is not connected, has failed, or is attached already.
    #[error(transparent)]
    NotReady(QueueError),
    /// Sends are prepared, or have not completed.
    #[error(
        "queue pair {qpn:#x} has {sends} sends that are prepared or not polled: post or drop them, let streams pass, and poll its send completion queue"
    )]
    Sends {
        /// Its number.
        qpn: u32,
        /// Their number.
        sends: u32,
    },
    /// Completions are outstanding, or were not polled.
    #[error(
        "the send completion queue of queue pair {qpn:#x} has {completions} completions to be polled: poll it until it is empty"
    )]
    Completions {
        /// Its number.
        qpn: u32,
        /// Their number.
        completions: u32,
    },
    /// Waits for its completions are prepared, or streams have not passed them.
    #[error(
        "{waits} waits for completions of queue pair {qpn:#x} are prepared or outstanding: drop them, or synchronize their streams"
    )]
    Waits {
        /// Its number.
        qpn: u32,
        /// Their number.
        waits: u32,
    },
    /// Another queue completes in its send completion queue.
    #[error(
        "queue pair {qpn:#x} shares its send completion queue: kernels need one that is this queue pair's sends' alone"
    )]
    SharedCompletionQueue {
        /// Its number.
        qpn: u32,
    },
    /// Its completion queue has overrun.
    #[error(
        "the send completion queue of queue pair {qpn:#x} has overrun and is lost: make a new queue pair"
    )]
    CompletionQueueLost {
        /// Its number.
        qpn: u32,
    },
    /// The device cannot reach its memory, or its register if the options ask for that.
    #[error("kernels cannot reach the queue pair: {0}")]
    Unreachable(#[from] StreamError),
    /// The memory for the kernels' indices is too short.
    #[error("the kernels' indices need {needed} bytes of GPU memory, and there are {given}: give more")]
    StateTooShort {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// Pinned memory could not be allocated.
    #[error("no pinned memory for the kernels' indices: {0}")]
    Memory(#[source] io::Error),
    /// The thread that forwards mailboxes could not be started.
    #[error("cannot start the thread that forwards doorbells of kernels: {0}")]
    Thread(#[source] io::Error),
    /// The GPU's memory cannot be read or written.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A kernel is in the middle of a call, or was terminated there.
    #[error(
        "{unpublished} blocks of queue pair {qpn:#x} are reserved and not written: a kernel still posts, so wait for it; if it has died, abort() the queue pair, and detach it then"
    )]
    KernelActive {
        /// Its number.
        qpn: u32,
        /// Their number.
        unpublished: u64,
    },
    /// The card has not completed everything. The call can be repeated.
    #[error(
        "{outstanding} requests that kernels posted to queue pair {qpn:#x} have not completed after {waited:?}: wait longer, or abort() it"
    )]
    Outstanding {
        /// Its number.
        qpn: u32,
        /// Their number.
        outstanding: u64,
        /// How long the call has waited.
        waited: Duration,
    },
}
