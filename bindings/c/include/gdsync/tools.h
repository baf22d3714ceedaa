/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Memory that a stream and the CPU both reach, for small flags, mainly in tests.
 */
#ifndef GDSYNC_TOOLS_H
#define GDSYNC_TOOLS_H

#ifndef __GDSYNC_H__
#error "include gdsync.h before this header"
#endif

GDS_BEGIN_DECLS

typedef struct gds_mem_desc {
    CUdeviceptr d_ptr; /* for streams and kernels: GDS_MEMORY_GPU in descriptors */
    void *h_ptr;       /* for the CPU */
    void *bar_ptr;     /* the CPU's mapping of GPU memory, as h_ptr; NULL for host memory */
    int flags;         /* as asked for */
    size_t alloc_size;
    gdr_mh_t mh; /* gdsync's own */
} gds_mem_desc_t;

/* Allocates zeroed memory. flags: GDS_MEMORY_HOST; or GDS_MEMORY_GPU, for memory of the current context's GPU. If the CPU cannot map that, or no
 * context is current, the result is host memory, which the GPU reaches at d_ptr. */
int gds_alloc_mapped_memory(gds_mem_desc_t *desc, size_t size, int flags);
/* Frees it. EINVAL: not of gds_alloc_mapped_memory, or already free. */
int gds_free_mapped_memory(gds_mem_desc_t *desc);

GDS_END_DECLS

#endif
