//! The state machine of queue pairs: its transitions, and the attributes that each one needs.
//!
//! Source: the kernel's `ib_modify_qp_is_ok` table (`drivers/infiniband/core/verbs.c`), and the value ranges of the
//! InfiniBand specification.

use crate::card::config::{
    InvalidValue, LIMITS, NUMBERS, PkeyTable, QpAttributes, QpChange, QpState, Transport,
};
use crate::packet::PSN_MASK;
use Transport::{DcInitiator, DcTarget, Uc, Ud, XrcInitiator, XrcTarget};

/// The reason why a queue pair cannot be changed as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transport has no such transition.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The transition lacks an attribute.
    #[error("the transition from {from:?} to {to:?} needs {attribute}")]
    Missing {
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// The attribute, by its name in `ibv_modify_qp`'s mask.
        attribute: &'static str,
    },
    /// The transition does not allow an attribute.
    #[error("the transition from {from:?} to {to:?} does not allow {attribute}")]
    Superfluous {
        /// Current state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// The attribute, by its name in `ibv_modify_qp`'s mask.
        attribute: &'static str,
    },
    /// A value is out of range.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
}

/// Returns the attributes that a change sets, by their names in `ibv_modify_qp`'s mask.
fn given(change: &QpChange) -> Vec<&'static str> {
    let all = [
        (change.current.is_some(), "IBV_QP_CUR_STATE"),
        (change.pkey_index.is_some(), "IBV_QP_PKEY_INDEX"),
        (change.port.is_some(), "IBV_QP_PORT"),
        (change.access.is_some(), "IBV_QP_ACCESS_FLAGS"),
        (change.address.is_some(), "IBV_QP_AV"),
        (change.path_mtu.is_some(), "IBV_QP_PATH_MTU"),
        (change.dest_qpn.is_some(), "IBV_QP_DEST_QPN"),
        (change.rq_psn.is_some(), "IBV_QP_RQ_PSN"),
        (change.sq_psn.is_some(), "IBV_QP_SQ_PSN"),
        (change.max_rd_atomic.is_some(), "IBV_QP_MAX_QP_RD_ATOMIC"),
        (change.max_dest_rd_atomic.is_some(), "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (change.min_rnr_timer.is_some(), "IBV_QP_MIN_RNR_TIMER"),
        (change.timeout.is_some(), "IBV_QP_TIMEOUT"),
        (change.retry_cnt.is_some(), "IBV_QP_RETRY_CNT"),
        (change.rnr_retry.is_some(), "IBV_QP_RNR_RETRY"),
        (change.qkey.is_some(), "IBV_QP_QKEY"),
        (change.path_migration, "IBV_QP_PATH_MIG_STATE"),
        (change.alternate_path, "IBV_QP_ALT_PATH"),
    ];
    all.into_iter().filter_map(|(set, name)| set.then_some(name)).collect()
}

type Names = &'static [&'static str];

/// Returns the attributes that a transition requires, and further ones that it allows. Returns `None` if the transition
/// does not exist.
fn rules(transport: Transport, from: QpState, to: QpState) -> Option<(Names, Names)> {
    use QpState::{Err, Init, Reset, Rtr, Rts};
    match transport {
        DcInitiator => return dc_initiator_rules(from, to),
        DcTarget => return dc_target_rules(from, to),
        _ => {}
    }
    let basic: Names = match transport {
        Ud => &["IBV_QP_PKEY_INDEX", "IBV_QP_PORT", "IBV_QP_QKEY"],
        _ => BASIC,
    };
    Some(match (from, to) {
        (_, Reset | Err) => (&[], &["IBV_QP_CUR_STATE"]),
        (Reset, Init) => (basic, &[]),
        (Init, Init) => (&[], basic),
        (Init, Rtr) => to_rtr(transport),
        (Rtr, Rts) => (to_rts(transport), running(transport)),
        (Rts, Rts) => (&[], running(transport)),
        _ => return None,
    })
}

