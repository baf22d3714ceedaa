//! The poster of an end's sends: the CPU, a stream, or kernels. A kernel posts a list of requests and waits until these
//! have completed. Without a GPU, a thread does so.

use super::gpu::{AnyStream, Gpu};
use gdsync::cudarc::driver::{CudaFunction, CudaStream as Queue, LaunchConfig, PushKernelArg};
use gdsync::device::{DeviceQp, DeviceQpOptions};
use gdsync::queue::{Syndrome, WorkError};
use gdsync::{CudaStream, PinnedMemory, QueuePair, RemoteMemory, Slice, SoftStream, WorkRequest, cuda};
use gdsync_cli::failure::Failure;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of requests in a list, and waiting for one.
const MOST: usize = 16;
/// After this long, posted requests never complete.
const LONG: Duration = Duration::from_secs(20);
/// Words of a request, `struct request` in `kernels/soak.cu`.
const REQUEST: usize = 4;
/// Words after the requests, `struct outcome` there.
const OUTCOME: usize = 3;
/// `status::ok` and `status::failed` of the device header.
const OK: u64 = 0;
const FAILED: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PosterKind {
    Cpu,
    Stream,
    Kernels,
}

pub(super) enum Poster {
    Cpu,
    Stream(Box<AnyStream>),
    Kernels(Kernels),
}

impl Poster {
    pub(super) fn new(gpu: &Gpu, by: PosterKind) -> Result<Self, Failure> {
        Ok(match by {
            PosterKind::Cpu => Poster::Cpu,
            PosterKind::Stream => Poster::Stream(Box::new(gpu.stream()?)),
            PosterKind::Kernels => Poster::Kernels(Kernels::new(gpu)?),
        })
    }

    /// Hands a connected queue pair over to kernels.
    pub(super) fn attach(&mut self, queue_pair: &QueuePair) -> Result<(), Failure> {
        match self {
            Poster::Kernels(kernels) => kernels.attach(queue_pair),
            Poster::Cpu | Poster::Stream(_) => Ok(()),
        }
    }

    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        match self {
            Poster::Kernels(kernels) => kernels.detach(),
            Poster::Cpu | Poster::Stream(_) => Ok(()),
        }
    }

    /// Returns whether a stream has passed everything. (Results of kernels are in the ledger.)
    pub(super) fn is_idle(&self) -> Result<bool, Failure> {
        match self {
            Poster::Stream(stream) => Ok(stream.synchronize_timeout(Duration::ZERO)?),
            Poster::Cpu | Poster::Kernels(_) => Ok(true),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Request {
    /// A message in the end's memory, also by its address and key.
    Send {
        slice: Slice,
        address: u64,
        key: u32,
    },
    Put {
        to: RemoteMemory,
        value: u64,
    },
}

/// The result of a list: its first failure.
type Outcome = Result<(), WorkError>;

/// The requests of one end.
pub(super) struct Kernels {
    driver: Driver,
    waiting: Vec<Request>,
    running: usize,
    ended: VecDeque<Outcome>,
    has_failed: bool,
}

enum Driver {
    Thread(Thread),
    Cuda(Box<Cuda>),
}

/// The result of a request that was not executed because an earlier one failed.
const FLUSHED: WorkError = WorkError::new(Syndrome::WrFlush as u8, 0);

impl Kernels {
    pub(super) fn new(gpu: &Gpu) -> Result<Self, Failure> {
        let driver = match gpu {
            Gpu::Cuda(context, posts) => {
                let queue = context.new_stream()?;
                let backend = CudaStream::new(queue.clone())?;
                let memory = PinnedMemory::allocate((MOST * REQUEST + OUTCOME) * 8)?;
                let address = cuda::pin(context, &memory)?;
                Driver::Cuda(Box::new(Cuda {
                    queue,
                    backend,
                    posts: posts.clone(),
                    memory,
                    address,
                    round: 0,
                    attached: None,
                }))
            }
            Gpu::None | Gpu::StandIn => {
                Driver::Thread(Thread { stream: SoftStream::new()?, outcome: Arc::default() })
            }
        };
        Ok(Kernels { driver, waiting: Vec::new(), running: 0, ended: VecDeque::new(), has_failed: false })
    }

    /// Takes a connected queue pair with nothing outstanding.
    pub(super) fn attach(&mut self, queue_pair: &QueuePair) -> Result<(), Failure> {
        self.has_failed = false;
        if let Driver::Cuda(driver) = &mut self.driver {
            let options = DeviceQpOptions::default();
            driver.attached = Some(queue_pair.attach_device(&driver.backend, &options)?);
        }
        Ok(())
    }

    /// Returns the queue pair. No list may be running.
    pub(super) fn detach(&mut self) -> Result<(), Failure> {
        if let Driver::Cuda(driver) = &mut self.driver {
            // The last kernel has reported, but may not have ended yet.
            driver.queue.synchronize()?;
            if let Some(attached) = driver.attached.take() {
                attached.detach_device(LONG)?;
            }
        }
        Ok(())
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + self.running + self.ended.len() < MOST
    }

    pub(super) fn post(&mut self, request: Request) {
        self.waiting.push(request);
    }

    /// Returns the result of the next request, in posting order. Starts a list if none runs.
    pub(super) fn next_ended(&mut self, queue_pair: &Arc<QueuePair>) -> Result<Option<Outcome>, Failure> {
        if self.running > 0
            && let Some(outcome) = self.driver.outcome()?
        {
            self.has_failed |= outcome.is_err();
            let rest = outcome.map_err(|_| FLUSHED);
            self.ended.extend(std::iter::once(outcome).chain(std::iter::repeat_n(rest, self.running - 1)));
            self.running = 0;
        }
        if self.running == 0 && !self.waiting.is_empty() {
            let list = std::mem::take(&mut self.waiting);
            if self.has_failed || queue_pair.failure().is_some() {
                self.ended.extend(list.iter().map(|_| Err(FLUSHED)));
            } else {
                self.running = list.len();
                self.driver.start(queue_pair, list)?;
            }
        }
        Ok(self.ended.pop_front())
    }
}

impl Driver {
    fn start(&mut self, queue_pair: &Arc<QueuePair>, list: Vec<Request>) -> Result<(), Failure> {
        match self {
            Driver::Thread(driver) => driver.start(queue_pair.clone(), list),
            Driver::Cuda(driver) => driver.start(&list),
        }
    }

    /// Returns the list's result, once it has ended.
    fn outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        match self {
            Driver::Thread(driver) => driver.outcome(),
            Driver::Cuda(driver) => driver.outcome(),
        }
    }
}

struct Cuda {
    queue: Arc<Queue>,
    backend: CudaStream,
    posts: CudaFunction,
    memory: PinnedMemory,
    address: u64,
    round: u64,
    attached: Option<DeviceQp>,
}

impl Cuda {
    fn start(&mut self, list: &[Request]) -> Result<(), Failure> {
        let qp = self.attached.as_ref().ok_or("the queue pair is not attached")?.data();
        self.round += 1;
        let requests = self.memory.words64().chunks_exact(REQUEST);
        for (place, request) in requests.zip(list) {
            let words = match request {
                Request::Send { slice, address, key } => {
                    [*address, 0, u64::from(*key) | (slice.len() as u64) << 32, 0]
                }
                Request::Put { to, value } => [to.addr, *value, u64::from(to.rkey) | 8 << 32, 1],
            };
            place.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Release));
        }
        let (count, outcome) = (list.len() as u64, self.address + (MOST * REQUEST * 8) as u64);
        let mut launch = self.queue.launch_builder(&self.posts);
        launch.arg(&qp).arg(&self.address).arg(&count).arg(&outcome).arg(&self.round);
        let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
        // SAFETY: these are the kernel's parameters. The queue pair is attached until the kernel has ended (`detach`),
        // and `memory` is alive: gdsync frees memory known to a GPU only while the GPU's streams are idle.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    fn outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        let word = |index: usize| self.memory.words64()[MOST * REQUEST + index].load(Ordering::Acquire);
        if word(2) != self.round {
            return Ok(None);
        }
        match word(0) {
            OK => Ok(Some(Ok(()))),
            FAILED => {
                let error = self.attached.as_ref().map(DeviceQp::progress).transpose()?;
                Ok(Some(Err(error.and_then(|progress| progress.error).unwrap_or(FLUSHED))))
            }
            status => Err(format!("a kernel has ended with status {status}, error {:#x}", word(1)).into()),
        }
    }
}

