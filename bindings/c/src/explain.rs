//! Why a provider has refused the arguments of a call, for errors: libibverbs returns EINVAL alone. Pure.

use gdsync::verbs::Transport;
use gdsync_sys::verbs::{self, IBV_LINK_LAYER_ETHERNET, ibv_ah_attr, ibv_port_attr, ibv_qp_attr};
use libc::c_int;

/// Names of bits.
macro_rules! names {
    ($($name:ident)+) => { &[$((verbs::$name, stringify!($name))),+] };
}

type Names = &'static [(u32, &'static str)];

const ATTRIBUTES: Names = names![
    IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS IBV_QP_QKEY IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN
    IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_SQ_PSN
    IBV_QP_MAX_QP_RD_ATOMIC
];
const ACCESS: Names = names![
    IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC IBV_ACCESS_MW_BIND
    IBV_ACCESS_RELAXED_ORDERING
];
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

fn in_words(bits: u32, names: Names) -> String {
    let set: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    set.join(", ")
}

/// Returns the attributes that a change of state needs; none if there is no such change.
fn required(transport: Transport, from: c_int, to: c_int) -> Option<u32> {
    use verbs::*;
    let of_reliable = |bits| if transport == Transport::Rc { bits } else { 0 };
    let is_datagram = transport == Transport::Ud;
    Some(match (from, to) {
        (IBV_QPS_RESET, IBV_QPS_INIT) => {
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | if is_datagram { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS }
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) if is_datagram => 0,
        (IBV_QPS_INIT, IBV_QPS_RTR) => {
            let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            path | of_reliable(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
        }
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
            IBV_QP_SQ_PSN | of_reliable(retries)
        }
        (IBV_QPS_INIT, IBV_QPS_INIT) | (IBV_QPS_RTS, IBV_QPS_RTS) | (_, IBV_QPS_RESET | IBV_QPS_ERR) => 0,
        _ => return None,
    })
}

/// The limits of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceLimits {
    pub(crate) ports: u8,
    pub(crate) reads: u32,
}

/// Why `ibv_modify_qp` has refused to change a queue pair that is in the state `from`.
pub(crate) fn change(
    transport: Transport,
    from: c_int,
    attr: &ibv_qp_attr,
    mask: u32,
    device: DeviceLimits,
) -> Option<String> {
    let to = if mask & verbs::IBV_QP_STATE != 0 { attr.qp_state } else { from };
    let name = |state: c_int| usize::try_from(state).ok().and_then(|state| STATES.get(state)).copied();
    let Some(to_name) = name(to) else {
        return Some(format!("attr->qp_state is {to}, but states are 0 (RESET) to 6 (ERR)"));
    };
    let from_name = name(from).unwrap_or("an unknown state");
    let Some(required) = required(transport, from, to) else {
        return Some(format!(
            "a queue pair in {from_name} cannot become {to_name}: change it to INIT, then RTR, then RTS"
        ));
    };
    let missing = in_words(required & !mask, ATTRIBUTES);
    if !missing.is_empty() {
        return Some(format!(
            "the change from {from_name} to {to_name} needs {missing}, which attr_mask lacks"
        ));
    }
    let reads = device.reads;
    let ranges = [
        (verbs::IBV_QP_PORT, "port_num", attr.port_num.into(), 1, device.ports.into()),
        (verbs::IBV_QP_PATH_MTU, "path_mtu", attr.path_mtu.into(), 1, 5),
        (verbs::IBV_QP_DEST_QPN, "dest_qp_num", attr.dest_qp_num.into(), 0, 0xff_ffff),
        (verbs::IBV_QP_RQ_PSN, "rq_psn", attr.rq_psn.into(), 0, 0xff_ffff),
        (verbs::IBV_QP_SQ_PSN, "sq_psn", attr.sq_psn.into(), 0, 0xff_ffff),
        (
            verbs::IBV_QP_MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
            0,
            reads.into(),
        ),
        (verbs::IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), 0, reads.into()),
        (verbs::IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 0, 31),
        (verbs::IBV_QP_TIMEOUT, "timeout", attr.timeout.into(), 0, 31),
        (verbs::IBV_QP_RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 0, 7),
        (verbs::IBV_QP_RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 0, 7),
    ];
    let wrong = |(bit, _, value, least, most): &(u32, &str, i64, i64, i64)| {
        mask & bit != 0 && !(*least..=*most).contains(value)
    };
    let (_, what, value, least, most) = ranges.into_iter().find(wrong)?;
    Some(format!("attr->{what} is {value}, but {least} to {most} are possible"))
}

/// Why `ibv_reg_mr` has refused memory.
pub(crate) fn registration(addr: usize, length: usize, access: c_int) -> Option<String> {
    let access = access as u32;
    let known = ACCESS.iter().fold(0, |bits, (bit, _)| bits | bit);
    let remote = access & (verbs::IBV_ACCESS_REMOTE_WRITE | verbs::IBV_ACCESS_REMOTE_ATOMIC);
    if length == 0 {
        return Some("length is 0, but a region has 1 byte or more".to_owned());
    }
    if access & !known != 0 {
        let possible = in_words(known, ACCESS);
        return Some(format!("access has {:#x}, but only these are possible: {possible}", access & !known));
    }
    if remote != 0 && access & verbs::IBV_ACCESS_LOCAL_WRITE == 0 {
        return Some(format!(
            "access has {}, but not IBV_ACCESS_LOCAL_WRITE, which it needs",
            in_words(remote, ACCESS)
        ));
    }
    let to = if access & verbs::IBV_ACCESS_LOCAL_WRITE != 0 { "write" } else { "read" };
    Some(format!("the process may not {to} all of the {length} bytes from {addr:#x}: map them before"))
}

