/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Memory of a real GPU, pinned by its address, mapped, copied both ways, and compared with CUDA's view. Needs no CUDA headers, and no driver to
  * build. Prints `SKIPPED why` without such a GPU, otherwise figures and `passed`.
 */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The part of the driver's interface that is used here (cuda.h of CUDA 12). */
typedef unsigned long long CUdeviceptr;
typedef struct {
    int type, id;
} Location;
typedef struct {
    int type, handle_types;
    Location location;
    void *win32;
    struct {
        unsigned char compression, rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} AllocationProp;
typedef struct {
    Location location;
    int flags;
} AccessDesc;
enum { PINNED = 1, ON_DEVICE = 1, AS_FILE = 1, READ_WRITE = 3 };

static struct {
    int (*cuInit)(unsigned);
    int (*cuDeviceGetCount)(int *);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxCreate_v2)(void **, unsigned, int);
    int (*cuCtxDestroy_v2)(void *);
    int (*cuMemAlloc_v2)(CUdeviceptr *, size_t);
    int (*cuMemFree_v2)(CUdeviceptr);
    int (*cuMemcpyDtoH_v2)(void *, CUdeviceptr, size_t);
    int (*cuMemcpyHtoD_v2)(CUdeviceptr, const void *, size_t);
    int (*cuCtxSynchronize)(void);
    int (*cuMemGetAllocationGranularity)(size_t *, const AllocationProp *, int);
    int (*cuMemCreate)(unsigned long long *, size_t, const AllocationProp *, unsigned long long);
    int (*cuMemAddressReserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    int (*cuMemMap)(CUdeviceptr, size_t, size_t, unsigned long long, unsigned long long);
    int (*cuMemSetAccess)(CUdeviceptr, size_t, const AccessDesc *, size_t);
    int (*cuMemUnmap)(CUdeviceptr, size_t);
    int (*cuMemRelease)(unsigned long long);
    int (*cuMemAddressFree)(CUdeviceptr, size_t);
} cu;

static void skip(const char *why)
{
    printf("SKIPPED %s\n", why);
    exit(0);
}

static void load(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver)
        skip("there is no CUDA driver");
#define LOAD(name) TRUE(*(void **)&cu.name = dlsym(driver, #name))
    LOAD(cuInit);
    LOAD(cuDeviceGetCount);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxCreate_v2);
    LOAD(cuCtxDestroy_v2);
    LOAD(cuMemAlloc_v2);
    LOAD(cuMemFree_v2);
    LOAD(cuMemcpyDtoH_v2);
    LOAD(cuMemcpyHtoD_v2);
    LOAD(cuCtxSynchronize);
    LOAD(cuMemGetAllocationGranularity);
    LOAD(cuMemCreate);
    LOAD(cuMemAddressReserve);
    LOAD(cuMemMap);
    LOAD(cuMemSetAccess);
    LOAD(cuMemUnmap);
    LOAD(cuMemRelease);
    LOAD(cuMemAddressFree);
#undef LOAD
}

/* Allocates at least `size` bytes of GPU 0 in a separate address range. */
static CUdeviceptr create(size_t *size, int exportable)
{
    AllocationProp prop;
    AccessDesc access;
    size_t granularity;
    unsigned long long handle;
    CUdeviceptr at = 0;
    memset(&prop, 0, sizeof(prop));
    prop.type = PINNED;
    prop.location.type = ON_DEVICE;
    prop.handle_types = exportable ? AS_FILE : 0;
    prop.flags.rdma_capable = 1;
    DONE(cu.cuMemGetAllocationGranularity(&granularity, &prop, 0));
    *size = (*size + granularity - 1) / granularity * granularity;
    DONE(cu.cuMemCreate(&handle, *size, &prop, 0));
    DONE(cu.cuMemAddressReserve(&at, *size, 0, 0, 0));
    DONE(cu.cuMemMap(at, *size, 0, handle, 0));
    DONE(cu.cuMemRelease(handle));
    access.location = prop.location;
    access.flags = READ_WRITE;
    DONE(cu.cuMemSetAccess(at, *size, &access, 1));
    return at;
}

static void destroy(CUdeviceptr at, size_t size)
{
    DONE(cu.cuMemUnmap(at, size));
    DONE(cu.cuMemAddressFree(at, size));
}

#define BYTES (3 * GPU_PAGE_SIZE + 77)
static unsigned char source[BYTES + 16], seen[BYTES + 16];

static void fill(unsigned seed)
{
    size_t i;
    for (i = 0; i < sizeof(source); i++)
        source[i] = (unsigned char)((i + seed) * 2654435761u >> 11);
}

