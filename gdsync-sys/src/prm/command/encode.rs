//! Encoding of commands: creation of queues, and transitions of a queue pair.
//!
//! All other fields are 0: no scatter-to-CQE, no compression, no signatures, the user memory's page size.

use super::{ads, cap, cq, cqc, header, opcode, qp, qpc};
use crate::prm::wqe::{AddressFields, AddressVector};

/// Bytes of a command that creates or modifies a queue.
pub const COMMAND: usize = qp::BYTES;
/// Bytes of its output: a header with the object's number.
pub const ANSWER: usize = header::BYTES;

const _: () = assert!(cq::BYTES == COMMAND);

/// A command's bytes.
pub type Command = [u8; COMMAND];

/// A position in registered user memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UmemPlace {
    pub id: u32,
    /// Bytes from the start.
    pub offset: u64,
}

/// `CREATE_CQ`: entries of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateCq {
    pub ring: UmemPlace,
    /// The doorbell record, 8 bytes.
    pub record: UmemPlace,
    /// Entries are 1 << this, at most 31.
    pub log_entries: u32,
    /// Page of the doorbell register that arms it.
    pub uar_page: u32,
    /// Event queue number from `mlx5dv_devx_query_eqn`.
    pub event_queue: u32,
    /// True if the card overwrites unconsumed entries.
    pub ignore_overrun: bool,
}

impl CreateCq {
    pub fn encode(&self) -> Command {
        let mut command = [0; COMMAND];
        header::OPCODE.put(&mut command, opcode::CREATE_CQ);
        cq::UMEM_OFFSET.put(&mut command, self.ring.offset);
        cq::UMEM_ID.put(&mut command, self.ring.id);
        cq::UMEM_VALID.put(&mut command, 1u8);
        let context = &mut command[cq::CONTEXT..cq::CONTEXT + cqc::BYTES];
        cqc::DBR_UMEM_VALID.put(context, 1u8);
        cqc::OI.put(context, self.ignore_overrun);
        cqc::DBR_UMEM_ID.put(context, self.record.id);
        cqc::DBR_ADDR.put(context, self.record.offset);
        cqc::LOG_CQ_SIZE.put(context, self.log_entries);
        cqc::UAR_PAGE.put(context, self.uar_page);
        cqc::C_EQN.put(context, self.event_queue);
        command
    }
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Service {
    #[default]
    Rc = qpc::ST_RC,
    Uc = qpc::ST_UC,
    Ud = qpc::ST_UD,
}

/// `CREATE_QP`: a receive queue and then a send queue in one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateQp {
    pub service: Service,
    pub pd: u32,
    pub rings: UmemPlace,
    /// The doorbell record, 8 bytes: receive, then send.
    pub record: UmemPlace,
    /// Receive entries are 1 << this, at most 15.
    pub log_rq_entries: u32,
    /// Bytes of a receive entry are 16 << this, at most 7.
    pub log_rq_stride: u32,
    /// Basic blocks of the send queue are 1 << this, at most 15.
    pub log_sq_blocks: u32,
    pub uar_page: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    /// Value of completion entries besides the queue pair's number, 24 bits.
    pub user_index: u32,
    /// Format of time stamps (`qpc::TS_*`).
    pub ts_format: u8,
    /// True if it may release the sends of other queue pairs (SEND_EN, `cd_master`).
    pub master: bool,
    /// True if another queue pair's SEND_EN may release its sends (`cd_slave_send`).
    pub slave_send: bool,
    /// True if sends have no doorbell record:
    /// [`Doorbell::without_record`](crate::prm::doorbell::Doorbell::without_record) rings it.
    pub no_send_record: bool,
}

impl CreateQp {
    pub fn encode(&self) -> Command {
        let mut command = [0; COMMAND];
        header::OPCODE.put(&mut command, opcode::CREATE_QP);
        qp::UMEM_OFFSET.put(&mut command, self.rings.offset);
        qp::UMEM_ID.put(&mut command, self.rings.id);
        qp::UMEM_VALID.put(&mut command, 1u8);
        let context = context(&mut command);
        qpc::ST.put(context, self.service as u8);
        qpc::PM_STATE.put(context, qpc::PM_MIGRATED);
        qpc::PD.put(context, self.pd);
        qpc::LOG_RQ_SIZE.put(context, self.log_rq_entries);
        qpc::LOG_RQ_STRIDE.put(context, self.log_rq_stride);
        qpc::LOG_SQ_SIZE.put(context, self.log_sq_blocks);
        qpc::TS_FORMAT.put(context, self.ts_format);
        qpc::SEND_DBR_MODE.put(context, if self.no_send_record { qpc::DBR_NONE } else { qpc::DBR_RECORD });
        qpc::CD_MASTER.put(context, self.master);
        qpc::CD_SLAVE_SEND.put(context, self.slave_send);
        qpc::UAR_PAGE.put(context, self.uar_page);
        qpc::USER_INDEX.put(context, self.user_index);
        qpc::CQN_SND.put(context, self.send_cq);
        qpc::CQN_RCV.put(context, self.recv_cq);
        qpc::RQ_TYPE.put(context, qpc::RQ_OWN);
        qpc::DBR_UMEM_VALID.put(context, 1u8);
        qpc::DBR_UMEM_ID.put(context, self.record.id);
        qpc::DBR_ADDR.put(context, self.record.offset);
        command
    }
}

