//! Our declarations of C structs, compared with the installed headers by a C compiler.
//!
//! Skipped, saying so, where there is no compiler or no header; GDSYNC_REQUIRE_RDMA_HEADERS=1 makes that a failure.

use gdsync_sys::mlx5dv::*;
use gdsync_sys::prm::{cqe, wqe};
use gdsync_sys::verbs::*;
use std::collections::BTreeMap;
use std::io::Write;
use std::mem::offset_of;
use std::process::Command;

/// What the header must say: an expression in C, and its value.
type Expectation = (String, usize);

macro_rules! fields {
    ($out:ident, $name:ident { $($field:ident)* }) => {
        $($out.push((
            format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)),
            offset_of!($name, $field),
        ));)*
    };
}

macro_rules! whole {
    ($out:ident, $name:ident { $($field:ident)* }) => {
        $out.push((format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()));
        fields!($out, $name { $($field)* });
    };
}

macro_rules! constants {
    ($out:ident, $($name:ident)*) => { $($out.push((stringify!($name).to_owned(), $name as usize));)* };
}

fn verbs_expectations() -> Vec<Expectation> {
    let mut out = Vec::new();
    whole!(out, ibv_device { node_type transport_type name dev_name dev_path ibdev_path });
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
    whole!(out, ibv_async_event { element event_type });
    // Newer versions have fields at its end that older ones lack.
    fields!(out, ibv_port_attr {
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid
        lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state link_layer flags
        port_cap_flags2
    });
    out.push(("sizeof(union ibv_gid)".to_owned(), size_of::<ibv_gid>()));
    constants!(out,
        IBV_QPS_ERR IBV_QPT_RC IBV_MTU_4096 IBV_PORT_ACTIVE IBV_EVENT_DEVICE_FATAL IBV_QP_DEST_QPN IBV_QP_RATE_LIMIT
        IBV_ACCESS_RELAXED_ORDERING IBV_CQ_INIT_ATTR_MASK_PD IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        IBV_LINK_LAYER_ETHERNET IBV_SYSFS_NAME_MAX IBV_SYSFS_PATH_MAX);
    out
}

fn mlx5_expectations() -> Vec<Expectation> {
    let mut out = Vec::new();
    whole!(out, mlx5dv_qp { dbrec sq rq bf comp_mask uar_mmap_offset tirn tisn rqn sqn tir_icm_addr });
    whole!(out, mlx5dv_cq { buf dbrec cqe_cnt cqe_size cq_uar cqn comp_mask });
    whole!(out, mlx5dv_ah { av comp_mask });
    whole!(out, mlx5dv_pd { pdn comp_mask });
    whole!(out, mlx5dv_cq_init_attr { comp_mask cqe_comp_res_format flags cqe_size });
    whole!(out, mlx5dv_qp_init_attr { comp_mask create_flags dc_init_attr send_ops_flags });
    fields!(out, mlx5dv_obj { qp cq srq rwq dm ah pd });
    constants!(out, MLX5DV_RES_TYPE_QP MLX5DV_RES_TYPE_DBR MLX5DV_RES_TYPE_CQ MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE);
    // Fields of the wire formats are private: sizes from our types, offsets as their compile-time assertions have them.
    let plain = [
        ("sizeof(struct mlx5_wqe_ctrl_seg)", size_of::<wqe::CtrlSeg>()),
        ("offsetof(struct mlx5_wqe_ctrl_seg, fm_ce_se)", 11),
        ("offsetof(struct mlx5_wqe_ctrl_seg, imm)", 12),
        ("sizeof(struct mlx5_wqe_raddr_seg)", size_of::<wqe::RemoteAddrSeg>()),
        ("offsetof(struct mlx5_wqe_raddr_seg, rkey)", 8),
        ("sizeof(struct mlx5_wqe_data_seg)", size_of::<wqe::DataSeg>()),
        ("offsetof(struct mlx5_wqe_data_seg, addr)", 8),
        ("sizeof(struct mlx5_wqe_inl_data_seg)", size_of::<wqe::InlineSeg>()),
        ("sizeof(struct mlx5_wqe_atomic_seg)", size_of::<wqe::AtomicSeg>()),
        ("sizeof(struct mlx5_wqe_datagram_seg)", size_of::<wqe::AddressVector>()),
        ("offsetof(struct mlx5_wqe_av, rlid)", 14),
        ("offsetof(struct mlx5_wqe_av, rmac)", 20),
        ("offsetof(struct mlx5_wqe_av, grh_gid_fl)", 28),
        ("sizeof(struct mlx5_cqe64)", size_of::<cqe::Cqe64>()),
        ("offsetof(struct mlx5_cqe64, flags_rqpn)", 24),
        ("offsetof(struct mlx5_cqe64, srqn_uidx)", 32),
        ("offsetof(struct mlx5_cqe64, imm_inval_pkey)", 36),
        ("offsetof(struct mlx5_cqe64, byte_cnt)", 44),
        ("offsetof(struct mlx5_cqe64, sop_drop_qpn)", 56),
        ("offsetof(struct mlx5_cqe64, wqe_counter)", cqe::LAST_DWORD),
        ("offsetof(struct mlx5_cqe64, op_own)", 63),
        ("MLX5_OPCODE_RDMA_READ", wqe::Opcode::RdmaRead as usize),
        ("MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR", cqe::Syndrome::RemoteAccess as usize),
        ("MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR", cqe::Syndrome::RetryExceeded as usize),
        ("MLX5_WQE_CTRL_CQ_UPDATE", wqe::CtrlFlags::CQ_UPDATE.bits().into()),
        ("MLX5_WQE_CTRL_FENCE", wqe::CtrlFlags::FENCE.bits().into()),
        ("MLX5_INVALID_LKEY", wqe::INVALID_LKEY as usize),
    ];
    out.extend(plain.map(|(expression, value)| (expression.to_owned(), value)));
    out
}

