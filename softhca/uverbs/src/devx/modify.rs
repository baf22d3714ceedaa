//! Transitions of queue pairs, one opcode each.

use super::message::{check_length, done};
use super::status::{Refusal, Status, Syndrome};
use crate::context::Context;
use crate::verbs::port::PORT;
use gdsync_sys::prm::command::{ads, opcode, qp, qpc};
use softhca::card::{Access, Address, DataOrdering, LinkLayer, QpAttributes, QpChange, QpState, Transport};

/// Optional parameters of transitions that the card supports, or that have no effect on a card with one path
/// and one port.
const KNOWN: u32 = qp::OPT_ALT_ADDR_PATH
    | qp::OPT_RRE
    | qp::OPT_RAE
    | qp::OPT_RWE
    | qp::OPT_PKEY_INDEX
    | qp::OPT_Q_KEY
    | qp::OPT_RNR_TIMEOUT
    | qp::OPT_PRIMARY_ADDR_PATH
    | qp::OPT_SRA_MAX
    | qp::OPT_RRA_MAX
    | qp::OPT_PM_STATE
    | qp::OPT_RETRY_COUNT
    | qp::OPT_RNR_RETRY
    | qp::OPT_ACK_TIMEOUT
    | qp::OPT_PRI_PORT
    | qp::OPT_DSCP
    | qp::OPT_SGID_INDEX;

pub(super) fn is_transition(opcode: u16) -> bool {
    matches!(
        opcode,
        opcode::RST2INIT_QP
            | opcode::INIT2INIT_QP
            | opcode::INIT2RTR_QP
            | opcode::RTR2RTS_QP
            | opcode::RTS2RTS_QP
            | opcode::SQERR2RTS_QP
            | opcode::TO_ERR_QP
            | opcode::TO_RST_QP
    )
}

/// Returns the initial state of a transition with parameters, if the card has that state.
fn start_of(opcode: u16) -> Option<QpState> {
    match opcode {
        opcode::RST2INIT_QP => Some(QpState::Reset),
        opcode::INIT2INIT_QP | opcode::INIT2RTR_QP => Some(QpState::Init),
        opcode::RTR2RTS_QP => Some(QpState::Rtr),
        opcode::RTS2RTS_QP => Some(QpState::Rts),
        _ => None,
    }
}

pub(super) fn perform(
    context: &Context,
    number: u32,
    transport: Transport,
    opcode: u16,
    input: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let now = context.card().query_qp(number)?;
    let change = match opcode {
        opcode::TO_RST_QP => QpChange { state: Some(QpState::Reset), ..QpChange::default() },
        opcode::TO_ERR_QP => QpChange { state: Some(QpState::Err), ..QpChange::default() },
        _ => {
            check_length(input, qp::BYTES)?;
            if start_of(opcode) != Some(now.state) {
                return Err(wrong_state(opcode));
            }
            check_source_port(context, transport, opcode, input)?;
            Transition::read(context, transport, &now, input)?.change(opcode)?
        }
    };
    context.card().modify_qp(number, &change)?;
    Ok(done())
}

/// Returns the UDP source port that a command sets. The fabric has no UDP: the port has no effect, but comes back.
pub(super) fn source_port(opcode: u16, input: &[u8]) -> Option<u16> {
    let sets =
        opcode == opcode::RTS2RTS_QP && qp::OPT_PARAM_MASK_95_32.get(input) & qp::OPT_32_UDP_SPORT != 0;
    sets.then(|| ads::UDP_SPORT.get(&input[qp::CONTEXT..qp::CONTEXT + qpc::BYTES]) as u16)
}

/// Checks the further optional parameters: connections on Ethernet change their UDP source port in RTS.
fn check_source_port(
    context: &Context,
    transport: Transport,
    opcode: u16,
    input: &[u8],
) -> Result<(), Refusal> {
    if ![opcode::INIT2INIT_QP, opcode::RTS2RTS_QP].contains(&opcode) {
        return Ok(());
    }
    let is_connection = matches!(transport, Transport::Rc | Transport::Uc);
    let has_port = is_connection && context.card().link_layer() == LinkLayer::Ethernet;
    let known = if has_port && opcode == opcode::RTS2RTS_QP { qp::OPT_32_UDP_SPORT } else { 0 };
    match qp::OPT_PARAM_MASK_95_32.get(input) & !known {
        0 => Ok(()),
        mask => {
            let limit =
                "a UDP source port (4) of RC or UC on Ethernet in RTS2RTS, else 0 (opt_param_mask_95_32)";
            Err(Refusal::parameter(Syndrome::QpParameterMask, mask, limit))
        }
    }
}

