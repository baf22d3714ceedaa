//! gdrcopy's module, after `gdrdrv.c`.

use super::parts::{GPU, GPU_LEN, argument, errno};
use gdsync_sys::gdrdrv as raw;
use gdsync_sys::host::page_size;
use std::collections::BTreeMap;
use std::io;
use zerocopy::IntoBytes;

/// Capacity of BAR1 in GPU pages.
const ROOM: u64 = 64;

pub(crate) struct Gdrdrv {
    version: u32,
    wants: u32,
    /// True if pinned memory stays when CUDA frees it.
    persistent: bool,
    /// Default type of mappings.
    pub(crate) kind: u32,
    /// True if a child uses its parent's file.
    pub(crate) other_process: bool,
    next_handle: u64,
    pins: BTreeMap<u64, Pin>,
}

struct Pin {
    fd: i32,
    va: u64,
    size: u64,
    /// Offset of the address in its GPU page.
    offset: u64,
    freed: bool,
    at: Option<usize>,
}

impl Gdrdrv {
    pub(crate) fn new(version: u32, persistent: bool) -> Self {
        Gdrdrv {
            version,
            wants: raw::version(2, 0),
            persistent,
            kind: raw::MR_WC,
            other_process: false,
            next_handle: 0,
            pins: BTreeMap::new(),
        }
    }

    pub(crate) fn wanting(wants: u32) -> Self {
        Gdrdrv { wants, ..Gdrdrv::new(raw::version(2, 6), true) }
    }

    pub(crate) fn pinned_pages(&self) -> u64 {
        self.pins.values().map(|pin| pin.size / raw::GPU_PAGE).sum()
    }

    pub(super) fn closed(&mut self, fd: i32, mistakes: &mut Vec<String>) {
        if self.pins.values().any(|pin| pin.fd == fd) {
            mistakes.push("the module was closed with memory pinned".to_owned());
        }
        self.pins.retain(|_, pin| pin.fd != fd);
    }

    pub(super) fn ioctl(
        &mut self,
        fd: i32,
        request: u64,
        bytes: &mut [u8],
        mistakes: &mut Vec<String>,
    ) -> io::Result<()> {
        if self.other_process {
            return Err(errno(libc::EACCES));
        }
        let newer = self.version >= raw::version(2, 5);
        match request {
            raw::GET_VERSION => {
                let mut answer: raw::GetVersion = argument(bytes);
                (answer.gdrdrv_version, answer.minimum_gdr_api_version) = (self.version, self.wants);
                bytes.copy_from_slice(answer.as_bytes());
            }
            raw::PIN_BUFFER => {
                let mut pin: raw::PinBuffer = argument(bytes);
                if self.persistent && (pin.p2p_token != 0 || pin.va_space != 0) {
                    return Err(errno(libc::EINVAL));
                }
                pin.handle = self.pin(fd, pin.addr, pin.size)?;
                bytes.copy_from_slice(pin.as_bytes());
            }
            raw::PIN_BUFFER_V2 if newer => {
                let mut pin: raw::PinBufferV2 = argument(bytes);
                if pin.flags & !1 != 0 || (pin.flags != 0 && !self.persistent) {
                    return Err(errno(libc::EINVAL));
                }
                pin.handle = self.pin(fd, pin.addr, pin.size)?;
                bytes.copy_from_slice(pin.as_bytes());
            }
            raw::UNPIN_BUFFER => {
                let unpin: raw::UnpinBuffer = argument(bytes);
                let pin = self.pins.remove(&unpin.handle).ok_or_else(|| errno(libc::EINVAL))?;
                if pin.at.is_some() {
                    mistakes.push("memory was unpinned while mapped".to_owned());
                }
            }
            raw::GET_CB_FLAG => {
                let mut answer: raw::GetCbFlag = argument(bytes);
                answer.flag = self.of(answer.handle)?.freed.into();
                bytes.copy_from_slice(answer.as_bytes());
            }
            raw::GET_INFO => {
                let mut answer: raw::GetInfo = argument(bytes);
                let pin = self.of(answer.handle)?;
                (answer.va, answer.mapped_size) = (pin.va, pin.size);
                answer.page_size = raw::GPU_PAGE as u32;
                answer.mapped = pin.at.is_some().into();
                answer.wc_mapping = (pin.at.is_some() && self.kind == raw::MR_WC).into();
                bytes.copy_from_slice(answer.as_bytes());
            }
            raw::GET_INFO_V2 if self.version >= raw::version(2, 4) => {
                let mut answer: raw::GetInfoV2 = argument(bytes);
                let pin = self.of(answer.handle)?;
                (answer.va, answer.mapped_size) = (pin.va, pin.size);
                answer.page_size = raw::GPU_PAGE as u32;
                answer.mapping_type = if pin.at.is_some() { self.kind } else { raw::MR_NONE };
                bytes.copy_from_slice(answer.as_bytes());
            }
            raw::GET_ATTR if newer => {
                let mut answer: raw::GetAttr = argument(bytes);
                if answer.attr != raw::ATTR_USE_PERSISTENT_MAPPING {
                    return Err(errno(libc::EINVAL));
                }
                answer.val = self.persistent.into();
                bytes.copy_from_slice(answer.as_bytes());
            }
            raw::REQ_MAPPING_TYPE if newer => {
                let wish: raw::ReqMappingType = argument(bytes);
                if wish.mapping_type > raw::MR_DEVICE {
                    return Err(errno(libc::EINVAL));
                }
                if self.of(wish.handle)?.at.is_some() {
                    return Err(errno(libc::EBUSY));
                }
                if wish.mapping_type != raw::MR_NONE && wish.mapping_type != self.kind {
                    return Err(errno(libc::EOPNOTSUPP));
                }
            }
            _ => return Err(errno(libc::ENOTTY)),
        }
        Ok(())
    }

