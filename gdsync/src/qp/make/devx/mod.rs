//! Queues made by commands of the device (DEVX) instead of verbs. Their memory may be anything that can be
//! registered with the device, also GPU memory, which the kernel does not accept for queues made by verbs.
//!
//! `domain` gives commands and has a doorbell register, `memory` registers queue memory, and `sizes` computes queue
//! sizes. [`crate::queue`] drives the queues, as it does those made by verbs.
//!
//! Asynchronous events of such queues are not reported: the device delivers them on another kind of channel
//! (`mlx5dv_devx_create_event_channel`), which is not read. Events of ports and devices are.

mod domain;
mod memory;
#[deny(unsafe_code)]
mod sizes;
#[cfg(test)]
mod tests;

pub(crate) use domain::Domain;

use self::domain::Object;
use self::memory::Blocks;
use self::sizes::Sizes;
use crate::qp::QueuePairConfig;
use crate::qp::make::Role;
use crate::queue::{Ring, WorkQueues};
use crate::verbs::{
    DeviceAttributes, DeviceInner, DevxError, Error, LinkLayer, ProtectionDomainInner, Transport, ah,
};
use gdsync_sys::api::DevxApi;
use gdsync_sys::prm::command::encode::{
    CreateCq, CreateQp, Peer, RemoteRights, Retries, Route, Service, Transition,
};
use gdsync_sys::prm::cqe::CQE_SIZE;
use gdsync_sys::prm::doorbell::{DBR_CQ_CI, DBR_RECV, DBR_SEND};
use gdsync_sys::prm::wqe::BASIC_BLOCK;
use gdsync_sys::verbs::{self, ibv_qp_attr};
use std::sync::Arc;

/// Names the first size of a queue pair that exceeds a limit of the device.
pub(crate) fn check_sizes(config: &QueuePairConfig<'_>, device: &DeviceAttributes) -> Result<(), Error> {
    Sizes::new(config, device).map(drop)
}

pub(super) fn api_of(device: &DeviceInner) -> Result<&'static DevxApi, DevxError> {
    device.api.devx.as_ref().ok_or_else(|| DevxError::Unavailable {
        device: device.name.to_owned(),
        reason: "its provider has no DEVX: it is the software card of this process, or libmlx5 is older than rdma-core 21",
    })
}

#[derive(Debug)]
pub(crate) struct Cq {
    // In this order: the device destroys the queue before its memory is released.
    object: Object,
    _memory: Blocks,
}

impl Cq {
    /// Makes a queue of at least `entries` entries. Returns it with its ring, which must not outlive it.
    pub(crate) fn new(domain: &Domain, entries: u32) -> Result<(Self, Ring), Error> {
        let most = domain.device.attributes()?.max_completions;
        let entries = sizes::completion_entries(entries, most)?;
        let ring_bytes = entries as usize * CQE_SIZE;
        let memory = Blocks::register(
            &domain.device,
            ring_bytes,
            &domain.sources.completions,
            &domain.sources.records,
        )?;
        // SAFETY: ring and record are inside the memory, which `Blocks` keeps mapped and is aligned
        // to a page; entries are a power of two. Only the card accesses it besides.
        let ring = unsafe { Ring::new(memory.at(0), entries, CQE_SIZE, memory.record(DBR_CQ_CI)) };
        let command = CreateCq {
            ring: memory.place(),
            record: memory.record_place(),
            log_entries: entries.trailing_zeros(),
            uar_page: domain.uar.page,
            event_queue: domain.event_queue,
            ignore_overrun: false,
        };
        let detail = || format!("{entries} entries");
        let object = Object::create(&domain.device, "CREATE_CQ", &command.encode(), detail)?;
        Ok((Cq { object, _memory: memory }, ring))
    }

    pub(crate) fn number(&self) -> u32 {
        self.object.number
    }
}

/// The user index of queue pairs, which completion entries carry and nothing here reads (`MLX5_IB_DEFAULT_UIDX`).
const NO_INDEX: u32 = 0xff_ffff;

#[derive(Debug)]
pub(crate) struct Qp {
    // In this order: the device destroys the queue pair before its memory is released.
    object: Object,
    _memory: Blocks,
}

fn service(transport: Transport) -> Service {
    match transport {
        // `create::in_domain` refuses DC.
        Transport::Rc | Transport::Dc => Service::Rc,
        Transport::Uc => Service::Uc,
        Transport::Ud => Service::Ud,
    }
}