/// Why `ibv_create_ah` has refused an address at a port with these attributes; none: the device has no such port.
pub(crate) fn address(attr: &ibv_ah_attr, port: Option<&ibv_port_attr>, ports: u8) -> Option<String> {
    let Some(port) = port else { return Some(no_port("attr->port_num", attr.port_num, ports)) };
    if port.link_layer == IBV_LINK_LAYER_ETHERNET && attr.is_global == 0 {
        return Some(
            "attr->is_global is 0, but ports of Ethernet have GIDs alone: set it, and attr->grh.dgid"
                .to_owned(),
        );
    }
    let index = c_int::from(attr.grh.sgid_index);
    (attr.is_global != 0 && index >= port.gid_tbl_len)
        .then(|| format!("attr->grh.sgid_index is {index}, but the port has {} GIDs", port.gid_tbl_len))
}

/// The words for a port that the device does not have.
pub(crate) fn no_port(what: &str, port: u8, ports: u8) -> String {
    let unset = if port == 0 { " (not set)" } else { "" };
    format!("{what} is {port}{unset}, but the device has ports 1 to {ports}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::*;

    const LIMITS: DeviceLimits = DeviceLimits { ports: 2, reads: 16 };

    fn to(qp_state: c_int) -> ibv_qp_attr {
        ibv_qp_attr { qp_state, port_num: 1, path_mtu: 3, ..Default::default() }
    }

    fn why(transport: Transport, from: c_int, attr: &ibv_qp_attr, mask: u32) -> String {
        change(transport, from, attr, mask | IBV_QP_STATE, LIMITS).unwrap_or_default()
    }

    #[test]
    fn missing_attributes_are_named() {
        let mask = IBV_QP_PORT | IBV_QP_PKEY_INDEX;
        let said = why(Transport::Rc, IBV_QPS_RESET, &to(IBV_QPS_INIT), mask);
        assert_eq!(said, "the change from RESET to INIT needs IBV_QP_ACCESS_FLAGS, which attr_mask lacks");
        let said = why(Transport::Ud, IBV_QPS_RESET, &to(IBV_QPS_INIT), mask);
        assert!(said.contains("needs IBV_QP_QKEY,"), "{said}");
        let said = why(Transport::Rc, IBV_QPS_INIT, &to(IBV_QPS_RTR), IBV_QP_AV | IBV_QP_PATH_MTU);
        let missing = "IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER";
        assert_eq!(said, format!("the change from INIT to RTR needs {missing}, which attr_mask lacks"));
        let said = why(Transport::Uc, IBV_QPS_RTR, &to(IBV_QPS_RTS), 0);
        assert!(said.contains("needs IBV_QP_SQ_PSN,"), "{said}");
        assert_eq!(why(Transport::Ud, IBV_QPS_INIT, &to(IBV_QPS_RTR), 0), "");
        assert_eq!(why(Transport::Rc, IBV_QPS_RTS, &to(IBV_QPS_ERR), 0), "");
    }

    #[test]
    fn states_out_of_order_are_named() {
        let said = why(Transport::Rc, IBV_QPS_RESET, &to(IBV_QPS_RTS), 0);
        assert!(said.starts_with("a queue pair in RESET cannot become RTS:"), "{said}");
        assert!(why(Transport::Rc, IBV_QPS_RESET, &to(9), 0).starts_with("attr->qp_state is 9,"));
    }

    #[test]
    fn values_are_named_with_their_limits() {
        let mask = IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
        let attr = ibv_qp_attr { port_num: 9, ..to(IBV_QPS_INIT) };
        assert_eq!(
            why(Transport::Rc, IBV_QPS_RESET, &attr, mask),
            "attr->port_num is 9, but 1 to 2 are possible"
        );
        let mask = required(Transport::Rc, IBV_QPS_RTR, IBV_QPS_RTS).unwrap();
        let attr = ibv_qp_attr { max_rd_atomic: 17, ..to(IBV_QPS_RTS) };
        assert_eq!(
            why(Transport::Rc, IBV_QPS_RTR, &attr, mask),
            "attr->max_rd_atomic is 17, but 0 to 16 are possible"
        );
    }

    #[test]
    fn refused_memory_says_what_is_missing() {
        let why = |length, access: u32| registration(0x1000, length, access as c_int).unwrap();
        assert!(why(0, 1).starts_with("length is 0"));
        assert!(
            why(8, 1 << 30)
                .starts_with("access has 0x40000000, but only these are possible: IBV_ACCESS_LOCAL_WRITE,")
        );
        assert!(why(8, IBV_ACCESS_REMOTE_WRITE).contains("not IBV_ACCESS_LOCAL_WRITE"));
        assert!(why(8, 0).starts_with("the process may not read all of the 8 bytes from 0x1000"));
        assert!(why(8, 1).contains("may not write"));
    }

    #[test]
    fn refused_addresses_name_their_field() {
        let mut attr = ibv_ah_attr { port_num: 0, ..Default::default() };
        assert_eq!(
            address(&attr, None, 1).unwrap(),
            "attr->port_num is 0 (not set), but the device has ports 1 to 1"
        );
        let port =
            ibv_port_attr { gid_tbl_len: 4, link_layer: IBV_LINK_LAYER_ETHERNET, ..Default::default() };
        assert!(address(&attr, Some(&port), 1).unwrap().starts_with("attr->is_global is 0"));
        (attr.is_global, attr.grh.sgid_index) = (1, 4);
        assert_eq!(
            address(&attr, Some(&port), 1).unwrap(),
            "attr->grh.sgid_index is 4, but the port has 4 GIDs"
        );
        attr.grh.sgid_index = 3;
        assert_eq!(address(&attr, Some(&port), 1), None);
    }
}
