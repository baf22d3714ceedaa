//! Devices and their ports.

use crate::memory::arena::Arena;
use crate::verbs::events::EventSinks;
use crate::verbs::{
    Error, GidEntry, LinkLayer, Mtu, OpenError, Owned, PortAttributes, PortError, PortState, QueuePairError,
    call, provider,
};
use gdsync_sys::VerbsApi;
use gdsync_sys::api::Provider;
use gdsync_sys::verbs::{self, ibv_context, ibv_device, ibv_device_attr, ibv_port_attr};
use parking_lot::Mutex;
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// An open card, on which a program makes a [`ProtectionDomain`](crate::ProtectionDomain) and completion queues.
///
/// It is a cheap handle; clones name the same device. It closes with the last object made on it, perhaps a moment
/// after the program's last drop: the thread of checked waits drops a wait after it has reported its outcome.
///
/// ```
/// use gdsync::{Device, verbs::DEFAULT_PORT};
/// let device = Device::software()?; // needs nothing installed; `Device::open` takes the system's cards
/// let port = device.port(DEFAULT_PORT)?;
/// println!("{}: {}, {:?}", device.name(), port.state, port.mtu);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    raw: Owned<ibv_context>,
    pub(crate) api: &'static VerbsApi,
    pub(crate) name: String,
    /// The memory of this device's rings.
    pub(crate) arena: Arc<Arena>,
    /// The objects that asynchronous events concern.
    pub(crate) queue_pairs: EventSinks,
    /// Held by the thread that reads an event.
    pub(crate) reader: Mutex<()>,
}

impl DeviceInner {
    /// A port's attributes, if it is active.
    pub(crate) fn active_port(&self, number: u8) -> Result<PortAttributes, Error> {
        let port = self.port(number)?;
        if port.state == PortState::Active {
            return Ok(port);
        }
        let device = self.name.to_owned();
        Err(Error::Port(PortError::NotActive { device, port: number, state: port.state, link: port.link }))
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn port(&self, port: u8) -> Result<PortAttributes, Error> {
        let attr = self.port_attr(port)?;
        Ok(PortAttributes {
            port,
            state: PortState::from_raw(attr.state),
            link: link_layer(attr.link_layer)?,
            lid: attr.lid,
            mtu: Mtu::from_raw(attr.active_mtu),
            max_message: attr.max_msg_sz,
        })
    }

    pub(crate) fn port_attr(&self, port: u8) -> Result<ibv_port_attr, Error> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open; the place is valid for the struct.
        let rc = unsafe { (self.api.query_port)(self.context(), port, &mut attr) };
        call::status("ibv_query_port", rc, || format!("port {port}"))?;
        Ok(attr)
    }

    pub(crate) fn attributes(&self) -> Result<DeviceAttributes, Error> {
        let mut attr = std::mem::MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is open; the place is valid for the struct.
        let rc = unsafe { (self.api.query_device)(self.context(), attr.as_mut_ptr()) };
        call::status("ibv_query_device", rc, String::new)?;
        // SAFETY: all-zero bytes are a valid value of this plain C struct, and the call filled it.
        let attr = unsafe { attr.assume_init() };
        let firmware = attr.fw_ver.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect();
        Ok(DeviceAttributes {
            firmware,
            node_guid: u64::from_be(attr.node_guid),
            ports: attr.phys_port_cnt,
            max_queue_pairs: attr.max_qp.try_into().unwrap_or(0),
            max_work_requests: attr.max_qp_wr.try_into().unwrap_or(0),
            max_segments: attr.max_sge.try_into().unwrap_or(0),
            max_completions: attr.max_cqe.try_into().unwrap_or(0),
            max_reads: attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom).try_into().unwrap_or(0),
            atomics: attr.atomic_cap != verbs::IBV_ATOMIC_NONE,
        })
    }
}

impl fmt::Debug for DeviceInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("provider", &self.api.provider).finish()
    }
}

/// The link layer of a port, or [`QueuePairError::Layout`] for an unknown code.
pub(super) fn link_layer(raw: u8) -> Result<LinkLayer, Error> {
    match raw {
        // Kernels before 2.6.37 knew InfiniBand only, and did not report it.
        verbs::IBV_LINK_LAYER_UNSPECIFIED | verbs::IBV_LINK_LAYER_INFINIBAND => Ok(LinkLayer::InfiniBand),
        verbs::IBV_LINK_LAYER_ETHERNET => Ok(LinkLayer::Ethernet),
        other => Err(QueuePairError::layout("port link layer", other)),
    }
}

