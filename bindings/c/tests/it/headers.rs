//! Compiles the headers as C and C++, with and without CUDA's, and compares their structs and numbers with the library's.

use crate::support::{Language, OLD_DIALECT, build, root, works};
use gdsync_c::api::upstream::upstream_send_wr;
use gdsync_c::notify_types::*;
use gdsync_c::types::*;
use gdsync_sys::verbs::ibv_qp_init_attr;
use std::mem::offset_of;

#[test]
fn headers_compile_without_warnings() {
    for (language, source) in [(Language::C, "headers.c"), (Language::Cpp, "headers.cpp")] {
        if let Some(compiler) = works("headers_compile_without_warnings", language) {
            for dialect in [None, Some(OLD_DIALECT)] {
                build(&compiler.clone().options(dialect), source).succeed(&[]);
            }
        }
    }
}

#[test]
fn sources_of_the_old_dialect_are_told_its_macro() {
    let test = "sources_of_the_old_dialect_are_told_its_macro";
    let Some(compiler) = works(test, Language::C) else { return };
    let why = compiler.probe("#include <infiniband/verbs_exp.h>").unwrap_err();
    assert!(why.contains("-DGDSYNC_EXP_VERBS"), "{why}");
    let both = compiler.options([OLD_DIALECT, "-DGDSYNC_UPSTREAM_VERBS"]);
    assert!(both.probe("#include <gdsync.h>").unwrap_err().contains("both defined"));
}

#[test]
fn headers_agree_with_cudas() {
    for (language, source) in [(Language::C, "headers.c"), (Language::Cpp, "headers.cpp")] {
        if let Some(compiler) = works("headers_agree_with_cudas", language) {
            build(&compiler.include(root().join("tests/c/cuda")), source).succeed(&[]);
        }
    }
}

macro_rules! layout {
    ($out:ident, $($kind:literal as $type:ty { $($c:literal = $($field:ident).+),* $(,)? })*) => { $(
        $out.push((format!("sizeof({})", $kind), size_of::<$type>()));
        $out.push((format!("_Alignof({})", $kind), align_of::<$type>()));
        $($out.push((format!("offsetof({}, {})", $kind, $c), offset_of!($type, $($field).+)));)*
    )* };
}

