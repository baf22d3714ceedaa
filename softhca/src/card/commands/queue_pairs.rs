//! Commands for queue pairs and their multicast groups, and the objects that a queue pair refers to.

use crate::card::config::{Address, LIMITS, NUMBERS, QpAttributes, QpChange, QpConfig, QpState, Transport};
use crate::card::device::Card;
use crate::card::engine::Engine;
use crate::card::error::{CQ, CardError, PD, QP, SRQ, XRCD, invalid, missing, within};
use crate::card::memory::uar::Register;
use crate::card::port::{LinkLayer, is_multicast};
use crate::card::reports::{Diagnostic, Verdict};
use crate::card::transport::qp::Qp;
use crate::card::transport::transition;
use gdsync_sys::prm::doorbell;
use std::time::Instant;

impl Card {
    /// Creates a queue pair in RESET. Returns its number.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for a value out of range, [`CardError::NotFound`] for an object that it names,
    /// [`CardError::TooMany`] at the card's limit.
    ///
    /// # Safety
    /// The addresses of existing queues stay valid until the queue pair is destroyed.
    pub unsafe fn create_qp(&self, config: &QpConfig) -> Result<u32, CardError> {
        let power = |what, value: u32| {
            let fits = value == 0 || value.is_power_of_two() && value <= 1 << 16;
            let limit = "0 or a power of two, at most 2^16";
            if fits { Ok(()) } else { Err(invalid(what, value, limit)) }
        };
        power("send queue blocks", config.sq_blocks)?;
        power("receive queue entries", config.rq_entries)?;
        check_shape(config)?;
        if config.rq_entries != 0 && (config.rq_stride == 0 || !config.rq_stride.is_multiple_of(16)) {
            return Err(invalid("receive queue stride", config.rq_stride, "a multiple of 16"));
        }
        if let Some(index) = config.user_index.filter(|index| *index > NUMBERS) {
            return Err(invalid("user index", index, "at most 24 bits"));
        }
        self.command(|engine| {
            within("queue pairs", engine.qps.len(), self.limits().max_qp)?;
            if config.no_send_record {
                let recordless = engine.qps.values().filter(|qp| qp.endpoint.config.no_send_record).count();
                let what = "queue pairs without a doorbell record of sends";
                within(what, recordless, LIMITS.max_recordless_qp)?;
            }
            check_references(engine, config)?;
            let qpn = self.number(|number| engine.qps.contains_key(&number));
            if let Some(uar) = config.uar.and_then(|uar| engine.doorbells.uars.get_mut(&uar)) {
                uar.qps.insert(qpn);
                if config.no_send_record {
                    uar.poll_also(Register::new(doorbell::UAR_NO_RECORD)?);
                }
            }
            if config.slave_send {
                engine.resources.slaves.insert(qpn);
            }
            add_references(engine, config);
            // SAFETY: the caller guarantees this.
            engine.qps.insert(qpn, unsafe { Qp::new(qpn, config) });
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
            let to = transition::check(endpoint.config.transport, endpoint.state(), change)?;
            if let Some(address) = &change.address {
                check_route(engine, address)?;
            }
            let now = Instant::now();
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
                to => qp.apply(change, to),
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
            engine.flush_delayed_packets_of(qpn, Instant::now());
            let endpoint = engine.remove_qp(qpn).ok_or(missing(QP, qpn))?.endpoint;
            remove_references(engine, &endpoint.config);
            detach_from_all(engine, qpn);
            Ok(())
        })
    }

    /// Returns whether queue pairs can be attached to multicast groups: only on the fabric of one host.
    pub fn has_multicast(&self) -> bool {
        self.command(|engine| engine.fabric.is_of_one_host())
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
            if qp.endpoint.config.transport != Transport::Ud {
                let transport = qp.endpoint.config.transport as u32;
                return Err(invalid("transport of a group's member", transport, "UD (2)"));
            }
            if !is_multicast(gid) {
                let limit = "0xff, or that of an IPv4-mapped address of 224.0.0.0/4";
                return Err(invalid("first byte of a multicast GID", gid[0].into(), limit));
            }
            if !engine.fabric.is_of_one_host() {
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
    Err(invalid("is_global", 0, "1 on an Ethernet port: it is addressed by GID"))
}

/// Checks that a queue pair has exactly the relations of its transport.
fn check_shape(config: &QpConfig) -> Result<(), CardError> {
    use Transport::{DcInitiator, DcTarget, XrcInitiator, XrcTarget};
    let sends = !matches!(config.transport, XrcTarget | DcTarget);
    let has_own_receives = !matches!(config.transport, XrcInitiator | XrcTarget | DcInitiator | DcTarget);
    let is_dc_target = config.transport == DcTarget;
    let is_xrc_target = config.transport == XrcTarget;
    let parts = [
        (PD, config.pdn.is_some(), !is_xrc_target),
        ("completion queue of sends", config.send_cq.is_some(), sends),
        ("completion queue of receives", config.recv_cq.is_some(), has_own_receives || is_dc_target),
        ("UAR", config.uar.is_some(), sends),
        (XRCD, config.xrcd.is_some(), is_xrc_target),
    ];
    for (what, is_there, belongs) in parts {
        if is_there != belongs {
            return Err(invalid(what, is_there.into(), "there (1) or not (0), as the transport has it"));
        }
    }
    if !has_own_receives && config.srq.is_some() != is_dc_target {
        let limit = "1 for a DC target, else 0 on XRC and DC";
        return Err(invalid(SRQ, config.srq.is_some().into(), limit));
    }
    if config.rq_entries != 0 && (!has_own_receives || config.srq.is_some()) {
        let limit = "0 on XRC and DC, and beside a shared receive queue";
        return Err(invalid("receive queue entries", config.rq_entries, limit));
    }
    if config.sq_blocks != 0 && !sends {
        return Err(invalid("send queue blocks", config.sq_blocks, "0 for targets of XRC and DC"));
    }
    Ok(())
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

/// Counts a queue pair as a user of its objects.
fn add_references(engine: &mut Engine, config: &QpConfig) {
    count(engine, config, |users| *users += 1);
}

/// Reverts [`add_references`].
fn remove_references(engine: &mut Engine, config: &QpConfig) {
    count(engine, config, |users| *users -= 1);
}

fn count(engine: &mut Engine, config: &QpConfig, change: impl Fn(&mut u32)) {
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

/// Detaches a destroyed queue pair from all groups.
fn detach_from_all(engine: &mut Engine, qpn: u32) {
    for gid in engine.resources.groups.groups_of(qpn) {
        detach(engine, qpn, &gid);
    }
}
