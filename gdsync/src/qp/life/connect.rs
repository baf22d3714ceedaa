//! The states of a queue pair: addresses, the attributes of each transition, connecting, and resetting a failed
//! queue pair.

use crate::qp::make::QpObject;
use crate::qp::{QpState, QueuePair, QueuePairInner, next_psn};
use crate::queue::ResetBlocker;
use crate::queue::completion::CompletionState;
use crate::verbs::ah::path;
use crate::verbs::{
    Access, AddressHandle, ConnectOptions, DcAddress, Endpoint, Error, GidEntry, Mtu, OutOfRange,
    PortAttributes, QueuePairError, Transport, call,
};
use gdsync_sys::verbs::{self, ibv_qp_attr};
use spin::mutex::SpinMutexGuard;
use spin::relax::Yield;
use std::cmp::Ordering as Cmp;
use std::sync::Arc;
use std::sync::atomic::Ordering;

type CompletionGuard<'a> = SpinMutexGuard<'a, CompletionState, Yield>;

/// Why [`QueuePair::reset`] and [`QueuePair::reconnect`] did nothing, or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResetError {
    /// Work of the last connection is outstanding.
    #[error("queue pair {qpn:#x} cannot be reset: {blocker}")]
    Blocked {
        /// The queue pair's number.
        qpn: u32,
        /// The obstacle.
        blocker: ResetBlocker,
    },
    /// The provider refused a transition, or the new connection is impossible.
    #[error(transparent)]
    Verbs(#[from] Error),
}

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

impl QueuePair {
    /// Makes the address of a remote port for datagrams ([`crate::WorkRequest::to`]), reached from this queue
    /// pair's port and global identifier. `remote`'s queue pair number and packet sequence number are ignored; of
    /// the options, service level and global route are used.
    ///
    /// # Errors
    /// [`PortError::GidKindMismatch`](crate::verbs::PortError::GidKindMismatch) if the remote port speaks another protocol,
    /// [`OutOfRange`] for an option, [`Error::Verbs`] if the provider refuses.
    pub fn address_handle(&self, remote: &Endpoint, options: ConnectOptions) -> Result<AddressHandle, Error> {
        AddressHandle::new(&self.inner.domain.pd, self.inner.config.port, &self.inner.gid, remote, &options)
    }

    /// Makes the address of a DC target for requests of DC queue pairs ([`crate::WorkRequest::to_target`]), reached
    /// from this queue pair's port and global identifier. `target` is the target's
    /// [`DcTarget::endpoint`](crate::qp::DcTarget::endpoint), and `key` its access key; of the options, service
    /// level and global route are used.
    ///
    /// # Errors
    /// As [`Self::address_handle`], and [`QueuePairError::NotAnInitiator`] for a queue pair that is not DC.
    pub fn dc_address(
        &self,
        target: &Endpoint,
        key: u64,
        options: ConnectOptions,
    ) -> Result<DcAddress, Error> {
        let transport = self.transport();
        if transport != Transport::Dc {
            let qpn = self.number();
            return Err(Error::QueuePair(QueuePairError::NotAnInitiator { qpn, transport }));
        }
        Ok(DcAddress::new(self.address_handle(target, options)?, target.qpn, key))
    }

    /// Returns the queue pair to its state after [`QueuePair::new`]: it takes receives and can be connected (UD and
    /// DC: can send), with no failure, empty queues, and another first sequence number. Its number and completion
    /// queues stay, and so does everything made from it.
    ///
    /// No work of the last connection may be outstanding: after a failure, or [`QueuePair::abort`], let the streams
    /// perform their posts, and poll both completion queues until every work request has completed. The last
    /// unsignaled ones need no completion if they were done before the failure. Prepared sends from before the
    /// reset are refused ([`OrderError::Stale`](crate::queue::OrderError::Stale)).
    ///
    /// With a shared receive queue, a receive is lost with its message if the card writes its completion only
    /// during the reset; its place in the shared queue becomes free. The card has written all completions when it
    /// reports [`AsyncEventKind::LastReceive`](crate::verbs::AsyncEventKind::LastReceive).
    ///
    /// Give the remote side the new [`QueuePair::endpoint`]; it must reset, too. A DC target need not: targets and
    /// their addresses stay valid.
    ///
    /// # Errors
    /// [`ResetError::Blocked`], which names the obstacle; nothing has changed then. [`Error::Verbs`] if the
    /// provider refuses; the queue pair has failed then.
    pub fn reset(&self) -> Result<(), ResetError> {
        self.inner.reset()
    }

