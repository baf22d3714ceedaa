//! MODIFY_QP: the table of transitions (`qp_state_table`, `modify_dci_qp_is_ok`), with every attribute for each of them.

use super::super::dc::create_initiator;
use super::super::xrc::{create_target, open_xrcd};
use super::*;
use ibv::*;

const RESET: u8 = 0;
const INIT: u8 = 1;
const RTR: u8 = 2;
const RTS: u8 = 3;
const SQD: u8 = 4;
const ERR: u8 = 6;
const STATES: [u8; 6] = [RESET, INIT, RTR, RTS, SQD, ERR];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Rc,
    Uc,
    Ud,
    XrcInitiator,
    XrcTarget,
    DcInitiator,
}
use Kind::*;

const FIRST: u32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT;
const RIGHTS: u32 = IBV_QP_ACCESS_FLAGS;
const CONNECT: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const ANSWER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
const RETRY: u32 = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// The core lets these pass; the driver has no command for SQD, and the card no path migration.
const ONLY_OF_THE_CORE: u32 = IBV_QP_ALT_PATH;

/// Required and optional attributes of a transition, beside the state; `None` if the core or the driver has none such.
fn rule(kind: Kind, from: u8, to: u8) -> Option<(u32, u32)> {
    let initial = match kind {
        Ud => FIRST | IBV_QP_QKEY,
        DcInitiator => FIRST,
        _ => FIRST | RIGHTS,
    };
    let migrates = RIGHTS | IBV_QP_PATH_MIG_STATE | IBV_QP_ALT_PATH | IBV_QP_CUR_STATE;
    let running = match kind {
        Ud => IBV_QP_CUR_STATE | IBV_QP_QKEY,
        DcInitiator => IBV_QP_MIN_RNR_TIMER,
        Uc | XrcInitiator => migrates,
        Rc | XrcTarget => migrates | IBV_QP_MIN_RNR_TIMER,
    };
    Some(match (from, to) {
        (_, RESET) => (0, 0),
        (RESET, INIT) => (initial, 0),
        (INIT, INIT) => (0, initial),
        (INIT | RTR | RTS | ERR, ERR) => (0, 0),
        (INIT, RTR) => match kind {
            Ud => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
            DcInitiator => (IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX | IBV_QP_AV),
            Uc | XrcInitiator => (CONNECT, RIGHTS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH),
            Rc | XrcTarget => (CONNECT | ANSWER, RIGHTS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH),
        },
        (RTR, RTS) => match kind {
            Ud | Uc => (IBV_QP_SQ_PSN, running),
            XrcTarget => (IBV_QP_SQ_PSN | IBV_QP_TIMEOUT, running),
            Rc | XrcInitiator | DcInitiator => (IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | RETRY, running),
        },
        (RTS, RTS) => (0, running),
        _ => return None,
    })
}

/// Attributes that have no effect (`modify_qp_mask`).
fn ignored(kind: Kind) -> u32 {
    match kind {
        XrcInitiator => ANSWER,
        XrcTarget => RETRY,
        _ => 0,
    }
}

fn change(device: &Device, qp_handle: u32, from: u8, to: u8, attr_mask: u32) -> i32 {
    let mut asked =
        ModifyQp { qp_handle, attr_mask, qp_state: to, cur_qp_state: from, ..ModifyQp::new_zeroed() };
    (asked.port_num, asked.path_mtu, asked.max_rd_atomic, asked.max_dest_rd_atomic) = (1, 3, 1, 1);
    (asked.dest.port_num, asked.alt_dest.port_num, asked.alt_port_num) = (1, 1, 1);
    errno_of(write(command::MODIFY_QP).input(attr::CORE_IN, &asked).run(device))
}

/// Brings a queue pair into a state that it can be in.
fn bring(device: &Device, kind: Kind, qp: u32, state: u8) {
    assert_eq!(change(device, qp, RESET, RESET, IBV_QP_STATE), 0);
    let way: &[u8] = match state {
        ERR => &[INIT, ERR],
        _ => &[INIT, RTR, RTS][..usize::from(state)],
    };
    let mut from = RESET;
    for &to in way {
        let (required, _) = rule(kind, from, to).unwrap();
        assert_eq!(change(device, qp, from, to, required | IBV_QP_STATE), 0, "{kind:?} {from} to {to}");
        from = to;
    }
}

#[test]
fn every_transition_takes_the_attributes_of_the_kernels_table() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let xrcd = open_xrcd(&device, -1, 0).unwrap();
    let kinds = [
        (Rc, create_qp(&device, &parts, 2, &asked).unwrap()),
        (Uc, create_qp(&device, &parts, 3, &asked).unwrap()),
        (Ud, create_qp(&device, &parts, 4, &asked).unwrap()),
        (XrcInitiator, create_qp(&device, &parts, 9, &asked).unwrap()),
        (XrcTarget, create_target(&device, xrcd, &asked).unwrap().0),
        (DcInitiator, create_initiator(&device, &mut parts, None).unwrap()),
    ];
    let bits = (0..21).map(|bit| 1u32 << bit).filter(|bit| *bit != IBV_QP_STATE);
    let mut differs = Vec::new();
    for (kind, qp) in kinds {
        for from in [RESET, INIT, RTR, RTS, ERR] {
            for to in STATES {
                let rule = rule(kind, from, to);
                let (required, optional) = rule.unwrap_or_default();
                let mut masks = vec![(required, rule.is_some())];
                for bit in bits.clone() {
                    let is_needed = required & bit & !ignored(kind) != 0;
                    let fits = (required | optional | ignored(kind)) & !ONLY_OF_THE_CORE & bit != 0;
                    masks.push((required ^ bit, rule.is_some() && fits && !is_needed));
                }
                for (mask, succeeds) in masks {
                    bring(&device, kind, qp, from);
                    let answer = change(&device, qp, from, to, mask | IBV_QP_STATE);
                    if answer != if succeeds { 0 } else { libc::EINVAL } {
                        differs.push(format!("{kind:?} {from} to {to}, mask {mask:#x}: {answer}"));
                    }
                }
            }
        }
    }
    assert!(differs.is_empty(), "{differs:#?}");
}

#[test]
fn without_a_state_the_queue_pair_keeps_its_own() {
    let device = Device::open();
    let mut parts = parts(&device);
    let asked = a_qp(&mut parts);
    let qp = create_qp(&device, &parts, 2, &asked).unwrap();
    let in_state = |state, mask| {
        bring(&device, Rc, qp, state);
        change(&device, qp, state, state, mask)
    };
    compare(&[
        ("ib_modify_qp_is_ok", "nothing in RESET", 0, in_state(RESET, 0)),
        ("ib_modify_qp_is_ok", "rights in INIT", 0, in_state(INIT, RIGHTS)),
        ("ib_modify_qp_is_ok", "nothing in RTR", libc::EINVAL, in_state(RTR, 0)),
        ("ib_modify_qp_is_ok", "rights in RTS", 0, in_state(RTS, RIGHTS)),
        ("ib_modify_qp_is_ok", "nothing in ERR", 0, in_state(ERR, 0)),
        ("modify_qp: SQD->SQD", "an address in RTS", libc::EINVAL, in_state(RTS, IBV_QP_AV)),
    ]);
}
