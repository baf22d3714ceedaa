//! The front of the card that programs see: the entry points of libibverbs and libmlx5.
//!
//! Behaviour is that of the manual pages and of rdma-core's mlx5 provider: what is granted, which errno says what, in which
//! order objects may go. Objects are handed out as pointers to C structs; a parent cannot be destroyed (EBUSY) while
//! something made of it is left; null pointers are answered with EINVAL. Using a pointer after its object was destroyed is
//! the caller's fault, as in C.
//!
//! Every function may be called from any thread. None panics.
//!
//! What this card does not have is refused with EOPNOTSUPP and a line in the log: transports other than RC, shared receive
//! queues, completion channels, extended completion fields, the drained state.

mod ah;
mod context;
mod cq;
mod device;
mod domain;
mod errno;
mod events;
mod init_obj;
mod modify;
mod mr;
mod object;
mod qp;
mod queue_memory;
mod sizes;
mod uar;

pub use crate::devices::DEVICES_VARIABLE;
pub use device::diagnostics;

use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;

static API: VerbsApi = VerbsApi {
    provider: Provider::Software,
    get_device_list: device::get_device_list,
    free_device_list: device::free_device_list,
    get_device_name: device::get_device_name,
    get_device_guid: device::get_device_guid,
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
    // GPU memory comes through peer-memory clients.
    reg_dmabuf_mr: None,
    mlx5dv_create_cq: cq::mlx5dv_create_cq,
    destroy_cq: cq::destroy_cq,
    mlx5dv_create_qp: qp::mlx5dv_create_qp,
    // Programs post by writing to the rings themselves.
    qp_to_qp_ex: None,
    modify_qp: modify::modify_qp,
    query_qp: modify::query_qp,
    destroy_qp: qp::destroy_qp,
    create_ah: ah::create_ah,
    destroy_ah: ah::destroy_ah,
    get_async_event: events::get_async_event,
    ack_async_event: events::ack_async_event,
    mlx5dv_is_supported: device::mlx5dv_is_supported,
    mlx5dv_init_obj: init_obj::mlx5dv_init_obj,
    // Who wants commands runs on libmlx5, on `softhca-uverbs`.
    devx: None,
};

/// The software card's entry points.
pub fn verbs_api() -> &'static VerbsApi {
    &API
}
