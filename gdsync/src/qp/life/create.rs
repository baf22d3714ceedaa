//! Making a queue pair with its completion queues, and destroying it in the right order.

use crate::memory::spans::{Span, SpanKind};
use crate::qp::card::trigger::{Trigger, TriggerInner};
use crate::qp::life::state::Life;
use crate::qp::make::devx::check_sizes;
use crate::qp::make::{self, Maker, QpObject, QueueDomain, Role};
use crate::qp::post::shared::{SharedReceiveQueue, SrqAttachment};
use crate::qp::{CompletionQueue, CompletionQueueInner, QueuePair, QueuePairConfig, QueuePairInner};
use crate::queue::WorkQueues;
use crate::queue::recv::RecvState;
use crate::queue::regions::KnownRegions;
use crate::queue::request::{Limits, MAX_COUNT};
use crate::queue::send::{Handover, SendState};
use crate::verbs::events::EventSink;
use crate::verbs::{
    DeviceAttributes, DeviceInner, DevxError, Error, GidEntry, Mtu, PortAttributes, ProtectionDomain,
    QueueApi, QueuePairError, Transport,
};
use gdsync_sys::api::Provider;
use gdsync_sys::prm::doorbell::UAR_PAGE;
use gdsync_trace::{EventKind, event};
use parking_lot::Mutex;
use spin::mutex::SpinMutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub(crate) fn in_reset(pd: &ProtectionDomain, config: QueuePairConfig<'_>) -> Result<QueuePair, Error> {
    let device = &pd.inner.device;
    let mut shared = [config.send_cq, config.recv_cq].into_iter().flatten();
    let other_receives =
        config.shared_receives.is_some_and(|receives| !Arc::ptr_eq(&receives.inner.pd().device, device));
    if other_receives || shared.any(|queue| !Arc::ptr_eq(&queue.inner.device, device)) {
        return Err(Error::QueuePair(QueuePairError::OtherDevice { device: device.name.to_owned() }));
    }
    if config.transport == Transport::Dc {
        if config.shared_receives.is_some() {
            return Err(Error::QueuePair(QueuePairError::DcInitiatorCannotReceive));
        }
        if config.trigger.is_some() {
            return Err(Error::QueuePair(QueuePairError::NotTriggered));
        }
        config.connections.check(device.attributes()?.max_reads)?;
    }
    if let Some(trigger) = config.trigger {
        return triggered(pd, config, trigger);
    }
    in_role(pd, config, Role::Plain).map_err(|error| name_limit(error, device, &config))
}

/// Has the error of a provider that refuses a queue pair name the limit that is exceeded, if one is.
fn name_limit(error: Error, device: &DeviceInner, config: &QueuePairConfig<'_>) -> Error {
    match &error {
        Error::Verbs { source, .. } if matches!(source.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM)) => {
            let exceeded = device.attributes().and_then(|limits| check_sizes(config, &limits));
            exceeded.err().filter(|named| matches!(named, Error::OutOfRange(_))).unwrap_or(error)
        }
        _ => error,
    }
}

/// Makes a queue pair in the state RESET whose sends a trigger releases.
fn triggered(
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    trigger: &Trigger,
) -> Result<QueuePair, Error> {
    if !trigger.inner.pd.is(&pd.inner) {
        return Err(Error::QueuePair(QueuePairError::OtherDomain));
    }
    let Some(master) = &trigger.inner.master else {
        // Room for a WAIT in front of each send.
        return in_role(pd, config.send_depth(config.send_depth.saturating_mul(2)), Role::Plain);
    };
    master.ensure_queue(pd, config.port)?;
    let slave = in_role(pd, config, Role::Slave)?;
    master.add_slave(&slave.inner);
    Ok(slave)
}

pub(crate) fn in_role(
    pd: &ProtectionDomain,
    config: QueuePairConfig<'_>,
    role: Role,
) -> Result<QueuePair, Error> {
    let maker = if config.queues == QueueApi::Verbs { role.maker(&pd.inner.device) } else { config.queues };
    let domain = QueueDomain::new(&pd.inner, maker, config.placement, true)?;
    in_domain(domain, config, role)
}

/// Makes a queue pair in the state RESET in a domain.
pub(crate) fn in_domain(
    domain: Arc<QueueDomain>,
    config: QueuePairConfig<'_>,
    role: Role,
) -> Result<QueuePair, Error> {
    if let Maker::Devx(devx) = &domain.maker {
        if config.shared_receives.is_some() {
            return Err(Error::Devx(DevxError::NoSharedReceives));
        }
        if config.transport == Transport::Dc {
            return Err(Error::Devx(DevxError::NoDc));
        }
        devx.check(&config)?;
    }
    // Every work request may complete, even an unsignaled one if it fails. The other half is for entries that a
    // stream has not read yet.
    let own = |depth: u32| {
        let queue = CompletionQueueInner::make(&domain, depth.max(1).saturating_mul(2), None)?;
        queue.sharing.own();
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
        // It has no receives, but verbs need a queue for them.
        Transport::Dc => send_cq.clone(),
        _ => queue(config.recv_cq, recv_depth)?,
    };
    let sharing = |receives: &SharedReceiveQueue| SrqAttachment::new(&receives.inner, &recv_cq);
    let shared = config.shared_receives.map(sharing).transpose()?;
    let trigger = config.trigger.map(|trigger| trigger.inner.clone());
    let port = PortContext::of(&domain.pd.device, config.port, config.gid_index)?;
    let srq = shared.as_ref().map(|shared| shared.receives.raw());
    // SAFETY: the queue pair keeps these queues, which are of its device, and drops them last.
    let made =
        unsafe { make::queue_pair(&domain, &config, [send_cq.handle(), recv_cq.handle()], srq, role) }?;
    let queues = [send_cq, recv_cq];
    Ok(NewQueuePair { domain, config: config.to_static(), queues, shared, trigger, role }
        .assemble(port, made))
}

