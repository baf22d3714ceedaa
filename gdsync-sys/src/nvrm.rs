//! Requests to the resource manager of NVIDIA's kernel driver that map GPU memory for the CPU.
//!
//! Sources: `nv_escape.h`, `nv-ioctl-numbers.h`, `nvos.h`, `ctrl0000unix.h` and `cl0080.h` of the open kernel
//! modules. The interface is not stable; it is verified with driver 580. Structures and fields are named by purpose,
//! with the header's name where it differs: `client` is its `hClient` or `hRoot`, `parent` its `hObjectParent`,
//! `device` its `hDevice`, `memory` its `hMemory`. Fields are inputs unless marked as outputs; `status` is an output.
//! Requests are the header's `NV_ESC_RM_*`.

#![allow(missing_docs, reason = "fields without a line have the header's name")]

use crate::gdrdrv::{parameters, read_write};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The device file of the resource manager.
pub const CONTROL_PATH: &str = "/dev/nvidiactl";

/// `NV_IOCTL_MAGIC`.
const TYPE: u32 = b'F' as u32;

pub const FREE: u64 = read_write(TYPE, 0x29, size_of::<Free>() as u32);
pub const CONTROL: u64 = read_write(TYPE, 0x2a, size_of::<Control>() as u32);
pub const ALLOC: u64 = read_write(TYPE, 0x2b, size_of::<Alloc>() as u32);
pub const MAP_MEMORY: u64 = read_write(TYPE, 0x4e, size_of::<MapMemory>() as u32);
pub const UNMAP_MEMORY: u64 = read_write(TYPE, 0x4f, size_of::<UnmapMemory>() as u32);
/// `NV_ESC_REGISTER_FD`: allows requests to the control file to name a GPU's file.
pub const REGISTER_FD: u64 = read_write(TYPE, 201, size_of::<RegisterFd>() as u32);

/// Class of a client of the resource manager (`NV01_ROOT_CLIENT`).
pub const CLASS_CLIENT: u32 = 0x41;
/// Class of a GPU (`NV01_DEVICE_0`).
pub const CLASS_DEVICE: u32 = 0x80;
/// Class of a subdevice; a GPU has one (`NV20_SUBDEVICE_0`).
pub const CLASS_SUBDEVICE: u32 = 0x2080;

/// `NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO`.
pub const GET_EXPORT_INFO: u32 = 0x3d08;
/// `NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD`.
pub const IMPORT_OBJECTS: u32 = 0x3d0c;

pub const OK: u32 = 0;

/// Returns the name of a status that these requests are known to return (`nvstatuscodes.h`).
pub fn status_name(status: u32) -> &'static str {
    match status {
        0x0f => "GPU_IS_LOST",
        0x1a => "INSUFFICIENT_RESOURCES",
        0x1b => "INSUFFICIENT_PERMISSIONS",
        0x1f => "INVALID_ARGUMENT",
        0x22 => "INVALID_CLASS",
        0x23 => "INVALID_CLIENT",
        0x24 => "INVALID_COMMAND",
        0x26 => "INVALID_DEVICE",
        0x3a => "INVALID_PARAM_STRUCT",
        0x3b => "INVALID_PARAMETER",
        0x51 => "NO_MEMORY",
        0x56 => "NOT_SUPPORTED",
        0x57 => "OBJECT_NOT_FOUND",
        0xffff => "GENERIC",
        _ => "a status that gdsync does not know",
    }
}

/// Most objects of one import (`NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_MAX_OBJECTS`).
const MAX_OBJECTS: usize = 128;