impl Qp {
    /// Makes a queue pair that completes in the queues of these numbers.
    pub(crate) fn make(
        domain: &Domain,
        config: &QueuePairConfig<'_>,
        (send_cq, recv_cq): (u32, u32),
        role: Role,
    ) -> Result<(Self, WorkQueues), Error> {
        let sizes = Sizes::new(config, &domain.device.attributes()?)?;
        let memory = Blocks::register(
            &domain.device,
            sizes.ring_bytes(),
            &domain.sources.work,
            &domain.sources.records,
        )?;
        let ring = |offset, entries, stride, record| {
            // SAFETY: rings and records are inside the memory, which `Blocks` keeps mapped and is
            // aligned to a page; counts are powers of two. Only the card accesses it besides.
            unsafe { Ring::new(memory.at(offset), entries, stride, memory.record(record)) }
        };
        let sq = ring(sizes.send_offset(), sizes.sq_blocks, BASIC_BLOCK, DBR_SEND);
        let rq = ring(0, sizes.rq_entries, sizes.rq_stride as usize, DBR_RECV);
        let command = CreateQp {
            service: service(config.transport),
            pd: domain.pd,
            rings: memory.place(),
            record: memory.record_place(),
            log_rq_entries: sizes.rq_entries.trailing_zeros(),
            log_rq_stride: (sizes.rq_stride / 16).trailing_zeros(),
            log_sq_blocks: sizes.sq_blocks.trailing_zeros(),
            uar_page: domain.uar.page,
            send_cq,
            recv_cq,
            user_index: NO_INDEX,
            ts_format: domain.ts_format,
            master: role == Role::Master,
            slave_send: role == Role::Slave,
            ..CreateQp::default()
        };
        let object =
            Object::create(&domain.device, "CREATE_QP", &command.encode(), || format!("{config:?}"))?;
        let queues = WorkQueues {
            number: object.number,
            sq,
            rq: Some(rq),
            register: domain.uar.register,
            send_segments: config.send_segments,
            inline: sizes.inline,
            recv_segments: sizes.recv_segments,
        };
        Ok((Qp { object, _memory: memory }, queues))
    }

    /// Executes QUERY_QP.
    pub(crate) fn query(&self, input: &[u8], output: &mut [u8]) -> Result<(), Error> {
        self.object.query("QUERY_QP", input, output)
    }

    /// Makes the transition that `ibv_modify_qp` makes for these attributes, which name the new state. `link` is
    /// the port's.
    pub(crate) fn modify(
        &self,
        pd: &Arc<ProtectionDomainInner>,
        config: &QueuePairConfig<'_>,
        link: LinkLayer,
        attr: &ibv_qp_attr,
    ) -> Result<(), Error> {
        self.object.modify(&transition(pd, config, link, attr)?)
    }
}

fn transition(
    pd: &Arc<ProtectionDomainInner>,
    config: &QueuePairConfig<'_>,
    link: LinkLayer,
    attr: &ibv_qp_attr,
) -> Result<Transition, Error> {
    Ok(match attr.qp_state {
        verbs::IBV_QPS_INIT => {
            let allows = |right: u32| config.transport != Transport::Ud && attr.qp_access_flags & right != 0;
            Transition::ResetToInit {
                port: attr.port_num,
                pkey_index: attr.pkey_index,
                qkey: attr.qkey,
                rights: RemoteRights {
                    read: allows(verbs::IBV_ACCESS_REMOTE_READ),
                    write: allows(verbs::IBV_ACCESS_REMOTE_WRITE),
                    atomic: allows(verbs::IBV_ACCESS_REMOTE_ATOMIC),
                },
            }
        }
        verbs::IBV_QPS_RTR => Transition::InitToReady {
            port: config.port,
            peer: match config.transport {
                Transport::Ud => None,
                Transport::Rc | Transport::Uc | Transport::Dc => Some(Peer {
                    // The kernel knows the remote port's Ethernet address; a command has to name it.
                    route: Route {
                        vector: ah::resolve(pd, &attr.ah_attr)?,
                        ethernet: link == LinkLayer::Ethernet,
                    },
                    mtu: attr.path_mtu as u8,
                    qpn: attr.dest_qp_num,
                    psn: attr.rq_psn,
                    log_reads: log_of(attr.max_dest_rd_atomic),
                    min_rnr_timer: attr.min_rnr_timer,
                }),
            },
        },
        verbs::IBV_QPS_RTS => Transition::ReadyToSend {
            psn: attr.sq_psn,
            retries: Retries {
                timeout: attr.timeout,
                count: attr.retry_cnt,
                rnr: attr.rnr_retry,
                log_reads: log_of(attr.max_rd_atomic),
            },
        },
        verbs::IBV_QPS_RESET => Transition::ToReset,
        _ => Transition::ToError,
    })
}

/// Returns the logarithm of the next power of two, as the kernel does: devices have no other counts.
fn log_of(count: u8) -> u32 {
    u32::from(count).next_power_of_two().trailing_zeros()
}