const BASIC: Names = &["IBV_QP_PKEY_INDEX", "IBV_QP_PORT", "IBV_QP_ACCESS_FLAGS"];
const RUN: Names =
    &["IBV_QP_TIMEOUT", "IBV_QP_RETRY_CNT", "IBV_QP_RNR_RETRY", "IBV_QP_SQ_PSN", "IBV_QP_MAX_QP_RD_ATOMIC"];

/// Returns the driver's rules for DC initiators (`modify_dci_qp_is_ok`).
fn dc_initiator_rules(from: QpState, to: QpState) -> Option<(Names, Names)> {
    use QpState::{Err, Init, Reset, Rtr, Rts};
    const PORT: Names = &["IBV_QP_PKEY_INDEX", "IBV_QP_PORT"];
    Some(match (from, to) {
        (_, Reset) => (&[], &[]),
        (Init | Rtr | Rts | Err, Err) => (&[], &[]),
        (Reset, Init) => (PORT, &[]),
        (Init, Init) => (&[], PORT),
        (Init, Rtr) => (&["IBV_QP_PATH_MTU"], &["IBV_QP_PKEY_INDEX", "IBV_QP_AV"]),
        (Rtr, Rts) => (RUN, &["IBV_QP_MIN_RNR_TIMER"]),
        (Rts, Rts) => (&[], &["IBV_QP_MIN_RNR_TIMER"]),
        _ => return None,
    })
}

/// Returns the driver's rules for DC targets (`mlx5_ib_modify_dct`): only towards RTR.
fn dc_target_rules(from: QpState, to: QpState) -> Option<(Names, Names)> {
    Some(match (from, to) {
        (QpState::Reset, QpState::Init) => (BASIC, &[]),
        (QpState::Init, QpState::Rtr) => (&["IBV_QP_MIN_RNR_TIMER", "IBV_QP_AV", "IBV_QP_PATH_MTU"], &[]),
        _ => return None,
    })
}

fn to_rtr(transport: Transport) -> (Names, Names) {
    match transport {
        Uc | XrcInitiator => (
            &["IBV_QP_AV", "IBV_QP_PATH_MTU", "IBV_QP_DEST_QPN", "IBV_QP_RQ_PSN"],
            &["IBV_QP_ACCESS_FLAGS", "IBV_QP_PKEY_INDEX"],
        ),
        Ud => (&[], &["IBV_QP_PKEY_INDEX", "IBV_QP_QKEY"]),
        _ => (
            &[
                "IBV_QP_AV",
                "IBV_QP_PATH_MTU",
                "IBV_QP_DEST_QPN",
                "IBV_QP_RQ_PSN",
                "IBV_QP_MAX_DEST_RD_ATOMIC",
                "IBV_QP_MIN_RNR_TIMER",
            ],
            &["IBV_QP_ACCESS_FLAGS", "IBV_QP_PKEY_INDEX"],
        ),
    }
}

fn to_rts(transport: Transport) -> Names {
    match transport {
        XrcTarget => &["IBV_QP_TIMEOUT", "IBV_QP_SQ_PSN"],
        Uc | Ud => &["IBV_QP_SQ_PSN"],
        _ => RUN,
    }
}

/// Returns the attributes that may change on the way to RTS and in RTS.
fn running(transport: Transport) -> Names {
    match transport {
        Uc | XrcInitiator => &["IBV_QP_CUR_STATE", "IBV_QP_ACCESS_FLAGS", "IBV_QP_PATH_MIG_STATE"],
        Ud => &["IBV_QP_CUR_STATE", "IBV_QP_QKEY"],
        _ => &["IBV_QP_CUR_STATE", "IBV_QP_ACCESS_FLAGS", "IBV_QP_MIN_RNR_TIMER", "IBV_QP_PATH_MIG_STATE"],
    }
}