struct Thread {
    stream: SoftStream,
    outcome: Arc<Mutex<Option<Result<Outcome, String>>>>,
}

impl Thread {
    fn start(&mut self, queue_pair: Arc<QueuePair>, list: Vec<Request>) -> Result<(), Failure> {
        let place = self.outcome.clone();
        self.stream.launch(move || {
            let outcome = perform(&queue_pair, &list).map_err(|error| error.to_string());
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        })?;
        Ok(())
    }

    fn outcome(&mut self) -> Result<Option<Outcome>, Failure> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(outcome.transpose()?)
    }
}

/// Posts a list, and waits until it has completed.
fn perform(queue_pair: &QueuePair, list: &[Request]) -> Result<Outcome, Failure> {
    let (mut outcome, mut refused) = (Ok(()), Ok(()));
    let mut posted = 0;
    for request in list {
        let done = match request {
            Request::Send { slice, .. } => {
                queue_pair.post_send(WorkRequest::send(std::slice::from_ref(slice)))
            }
            Request::Put { to, value } => {
                queue_pair.post_send(WorkRequest::write_inline(&value.to_ne_bytes(), *to))
            }
        };
        if let Err(error) = done {
            if queue_pair.failure().is_none() {
                return Err(error.into());
            }
            refused = Err(FLUSHED);
            break;
        }
        posted += 1;
    }
    let start = Instant::now();
    while posted > 0 {
        match queue_pair.send_cq().poll()? {
            Some(completion) => {
                posted -= 1;
                outcome = outcome.and(completion.status);
            }
            None if start.elapsed() > LONG => return Err(format!("{posted} requests never completed").into()),
            None => std::thread::yield_now(),
        }
    }
    Ok(outcome.and(refused))
}
