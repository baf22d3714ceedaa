//! Objects that a program destroys while work requests use them: what [`Checks::USE`] reports.

use crate::card::config::{Checks, QpState};
use crate::card::engine::Engine;
use crate::card::transport::requester::OBJECT;

/// Reports the work requests of a queue pair that its end drops.
pub(super) fn report_unfinished(engine: &mut Engine, qpn: u32) {
    if !engine.resources.checks.contains(Checks::USE) {
        return;
    }
    let now = engine.now();
    engine.with_qp(qpn, now, |qp, context| {
        // In ERR all requests are flushed.
        let is_busy = qp.endpoint.state() == QpState::Rts;
        let unfinished: Vec<_> = qp.requester.unfinished(None).filter(|_| is_busy).collect();
        let Some((index, what)) = unfinished.first() else { return };
        let message = format!(
            "the queue pair is destroyed while {what} is neither completed nor flushed{}: it may never reach the peer; poll \
             its completion first, or move the queue pair to ERR and poll until all are flushed",
            others(unfinished.len()),
        );
        context.found(qpn, Some(*index), OBJECT, message);
    });
}

/// Reports the work requests that name a key which is about to end.
pub(super) fn report_use(engine: &mut Engine, key: u32) {
    if !engine.resources.checks.contains(Checks::USE) {
        return;
    }
    let now = engine.now();
    let Engine { qps, resources, .. } = engine;
    let mut context = resources.context(now);
    for (qpn, qp) in qps {
        let using: Vec<_> = qp.requester.unfinished(Some(key)).collect();
        let Some((index, what)) = using.first() else { continue };
        let message = format!(
            "the memory of key {key:#x} is deregistered while {what}, which names it, is not completed{}: poll its \
             completion first",
            others(using.len()),
        );
        context.found(*qpn, Some(*index), OBJECT, message);
    }
}

fn others(count: usize) -> String {
    match count {
        1 => String::new(),
        _ => format!(" (and {} more)", count - 1),
    }
}