parameters! {
    /// `nv_ioctl_register_fd_t`.
    RegisterFd {
        ctl_fd: i32,
    }

    /// `NVOS64_PARAMETERS`: creates an object.
    Alloc {
        /// `hRoot`: the client; 0 to create one.
        client: u32,
        parent: u32,
        /// `hObjectNew`, in and out: for 0 the resource manager chooses one.
        object: u32,
        class: u32,
        /// `pAllocParms`.
        params: u64,
        /// `pRightsRequested`: 0.
        rights: u64,
        /// `paramsSize`; 0 means the size of the class.
        params_size: u32,
        flags: u32,
        status: u32,
        pad: u32,
    }

    /// `NVOS00_PARAMETERS`: frees an object and its descendants.
    Free {
        client: u32,
        parent: u32,
        /// `hObjectOld`.
        object: u32,
        status: u32,
    }

    /// `NVOS54_PARAMETERS`: a command to an object.
    Control {
        client: u32,
        /// `hObject`.
        object: u32,
        cmd: u32,
        flags: u32,
        params: u64,
        params_size: u32,
        status: u32,
    }

    /// `nv_ioctl_nvos33_parameters_with_fd`: makes a file mappable by one `mmap` at offset 0 of exactly this length.
    MapMemory {
        client: u32,
        device: u32,
        memory: u32,
        pad: u32,
        offset: u64,
        length: u64,
        /// `pLinearAddress`, out: identifies the mapping for [`UnmapMemory`].
        address: u64,
        status: u32,
        /// `flags`: 0 for read and write.
        flags: u32,
        /// The file of the GPU, not yet mapped.
        fd: i32,
        pad2: u32,
    }

    /// `NVOS34_PARAMETERS`.
    UnmapMemory {
        client: u32,
        device: u32,
        memory: u32,
        pad: u32,
        /// `pLinearAddress` of [`MapMemory`].
        address: u64,
        status: u32,
        flags: u32,
    }

    /// `NV0080_ALLOC_PARAMETERS`, of [`CLASS_DEVICE`].
    DeviceParams {
        /// `deviceId`: instance.
        device_id: u32,
        client_share: u32,
        target_client: u32,
        target_device: u32,
        flags: u32,
        pad: u32,
        va_space_size: u64,
        /// `vaStartInternal`.
        va_start: u64,
        /// `vaLimitInternal`.
        va_limit: u64,
        va_mode: u32,
        pad2: u32,
    }

    /// `NV2080_ALLOC_PARAMETERS`, of [`CLASS_SUBDEVICE`].
    SubdeviceParams {
        /// `subDeviceId`: 0.
        subdevice_id: u32,
    }

    /// `NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS`.
    ExportInfo {
        /// `fd`: an exported object.
        fd: i32,
        /// `deviceInstance`, out.
        device_instance: u32,
        /// `gpuInstanceId`, out.
        gpu_instance: u32,
        /// `maxObjects`, out.
        max_objects: u16,
        /// `metadata`, out.
        metadata: [u8; 64],
        pad: [u8; 2],
    }

    /// `NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS`.
    ImportObjects {
        /// `fd`: the exported objects.
        fd: i32,
        /// `hParent`: the device.
        parent: u32,
        /// `objects`: handles for them.
        objects: [u32; MAX_OBJECTS],
        /// `objectTypes`, out.
        types: [u8; MAX_OBJECTS],
        count: u16,
        index: u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn requests_have_the_numbers_of_the_headers() {
        assert_eq!(FREE, 0xc010_4629);
        assert_eq!(CONTROL, 0xc020_462a);
        assert_eq!(ALLOC, 0xc030_462b);
        assert_eq!(MAP_MEMORY, 0xc038_464e);
        assert_eq!(UNMAP_MEMORY, 0xc020_464f);
        assert_eq!(REGISTER_FD, 0xc004_46c9);
    }

    #[test]
    fn structures_have_the_layout_of_the_headers() {
        assert_eq!((offset_of!(Alloc, params), offset_of!(Alloc, status)), (16, 40));
        assert_eq!((offset_of!(Control, params), offset_of!(Control, status)), (16, 28));
        assert_eq!((offset_of!(MapMemory, offset), offset_of!(MapMemory, address)), (16, 32));
        assert_eq!((offset_of!(MapMemory, status), offset_of!(MapMemory, fd)), (40, 48));
        assert_eq!((offset_of!(UnmapMemory, address), offset_of!(UnmapMemory, status)), (16, 24));
        assert_eq!((size_of::<DeviceParams>(), offset_of!(DeviceParams, va_space_size)), (56, 24));
        assert_eq!((size_of::<ExportInfo>(), offset_of!(ExportInfo, metadata)), (80, 14));
        assert_eq!((size_of::<ImportObjects>(), offset_of!(ImportObjects, types)), (652, 520));
        assert_eq!((offset_of!(ImportObjects, count), offset_of!(ImportObjects, index)), (648, 650));
    }

    #[test]
    fn statuses_have_names() {
        assert_eq!(status_name(0x56), "NOT_SUPPORTED");
        assert!(status_name(0x7777).contains("does not know"));
    }
}
