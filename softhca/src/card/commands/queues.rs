//! Commands for completion queues, shared receive queues, queue pairs and their multicast groups.

use super::ends::report_unfinished;
use crate::card::config::{
    Address, CQ, CqAttributes, CqConfig, CqModeration, InvalidValue, LIMITS, PD, QP, QpAttributes, QpChange,
    QpConfig, QpState, SRQ, SrqAttributes, SrqConfig, Transport, XRCD, XrcConfig,
};
use crate::card::device::Card;
use crate::card::engine::Engine;
use crate::card::error::{CardError, missing, within};
use crate::card::memory::ring::{CqRing, Record};
use crate::card::memory::uar::Register;
use crate::card::port::{LinkLayer, is_multicast};
use crate::card::queue::cq::Cq;
use crate::card::queue::shared::Srq;
use crate::card::reports::{Diagnostic, Event, Verdict};
use crate::card::transport::qp::Qp;
use crate::card::transport::transition;
use gdsync_sys::prm::doorbell;

impl Card {
    /// Creates a completion queue. Returns its number. The card writes to the second word of its doorbell record, to
    /// distinguish one arm from the next.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::TooMany`] at the card's limit.
    ///
    /// # Safety
    /// The addresses stay valid, aligned as [`CqConfig`] says, until the queue is destroyed.
    pub unsafe fn create_cq(&self, config: &CqConfig) -> Result<u32, CardError> {
        let CqConfig { ring, entries, stride, dbrec, ignore_overrun, collapsed } = *config;
        config.check()?;
        // SAFETY: the caller guarantees this.
        let cq = unsafe {
            let consumer = Record::new(dbrec.add(doorbell::DBR_CQ_CI));
            let arm = Record::new(dbrec.add(doorbell::DBR_CQ_ARM));
            Cq::new(CqRing::new(ring, entries, stride, collapsed), consumer, arm, ignore_overrun)
        };
        self.command(|engine| {
            within("completion queues", engine.resources.cqs.len(), self.limits().max_cq)?;
            let cqn = self.number(|number| engine.resources.cqs.contains_key(&number));
            engine.resources.cqs.insert(cqn, cq);
            Ok(cqn)
        })
    }

