//! The transitions of a queue pair: the attributes of each, and connecting.

use crate::qp::make::QpObject;
use crate::qp::{QpState, QueuePairInner};
use crate::verbs::ah::path;
use crate::verbs::{
    Access, ConnectOptions, Endpoint, Error, GidEntry, Mtu, OutOfRange, PortAttributes, QueuePairError,
    Transport, call,
};
use gdsync_sys::verbs::{self, ibv_qp_attr};
use libc::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns the path MTU: the one asked for, or the largest that both ports support.
fn path_mtu(own: Option<Mtu>, remote: Mtu, asked: Option<Mtu>) -> Result<Mtu, Error> {
    let largest = own.unwrap_or(remote).min(remote);
    match asked {
        Some(mtu) if mtu > largest => Err(Error::OutOfRange(OutOfRange {
            what: "path MTU",
            value: mtu.bytes().into(),
            limit: format!("the two ports take at most {}", largest.bytes()),
            remedy: "choose a smaller one, or leave it to gdsync",
        })),
        asked => Ok(asked.unwrap_or(largest)),
    }
}

pub(super) fn endpoint(port: &PortAttributes, gid: &GidEntry, qpn: u32, psn: u32) -> Result<Endpoint, Error> {
    let mtu = port.mtu.ok_or(Error::QueuePair(QueuePairError::Layout { what: "port MTU", value: 0 }))?;
    Ok(Endpoint { qpn, psn, kind: gid.kind, lid: port.lid, gid: gid.gid, mtu })
}

/// Returns the attributes, and their mask, that move a DC initiator or target to RTR. All its connections have
/// them. The path leads to its own port, as only this side's attributes of it are used.
pub(crate) fn ready_to_receive(
    own: &GidEntry,
    endpoint: &Endpoint,
    port: u8,
    options: &ConnectOptions,
) -> Result<(ibv_qp_attr, u32), Error> {
    let attr = ibv_qp_attr {
        qp_state: verbs::IBV_QPS_RTR,
        path_mtu: path_mtu(None, endpoint.mtu, options.mtu)? as i32,
        min_rnr_timer: options.min_rnr_timer,
        ah_attr: path(port, own, endpoint, options)?,
        ..Default::default()
    };
    Ok((attr, verbs::IBV_QP_STATE | verbs::IBV_QP_PATH_MTU | verbs::IBV_QP_AV))
}

/// Moves the queue pair to RTS.
fn to_send(
    queue_pair: &QueuePairInner,
    status: &mut QpState,
    options: &ConnectOptions,
    reliable: bool,
) -> Result<(), Error> {
    let mut attr = ibv_qp_attr {
        qp_state: verbs::IBV_QPS_RTS,
        timeout: options.timeout,
        retry_cnt: options.retry_count,
        rnr_retry: options.rnr_retry,
        sq_psn: queue_pair.life.psn.load(Ordering::Relaxed),
        max_rd_atomic: options.max_reads,
        ..Default::default()
    };
    let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN;
    let of_reliable = verbs::IBV_QP_TIMEOUT
        | verbs::IBV_QP_RETRY_CNT
        | verbs::IBV_QP_RNR_RETRY
        | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
    modify(queue_pair, &mut attr, if reliable { mask | of_reliable } else { mask }, "RTR to RTS")?;
    queue_pair.life.connected(status);
    Ok(())
}

fn modify(queue_pair: &QueuePairInner, attr: &mut ibv_qp_attr, mask: u32, step: &str) -> Result<(), Error> {
    let pd = &queue_pair.domain.pd;
    let raw = match &queue_pair.object {
        QpObject::Verbs(qp) => qp.as_ptr(),
        QpObject::Devx(qp) => return qp.modify(pd, &queue_pair.config, queue_pair.gid.kind.link(), attr),
        // A target gets all its attributes when it is made.
        QpObject::Target(_) => return Ok(()),
    };
    // SAFETY: the queue pair is alive as long as `queue_pair`; `attr` is valid.
    let rc = unsafe { (pd.device.api.modify_qp)(raw, attr, mask as libc::c_int) };
    call::status("ibv_modify_qp", rc, || format!("queue pair {:#x}, {step}", queue_pair.number))
}

pub(crate) fn to_init(queue_pair: &QueuePairInner) -> Result<(), Error> {
    let mut attr = ibv_qp_attr {
        qp_state: verbs::IBV_QPS_INIT,
        pkey_index: queue_pair.config.pkey_index,
        port_num: queue_pair.config.port,
        qp_access_flags: (queue_pair.config.access - Access::MW_BIND).bits(),
        qkey: queue_pair.config.qkey,
        ..Default::default()
    };
    let own = match queue_pair.config.transport {
        Transport::Rc | Transport::Uc => verbs::IBV_QP_ACCESS_FLAGS,
        Transport::Ud => verbs::IBV_QP_QKEY,
        // An initiator's memory is not accessed.
        Transport::Dc => 0,
    };
    let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | own;
    modify(queue_pair, &mut attr, mask, "RESET to INIT")
}

