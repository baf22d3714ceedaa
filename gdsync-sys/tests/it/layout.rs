//! Compares the declarations of C structs and constants with the installed headers, by a C compiler, and with a
//! record for rdma-core 44 (`layout-x86_64.txt`) otherwise.
//!
//! The first comparison is skipped, with a message, without a compiler or header; GDSYNC_REQUIRE_RDMA_HEADERS=1 makes
//! that a failure. `GDSYNC_RECORD_LAYOUT=FILE` writes a new record from the installed headers.

use crate::header::ask;
use gdsync_sys::mlx5dv::*;
use gdsync_sys::prm::{cqe, doorbell, wqe};
use gdsync_sys::verbs::*;
use std::collections::BTreeMap;
use std::mem::{MaybeUninit, offset_of};

/// An expression in C, and its value.
type Expectation = (String, usize);

fn size_behind<T>(_: *const T) -> usize {
    size_of::<T>()
}

/// Offset and size of each field; a field of a nested struct is written `outer.inner`.
macro_rules! fields {
    ($out:ident, $name:ident { $($($field:ident).+)* }) => { $({
        let (kind, field) = (stringify!($name), stringify!($($field).+).replace("r#", "").replace(' ', ""));
        $out.push((format!("offsetof(struct {kind}, {field})"), offset_of!($name, $($field).+)));
        let place = MaybeUninit::<$name>::uninit();
        // SAFETY: computes the address of a field inside the allocation, without a read.
        let size = size_behind(unsafe { &raw const (*place.as_ptr()).$($field).+ });
        $out.push((format!("sizeof(((struct {kind} *)0)->{field})"), size));
    })* };
}

/// As above, with the size of the whole struct.
macro_rules! whole {
    ($out:ident, $name:ident { $($fields:tt)* }) => {
        $out.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()));
        fields!($out, $name { $($fields)* });
    };
}

macro_rules! constants {
    ($($name:ident)*) => { vec![$((stringify!($name).to_owned(), $name as usize),)*] };
}