pub(crate) fn provider_name(provider: Provider) -> &'static str {
    match provider {
        Provider::Software => "software",
        Provider::System => "system",
        _ => "unknown",
    }
}

/// The device list of a provider, freed when dropped.
struct DeviceList {
    api: &'static VerbsApi,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    fn get(api: &'static VerbsApi) -> Result<Self, Error> {
        provider::check_settings(api.provider)?;
        let mut num = 0;
        // SAFETY: `num` is a valid place for the count.
        let list = unsafe { (api.get_device_list)(&mut num) };
        let list = match call::pointer("ibv_get_device_list", list, String::new) {
            Ok(list) => list.as_ptr(),
            // As the manual page says.
            Err(Error::Verbs { source, .. }) if source.raw_os_error() == Some(libc::ENOSYS) => {
                return Err(Error::Open(OpenError::NoKernelSupport));
            }
            Err(error) => return Err(error),
        };
        Ok(DeviceList { api, list, len: usize::try_from(num).unwrap_or(0) })
    }

    fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        (0..self.len).map(|i| {
            // SAFETY: the list has `len` entries, valid until it is freed in `drop`.
            let device = unsafe { *self.list.add(i) };
            // SAFETY: the device is valid as long as the list, and so is its zero-terminated name.
            let name = unsafe { CStr::from_ptr((self.api.get_device_name)(device)) };
            (device, name.to_string_lossy().into_owned())
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: returned by `get_device_list`, freed once.
        unsafe { (self.api.free_device_list)(self.list) };
    }
}

impl Device {
    /// Returns the names of a provider's devices.
    ///
    /// # Errors
    /// [`OpenError::Setting`] if the environment has an invalid setting of the software card, [`Error::Verbs`] if the
    /// provider cannot list them.
    pub fn names(api: &'static VerbsApi) -> Result<Vec<String>, Error> {
        Ok(DeviceList::get(api)?.devices().map(|(_, name)| name).collect())
    }

    /// Opens a provider's device: the one named, or the first mlx5 device.
    ///
    /// A provider is a table of entry points whose author vouches for them, such as those of [`provider`]. A plain
    /// table is not a provider:
    ///
    /// ```compile_fail,E0308
    /// use gdsync::{Device, verbs::provider};
    /// use gdsync_sys::verbs::{ibv_context, ibv_device};
    ///
    /// unsafe extern "C" fn made_up(_: *mut ibv_device) -> *mut ibv_context {
    ///     16 as *mut ibv_context
    /// }
    /// let mut table = **provider::software();
    /// table.open_device = made_up;
    /// let device = Device::open(Box::leak(Box::new(table)), None);
    /// ```
    ///
    /// # Errors
    /// [`OpenError::NoDevice`] if there is none, [`OpenError::NotMlx5`] for another kind of card,
    /// [`OpenError::Setting`] as for [`Device::names`], [`Error::Verbs`] if the provider cannot open it.
    pub fn open(api: &'static VerbsApi, name: Option<&str>) -> Result<Self, Error> {
        let list = DeviceList::get(api)?;
        let candidates: Vec<_> =
            list.devices().filter(|(_, found)| name.is_none_or(|name| name == found)).collect();
        // SAFETY: the device is valid until the list is freed.
        let supported = |device| unsafe { (api.mlx5dv_is_supported)(device) };
        let Some((device, found)) = candidates.iter().find(|(device, _)| supported(*device)) else {
            return Err(match candidates.first() {
                Some((_, found)) => Error::Open(OpenError::NotMlx5 { name: found.clone() }),
                None => Error::Open(OpenError::NoDevice {
                    name: name.map(str::to_owned),
                    provider: provider_name(api.provider),
                    present: list.devices().map(|(_, name)| name).collect(),
                }),
            });
        };
        // SAFETY: as above.
        let raw = unsafe { (api.open_device)(*device) };
        let raw = call::pointer("ibv_open_device", raw, || found.clone())?;
        // SAFETY: every object made on the context holds an `Arc` of its owner.
        let raw = unsafe { Owned::new(raw, api.close_device, "ibv_close_device") };
        Ok(Self::of(raw, api, found.clone()))
    }

    /// Uses a context that the program has opened. gdsync does not close it.
    ///
    /// # Errors
    /// [`OpenError::NotMlx5`] if libmlx5 does not drive the device.
    ///
    /// # Safety
    /// The context was opened by the library whose entry points `api` holds. It stays open until the returned handle,
    /// its clones and everything made on them are dropped, and streams have passed all work that names them.
    pub unsafe fn from_raw(api: &'static VerbsApi, context: NonNull<ibv_context>) -> Result<Self, Error> {
        // SAFETY: the caller's.
        unsafe { Self::on(api, Owned::borrowed(context)) }
    }

