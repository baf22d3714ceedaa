//! Mappings by the resource manager of NVIDIA's driver, without another kernel module.
//!
//! CUDA exports the memory; this module creates a client of the resource manager, which imports the memory and maps
//! it through the GPU's device file, as CUDA does for its own mappings. The import holds a reference, so the memory
//! stays if CUDA frees it first. The interface is not stable: unknown drivers are refused unless this backend is
//! requested by name.

use crate::backend::{Caching, MappingBackend, Refusal};
use crate::kernel::{File, Kernel};
use crate::mapping::{Mapped, Resources};
use gdsync_sys::host::page_size;
use gdsync_sys::nvrm as raw;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Major versions of drivers that are known to work.
const KNOWN: [u32; 1] = [580];
const VERSION_FILES: [&str; 2] = ["/sys/module/nvidia/version", "/proc/driver/nvidia/version"];
/// Most device files to try if the driver does not report the GPU's file.
const MOST_DEVICES: u32 = 32;

/// Handles of this module's objects, unique within the client.
const DEVICE: u32 = 0x6764_0001;
const SUBDEVICE: u32 = 0x6764_0002;
const MEMORY: u32 = 0x6764_0010;

/// Remedy for results that differ from the known interface.
const ODD: &str =
    "this driver's resource manager is unlike that of driver 580: use gdrdrv, or tell gdsync's authors";

/// Remedy if the driver's files are missing.
pub(crate) const MISSING: &str = "load NVIDIA's driver; in a container, pass its devices";

/// Refuses unknown drivers before any request to them.
pub(crate) fn check(kernel: &Arc<dyn Kernel>, any_driver: bool) -> Result<(), Refusal> {
    let text = VERSION_FILES.iter().find_map(|path| kernel.read_text(path).ok());
    let major = text.as_deref().and_then(major_version);
    let refuse = |reason, remedy| Err(Refusal::new("look at the driver", reason, remedy));
    match major {
        Some(major) if any_driver || KNOWN.contains(&major) => Ok(()),
        Some(major) => {
            let reason = format!("driver {major} is none on which it is known to work (580)");
            refuse(reason, "use gdrdrv, or try it by asking for nvrm by name")
        }
        None if any_driver => Ok(()),
        None => {
            let reason = format!("{} does not tell its version", VERSION_FILES[0]);
            refuse(reason, "load NVIDIA's driver, or try it by asking for nvrm by name")
        }
    }
}

/// Returns the first number of the first word that is a version: `580` of `580.159.04`, also inside a sentence.
fn major_version(text: &str) -> Option<u32> {
    text.split_whitespace().find_map(|word| {
        let parts: Vec<&str> = word.split('.').collect();
        let numbers = parts.len() >= 2
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        if numbers { parts[0].parse().ok() } else { None }
    })
}

/// Maps all `size` bytes of memory that CUDA exported. `bus` is the GPU's PCI address from `cuDeviceGetPCIBusId`;
/// with `any_driver`, drivers outside [`KNOWN`] are tried, too.
pub(crate) fn map(
    kernel: &Arc<dyn Kernel>,
    (bus, any_driver): (&str, bool),
    exported: BorrowedFd<'_>,
    size: usize,
) -> Result<Mapped, Refusal> {
    check(kernel, any_driver)?;
    let control = File::open(kernel, raw::CONTROL_PATH)
        .map_err(|error| Refusal::open(raw::CONTROL_PATH, &error, MISSING))?;
    let client = Client::new(control)?;
    client.import(exported.as_raw_fd())?;
    let mut refused = None;
    for path in device_files(kernel, bus) {
        match client.map(kernel, &path, size) {
            Ok((device, address)) => {
                let resources = Imported { address, client, device };
                let pages = resources.device.map(size, 0).map_err(|error| {
                    let remedy = "the GPU's BAR1 may be full (nvidia-smi -q -d MEMORY), or see the kernel's log (dmesg)";
                    Refusal::new(format!("map {path}"), error, remedy)
                })?;
                let kind = (MappingBackend::ResourceManager, Caching::WriteCombining);
                return Ok(Mapped::new(pages, resources, kind, page_size(), 0));
            }
            Err(refusal) => refused = refused.or(Some(refusal)),
        }
    }
    Err(refused.unwrap_or_else(|| Refusal::new("find the GPU's device file", "there is none", MISSING)))
}