fn check_values(change: &QpChange, pkeys: &PkeyTable) -> Result<(), InvalidValue> {
    let in_range = |what, value: Option<u32>, max: u32, limit| match value {
        Some(value) => InvalidValue::unless(value <= max, what, value, limit),
        None => Ok(()),
    };
    let last = pkeys.keys().len() as u32 - 1;
    let limit = "less than the length of the port's table of partition keys, which SOFTHCA_PKEYS gives";
    in_range("pkey_index", change.pkey_index.map(u32::from), last, limit)?;
    if let Some(port) = change.port {
        InvalidValue::unless(port == 1, "port_num", port.into(), "the card has one port, number 1")?;
    }
    if let Some(mtu) = change.path_mtu.filter(|mtu| !(1..=5).contains(mtu)) {
        let (value, limit) = (mtu as u64, "IBV_MTU_256 to IBV_MTU_4096");
        return Err(InvalidValue { what: "path_mtu", value, limit });
    }
    in_range("dest_qp_num", change.dest_qpn, NUMBERS, "at most 24 bits")?;
    in_range("rq_psn", change.rq_psn, PSN_MASK, "at most 24 bits")?;
    in_range("sq_psn", change.sq_psn, PSN_MASK, "at most 24 bits")?;
    let reads = u32::from(LIMITS.max_rd_atomic);
    in_range("max_rd_atomic", change.max_rd_atomic.map(u32::from), reads, "at most 16")?;
    in_range("max_dest_rd_atomic", change.max_dest_rd_atomic.map(u32::from), reads, "at most 16")?;
    let longest = LIMITS.max_message.ilog2();
    in_range("log_msg_max", change.log_msg_max.map(u32::from), longest, "at most 30")?;
    in_range("min_rnr_timer", change.min_rnr_timer.map(u32::from), 31, "at most 5 bits")?;
    in_range("timeout", change.timeout.map(u32::from), 31, "at most 5 bits")?;
    in_range("retry_cnt", change.retry_cnt.map(u32::from), 7, "at most 3 bits")?;
    in_range("rnr_retry", change.rnr_retry.map(u32::from), 7, "at most 3 bits")
}

/// Checks a change of a queue pair in state `from`, at a port with this table of keys. Returns the new state.
pub(crate) fn check(
    transport: Transport,
    from: QpState,
    change: &QpChange,
    pkeys: &PkeyTable,
) -> Result<QpState, ModifyError> {
    let to = change.state.unwrap_or(from);
    if let Some(current) = change.current.filter(|current| *current != from) {
        return Err(ModifyError::Transition { from: current, to });
    }
    let (required, optional) = rules(transport, from, to).ok_or(ModifyError::Transition { from, to })?;
    let given = given(change);
    if let Some(attribute) = required.iter().find(|attribute| !given.contains(attribute)) {
        return Err(ModifyError::Missing { from, to, attribute });
    }
    let allowed = |attribute: &&str| required.contains(attribute) || optional.contains(attribute);
    if let Some(attribute) = given.into_iter().find(|attribute| !allowed(attribute)) {
        return Err(ModifyError::Superfluous { from, to, attribute });
    }
    check_values(change, pkeys)?;
    Ok(to)
}

