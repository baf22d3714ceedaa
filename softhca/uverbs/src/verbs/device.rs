//! The attributes and limits of a device.

use super::port::PORT;
use crate::attributes::Request;
use crate::context::Context;
use crate::errno::{Errno, Result};
use crate::uapi::ioctl::attr;
use crate::uapi::mlx5::{
    AllocUcontext, AllocUcontextResp, CLOCK_INFO_V1, CONTEXT_CLOCK_OFFSET, CONTEXT_DEVX,
    CONTEXT_DUMP_FILL_MKEY, CONTEXT_ECE, CONTEXT_MKEY_UPDATE_TAG, INLINE_MODE_NONE, SUPPORTED_UHW,
};
use crate::uapi::verbs::{CORE_SUPPORT_OPTIONAL_MR_ACCESS, DEVICE_XRC, QueryDeviceMore, QueryDeviceResp};
use softhca::card::{CLOCK_INFO_PAGE, CLOCK_KHZ, CLOCK_MASK, CLOCK_PAGE, LIMITS, LinkLayer, NULL_KEY, ODP};
use softhca::sysfs;
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const COMPLETION_VECTORS: u32 = 1;
/// Microseconds of the longest moderation of a completion queue: `cq_period` has 12 bits (`MLX5_MAX_CQ_PERIOD`).
pub(super) const LONGEST_PERIOD: u16 = 0xfff;
/// `IB_ATOMIC_HCA`: operations are atomic among the requests of one card.
const ATOMIC_HCA: u32 = 1;
/// `IB_UVERBS_DEVICE_MEM_WINDOW`; `_MEM_MGT_EXTENSIONS`: invalidation, by work requests and by sends;
/// `_MEM_WINDOW_TYPE_2B`: a window of type 2 belongs to a queue pair.
const CAP_MEM_WINDOW: u32 = 1 << 17;
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
/// The vendor's IEEE OUI, where sysfs has the PCI ID (InfiniBand specification, 14.2.5.3, `VendorID`).
const VENDOR_OUI: u32 = 0x02c9;
/// Scatter/gather elements that fit a work request of every kind, as the driver computes them: 512 bytes, less control
/// and remote address (`mlx5_ib_query_device`). A queue may be created with more, up to the work-queue entry's size.
const MAX_SGE: u32 = (512 - 16 - 16) / 16;
/// Bytes of a page that a program maps.
const PAGE: usize = 4096;
/// Version 1 of completion entries: they name the queue pair by an index that libmlx5 chooses.
const CQE_VERSION: u8 = 1;

/// Checks that a program maps a page of the clock for reading.
///
/// # Errors
/// EINVAL; EPERM for a writable mapping, as in the kernel.
pub(crate) fn check_mapping(offset: u64, len: usize, protection: i32) -> Result<()> {
    let is_clock = [CLOCK_PAGE, CLOCK_INFO_PAGE].iter().any(|page| (page * PAGE) as u64 == offset);
    if !is_clock || len != PAGE {
        return Err(Errno::INVALID);
    }
    if protection & libc::PROT_WRITE != 0 { Err(Errno(libc::EPERM)) } else { Ok(()) }
}

/// `GET_CONTEXT`, once for each open file. Without static doorbell registers (`tot_bfregs` 0), libmlx5 allocates UAR objects.
pub(crate) fn get_context(context: &Context, request: &Request) -> Result<()> {
    let asked: AllocUcontext = request.structure(attr::UHW_IN)?;
    if asked.max_cqe_version < CQE_VERSION {
        tracing::warn!(asked.max_cqe_version, "a libmlx5 older than version 1 of completion entries");
        return Err(Errno::NOT_SUPPORTED);
    }
    // As in `ib_init_ucontext` and `mlx5_ib_alloc_ucontext`.
    let registers = asked.total_num_bfregs.next_multiple_of(2);
    if context.heritage.begun().is_some() || asked.num_low_latency_bfregs > registers.wrapping_sub(1) {
        return Err(Errno::INVALID);
    }
    if asked.flags & !CONTEXT_DEVX != 0
        || asked.comp_mask != 0
        || (asked.reserved0, asked.reserved1, asked.reserved2) != (0, 0, 0)
    {
        return Err(Errno::NOT_SUPPORTED);
    }
    context.heritage.begin(asked.flags & CONTEXT_DEVX != 0);
    answer_context(context, request, attr::UHW_OUT)
}

/// `QUERY_CONTEXT`, for a program that imports a device.
pub(crate) fn query_context(context: &Context, request: &Request) -> Result<()> {
    answer_context(context, request, attr::QUERY_CONTEXT_UCTX)
}

