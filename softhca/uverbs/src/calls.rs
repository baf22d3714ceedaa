//! Names of commands in libibverbs and libmlx5, for messages: a program's author knows these, not the numbers.

use crate::uapi::ioctl::{DRIVER, method, object as kind};

/// Returns the call that uses a method (`enum uverbs_default_objects`, `enum mlx5_ib_objects`).
pub(crate) fn of_method(object: u16, method: u16) -> String {
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
    let exact = match (object, method) {
        (kind::CQ, method::CREATE) => Some("ibv_create_cq"),
        (kind::QP, method::CREATE) => Some("ibv_create_qp"),
        (kind::SRQ, method::CREATE) => Some("ibv_create_srq"),
        (kind::MR, method::MR_DM_REG) => Some("ibv_reg_dm_mr"),
        (kind::MR, method::MR_ADVISE) => Some("ibv_advise_mr"),
        (kind::MR, method::MR_REG_DMABUF) => Some("ibv_reg_dmabuf_mr"),
        (kind::MR, method::MR_REG) => Some("ibv_reg_mr"),
        _ => None,
    };
    let named = exact.or_else(|| match object.checked_sub(DRIVER) {
        None => PARTS.get(usize::from(object)).copied(),
        Some(object) => DRIVERS_PARTS.get(usize::from(object)).copied(),
    });
    let unknown = || format!("method {method} of object {object}, which this version does not know");
    named.map_or_else(unknown, str::to_owned)
}

/// Returns the call that uses a write command that the card lacks (`enum ib_uverbs_write_cmds`).
pub(crate) fn of_write(number: u32) -> String {
    let named = match number {
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
        _ => return format!("command {number}, which this version does not know"),
    };
    named.to_owned()
}

/// Names an attribute that the card lacks by the field of the program's structure.
pub(crate) fn of_attribute(object: u16, method: u16, id: u16) -> String {
    let named = match (object, method, id) {
        (kind::MR, method::MR_REG, 2) => "dmah",
        _ => return format!("attribute {id}, which this version does not know"),
    };
    named.to_owned()
}

/// Names a queue pair type that the card lacks.
pub(crate) fn of_qp_type(code: u64) -> String {
    match code {
        8 => "IBV_QPT_RAW_PACKET".to_owned(),
        0xff => "IBV_QPT_DRIVER without one of MLX5DV_DCTYPE_DCT and MLX5DV_DCTYPE_DCI".to_owned(),
        _ => format!("type {code}"),
    }
}

type Bits = [(u32, &'static str)];

/// `create_flags` of a queue pair.
pub(crate) const QP_CREATE: &Bits = &[
    (1, "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB"),
    (8, "IBV_QP_CREATE_SCATTER_FCS"),
    (9, "IBV_QP_CREATE_CVLAN_STRIPPING"),
    (10, "IBV_QP_CREATE_SOURCE_QPN"),
    (11, "IBV_QP_CREATE_PCI_WRITE_END_PADDING"),
];
/// libmlx5's flags at the creation of a queue pair (`MLX5_QP_FLAG_*`), with their causes.
pub(crate) const QP_MLX5: &Bits = &[
    (0, "MLX5_QP_SIGNATURE of the environment"),
    (2, "MLX5DV_QP_CREATE_TUNNEL_OFFLOADS"),
    (4, "MLX5DV_DCTYPE_DCT"),
    (5, "MLX5DV_DCTYPE_DCI"),
    (6, "MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_UC"),
    (7, "MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_MC"),
    (9, "MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE"),
    (11, "MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS"),
];
/// The mask of `ibv_modify_qp`.
pub(crate) const QP_ATTRIBUTES: &Bits =
    &[(2, "IBV_QP_EN_SQD_ASYNC_NOTIFY"), (19, "IBV_QP_CAP"), (25, "IBV_QP_RATE_LIMIT")];
/// `flags` of `mlx5dv_cq_init_attr`, and libmlx5's additions (`MLX5_IB_CREATE_CQ_FLAGS_*`).
pub(crate) const CQ_MLX5: &Bits =
    &[(0, "MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD"), (2, "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")];
pub(crate) const ACCESS: &Bits = &[(8, "IBV_ACCESS_FLUSH_GLOBAL"), (9, "IBV_ACCESS_FLUSH_PERSISTENT")];

/// Returns the names of the bits that are set, and a number for those without a name.
pub(crate) fn of_bits(bits: impl Into<u64>, names: &Bits) -> String {
    let mut rest = bits.into();
    let mut named = Vec::new();
    for (bit, name) in names {
        if rest & 1 << bit != 0 {
            rest &= !(1 << bit);
            named.push((*name).to_owned());
        }
    }
    if rest != 0 {
        named.push(format!("{rest:#x}"));
    }
    named.join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_named_as_programs_call_them() {
        assert_eq!((of_method(7, 0), of_method(7, 2)), ("ibv_reg_dm_mr".into(), "ibv_advise_mr".into()));
        assert!(of_method(10, 0).contains("ibv_open_xrcd"));
        assert!(of_method(DRIVER + 7, DRIVER).contains("mlx5dv_pp_alloc"));
        for unknown in [18, DRIVER - 1, DRIVER + 10, u16::MAX] {
            let said = of_method(unknown, 3);
            assert!(said.starts_with(&format!("method 3 of object {unknown}, which")), "{said}");
        }
        assert_eq!(of_write(11), "ibv_rereg_mr");
        assert!(of_write(99).starts_with("command 99, which"));
    }

    #[test]
    fn attributes_types_and_flags_are_named_as_programs_write_them() {
        assert_eq!(of_attribute(7, 5, 2), "dmah");
        assert!(of_attribute(4, 0, 99).starts_with("attribute 99, which"));
        assert_eq!((of_qp_type(8), of_qp_type(5)), ("IBV_QPT_RAW_PACKET".into(), "type 5".into()));
        assert_eq!(of_bits(1u32 << 25 | 1 << 19, QP_ATTRIBUTES), "IBV_QP_CAP | IBV_QP_RATE_LIMIT");
        assert_eq!(of_bits(1u64 << 40 | 1 << 8, ACCESS), "IBV_ACCESS_FLUSH_GLOBAL | 0x10000000000");
        assert_eq!(of_bits(0u32, ACCESS), "");
    }
}