/// Returns the device file of a GPU, or all possible ones if the driver does not report it.
fn device_files(kernel: &Arc<dyn Kernel>, bus: &str) -> Vec<String> {
    let path = format!("/proc/driver/nvidia/gpus/{}/information", bus.to_ascii_lowercase());
    let minor = kernel.read_text(&path).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
        line.trim().parse::<u32>().ok()
    });
    match minor {
        Some(minor) => vec![format!("/dev/nvidia{minor}")],
        // The resource manager refuses to map a GPU's memory through another GPU's file.
        None => (0..MOST_DEVICES).map(|minor| format!("/dev/nvidia{minor}")).collect(),
    }
}

/// A client of the resource manager. Dropping it frees all its objects.
struct Client {
    control: File,
    handle: u32,
}

impl Client {
    fn new(control: File) -> Result<Self, Refusal> {
        let mut client = Client { control, handle: 0 };
        client.handle = client.allocate(0, 0, raw::CLASS_CLIENT, &mut ())?;
        if client.handle == 0 {
            return Err(Refusal::new("make a client", "its handle is 0", ODD));
        }
        Ok(client)
    }

    /// Creates an object. The parameter type `()` means no parameters.
    fn allocate<T: IntoBytes + Immutable>(
        &self,
        parent: u32,
        object: u32,
        class: u32,
        params: &mut T,
    ) -> Result<u32, Refusal> {
        let step = || format!("make an object of class {class:#x}");
        let mut alloc = raw::Alloc {
            client: self.handle,
            parent,
            object,
            class,
            params: if size_of::<T>() == 0 { 0 } else { std::ptr::from_mut(params) as u64 },
            params_size: size_of::<T>() as u32,
            ..raw::Alloc::new_zeroed()
        };
        // SAFETY: the request's structure; its parameters are as long as it states.
        let answered = unsafe { self.control.ioctl(raw::ALLOC, &mut alloc) };
        check_answer(step, answered, alloc.status)?;
        if object != 0 && alloc.object != object {
            return Err(Refusal::new(step(), format!("asked for {object:#x}, got {:#x}", alloc.object), ODD));
        }
        Ok(alloc.object)
    }

    fn control<T: IntoBytes + Immutable>(&self, cmd: u32, params: &mut T) -> Result<(), Refusal> {
        let step = || format!("command {cmd:#x}");
        let mut control = raw::Control {
            client: self.handle,
            object: self.handle,
            cmd,
            flags: 0,
            params: std::ptr::from_mut(params) as u64,
            params_size: size_of::<T>() as u32,
            status: 0,
        };
        // SAFETY: as above.
        let answered = unsafe { self.control.ioctl(raw::CONTROL, &mut control) };
        check_answer(step, answered, control.status)
    }

