//! Relations between objects: those that each transport requires, and the reference counts.

use super::config::{InvalidValue, QpConfig, Transport};
use super::engine::Engine;
use super::error::CardError;

pub(super) const PD: &str = "protection domain";
pub(super) const CQ: &str = "completion queue";
pub(super) const QP: &str = "queue pair";
pub(super) const SRQ: &str = "shared receive queue";
pub(super) const XRCD: &str = "XRC domain";

pub(super) fn missing(what: &'static str, number: u32) -> CardError {
    CardError::NotFound { what, number }
}

pub(super) fn invalid(what: &'static str, value: u32, limit: &'static str) -> CardError {
    CardError::Invalid(InvalidValue { what, value: value.into(), limit })
}

pub(super) fn within(what: &'static str, count: usize, limit: u32) -> Result<(), CardError> {
    if count < limit as usize { Ok(()) } else { Err(CardError::TooMany { what, limit }) }
}

/// Removes an object from a protection domain.
pub(super) fn leave(engine: &mut Engine, pdn: u32) {
    engine.pds.entry(pdn).and_modify(|users| *users -= 1);
}

/// Checks that a queue pair has exactly the relations of its transport.
pub(super) fn check_shape(config: &QpConfig) -> Result<(), CardError> {
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
pub(super) fn check(engine: &Engine, config: &QpConfig) -> Result<(), CardError> {
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
    needs("UAR", config.uar, &|uar| engine.uars.contains_key(&uar))
}

/// Counts a queue pair as a user of its objects.
pub(super) fn join(engine: &mut Engine, config: &QpConfig) {
    count(engine, config, |users| *users += 1);
}

/// Reverts [`join`].
pub(super) fn part(engine: &mut Engine, config: &QpConfig) {
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
