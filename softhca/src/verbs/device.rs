//! The devices of this process, the lifetime of their cards, and their pages of doorbell registers.
//!
//! Devices are static: listing them starts no card. The card of a device starts when the program opens the
//! device, is shared by all its contexts, and stops with the last of them.

use super::errno::{self, Errno};
use super::event_queue::Routes;
use super::object::{self, CStruct, object};
use crate::card::{Card, Diagnostic, LinkLayer};
use crate::devices::devices_from_environment;
use crate::environment;
use crate::setting::SettingError;
use gdsync_sys::prm::doorbell::{UAR_CQ_ARM, UAR_DOORBELLS};
use gdsync_sys::verbs::{IBV_SYSFS_PATH_MAX, ibv_device};
use libc::{c_char, c_int};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// `IBV_NODE_CA`.
const NODE_CA: c_int = 1;
/// `IBV_TRANSPORT_IB`.
const TRANSPORT_IB: c_int = 0;

/// A running card, and the event queues of its objects.
pub(super) struct OpenCard {
    pub(super) card: Arc<Card>,
    pub(super) routes: Arc<Routes>,
}

object! {
    /// A device of this process. It is never freed.
    Device: ibv_device {
        index: usize,
        link: LinkLayer,
        /// Kept alive by the contexts of the device.
        card: Mutex<Weak<OpenCard>>,
    }
}

impl Device {
    fn new(index: usize, link: LinkLayer) -> Self {
        let ibv = ibv_device {
            _ops: [std::ptr::null_mut(); 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: c_string(&format!("softhca{index}")),
            dev_name: c_string(&format!("softhca-uverbs{index}")),
            // Not in sysfs.
            dev_path: [0; IBV_SYSFS_PATH_MAX],
            ibdev_path: [0; IBV_SYSFS_PATH_MAX],
        };
        Device { ibv: CStruct::new(ibv), index, link, card: Mutex::default() }
    }

    pub(super) fn handle(&self) -> *mut ibv_device {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns the device's card, and starts it if needed. The caller keeps it running.
    pub(super) fn card(&self) -> errno::Result<Arc<OpenCard>> {
        let mut known = self.card.lock();
        if let Some(card) = known.upgrade() {
            return Ok(card);
        }
        let routes = Arc::new(Routes::default());
        let sink = routes.clone();
        let card = Card::start_device(self.index, self.link, Box::new(move |event| sink.deliver(event)))?;
        let card = Arc::new(OpenCard { card: Arc::new(card), routes });
        *known = Arc::downgrade(&card);
        Ok(card)
    }
}

/// Returns a zero-terminated C field with text, truncated to fit.
pub(super) fn c_string<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (place, byte) in field.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *place = byte as c_char;
    }
    field
}

/// The device of all simulated cards.
pub(super) fn simulated() -> &'static Device {
    static SIMULATED: OnceLock<Device> = OnceLock::new();
    SIMULATED.get_or_init(|| Device::new(0, LinkLayer::InfiniBand))
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// The devices; none before the first list.
fn devices() -> &'static [Device] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

/// The devices, from the environment at the first successful call.
fn listed() -> Result<&'static [Device], SettingError> {
    environment::check()?;
    let links = devices_from_environment()?;
    let make = || links.into_iter().enumerate().map(|(index, link)| Device::new(index, link)).collect();
    Ok(DEVICES.get_or_init(make))
}

/// Returns the strict checker's findings of all running cards of this process, oldest first for each card. A
/// card keeps its last 256 findings until it stops.
pub fn diagnostics() -> Vec<Diagnostic> {
    let cards: Vec<_> = devices().iter().filter_map(|device| device.card.lock().upgrade()).collect();
    cards.iter().flat_map(|open| open.card.diagnostics()).collect()
}