pub(super) fn apply(attributes: &mut QpAttributes, change: &QpChange) {
    macro_rules! set {
        ($($field:ident)*) => { $(if let Some(value) = change.$field { attributes.$field = value; })* };
    }
    set!(pkey_index port qkey access address path_mtu dest_qpn rq_psn sq_psn);
    set!(log_msg_max max_rd_atomic max_dest_rd_atomic min_rnr_timer timeout retry_cnt rnr_retry);
    attributes.ordering = change.ordering.or(attributes.ordering);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::config::{Access, Address};

    fn check_of(transport: Transport, from: QpState, change: &QpChange) -> Result<QpState, ModifyError> {
        super::check(transport, from, change, &PkeyTable::default())
    }

    fn check(from: QpState, change: &QpChange) -> Result<QpState, ModifyError> {
        check_of(Transport::Rc, from, change)
    }

    fn to_init() -> QpChange {
        QpChange {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::empty()),
            ..QpChange::default()
        }
    }

    fn to_rtr() -> QpChange {
        QpChange {
            state: Some(QpState::Rtr),
            address: Some(Address::default()),
            path_mtu: Some(5),
            dest_qpn: Some(1),
            rq_psn: Some(0),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..QpChange::default()
        }
    }

    fn to_rts() -> QpChange {
        QpChange {
            state: Some(QpState::Rts),
            timeout: Some(1),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(0),
            max_rd_atomic: Some(1),
            ..QpChange::default()
        }
    }

    #[test]
    fn the_way_up_is_open_and_shortcuts_are_not() {
        use QpState::{Err as Failed, Init, Reset, Rtr, Rts};
        assert!(matches!(check(Reset, &to_init()), Ok(Init)));
        assert!(matches!(check(Init, &to_rtr()), Ok(Rtr)));
        assert!(matches!(check(Rtr, &to_rts()), Ok(Rts)));
        assert!(matches!(check(Reset, &to_rtr()), Err(ModifyError::Transition { from: Reset, to: Rtr })));
        assert!(matches!(check(Init, &to_rts()), Err(ModifyError::Transition { .. })));
        assert!(matches!(check(Failed, &to_init()), Err(ModifyError::Transition { .. })));
        for from in [Reset, Init, Rtr, Rts, Failed] {
            for to in [Reset, Failed] {
                let change = QpChange { state: Some(to), ..QpChange::default() };
                assert!(check(from, &change).is_ok_and(|state| state == to));
            }
        }
    }

    #[test]
    fn missing_and_superfluous_attributes_are_named() {
        let change = QpChange { path_mtu: None, ..to_rtr() };
        assert!(matches!(
            check(QpState::Init, &change),
            Err(ModifyError::Missing { attribute: "IBV_QP_PATH_MTU", .. })
        ));
        let change = QpChange { timeout: Some(1), ..to_rtr() };
        assert!(matches!(
            check(QpState::Init, &change),
            Err(ModifyError::Superfluous { attribute: "IBV_QP_TIMEOUT", .. })
        ));
        let change = QpChange { alternate_path: true, ..to_rtr() };
        assert!(matches!(check(QpState::Init, &change), Err(ModifyError::Superfluous { .. })));
        let change = QpChange { current: Some(QpState::Init), ..to_rts() };
        assert!(matches!(check(QpState::Rtr, &change), Err(ModifyError::Transition { .. })));
    }

    #[test]
    fn unreliable_transports_have_attributes_of_their_own() {
        use QpState::{Init, Reset, Rtr, Rts};
        let missing = |transport, from, change: QpChange| match check_of(transport, from, &change) {
            Err(ModifyError::Missing { attribute, .. }) => attribute,
            other => panic!("{other:?}"),
        };
        let superfluous = |transport, from, change: QpChange| match check_of(transport, from, &change) {
            Err(ModifyError::Superfluous { attribute, .. }) => attribute,
            other => panic!("{other:?}"),
        };
        let uc_rtr = QpChange { max_dest_rd_atomic: None, min_rnr_timer: None, ..to_rtr() };
        let ud_init = QpChange { access: None, qkey: Some(0x11), ..to_init() };
        let to = |state| QpChange { state: Some(state), ..QpChange::default() };
        let rts = QpChange { sq_psn: Some(0), ..to(Rts) };
        let good = [
            (Transport::Uc, Reset, to_init(), Init),
            (Transport::Uc, Init, uc_rtr, Rtr),
            (Transport::Uc, Rtr, rts, Rts),
            (Transport::Uc, Rts, QpChange { access: Some(Access::empty()), ..to(Rts) }, Rts),
            (Transport::Ud, Reset, ud_init, Init),
            (Transport::Ud, Init, QpChange { qkey: Some(1), ..to(Rtr) }, Rtr),
            (Transport::Ud, Rtr, rts, Rts),
            (Transport::Ud, Rts, QpChange { qkey: Some(1), ..to(Rts) }, Rts),
        ];
        for (transport, from, change, expected) in good {
            let state = check_of(transport, from, &change);
            assert!(matches!(state, Ok(state) if state == expected), "{transport} {from:?}: {state:?}");
        }
        assert_eq!(missing(Transport::Uc, Init, QpChange { rq_psn: None, ..uc_rtr }), "IBV_QP_RQ_PSN");
        assert_eq!(superfluous(Transport::Uc, Init, to_rtr()), "IBV_QP_MAX_DEST_RD_ATOMIC");
        assert_eq!(superfluous(Transport::Uc, Rtr, QpChange { timeout: Some(1), ..rts }), "IBV_QP_TIMEOUT");
        assert_eq!(missing(Transport::Uc, Rtr, to(Rts)), "IBV_QP_SQ_PSN");
        assert_eq!(missing(Transport::Ud, Reset, QpChange { qkey: None, ..ud_init }), "IBV_QP_QKEY");
        assert_eq!(
            superfluous(Transport::Ud, Reset, QpChange { access: Some(Access::empty()), ..ud_init }),
            "IBV_QP_ACCESS_FLAGS"
        );
        assert_eq!(superfluous(Transport::Ud, Init, uc_rtr), "IBV_QP_AV");
        assert_eq!(missing(Transport::Ud, Rtr, to(Rts)), "IBV_QP_SQ_PSN");
        assert_eq!(superfluous(Transport::Rc, Rts, QpChange { qkey: Some(1), ..to(Rts) }), "IBV_QP_QKEY");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let bad = |change: QpChange, from, name: &str| match check(from, &change) {
            Err(ModifyError::Invalid(InvalidValue { what, .. })) => assert_eq!(what, name),
            other => panic!("{name}: {other:?}"),
        };
        bad(QpChange { pkey_index: Some(1), ..to_init() }, QpState::Reset, "pkey_index");
        let three = "0xffff,0x8001,0x0002".parse().unwrap();
        let index = |index| QpChange { pkey_index: Some(index), ..to_init() };
        let of_three = |change| super::check(Transport::Rc, QpState::Reset, &change, &three);
        assert!(of_three(index(2)).is_ok() && of_three(index(3)).is_err());
        bad(QpChange { port: Some(0), ..to_init() }, QpState::Reset, "port_num");
        bad(QpChange { path_mtu: Some(6), ..to_rtr() }, QpState::Init, "path_mtu");
        bad(QpChange { dest_qpn: Some(1 << 24), ..to_rtr() }, QpState::Init, "dest_qp_num");
        bad(QpChange { rq_psn: Some(1 << 24), ..to_rtr() }, QpState::Init, "rq_psn");
        bad(QpChange { max_dest_rd_atomic: Some(17), ..to_rtr() }, QpState::Init, "max_dest_rd_atomic");
        bad(QpChange { min_rnr_timer: Some(32), ..to_rtr() }, QpState::Init, "min_rnr_timer");
        bad(QpChange { timeout: Some(32), ..to_rts() }, QpState::Rtr, "timeout");
        bad(QpChange { retry_cnt: Some(8), ..to_rts() }, QpState::Rtr, "retry_cnt");
        bad(QpChange { rnr_retry: Some(8), ..to_rts() }, QpState::Rtr, "rnr_retry");
        bad(QpChange { sq_psn: Some(1 << 24), ..to_rts() }, QpState::Rtr, "sq_psn");
        bad(QpChange { max_rd_atomic: Some(17), ..to_rts() }, QpState::Rtr, "max_rd_atomic");
    }
}