fn wrong_state(opcode: u16) -> Refusal {
    let limit = "an opcode whose first state is the queue pair's";
    Refusal::new(Status::BadQpState, Syndrome::QpState, opcode.into(), limit)
}

/// Returns the order of messages that a context forces, by `dp_ordering_1` and `dp_ordering_0`.
pub(super) fn data_ordering(
    [high, low]: [u8; 2],
    is_forced: bool,
    syndrome: Syndrome,
) -> Result<Option<DataOrdering>, Refusal> {
    let code = high << 1 | low;
    let limit = "IBTA (0), OOO_RW (1) or OOO_ALL (2) (dp_ordering_1, dp_ordering_0)";
    let ordering = DataOrdering::of_code(code).ok_or_else(|| Refusal::parameter(syndrome, code, limit))?;
    Ok(is_forced.then_some(ordering))
}

struct Transition<'a> {
    transport: Transport,
    now: &'a QpAttributes,
    link: LinkLayer,
    gids: usize,
    mask: u32,
    /// `qpc`.
    asked: &'a [u8],
}

impl<'a> Transition<'a> {
    fn read(
        context: &Context,
        transport: Transport,
        now: &'a QpAttributes,
        input: &'a [u8],
    ) -> Result<Self, Refusal> {
        let mask = qp::OPT_PARAM_MASK.get32(input);
        if mask & !KNOWN != 0 {
            let limit = "optional parameters that the card has";
            return Err(Refusal::parameter(Syndrome::QpParameterMask, mask & !KNOWN, limit));
        }
        let asked = &input[qp::CONTEXT..qp::CONTEXT + qpc::BYTES];
        if qp::QPC_EXT.is_set(input) {
            return Err(Refusal::parameter(Syndrome::QpExtension, 1u8, "no extended context (qpc_ext 0)"));
        }
        let (link, gids) = (context.card().link_layer(), context.card().gids().len());
        let transition = Transition { transport, now, link, gids, mask, asked };
        if transition.has(qp::OPT_SGID_INDEX) {
            transition.check_source()?;
        }
        Ok(transition)
    }

    fn change(&self, opcode: u16) -> Result<QpChange, Refusal> {
        match opcode {
            opcode::RST2INIT_QP => Ok(self.to_init()),
            opcode::INIT2INIT_QP => Ok(self.optional(QpState::Init)),
            opcode::INIT2RTR_QP => self.to_rtr(),
            opcode::RTR2RTS_QP => Ok(self.to_rts()),
            _ => Ok(self.optional(QpState::Rts)),
        }
    }

    fn has(&self, bit: u32) -> bool {
        self.mask & bit != 0
    }

    fn access(&self) -> Access {
        let mut access = Access::empty();
        access.set(Access::REMOTE_READ, qpc::RRE.is_set(self.asked));
        access.set(Access::REMOTE_WRITE, qpc::RWE.is_set(self.asked));
        let performs_atomics = qpc::ATOMIC_MODE.get8(self.asked) != qpc::ATOMIC_NONE;
        access.set(Access::REMOTE_ATOMIC, qpc::RAE.is_set(self.asked) && performs_atomics);
        access
    }

    /// The change to `state` with the optional parameters that the mask selects.
    fn optional(&self, state: QpState) -> QpChange {
        let rights = [
            (qp::OPT_RRE, Access::REMOTE_READ),
            (qp::OPT_RWE, Access::REMOTE_WRITE),
            (qp::OPT_RAE, Access::REMOTE_ATOMIC),
        ];
        let mut access = self.now.access;
        for (_, right) in rights.iter().filter(|(bit, _)| self.has(*bit)) {
            access.set(*right, self.access().contains(*right));
        }
        let asked = self.asked;
        QpChange {
            state: Some(state),
            access: self.has(qp::OPT_RRE | qp::OPT_RWE | qp::OPT_RAE).then_some(access),
            pkey_index: self.has(qp::OPT_PKEY_INDEX).then(|| ads::PKEY_INDEX.get(asked) as u16),
            port: self.has(qp::OPT_PRI_PORT).then(|| self.port()),
            qkey: self.has(qp::OPT_Q_KEY).then(|| qpc::Q_KEY.get32(asked)),
            min_rnr_timer: self.has(qp::OPT_RNR_TIMEOUT).then(|| qpc::MIN_RNR_NAK.get8(asked)),
            path_migration: self.has(qp::OPT_PM_STATE),
            alternate_path: self.has(qp::OPT_ALT_ADDR_PATH),
            ..QpChange::default()
        }
    }

