/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * CPU mappings of GPU memory for C and C++: the interface of gdrcopy's libgdrapi, version 2.6, implemented by gdsync.
  *
  * A program opens the library (gdr_open), pins a range of GPU memory (gdr_pin_buffer), maps it (gdr_map), copies (gdr_copy_to_mapping,
  * gdr_copy_from_mapping) or uses the pointer itself, and undoes these steps in the opposite order.
  *
  * Functions that return an int return 0 or a positive errno value; errno itself is unspecified. Every handle is checked: a stale one, or one
  * of another gdr_t or of the parent of a forked process, is EINVAL. All functions may be called from any thread at the same time. The program
  * must synchronise only its accesses through the pointer of gdr_map, which must end before gdr_unmap.
  *
  * Environment, read by gdr_open unless noted:
  *   GDSYNC_MAPPING           the backend: gdrdrv, dma-buf, nvrm; or stand-in, to try programs without a GPU: the address is not used, and each
  *                            mapping is fresh zeroed host memory
  *   GDRCOPY_USE_DMABUF_MMAP  1: as GDSYNC_MAPPING=dma-buf, unless that is set, too
  *   GDRCOPY_ENABLE_LOGGING   if set, errors are logged to stderr (read once)
  *   GDRCOPY_LOG_LEVEL        1 everything, 2 information, 3 warnings, 4 errors, the default (read once)
 */
#ifndef GDSYNC_GDRAPI_H
#define GDSYNC_GDRAPI_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* A version in one number: the major part above this bit, the minor part below. */
#define MAJOR_VERSION_SHIFT 16
#define MINOR_VERSION_MASK (((uint32_t)1 << MAJOR_VERSION_SHIFT) - 1)

#define GDR_API_MAJOR_VERSION 2
#define GDR_API_MINOR_VERSION 6
#define GDR_API_VERSION ((GDR_API_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | GDR_API_MINOR_VERSION)

/* The oldest supported protocol of the module gdrdrv. */
#define MINIMUM_GDRDRV_MAJOR_VERSION 2
#define MINIMUM_GDRDRV_MINOR_VERSION 0
#define MINIMUM_GDRDRV_VERSION ((MINIMUM_GDRDRV_MAJOR_VERSION << MAJOR_VERSION_SHIFT) | MINIMUM_GDRDRV_MINOR_VERSION)

/* Pages of GPU memory, 64 KiB: memory can be mapped only from a multiple on (but see gdr_info_v2_t.page_size). */
#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1UL << GPU_PAGE_SHIFT)
#define GPU_PAGE_OFFSET (GPU_PAGE_SIZE - 1)
#define GPU_PAGE_MASK (~GPU_PAGE_OFFSET)

#ifdef __cplusplus
extern "C" {
#endif

/* An open library: a number in the shape of a pointer, which must not be dereferenced. */
struct gdr;
typedef struct gdr *gdr_t;

/* Pinned memory; 0 is none. */
typedef struct gdr_mh_s {
    unsigned long h;
} gdr_mh_t;

/* Flags of gdr_pin_buffer_v2. */
typedef enum gdr_pin_flags {
    GDR_PIN_FLAG_DEFAULT = 0,
    /* Over PCIe even if CPU and GPU share coherent memory. Not supported: EINVAL. */
    GDR_PIN_FLAG_FORCE_PCIE = 1
} gdr_pin_flags_t;

/* The CPU's caching of a mapping. */
typedef enum gdr_mapping_type {
    GDR_MAPPING_TYPE_NONE = 0,
    GDR_MAPPING_TYPE_WC = 1,
    GDR_MAPPING_TYPE_CACHING = 2,
    GDR_MAPPING_TYPE_DEVICE = 3,
    GDR_MAPPING_TYPE_MAX /* the first number that is no type */
} gdr_mapping_type_t;

/* Flags of gdr_map_v2: any type of mapping, or only this one. */
typedef enum gdr_map_flags {
    GDR_MAP_FLAG_DEFAULT = 0,
    GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
    GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
    GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3
} gdr_map_flags_t;

/* Attributes that gdr_get_attribute reads. */
typedef enum gdr_attr {
    /* 1: pinned memory stays if CUDA frees it first. */
    GDR_ATTR_USE_PERSISTENT_MAPPING = 1,
    /* 1: GDR_PIN_FLAG_FORCE_PCIE is supported. Always 0 here. */
    GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
    /* 1: mappings are of dma-bufs. */
    GDR_ATTR_USING_DMA_BUF_MMAP = 3,
    GDR_ATTR_MAX /* the first number that is no attribute */
} gdr_attr_t;

/* Pinned memory and its mapping. */
typedef struct gdr_info_v2 {
    uint64_t va;          /* first GPU address pinned: that of a whole page */
    uint64_t mapped_size; /* bytes pinned, whole pages */
    uint32_t page_size;   /* bytes of such a page */
    uint64_t tm_cycles;   /* always 0: not measured */
    uint32_t cycles_per_ms;
    unsigned mapped : 1;
    unsigned wc_mapping : 1;
    gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;
typedef gdr_info_v2_t gdr_info_t;

/* Opens the library with the first backend that this machine has. NULL without any; the log has the reason. */
gdr_t gdr_open(void);

/* Unmaps and unpins all memory that is still pinned, and closes the library. */
int gdr_close(gdr_t g);

/* Pins GPU memory in the current CUDA context, or without one in its GPU's primary context. The memory must stay allocated until it is
 * unpinned (GDR_ATTR_USE_PERSISTENT_MAPPING tells what happens otherwise). The tokens are no longer used and must be 0.
 *
 * EINVAL: a null or unknown argument, no bytes, or memory that CUDA does not know. ENOTSUP: memory that this backend cannot map; without
 * gdrdrv, and with drivers before CUDA 13.3, that is all memory but that of cuMemCreate with requestedHandleTypes of
 * CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR. ENOMEM: no room in the GPU's bus window (BAR1), if the driver reports that. */
int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space, gdr_mh_t *handle);
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);

/* Unpins memory, and unmaps it if it is mapped. */
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);

/* Sets *flag to 1 if CUDA freed the memory while it was mapped, otherwise to 0. */
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);
/* The symbol gdr_get_info has the older struct, without mapping_type. */
#define gdr_get_info gdr_get_info_v2

/* Maps the first `size` bytes of pinned memory, rounded up to host pages. *va is the CPU's address of the first byte.
 *
 * EAGAIN: it is mapped already. EINVAL: the memory does not begin at a page (gdr_info_v2_t.page_size), `size` is 0 or exceeds the pinned
 * memory, the flags are unknown, or the mapping is of another type (EOPNOTSUPP with gdrdrv). */
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **ptr_va, size_t size, int flags);

/* Unmaps. EINVAL: `va` is not the address of gdr_map, `size` is 0 or exceeds the mapping, or the memory is not mapped. */
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);

/* Copies between host memory and a mapping; `map_d_ptr` is any address in the mapping, aligned or not. When gdr_copy_to_mapping returns, its
 * bytes are on their way to the GPU, ordered before later stores of this thread. Work that runs on the GPU meanwhile may see them in any order.
 * EINVAL: not mapped, or bytes outside the mapping. */
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);

/* The version of this interface. */
void gdr_runtime_get_version(int *major, int *minor);

/* The protocol version of gdrdrv if that maps; otherwise the version of this interface. */
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

/* The printable name of a type. EINVAL: there is no such type. */
int gdr_get_mapping_type_string(gdr_mapping_type_t mapping_type, const char **pstr);

#ifdef __cplusplus
}
#endif

#endif
