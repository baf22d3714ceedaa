//! Commands for protection and XRC domains, doorbell pages, memory regions and windows, indirect keys and device memory.

use super::ends::report_use;
use crate::card::config::{KeyConfig, LIMITS, PD, RegionConfig, WindowKind, XRCD};
use crate::card::device::{Card, UarHandle};
use crate::card::engine::{Engine, Uar, XrcDomain};
use crate::card::error::{CardError, missing, within};
use crate::card::listeners;
use crate::card::memory::indirect::Indirect;
use crate::card::memory::region::KeyTarget;
use crate::card::memory::registered::Memory;
use crate::card::memory::uar::{Register, UarPage};
use gdsync_sys::prm::doorbell::{self, UAR_PAGE};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

const REGION: &str = "memory region";

pub(super) fn registers_at(offsets: &[usize]) -> Result<Vec<Register>, CardError> {
    Ok(offsets.iter().copied().map(Register::new).collect::<Result<_, _>>()?)
}

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
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`CardError::TooMany`] at the card's limit.
    pub fn alloc_pd(&self) -> Result<u32, CardError> {
        self.command(|engine| {
            within("protection domains", engine.pds.len(), self.limits().max_pd)?;
            let pdn = self.number(|number| engine.pds.contains_key(&number));
            engine.pds.insert(pdn, 0);
            Ok(pdn)
        })
    }

    /// Frees a protection domain.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while regions or queue pairs are in it.
    pub fn dealloc_pd(&self, pdn: u32) -> Result<(), CardError> {
        self.command(|engine| match engine.pds.get(&pdn) {
            None => Err(missing(PD, pdn)),
            Some(0) => {
                engine.pds.remove(&pdn);
                Ok(())
            }
            Some(&users) => Err(CardError::Busy { what: PD, number: pdn, users }),
        })
    }

    /// Opens the XRC domain of a file, identified by device and inode, or a new domain without a file. Returns its
    /// number, or `None` if it is not open yet and `create` is false.
    ///
    /// # Errors
    /// [`CardError::TooMany`] at the card's limit.
    pub fn open_xrcd(&self, file: Option<(u64, u64)>, create: bool) -> Result<Option<u32>, CardError> {
        self.command(|engine| {
            let mut open = engine.xrcds.iter_mut();
            let known = open.find(|(_, domain)| file.is_some() && domain.file == file);
            if let Some((&number, domain)) = known {
                domain.openers += 1;
                return Ok(Some(number));
            }
            if !create {
                return Ok(None);
            }
            within("XRC domains", engine.xrcds.len(), self.limits().max_xrcd)?;
            let number = self.number(|number| engine.xrcds.contains_key(&number));
            engine.xrcds.insert(number, XrcDomain { file, openers: 1, users: 0 });
            Ok(Some(number))
        })
    }

    /// Returns whether the XRC domain of a file is open.
    pub fn has_xrcd(&self, file: (u64, u64)) -> bool {
        self.command(|engine| engine.xrcds.values().any(|domain| domain.file == Some(file)))
    }

    /// Closes an XRC domain. The last close destroys it.
    ///
    /// # Errors
    /// [`CardError::NotFound`]; [`CardError::Busy`] at the last close while queue pairs or shared receive queues are in
    /// it.
    pub fn close_xrcd(&self, xrcd: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let domain = engine.xrcds.get_mut(&xrcd).ok_or(missing(XRCD, xrcd))?;
            match *domain {
                XrcDomain { openers: 1, users: 0, .. } => drop(engine.xrcds.remove(&xrcd)),
                XrcDomain { openers: 1, users, .. } => {
                    return Err(CardError::Busy { what: XRCD, number: xrcd, users });
                }
                _ => domain.openers -= 1,
            }
            Ok(())
        })
    }

    /// Allocates a page of doorbell registers. The registers at the offsets `registers` can be rung: multiples of 8
    /// inside the page of 4096 bytes.
    ///
    /// # Errors
    /// [`CardError::Invalid`] for an offset that is no register's, [`CardError::TooMany`] at the card's limit,
    /// [`CardError::System`] without memory.
    pub fn alloc_uar(&self, registers: &[usize]) -> Result<UarHandle, CardError> {
        let registers = registers_at(registers)?;
        self.command(|engine| {
            let page = engine.doorbells.memory.take()?;
            let id = self.number(|number| engine.doorbells.uars.contains_key(&number));
            self.add_uar(engine, id, page, registers)
        })
    }

    /// Makes the registers of a page ring.
    pub(super) fn add_uar(
        &self,
        engine: &mut Engine,
        id: u32,
        page: UarPage,
        registers: Vec<Register>,
    ) -> Result<UarHandle, CardError> {
        // A queue pair needs one at most.
        if let Err(error) = within("UARs", engine.doorbells.uars.len(), self.limits().max_qp) {
            engine.doorbells.memory.give_back(page);
            return Err(error);
        }
        let handle = UarHandle { id, page: page.base(), offset: page.offset() };
        // Whether threads announce their stores depends on the other cards of the process; a simulation repeats to the bit.
        if engine.resources.clock.simulated.is_none() {
            listeners::register(handle.page as usize, self.shared.as_listener(), Some(id));
        }
        if registers.iter().any(|register| register.offset() == doorbell::UAR_CQ_ARM) {
            engine.doorbells.arming.insert(id);
        }
        engine.doorbells.insert(id, Uar { page, registers, qps: BTreeSet::new() });
        self.shared.set_wants_all_rings(engine.doorbells.has_many_pages());
        Ok(handle)
    }

    /// Returns a descriptor of the file that holds the card's pages of doorbell registers, even before the first page
    /// exists. A program can map a page again with it (shared, 4096 bytes, at [`UarHandle::offset`]), and ring through
    /// either mapping.
    ///
    /// # Errors
    /// [`CardError::System`] if the file cannot be made.
    pub fn uar_file(&self) -> Result<OwnedFd, CardError> {
        Ok(self.shared.engine.lock().doorbells.memory.descriptor()?)
    }

    /// Frees a page of doorbell registers.
    ///
    /// # Errors
    /// [`CardError::NotFound`], or [`CardError::Busy`] while queue pairs use it.
    pub fn free_uar(&self, id: u32) -> Result<(), CardError> {
        self.command(|engine| {
            let uar = engine.doorbells.uars.get(&id).ok_or(missing("UAR", id))?;
            if !uar.qps.is_empty() {
                return Err(CardError::Busy { what: "UAR", number: id, users: uar.qps.len() as u32 });
            }
            if let Some(uar) = engine.doorbells.remove(id) {
                engine.doorbells.memory.give_back(uar.page);
                engine.doorbells.arming.remove(&id);
                self.shared.set_wants_all_rings(engine.doorbells.has_many_pages());
            }
            Ok(())
        })
    }

    /// Registers memory of this process or of a peer-memory client. Returns its local and remote key.
    ///
    /// # Errors
    /// [`CardError::Region`] for memory that is not mapped; otherwise as [`Self::alloc_window`].
    ///
    /// # Safety
    /// Until it is deregistered, peer memory stays allocated, and the range of host memory holds nothing that must not be
    /// accessed: other memory that is mapped there later counts as the region's (but see [`crate::card::change_mappings`]).
    /// Other accesses to it tolerate a device's concurrent reads, and its writes if the access rights allow them.
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
            report_use(engine, key);
            engine.write_deferred();
            engine.pds.get(&config.pdn).ok_or(missing(PD, config.pdn))?;
            let replaced = engine.resources.regions.replace(key, config.pdn, memory);
            let (pdn, former) = replaced.ok_or(missing(REGION, key))?;
            engine.leave_domain(pdn);
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
    /// [`CardError::NotFound`] without that domain, [`CardError::TooMany`] at the card's limit.
    pub fn alloc_window(&self, pdn: u32, kind: WindowKind) -> Result<u32, CardError> {
        self.add_key(pdn, KeyTarget::Indirect(Mutex::new(Indirect::window(kind))), None)
    }

    /// Creates a key that refers to ranges of other keys. Returns it.
    ///
    /// # Errors
    /// [`CardError::NotFound`] without that domain, [`CardError::TooMany`] at the card's limit.
    pub fn create_key(&self, config: &KeyConfig<'_>) -> Result<u32, CardError> {
        let indirect = KeyTarget::Indirect(Mutex::new(Indirect::key(config)));
        self.add_key(config.pdn, indirect, Some(config.tag))
    }

    /// Deregisters memory, frees a memory window, or destroys an indirect key. After this returns, the card does not
    /// touch it.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn deregister_memory(&self, key: u32) -> Result<(), CardError> {
        let memory = self.command(|engine| {
            report_use(engine, key);
            engine.write_deferred();
            let found = engine.resources.regions.deregister(key);
            let (pdn, memory) = found.ok_or(missing(REGION, key))?;
            engine.leave_domain(pdn);
            Ok::<_, CardError>(memory)
        })?;
        // Without the lock: a peer-memory client releases its region.
        drop(memory);
        Ok(())
    }

    /// Allocates device memory of at least `len` bytes, all zero.
    ///
    /// # Errors
    /// [`CardError::TooMany`] if the card has not that many adjacent free pages, [`CardError::System`] without memory.
    pub fn alloc_device_memory(&self, len: u64) -> Result<DeviceMemory, CardError> {
        let count = usize::try_from(len.div_ceil(UAR_PAGE as u64)).unwrap_or(usize::MAX);
        self.command(|engine| {
            let taken = engine.doorbells.memory.take_device_memory(count)?;
            let limit = (LIMITS.device_memory / UAR_PAGE as u64) as u32;
            let (pages, base, offset) =
                taken.ok_or(CardError::TooMany { what: "pages of device memory", limit })?;
            Ok(DeviceMemory { base, page: pages.start as u16, offset })
        })
    }

    /// Frees the device memory that begins at a page. It must no longer be registered.
    ///
    /// # Errors
    /// [`CardError::NotFound`] if there is none of that number.
    pub fn free_device_memory(&self, page: u32) -> Result<(), CardError> {
        let freed = self.command(|engine| engine.doorbells.memory.give_back_device_memory(page as usize));
        freed.then_some(()).ok_or(missing("device memory", page))
    }
}