    /// Creates the GPU's objects, and imports the memory.
    fn import(&self, exported: i32) -> Result<(), Refusal> {
        let mut info = raw::ExportInfo { fd: exported, ..raw::ExportInfo::new_zeroed() };
        self.control(raw::GET_EXPORT_INFO, &mut info)?;
        if info.device_instance >= MOST_DEVICES {
            let reason = format!("device {}, of at most {MOST_DEVICES}", info.device_instance);
            return Err(Refusal::new("ask what was exported", reason, ODD));
        }
        let mut device =
            raw::DeviceParams { device_id: info.device_instance, ..raw::DeviceParams::new_zeroed() };
        self.allocate(self.handle, DEVICE, raw::CLASS_DEVICE, &mut device)?;
        let mut subdevice = raw::SubdeviceParams { subdevice_id: 0 };
        self.allocate(DEVICE, SUBDEVICE, raw::CLASS_SUBDEVICE, &mut subdevice)?;
        let mut import =
            raw::ImportObjects { fd: exported, parent: DEVICE, count: 1, ..raw::ImportObjects::new_zeroed() };
        import.objects[0] = MEMORY;
        self.control(raw::IMPORT_OBJECTS, &mut import)?;
        if import.objects[0] != MEMORY {
            let reason = format!("asked for {MEMORY:#x}, got {:#x}", import.objects[0]);
            return Err(Refusal::new("import the memory", reason, ODD));
        }
        Ok(())
    }

    /// Makes a GPU's file mappable. Returns the file, and the mapping's identifier.
    fn map(&self, kernel: &Arc<dyn Kernel>, path: &str, size: usize) -> Result<(File, u64), Refusal> {
        let missing = "in a container, pass the GPU's device";
        let device = File::open(kernel, path).map_err(|error| Refusal::open(path, &error, missing))?;
        let mut register = raw::RegisterFd { ctl_fd: self.control.fd };
        // SAFETY: the request's structure.
        unsafe { device.ioctl(raw::REGISTER_FD, &mut register) }
            .map_err(|error| Refusal::new(format!("register {path}"), error, ODD))?;
        let mut map = raw::MapMemory {
            client: self.handle,
            device: DEVICE,
            memory: MEMORY,
            length: size as u64,
            fd: device.fd,
            ..raw::MapMemory::new_zeroed()
        };
        let step = || format!("make {size} bytes mappable through {path}");
        // SAFETY: the request's structure.
        let answered = unsafe { self.control.ioctl(raw::MAP_MEMORY, &mut map) };
        check_answer(step, answered, map.status)?;
        Ok((device, map.address))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.handle == 0 {
            return;
        }
        let mut free = raw::Free { client: self.handle, parent: 0, object: self.handle, status: 0 };
        // SAFETY: the request's structure.
        let result = unsafe { self.control.ioctl(raw::FREE, &mut free) };
        if result.is_err() || free.status != raw::OK {
            tracing::debug!(?result, status = free.status, "a client of the resource manager was not freed");
        }
    }
}

/// A mapping's resources in drop order, released after the pages are unmapped.
struct Imported {
    address: u64,
    client: Client,
    device: File,
}

impl Resources for Imported {}

impl Drop for Imported {
    fn drop(&mut self) {
        let mut unmap = raw::UnmapMemory {
            client: self.client.handle,
            device: DEVICE,
            memory: MEMORY,
            address: self.address,
            ..raw::UnmapMemory::new_zeroed()
        };
        // SAFETY: the request's structure; the pages were unmapped before.
        let result = unsafe { self.client.control.ioctl(raw::UNMAP_MEMORY, &mut unmap) };
        if result.is_err() || unmap.status != raw::OK {
            // Freeing the client, which follows, releases the mapping.
            tracing::debug!(
                ?result,
                status = unmap.status,
                "a mapping of the resource manager was not undone"
            );
        }
    }
}

/// Checks the kernel's and the resource manager's result of a request.
fn check_answer(step: impl Fn() -> String, answered: io::Result<()>, status: u32) -> Result<(), Refusal> {
    answered.map_err(|error| Refusal::new(step(), error, ODD))?;
    let remedy = match status {
        raw::OK => return Ok(()),
        0x1a | 0x51 => {
            "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY): unmap something, or enable a large BAR1"
        }
        0x1b => "give this user the right to use the GPU's device files",
        _ => ODD,
    };
    Err(Refusal::new(step(), format!("{} ({status:#x})", raw::status_name(status)), remedy))
}

#[cfg(test)]
mod tests;
