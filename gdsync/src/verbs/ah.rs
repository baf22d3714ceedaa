//! Address handles: the destinations of datagrams and of DC requests.

use crate::verbs::{
    ConnectOptions, Endpoint, Error, GidEntry, LinkLayer, OutOfRange, Owned, PortError,
    ProtectionDomainInner, QueuePairError, call,
};
use gdsync_sys::mlx5dv::{self, mlx5dv_ah, mlx5dv_obj};
use gdsync_sys::prm::wqe::AddressVector;
use gdsync_sys::verbs::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route};
use std::ptr::NonNull;
use std::sync::Arc;

/// The path to a remote port, for the datagrams of UD queue pairs ([`crate::WorkRequest::to`]).
///
/// It is a cheap handle; clones name the same address. It serves every UD queue pair of its protection domain and
/// port. Work requests in flight hold it, and it holds its protection domain.
///
/// ```
/// use gdsync::verbs::Transport;
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair, QueuePairConfig, WorkRequest};
/// # let pd = ProtectionDomain::new(&Device::software()?)?;
/// let config = QueuePairConfig::default().transport(Transport::Ud);
/// let (left, right) = (QueuePair::new(&pd, config)?, QueuePair::new(&pd, config)?);
/// let region = MemoryRegion::allocate(&pd, 64, Access::LOCAL_WRITE)?;
/// right.post_recv(&[region.slice(..)?], 0)?;
/// let to_right = left.address_handle(&right.endpoint()?, Default::default())?;
/// left.post_send(WorkRequest::send_inline(b"hello").to(&to_right, right.number(), config.qkey))?;
/// while right.recv_cq().poll()?.is_none() {}
/// let mut text = [0; 5];
/// region.read(40, &mut text); // 40 bytes of the receive are for the header
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressHandle {
    pub(crate) inner: Arc<AddressHandleInner>,
}

#[derive(Debug)]
pub(crate) struct AddressHandleInner {
    raw: Owned<ibv_ah>,
    /// In the card's format, without queue pair number and Q_Key.
    pub(crate) vector: AddressVector,
    pub(crate) port: u8,
    pub(crate) pd: Arc<ProtectionDomainInner>,
}

impl AddressHandle {
    /// The address of a remote port, reached from a port and one of its GIDs.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomainInner>,
        port: u8,
        own: &GidEntry,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<Self, Error> {
        options.check(u32::from(u8::MAX))?;
        let attr = path(port, own, remote, options)?;
        let made = AddressHandleInner::new(pd.clone(), attr, || remote.to_string())?;
        Ok(AddressHandle { inner: Arc::new(made) })
    }

    pub(crate) fn borrowed(
        raw: NonNull<ibv_ah>,
        port: u8,
        pd: Arc<ProtectionDomainInner>,
    ) -> Result<Self, Error> {
        let made = AddressHandleInner::described(Owned::borrowed(raw), port, pd)?;
        Ok(AddressHandle { inner: Arc::new(made) })
    }
}

/// The path to the remote port: on Ethernet, a global route from the chosen GID. On InfiniBand, the remote LID, with
/// a global route if `options` ask for it or the remote port is in another subnet.
pub(crate) fn path(
    port: u8,
    own: &GidEntry,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<ibv_ah_attr, Error> {
    if own.kind != remote.kind {
        return Err(Error::Port(PortError::GidKindMismatch { own: own.kind, remote: remote.kind }));
    }
    let mut attr = ibv_ah_attr { port_num: port, sl: options.service_level, ..Default::default() };
    let ethernet = own.kind.link() == LinkLayer::Ethernet;
    if !ethernet {
        attr.dlid = remote.lid;
    }
    let routed = own.gid.subnet_prefix() != remote.gid.subnet_prefix();
    if ethernet || options.global || routed {
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: ibv_gid { raw: remote.gid.0 },
            flow_label: options.flow_label,
            sgid_index: u8::try_from(own.index).map_err(|_| {
                Error::OutOfRange(OutOfRange {
                    what: "gid_index",
                    value: own.index.into(),
                    limit: "a connection can name the first 256".to_owned(),
                    remedy: "choose a smaller index",
                })
            })?,
            hop_limit: options.hop_limit,
            traffic_class: options.traffic_class,
        };
    }
    Ok(attr)
}

