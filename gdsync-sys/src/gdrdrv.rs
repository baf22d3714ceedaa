//! The kernel interface of gdrdrv, the module of NVIDIA's gdrcopy: `/dev/gdrdrv`, protocol 2.0 to 2.6.
//!
//! Sources: gdrcopy's header `gdrdrv.h`, whose field names are used here, and the module's code. Fields are inputs
//! unless marked as outputs. A request `NAME` is the header's `GDRDRV_IOC_NAME`, its structure
//! `struct GDRDRV_IOC_NAME_PARAMS`.

#![allow(missing_docs, reason = "items without a line have the header's name")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const PATH: &str = "/dev/gdrdrv";

/// Version of the user library that is implemented: 2.6. A module may ask for a newer one.
pub const API_VERSION: u32 = version(2, 6);
pub const OLDEST: u32 = version(2, 0);
/// First version with [`GetInfoV2`].
pub const WITH_GET_INFO_V2: u32 = version(2, 4);
/// First version with [`GetAttr`], [`PinBufferV2`] and [`ReqMappingType`].
pub const WITH_PIN_BUFFER_V2: u32 = version(2, 5);

/// Bytes of a GPU page. Pinned ranges begin and end at page boundaries (`nvidia_p2p_get_pages`).
pub const GPU_PAGE: u64 = 64 * 1024;

/// The ioctl type of all requests.
const TYPE: u32 = 0xda;
/// Size in most request numbers: the header uses the size of a *pointer* to the structure.
const POINTER: u32 = 8;

/// Returns a version as the module reports it.
pub const fn version(major: u16, minor: u16) -> u32 {
    (major as u32) << 16 | minor as u32
}

/// `_IOC(_IOC_READ | _IOC_WRITE, kind, number, size)` of the kernel's `ioctl.h`.
pub(crate) const fn read_write(kind: u32, number: u32, size: u32) -> u64 {
    (3 << 30 | size << 16 | kind << 8 | number) as u64
}

pub const PIN_BUFFER: u64 = read_write(TYPE, 1, size_of::<PinBuffer>() as u32);
pub const UNPIN_BUFFER: u64 = read_write(TYPE, 2, POINTER);
pub const GET_CB_FLAG: u64 = read_write(TYPE, 3, POINTER);
pub const GET_INFO: u64 = read_write(TYPE, 4, POINTER);
pub const GET_INFO_V2: u64 = read_write(TYPE, 5, POINTER);
pub const GET_ATTR: u64 = read_write(TYPE, 6, size_of::<GetAttr>() as u32);
pub const PIN_BUFFER_V2: u64 = read_write(TYPE, 7, size_of::<PinBufferV2>() as u32);
pub const REQ_MAPPING_TYPE: u64 = read_write(TYPE, 8, POINTER);
pub const GET_VERSION: u64 = read_write(TYPE, 255, POINTER);

/// `gdr_mr_type_t`: not mapped; in a request: the module's default.
pub const MR_NONE: u32 = 0;
/// `gdr_mr_type_t`: write-combining.
pub const MR_WC: u32 = 1;
/// `gdr_mr_type_t`: cached, if CPU and GPU are coherent.
pub const MR_CACHING: u32 = 2;
/// `gdr_mr_type_t`: device memory of Arm.
pub const MR_DEVICE: u32 = 3;

/// `GDRDRV_ATTR_USE_PERSISTENT_MAPPING`: pinned memory stays when CUDA frees it.
pub const ATTR_USE_PERSISTENT_MAPPING: u32 = 1;

/// Defines the structures that requests read and write.
macro_rules! parameters {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
    )+};
}
pub(crate) use parameters;