/* Copies through a mapping, and compares with CUDA's view. */
static void both_ways(gdr_t g, CUdeviceptr memory, size_t pinned)
{
    static const size_t offsets[] = { 0, 1, 3, 8, 63, 64, 4095, 65536 };
    gdr_mh_t mh;
    gdr_info_t info;
    void *at;
    size_t i;
    int freed = -1;
    DONE(gdr_pin_buffer(g, memory, pinned, 0, 0, &mh));
    DONE(gdr_get_info(g, mh, &info));
    EQUAL(info.va, memory);
    TRUE(info.mapped_size >= pinned && info.mapped_size % info.page_size == 0);
    EQUAL(info.mapped, 0);
    DONE(gdr_map(g, mh, &at, pinned));
    DONE(gdr_get_info(g, mh, &info));
    TRUE(info.mapped && info.mapping_type != GDR_MAPPING_TYPE_NONE);
    unsigned char *map = (unsigned char *)at;
    for (i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        size_t offset = offsets[i], size = pinned - offset < BYTES ? pinned - offset : BYTES;
        fill((unsigned)i);
        DONE(gdr_copy_to_mapping(mh, map + offset, source + i % 5, size));
        DONE(cu.cuMemcpyDtoH_v2(seen, memory + offset, size));
        DONE(memcmp(seen, source + i % 5, size));
        fill((unsigned)i + 100);
        DONE(cu.cuMemcpyHtoD_v2(memory + offset, source, size));
        /* The copy returns when pageable bytes are staged, perhaps before they are in the GPU's memory. */
        DONE(cu.cuCtxSynchronize());
        memset(seen, 0, sizeof(seen));
        DONE(gdr_copy_from_mapping(mh, seen + i % 3, map + offset, size));
        DONE(memcmp(seen + i % 3, source, size));
        EQUAL(seen[i % 3 + size], 0);
    }
    /* Writes through the pointer; the copy after it flushes the bytes. */
    *(volatile unsigned *)map = 0x12345678;
    DONE(gdr_copy_to_mapping(mh, map + 4, "x", 1));
    DONE(cu.cuMemcpyDtoH_v2(seen, memory, 8));
    EQUAL(*(unsigned *)(void *)seen, 0x12345678);
    EQUAL(*(volatile unsigned *)map, 0x12345678);
    DONE(gdr_get_callback_flag(g, mh, &freed));
    EQUAL(freed, 0);
    DONE(gdr_unmap(g, mh, at, pinned));
    /* And again. */
    DONE(gdr_map(g, mh, &at, GPU_PAGE_SIZE));
    DONE(gdr_copy_from_mapping(mh, seen, at, 4));
    EQUAL(*(unsigned *)(void *)seen, 0x12345678);
    DONE(gdr_unmap(g, mh, at, GPU_PAGE_SIZE));
    DONE(gdr_unpin_buffer(g, mh));
    EQUAL(gdr_unpin_buffer(g, mh), EINVAL);
}

struct pinner {
    gdr_t g;
    CUdeviceptr memory;
};

/* A thread without a current context. */
static void *pin_elsewhere(void *argument)
{
    struct pinner *pinner = (struct pinner *)argument;
    gdr_mh_t mh;
    void *at;
    DONE(gdr_pin_buffer(pinner->g, pinner->memory, GPU_PAGE_SIZE, 0, 0, &mh));
    DONE(gdr_map(pinner->g, mh, &at, GPU_PAGE_SIZE));
    DONE(gdr_copy_to_mapping(mh, at, "elsewhere", 9));
    DONE(gdr_unpin_buffer(pinner->g, mh));
    return NULL;
}