    /// As [`Self::from_raw`], but gdsync closes the context, after everything made on it.
    ///
    /// # Errors
    /// [`OpenError::NotMlx5`] if libmlx5 does not drive the device. The context is closed then.
    ///
    /// # Safety
    /// The context was opened by the library whose entry points `api` holds, and its owner passes it on.
    pub unsafe fn from_owned(api: &'static VerbsApi, context: NonNull<ibv_context>) -> Result<Self, Error> {
        // SAFETY: every object made on the context holds an `Arc` of its owner; the rest is the caller's.
        unsafe { Self::on(api, Owned::new(context, api.close_device, "ibv_close_device")) }
    }

    /// # Safety
    /// The context is open, by `api`.
    unsafe fn on(api: &'static VerbsApi, raw: Owned<ibv_context>) -> Result<Self, Error> {
        // SAFETY: an open context, as the caller promises, names its device.
        let device = unsafe { (*raw.as_ptr()).device };
        // SAFETY: the device of an open context is valid, and so is its zero-terminated name.
        let (name, supported) =
            unsafe { (CStr::from_ptr((api.get_device_name)(device)), (api.mlx5dv_is_supported)(device)) };
        let name = name.to_string_lossy().into_owned();
        if !supported {
            return Err(Error::Open(OpenError::NotMlx5 { name }));
        }
        Ok(Self::of(raw, api, name))
    }

    fn of(raw: Owned<ibv_context>, api: &'static VerbsApi, name: String) -> Self {
        // Tables of others than `provider::software` lead here, too.
        provider::share_gpu_memory(api.provider);
        let (arena, queue_pairs, reader) = Default::default();
        Device { inner: Arc::new(DeviceInner { raw, api, name, arena, queue_pairs, reader }) }
    }

    /// Opens the device of the system's libibverbs that has this name, such as `mlx5_0`. Under `gdsync soft`, these are
    /// software cards. `gdsync devices` lists them.
    ///
    /// # Errors
    /// As [`Device::open`]; [`OpenError::Load`] if libibverbs or libmlx5 is missing.
    pub fn named(name: &str) -> Result<Self, Error> {
        Self::open(provider::system()?, Some(name))
    }

    /// Opens the first software card of this process.
    ///
    /// # Errors
    /// As [`Device::open`].
    #[cfg(feature = "software-card")]
    pub fn software() -> Result<Self, Error> {
        Self::open(crate::verbs::provider::software(), None)
    }

    /// Returns its name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the provider that drives it.
    pub fn provider(&self) -> Provider {
        self.inner.api.provider
    }

    /// Returns its firmware version and limits.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider cannot query the device.
    pub fn attributes(&self) -> Result<DeviceAttributes, Error> {
        self.inner.attributes()
    }

    /// Returns the state and the address of a port; ports count from 1.
    ///
    /// # Errors
    /// [`Error::Verbs`], for example if there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttributes, Error> {
        self.inner.port(port)
    }

    /// Returns the global identifiers of a port: the valid entries of its table.
    ///
    /// # Errors
    /// [`Error::Verbs`], for example if there is no such port.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        self.inner.gids(port)
    }

    /// Returns the entry of [`Device::gids`] that a connection uses: the one at `index`, or the first by preference.
    /// On InfiniBand, that is the first entry. On Ethernet, RoCE v2 comes before v1, and within a version IPv4 before
    /// global IPv6 before link-local addresses.
    ///
    /// # Errors
    /// [`PortError::NoGid`] if there is none, [`Error::Verbs`] as for [`Device::gids`].
    pub fn choose_gid(&self, port: u8, index: Option<u32>) -> Result<GidEntry, Error> {
        self.inner.choose_gid(port, index)
    }
}

/// Firmware version and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Firmware version.
    pub firmware: String,
    /// Node GUID.
    pub node_guid: u64,
    /// Physical ports.
    pub ports: u8,
    /// Queue pairs.
    pub max_queue_pairs: u32,
    /// Work requests of one queue.
    pub max_work_requests: u32,
    /// Scatter/gather elements of one work request.
    pub max_segments: u32,
    /// Entries of one completion queue.
    pub max_completions: u32,
    /// RDMA reads and atomics in flight of one queue pair, the smaller limit of both directions.
    pub max_reads: u32,
    /// Compare-and-swap and fetch-and-add of 8 bytes.
    pub atomics: bool,
}
