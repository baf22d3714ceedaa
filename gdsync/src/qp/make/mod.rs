//! Device objects: queue pairs and completion queues, made by verbs or by commands (DEVX), in a domain that
//! supplies doorbell registers and queue memory.

pub(crate) mod devx;
pub(super) mod verbs;

use self::verbs::ParentDomain;
use crate::cuda::QueuePlacement;
use crate::memory::HostAddr;
use crate::qp::QueuePairConfig;
use crate::queue::{Ring, WorkQueues};
use crate::verbs::{DeviceInner, DevxError, Error, Owned, ProtectionDomainInner, QueueApi};
use gdsync_sys::api::Provider;
use gdsync_sys::mlx5dv;
use gdsync_sys::verbs::{ibv_comp_channel, ibv_cq, ibv_qp, ibv_srq};
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::Arc;

/// The domain of one queue pair's queues, or of one shared completion queue.
#[derive(Debug)]
pub(crate) struct QueueDomain {
    pub(crate) maker: Maker,
    pub(crate) placement: QueuePlacement,
    pub(crate) pd: Arc<ProtectionDomainInner>,
}

#[derive(Debug)]
pub(crate) enum Maker {
    Verbs(ParentDomain),
    Devx(devx::Domain),
}

impl QueueDomain {
    /// Makes a domain, with a doorbell register unless it is for a completion queue only. Commands need a page of
    /// registers for a completion queue, too.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomainInner>,
        maker: QueueApi,
        placement: QueuePlacement,
        has_register: bool,
    ) -> Result<Arc<Self>, Error> {
        let maker = match api_for(pd, maker, placement) {
            QueueApi::Verbs => Maker::Verbs(ParentDomain::new(pd, placement, has_register)?),
            QueueApi::Devx => Maker::Devx(devx::Domain::new(pd, placement)?),
        };
        Ok(Arc::new(QueueDomain { maker, placement, pd: pd.clone() }))
    }
}

/// Returns the interface that can make the queues: for queues made by verbs, the kernel pins host pages, and takes
/// no other memory.
fn api_for(pd: &ProtectionDomainInner, asked: QueueApi, placement: QueuePlacement) -> QueueApi {
    let has_kernel = pd.device.api.provider != Provider::Software;
    if has_kernel && placement.wants_gpu() { QueueApi::Devx } else { asked }
}

/// The role of a queue pair in releases by SEND_EN, for which queue pairs must be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Plain,
    /// Releases sends of others.
    Master,
    /// Another queue pair releases its sends.
    Slave,
}

impl Role {
    /// Returns the interface that makes it. Only verbs of this process's software card have flags for it.
    pub(crate) fn maker(self, device: &DeviceInner) -> QueueApi {
        let has_flags = device.api.provider == Provider::Software;
        if self == Role::Plain || has_flags { QueueApi::Verbs } else { QueueApi::Devx }
    }

    pub(crate) fn flag(self) -> u32 {
        match self {
            Role::Plain => 0,
            Role::Master => mlx5dv::SOFTWARE_QP_CREATE_MASTER,
            Role::Slave => mlx5dv::SOFTWARE_QP_CREATE_SLAVE_SEND,
        }
    }
}

/// A queue pair as its maker knows it. Destroyed when dropped.
#[derive(Debug)]
pub(crate) enum QpObject {
    Verbs(Owned<ibv_qp>),
    Devx(devx::Qp),
    /// A DC target, which is closed by destroying it: none then.
    Target(Mutex<Option<Owned<ibv_qp>>>),
}

impl QpObject {
    /// Returns the verbs object; none for a queue pair made by commands.
    pub(crate) fn verbs(&self) -> Option<NonNull<ibv_qp>> {
        match self {
            QpObject::Verbs(qp) => Some(qp.raw()),
            QpObject::Devx(_) => None,
            QpObject::Target(qp) => qp.lock().as_ref().map(Owned::raw),
        }
    }

    pub(super) fn destroy(&mut self) {
        *self = QpObject::Target(Mutex::default());
    }
}

/// A completion queue as the maker of a queue pair names it.
#[derive(Clone, Copy)]
pub(super) struct CqHandle {
    pub(super) number: u32,
    pub(super) verbs: Option<NonNull<ibv_cq>>,
}

/// Makes a queue pair, in the state RESET. With a shared receive queue, it has no receive queue of its own.
///
/// # Safety
/// The completion queues and the shared receive queue belong to the domain's device, and outlive the queue pair.
pub(super) unsafe fn queue_pair(
    domain: &QueueDomain,
    config: &QueuePairConfig<'_>,
    [send_cq, recv_cq]: [CqHandle; 2],
    shared: Option<NonNull<ibv_srq>>,
    role: Role,
) -> Result<(QpObject, WorkQueues), Error> {
    match &domain.maker {
        Maker::Verbs(parent) => {
            let known = |queue: CqHandle| queue.verbs.ok_or(DevxError::CqMadeByDevx { cqn: queue.number });
            // SAFETY: the caller's.
            unsafe {
                verbs::queue_pair(domain, parent, config, [known(send_cq)?, known(recv_cq)?], shared, role)
            }
        }
        Maker::Devx(devx) => {
            let (qp, queues) = devx::Qp::make(devx, config, (send_cq.number, recv_cq.number), role)?;
            Ok((QpObject::Devx(qp), queues))
        }
    }
}

/// A completion queue as its maker knows it. Destroyed when dropped. The queue pairs that complete there hold the
/// queue, so they were destroyed before.
#[derive(Debug)]
pub(crate) enum CqObject {
    Verbs(Owned<ibv_cq>),
    Devx(#[expect(dead_code, reason = "it is dropped with the queue")] devx::Cq),
}

/// A completion queue that was just made. The ring and the words that arm it must not outlive the object.
pub(super) struct NewCq {
    pub(super) object: CqObject,
    pub(super) number: u32,
    pub(super) ring: Ring,
    pub(super) arm: Option<ArmWords>,
}

/// The record and the register that arm a completion queue.
#[derive(Debug)]
pub(super) struct ArmWords {
    pub(super) record: HostAddr,
    pub(super) register: HostAddr,
    /// Makes [`ArmWords::new`] the only constructor.
    _valid: (),
}

impl ArmWords {
    /// # Safety
    /// The record and the register arm one completion queue, are aligned, and stay valid as long as this and its copies.
    pub(super) unsafe fn new(record: *mut u32, register: *mut u8) -> Self {
        ArmWords { record: HostAddr(record as u64), register: HostAddr(register as u64), _valid: () }
    }
}

/// Makes a completion queue of at least `entries` entries. Commands make none with a channel.
///
/// # Safety
/// The channel belongs to the domain's device, and outlives the completion queue.
pub(super) unsafe fn completion_queue(
    domain: &QueueDomain,
    entries: u32,
    channel: Option<*mut ibv_comp_channel>,
) -> Result<NewCq, Error> {
    let cq = match &domain.maker {
        // SAFETY: the caller's.
        Maker::Verbs(parent) => unsafe { verbs::completion_queue(domain, parent, entries, channel) }?,
        Maker::Devx(_) if channel.is_some() => return Err(Error::Devx(DevxError::NoChannel)),
        Maker::Devx(devx) => {
            let (cq, ring) = devx::Cq::new(devx, entries)?;
            NewCq { number: cq.number(), object: CqObject::Devx(cq), ring, arm: None }
        }
    };
    Ok(NewCq { ring: cq.ring.write_combined(domain.placement.completions_are_combined()), ..cq })
}
