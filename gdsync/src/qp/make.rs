//! Making queue pairs, whatever drives and releases them.

use crate::memory::spans::{Kind, Span};
use crate::qp::create::{self, QpObject, Role};
use crate::qp::domain::{Maker, QueueDomain};
use crate::qp::shared_receives::Sharing;
use crate::qp::trigger::TriggerInner;
use crate::qp::{
    CompletionQueue, CompletionQueueInner, QpState, QueuePair, QueuePairConfig, QueuePairInner,
    SharedReceiveQueue, Trigger, next_psn, status,
};
use crate::queue::QueueParts;
use crate::queue::recv::RecvState;
use crate::queue::regions::KnownRegions;
use crate::queue::request::{Limits, MAX_COUNT};
use crate::queue::send::{Handover, SendState};
use crate::verbs::events::EventSink;
use crate::verbs::{
    Access, DeviceAttributes, DeviceInner, DevxError, Error, GidEntry, Mtu, PortAttributes, ProtectionDomain,
    QueueApi, QueuePairError, Transport,
};
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
        if config.transport == Transport::Dc {
            if config.shared_receives.is_some() {
                return Err(Error::QueuePair(QueuePairError::InitiatorOnly));
            }
            if config.trigger.is_some() {
                return Err(Error::QueuePair(QueuePairError::NotTriggered));
            }
            config.connections.check(device.attributes()?.max_reads)?;
        }
        if let Some(trigger) = config.trigger {
            return Self::triggered(pd, config, trigger);
        }
        Self::in_role(pd, config, Role::Plain)
    }

    /// A queue pair whose sends a trigger releases; left in the state RESET.
    fn triggered(
        pd: &ProtectionDomain,
        config: QueuePairConfig<'_>,
        trigger: &Trigger,
    ) -> Result<Self, Error> {
        if !trigger.inner.pd.is(&pd.inner) {
            return Err(Error::QueuePair(QueuePairError::OtherDomain));
        }
        let Some(master) = &trigger.inner.master else {
            // A WAIT in front of each send.
            return Self::in_role(pd, config.send_depth(config.send_depth.saturating_mul(2)), Role::Plain);
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

    /// Makes a queue pair; left in the state RESET.
    fn in_role(pd: &ProtectionDomain, config: QueuePairConfig<'_>, role: Role) -> Result<Self, Error> {
        let maker =
            if config.queues == QueueApi::Verbs { role.maker(&pd.inner.device) } else { config.queues };
        let domain = QueueDomain::new(&pd.inner, maker, config.placement, true)?;
        Self::in_domain(domain, config, role)
    }

    /// Makes a queue pair in a domain; left in the state RESET.
    pub(crate) fn in_domain(
        domain: Arc<QueueDomain>,
        config: QueuePairConfig<'_>,
        role: Role,
    ) -> Result<Self, Error> {
        if let Maker::Devx(devx) = &domain.maker {
            if config.shared_receives.is_some() {
                return Err(Error::Devx(DevxError::NoSharedReceives));
            }
            if config.transport == Transport::Dc {
                return Err(Error::Devx(DevxError::NoDc));
            }
            devx.check(&config)?;
        }
        // Every work request may complete, even an unsignaled one if it fails; and the slots that a
        // stream still has to look at come on top.
        let own = |depth: u32| {
            let queue = CompletionQueueInner::make(&domain, depth.max(1).saturating_mul(2), None)?;
            queue.company.own();
            Ok::<_, Error>(queue)
        };
        let queue = |shared: Option<&CompletionQueue>, depth| match shared {
            Some(queue) => {
                queue.inner.share()?;
                Ok(queue.inner.clone())
            }
            None => own(depth),
        };
        let send_cq = queue(config.send_cq, config.send_depth)?;
        let recv_depth = match config.shared_receives {
            Some(receives) => receives.inner.credits().capacity(),
            None => config.recv_depth,
        };
        let recv_cq = match config.transport {
            // It has no receives, but verbs want a queue for them.
            Transport::Dc => send_cq.clone(),
            _ => queue(config.recv_cq, recv_depth)?,
        };
        let sharing = |receives: &SharedReceiveQueue| Sharing::new(&receives.inner, &recv_cq);
        let shared = config.shared_receives.map(sharing).transpose()?;
        let trigger = config.trigger.map(|trigger| trigger.inner.clone());
        let place = Place::of(&domain.pd.device, config.port, config.gid_index)?;
        let made = create::make(&domain, &config, [&send_cq, &recv_cq], shared.as_ref(), role)?;
        let queues = [send_cq, recv_cq];
        Ok(Parts { domain, config: config.to_static(), queues, shared, trigger, role }.assemble(place, made))
    }
}

/// The port of a queue pair, and what its device can do.
pub(super) struct Place {
    pub(super) port: PortAttributes,
    pub(super) gid: GidEntry,
    pub(super) abilities: DeviceAttributes,
}

impl Place {
    pub(super) fn of(device: &DeviceInner, port: u8, gid_index: Option<u32>) -> Result<Self, Error> {
        Ok(Place {
            port: device.active_port(port)?,
            gid: device.choose_gid(port, gid_index)?,
            abilities: device.attributes()?,
        })
    }
}

/// What a queue pair has besides its own queues.
pub(super) struct Parts {
    pub(super) domain: Arc<QueueDomain>,
    pub(super) config: QueuePairConfig<'static>,
    /// Of sends, and of receives.
    pub(super) queues: [Arc<CompletionQueueInner>; 2],
    pub(super) shared: Option<Sharing>,
    pub(super) trigger: Option<Arc<TriggerInner>>,
    pub(super) role: Role,
}

impl Parts {
    /// In the state in which the object is: RESET, but for a target.
    pub(super) fn assemble(self, place: Place, (object, made): (QpObject, QueueParts)) -> QueuePair {
        let Parts { domain, config, queues: [send_cq, recv_cq], shared, trigger, role } = self;
        let Place { port, gid, abilities } = place;
        let device = domain.pd.device.clone();
        let QueueParts { number, sq, rq, register, .. } = made;
        let combined = domain.placement.work_is_combined();
        let (sq, rq) = (sq.write_combined(combined), rq.map(|rq| rq.write_combined(combined)));
        let handover = match (&trigger, role) {
            (None, _) => Handover::Doorbells,
            (Some(_), Role::Slave) => Handover::Master,
            (Some(_), _) => Handover::Waits,
        };
        let send = SendState::new(sq, number, register).handed_over(handover);
        status::made(&device.name, &gid, number, register.get());
        let page = register.get() & !(UAR_PAGE as u64 - 1);
        // The page stays as long as the domain, which the span holds until no device has the page
        // mapped.
        let keep = domain.clone();
        let kind = Kind::Registers { mmio: device.api.provider != Provider::Software };
        let announce = || Span::announce(page, UAR_PAGE as u64, kind, Box::new(move || drop(keep)));
        let registers = (!matches!(object, QpObject::Target(_))).then(announce);
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
                    _ => port.max_message.min(MAX_COUNT).into(),
                },
                transport: config.transport,
                atomics: abilities.atomics,
            },
            recv_segments: made.recv_segments,
            status: Mutex::new(QpState::Initialised),
            is_ready: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            known: KnownRegions::new(send.keeper()),
            send: SpinMutex::new(send),
            recv: Mutex::new(RecvState::new(rq)),
            shared,
            is_watched: AtomicBool::new(false),
            send_cq,
            recv_cq,
            trigger,
            _registers: registers,
            domain,
        });
        inner.send_cq.attach(&inner);
        inner.recv_cq.attach(&inner);
        // The list holds it weakly.
        let sink: Arc<dyn EventSink> = inner.clone();
        device.queue_pairs.add(Arc::downgrade(&sink));
        QueuePair { inner }
    }
}