/// What the headers say, by expression; or why that cannot be found out.
fn ask(expectations: &[Expectation]) -> Result<BTreeMap<String, usize>, String> {
    let folder = std::env::temp_dir().join(format!("gdsync-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let (source, program) = (folder.join("layout.c"), folder.join("layout"));
    let mut text = "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n".to_owned();
    text += "#include <infiniband/mlx5dv.h>\nint main(void) {\n";
    for (expression, _) in expectations {
        text += &format!("printf(\"%s = %zu\\n\", \"{expression}\", (size_t)({expression}));\n");
    }
    text += "return 0; }\n";
    let answer = std::fs::write(&source, text).map_err(|error| error.to_string()).and_then(|()| {
        let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).output();
        let compiled = compiled.map_err(|error| format!("no C compiler: {error}"))?;
        if !compiled.status.success() {
            let message = String::from_utf8_lossy(&compiled.stderr);
            return Err(message
                .lines()
                .find(|line| line.contains("error"))
                .unwrap_or("cc failed")
                .to_owned());
        }
        Command::new(&program).output().map_err(|error| error.to_string())
    });
    // A leftover in the temporary folder harms nobody.
    let _ = std::fs::remove_dir_all(&folder);
    let said = String::from_utf8_lossy(&answer?.stdout).into_owned();
    let lines = said.lines().filter_map(|line| line.rsplit_once(" = "));
    Ok(lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

#[test]
fn declarations_agree_with_the_installed_headers() {
    let expectations = [verbs_expectations(), mlx5_expectations()].concat();
    match ask(&expectations) {
        Err(why) if std::env::var_os("GDSYNC_REQUIRE_RDMA_HEADERS").is_none() => {
            // Past libtest's capture: a test that did not run must be seen.
            let name = "declarations_agree_with_the_installed_headers";
            writeln!(std::io::stderr(), "SKIPPED {name}: {why} (apt-get install gcc libibverbs-dev)")
                .unwrap();
        }
        Err(why) => panic!("{why}"),
        Ok(header) => {
            assert_eq!(header.len(), expectations.len(), "every expression is answered");
            for (expression, ours) in expectations {
                assert_eq!(header.get(&expression), Some(&ours), "{expression}");
            }
        }
    }
}
