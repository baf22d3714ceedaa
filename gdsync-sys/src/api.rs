//! The table of verbs entry points: the interface between gdsync and the code that drives the card.
//!
//! Safe code calls only through a [`VerbsApi`], which certifies that its creator has vouched for the table. The
//! [`VerbsTable`] itself is plain data; the code that fills one vouches for it by an `unsafe` call.

use crate::mlx5dv::{
    mlx5dv_cq_init_attr, mlx5dv_devx_obj, mlx5dv_devx_uar, mlx5dv_devx_umem, mlx5dv_devx_umem_in, mlx5dv_obj,
    mlx5dv_qp_init_attr,
};
use crate::verbs::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_init_attr_ex,
    ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_mr, ibv_parent_domain_init_attr, ibv_pd,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq,
    ibv_srq_init_attr, ibv_td, ibv_td_init_attr,
};
use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use std::ops::Deref;

/// Origin of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// The software card of the `softhca` crate.
    Software,
    /// The system's libibverbs and libmlx5.
    System,
}

/// A table of entry points that meets the contract of [`VerbsApi::new`], so that safe code may use it. Its entries
/// are read like those of the [`VerbsTable`], and cannot be changed.
///
/// [`crate::system::load`] creates one, and so does the software card of the `softhca` crate. Creating another one is an
/// `unsafe` call:
///
/// ```compile_fail,E0133
/// use gdsync_sys::{VerbsApi, api::VerbsTable};
/// fn vouch(table: VerbsTable) -> VerbsApi {
///     VerbsApi::new(table)
/// }
/// ```
/// ```compile_fail,E0451
/// use gdsync_sys::{VerbsApi, api::VerbsTable};
/// fn make(table: VerbsTable) -> VerbsApi {
///     VerbsApi { table }
/// }
/// ```
/// ```compile_fail,E0594
/// use gdsync_sys::{VerbsApi, api::VerbsTable};
/// fn change(api: &mut VerbsApi, other: &VerbsTable) {
///     api.open_device = other.open_device;
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct VerbsApi {
    table: VerbsTable,
}

impl VerbsApi {
    /// Vouches for a table.
    ///
    /// # Safety
    /// For the rest of the process, each entry follows the conventions of [`VerbsTable`] and the manual page of its C
    /// function, whenever it is called as that page allows, from any thread: returned pointers are null or valid for
    /// as long as the page says; reported values (counts, sizes, addresses of queues, zero-terminated names) are
    /// true; no memory of the caller is kept longer than the page says. No entry unwinds.
    pub const unsafe fn new(table: VerbsTable) -> Self {
        VerbsApi { table }
    }
}

impl Deref for VerbsApi {
    type Target = VerbsTable;

    fn deref(&self) -> &VerbsTable {
        &self.table
    }
}

