//! The tools of steps: a card, pairs of queue pairs, and notes of facts.

use super::masks::masked;
use super::record::{Fact, Layout, Value};
use gdsync::verbs::PortAttributes;
use gdsync::{
    Access, Completion, CompletionQueue, ConnectOptions, Device, MemoryRegion, PinnedMemory,
    ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest,
};
use gdsync_cli::failure::Failure;
use gdsync_cli::hca::{self, Hca};
use gdsync_sys::prm::command::{qp, qpc};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Time within which a completion or an event that must come has to come.
const PATIENCE: Duration = Duration::from_secs(6);

/// The options of a step's process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    pub(super) step: String,
    pub(super) hca: Option<Hca>,
    pub(super) gpu: Option<u32>,
}

/// The error of a step that cannot run here.
#[derive(Clone, Debug)]
pub(super) struct CannotRun {
    pub(super) why: String,
    pub(super) remedy: &'static str,
}

impl std::fmt::Display for CannotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.why, self.remedy)
    }
}

impl std::error::Error for CannotRun {}

pub(super) fn cannot_run(why: impl Into<String>, remedy: &'static str) -> Failure {
    CannotRun { why: why.into(), remedy }.into()
}

pub(super) struct Probe {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) port: u8,
    gpu: Option<u32>,
}

/// Two connected queue pairs of one card, and a region of each side.
pub(super) struct Pair {
    pub(super) left: QueuePair,
    pub(super) right: QueuePair,
    pub(super) source: MemoryRegion,
    pub(super) target: MemoryRegion,
}

/// Bytes of a pair's regions.
pub(super) const REGION: usize = 64 << 10;
/// Content of source and target regions at first.
pub(super) const SENT: u8 = 0x5a;
pub(super) const UNTOUCHED: u8 = 0xee;

pub(super) fn everything() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

impl Probe {
    pub(super) fn new(assignment: &Assignment) -> Result<Self, Failure> {
        let (api, name, port) = hca::system(assignment.hca.as_ref())?;
        let device = Device::open(api, name)?;
        let pd = ProtectionDomain::new(&device)?;
        Ok(Probe { device, pd, port, gpu: assignment.gpu })
    }

    /// Notes a fact. It is on its way to the ladder when this returns, so that a step that hangs loses none.
    pub(super) fn note(&self, name: impl Into<String>, value: impl Into<Value>) -> Result<(), Failure> {
        let fact = Fact { name: name.into(), value: value.into() };
        Ok(writeln!(io::stdout().lock(), "{}", serde_json::to_string(&fact)?)?)
    }

    /// The GPU that the user has named.
    pub(super) fn gpu(&self) -> Result<u32, Failure> {
        self.gpu.ok_or_else(|| cannot_run("no GPU is named", "--gpu N names one"))
    }

    pub(super) fn port_attributes(&self) -> Result<PortAttributes, Failure> {
        Ok(self.device.port(self.port)?)
    }