static void child_has_none(gdr_t g, gdr_mh_t mh, void *at)
{
    int status;
    pid_t child = fork();
    TRUE(child >= 0);
    if (child == 0) {
        char byte = 1;
        signal(SIGSEGV, SIG_DFL);
        EQUAL(gdr_copy_to_mapping(mh, at, &byte, 1), EINVAL);
        EQUAL(gdr_unpin_buffer(g, mh), EINVAL);
        *(volatile char *)at = 1;
        _exit(4);
    }
    EQUAL(waitpid(child, &status, 0), child);
    TRUE(WIFSIGNALED(status));
    EQUAL(WTERMSIG(status), SIGSEGV);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void figures(gdr_mh_t mh, void *at)
{
    enum { TIMES = 100000 };
    int i;
    double start = now();
    for (i = 0; i < TIMES; i++)
        DONE(gdr_copy_to_mapping(mh, at, source, 8));
    double stored = now();
    for (i = 0; i < TIMES / 10; i++)
        DONE(gdr_copy_from_mapping(mh, seen, at, 8));
    double loaded = now();
    printf("8 bytes: gdr_copy_to_mapping %.0f ns, gdr_copy_from_mapping %.0f ns\n", (stored - start) / TIMES,
           (loaded - stored) / (TIMES / 10));
}

int main(void)
{
    int count = 0, dma_buf = 0, persistent = 0, major, minor;
    void *primary, *own, *at;
    gdr_mh_t mh = { 0 };
    load();
    if (cu.cuInit(0) || cu.cuDeviceGetCount(&count) || count == 0)
        skip("there is no GPU");
    gdr_t g = gdr_open();
    if (!g)
        skip("nothing here maps GPU memory for the CPU");
    DONE(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &dma_buf));
    DONE(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &persistent));
    DONE(gdr_driver_get_version(g, &major, &minor));
    int any_memory = dma_buf || access("/dev/gdrdrv", R_OK | W_OK) == 0;
    const char *named = getenv("GDSYNC_MAPPING");
    if (named && strcmp(named, "nvrm") == 0)
        any_memory = 0;
    DONE(cu.cuDevicePrimaryCtxRetain(&primary, 0));
    DONE(cu.cuCtxSetCurrent(primary));

    /* Exportable memory, which every backend maps. */
    size_t size = 5 << 20;
    CUdeviceptr memory = create(&size, 1);
    both_ways(g, memory, size);
    both_ways(g, memory + 7 * GPU_PAGE_SIZE, 2 * GPU_PAGE_SIZE);

    /* Memory that does not begin at a page is pinned, but not mapped. */
    DONE(gdr_pin_buffer(g, memory + 512, 8, 0, 0, &mh));
    EQUAL(gdr_map(g, mh, &at, 8), EINVAL);
    DONE(gdr_unpin_buffer(g, mh));

    /* Memory that is not a GPU's. */
    EQUAL(gdr_pin_buffer(g, (unsigned long)(uintptr_t)source & GPU_PAGE_MASK, GPU_PAGE_SIZE, 0, 0, &mh), EINVAL);

    /* Without a context, and with a destroyed one. */
    struct pinner pinner = { g, memory };
    pthread_t thread;
    DONE(pthread_create(&thread, NULL, pin_elsewhere, &pinner));
    DONE(pthread_join(thread, NULL));
    DONE(cu.cuMemcpyDtoH_v2(seen, memory, 9));
    DONE(memcmp(seen, "elsewhere", 9));
    DONE(cu.cuCtxCreate_v2(&own, 0, 0));
    both_ways(g, memory, size);
    DONE(cu.cuCtxDestroy_v2(own));
    DONE(cu.cuCtxSetCurrent(primary));
    both_ways(g, memory, size);

    /* Child processes; and memory that CUDA frees first. */
    DONE(gdr_pin_buffer(g, memory, size, 0, 0, &mh));
    DONE(gdr_map(g, mh, &at, size));
    child_has_none(g, mh, at);
    figures(mh, at);
    DONE(gdr_copy_to_mapping(mh, at, "kept", 4));
    destroy(memory, size);
    if (persistent) {
        DONE(gdr_copy_from_mapping(mh, seen, at, 4));
        DONE(memcmp(seen, "kept", 4));
    }
    DONE(gdr_unmap(g, mh, at, size));
    DONE(gdr_unpin_buffer(g, mh));

    /* Other kinds of memory are mapped, or refused without harm to the program. */
    CUdeviceptr ordinary, aligned;
    DONE(cu.cuMemAlloc_v2(&ordinary, 8 * GPU_PAGE_SIZE));
    aligned = (ordinary + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK;
    size = 2 << 20;
    memory = create(&size, 0);
    if (any_memory) {
        both_ways(g, aligned, 4 * GPU_PAGE_SIZE);
        both_ways(g, memory, size);
    } else {
        EQUAL(gdr_pin_buffer(g, aligned, 4 * GPU_PAGE_SIZE, 0, 0, &mh), ENOTSUP);
        EQUAL(gdr_pin_buffer(g, memory, size, 0, 0, &mh), ENOTSUP);
    }
    DONE(cu.cuMemFree_v2(ordinary));
    destroy(memory, size);
    DONE(gdr_close(g));
    printf("%s memory, version %d.%d: passed\n", any_memory ? "any" : "exportable", major, minor);
    return 0;
}
