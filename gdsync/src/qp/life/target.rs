//! DC targets, where the requests of DC queue pairs arrive.

use crate::memory::HostAddr;
use crate::qp::life::connect::{endpoint, ready_to_receive};
use crate::qp::life::create::{NewQueuePair, PortContext};
use crate::qp::make::verbs::refusal;
use crate::qp::make::{QpObject, QueueDomain, Role};
use crate::qp::post::shared::SrqAttachment;
use crate::qp::{CompletionQueue, CompletionQueueInner, QueuePair, QueuePairConfig, SharedReceiveQueue};
use crate::queue::{FailureCause, Ring, WorkQueues};
use crate::util::options::options;
use crate::verbs::{
    Access, ConnectOptions, DEFAULT_PORT, DevxError, Endpoint, Error, Owned, ProtectionDomain, QueueApi,
    QueuePairError, Transport, call,
};
use gdsync_sys::mlx5dv::{self, mlx5dv_qp_init_attr};
use gdsync_sys::verbs::{self, ibv_qp_attr, ibv_qp_init_attr_ex};
use parking_lot::Mutex;
use std::sync::Arc;

/// A target of dynamically connected transport (DC). Any number of DC queue pairs
/// ([`Transport::Dc`](crate::verbs::Transport::Dc)) that know its number and key write and read the memory of its
/// protection domain, and send into the receives of its shared queue. A rank of a large job needs one target and a
/// few DC queue pairs; with reliable connections, it needs a queue pair for each other rank.
///
/// Receives complete in its completion queue, with its number ([`Completion::qp_num`](crate::Completion::qp_num)).
/// A message must carry all that the receiver needs to know about the sender.
///
/// # Failure
/// A refused request (wrong access key or rkey, receive too short) fails the queue pair that has sent it, and the
/// target serves the others; a receive that was too short completes with an error. [`Self::abort`] and dropping end
/// the target: later requests are not answered, and fail with [`Syndrome::RetryExceeded`](crate::queue::Syndrome).
/// Waits for receives end as with a [`SharedReceiveQueue`].
///
/// ```
/// use gdsync::qp::{DcTarget, DcTargetConfig, SharedReceiveQueue};
/// use gdsync::verbs::Transport;
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pd = ProtectionDomain::new(&Device::software()?)?;
/// let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
/// let initiator = QueuePair::new(&pd, QueuePairConfig::default().transport(Transport::Dc))?;
/// let mut targets = Vec::new();
/// for key in [0x5eed_0001, 0x5eed_0002] {
///     let receives = SharedReceiveQueue::new(&pd, 16)?;
///     let target = DcTarget::new(&pd, &receives, DcTargetConfig::default().key(key))?;
///     receives.post_recv(&[region.slice(..8)?], key)?;
///     // The target's endpoint has a text form, and the key is told with it.
///     let address = initiator.dc_address(&target.endpoint()?, target.key(), Default::default())?;
///     initiator.post_send(WorkRequest::send_inline(b"message").to_target(&address))?;
///     let arrived = loop {
///         if let Some(completion) = target.recv_cq().poll()? {
///             break completion;
///         }
///     };
///     assert_eq!((arrived.wr_id, arrived.byte_len, arrived.qp_num), (key, 7, target.number()));
///     targets.push(target);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DcTarget {
    /// A target completes, fails and ends as a queue pair does; it sends nothing.
    queue_pair: QueuePair,
    key: u64,
}

options! {
    /// Configuration of a [`DcTarget`].
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct DcTargetConfig
    /// Access key 0, remote reads and writes allowed, port 1, its best GID, and the partition key at index 0.
    default {
        /// Access key: requests without it are refused. It excludes strangers who do not guess it.
        key: u64 = 0,
        /// Access of initiators to memory regions of its protection domain.
        access: Access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        /// Physical port, from 1 on.
        port: u8 = DEFAULT_PORT,
        /// Index of the port's global identifier; by default chosen by the rule of [`crate::Device::choose_gid`].
        gid_index: Option<u32> = None,
        /// Index of the partition key in the port's table.
        pkey_index: u16 = 0,
        /// This side's attributes of the connections to it: path MTU, RNR timer, service level and route.
        connections: ConnectOptions = ConnectOptions::default(),
    }
}

