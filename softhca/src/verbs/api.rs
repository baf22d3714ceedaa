//! The table of entry points.

use super::{ah, channel, context, cq, device, domain, init_obj, modify, mr, qp, srq};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::{Provider, VerbsTable};

const TABLE: VerbsTable = VerbsTable {
    provider: Provider::Software,
    get_device_list: device::get_device_list,
    free_device_list: device::free_device_list,
    get_device_name: device::get_device_name,
    open_device: context::open_device,
    close_device: context::close_device,
    query_device: context::query_device,
    query_port: context::query_port,
    query_gid: context::query_gid,
    query_gid_table: Some(context::query_gid_table),
    alloc_pd: domain::alloc_pd,
    dealloc_pd: domain::dealloc_pd,
    alloc_td: domain::alloc_td,
    dealloc_td: domain::dealloc_td,
    alloc_parent_domain: domain::alloc_parent_domain,
    reg_mr: mr::reg_mr,
    dereg_mr: mr::dereg_mr,
    // GPU memory is registered through peer-memory clients.
    reg_dmabuf_mr: None,
    mlx5dv_create_cq: cq::mlx5dv_create_cq,
    destroy_cq: cq::destroy_cq,
    create_comp_channel: channel::create_comp_channel,
    destroy_comp_channel: channel::destroy_comp_channel,
    get_cq_event: channel::get_cq_event,
    ack_cq_events: cq::ack_cq_events,
    create_srq: srq::create_srq,
    destroy_srq: srq::destroy_srq,
    mlx5dv_create_qp: qp::mlx5dv_create_qp,
    // Programs write to the rings themselves.
    qp_to_qp_ex: None,
    modify_qp: modify::modify_qp,
    query_qp: modify::query_qp,
    destroy_qp: qp::destroy_qp,
    create_ah: ah::create_ah,
    destroy_ah: ah::destroy_ah,
    get_async_event: channel::get_async_event,
    ack_async_event: channel::ack_async_event,
    mlx5dv_is_supported: device::mlx5dv_is_supported,
    mlx5dv_init_obj: init_obj::mlx5dv_init_obj,
    devx_general_cmd: Some(context::general_cmd),
    // Programs that make objects by commands use libmlx5 on `softhca-uverbs`.
    devx: None,
};

// SAFETY: the entries are this module's, which behave as the manual pages of their names require, from any
// thread; C functions of Rust do not unwind.
static API: VerbsApi = unsafe { VerbsApi::new(TABLE) };

/// The software card's entry points.
pub fn verbs_api() -> &'static VerbsApi {
    &API
}
