//! Mappings by gdrdrv, gdrcopy's kernel module.

use crate::backend::{Caching, MappingBackend, Refusal};
use crate::kernel::{File, Kernel, Pages};
use crate::mapping::{Mapped, Resources};
use gdsync_sys::gdrdrv as raw;
use gdsync_sys::host::page_size;
use std::io;
use std::sync::Arc;
use zerocopy::FromZeros;

pub(crate) struct Gdrdrv {
    file: File,
    version: u32,
}

impl Gdrdrv {
    pub(crate) fn open(kernel: &Arc<dyn Kernel>) -> Result<Self, Refusal> {
        let missing = "install gdrcopy's kernel module and load it (modprobe gdrdrv)";
        let file =
            File::open(kernel, raw::PATH).map_err(|error| Refusal::open(raw::PATH, &error, missing))?;
        let mut answer = raw::GetVersion::new_zeroed();
        let (step, newer) = ("ask gdrdrv for its version", "install gdrcopy 2.0 or newer");
        // SAFETY: the request's structure.
        let answered = unsafe { file.ioctl(raw::GET_VERSION, &mut answer) };
        answered.map_err(|error| Refusal::new(step, error, newer))?;
        let (found, wants) = (answer.gdrdrv_version, answer.minimum_gdr_api_version);
        if found < raw::OLDEST {
            let (found, oldest) = (dotted(found), dotted(raw::OLDEST));
            let reason = format!("it speaks protocol {found}, {oldest} is the oldest that works");
            return Err(Refusal::new(step, reason, newer));
        }
        if wants > raw::API_VERSION {
            let (wants, ours) = (dotted(wants), dotted(raw::API_VERSION));
            let reason = format!("it wants users of version {wants} or newer, gdsync is as {ours}");
            return Err(Refusal::new(step, reason, "install gdrcopy 2.6, or a newer gdsync"));
        }
        Ok(Gdrdrv { file, version: found })
    }

    /// Returns the module's protocol version: major, minor.
    pub(crate) fn version(&self) -> (u16, u16) {
        ((self.version >> 16) as u16, self.version as u16)
    }

    /// Returns true if pinned memory stays until it is unpinned, even if CUDA frees it first. Before protocol 2.5 it
    /// does not.
    pub(crate) fn keeps_memory(&self) -> bool {
        if self.version < raw::WITH_PIN_BUFFER_V2 {
            return false;
        }
        let mut answer = raw::GetAttr { attr: raw::ATTR_USE_PERSISTENT_MAPPING, val: 0 };
        // SAFETY: the request's structure.
        unsafe { self.file.ioctl(raw::GET_ATTR, &mut answer) }.is_ok() && answer.val != 0
    }

    /// Pins and maps the GPU pages that contain a range.
    pub(crate) fn map(self, address: u64, len: usize) -> Result<Mapped, Refusal> {
        let first = address & !(raw::GPU_PAGE - 1);
        let end = address
            .checked_add(len.max(1) as u64)
            .and_then(|end| end.checked_next_multiple_of(raw::GPU_PAGE));
        let size = end.map(|end| end - first).ok_or_else(|| {
            Refusal::new("pin", format!("{len} bytes at {address:#x} leave the address space"), "map less")
        })?;
        let keeps = self.keeps_memory();
        let handle = self.pin(first, size).map_err(|error| pin_refusal(first, size, &error))?;
        let pinned = Pinned { module: self, handle, keeps };
        let pages = pinned.map(size)?;
        let (caching, page_size) = pinned.describe()?;
        let offset = (address - first) as usize;
        Ok(Mapped::new(pages, pinned, (MappingBackend::Gdrdrv, caching), page_size, offset))
    }

    fn pin(&self, addr: u64, size: u64) -> io::Result<u64> {
        if self.version >= raw::WITH_PIN_BUFFER_V2 {
            let mut pin = raw::PinBufferV2 { addr, size, flags: 0, pad: 0, handle: 0 };
            // SAFETY: the request's structure; the caller vouches for the memory.
            unsafe { self.file.ioctl(raw::PIN_BUFFER_V2, &mut pin) }?;
            return Ok(pin.handle);
        }
        // A peer-to-peer token of 0 selects the memory by address; newer modules accept nothing else.
        let mut pin = raw::PinBuffer { addr, size, p2p_token: 0, va_space: 0, pad: 0, handle: 0 };
        // SAFETY: as above.
        unsafe { self.file.ioctl(raw::PIN_BUFFER, &mut pin) }?;
        Ok(pin.handle)
    }
}