#[test]
fn structs_and_numbers_are_the_headers() {
    let Some(compiler) = works("structs_and_numbers_are_the_headers", Language::C) else { return };
    let compiler = compiler.options([OLD_DIALECT]);
    let mut expected: Vec<(String, usize)> = Vec::new();
    layout!(expected,
        "struct ibv_recv_wr" as ibv_recv_wr { "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge }
        "gds_send_wr" as gds_send_wr {
            "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "exp_opcode" = exp_opcode,
            "ex.imm_data" = imm_data, "wr" = wr, "exp_send_flags" = exp_send_flags, "comp_mask" = comp_mask,
        }
        "((gds_send_wr *)0)->wr.rdma" as gds_rdma {}
        "((gds_send_wr *)0)->wr.atomic" as gds_atomic {}
        "((gds_send_wr *)0)->wr.ud" as gds_ud {}
        "gds_qp_init_attr_t" as gds_qp_init_attr_t {
            "qp_context" = qp_context, "send_cq" = send_cq, "recv_cq" = recv_cq, "srq" = srq, "cap" = cap, "qp_type" = qp_type,
            "sq_sig_all" = sq_sig_all, "comp_mask" = comp_mask, "pd" = pd,
        }
        "struct gds_cq" as gds_cq { "cq" = cq, "curr_offset" = curr_offset }
        "struct gds_qp" as gds_qp {
            "qp" = qp, "send_cq" = send_cq, "recv_cq" = recv_cq, "res_domain" = res_domain, "dev_context" = dev_context,
            "gdsync_queues" = send_cq_at,
        }
        "gds_send_request_t" as gds_send_request_t {
            "commit.storage" = storage, "commit.entries" = entries, "commit.rollback_id" = rollback_id,
            "commit.comp_mask" = comp_mask, "wr" = wr,
        }
        "gds_wait_request_t" as gds_wait_request_t {
            "peek.storage" = storage, "peek.entries" = entries, "peek.whence" = whence, "peek.offset" = offset,
            "peek.peek_id" = peek_id, "peek.comp_mask" = comp_mask, "wr" = wr,
        }
        "gds_wait_value32_t" as gds_wait_value32_t { "ptr" = ptr, "value" = value, "cond_flags" = cond_flags, "flags" = flags }
        "gds_write_value32_t" as gds_write_value32_t { "ptr" = ptr, "value" = value, "flags" = flags }
        "gds_write_memory_t" as gds_write_memory_t { "dest" = dest, "src" = src, "count" = count, "flags" = flags }
        "gds_descriptor_t" as gds_descriptor_t {
            "tag" = tag, "send" = body, "wait" = body, "wait32" = body, "write32" = body, "writemem" = body,
        }
        "gds_mem_desc_t" as gds_mem_desc_t {
            "d_ptr" = d_ptr, "h_ptr" = h_ptr, "bar_ptr" = bar_ptr, "flags" = flags, "alloc_size" = alloc_size, "mh" = mh,
        }
        "gds_mlx5_dword_wait_info_t" as gds_mlx5_dword_wait_info_t { "ptr" = ptr, "value" = value }
        "gds_mlx5_send_info_t" as gds_mlx5_send_info_t {
            "dbrec_ptr" = dbrec_ptr, "dbrec_value" = dbrec_value, "db_ptr" = db_ptr, "db_value" = db_value,
        }
        "gds_mlx5_wait_info_t" as gds_mlx5_wait_info_t {
            "cond" = cond, "cqe_ptr" = cqe_ptr, "cqe_value" = cqe_value, "flag_ptr" = flag_ptr, "flag_value" = flag_value,
        }
        "gdsync_status_t" as gdsync_status { "word" = word }
        "gdsync_trigger_t" as gdsync_trigger { "word" = word }
        "gdsync_ready_word_t" as gdsync_ready_word { "word" = word, "rkey" = rkey }
        "gdsync_region_t" as gdsync_region { "addr" = addr, "length" = length, "lkey" = lkey, "rkey" = rkey }
        "gdsync_cache_statistics_t" as gdsync_cache_statistics_t {
            "hits" = hits, "misses" = misses, "evictions" = evictions, "invalidations" = invalidations, "not_kept" = not_kept,
            "entries" = entries, "bytes" = bytes,
        }
        "gdsync_connection_t" as gdsync_connection_t { "qp" = qp, "rank" = rank, "tag" = tag }
        "gdsync_team_attr_t" as gdsync_team_attr_t {
            "queues" = queues, "connections" = connections, "post_timeout_ms" = post_timeout_ms, "reserved" = reserved,
        }
        "gdsync_put_t" as gdsync_put_t {
            "from" = from, "from_offset" = from_offset, "length" = length, "to" = to, "to_offset" = to_offset, "rank" = rank,
            "notification" = notification, "value" = value, "reserved" = reserved,
        }
    );
    // ISO C has no alignment of expressions.
    expected.retain(|(what, _)| !what.starts_with("_Alignof(("));
    for (name, value) in [
        ("GDS_API_VERSION", GDS_API_VERSION),
        ("GDS_PARAM_VERSION", GDS_PARAM_VERSION),
        ("GDS_CREATE_QP_WQ_ON_GPU", GDS_CREATE_QP_WQ_ON_GPU),
        ("GDS_CREATE_QP_TX_CQ_ON_GPU", GDS_CREATE_QP_TX_CQ_ON_GPU),
        ("GDS_CREATE_QP_RX_CQ_ON_GPU", GDS_CREATE_QP_RX_CQ_ON_GPU),
        ("GDS_CREATE_QP_WQ_DBREC_ON_GPU", GDS_CREATE_QP_WQ_DBREC_ON_GPU),
        ("GDS_MEMORY_GPU", GDS_MEMORY_GPU),
        ("GDS_MEMORY_HOST", GDS_MEMORY_HOST),
        ("GDS_MEMORY_IO", GDS_MEMORY_IO),
        ("GDS_MEMORY_MASK", GDS_MEMORY_MASK),
        ("GDS_WAIT_POST_FLUSH_REMOTE", GDS_WAIT_POST_FLUSH_REMOTE),
        ("GDS_WRITE_PRE_BARRIER_SYS", GDS_WRITE_PRE_BARRIER_SYS),
        ("GDS_WRITE_MEMORY_POST_BARRIER_SYS", GDS_WRITE_MEMORY_POST_BARRIER_SYS),
        ("GDS_WRITE_MEMORY_PRE_BARRIER_SYS", GDS_WRITE_MEMORY_PRE_BARRIER_SYS),
        ("GDS_WAIT_COND_GEQ", GDS_WAIT_COND_GEQ),
        ("GDS_WAIT_COND_EQ", GDS_WAIT_COND_EQ),
        ("GDS_WAIT_COND_AND", GDS_WAIT_COND_AND),
        ("GDS_WAIT_COND_NOR", GDS_WAIT_COND_NOR),
        ("GDS_TAG_SEND", GDS_TAG_SEND),
        ("GDS_TAG_WAIT", GDS_TAG_WAIT),
        ("GDS_TAG_WAIT_VALUE32", GDS_TAG_WAIT_VALUE32),
        ("GDS_TAG_WRITE_VALUE32", GDS_TAG_WRITE_VALUE32),
        ("GDS_TAG_WRITE_MEMORY", GDS_TAG_WRITE_MEMORY),
        ("GDSYNC_CONNECTIONS_BY_SIZE", GDSYNC_CONNECTIONS_BY_SIZE as i32),
        ("GDSYNC_CONNECTIONS_EACH", GDSYNC_CONNECTIONS_EACH as i32),
        ("GDSYNC_CONNECTIONS_DYNAMIC", GDSYNC_CONNECTIONS_DYNAMIC as i32),
        ("(int)GDSYNC_STATUS_PENDING", GDSYNC_STATUS_PENDING as i32),
        ("(int)GDSYNC_STATUS_OK", GDSYNC_STATUS_OK as i32),
        ("(int)GDSYNC_STATUS_FAILED", GDSYNC_STATUS_FAILED as i32),
        ("(int)GDSYNC_STREAM_NEVER_CAPTURED", GDSYNC_STREAM_NEVER_CAPTURED as i32),
    ] {
        expected.push((name.to_owned(), value as usize));
    }
    for name in ["GDS_SEND_INFO_MAX_OPS", "GDS_WAIT_INFO_MAX_OPS"] {
        expected.push((name.to_owned(), GDS_INFO_MAX_OPS));
    }
    // The index of a function in a context's operations.
    let place = "(offsetof(struct ibv_context_ops, post_recv) / sizeof(void *))".to_owned();
    expected.push((place, gdsync_c::api::verbs::OPS_POST_RECV));

    let mut source =
        "#include <gdsync.h>\n#include <gdsync/ext.h>\n#include <gdsync/team.h>\n#include <gdsync/tools.h>\n#include <gdsync/mlx5.h>\n"
            .to_owned();
    for (what, value) in &expected {
        source += &format!("_Static_assert({what} == {value}, \"{value}\");\n");
    }
    source += "int main(void) { return 0; }\n";
    compiler.build_text(&source);
}

#[test]
fn structs_of_the_default_dialect_are_the_headers() {
    let Some(compiler) = works("structs_of_the_default_dialect_are_the_headers", Language::C) else {
        return;
    };
    let mut expected: Vec<(String, usize)> = Vec::new();
    layout!(expected,
        "gds_send_wr" as upstream_send_wr {
            "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode,
            "send_flags" = send_flags, "imm_data" = imm_data, "wr" = wr,
        }
        "gds_qp_init_attr_t" as ibv_qp_init_attr {
            "qp_context" = qp_context, "send_cq" = send_cq, "recv_cq" = recv_cq, "srq" = srq, "cap" = cap, "qp_type" = qp_type,
            "sq_sig_all" = sq_sig_all,
        }
        "struct gds_cq" as gds_cq { "cq" = cq, "curr_offset" = curr_offset }
        "struct gds_qp" as gds_qp {
            "qp" = qp, "gdsync_queues" = send_cq, "gdsync_own" = res_domain, "dev_context" = dev_context, "send_cq" = send_cq_at,
            "recv_cq" = recv_cq_at,
        }
        "gds_send_request_t" as gds_send_request_t {}
        "gds_wait_request_t" as gds_wait_request_t {}
        "gds_descriptor_t" as gds_descriptor_t { "tag" = tag, "send" = body }
    );
    let mut source = "#include <gdsync.h>\n".to_owned();
    for (what, value) in &expected {
        source += &format!("_Static_assert({what} == {value}, \"{value}\");\n");
    }
    // Numbers that libibverbs has in both dialects.
    for (name, value) in [("IBV_WR_ATOMIC_FETCH_AND_ADD", 6), ("IBV_SEND_INLINE", 8)] {
        source += &format!("_Static_assert({name} == {value}, \"{value}\");\n");
    }
    source += "int main(void) { return 0; }\n";
    compiler.build_text(&source);
}

/// Uses a name in C++.
fn use_of(kind: &str, name: &str) -> String {
    let plain = name.replace("struct_", "struct ").replace("enum_", "enum ");
    match kind {
        "macro" => format!("#ifndef {name}\n#error {name} is not there\n#endif\n"),
        "function" => format!("void *use_{name}() {{ return (void *)&{name}; }}\n"),
        "type" => format!("size_t use_{name}() {{ return sizeof({plain}); }}\n"),
        _ => format!("long use_{name}() {{ return (long){name}; }}\n"),
    }
}

#[test]
fn every_name_of_libgdsync_is_there() {
    let names = std::fs::read_to_string(root().join("libgdsync-2.2.names")).unwrap();
    let page = std::fs::read_to_string(root().join("../../docs/c-abi.md")).unwrap();
    let mut source = "#include <gdsync.h>\n#include <gdsync/tools.h>\n#include <gdsync/mlx5.h>\n".to_owned();
    let mut count = 0;
    for line in names.lines().filter(|line| !line.starts_with('#')) {
        let [kind, name, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let written = name.replace("struct_", "struct ").replace("enum_", "enum ");
        assert!(
            page.contains(&format!("| `{written}` | {kind} |")),
            "{name} in docs/c-abi.md: run scripts/c-symbols"
        );
        // device.cpp uses the device's names.
        if kind != "device" {
            source += &use_of(kind, name);
        }
        count += 1;
    }
    assert!(count > 100 && !page.contains("**missing**"));
    if let Some(compiler) = works("every_name_of_libgdsync_is_there", Language::Cpp) {
        source += "int main() { return 0; }\n";
        let compiler = compiler.options(["-Wno-pedantic"]);
        for dialect in [None, Some(OLD_DIALECT)] {
            compiler.clone().options(dialect).build_text(&source);
        }
    }
}

#[test]
fn semaphores_of_kernels_wait_as_they_should() {
    if let Some(compiler) = works("semaphores_of_kernels_wait_as_they_should", Language::Cpp) {
        assert_eq!(build(&compiler, "device.cpp").succeed(&[]), "device ok\n");
    }
}