impl DcTarget {
    /// Makes a target, ready for requests.
    ///
    /// # Errors
    /// [`PortError::NotActive`](crate::verbs::PortError::NotActive),
    /// [`PortError::NoGid`](crate::verbs::PortError::NoGid);
    /// [`QueuePairError::NoTransport`](crate::verbs::QueuePairError) if the device has no DC;
    /// [`QueuePairError::OtherDevice`](crate::verbs::QueuePairError) for a shared receive queue of another device;
    /// [`OutOfRange`](crate::verbs::OutOfRange) for an option; [`Error::Verbs`] if the provider refuses.
    pub fn new(
        pd: &ProtectionDomain,
        receives: &SharedReceiveQueue,
        config: DcTargetConfig,
    ) -> Result<Self, Error> {
        let device = &pd.inner.device;
        if !Arc::ptr_eq(&receives.inner.pd().device, device) {
            return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name.to_owned() }));
        }
        let as_queue_pair = QueuePairConfig::default()
            .transport(Transport::Dc)
            .access(config.access)
            .port(config.port)
            .gid_index(config.gid_index)
            .pkey_index(config.pkey_index)
            .connections(config.connections);
        let domain = QueueDomain::new(&pd.inner, QueueApi::Verbs, as_queue_pair.placement, false)?;
        let port = PortContext::of(device, config.port, config.gid_index)?;
        config.connections.check(port.abilities.max_reads)?;
        let entries = receives.inner.credits().capacity().saturating_mul(2);
        let queue = CompletionQueueInner::make(&domain, entries, None)?;
        let sharing = SrqAttachment::new(&receives.inner, &queue)?;
        let made = make(&domain, &as_queue_pair, &port, config.key, &sharing, &queue)?;
        let parts = NewQueuePair {
            domain,
            config: as_queue_pair,
            queues: [queue.clone(), queue],
            shared: Some(sharing),
            trigger: None,
            role: Role::Plain,
        };
        Ok(DcTarget { queue_pair: parts.assemble(port, made), key: config.key })
    }

    /// Returns its number, which requests name.
    pub fn number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Returns the access key that requests need.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Returns its address for initiators: [`QueuePair::dc_address`] takes it together with the key.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the port cannot be queried.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        Ok(Endpoint { psn: 0, ..self.queue_pair.endpoint()? })
    }

    /// Returns the completion queue of its receives.
    pub fn recv_cq(&self) -> CompletionQueue {
        self.queue_pair.recv_cq()
    }

    /// Ends the target for good: the card serves no more requests for it, and every stream that waits for its
    /// receives wakes, once no other queue pair completes there. Unpolled messages are dropped.
    ///
    /// May be called from any thread, and more than once.
    ///
    /// # Errors
    /// None today: a provider that cannot destroy the target is logged.
    pub fn abort(&self) -> Result<(), Error> {
        self.queue_pair.abort()
    }

    /// Returns why it serves no more requests, if it does not.
    pub fn failure(&self) -> Option<FailureCause> {
        self.queue_pair.failure()
    }
}

/// Makes the object, and moves it to RTR, in which it serves requests.
fn make(
    domain: &QueueDomain,
    config: &QueuePairConfig<'_>,
    context: &PortContext,
    key: u64,
    sharing: &SrqAttachment,
    queue: &CompletionQueueInner,
) -> Result<(QpObject, WorkQueues), Error> {
    let device = &domain.pd.device;
    let queue = queue.verbs().ok_or(DevxError::CqMadeByDevx { cqn: queue.number() })?.as_ptr();
    // SAFETY: all-zero bytes are a valid value of this plain C struct.
    let mut attr: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    // It sends nothing, but verbs need a queue for that, too.
    (attr.send_cq, attr.recv_cq) = (queue, queue);
    attr.srq = sharing.receives.raw().as_ptr();
    attr.qp_type = verbs::IBV_QPT_DRIVER;
    (attr.comp_mask, attr.pd) = (verbs::IBV_QP_INIT_ATTR_PD, domain.pd.raw());
    let mut mlx5_attr = mlx5dv_qp_init_attr {
        comp_mask: mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_DC | mlx5dv::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
        create_flags: mlx5dv::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
        ..Default::default()
    };
    mlx5_attr.dc_init_attr.dc_type = mlx5dv::MLX5DV_DCTYPE_DCT;
    mlx5_attr.dc_init_attr.dct_access_key = key;
    // SAFETY: context, domain and queues are alive (held by the caller); both structs are valid.
    let raw = unsafe { (device.api.mlx5dv_create_qp)(device.context(), &mut attr, &mut mlx5_attr) };
    let raw = call::pointer("mlx5dv_create_qp", raw, || "DC target".to_owned())
        .map_err(|error| refusal(error, domain, Transport::Dc))?;
    // SAFETY: it is dropped before the domain in which it is made, and nothing uses it then.
    let object = unsafe { Owned::new(raw, device.api.destroy_qp, "ibv_destroy_qp") };
    let raw = raw.as_ptr();
    let modify = |attr: &mut ibv_qp_attr, mask: u32, step: &str| {
        // SAFETY: the queue pair is alive; the struct is valid.
        let rc = unsafe { (device.api.modify_qp)(raw, attr, mask as libc::c_int) };
        call::status("ibv_modify_qp", rc, || format!("DC target, {step}"))
    };
    let mut init = ibv_qp_attr {
        qp_state: verbs::IBV_QPS_INIT,
        pkey_index: config.pkey_index,
        port_num: config.port,
        qp_access_flags: config.access.bits(),
        ..Default::default()
    };
    let basic = verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | verbs::IBV_QP_ACCESS_FLAGS;
    modify(&mut init, verbs::IBV_QP_STATE | basic, "RESET to INIT")?;
    let own = endpoint(&context.port, &context.gid, 0, 0)?;
    let (mut ready, mask) = ready_to_receive(&context.gid, &own, config.port, &config.connections)?;
    modify(&mut ready, mask | verbs::IBV_QP_MIN_RNR_TIMER, "INIT to RTR")?;
    // SAFETY: alive. libmlx5 knows the number from RTR on, and it never changes then.
    let number = unsafe { (*raw).qp_num };
    let parts = WorkQueues {
        number,
        sq: Ring::none(),
        rq: None,
        register: HostAddr(0),
        send_segments: 0,
        inline: 0,
        recv_segments: 0,
    };
    Ok((QpObject::Target(Mutex::new(Some(object))), parts))
}
