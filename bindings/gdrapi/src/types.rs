//! The structs of `gdrapi.h`. Enums are numbers here, as C may pass any.

use libc::c_ulong;

/// `struct gdr`, which is opaque to C programs. A `gdr_t` is a number in the shape of a pointer to it.
#[repr(C)]
pub struct Gdr {
    _nothing: [u8; 0],
}

/// `gdr_mh_t`: a handle of pinned memory. 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryHandle {
    /// `h`.
    pub h: c_ulong,
}

/// `gdr_info_v1_t`, which gdrcopy's header no longer declares: the struct of the symbol `gdr_get_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InfoV1 {
    /// The first pinned GPU address.
    pub va: u64,
    /// Pinned bytes.
    pub mapped_size: u64,
    /// Bytes of a page.
    pub page_size: u32,
    /// 0.
    pub tm_cycles: u64,
    /// 0.
    pub cycles_per_ms: u32,
    /// The bit fields: [`MAPPED`], [`WC_MAPPING`].
    pub bits: u32,
}

/// `gdr_info_v2_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InfoV2 {
    /// The first pinned GPU address.
    pub va: u64,
    /// Pinned bytes.
    pub mapped_size: u64,
    /// Bytes of a page.
    pub page_size: u32,
    /// 0.
    pub tm_cycles: u64,
    /// 0.
    pub cycles_per_ms: u32,
    /// The bit fields: [`MAPPED`], [`WC_MAPPING`].
    pub bits: u32,
    /// One of the `TYPE_` constants.
    pub mapping_type: u32,
}

/// The bit field `mapped`, as compilers lay it out.
pub const MAPPED: u32 = if cfg!(target_endian = "little") { 1 } else { 1 << 31 };
/// The bit field `wc_mapping`.
pub const WC_MAPPING: u32 = if cfg!(target_endian = "little") { 2 } else { 1 << 30 };

/// `GDR_MAPPING_TYPE_NONE`.
pub const TYPE_NONE: u32 = 0;
/// `GDR_MAPPING_TYPE_WC`, and `GDR_MAP_FLAG_REQ_WC_MAPPING`.
pub const TYPE_WC: u32 = 1;
/// `GDR_MAPPING_TYPE_CACHING`, and `GDR_MAP_FLAG_REQ_CACHE_MAPPING`.
pub const TYPE_CACHING: u32 = 2;
/// `GDR_MAPPING_TYPE_DEVICE`, and `GDR_MAP_FLAG_REQ_DEVICE_MAPPING`.
pub const TYPE_DEVICE: u32 = 3;

/// `GDR_PIN_FLAG_FORCE_PCIE`.
pub const PIN_FORCE_PCIE: u32 = 1;

/// `GDR_ATTR_USE_PERSISTENT_MAPPING`.
pub const ATTR_PERSISTENT: u32 = 1;
/// `GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE`.
pub const ATTR_FORCE_PCIE: u32 = 2;
/// `GDR_ATTR_USING_DMA_BUF_MMAP`.
pub const ATTR_DMA_BUF: u32 = 3;

/// `GDR_API_MAJOR_VERSION`, `GDR_API_MINOR_VERSION`.
pub const VERSION: (u16, u16) = (2, 6);
/// `GPU_PAGE_SIZE`.
pub const GPU_PAGE: usize = 1 << 16;
