//! Protection domains.

use crate::verbs::{Device, DeviceInner, Error, OpenError, Owned, call};
use gdsync_sys::verbs::ibv_pd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A protection domain: its memory regions and queue pairs work together, but not with those of another domain.
///
/// It is a cheap handle; clones name the same domain, which is deallocated after the last object made in it.
///
/// ```
/// use gdsync::{Access, Device, MemoryRegion, ProtectionDomain, QueuePair};
/// let pd = ProtectionDomain::new(&Device::software()?)?;
/// // Objects of one domain work together, and keep the domain.
/// let queue_pair = QueuePair::new(&pd, Default::default())?;
/// let region = MemoryRegion::allocate(&pd, 4096, Access::LOCAL_WRITE)?;
/// drop(pd);
/// queue_pair.post_recv(&[region.slice(..)?], 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<ProtectionDomainInner>,
}

#[derive(Debug)]
pub(crate) struct ProtectionDomainInner {
    raw: Owned<ibv_pd>,
    pub(crate) device: Arc<DeviceInner>,
}

impl ProtectionDomain {
    /// Allocates a protection domain on a device.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the provider refuses, for example because there are too many.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let device = device.inner.clone();
        // SAFETY: the context is open as long as `device` lives.
        let raw = unsafe { (device.api.alloc_pd)(device.context()) };
        let raw = call::pointer("ibv_alloc_pd", raw, String::new)?;
        // SAFETY: every object made in the domain holds an `Arc` of its owner, which holds the device.
        let raw = unsafe { Owned::new(raw, device.api.dealloc_pd, "ibv_dealloc_pd") };
        Ok(ProtectionDomain { inner: Arc::new(ProtectionDomainInner { raw, device }) })
    }

    /// Uses a protection domain that the program has allocated. gdsync does not deallocate it. Objects made through
    /// different handles of a domain work together.
    ///
    /// # Errors
    /// [`OpenError::OtherContext`] if it belongs to another context than the device.
    ///
    /// # Safety
    /// The domain is valid, and stays so until the returned handle, its clones and everything made in them are dropped.
    pub unsafe fn from_raw(device: &Device, pd: NonNull<ibv_pd>) -> Result<Self, Error> {
        let device = device.inner.clone();
        // SAFETY: valid, as the caller promises; its context never changes.
        if unsafe { (*pd.as_ptr()).context } != device.context() {
            return Err(Error::Open(OpenError::OtherContext { device: device.name.to_owned() }));
        }
        let raw = Owned::borrowed(pd);
        Ok(ProtectionDomain { inner: Arc::new(ProtectionDomainInner { raw, device }) })
    }

    /// Returns the device of the domain.
    pub fn device(&self) -> Device {
        Device { inner: self.inner.device.clone() }
    }
}

impl ProtectionDomainInner {
    /// Returns whether both are handles of one domain: the program may have several.
    #[inline]
    pub(crate) fn is(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.raw() == other.raw()
    }

    pub(crate) fn raw(&self) -> *mut ibv_pd {
        self.raw.as_ptr()
    }
}