fn context(command: &mut Command) -> &mut [u8] {
    &mut command[qp::CONTEXT..qp::CONTEXT + qpc::BYTES]
}

/// Access rights of a connection's remote side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRights {
    pub read: bool,
    pub write: bool,
    pub atomic: bool,
}

/// The path of a connection's packets to the remote port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address vector of an address handle. On Ethernet its LID is the UDP source port.
    pub vector: AddressVector,
    pub ethernet: bool,
}

/// Attributes of a connection for the transition to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub route: Route,
    /// Path MTU: the code of `enum ibv_mtu`.
    pub mtu: u8,
    pub qpn: u32,
    /// Its first packet sequence number.
    pub psn: u32,
    /// Log2 of the peer's outstanding reads and atomics (RC).
    pub log_reads: u32,
    /// Code of the RNR NAK timer, sent while no receive is posted (RC).
    pub min_rnr_timer: u8,
}

/// Retry attributes of a reliable connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retries {
    pub timeout: u8,
    pub count: u8,
    /// RNR retries; 7 means without limit.
    pub rnr: u8,
    /// Log2 of the outstanding reads and atomics.
    pub log_reads: u32,
}

/// A transition of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    ResetToInit {
        port: u8,
        pkey_index: u16,
        /// Q_Key (UD).
        qkey: u32,
        /// Rights of the remote side (RC, UC).
        rights: RemoteRights,
    },
    /// `INIT2RTR_QP`; UD has no peer.
    InitToReady {
        port: u8,
        /// The remote side (RC, UC).
        peer: Option<Peer>,
    },
    ReadyToSend {
        psn: u32,
        retries: Retries,
    },
    ToError,
    ToReset,
}

/// Longest message of a connection, as a power of two (`log_msg_max` of a device: 30).
const LOG_MESSAGE: u8 = 30;
/// Longest message of a datagram: its largest MTU, 4096 bytes, whose code is 5 (`enum ibv_mtu`).
const LOG_DATAGRAM: u8 = 12;
const DATAGRAM_MTU: u8 = 5;

impl Transition {
    /// Returns the command's name in the PRM.
    pub fn name(&self) -> &'static str {
        self.command().0
    }

    fn command(&self) -> (&'static str, u16) {
        match self {
            Transition::ResetToInit { .. } => ("RST2INIT_QP", opcode::RST2INIT_QP),
            Transition::InitToReady { .. } => ("INIT2RTR_QP", opcode::INIT2RTR_QP),
            Transition::ReadyToSend { .. } => ("RTR2RTS_QP", opcode::RTR2RTS_QP),
            Transition::ToError => ("2ERR_QP", opcode::TO_ERR_QP),
            Transition::ToReset => ("2RST_QP", opcode::TO_RST_QP),
        }
    }

    /// Encodes the command for queue pair `qpn`. Transitions to error and reset have no parameters, only a header.
    pub fn encode(&self, qpn: u32) -> Vec<u8> {
        let bare = matches!(self, Transition::ToError | Transition::ToReset);
        let mut command = vec![0; if bare { header::BYTES } else { COMMAND }];
        header::OPCODE.put(&mut command, self.command().1);
        header::NUMBER.put(&mut command, qpn);
        let Some(context) = command.get_mut(qp::CONTEXT..qp::CONTEXT + qpc::BYTES) else { return command };
        match *self {
            Transition::ResetToInit { port, pkey_index, qkey, rights } => {
                qpc::PM_STATE.put(context, qpc::PM_MIGRATED);
                ads::VHCA_PORT_NUM.put(context, port);
                ads::PKEY_INDEX.put(context, pkey_index);
                qpc::Q_KEY.put(context, qkey);
                qpc::RRE.put(context, rights.read);
                qpc::RWE.put(context, rights.write);
                qpc::RAE.put(context, rights.atomic);
                if rights.atomic {
                    qpc::ATOMIC_MODE.put(context, qpc::ATOMIC_IB_COMP);
                }
            }
            Transition::InitToReady { port, peer } => {
                ads::VHCA_PORT_NUM.put(context, port);
                match peer {
                    Some(peer) => peer.put(context),
                    None => {
                        qpc::MTU.put(context, DATAGRAM_MTU);
                        qpc::LOG_MSG_MAX.put(context, LOG_DATAGRAM);
                    }
                }
            }
            Transition::ReadyToSend { psn, retries } => {
                qpc::NEXT_SEND_PSN.put(context, psn);
                qpc::LOG_SRA_MAX.put(context, retries.log_reads);
                qpc::RETRY_COUNT.put(context, retries.count);
                qpc::RNR_RETRY.put(context, retries.rnr);
                ads::ACK_TIMEOUT.put(context, retries.timeout);
            }
            Transition::ToError | Transition::ToReset => {}
        }
        command
    }
}