pub(super) struct PortContext {
    pub(super) port: PortAttributes,
    pub(super) gid: GidEntry,
    pub(super) abilities: DeviceAttributes,
}

impl PortContext {
    pub(super) fn of(device: &DeviceInner, port: u8, gid_index: Option<u32>) -> Result<Self, Error> {
        Ok(PortContext {
            port: device.active_port(port)?,
            gid: device.choose_gid(port, gid_index)?,
            abilities: device.attributes()?,
        })
    }
}

/// A queue pair that is being made, without its own queues.
pub(super) struct NewQueuePair {
    pub(super) domain: Arc<QueueDomain>,
    pub(super) config: QueuePairConfig<'static>,
    pub(super) queues: [Arc<CompletionQueueInner>; 2],
    pub(super) shared: Option<SrqAttachment>,
    pub(super) trigger: Option<Arc<TriggerInner>>,
    pub(super) role: Role,
}

impl NewQueuePair {
    /// Assembles the queue pair, in the state of the object: RESET, except for a target.
    pub(super) fn assemble(self, context: PortContext, (object, made): (QpObject, WorkQueues)) -> QueuePair {
        let NewQueuePair { domain, config, queues: [send_cq, recv_cq], shared, trigger, role } = self;
        let PortContext { port, gid, abilities } = context;
        let device = domain.pd.device.clone();
        let WorkQueues { number, sq, rq, register, .. } = made;
        let combined = domain.placement.work_is_combined();
        let (sq, rq) = (sq.write_combined(combined), rq.map(|rq| rq.write_combined(combined)));
        let handover = match (&trigger, role) {
            (None, _) => Handover::Doorbells,
            (Some(_), Role::Slave) => Handover::Master,
            (Some(_), _) => Handover::Waits,
        };
        let send = SendState::new(sq, number, register).handed_over(handover);
        gdsync_trace::name_card(node(&gid), &device.name);
        event(EventKind::QueuePair, || [register.get(), u64::from(node(&gid)) << 32 | u64::from(number), 0]);
        let page = register.get() & !(UAR_PAGE as u64 - 1);
        // The page stays as long as the domain, which the span holds until no device maps the page.
        let keep = domain.clone();
        let kind = SpanKind::Registers { mmio: device.api.provider != Provider::Software };
        let announce = || Span::announce(page, UAR_PAGE as u64, kind, Box::new(move || drop(keep)));
        let registers = (!matches!(object, QpObject::Target(_))).then(announce);
        let inner = Arc::new(QueuePairInner {
            object,
            number,
            gid,
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
            life: Life::new(number),
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

/// Returns the low 16 bits of a card's node in the fabric, with which its GID ends.
fn node(gid: &GidEntry) -> u32 {
    let [.., high, low] = gid.gid.0;
    u16::from_be_bytes([high, low]).into()
}

impl Drop for QueuePairInner {
    fn drop(&mut self) {
        if let Some((trigger, master)) = self.master() {
            // Before its number can be reused: a release would reach the number's new owner.
            master.remove_slave(trigger, self.number);
        }
        // Before the number can be reused, so that its entries are not mistaken for the new owner's.
        let (mut completions, mut arrivals) = self.send_cq.lock_both(&self.recv_cq);
        // The number of a closed target may have a new owner.
        let is_closed = self.is_target() && self.object.verbs().is_none();
        // Every prepared send and batch in flight holds an `Arc` of this, so none is left. After this, the card
        // accesses neither the rings nor the memory of work requests; fields drop afterwards.
        self.object.destroy();
        let (sends, receives) = (self.send().outstanding(), self.recv.lock().len());
        (0..sends.entries).for_each(|i| completions.unreserve(i < sends.signaled));
        (0..receives).for_each(|_| arrivals.as_mut().unwrap_or(&mut completions).unreserve(true));
        for (queue, state) in [(&self.send_cq, Some(&mut completions)), (&self.recv_cq, arrivals.as_mut())] {
            let Some(state) = state else { continue };
            if is_closed {
                queue.unlist(self.number);
                continue;
            }
            for receive in queue.detach(state, self.number) {
                // Polling does not return it, so its entry is free.
                self.shared.as_ref().and_then(|shared| shared.receives.retire(receive));
            }
        }
    }
}