/// Resolves a path into the card's format, with the remote port's Ethernet address, which only the system knows.
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
        // SAFETY: work requests that name the handle hold an `Arc` of its owner, which holds the domain.
        let raw = unsafe { Owned::new(raw, pd.device.api.destroy_ah, "ibv_destroy_ah") };
        Self::described(raw, attr.port_num, pd)
    }

    fn described(raw: Owned<ibv_ah>, port: u8, pd: Arc<ProtectionDomainInner>) -> Result<Self, Error> {
        let vector = zerocopy::transmute!([0u8; 48]);
        let mut made = AddressHandleInner { raw, vector, port, pd };
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
            return Err(QueuePairError::layout("an address vector", 0u32));
        }
        // SAFETY: the provider describes a vector of 48 bytes (mlx5dv.h, `struct mlx5_wqe_av`), valid as long as the
        // handle.
        let bytes = unsafe { out.av.cast::<[u8; size_of::<AddressVector>()]>().read_unaligned() };
        Ok(zerocopy::transmute!(bytes))
    }
}

/// The address of a DC target: the path to its port, its number and its access key, for the requests of DC queue
/// pairs ([`crate::WorkRequest::to_target`]). [`crate::QueuePair::dc_address`] makes it.
///
/// It is a cheap handle, which serves every DC queue pair of its protection domain and port. Neither the card nor
/// the target checks it before a request is sent there: the request reports what is wrong.
#[derive(Clone, Debug)]
pub struct DcAddress {
    pub(crate) handle: AddressHandle,
    pub(crate) vector: AddressVector,
}

impl DcAddress {
    pub(crate) fn new(handle: AddressHandle, number: u32, key: u64) -> Self {
        let vector = handle.inner.vector.with_destination(number, 0).with_dc_key(key);
        DcAddress { handle, vector }
    }

    /// Returns the number of the target.
    pub fn number(&self) -> u32 {
        self.vector.fields().qpn
    }

    /// Returns the access key that requests will carry.
    pub fn key(&self) -> u64 {
        self.vector.dc_key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Gid, GidKind, Mtu};

    fn entry(kind: GidKind, index: u32, prefix: u8) -> GidEntry {
        GidEntry { index, gid: Gid([prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), kind }
    }

    fn endpoint(kind: GidKind, prefix: u8) -> Endpoint {
        let gid = entry(kind, 0, prefix).gid;
        Endpoint { qpn: 7, psn: 0, kind, lid: 9, gid, mtu: Mtu::Bytes1024 }
    }

    #[test]
    fn an_infiniband_port_is_addressed_by_its_lid() {
        let own = entry(GidKind::InfiniBand, 0, 0xfe);
        let options = ConnectOptions::default().service_level(3);
        let near = path(2, &own, &endpoint(GidKind::InfiniBand, 0xfe), &options).unwrap();
        assert_eq!((near.dlid, near.is_global, near.port_num, near.sl), (9, 0, 2, 3));
        let asked = path(1, &own, &endpoint(GidKind::InfiniBand, 0xfe), &options.global(true)).unwrap();
        assert_eq!((asked.dlid, asked.is_global, asked.grh.hop_limit), (9, 1, 64));
        let routed = path(1, &own, &endpoint(GidKind::InfiniBand, 0x20), &options).unwrap();
        assert_eq!((routed.is_global, routed.grh.dgid.raw[0]), (1, 0x20));
    }

    #[test]
    fn an_ethernet_port_is_addressed_by_its_gid() {
        let own = entry(GidKind::RoceV2, 3, 0xfe);
        let options = ConnectOptions::default().hop_limit(5).traffic_class(0x68).flow_label(0xfffff);
        let attr = path(1, &own, &endpoint(GidKind::RoceV2, 0xfe), &options).unwrap();
        assert_eq!((attr.dlid, attr.is_global, attr.grh.sgid_index), (0, 1, 3));
        assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class, attr.grh.flow_label), (5, 0x68, 0xfffff));
    }

    #[test]
    fn other_packets_are_refused() {
        for (own, remote) in [
            (GidKind::InfiniBand, GidKind::RoceV2),
            (GidKind::RoceV2, GidKind::InfiniBand),
            (GidKind::RoceV1, GidKind::RoceV2),
        ] {
            let error = path(1, &entry(own, 0, 1), &endpoint(remote, 1), &ConnectOptions::default());
            let text = error.unwrap_err().to_string();
            assert!(text.contains(&own.to_string()) && text.contains(&remote.to_string()), "{text}");
        }
    }

    #[test]
    fn an_index_that_no_route_can_name_is_refused() {
        let own = entry(GidKind::RoceV2, 256, 1);
        let error = path(1, &own, &endpoint(GidKind::RoceV2, 1), &ConnectOptions::default()).unwrap_err();
        assert!(error.to_string().starts_with("gid_index is 256"), "{error}");
    }
}