/// Moves a UD or DC queue pair, which the program does not connect, to RTS.
pub(crate) fn to_ready(queue_pair: &QueuePairInner) -> Result<(), Error> {
    let mut status = queue_pair.life.lock();
    let is_dc = queue_pair.config.transport == Transport::Dc;
    if is_dc {
        let own = own_endpoint(queue_pair)?;
        let (mut attr, mask) =
            ready_to_receive(&queue_pair.gid, &own, queue_pair.config.port, &queue_pair.config.connections)?;
        modify(queue_pair, &mut attr, mask, "INIT to RTR")?;
    } else {
        to_state(queue_pair, verbs::IBV_QPS_RTR, "INIT to RTR")?;
    }
    to_send(queue_pair, &mut status, &queue_pair.config.connections, is_dc)
}

pub(super) fn to_state(queue_pair: &QueuePairInner, qp_state: i32, step: &str) -> Result<(), Error> {
    modify(queue_pair, &mut ibv_qp_attr { qp_state, ..Default::default() }, verbs::IBV_QP_STATE, step)
}

pub(crate) fn own_endpoint(queue_pair: &QueuePairInner) -> Result<Endpoint, Error> {
    let port = queue_pair.domain.pd.device.active_port(queue_pair.config.port)?;
    endpoint(&port, &queue_pair.gid, queue_pair.number, queue_pair.life.psn.load(Ordering::Relaxed))
}

/// Returns the state into which the provider has moved the queue pair; none for one made by commands.
pub(crate) fn state(queue_pair: &QueuePairInner) -> Option<i32> {
    let raw = queue_pair.object.verbs()?;
    // SAFETY: the queue pair is alive. The provider writes the field after each transition, perhaps on another thread that
    // aborts it now, which an atomic tolerates.
    Some(unsafe { AtomicI32::from_ptr(&raw mut (*raw.as_ptr()).state) }.load(Ordering::Relaxed))
}

/// Asks the card whether a queue pair that verbs made is neither failing nor failed.
pub(super) fn works(queue_pair: &QueuePairInner) -> bool {
    let Some(raw) = queue_pair.object.verbs() else { return false };
    let api = queue_pair.domain.pd.device.api;
    let (mut attr, mut init) = (ibv_qp_attr::default(), MaybeUninit::zeroed());
    // SAFETY: the queue pair is alive, and the places are valid: zeros are attributes, too.
    let rc =
        unsafe { (api.query_qp)(raw.as_ptr(), &mut attr, verbs::IBV_QP_STATE as c_int, init.as_mut_ptr()) };
    rc == 0 && attr.qp_state <= verbs::IBV_QPS_RTS
}

pub(crate) fn connect(
    queue_pair: &QueuePairInner,
    remote: &Endpoint,
    options: ConnectOptions,
) -> Result<(), Error> {
    let mut status = queue_pair.life.lock();
    let (qpn, needed) = (queue_pair.number, "new (INIT)");
    let reliable = match queue_pair.config.transport {
        Transport::Rc => true,
        Transport::Uc => false,
        transport @ (Transport::Ud | Transport::Dc) => {
            return Err(Error::QueuePair(QueuePairError::Connectionless { qpn, transport }));
        }
    };
    let refuse = |state| Err(Error::QueuePair(QueuePairError::State { qpn, state, needed }));
    match *status {
        QpState::Initialised => {}
        QpState::Connected => return refuse("connected"),
        QpState::Failed(..) => return refuse("failed"),
    }
    if state(queue_pair) == Some(verbs::IBV_QPS_RESET) {
        to_init(queue_pair)?;
    }
    let device = &queue_pair.domain.pd.device;
    options.check(device.attributes()?.max_reads)?;
    let port = device.active_port(queue_pair.config.port)?;
    let mut attr = ibv_qp_attr {
        qp_state: verbs::IBV_QPS_RTR,
        path_mtu: path_mtu(port.mtu, remote.mtu, options.mtu)? as i32,
        dest_qp_num: remote.qpn,
        rq_psn: remote.psn,
        max_dest_rd_atomic: options.max_reads,
        min_rnr_timer: options.min_rnr_timer,
        ah_attr: path(port.port, &queue_pair.gid, remote, &options)?,
        ..Default::default()
    };
    let mut mask = verbs::IBV_QP_STATE
        | verbs::IBV_QP_AV
        | verbs::IBV_QP_PATH_MTU
        | verbs::IBV_QP_DEST_QPN
        | verbs::IBV_QP_RQ_PSN;
    if reliable {
        mask |= verbs::IBV_QP_MAX_DEST_RD_ATOMIC | verbs::IBV_QP_MIN_RNR_TIMER;
    }
    modify(queue_pair, &mut attr, mask, "INIT to RTR")?;
    to_send(queue_pair, &mut status, &options, reliable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_is_what_both_ports_take() {
        let (small, large) = (Mtu::Bytes1024, Mtu::Bytes4096);
        assert_eq!(path_mtu(Some(large), small, None).unwrap(), small);
        assert_eq!(path_mtu(Some(small), large, None).unwrap(), small);
        assert_eq!(path_mtu(None, large, None).unwrap(), large);
        assert_eq!(path_mtu(Some(large), large, Some(Mtu::Bytes256)).unwrap(), Mtu::Bytes256);
        let error = path_mtu(Some(large), small, Some(Mtu::Bytes2048)).unwrap_err().to_string();
        assert!(error.starts_with("path MTU is 2048, but the two ports take at most 1024"), "{error}");
    }
}