parameters! {
    /// Modules that map persistently reject tokens other than 0.
    PinBuffer {
        /// GPU address; a multiple of [`GPU_PAGE`] if it will be mapped.
        addr: u64,
        size: u64,
        /// 0, like `va_space`.
        p2p_token: u64,
        va_space: u32,
        pad: u32,
        /// Out: handle of the pinned memory, and the page offset for `mmap`.
        handle: u64,
    }

    UnpinBuffer {
        handle: u64,
    }

    GetCbFlag {
        handle: u64,
        /// Out: not 0 if the memory was freed while mapped.
        flag: u32,
        pad: u32,
    }

    GetInfo {
        handle: u64,
        /// Out: first GPU address pinned.
        va: u64,
        /// Out: bytes pinned.
        mapped_size: u64,
        /// Out: bytes of a GPU page.
        page_size: u32,
        /// Out.
        tsc_khz: u32,
        /// Out.
        tm_cycles: u64,
        /// Out: not 0 if mapped.
        mapped: u32,
        /// Out: not 0 if the mapping is write-combining.
        wc_mapping: u32,
    }

    GetInfoV2 {
        handle: u64,
        /// Out: first GPU address pinned.
        va: u64,
        /// Out: bytes pinned.
        mapped_size: u64,
        /// Out: bytes of a GPU page.
        page_size: u32,
        /// Out.
        tsc_khz: u32,
        /// Out.
        tm_cycles: u64,
        /// Out: one of the `MR_` constants.
        mapping_type: u32,
        pad: u32,
    }

    GetAttr {
        /// An `ATTR_` constant.
        attr: u32,
        /// Out.
        val: u32,
    }

    PinBufferV2 {
        /// GPU address; a multiple of [`GPU_PAGE`] if it will be mapped.
        addr: u64,
        size: u64,
        /// 0, or 1 to use the BAR even if the GPU has a coherent link.
        flags: u32,
        pad: u32,
        /// Out: as in [`PinBuffer`].
        handle: u64,
    }

    ReqMappingType {
        handle: u64,
        /// One of the `MR_` constants.
        mapping_type: u32,
        pad: u32,
    }

    GetVersion {
        /// Out: the module's protocol version.
        gdrdrv_version: u32,
        /// Out: the oldest user library that the module accepts.
        minimum_gdr_api_version: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn requests_have_the_numbers_of_the_header() {
        // Computed by a C compiler from gdrcopy's gdrdrv.h on x86-64.
        assert_eq!(PIN_BUFFER, 0xc028_da01);
        assert_eq!(UNPIN_BUFFER, 0xc008_da02);
        assert_eq!(GET_CB_FLAG, 0xc008_da03);
        assert_eq!(GET_INFO, 0xc008_da04);
        assert_eq!(GET_INFO_V2, 0xc008_da05);
        assert_eq!(GET_ATTR, 0xc008_da06);
        assert_eq!(PIN_BUFFER_V2, 0xc020_da07);
        assert_eq!(REQ_MAPPING_TYPE, 0xc008_da08);
        assert_eq!(GET_VERSION, 0xc008_daff);
        assert_eq!((API_VERSION, OLDEST), (0x2_0006, 0x2_0000));
    }

    #[test]
    fn structures_have_the_layout_of_the_header() {
        assert_eq!((size_of::<PinBuffer>(), offset_of!(PinBuffer, handle)), (40, 32));
        assert_eq!(offset_of!(PinBuffer, va_space), 24);
        assert_eq!(size_of::<UnpinBuffer>(), 8);
        assert_eq!((size_of::<GetCbFlag>(), offset_of!(GetCbFlag, flag)), (16, 8));
        assert_eq!((size_of::<GetInfo>(), offset_of!(GetInfo, tm_cycles)), (48, 32));
        assert_eq!((offset_of!(GetInfo, mapped), offset_of!(GetInfo, wc_mapping)), (40, 44));
        assert_eq!((size_of::<GetInfoV2>(), offset_of!(GetInfoV2, mapping_type)), (48, 40));
        assert_eq!((size_of::<GetAttr>(), offset_of!(GetAttr, val)), (8, 4));
        assert_eq!((size_of::<PinBufferV2>(), offset_of!(PinBufferV2, handle)), (32, 24));
        assert_eq!((size_of::<ReqMappingType>(), offset_of!(ReqMappingType, mapping_type)), (16, 8));
        assert_eq!((size_of::<GetVersion>(), offset_of!(GetVersion, minimum_gdr_api_version)), (8, 4));
    }
}
