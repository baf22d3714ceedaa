//! Connecting a queue pair: addresses, and the attributes of each step of its state.

use crate::qp::create::QpObject;
use crate::qp::{QpState, QueuePair, QueuePairInner};
use crate::verbs::ah::path;
use crate::verbs::{
    Access, AddressHandle, ConnectOptions, Endpoint, Error, GidEntry, Mtu, OutOfRange, QueuePairError,
    Transport, call,
};
use gdsync_sys::verbs::{self, ibv_qp_attr};
use std::sync::atomic::Ordering;

/// The path MTU: the one asked for, or the largest that both ports take.
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
    /// The address of a remote port, reached from this queue pair's port and global identifier, for
    /// datagrams ([`crate::WorkRequest::to`]). `remote`'s queue pair number and packet sequence
    /// number are ignored; of the options, service level and global route count.
    ///
    /// # Errors
    /// [`PortError::OtherWire`](crate::verbs::PortError::OtherWire) where the remote port speaks
    /// another protocol, [`OutOfRange`] for options outside their ranges, [`Error::Verbs`] where
    /// the provider refuses.
    pub fn address_handle(&self, remote: &Endpoint, options: ConnectOptions) -> Result<AddressHandle, Error> {
        AddressHandle::new(&self.inner.domain.pd, self.inner.config.port, &self.inner.gid, remote, &options)
    }
}

impl QueuePairInner {
    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32, step: &'static str) -> Result<(), Error> {
        let pd = &self.domain.pd;
        let raw = match &self.object {
            QpObject::Verbs(qp) => qp.raw,
            QpObject::Devx(qp) => return qp.modify(pd, &self.config, self.gid.kind.link(), attr),
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
        };
        let mask = verbs::IBV_QP_STATE | verbs::IBV_QP_PKEY_INDEX | verbs::IBV_QP_PORT | own;
        self.modify(&mut attr, mask, "RESET to INIT")
    }

    /// A UD queue pair, which has nothing to connect to, becomes ready at once.
    pub(crate) fn to_ready(&self) -> Result<(), Error> {
        let mut status = self.status();
        self.to_state(verbs::IBV_QPS_RTR, "INIT to RTR")?;
        let sq_psn = self.psn.load(Ordering::Relaxed);
        let mut attr = ibv_qp_attr { qp_state: verbs::IBV_QPS_RTS, sq_psn, ..Default::default() };
        self.modify(&mut attr, verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN, "RTR to RTS")?;
        *status = QpState::Connected;
        self.connected.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn to_reset(&self) -> Result<(), Error> {
        self.to_state(verbs::IBV_QPS_RESET, "to RESET")
    }

    pub(crate) fn to_error(&self) -> Result<(), Error> {
        self.to_state(verbs::IBV_QPS_ERR, "to ERR")?;
        self.is_flushed.store(true, Ordering::Release);
        Ok(())
    }

    /// A step that takes no attributes.
    fn to_state(&self, qp_state: libc::c_int, step: &'static str) -> Result<(), Error> {
        self.modify(&mut ibv_qp_attr { qp_state, ..Default::default() }, verbs::IBV_QP_STATE, step)
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, Error> {
        let port = self.domain.pd.device.active_port(self.config.port)?;
        let mtu = port.mtu.ok_or(Error::QueuePair(QueuePairError::Layout { what: "port MTU", value: 0 }))?;
        let GidEntry { gid, kind, .. } = self.gid;
        Ok(Endpoint {
            qpn: self.number,
            psn: self.psn.load(Ordering::Relaxed),
            kind,
            lid: port.lid,
            gid,
            mtu,
        })
    }

    pub(crate) fn connect(&self, remote: &Endpoint, options: ConnectOptions) -> Result<(), Error> {
        let mut status = self.status();
        let (qpn, needed) = (self.number, "new (INIT)");
        let reliable = match self.config.transport {
            Transport::Rc => true,
            Transport::Uc => false,
            Transport::Ud => return Err(Error::QueuePair(QueuePairError::Connectionless { qpn })),
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
        let mut attr = ibv_qp_attr {
            qp_state: verbs::IBV_QPS_RTS,
            timeout: options.timeout,
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry,
            sq_psn: self.psn.load(Ordering::Relaxed),
            max_rd_atomic: options.max_reads,
            ..Default::default()
        };
        let mut mask = verbs::IBV_QP_STATE | verbs::IBV_QP_SQ_PSN;
        if reliable {
            mask |= verbs::IBV_QP_TIMEOUT
                | verbs::IBV_QP_RETRY_CNT
                | verbs::IBV_QP_RNR_RETRY
                | verbs::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(&mut attr, mask, "RTR to RTS")?;
        *status = QpState::Connected;
        self.connected.store(true, Ordering::Release);
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