/// Declares a table of C functions; older libraries lack the optional ones.
macro_rules! table {
    (
        $(#[$about:meta])* $table:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
        required { $($(#[$of:meta])* $name:ident($($argument:ident: $kind:ty),*) $(-> $answer:ty)?;)* }
        optional { $($(#[$maybe_of:meta])* $maybe:ident($($given:ident: $its:ty),*) -> $result:ty;)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "each field is the C function of the same name, documented there")]
        pub struct $table {
            $($(#[$doc])* pub $field: $type,)*
            $($(#[$of])* pub $name: unsafe extern "C" fn($($argument: $kind),*) $(-> $answer)?,)*
            $($(#[$maybe_of])* pub $maybe: Option<unsafe extern "C" fn($($given: $its),*) -> $result>,)*
        }
    };
}

table! {
    /// Entry points of libibverbs and libmlx5, as C function pointers. Plain data: safe code takes a [`VerbsApi`].
    ///
    /// Conventions of the C libraries apply: a function that returns a pointer returns null and sets `errno` on
    /// failure; one that returns an `int` returns 0, a positive errno, or -1 with `errno` set. The manual page of the
    /// function of the same name states ownership, lifetime and threading rules.
    ///
    /// If the C library only has an inline function (`ibv_alloc_td`, `ibv_alloc_parent_domain`) or a private symbol
    /// behind a macro, the provider supplies a function with the documented behaviour.
    VerbsTable {
        /// Origin of the table.
        provider: Provider,
        /// DEVX objects. The in-process software card has none; libraries before rdma-core 21 lack them.
        devx: Option<DevxApi>,
    }
    required {
        get_device_list(num: *mut c_int) -> *mut *mut ibv_device;
        free_device_list(list: *mut *mut ibv_device);
        get_device_name(device: *mut ibv_device) -> *const c_char;
        open_device(device: *mut ibv_device) -> *mut ibv_context;
        close_device(context: *mut ibv_context) -> c_int;
        query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
        /// Fills `attr` up to and including `flags`. Later fields may stay unchanged, so zero the struct first.
        query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
        query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        dealloc_pd(pd: *mut ibv_pd) -> c_int;
        alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td;
        dealloc_td(td: *mut ibv_td) -> c_int;
        alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd;
        reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> *mut ibv_mr;
        dereg_mr(mr: *mut ibv_mr) -> c_int;
        /// Returns `struct ibv_cq_ex *`, which begins with an `ibv_cq`.
        mlx5dv_create_cq(
            context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex, mlx5_attr: *mut mlx5dv_cq_init_attr
        ) -> *mut ibv_cq;
        /// Waits until the queue's events are acknowledged.
        destroy_cq(cq: *mut ibv_cq) -> c_int;
        create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        /// Blocks unless the channel's `fd` is non-blocking. The program that consumes a queue's entries arms the
        /// queue, by its record and its register: see [`crate::prm::doorbell::CqArm`].
        get_cq_event(
            channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
        ) -> c_int;
        ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        /// Writes the granted sizes to `attr`.
        create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        /// Waits until the queue's events are acknowledged.
        destroy_srq(srq: *mut ibv_srq) -> c_int;
        mlx5dv_create_qp(
            context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex, mlx5_attr: *mut mlx5dv_qp_init_attr
        ) -> *mut ibv_qp;
        /// `mask` is a combination of `IBV_QP_*`.
        modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
        query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
        destroy_qp(qp: *mut ibv_qp) -> c_int;
        create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        destroy_ah(ah: *mut ibv_ah) -> c_int;
        /// Blocks unless the context's `async_fd` is non-blocking.
        get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        ack_async_event(event: *mut ibv_async_event);
        mlx5dv_is_supported(device: *mut ibv_device) -> bool;
        mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
    }
    optional {
        /// Writes the valid entries of all ports' GID tables, with their types. Returns their number, or a negative
        /// errno. `flags` is 0, `entry_size` the size of an entry. A private symbol behind an inline function;
        /// libraries before rdma-core 32 lack it.
        query_gid_table(
            context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: size_t, flags: u32,
            entry_size: size_t
        ) -> ssize_t;
        /// Registers memory of another device, given as a dma-buf. Libraries before rdma-core 34 lack it.
        reg_dmabuf_mr(
            pd: *mut ibv_pd, offset: u64, length: size_t, iova: u64, fd: c_int, access: c_int
        ) -> *mut ibv_mr;
        /// Returns the `ibv_wr_*` operations of a queue pair that was created for them. Only the system provider has
        /// it, from rdma-core 24 on.
        qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        /// Executes a general command of the device (`mlx5dv_devx_general_cmd`). The in-process software card has
        /// QUERY_HCA_CAP only; libraries before rdma-core 21 lack it.
        ///
        /// Fails with EREMOTEIO if the device rejects the command: see [`DevxApi`].
        devx_general_cmd(
            context: *mut ibv_context, input: *const c_void, input_len: size_t, output: *mut c_void,
            output_len: size_t
        ) -> c_int;
        /// Executes a command about a queue pair that verbs have made (`mlx5dv_devx_qp_query`). The in-process software
        /// card has QUERY_QP only, and fills the fields of the data ordering; libraries before rdma-core 22 lack it.
        devx_qp_query(
            qp: *mut ibv_qp, input: *const c_void, input_len: size_t, output: *mut c_void, output_len: size_t
        ) -> c_int;
    }
}

table! {
    /// Entry points of libmlx5's DEVX: objects created by device commands ([`crate::prm::command`]).
    ///
    /// Calls that take a command fail with EREMOTEIO if the device rejects it; the output then begins with a status
    /// and a syndrome. Older kernels use other error numbers: an output with a status always comes from the device.
    DevxApi {}
    required {
        obj_create(
            context: *mut ibv_context, input: *const c_void, input_len: size_t, output: *mut c_void,
            output_len: size_t
        ) -> *mut mlx5dv_devx_obj;
        obj_modify(
            object: *mut mlx5dv_devx_obj, input: *const c_void, input_len: size_t, output: *mut c_void,
            output_len: size_t
        ) -> c_int;
        obj_query(
            object: *mut mlx5dv_devx_obj, input: *const c_void, input_len: size_t, output: *mut c_void,
            output_len: size_t
        ) -> c_int;
        obj_destroy(object: *mut mlx5dv_devx_obj) -> c_int;
        /// `access` is a combination of `IBV_ACCESS_*`.
        umem_reg(
            context: *mut ibv_context, addr: *mut c_void, size: size_t, access: u32
        ) -> *mut mlx5dv_devx_umem;
        umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int;
        /// `flags` is one of `MLX5DV_UAR_ALLOC_TYPE_*`.
        alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar;
        free_uar(uar: *mut mlx5dv_devx_uar);
        query_eqn(context: *mut ibv_context, vector: u32, eqn: *mut u32) -> c_int;
    }
    optional {
        /// Libraries before rdma-core 35 lack it.
        umem_reg_ex(context: *mut ibv_context, umem_in: *mut mlx5dv_devx_umem_in) -> *mut mlx5dv_devx_umem;
    }
}