fn answer_context(context: &Context, request: &Request, place: u16) -> Result<()> {
    let ece = if context.card().link_layer() == LinkLayer::Ethernet { CONTEXT_ECE } else { 0 };
    let answer = AllocUcontextResp {
        qp_tab_size: LIMITS.max_qp,
        bf_reg_size: 512,
        cache_line_size: 64,
        // A WQE counts its 16-byte segments in 6 bits: 63 segments, rounded up to a power of two.
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: LIMITS.max_qp_wr,
        max_recv_wr: LIMITS.max_qp_wr,
        max_srq_recv_wr: LIMITS.max_srq_entries,
        num_ports: 1,
        comp_mask: CONTEXT_CLOCK_OFFSET | CONTEXT_DUMP_FILL_MKEY | CONTEXT_MKEY_UPDATE_TAG | ece,
        // libmlx5's null region.
        dump_fill_mkey: NULL_KEY,
        response_length: size_of::<AllocUcontextResp>() as u32,
        cqe_version: CQE_VERSION,
        cmds_supp_uhw: SUPPORTED_UHW,
        eth_min_inline: INLINE_MODE_NONE,
        clock_info_versions: CLOCK_INFO_V1,
        // Offset in its page.
        hca_core_clock_offset: 0,
        log_uar_size: 12,
        num_uars_per_page: 1,
        ..AllocUcontextResp::new_zeroed()
    };
    request.answer_with(attr::NUM_COMP_VECTORS, &COMPLETION_VECTORS)?;
    request.answer_with(attr::CORE_SUPPORT, &CORE_SUPPORT_OPTIONAL_MR_ACCESS)?;
    request.answer_with(place, &answer)
}

/// `QUERY_DEVICE`. libibverbs first sends it without an answer attribute, to probe whether the ioctl accepts
/// write commands.
pub(crate) fn query(context: &Context, request: &Request) -> Result<()> {
    if !request.has(attr::CORE_OUT) {
        return Err(Errno::NO_SPACE);
    }
    request.answer_with(attr::CORE_OUT, &answer_of(context))
}

/// The word of the driver's part of the answer that is `flags`.
const DRIVER_FLAGS: usize = 15;
/// `MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP`.
const OUT_OF_ORDER: u32 = 1 << 4;

/// `IB_ODP_SUPPORT` and `IB_ODP_SUPPORT_IMPLICIT`.
const ODP_GENERAL: u64 = 1 << 0 | 1 << 1;

pub(crate) fn query_extended(context: &Context, request: &Request) -> Result<()> {
    let base = answer_of(context);
    let size = size_of::<QueryDeviceResp>() + size_of::<QueryDeviceMore>();
    let more = QueryDeviceMore {
        response_length: request.len(attr::CORE_OUT).min(size) as u32,
        odp_caps: ODP_GENERAL,
        rc_odp_caps: ODP.rc,
        uc_odp_caps: ODP.uc,
        ud_odp_caps: ODP.ud,
        xrc_odp_caps: ODP.xrc,
        timestamp_mask: CLOCK_MASK,
        // In kHz.
        hca_core_clock: CLOCK_KHZ.into(),
        cq_moderation_caps: [u16::MAX, LONGEST_PERIOD, 0, 0],
        device_cap_flags_ex: base.device_cap_flags.into(),
        max_dm_size: LIMITS.device_memory,
        ..QueryDeviceMore::new_zeroed()
    };
    request.answer(attr::CORE_OUT, &[base.as_bytes(), more.as_bytes()].concat())?;
    // `struct mlx5_ib_query_device_resp`: comp_mask, response_length, no offloads, and `flags`.
    let mut driver = [0u32; DRIVER_FLAGS + 1];
    (driver[1], driver[DRIVER_FLAGS]) = (request.len(attr::UHW_OUT) as u32, OUT_OF_ORDER);
    request.answer_with(attr::UHW_OUT, &driver)
}

/// Returns the firmware's version, as mlx5 packs it: major in 32 bits, minor and subminor in 16 each.
fn firmware() -> u64 {
    sysfs::FIRMWARE
        .split('.')
        .zip([32, 16, 0])
        .fold(0, |packed, (part, shift)| packed | part.parse::<u64>().unwrap_or(0) << shift)
}

fn answer_of(context: &Context) -> QueryDeviceResp {
    let guid = sysfs::node_guid(context.open.index).to_be();
    let limits = context.card().limits();
    let reads = u32::from(limits.max_rd_atomic);
    let has_groups = u32::from(context.card().has_multicast());
    QueryDeviceResp {
        fw_ver: firmware(),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        // Every page size of at least 4 KiB.
        page_size_cap: !0xfff,
        vendor_id: VENDOR_OUI,
        vendor_part_id: sysfs::PART,
        max_qp: limits.max_qp,
        max_qp_wr: limits.max_qp_wr,
        max_sge: MAX_SGE,
        max_sge_rd: MAX_SGE,
        max_cq: limits.max_cq,
        max_cqe: limits.max_cqe - 1,
        device_cap_flags: DEVICE_XRC | CAP_MEM_WINDOW | CAP_MEM_MGT_EXTENSIONS | CAP_MEM_WINDOW_TYPE_2B,
        max_mr: limits.max_mr,
        // Windows and regions share one table.
        max_mw: limits.max_mr,
        max_pd: limits.max_pd,
        max_qp_rd_atom: reads,
        max_res_rd_atom: reads * limits.max_qp,
        max_qp_init_rd_atom: reads,
        atomic_cap: ATOMIC_HCA,
        max_mcast_grp: has_groups * limits.max_groups,
        max_mcast_qp_attach: has_groups * limits.max_group_members,
        max_total_mcast_qp_attach: has_groups * limits.max_groups * limits.max_group_members,
        max_ah: i32::MAX as u32,
        max_srq: limits.max_srq,
        // A list always has one entry more than receives.
        max_srq_wr: limits.max_srq_entries - 1,
        max_srq_sge: limits.max_srq_sge,
        max_pkeys: context.card().pkeys().keys().len() as u16,
        local_ca_ack_delay: 16,
        phys_port_cnt: PORT,
        ..QueryDeviceResp::new_zeroed()
    }
}
