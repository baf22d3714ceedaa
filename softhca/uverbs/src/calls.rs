//! The calls of libibverbs and libmlx5 behind commands, for messages: a program's author knows these,
//! not the numbers.

use crate::uapi::ioctl::DRIVER;

const UNKNOWN: &str = "a call that this version does not know";

/// The call behind a method that the card does not have (`enum uverbs_default_objects`, `enum
/// mlx5_ib_objects`).
pub(crate) fn of_method(object: u16, method: u16) -> &'static str {
    const PARTS: [&str; 18] = [
        "a query of the device",
        "a protection domain",
        "a completion channel",
        "a completion queue",
        "a queue pair",
        "a shared receive queue",
        "an address handle",
        "a memory region",
        "a memory window",
        "a flow (ibv_create_flow)",
        "an XRC domain (ibv_open_xrcd)",
        "an indirection table (ibv_create_rwq_ind_table)",
        "a work queue (ibv_create_wq)",
        "a flow action (ibv_create_flow_action_esp)",
        "device memory (ibv_alloc_dm)",
        "counters (ibv_create_counters)",
        "asynchronous events",
        "a DMA handle (ibv_alloc_dmah)",
    ];
    const DRIVERS_PARTS: [&str; 10] = [
        "DEVX",
        "a DEVX object",
        "DEVX user memory",
        "a flow matcher (mlx5dv_create_flow_matcher)",
        "asynchronous commands of DEVX",
        "events of DEVX",
        "a doorbell page of virtio (mlx5dv_alloc_var)",
        "packet pacing (mlx5dv_pp_alloc)",
        "a doorbell page",
        "a steering anchor (mlx5dv_create_steering_anchor)",
    ];
    match (object, method) {
        (7, 0) => "ibv_reg_dm_mr",
        (7, 2) => "ibv_advise_mr",
        (0..DRIVER, _) => PARTS.get(usize::from(object)).copied().unwrap_or(UNKNOWN),
        _ => DRIVERS_PARTS.get(usize::from(object - DRIVER)).copied().unwrap_or(UNKNOWN),
    }
}

/// The call behind a write command that the card does not have (`enum ib_uverbs_write_cmds`).
pub(crate) fn of_write(number: u32) -> &'static str {
    match number {
        7 => "ibv_query_ah",
        11 => "ibv_rereg_mr",
        14 | 16 => "ibv_alloc_mw",
        19 => "ibv_resize_cq",
        32 | 39 => "ibv_create_srq",
        33 => "ibv_modify_srq",
        34 => "ibv_query_srq",
        37 | 38 => "ibv_open_xrcd",
        40 => "ibv_open_qp",
        50 | 51 => "ibv_create_flow",
        52..=54 => "ibv_create_wq",
        55 | 56 => "ibv_create_rwq_ind_table",
        57 => "ibv_modify_cq",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_named_as_programs_call_them() {
        assert_eq!((of_method(7, 0), of_method(7, 2)), ("ibv_reg_dm_mr", "ibv_advise_mr"));
        assert!(of_method(10, 0).contains("ibv_open_xrcd"));
        assert!(of_method(DRIVER + 7, DRIVER).contains("mlx5dv_pp_alloc"));
        for unknown in [18, DRIVER - 1, DRIVER + 10, u16::MAX] {
            assert_eq!(of_method(unknown, 0), UNKNOWN);
        }
        assert_eq!((of_write(11), of_write(99)), ("ibv_rereg_mr", UNKNOWN));
    }
}