    /// Moves a completion queue to another ring, with entries of the same size. The old ring belongs to the program
    /// again when this returns; its last entry is [`Cqe64::resize`](gdsync_sys::prm::cqe::Cqe64::resize).
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] if one of the rings has no room for the unconsumed entries and
    /// that entry, or if the queue has overrun.
    ///
    /// # Safety
    /// The new ring is writable and aligned to 64 until the queue moves again or is destroyed.
    pub unsafe fn resize_cq(&self, cqn: u32, ring: *mut u8, entries: u32) -> Result<(), CardError> {
        CqConfig::check_entries(entries)?;
        self.command(|engine| {
            let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
            // SAFETY: the caller guarantees this.
            let ring = unsafe { CqRing::new(ring, entries, cq.ring.stride, cq.ring.collapsed) };
            let limit = "more than the entries that are not consumed, in the old and the new ring";
            Ok(InvalidValue::unless(cq.resize(ring), "completion queue entries", entries, limit)?)
        })
    }

    /// Changes the moderation of a queue's completion events.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn moderate_cq(&self, cqn: u32, moderation: CqModeration) -> Result<(), CardError> {
        self.command(|engine| {
            let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
            cq.set_moderation(moderation);
            Ok(())
        })
    }

    /// Returns the state of a completion queue.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn query_cq(&self, cqn: u32) -> Result<CqAttributes, CardError> {
        self.command(|engine| engine.resources.cqs.get(&cqn).map(Cq::attributes).ok_or(missing(CQ, cqn)))
    }

    /// Destroys a completion queue. After this returns, the card does not touch its memory.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs complete there.
    pub fn destroy_cq(&self, cqn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.resources.cqs.get(&cqn).map(|cq| cq.users) {
            None => Err(missing(CQ, cqn)),
            Some(0) => {
                // Earlier doorbells were for this queue.
                engine.take_arms(engine.now());
                engine.resources.cqs.remove(&cqn);
                engine.resources.delayed.forget_queue(cqn);
                Ok(())
            }
            Some(users) => Err(CardError::Busy { what: CQ, number: cqn, users }),
        })
    }

    /// Creates a shared receive queue. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::NotFound`] for an object that it names,
    /// [`CardError::TooMany`] at the card's limit.
    ///
    /// # Safety
    /// The addresses stay valid until the queue is destroyed; the record is aligned.
    pub unsafe fn create_srq(&self, config: &SrqConfig) -> Result<u32, CardError> {
        let SrqConfig { pdn, xrc, .. } = *config;
        config.check()?;
        // SAFETY: the caller guarantees this.
        let srq = unsafe { Srq::new(config) };
        self.command(|engine| {
            within("shared receive queues", engine.resources.srqs.len(), self.limits().max_srq)?;
            let users = engine.pds.get_mut(&pdn).ok_or(missing(PD, pdn))?;
            if let Some(XrcConfig { xrcd, cqn, .. }) = xrc {
                let cq = engine.resources.cqs.get_mut(&cqn).ok_or(missing(CQ, cqn))?;
                let domain = engine.xrcds.get_mut(&xrcd).ok_or(missing(XRCD, xrcd))?;
                (cq.users, domain.users) = (cq.users + 1, domain.users + 1);
            }
            *users += 1;
            let srqn = self.number(|number| engine.resources.srqs.contains_key(&number));
            engine.resources.srqs.insert(srqn, srq);
            Ok(srqn)
        })
    }

    /// Arms the limit of a shared receive queue: the card raises [`Event::SrqLimit`] once, possibly at once, when fewer
    /// receives are posted. 0 disarms it.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] for a limit that the ring cannot reach.
    pub fn set_srq_limit(&self, srqn: u32, limit: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let srq = engine.resources.srqs.get_mut(&srqn).ok_or(missing(SRQ, srqn))?;
            let is_allowed = limit < srq.attributes().entries;
            InvalidValue::unless(is_allowed, "srq_limit", limit, "less than the queue's entries")?;
            if srq.set_limit(limit) {
                engine.resources.events.push(Event::SrqLimit { srqn });
            }
            Ok(())
        })
    }

    /// Returns the state of a shared receive queue.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn query_srq(&self, srqn: u32) -> Result<SrqAttributes, CardError> {
        self.command(|engine| {
            engine.resources.srqs.get_mut(&srqn).map(Srq::attributes).ok_or(missing(SRQ, srqn))
        })
    }

    /// Destroys a shared receive queue. After this returns, the card does not touch its ring.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs take from it.
    pub fn destroy_srq(&self, srqn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let users = engine.resources.srqs.get(&srqn).ok_or(missing(SRQ, srqn))?.users;
            if users > 0 {
                return Err(CardError::Busy { what: SRQ, number: srqn, users });
            }
            let Some(srq) = engine.resources.srqs.remove(&srqn) else { return Ok(()) };
            engine.leave_domain(srq.pdn);
            if let Some(XrcConfig { xrcd, cqn, .. }) = srq.xrc {
                engine.resources.cqs.entry(cqn).and_modify(|cq| cq.users -= 1);
                engine.xrcds.entry(xrcd).and_modify(|domain| domain.users -= 1);
            }
            Ok(())
        })
    }

    /// Creates a queue pair in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::NotFound`] for an object that it names,
    /// [`CardError::TooMany`] at the card's limit.
    ///
    /// # Safety
    /// The addresses of existing queues stay valid until the queue pair is destroyed.
    pub unsafe fn create_qp(&self, config: &QpConfig) -> Result<u32, CardError> {
        config.check()?;
        self.command(|engine| {
            within("queue pairs", engine.qps.len(), self.limits().max_qp)?;
            if config.no_send_record {
                let recordless = engine.qps.values().filter(|qp| qp.endpoint.config.no_send_record);
                let what = "queue pairs without a doorbell record of sends";
                within(what, recordless.clone().count(), LIMITS.max_recordless_qp)?;
                // Between two looks at a register the card sees only the last store, and here nothing else tells of
                // those before it.
                let what = "queue pairs without a doorbell record of sends on one UAR page";
                within(what, recordless.filter(|qp| qp.endpoint.config.uar == config.uar).count(), 1)?;
            }
            check_references(engine, config)?;
            let qpn = self.qpn(|number| engine.qps.contains_key(&number));
            if let Some((id, uar)) = config.uar.and_then(|id| Some((id, engine.doorbells.uars.get_mut(&id)?)))
            {
                uar.qps.insert(qpn);
                if config.no_send_record {
                    engine.doorbells.poll_also(id, Register::new(doorbell::UAR_NO_RECORD)?);
                }
            }
            if config.slave_send {
                engine.resources.slaves.insert(qpn);
            }
            change_users(engine, config, |users| *users += 1);
            let number = engine.number_of_next_qp(qpn);
            let connection = engine.resources.clock.microseconds();
            // SAFETY: the caller guarantees this.
            engine.qps.insert(qpn, unsafe { Qp::new(qpn, config, number, connection) });
            Ok(qpn)
        })
    }

    /// Checks that the port can send to an address: on Ethernet it needs a GID. An error is also reported as a
    /// diagnostic.
    ///
    /// # Errors
    /// [`CardError::Invalid`].
    pub(crate) fn check_address(&self, address: &Address) -> Result<(), CardError> {
        self.command(|engine| check_route(engine, address))
    }

    /// Changes a queue pair.
    ///
    /// # Errors
    /// [`CardError::Modify`] for a transition that does not exist, [`CardError::Invalid`] for an address,
    /// [`CardError::NotFound`] if there is none of that number. Nothing has changed then.
    pub fn modify_qp(&self, qpn: u32, change: &QpChange) -> Result<(), CardError> {
        self.command(|engine| {
            let endpoint = &engine.qps.get(&qpn).ok_or(missing(QP, qpn))?.endpoint;
            let pkeys = &engine.resources.pkeys;
            let to = transition::check(endpoint.config.transport, endpoint.state(), change, pkeys)?;
            if let Some(address) = &change.address {
                check_route(engine, address)?;
            }
            let now = engine.now();
            if to == QpState::Reset {
                // Doorbells that rang before this command must not reach the queue pair after its reset.
                engine.take_doorbells_of(qpn, now);
                engine.flush_delayed_completions(qpn, now);
                engine.delayed.forget(qpn);
            }
            engine.with_qp(qpn, now, |qp, context| match to {
                QpState::Reset => qp.reset(),
                QpState::Err => {
                    qp.ring(true, context);
                    qp.fail(context);
                }
                to => qp.apply(change, to, context.pkeys),
            });
            if to != QpState::Err {
                engine.clear_failed(qpn);
            }
            engine.activate(qpn);
            Ok(())
        })
    }

    /// Returns the attributes of a queue pair.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn query_qp(&self, qpn: u32) -> Result<QpAttributes, CardError> {
        self.command(|engine| engine.qps.get(&qpn).map(Qp::attributes).ok_or(missing(QP, qpn)))
    }

    /// Opens an XRC target once more; it must be destroyed as often. Returns its configuration.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if the domain has none of that number.
    pub fn open_qp(&self, qpn: u32, xrcd: u32) -> Result<QpConfig, CardError> {
        self.command(|engine| {
            let qp = engine.qps.get_mut(&qpn).filter(|qp| qp.endpoint.config.xrcd == Some(xrcd));
            let qp = qp.ok_or(missing(QP, qpn))?;
            qp.openers += 1;
            Ok(qp.endpoint.config)
        })
    }

    /// Destroys a queue pair, unless it was opened more often ([`Card::open_qp`]). After this returns, the card touches
    /// neither its rings nor the memory that its work requests name.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn destroy_qp(&self, qpn: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get_mut(&qpn).ok_or(missing(QP, qpn))?;
            if qp.openers > 1 {
                qp.openers -= 1;
                return Ok(());
            }
            engine.send_remaining(qpn);
            engine.flush_delayed_packets_of(qpn, engine.now());
            report_unfinished(engine, qpn);
            let endpoint = engine.remove_qp(qpn).ok_or(missing(QP, qpn))?.endpoint;
            change_users(engine, &endpoint.config, |users| *users -= 1);
            for gid in engine.resources.groups.groups_of(qpn) {
                detach(engine, qpn, &gid);
            }
            Ok(())
        })
    }

    /// Returns whether queue pairs can be attached to multicast groups: not on the fabric of several hosts.
    pub fn has_multicast(&self) -> bool {
        self.command(|engine| engine.fabric.has_groups())
    }

    /// Attaches a UD queue pair to a multicast group: it receives what any card, including this one, sends to the group
    /// from now on. No effect if it is attached already.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Invalid`] for another transport, or a GID that is no multicast GID;
    /// [`CardError::TooMany`]; [`CardError::NoMulticast`]; [`CardError::System`].
    pub fn attach_multicast(&self, qpn: u32, gid: &[u8; 16]) -> Result<(), CardError> {
        self.command(|engine| {
            let qp = engine.qps.get(&qpn).ok_or(missing(QP, qpn))?;
            let transport = qp.endpoint.config.transport;
            let what = "transport of a group's member";
            InvalidValue::unless(transport == Transport::Ud, what, transport as u32, "UD (2)")?;
            let limit = "0xff, or that of an IPv4-mapped address of 224.0.0.0/4";
            InvalidValue::unless(is_multicast(gid), "first byte of a multicast GID", gid[0].into(), limit)?;
            if !engine.fabric.has_groups() {
                return Err(CardError::NoMulticast);
            }
            let groups = &engine.resources.groups;
            let members = groups.of(gid).len();
            if groups.has(gid, qpn) {
                return Ok(());
            }
            within("queue pairs of a multicast group", members, LIMITS.max_group_members)?;
            if members == 0 {
                within("multicast groups", groups.groups(), LIMITS.max_groups)?;
                engine.fabric.join(gid)?;
            }
            engine.resources.groups.add(gid, qpn);
            Ok(())
        })
    }

    /// Detaches a queue pair from a multicast group.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if it is not attached.
    pub fn detach_multicast(&self, qpn: u32, gid: &[u8; 16]) -> Result<(), CardError> {
        self.command(|engine| {
            if !engine.resources.groups.has(gid, qpn) {
                return Err(missing("queue pair in that multicast group", qpn));
            }
            detach(engine, qpn, gid);
            Ok(())
        })
    }
}

