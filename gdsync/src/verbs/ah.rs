//! Address handles: where datagrams go.

use crate::error::Error;
use crate::qp::QueuePair;
use crate::qp::connect::path;
use crate::verbs::call;
use crate::verbs::config::ConnectOptions;
use crate::verbs::endpoint::Endpoint;
use crate::verbs::pd::ProtectionDomainInner;
use gdsync_sys::mlx5dv::{self, mlx5dv_ah, mlx5dv_obj};
use gdsync_sys::prm::wqe::AddressVector;
use gdsync_sys::verbs::{ibv_ah, ibv_ah_attr};
use std::ptr::NonNull;
use std::sync::Arc;

/// The path to a remote port, for the datagrams of UD queue pairs ([`crate::WorkRequest::to`]).
///
/// A cheap handle; clones name the same address. It belongs to a protection domain and a port, and serves every UD queue pair of
/// both. Work requests in flight hold it, and it holds its protection domain.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    inner: Arc<AddressHandleInner>,
}

#[derive(Debug)]
struct AddressHandleInner {
    raw: NonNull<ibv_ah>,
    /// The program's, which destroys it.
    borrowed: bool,
    /// As the card has it, without queue pair and Q_Key.
    vector: AddressVector,
    port: u8,
    pd: Arc<ProtectionDomainInner>,
}

// SAFETY: libibverbs allows an address handle to be destroyed from any thread; everything else is plain data.
unsafe impl Send for AddressHandleInner {}
// SAFETY: as above.
unsafe impl Sync for AddressHandleInner {}

impl AddressHandle {
    /// The address of a remote port, reached from the port and the global identifier of `queue_pair`. Of `remote`, the queue pair's
    /// number and the packet sequence number are of no concern here.
    ///
    /// Of the options, service level and global route count.
    ///
    /// # Errors
    /// [`Error::OtherWire`] where the remote port speaks another protocol, [`Error::OutOfRange`] for options outside their ranges,
    /// [`Error::Verbs`] where the provider refuses.
    pub fn new(queue_pair: &QueuePair, remote: &Endpoint, options: ConnectOptions) -> Result<Self, Error> {
        let inner = &queue_pair.inner;
        options.check(u32::from(u8::MAX))?;
        let (pd, port) = (inner.domain.pd.clone(), inner.config.port);
        let attr = path(port, &inner.gid, remote, &options)?;
        let made = AddressHandleInner::new(pd, attr, || remote.to_string())?;
        Ok(AddressHandle { inner: Arc::new(made) })
    }

    /// One that the program has made, of that domain and port.
    pub(crate) fn borrowed(
        raw: NonNull<ibv_ah>,
        port: u8,
        pd: Arc<ProtectionDomainInner>,
    ) -> Result<Self, Error> {
        let made = AddressHandleInner::described(raw, true, port, pd)?;
        Ok(AddressHandle { inner: Arc::new(made) })
    }

    /// Without queue pair and Q_Key.
    pub(crate) fn vector(&self) -> AddressVector {
        self.inner.vector
    }

    pub(crate) fn port(&self) -> u8 {
        self.inner.port
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomainInner> {
        &self.inner.pd
    }
}

/// A path in the card's format, with all that the operating system knows of it: on Ethernet, the remote port's address there.
pub(crate) fn resolve(pd: &Arc<ProtectionDomainInner>, attr: &ibv_ah_attr) -> Result<AddressVector, Error> {
    Ok(AddressHandleInner::new(pd.clone(), *attr, || "the path of a connection".to_owned())?.vector)
}

impl AddressHandleInner {
    fn new(
        pd: Arc<ProtectionDomainInner>,
        mut attr: ibv_ah_attr,
        detail: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        // SAFETY: the domain is allocated as long as `pd` lives; `attr` is valid.
        let raw = unsafe { (pd.device.api.create_ah)(pd.raw(), &mut attr) };
        let raw = call::pointer("ibv_create_ah", raw, detail)?;
        Self::described(raw, false, attr.port_num, pd)
    }

    fn described(
        raw: NonNull<ibv_ah>,
        borrowed: bool,
        port: u8,
        pd: Arc<ProtectionDomainInner>,
    ) -> Result<Self, Error> {
        let vector = zerocopy::transmute!([0u8; 48]);
        let mut made = AddressHandleInner { raw, borrowed, vector, port, pd };
        made.vector = made.describe()?;
        Ok(made)
    }

    /// Asks the provider for the address in the card's format.
    fn describe(&self) -> Result<AddressVector, Error> {
        let mut out = mlx5dv_ah { av: std::ptr::null_mut(), comp_mask: 0 };
        let mut obj = mlx5dv_obj::default();
        obj.ah.r#in = self.raw.as_ptr();
        obj.ah.out = &mut out;
        // SAFETY: the handle is alive, and `out` is a valid place.
        let rc = unsafe { (self.pd.device.api.mlx5dv_init_obj)(&mut obj, mlx5dv::MLX5DV_OBJ_AH) };
        call::status("mlx5dv_init_obj", rc, || "address handle".to_owned())?;
        if out.av.is_null() {
            return Err(Error::Layout { what: "an address vector", value: 0 });
        }
        // SAFETY: the provider describes a vector of 48 bytes (mlx5dv.h, `struct mlx5_wqe_av`) that is valid as long as the handle.
        let bytes = unsafe { out.av.cast::<[u8; size_of::<AddressVector>()]>().read_unaligned() };
        Ok(zerocopy::transmute!(bytes))
    }
}

impl Drop for AddressHandleInner {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        // SAFETY: created by us, and no work request names it any more: they hold an `Arc` of this.
        call::on_drop("ibv_destroy_ah", unsafe { (self.pd.device.api.destroy_ah)(self.raw.as_ptr()) });
    }
}