struct Pinned {
    module: Gdrdrv,
    handle: u64,
    keeps: bool,
}

impl Pinned {
    fn map(&self, size: u64) -> Result<Pages, Refusal> {
        let file = &self.module.file;
        if self.module.version >= raw::WITH_PIN_BUFFER_V2 {
            let mut wish = raw::ReqMappingType { handle: self.handle, mapping_type: raw::MR_NONE, pad: 0 };
            // SAFETY: the request's structure.
            unsafe { file.ioctl(raw::REQ_MAPPING_TYPE, &mut wish) }.map_err(|error| {
                Refusal::new("choose gdrdrv's kind of mapping", error, "see the kernel's log (dmesg)")
            })?;
        }
        let offset = self.handle.checked_mul(page_size() as u64).ok_or_else(|| {
            let reason = format!("{} is more than any offset of a file", self.handle);
            Refusal::new("read gdrdrv's handle", reason, "install gdrcopy 2.0 or newer")
        })?;
        file.map(size as usize, offset).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    "the memory was freed meanwhile, or is no GPU's: keep it until it is unmapped"
                }
                Some(libc::EACCES) => "map in the process that opened the module: not in a child",
                _ => "see the kernel's log (dmesg)",
            };
            Refusal::new("map what gdrdrv pinned", error, remedy)
        })
    }

    /// Returns how the memory is mapped, and the size of the GPU's pages.
    fn describe(&self) -> Result<(Caching, usize), Refusal> {
        let file = &self.module.file;
        let failed = |error: io::Error| {
            Refusal::new("ask gdrdrv what it mapped", error, "see the kernel's log (dmesg)")
        };
        let (kind, page_size) = if self.module.version >= raw::WITH_GET_INFO_V2 {
            let mut answer = raw::GetInfoV2 { handle: self.handle, ..raw::GetInfoV2::new_zeroed() };
            // SAFETY: the request's structure.
            unsafe { file.ioctl(raw::GET_INFO_V2, &mut answer) }.map_err(failed)?;
            (answer.mapping_type, answer.page_size)
        } else {
            let mut answer = raw::GetInfo { handle: self.handle, ..raw::GetInfo::new_zeroed() };
            // SAFETY: the request's structure.
            unsafe { file.ioctl(raw::GET_INFO, &mut answer) }.map_err(failed)?;
            let kind = match (answer.mapped, answer.wc_mapping) {
                (0, _) => raw::MR_NONE,
                (_, 0) => raw::MR_CACHING,
                _ => raw::MR_WC,
            };
            (kind, answer.page_size)
        };
        let caching = match kind {
            raw::MR_WC => Caching::WriteCombining,
            raw::MR_CACHING => Caching::Cached,
            raw::MR_DEVICE => Caching::Device,
            other => {
                let reason = format!("mapping type {other} is none that can be used");
                let remedy = "the memory was freed meanwhile, or gdrcopy is newer than gdsync";
                return Err(Refusal::new("ask gdrdrv what it mapped", reason, remedy));
            }
        };
        Ok((caching, page_size as usize))
    }
}

impl Resources for Pinned {
    fn freed(&self) -> bool {
        if self.keeps {
            return false;
        }
        let mut answer = raw::GetCbFlag { handle: self.handle, flag: 0, pad: 0 };
        // SAFETY: the request's structure. An error means that the module has nothing mapped.
        unsafe { self.module.file.ioctl(raw::GET_CB_FLAG, &mut answer) }.is_err() || answer.flag != 0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut unpin = raw::UnpinBuffer { handle: self.handle };
        // SAFETY: the request's structure; the pages were unmapped before.
        if let Err(error) = unsafe { self.module.file.ioctl(raw::UNPIN_BUFFER, &mut unpin) } {
            tracing::debug!(%error, "GPU memory was not unpinned");
        }
    }
}

fn pin_refusal(first: u64, size: u64, error: &io::Error) -> Refusal {
    let remedy = match error.raw_os_error() {
        Some(libc::EINVAL) => {
            "pin memory that cuMemAlloc gave, or cuMemCreate with gpuDirectRDMACapable, of this process"
        }
        Some(libc::ENOMEM) => {
            "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY): unmap something, or enable a large BAR1"
        }
        Some(libc::EACCES) => "open the module in the process that pins: not in its parent",
        _ => "see the kernel's log (dmesg)",
    };
    Refusal::new(format!("pin {size} bytes of GPU memory at {first:#x}"), error, remedy)
}

fn dotted(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

#[cfg(test)]
mod tests;