    /// Cards with one port also accept 0 for it.
    fn port(&self) -> u8 {
        match ads::VHCA_PORT_NUM.get8(self.asked) {
            0 => PORT,
            port => port,
        }
    }

    fn is_ud(&self) -> bool {
        self.transport == Transport::Ud
    }

    /// A DC initiator grants no rights, and has no destination.
    fn is_initiator(&self) -> bool {
        self.transport == Transport::DcInitiator
    }

    fn to_init(&self) -> QpChange {
        QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(ads::PKEY_INDEX.get(self.asked) as u16),
            port: Some(self.port()),
            access: (!self.is_ud() && !self.is_initiator()).then(|| self.access()),
            qkey: self.is_ud().then(|| qpc::Q_KEY.get32(self.asked)),
            ..QpChange::default()
        }
    }

    fn to_rtr(&self) -> Result<QpChange, Refusal> {
        let (ordering, log_msg_max) = (self.ordering()?, Some(qpc::LOG_MSG_MAX.get8(self.asked)));
        let mut change = QpChange { ordering, log_msg_max, ..self.optional(QpState::Rtr) };
        if self.is_initiator() {
            return Ok(QpChange {
                log_msg_max,
                state: Some(QpState::Rtr),
                path_mtu: Some(qpc::MTU.get8(self.asked).into()),
                ordering,
                ..QpChange::default()
            });
        }
        if !self.is_ud() {
            change.address = Some(self.address()?);
            change.path_mtu = Some(qpc::MTU.get8(self.asked).into());
            change.dest_qpn = Some(qpc::REMOTE_QPN.get32(self.asked));
            change.rq_psn = Some(qpc::NEXT_RCV_PSN.get32(self.asked));
        }
        if self.transport == Transport::Rc {
            change.max_dest_rd_atomic = Some(1 << qpc::LOG_RRA_MAX.get8(self.asked));
            change.min_rnr_timer = Some(qpc::MIN_RNR_NAK.get8(self.asked));
        }
        Ok(change)
    }

    /// Returns the order of messages that the context forces. Without force, it allows what the network does anyway.
    fn ordering(&self) -> Result<Option<DataOrdering>, Refusal> {
        let bits = [qpc::DP_ORDERING_1, qpc::DP_ORDERING_0].map(|field| field.get8(self.asked));
        data_ordering(bits, qpc::DP_ORDERING_FORCE.is_set(self.asked), Syndrome::QpContext)
    }

    fn to_rts(&self) -> QpChange {
        let mut change = if self.is_initiator() {
            QpChange { state: Some(QpState::Rts), ..QpChange::default() }
        } else {
            self.optional(QpState::Rts)
        };
        change.sq_psn = Some(qpc::NEXT_SEND_PSN.get32(self.asked));
        if self.transport == Transport::Rc || self.is_initiator() {
            change.max_rd_atomic = Some(1 << qpc::LOG_SRA_MAX.get8(self.asked));
            change.timeout = Some(ads::ACK_TIMEOUT.get8(self.asked));
            change.retry_cnt = Some(qpc::RETRY_COUNT.get8(self.asked));
            change.rnr_retry = Some(qpc::RNR_RETRY.get8(self.asked));
        }
        change
    }

    fn check_source(&self) -> Result<(), Refusal> {
        let source = ads::SRC_ADDR_INDEX.get8(self.asked);
        if usize::from(source) < self.gids {
            return Ok(());
        }
        let limit = "an index of the port's table of GIDs (src_addr_index)";
        Err(Refusal::parameter(Syndrome::AddressPath, source, limit))
    }

    /// Returns the primary path. On Ethernet it always has a GID, regardless of `grh`.
    fn address(&self) -> Result<Address, Refusal> {
        let is_global = self.link == LinkLayer::Ethernet || ads::GRH.is_set(self.asked);
        if is_global {
            self.check_source()?;
        }
        let [high, low] = ads::RGID.map(|field| u128::from(field.get(self.asked)));
        Ok(Address {
            dlid: ads::RLID.get(self.asked) as u16,
            gid: is_global.then(|| (high << 64 | low).to_be_bytes()),
        })
    }
}