    fn of(&self, handle: u64) -> io::Result<&Pin> {
        self.pins.get(&handle).ok_or_else(|| errno(libc::EINVAL))
    }

    /// Rounds to GPU pages, as the module does; keeps the original address, because only whole pages may be mapped.
    fn pin(&mut self, fd: i32, addr: u64, size: u64) -> io::Result<u64> {
        if addr == 0 {
            return Err(errno(libc::EINVAL));
        }
        let va = addr & !(raw::GPU_PAGE - 1);
        let end = (addr + size).next_multiple_of(raw::GPU_PAGE);
        if va < GPU || end > GPU + GPU_LEN as u64 {
            return Err(errno(libc::EINVAL));
        }
        if self.pinned_pages() + (end - va) / raw::GPU_PAGE > ROOM {
            return Err(errno(libc::ENOMEM));
        }
        let handle = self.next_handle;
        self.next_handle += (end - va) / page_size() as u64;
        let pin = Pin { fd, va, size: end - va, offset: addr - va, freed: false, at: None };
        self.pins.insert(handle, pin);
        Ok(handle)
    }

    /// Returns the handle, and the mapping's offset in the memory.
    pub(super) fn may_map(&mut self, fd: i32, handle: u64, len: usize) -> io::Result<(u64, usize)> {
        if self.other_process {
            return Err(errno(libc::EACCES));
        }
        let pin = self.of(handle)?;
        if pin.fd != fd || pin.at.is_some() || pin.freed || pin.offset != 0 || len as u64 > pin.size {
            return Err(errno(libc::EINVAL));
        }
        Ok((handle, (pin.va - GPU) as usize))
    }

    pub(super) fn mapped(&mut self, handle: u64, at: usize) {
        self.pins.get_mut(&handle).unwrap().at = Some(at);
    }

    pub(super) fn unmapped(&mut self, at: usize) {
        for pin in self.pins.values_mut().filter(|pin| pin.at == Some(at)) {
            pin.at = None;
        }
    }

    /// Frees the memory as CUDA does. Returns the addresses of the mappings that vanish, unless the memory is pinned
    /// persistently.
    pub(super) fn free_memory(&mut self) -> Vec<usize> {
        let mut gone = Vec::new();
        for pin in self.pins.values_mut().filter(|_| !self.persistent) {
            pin.freed = true;
            gone.extend(pin.at.take());
        }
        gone
    }
}