fn verbs_structs() -> Vec<Expectation> {
    let mut out = Vec::new();
    whole!(out, ibv_device { _ops node_type transport_type name dev_name dev_path ibdev_path });
    whole!(out, ibv_context { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat });
    whole!(out, ibv_pd { context handle });
    whole!(out, ibv_td { context });
    whole!(out, ibv_td_init_attr { comp_mask });
    whole!(out, ibv_parent_domain_init_attr { pd td comp_mask alloc free pd_context });
    whole!(out, ibv_mr { context pd addr length handle lkey rkey });
    whole!(out, ibv_comp_channel { context fd refcnt });
    whole!(out, ibv_cq {
        context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed
    });
    whole!(out, ibv_cq_init_attr_ex { cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain });
    whole!(out, ibv_qp {
        context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond events_completed
    });
    whole!(out, ibv_srq { context srq_context pd handle mutex cond events_completed });
    whole!(out, ibv_srq_attr { max_wr max_sge srq_limit });
    whole!(out, ibv_srq_init_attr { srq_context attr });
    whole!(out, ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data });
    whole!(out, ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all });
    whole!(out, ibv_rx_hash_conf { rx_hash_function rx_hash_key_len rx_hash_key rx_hash_fields_mask });
    whole!(out, ibv_qp_init_attr_ex {
        qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags max_tso_header rwq_ind_tbl
        rx_hash_conf source_qpn send_ops_flags
    });
    whole!(out, ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class });
    whole!(out, ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num });
    whole!(out, ibv_ah { context pd handle });
    whole!(out, ibv_qp_attr {
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr
        alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
        min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit
    });
    whole!(out, ibv_device_attr {
        fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver max_qp max_qp_wr
        device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom max_res_rd_atom
        max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee max_rdd max_mw max_raw_ipv6_qp max_raw_ethy_qp
        max_mcast_grp max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr max_map_per_fmr max_srq max_srq_wr
        max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt
    });
    whole!(out, ibv_gid_entry { gid gid_index port_num gid_type ndev_ifindex });
    whole!(out, ibv_sge { addr length lkey });
    whole!(out, ibv_wc {
        wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits
    });
    fields!(out, ibv_send_wr { wr_id next sg_list num_sge opcode send_flags imm_data });
    let union = |name: &str| format!("offsetof(struct ibv_send_wr, wr.rdma.{name})");
    out.push((union("remote_addr"), offset_of!(ibv_send_wr, remote_addr)));
    out.push((union("rkey"), offset_of!(ibv_send_wr, rkey)));
    let of_bind = |name: &str| format!("offsetof(struct ibv_send_wr, bind_mw.{name})");
    let bind = offset_of!(ibv_send_wr, bind_mw);
    out.push((of_bind("mw"), bind + offset_of!(ibv_send_wr_bind_mw, mw)));
    out.push((of_bind("rkey"), bind + offset_of!(ibv_send_wr_bind_mw, rkey)));
    out.push((of_bind("bind_info"), bind + offset_of!(ibv_send_wr_bind_mw, bind_info)));
    out.push(("sizeof(struct ibv_send_wr)".to_owned(), size_of::<ibv_send_wr>()));
    whole!(out, ibv_mw { context pd rkey handle r#type });
    whole!(out, ibv_mw_bind_info { mr addr length mw_access_flags });
    whole!(out, ibv_mw_bind { wr_id send_flags bind_info });
    // Without its size: newer versions append fields or operations.
    fields!(out, ibv_qp_ex {
        qp_base comp_mask wr_id wr_flags wr_rdma_write wr_set_ud_addr wr_set_inline_data wr_set_sge wr_set_sge_list wr_start
        wr_complete wr_abort
    });
    let operations = [
        ("alloc_mw", OPS_ALLOC_MW),
        ("bind_mw", OPS_BIND_MW),
        ("dealloc_mw", OPS_DEALLOC_MW),
        ("poll_cq", OPS_POLL_CQ),
        ("post_send", OPS_POST_SEND),
    ];
    for (name, index) in operations {
        let offset = offset_of!(ibv_context, ops) + index * size_of::<usize>();
        out.push((format!("offsetof(struct ibv_context, ops.{name})"), offset));
    }
    whole!(out, ibv_async_event { element event_type });
    // Without its size: newer versions append fields or operations.
    fields!(out, ibv_port_attr {
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid
        lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state link_layer flags
        port_cap_flags2
    });
    out.push(("sizeof(union ibv_gid)".to_owned(), size_of::<ibv_gid>()));
    out
}

fn constants() -> Vec<Expectation> {
    constants!(
        IBV_SYSFS_NAME_MAX IBV_SYSFS_PATH_MAX IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT IBV_CQ_INIT_ATTR_MASK_FLAGS IBV_CQ_INIT_ATTR_MASK_PD
        IBV_QP_INIT_ATTR_PD IBV_LINK_LAYER_UNSPECIFIED IBV_LINK_LAYER_INFINIBAND
        IBV_LINK_LAYER_ETHERNET IBV_GID_TYPE_IB IBV_GID_TYPE_ROCE_V1 IBV_GID_TYPE_ROCE_V2 IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        IBV_QP_EX_WITH_RDMA_WRITE IBV_WR_RDMA_WRITE IBV_WR_LOCAL_INV IBV_WR_BIND_MW IBV_MW_TYPE_1 IBV_MW_TYPE_2
        IBV_SEND_SIGNALED IBV_SEND_INLINE IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ
        IBV_ACCESS_REMOTE_ATOMIC IBV_ACCESS_MW_BIND IBV_ACCESS_RELAXED_ORDERING IBV_QP_STATE IBV_QP_CUR_STATE
        IBV_QP_EN_SQD_ASYNC_NOTIFY IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_QKEY
        IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN
        IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_ALT_PATH IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN
        IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_PATH_MIG_STATE IBV_QP_CAP IBV_QP_DEST_QPN IBV_QP_RATE_LIMIT
        IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_SQD IBV_QPS_ERR
        IBV_QPT_RC IBV_QPT_UC IBV_QPT_UD IBV_QPT_DRIVER IBV_MTU_256 IBV_MTU_512 IBV_MTU_1024 IBV_MTU_2048
        IBV_MTU_4096 IBV_PORT_DOWN IBV_PORT_INIT IBV_PORT_ARMED IBV_PORT_ACTIVE IBV_EVENT_CQ_ERR
        IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_EVENT_DEVICE_FATAL IBV_EVENT_SRQ_ERR IBV_EVENT_SRQ_LIMIT_REACHED IBV_EVENT_QP_LAST_WQE_REACHED
        MLX5DV_OBJ_SRQ MLX5DV_SRQ_MASK_SRQN MLX5DV_RES_TYPE_SRQ IBV_ATOMIC_NONE IBV_DEVICE_MEM_MGT_EXTENSIONS IBV_DEVICE_MEM_WINDOW IBV_DEVICE_MEM_WINDOW_TYPE_2A
        IBV_DEVICE_MEM_WINDOW_TYPE_2B MLX5DV_QP_MASK_UAR_MMAP_OFFSET MLX5DV_OBJ_QP MLX5DV_OBJ_CQ
        MLX5DV_OBJ_AH MLX5DV_OBJ_PD MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE
        MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE
        MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE MLX5DV_QP_INIT_ATTR_MASK_DC MLX5DV_DCTYPE_DCT MLX5DV_DCTYPE_DCI
        MLX5DV_RES_TYPE_QP MLX5DV_RES_TYPE_DBR MLX5DV_RES_TYPE_CQ MLX5DV_UMEM_MASK_DMABUF MLX5DV_UAR_ALLOC_TYPE_BF
    )
}

fn mlx5_structs() -> Vec<Expectation> {
    let mut out = Vec::new();
    whole!(out, mlx5dv_qp {
        dbrec sq sq.buf sq.wqe_cnt sq.stride rq rq.buf rq.wqe_cnt rq.stride bf bf.reg bf.size comp_mask uar_mmap_offset
        tirn tisn rqn sqn tir_icm_addr
    });
    whole!(out, mlx5dv_cq { buf dbrec cqe_cnt cqe_size cq_uar cqn comp_mask });
    whole!(out, mlx5dv_srq { buf dbrec stride head tail comp_mask srqn });
    whole!(out, mlx5dv_ah { av comp_mask });
    whole!(out, mlx5dv_pd { pdn comp_mask });
    whole!(out, mlx5dv_cq_init_attr { comp_mask cqe_comp_res_format flags cqe_size });
    whole!(out, mlx5dv_dc_init_attr { dc_type dct_access_key });
    whole!(out, mlx5dv_qp_init_attr { comp_mask create_flags dc_init_attr send_ops_flags });
    whole!(out, mlx5dv_devx_umem { umem_id });
    whole!(out, mlx5dv_devx_umem_in { addr size access pgsz_bitmap comp_mask dmabuf_fd });
    whole!(out, mlx5dv_devx_uar { reg_addr base_addr page_id mmap_off comp_mask });
    // Without its size, as above.
    fields!(out, mlx5dv_obj { qp qp.r#in qp.out cq cq.r#in cq.out srq srq.r#in srq.out rwq dm ah ah.r#in ah.out pd pd.r#in pd.out });
    out
}

/// The positions in `struct verbs_context` that the loader uses, in pointers before the context (`system.rs` asserts
/// the same for its declaration).
fn verbs_context() -> Vec<Expectation> {
    let distances = [("sz", 1), ("alloc_td", 24), ("dealloc_td", 25), ("alloc_parent_domain", 26)];
    let distance =
        |field| format!("offsetof(struct verbs_context, context) - offsetof(struct verbs_context, {field})");
    distances.map(|(field, pointers)| (distance(field), pointers * size_of::<usize>())).to_vec()
}

/// Sizes and codes of the wire formats; `wire.rs` compares their bytes.
fn wire() -> Vec<Expectation> {
    let expectations = [
        ("sizeof(struct mlx5_wqe_ctrl_seg)", size_of::<wqe::CtrlSeg>()),
        ("sizeof(struct mlx5_wqe_raddr_seg)", size_of::<wqe::RemoteAddrSeg>()),
        ("sizeof(struct mlx5_wqe_data_seg)", size_of::<wqe::DataSeg>()),
        ("sizeof(struct mlx5_wqe_inl_data_seg)", size_of::<wqe::InlineSeg>()),
        ("sizeof(struct mlx5_wqe_atomic_seg)", size_of::<wqe::AtomicSeg>()),
        ("sizeof(struct mlx5_wqe_datagram_seg)", size_of::<wqe::AddressVector>()),
        ("sizeof(struct mlx5_cqe64)", size_of::<cqe::Cqe64>()),
        ("sizeof(struct mlx5_err_cqe)", size_of::<cqe::Cqe64>()),
        ("offsetof(struct mlx5_cqe64, wqe_counter)", cqe::LAST_DWORD),
        ("MLX5_SEND_WQE_BB", wqe::BASIC_BLOCK),
        ("MLX5_INVALID_LKEY", wqe::INVALID_LKEY as usize),
        ("MLX5_INLINE_SEG", wqe::INLINE_FLAG as usize),
        ("MLX5_WQE_CTRL_CQ_UPDATE", wqe::CtrlFlags::CQ_UPDATE.bits().into()),
        ("MLX5_WQE_CTRL_SOLICITED", wqe::CtrlFlags::SOLICITED.bits().into()),
        ("MLX5_WQE_CTRL_FENCE", wqe::CtrlFlags::FENCE.bits().into()),
        ("MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE", wqe::CtrlFlags::FENCE_INITIATOR_SMALL.bits().into()),
        ("MLX5_CQE_OWNER_MASK", cqe::OWNER_BIT.into()),
        ("MLX5_RCV_DBR", doorbell::DBR_RECV),
        ("MLX5_SND_DBR", doorbell::DBR_SEND),
        ("MLX5_CQ_DOORBELL", doorbell::UAR_CQ_ARM),
        ("MLX5_OPCODE_NOP", wqe::Opcode::Nop as usize),
        ("MLX5_OPCODE_SEND_INVAL", wqe::Opcode::SendInval as usize),
        ("MLX5_OPCODE_RDMA_WRITE", wqe::Opcode::RdmaWrite as usize),
        ("MLX5_OPCODE_RDMA_WRITE_IMM", wqe::Opcode::RdmaWriteImm as usize),
        ("MLX5_OPCODE_SEND", wqe::Opcode::Send as usize),
        ("MLX5_OPCODE_SEND_IMM", wqe::Opcode::SendImm as usize),
        ("MLX5_OPCODE_TSO", wqe::Opcode::Tso as usize),
        ("MLX5_OPCODE_RDMA_READ", wqe::Opcode::RdmaRead as usize),
        ("MLX5_OPCODE_ATOMIC_CS", wqe::Opcode::AtomicCs as usize),
        ("MLX5_OPCODE_ATOMIC_FA", wqe::Opcode::AtomicFa as usize),
        ("MLX5_OPCODE_ATOMIC_MASKED_CS", wqe::Opcode::AtomicMaskedCs as usize),
        ("MLX5_OPCODE_ATOMIC_MASKED_FA", wqe::Opcode::AtomicMaskedFa as usize),
        ("MLX5_OPCODE_FMR", wqe::Opcode::Fmr as usize),
        ("MLX5_OPCODE_LOCAL_INVAL", wqe::Opcode::LocalInval as usize),
        ("MLX5_OPCODE_UMR", wqe::Opcode::Umr as usize),
        ("MLX5_OPCODE_MMO", wqe::Opcode::Mmo as usize),
        ("MLX5_CQE_REQ", cqe::CqeOpcode::Requester as usize),
        ("MLX5_CQE_RESP_WR_IMM", cqe::CqeOpcode::RespWriteImm as usize),
        ("MLX5_CQE_RESP_SEND", cqe::CqeOpcode::RespSend as usize),
        ("MLX5_CQE_RESP_SEND_IMM", cqe::CqeOpcode::RespSendImm as usize),
        ("MLX5_CQE_RESP_SEND_INV", cqe::CqeOpcode::RespSendInval as usize),
        ("MLX5_CQE_RESIZE_CQ", cqe::CqeOpcode::Resize as usize),
        ("MLX5_CQE_NO_PACKET", cqe::CqeOpcode::NoPacket as usize),
        ("MLX5_CQE_SIG_ERR", cqe::CqeOpcode::SignatureError as usize),
        ("MLX5_CQE_REQ_ERR", cqe::CqeOpcode::RequesterError as usize),
        ("MLX5_CQE_RESP_ERR", cqe::CqeOpcode::ResponderError as usize),
        ("MLX5_CQE_INVALID", cqe::CqeOpcode::Invalid as usize),
        ("MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR", cqe::Syndrome::LocalLength as usize),
        ("MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR", cqe::Syndrome::LocalQpOperation as usize),
        ("MLX5_CQE_SYNDROME_LOCAL_PROT_ERR", cqe::Syndrome::LocalProtection as usize),
        ("MLX5_CQE_SYNDROME_WR_FLUSH_ERR", cqe::Syndrome::WrFlush as usize),
        ("MLX5_CQE_SYNDROME_MW_BIND_ERR", cqe::Syndrome::MwBind as usize),
        ("MLX5_CQE_SYNDROME_BAD_RESP_ERR", cqe::Syndrome::BadResponse as usize),
        ("MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR", cqe::Syndrome::LocalAccess as usize),
        ("MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR", cqe::Syndrome::RemoteInvalidRequest as usize),
        ("MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR", cqe::Syndrome::RemoteAccess as usize),
        ("MLX5_CQE_SYNDROME_REMOTE_OP_ERR", cqe::Syndrome::RemoteOperation as usize),
        ("MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR", cqe::Syndrome::RetryExceeded as usize),
        ("MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR", cqe::Syndrome::RnrRetryExceeded as usize),
        ("MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR", cqe::Syndrome::RemoteAborted as usize),
    ];
    expectations.map(|(expression, value)| (expression.to_owned(), value)).to_vec()
}

fn expectations() -> Vec<Expectation> {
    [verbs_structs(), mlx5_structs(), verbs_context(), constants(), wire()].concat()
}

fn parse(answers: &str) -> BTreeMap<&str, usize> {
    let lines = answers.lines().filter_map(|line| line.rsplit_once(" = "));
    lines.filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

fn compare(expectations: &[Expectation], answers: &str) {
    let answers = parse(answers);
    for (expression, ours) in expectations {
        assert_eq!(answers.get(expression.as_str()), Some(ours), "{expression}");
    }
    assert_eq!(answers.len(), expectations.len(), "an answer to every question, and none besides");
}

fn program(expectations: &[Expectation]) -> String {
    let mut text = "#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    for (expression, _) in expectations {
        text += &format!("printf(\"{expression} = %zu\\n\", (size_t)({expression}));\n");
    }
    text + "return 0; }\n"
}

#[test]
fn declarations_agree_with_the_installed_headers() {
    let expectations = expectations();
    let name = "declarations_agree_with_the_installed_headers";
    if let Some(said) = ask(name, &program(&expectations)) {
        compare(&expectations, &said);
        if let Some(file) = std::env::var_os("GDSYNC_RECORD_LAYOUT") {
            std::fs::write(file, said).unwrap();
        }
    }
}

/// The structs that grow: ours must be at least as large as the library's, which writes all of its fields.
#[test]
fn growing_structs_are_large_enough() {
    let sizes = [
        ("sizeof(struct ibv_port_attr)".to_owned(), size_of::<ibv_port_attr>()),
        ("sizeof(struct mlx5dv_obj)".to_owned(), size_of::<mlx5dv_obj>()),
    ];
    if let Some(said) = ask("growing_structs_are_large_enough", &program(&sizes)) {
        let theirs = parse(&said);
        for (expression, ours) in &sizes {
            assert!(theirs[expression.as_str()] <= *ours, "{expression} is larger than ours: {said}");
        }
    }
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn declarations_agree_with_the_record() {
    compare(&expectations(), include_str!("../layout-x86_64.txt"));
}

#[test]
fn every_declaration_is_compared() {
    // Unnamed in C, opaque, or a union inside a checked struct.
    let exempt = [
        "mlx5dv_ring",
        "mlx5dv_bf",
        "mlx5dv_obj_entry",
        "mlx5dv_devx_obj",
        // Defined by the in-process software card alone.
        "SOFTWARE_QP_CREATE_MASTER",
        "SOFTWARE_QP_CREATE_SLAVE_SEND",
        // Newer than the oldest header that this test supports.
        "MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED",
        "MLX5DV_QP_CREATE_OOO_DP",
        "ibv_async_element",
        // Compared by the names that C has for them.
        "ibv_send_wr_bind_mw",
        "OPS_ALLOC_MW",
        "OPS_BIND_MW",
        "OPS_DEALLOC_MW",
        "OPS_POLL_CQ",
        "OPS_POST_SEND",
    ];
    let expectations = expectations();
    let source = concat!(
        include_str!("../../src/verbs.rs"),
        include_str!("../../src/verbs/constants.rs"),
        include_str!("../../src/verbs/device.rs"),
        include_str!("../../src/verbs/post.rs"),
        include_str!("../../src/mlx5dv.rs")
    );
    let mut count = 0;
    for line in source.lines() {
        let word =
            |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
        let declared = ["pub struct ", "pub union ", "pub const ", "    IBV_"]
            .iter()
            .find_map(|start| line.strip_prefix(start).and_then(word).map(|name| (*start, name)));
        let Some((start, name)) = declared else { continue };
        let name = if start == "    IBV_" { format!("IBV_{name}") } else { name };
        // C has a pointer here, not a constant; it is all ones there, too.
        if exempt.contains(&name.as_str()) || name == "IBV_ALLOCATOR_USE_DEFAULT" {
            continue;
        }
        let compared = |(expression, _): &Expectation| {
            *expression == name
                || expression.contains(&format!("struct {name},"))
                || *expression == format!("sizeof(union {name})")
        };
        assert!(expectations.iter().any(compared), "{name} is declared but not compared");
        count += 1;
    }
    assert!(count > 90, "{count} declarations found: the source is not read as it should be");
}