    /// Resets the queue pair, unless it can be connected already, and connects it.
    ///
    /// The remote endpoint must be from after the remote side's own reset. If both sides reset, both call
    /// [`QueuePair::reset`] first, then exchange endpoints, then call this.
    ///
    /// # Errors
    /// As [`QueuePair::reset`] and [`QueuePair::connect`].
    pub fn reconnect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), ResetError> {
        if !matches!(*self.inner.status(), QpState::Initialised) {
            self.inner.reset()?;
        }
        Ok(self.inner.connect(remote, options)?)
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

impl QueuePairInner {
    /// Returns the attributes, and their mask, that move the queue pair to RTS.
    fn ready_to_send(&self, options: &ConnectOptions, reliable: bool) -> (ibv_qp_attr, u32) {
        let attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_RTS,
            timeout: options.timeout,
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry,
            sq_psn: self.psn.load(Ordering::Relaxed),
            max_rd_atomic: options.max_reads,
            ..Default::default()
        };
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN;
        let of_reliable = verbs::IBV_QP_TIMEOUT
            | verbs::IBV_QP_RETRY_CNT
            | verbs::IBV_QP_RNR_RETRY
            | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
        (attr, if reliable { mask | of_reliable } else { mask })
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32, step: &'static str) -> Result<(), Error> {
        let pd = &self.domain.pd;
        let raw = match &self.object {
            QpObject::Verbs(qp) => qp.as_ptr(),
            QpObject::Devx(qp) => return qp.modify(pd, &self.config, self.gid.kind.link(), attr),
            // A target gets all its attributes when it is made.
            QpObject::Target(_) => return Ok(()),
        };
        // SAFETY: the queue pair is alive as long as `self`; `attr` is valid.
        let rc = unsafe { (pd.device.api.modify_qp)(raw, attr, mask as libc::c_int) };
        call::status("ibv_modify_qp", rc, || format!("queue pair {:#x}, {step}", self.number))
    }

    pub(crate) fn to_init(&self) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_INIT,
            pkey_index: self.config.pkey_index,
            port_num: self.config.port,
            qp_access_flags: (self.config.access - Access::MW_BIND).bits(),
            qkey: self.config.qkey,
            ..Default::default()
        };
        let own = match self.config.transport {
            Transport::Rc | Transport::Uc => verbs::IBV_QP_ACCESS_FLAGS,
            Transport::Ud => verbs::IBV_QP_QKEY,
            // An initiator's memory is not accessed.
            Transport::Dc => 0,
        };
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | own;
        self.modify(&mut attr, mask, "RESET to INIT")
    }

    /// Moves a UD or DC queue pair, which the program does not connect, to RTS.
    pub(crate) fn to_ready(&self) -> Result<(), Error> {
        let mut status = self.status();
        let is_dc = self.config.transport == Transport::Dc;
        if is_dc {
            let own = self.endpoint()?;
            let (mut attr, mask) =
                ready_to_receive(&self.gid, &own, self.config.port, &self.config.connections)?;
            self.modify(&mut attr, mask, "INIT to RTR")?;
        } else {
            self.to_state(verbs::IBV_QPS_RTR, "INIT to RTR")?;
        }
        let (mut attr, mask) = self.ready_to_send(&self.config.connections, is_dc);
        self.modify(&mut attr, mask, "RTR to RTS")?;
        *status = QpState::Connected;
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn to_state(&self, qp_state: libc::c_int, step: &'static str) -> Result<(), Error> {
        self.modify(&mut ibv_qp_attr { qp_state, ..Default::default() }, verbs::IBV_QP_STATE, step)
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let port = self.domain.pd.device.active_port(self.config.port)?;
        endpoint(&port, &self.gid, self.number, self.psn.load(Ordering::Relaxed))
    }

    pub(crate) fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        let mut status = self.status();
        let (qpn, needed) = (self.number, "new (INIT)");
        let reliable = match self.config.transport {
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
            QpState::Failed(_) => return refuse("failed"),
        }
        let device = &self.domain.pd.device;
        options.check(device.attributes()?.max_reads)?;
        let port = device.active_port(self.config.port)?;
        let mut attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_RTR,
            path_mtu: path_mtu(port.mtu, remote.mtu, options.mtu)? as i32,
            dest_qp_num: remote.qpn,
            rq_psn: remote.psn,
            max_dest_rd_atomic: options.max_reads,
            min_rnr_timer: options.min_rnr_timer,
            ah_attr: path(port.port, &self.gid, remote, &options)?,
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
        self.modify(&mut attr, mask, "INIT to RTR")?;
        let (mut attr, mask) = self.ready_to_send(&options, reliable);
        self.modify(&mut attr, mask, "RTR to RTS")?;
        *status = QpState::Connected;
        self.is_ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Locks the send completion queue and, with a shared receive queue, the receive completion queue, if it is
    /// another, in the order of their addresses.
    fn lock_completions(&self) -> (CompletionGuard<'_>, Option<CompletionGuard<'_>>) {
        match Arc::as_ptr(&self.send_cq).cmp(&Arc::as_ptr(&self.recv_cq)) {
            _ if self.shared.is_none() => (self.send_cq.lock(), None),
            Cmp::Equal => (self.send_cq.lock(), None),
            Cmp::Less => {
                let sends = self.send_cq.lock();
                (sends, Some(self.recv_cq.lock()))
            }
            Cmp::Greater => {
                let receives = self.recv_cq.lock();
                (self.send_cq.lock(), Some(receives))
            }
        }
    }

    /// Orphans its unpolled entries, which keep their places, and frees their receives of a shared queue.
    pub(super) fn orphan_entries(&self, completions: &mut CompletionState) {
        for receive in completions.orphan_entries(self.number) {
            self.shared.as_ref().and_then(|shared| shared.receives.retire(receive));
        }
    }

    fn reset(&self) -> Result<(), ResetError> {
        if self.failure().is_some() {
            // Prepared work completes, too.
            self.flush_unposted();
        }
        let refuse = |blocker| Err(ResetError::Blocked { qpn: self.number, blocker });
        for queue in [&self.send_cq, &self.recv_cq] {
            if queue.lock().is_lost() {
                return refuse(ResetBlocker::CompletionQueueLost(queue.number()));
            }
        }
        // Held to the end: no thread adds work to queues that are being reset.
        let (mut completions, mut arrivals) = self.lock_completions();
        let mut send = self.send();
        let mut recv = self.recv();
        if let Some(blocker) = send.blocker(self.failure().is_some(), completions.waits_ahead() > 0) {
            return refuse(blocker);
        }
        if !recv.is_empty() {
            return refuse(ResetBlocker::Receives(recv.len()));
        }
        if self.shared.is_some() {
            let arrivals = arrivals.as_mut().unwrap_or(&mut completions);
            let unpolled = arrivals.unpolled_of(self.number);
            if unpolled > 0 {
                return refuse(ResetBlocker::Receives(unpolled));
            }
            if arrivals.reopen_ended_waits() {
                return refuse(ResetBlocker::ReceiveWaits);
            }
        }
        if let Some((trigger, master)) = self.master() {
            // Its blocks are counted from 0 again: no release with an old index may remain.
            master.cancel_releases(trigger, self.number);
        }
        let mut status = self.status();
        self.is_ready.store(false, Ordering::Release);
        // Every completion was polled, except perhaps of unsignaled sends; so no old entry appears under the number
        // of the new queues. (libmlx5 would search for old ones, but leaves completion queues alone whose ring it
        // has given away.)
        self.to_state(verbs::IBV_QPS_RESET, "to RESET")?;
        let silent = send.outstanding();
        if silent.entries > 0 {
            self.orphan_entries(&mut completions);
            (0..silent.entries).for_each(|i| completions.unreserve(i < silent.signaled));
        }
        if self.shared.is_some() {
            // A receive that was being filled during the reset.
            self.orphan_entries(arrivals.as_mut().unwrap_or(&mut completions));
        }
        drop((completions, arrivals));
        send.reset();
        recv.reset();
        self.psn.store(next_psn(), Ordering::Relaxed);
        self.to_init()?;
        *status = QpState::Initialised;
        self.is_flushed.store(false, Ordering::Release);
        drop(status);
        if self.config.transport.is_addressed() {
            self.to_ready()?;
        }
        tracing::debug!(qpn = self.number, "queue pair reset");
        Ok(())
    }
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