impl Peer {
    fn put(&self, context: &mut [u8]) {
        qpc::MTU.put(context, self.mtu);
        qpc::LOG_MSG_MAX.put(context, LOG_MESSAGE);
        qpc::REMOTE_QPN.put(context, self.qpn);
        qpc::NEXT_RCV_PSN.put(context, self.psn);
        qpc::LOG_RRA_MAX.put(context, self.log_reads);
        qpc::MIN_RNR_NAK.put(context, self.min_rnr_timer);
        self.route.put(context);
    }
}

impl Route {
    /// Writes an address path like the kernel (`mlx5_set_path` of Linux).
    fn put(&self, context: &mut [u8]) {
        let AddressFields { static_rate, service_level, path_bits, dlid, mac, grh, .. } =
            self.vector.fields();
        // On Ethernet every path is global, although vectors do not mark it.
        let grh = if self.ethernet { Some(self.vector.route()) } else { grh };
        ads::STAT_RATE.put(context, static_rate);
        if self.ethernet {
            let [a, b, c, d, e, f] = mac;
            ads::RMAC[0].put(context, u16::from_be_bytes([a, b]));
            ads::RMAC[1].put(context, u32::from_be_bytes([c, d, e, f]));
            ads::UDP_SPORT.put(context, dlid);
            ads::ETH_PRIO.put(context, service_level & 7);
        } else {
            ads::RLID.put(context, dlid);
            ads::MLID.put(context, path_bits);
            ads::SL.put(context, service_level);
            ads::GRH.put(context, grh.is_some());
        }
        if let Some(grh) = grh {
            ads::SRC_ADDR_INDEX.put(context, grh.gid_index);
            ads::HOP_LIMIT.put(context, grh.hop_limit);
            ads::TCLASS.put(context, grh.traffic_class);
            ads::FLOW_LABEL.put(context, grh.flow_label);
            let gid = u128::from_be_bytes(grh.gid);
            ads::RGID[0].put(context, (gid >> 64) as u64);
            ads::RGID[1].put(context, gid as u64);
            if self.ethernet {
                // The upper 6 bits of a traffic class are the DSCP.
                ads::DSCP.put(context, grh.traffic_class >> 2);
            }
        }
    }
}

/// Encodes `QUERY_HCA_CAP` for the current values of one type of capabilities (`cap::TYPE_*`).
pub fn query_capabilities(kind: u64) -> [u8; header::BYTES] {
    let mut command = [0; header::BYTES];
    header::OPCODE.put(&mut command, opcode::QUERY_HCA_CAP);
    // The last bit selects current values instead of maximum values.
    header::OP_MOD.put(&mut command, kind << 1 | 1);
    command
}

/// Encodes `QUERY_QP` for a queue pair.
pub fn query_qp(number: u32) -> [u8; header::BYTES] {
    let mut command = [0; header::BYTES];
    header::OPCODE.put(&mut command, opcode::QUERY_QP);
    header::NUMBER.put(&mut command, number);
    command
}

/// Returns the data ordering ([`super::data_ordering`]) in the output of [`query_qp`], of [`qp::BYTES`].
pub fn data_ordering(output: &[u8]) -> u8 {
    let context = &output[qp::CONTEXT..];
    qpc::DP_ORDERING_1.get8(context) << 1 | qpc::DP_ORDERING_0.get8(context)
}

/// Bytes of the output of [`query_capabilities`].
pub const CAPABILITIES: usize = cap::BYTES;

#[cfg(test)]
mod tests;