/// `ibv_get_device_list`. EINVAL if a setting in the environment is unknown or malformed, which is logged;
/// [`environment::check`] returns the same error to Rust programs.
///
/// # Safety
/// `num` is null or valid.
pub(super) unsafe extern "C" fn get_device_list(num: *mut c_int) -> *mut *mut ibv_device {
    let devices = match listed() {
        Ok(devices) => devices,
        Err(error) => {
            tracing::error!(%error, "no device is listed");
            return errno::pointer(|| Err(Errno::INVALID));
        }
    };
    let entry = size_of::<*mut ibv_device>();
    // SAFETY: allocates memory only; one more entry, which stays null, ends the list.
    let list = unsafe { libc::calloc(devices.len() + 1, entry) }.cast::<*mut ibv_device>();
    if list.is_null() {
        return errno::pointer(|| Err(Errno::NO_MEMORY));
    }
    for (i, device) in devices.iter().enumerate() {
        // SAFETY: the list has an entry for each device.
        unsafe { list.add(i).write(device.handle()) };
    }
    // SAFETY: the caller guarantees null or a valid pointer.
    if let Some(num) = unsafe { num.as_mut() } {
        *num = devices.len() as c_int;
    }
    list
}

/// # Safety
/// `list` is null, or came from [`get_device_list`] and was not freed.
pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller guarantees null, or a pointer from `calloc`.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`: null with EINVAL for null.
///
/// # Safety
/// `device` is null or from a list.
pub(super) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: guaranteed by the caller; devices are static.
    let found = unsafe { object::borrow::<Device>(device) };
    // SAFETY: the struct does not change any more.
    errno::pointer(|| found.map(|found| unsafe { (*found.ibv.get()).name.as_ptr().cast_mut() }))
}

/// `mlx5dv_is_supported`: every software device is an mlx5 device.
///
/// # Safety
/// `device` is null or from a list.
pub(super) unsafe extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    !device.is_null()
}

/// The register of queue pairs. Without BlueFlame, further ones have no purpose.
const DOORBELL: usize = UAR_DOORBELLS[0];
/// Registers of a thread domain's page.
static DOMAIN_REGISTERS: [usize; 1] = [DOORBELL];
/// Registers of a context's page, which also arms its completion queues.
static CONTEXT_REGISTERS: [usize; 2] = [DOORBELL, UAR_CQ_ARM];

/// A UAR. Dropping it frees it.
pub(super) struct OwnUar {
    open: Arc<OpenCard>,
    pub(super) id: u32,
    /// First byte of the page.
    pub(super) page: *mut u8,
}

// SAFETY: any thread may store to the page; it is not dereferenced here.
unsafe impl Send for OwnUar {}
// SAFETY: as above.
unsafe impl Sync for OwnUar {}

impl OwnUar {
    /// Allocates the page of a thread domain.
    pub(super) fn of_domain(open: &Arc<OpenCard>) -> errno::Result<Self> {
        Self::new(open, &DOMAIN_REGISTERS)
    }

    /// Allocates the page of a context.
    pub(super) fn of_context(open: &Arc<OpenCard>) -> errno::Result<Self> {
        Self::new(open, &CONTEXT_REGISTERS)
    }

    fn new(open: &Arc<OpenCard>, registers: &[usize]) -> errno::Result<Self> {
        let uar = open.card.alloc_uar(registers)?;
        Ok(OwnUar { open: open.clone(), id: uar.id, page: uar.page })
    }

    pub(super) fn register(&self) -> *mut u8 {
        self.page.wrapping_add(DOORBELL)
    }
}

impl Drop for OwnUar {
    fn drop(&mut self) {
        if let Err(error) = self.open.card.free_uar(self.id) {
            tracing::error!(%error, "a UAR could not be freed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_its_field() {
        assert_eq!(c_string::<4>("ab"), [97, 98, 0, 0]);
        assert_eq!(c_string::<4>("abcdef"), [97, 98, 99, 0]);
        assert_eq!(c_string::<0>("ab"), []);
    }
}
