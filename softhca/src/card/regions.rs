//! Commands for memory regions, memory windows, indirect keys and device memory.

use super::config::{KeyConfig, LIMITS, RegionConfig, WindowKind};
use super::device::Card;
use super::error::CardError;
use super::memory::indirect::Indirect;
use super::memory::region::KeyTarget;
use super::memory::registered::Memory;
use super::relations::{PD, leave, missing};
use gdsync_sys::prm::doorbell::UAR_PAGE;
use parking_lot::Mutex;

const REGION: &str = "memory region";

/// Allocated device memory: whole pages.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    /// Its first byte. It is mapped until it is freed.
    pub base: *mut u8,
    /// Index of its first page, by which libmlx5 maps it.
    pub page: u16,
    /// Its offset in the file of the card's pages ([`Card::uar_file`]).
    pub offset: u64,
}

// SAFETY: an address; the card accesses the memory like other registered memory.
unsafe impl Send for DeviceMemory {}

impl Card {
    /// Registers memory of this process or of a peer-memory client. Returns its local and remote key.
    ///
    /// # Errors
    /// [`CardError::Region`], [`CardError::NotFound`], [`CardError::TooMany`].
    ///
    /// # Safety
    /// Until it is deregistered, the range stays mapped (peer memory: allocated). Other accesses to it tolerate a
    /// device's concurrent reads, and its writes if the access rights allow them.
    pub unsafe fn register_memory(&self, config: &RegionConfig) -> Result<u32, CardError> {
        // Without the lock: populating pages takes time.
        let memory = Memory::acquire(config)?;
        self.add_key(config.pdn, KeyTarget::Memory(memory), config.tag)
    }

    fn add_key(&self, pdn: u32, target: KeyTarget, tag: Option<u8>) -> Result<u32, CardError> {
        self.command(|engine| {
            let users = engine.pds.get_mut(&pdn).ok_or(missing(PD, pdn))?;
            let limit = self.limits().max_mr;
            let key = engine.resources.regions.register(pdn, target, tag, limit);
            let key = key.ok_or(CardError::TooMany { what: "memory regions", limit })?;
            *users += 1;
            Ok(key)
        })
    }

    /// Registers other memory, another domain or other rights under the key of a region. The card does not touch the
    /// former memory after this returns. The tag of `config` is ignored.
    ///
    /// # Errors
    /// As [`Self::register_memory`]; nothing has changed then.
    ///
    /// # Safety
    /// As [`Self::register_memory`].
    pub unsafe fn reregister_memory(&self, key: u32, config: &RegionConfig) -> Result<(), CardError> {
        let memory = Memory::acquire(config)?;
        let former = self.command(|engine| {
            engine.write_parked();
            engine.pds.get(&config.pdn).ok_or(missing(PD, config.pdn))?;
            let replaced = engine.resources.regions.replace(key, config.pdn, memory);
            let (pdn, former) = replaced.ok_or(missing(REGION, key))?;
            leave(engine, pdn);
            engine.pds.entry(config.pdn).and_modify(|users| *users += 1);
            Ok::<_, CardError>(former)
        })?;
        // Without the lock: a peer-memory client releases its region.
        drop(former);
        Ok(())
    }

    /// Allocates an unbound memory window. Returns its remote key.
    ///
    /// # Errors
    /// [`CardError::NotFound`], [`CardError::TooMany`].
    pub fn alloc_window(&self, pdn: u32, kind: WindowKind) -> Result<u32, CardError> {
        self.add_key(pdn, KeyTarget::Indirect(Mutex::new(Indirect::window(kind))), None)
    }

    /// Creates a key that refers to ranges of other keys. Returns it.
    ///
    /// # Errors
    /// [`CardError::NotFound`], [`CardError::TooMany`].
    pub fn create_key(&self, config: &KeyConfig<'_>) -> Result<u32, CardError> {
        let indirect = KeyTarget::Indirect(Mutex::new(Indirect::key(config)));
        self.add_key(config.pdn, indirect, Some(config.tag))
    }

    /// Deregisters memory, frees a memory window, or destroys an indirect key. After this returns, the card does not
    /// touch it.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn deregister_memory(&self, key: u32) -> Result<(), CardError> {
        let memory = self.command(|engine| {
            engine.write_parked();
            let found = engine.resources.regions.deregister(key);
            let (pdn, memory) = found.ok_or(missing(REGION, key))?;
            leave(engine, pdn);
            Ok::<_, CardError>(memory)
        })?;
        // Without the lock: a peer-memory client releases its region.
        drop(memory);
        Ok(())
    }

    /// Allocates device memory of at least `len` bytes, all zero.
    ///
    /// # Errors
    /// [`CardError::TooMany`] if the card has not that many adjacent free pages, [`CardError::System`].
    pub fn alloc_device_memory(&self, len: u64) -> Result<DeviceMemory, CardError> {
        let count = usize::try_from(len.div_ceil(UAR_PAGE as u64)).unwrap_or(usize::MAX);
        self.command(|engine| {
            let taken = engine.uar_pages.take_device_memory(count)?;
            let limit = (LIMITS.device_memory / UAR_PAGE as u64) as u32;
            let (pages, base, offset) =
                taken.ok_or(CardError::TooMany { what: "pages of device memory", limit })?;
            Ok(DeviceMemory { base, page: pages.start as u16, offset })
        })
    }

    /// Frees the device memory that begins at a page. It must no longer be registered.
    ///
    /// # Errors
    /// [`CardError::NotFound`].
    pub fn free_device_memory(&self, page: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.uar_pages.give_back_device_memory(page as usize) {
            true => Ok(()),
            false => Err(missing("device memory", page)),
        })
    }
}
