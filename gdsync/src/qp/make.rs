//! Making queue pairs, whatever drives and releases them.

use super::create;
use super::role::Role;
use super::shared_receives::Sharing;
use super::trigger::{Trigger, TriggerInner};
use super::{
    CompletionQueue, CompletionQueueInner, QpState, QueuePair, QueuePairConfig, QueuePairInner,
    SharedReceiveQueue, next_psn,
};
use crate::memory::spans::{Kind, Span};
use crate::qp::domain::{Maker, QueueDomain};
use crate::queue::QueueParts;
use crate::queue::recv::RecvState;
use crate::queue::request::{Limits, MAX_COUNT};
use crate::queue::send::{Handover, SendState};
use crate::verbs::events::EventSink;
use crate::verbs::{Access, DevxError, Error, Mtu, ProtectionDomain, QueueApi, QueuePairError, Transport};
use gdsync_sys::api::Provider;
use gdsync_sys::prm::doorbell::UAR_PAGE;
use parking_lot::Mutex;
use spin::mutex::SpinMutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

impl QueuePair {
    /// The same, left in the state RESET.
    pub(crate) fn in_reset(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        let device = &pd.inner.device;
        let mut shared = [config.send_cq, config.recv_cq].into_iter().flatten();
        let other_receives =
            config.shared_receives.is_some_and(|receives| !Arc::ptr_eq(&receives.inner.pd().device, device));
        if other_receives || shared.any(|queue| !Arc::ptr_eq(&queue.inner.device, device)) {
            return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name.to_owned() }));
        }
        if let Some(trigger) = config.trigger {
            return Self::triggered(pd, config, trigger);
        }
        Self::in_domain(QueueDomain::new(&pd.inner, config.queues, config.placement)?, config)
    }

    /// A queue pair whose sends a trigger releases; left in the state RESET.
    fn triggered(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        trigger: &Trigger,
    ) -> Result<Self, Error> {
        if !Arc::ptr_eq(&trigger.inner.pd, &pd.inner) {
            return Err(Error::QueuePair(QueuePairError::OtherDomain));
        }
        let Some(master) = &trigger.inner.master else {
            // A WAIT in front of each send.
            let config = config.send_depth(config.send_depth.saturating_mul(2));
            let domain = QueueDomain::new(&pd.inner, config.queues, config.placement)?;
            return Self::in_domain(domain, config);
        };
        master.ensure(pd, config.port)?;
        let slave = Self::in_role(pd, config, Role::Slave)?;
        master.join(&slave.inner);
        Ok(slave)
    }

    /// Makes a queue pair that releases others, with that many blocks in its send queue and no use of
    /// its receive queue; left in the state RESET.
    pub(crate) fn of_master(pd: &ProtectionDomain, blocks: u32, port: u8) -> Result<Self, Error> {
        let config = QueuePairConfig::default()
            .send_depth(blocks)
            .send_segments(1)
            .inline(0)
            .recv_depth(1)
            .access(Access::empty())
            .port(port);
        Self::in_role(pd, config, Role::Master)
    }

    /// Makes a queue pair that releases others, or is released; left in the state RESET.
    fn in_role(pd: &ProtectionDomain, config: QueuePairConfig<'_>, role: Role) -> Result<Self, Error> {
        let maker =
            if config.queues == QueueApi::Verbs { role.maker(&pd.inner.device) } else { config.queues };
        let domain = QueueDomain::new(&pd.inner, maker, config.placement)?;
        Self::in_domain_as(domain, config, role)
    }

    /// Makes a queue pair in a domain; left in the state RESET.
    pub(crate) fn in_domain(domain: Arc<QueueDomain>, config: QueuePairConfig<'_>) -> Result<Self, Error> {
        Self::in_domain_as(domain, config, Role::Plain)
    }

    fn in_domain_as(
        domain: Arc<QueueDomain>,
        config: QueuePairConfig<'_>,
        role: Role,
    ) -> Result<Self, Error> {
        if let Maker::Devx(devx) = &domain.maker {
            if config.shared_receives.is_some() {
                return Err(Error::Devx(DevxError::NoSharedReceives));
            }
            devx.check(&config)?;
        }
        // Every work request may complete, even an unsignaled one if it fails; and the slots that a
        // stream still has to look at come on top.
        let own = |depth: u32| CompletionQueueInner::make(&domain, depth.max(1).saturating_mul(2), None);
        let queue = |shared: Option<&CompletionQueue>, depth| match shared {
            Some(queue) => Ok(queue.inner.clone()),
            None => own(depth),
        };
        let send_cq = queue(config.send_cq, config.send_depth)?;
        let recv_depth = match config.shared_receives {
            Some(receives) => receives.inner.credits().capacity(),
            None => config.recv_depth,
        };
        let recv_cq = queue(config.recv_cq, recv_depth)?;
        let sharing = |receives: &SharedReceiveQueue| Sharing::new(&receives.inner, &recv_cq);
        let shared = config.shared_receives.map(sharing).transpose()?;
        let trigger = config.trigger.map(|trigger| trigger.inner.clone());
        Self::complete_to(domain, config.to_static(), [send_cq, recv_cq], shared, trigger, role)
    }

    /// In the state in which the provider makes it: RESET.
    fn complete_to(
        domain: Arc<QueueDomain>,
        config: QueuePairConfig<'static>,
        [send_cq, recv_cq]: [Arc<CompletionQueueInner>; 2],
        shared: Option<Sharing>,
        trigger: Option<Arc<TriggerInner>>,
        role: Role,
    ) -> Result<Self, Error> {
        let device = domain.pd.device.clone();
        let port = device.active_port(config.port)?;
        let gid = device.choose_gid(config.port, config.gid_index)?;
        let abilities = device.attributes()?;
        let (object, made) = create::make(&domain, &config, [&send_cq, &recv_cq], shared.as_ref(), role)?;
        let QueueParts { number, sq, rq, register, .. } = made;
        let combined = domain.placement.work_is_combined();
        let (sq, rq) = (sq.write_combined(combined), rq.map(|rq| rq.write_combined(combined)));
        let handover = match (&trigger, role) {
            (None, _) => Handover::Doorbells,
            (Some(_), Role::Slave) => Handover::Master,
            (Some(_), _) => Handover::Waits,
        };
        let send = SendState::new(sq, number, register).handed_over(handover);
        let page = register.get() & !(UAR_PAGE as u64 - 1);
        // The page stays as long as the domain, which the span holds until no device has the page
        // mapped.
        let keep = domain.clone();
        let kind = Kind::Registers { mmio: device.api.provider != Provider::Software };
        let registers = Span::announce(page, UAR_PAGE as u64, kind, Box::new(move || drop(keep)));
        let inner = Arc::new(QueuePairInner {
            object,
            number,
            gid,
            psn: AtomicU32::new(next_psn()),
            config,
            limits: Limits {
                segments: made.send_segments,
                inline: made.inline,
                message: match config.transport {
                    Transport::Ud => port.mtu.unwrap_or(Mtu::Bytes256).bytes().into(),
                    Transport::Rc | Transport::Uc => port.max_message.min(MAX_COUNT).into(),
                },
                transport: config.transport,
                atomics: abilities.atomics,
                invalidation: abilities.send_invalidate,
            },
            recv_segments: made.recv_segments,
            status: Mutex::new(QpState::Initialised),
            connected: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            send: SpinMutex::new(send),
            recv: Mutex::new(RecvState::new(rq)),
            shared,
            is_watched: AtomicBool::new(false),
            send_cq,
            recv_cq,
            trigger,
            starts: AtomicU32::new(0),
            _registers: registers,
            domain,
        });
        inner.send_cq.attach(&inner);
        inner.recv_cq.attach(&inner);
        // The list holds it weakly.
        let sink: Arc<dyn EventSink> = inner.clone();
        device.queue_pairs.add(Arc::downgrade(&sink));
        Ok(QueuePair { inner })
    }
}