    pub(super) fn config(&self) -> QueuePairConfig<'static> {
        QueuePairConfig::default().port(self.port).access(everything()).send_depth(32).recv_depth(32)
    }

    pub(super) fn region(&self, access: Access, byte: u8) -> Result<MemoryRegion, Failure> {
        let region = MemoryRegion::allocate(&self.pd, REGION, access)?;
        region.write(0, &[byte; REGION]);
        Ok(region)
    }

    pub(super) fn pair(&self, config: QueuePairConfig<'_>) -> Result<Pair, Failure> {
        self.pair_with(config, ConnectOptions::default())
    }

    pub(super) fn pair_with(
        &self,
        config: QueuePairConfig<'_>,
        options: ConnectOptions,
    ) -> Result<Pair, Failure> {
        let pair = Pair {
            left: QueuePair::new(&self.pd, config)?,
            right: QueuePair::new(&self.pd, config)?,
            source: self.region(everything(), SENT)?,
            target: self.region(everything(), UNTOUCHED)?,
        };
        pair.connect(options)?;
        Ok(pair)
    }

    /// Waits for the next completion of a queue, and notes all of it.
    pub(super) fn completion(&self, what: &str, queue: &CompletionQueue) -> Result<Completion, Failure> {
        let found = within_patience(&format!("a completion of {what}"), || Ok(queue.poll()?))?;
        let note = |field: &str, value: Value| self.note(format!("{what}.{field}"), value);
        note("wr_id", found.wr_id.into())?;
        match found.status {
            Ok(()) => {
                note("status", "success".into())?;
                note("kind", format!("{:?}", found.kind).into())?;
                note("bytes", found.byte_len.into())?;
                found.immediate.map_or(Ok(()), |value| note("immediate", value.into()))?;
            }
            Err(error) => {
                note("status", format!("syndrome {:#04x}", error.syndrome).into())?;
                note("vendor", format!("{:#04x}", error.vendor).into())?;
            }
        }
        if let Some(index) = found.index {
            let layout = if found.status.is_ok() { Layout::Entry } else { Layout::ErrorEntry };
            note("entry", masked(layout, &queue.entry_bytes(index)))?;
        }
        Ok(found)
    }

    /// As [`Self::completion`], for work that must succeed.
    pub(super) fn success(&self, what: &str, queue: &CompletionQueue) -> Result<Completion, Failure> {
        let found = self.completion(what, queue)?;
        found.status.map_err(|error| format!("{what} has failed: {error}"))?;
        Ok(found)
    }

    /// As [`Self::completion`], for work that must fail.
    pub(super) fn failure(&self, what: &str, queue: &CompletionQueue) -> Result<(), Failure> {
        match self.completion(what, queue)?.status {
            Ok(()) => Err(format!("{what} has succeeded, which it must not").into()),
            Err(_) => Ok(()),
        }
    }

    /// Notes a queue pair's context, as the card tells it.
    pub(super) fn context(&self, what: &str, queue_pair: &QueuePair) -> Result<(), Failure> {
        let Some(answer) = queue_pair.context()? else { return Ok(()) };
        let context = &answer[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
        for (name, field) in [
            ("state", qpc::STATE),
            ("service", qpc::ST),
            ("mtu", qpc::MTU),
            ("log_msg_max", qpc::LOG_MSG_MAX),
            ("log_rq_size", qpc::LOG_RQ_SIZE),
            ("log_sq_size", qpc::LOG_SQ_SIZE),
            ("retry_count", qpc::RETRY_COUNT),
            ("rnr_retry", qpc::RNR_RETRY),
            ("rre", qpc::RRE),
            ("rwe", qpc::RWE),
            ("rae", qpc::RAE),
            ("atomic_mode", qpc::ATOMIC_MODE),
            ("min_rnr_nak", qpc::MIN_RNR_NAK),
            ("rq_type", qpc::RQ_TYPE),
        ] {
            self.note(format!("{what}.{name}"), field.get(context))?;
        }
        self.note(format!("{what}.context"), masked(Layout::Context, context))
    }
}

/// Looks until there is something.
pub(super) fn within_patience<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("{what} has not come within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

impl Pair {
    pub(super) fn connect(&self, options: ConnectOptions) -> Result<(), Failure> {
        self.left.connect(&self.right.endpoint()?, options)?;
        Ok(self.right.connect(&self.left.endpoint()?, options)?)
    }

    /// Posts a receive for the whole target region on the right side.
    pub(super) fn receive(&self, wr_id: u64) -> Result<(), Failure> {
        Ok(self.right.post_recv(&[self.target.slice(..)?], wr_id)?)
    }

    /// Posts a request on the left side.
    pub(super) fn post(&self, request: WorkRequest<'_>) -> Result<(), Failure> {
        Ok(self.left.post_send(request)?)
    }

    /// Notes that a request of the left side has succeeded.
    pub(super) fn succeeds(&self, probe: &Probe, what: &str) -> Result<(), Failure> {
        probe.success(what, &self.left.send_cq()).map(drop)
    }

    /// Notes that a request of the left side and the receive that it consumes have succeeded, and checks that the first
    /// bytes of the target region were sent.
    pub(super) fn arrives(&self, probe: &Probe, what: &str, len: usize) -> Result<(), Failure> {
        self.succeeds(probe, what)?;
        probe.success("receive", &self.right.recv_cq())?;
        self.check_target(len)
    }

    /// Checks that the first bytes of the target region are those of the source, and the rest is untouched.
    pub(super) fn check_target(&self, len: usize) -> Result<(), Failure> {
        check(&self.target, 0, len)
    }
}

/// Checks that the memory of a region has `len` bytes that were sent, from `at` on, and untouched ones elsewhere.
pub(super) fn check(region: &PinnedMemory, at: usize, len: usize) -> Result<(), Failure> {
    let mut bytes = vec![0; REGION];
    region.read(0, &mut bytes);
    let wanted = |offset: usize| if (at..at + len).contains(&offset) { SENT } else { UNTOUCHED };
    match bytes.iter().enumerate().find(|(offset, byte)| **byte != wanted(*offset)) {
        None => Ok(()),
        Some((offset, byte)) => {
            Err(format!("byte {offset} is {byte:#04x}, not {:#04x}", wanted(offset)).into())
        }
    }
}