fn check_route(engine: &mut Engine, address: &Address) -> Result<(), CardError> {
    if engine.resources.port.link == LinkLayer::InfiniBand || address.gid.is_some() {
        return Ok(());
    }
    let message = "the port is Ethernet: an address needs a global route (is_global, and a GID)".to_owned();
    let (verdict, field) = (Verdict::Refused, "is_global");
    engine.resources.diagnostics.report(Diagnostic { verdict, qpn: None, index: None, field, message });
    Err(InvalidValue::new("is_global", 0, "1 on an Ethernet port: it is addressed by GID").into())
}

/// Checks that all objects that a queue pair refers to exist.
fn check_references(engine: &Engine, config: &QpConfig) -> Result<(), CardError> {
    let needs = |what, number: Option<u32>, exists: &dyn Fn(u32) -> bool| match number {
        Some(number) if !exists(number) => Err(missing(what, number)),
        _ => Ok(()),
    };
    let resources = &engine.resources;
    needs(CQ, config.send_cq, &|cqn| resources.cqs.contains_key(&cqn))?;
    needs(CQ, config.recv_cq, &|cqn| resources.cqs.contains_key(&cqn))?;
    needs(PD, config.pdn, &|pdn| engine.pds.contains_key(&pdn))?;
    needs(SRQ, config.srq, &|srqn| resources.srqs.get(&srqn).is_some_and(|srq| srq.xrc.is_none()))?;
    needs(XRCD, config.xrcd, &|xrcd| engine.xrcds.contains_key(&xrcd))?;
    needs("UAR", config.uar, &|uar| engine.doorbells.uars.contains_key(&uar))
}

/// Changes the number of users of every object that a queue pair refers to.
fn change_users(engine: &mut Engine, config: &QpConfig, change: impl Fn(&mut u32)) {
    let resources = &mut engine.resources;
    for cqn in [config.send_cq, config.recv_cq].into_iter().flatten() {
        resources.cqs.entry(cqn).and_modify(|cq| change(&mut cq.users));
    }
    if let Some(srqn) = config.srq {
        resources.srqs.entry(srqn).and_modify(|srq| change(&mut srq.users));
    }
    if let Some(pdn) = config.pdn {
        engine.pds.entry(pdn).and_modify(|users| change(users));
    }
    if let Some(xrcd) = config.xrcd {
        engine.xrcds.entry(xrcd).and_modify(|domain| change(&mut domain.users));
    }
}

fn detach(engine: &mut Engine, qpn: u32, gid: &[u8; 16]) {
    if engine.resources.groups.remove(gid, qpn) {
        engine.fabric.leave(gid);
    }
}
