/* A CUDA driver without a GPU, for tests: a shared library that replaces libcuda.so.1. Its "GPU memory" is at addresses where
 * the CPU has no access; tests see the bytes elsewhere, at fake_bytes(). */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 1 << 22, PAGE = 4096, INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

static char *gpu, *bytes;
static size_t used;
static int context = 1, registered;

/* Allocates memory. Returns its address on the GPU. */
uint64_t fake_alloc(size_t size)
{
    if (!gpu) {
        gpu = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    used += size;
    return (uint64_t)(uintptr_t)(gpu + used - size);
}

/* Converts a GPU address to the place of its bytes for tests, and back. */
char *fake_bytes(uint64_t address) { return bytes + (address - (uintptr_t)gpu); }
uint64_t fake_address(const void *at) { return (uintptr_t)gpu + (size_t)((const char *)at - bytes); }

/* The flags of the last memory registration. */
int fake_registered(void) { return registered; }
/* Copies from and to pinned memory of the card. */
static struct { char *at; size_t size; } pinned;
static int direct[2];
int fake_direct(int out) { return __atomic_load_n(&direct[out], __ATOMIC_SEQ_CST); }
static void count(int out, const void *host, size_t size)
{
    const char *at = host;
    if (pinned.size && at >= pinned.at && at + size <= pinned.at + pinned.size)
        __atomic_fetch_add(&direct[out], 1, __ATOMIC_SEQ_CST);
}

static int is_gpu(uint64_t address, size_t size)
{
    uint64_t base = (uintptr_t)gpu;
    return gpu && address >= base && address + size <= base + used;
}

int cuPointerGetAttributes(unsigned count, const int *names, void **places, uint64_t at)
{
    for (unsigned i = 0; i < count; i++)
        switch (names[i]) {
        case 1: *(void **)places[i] = &context; break;
        case 2: *(unsigned *)places[i] = is_gpu(at, 1) ? 2 : 0; break;
        case 8: *(char *)places[i] = 0; break;
        case 9: *(int *)places[i] = 0; break;
        default: return INVALID_VALUE;
        }
    return 0;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t at)
{
    if (!is_gpu(at, 1))
        return INVALID_VALUE;
    *base = (uintptr_t)gpu;
    *size = used;
    return 0;
}

/* Too old for mappings of its memory, which would need more of the driver. */
int cuDriverGetVersion(int *version)
{
    *version = 11080;
    return 0;
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? INVALID_VALUE : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 124; return device ? INVALID_VALUE : 0; }
int cuCtxSetCurrent(void *it) { return it == &context ? 0 : INVALID_VALUE; }
int cuMemAlloc_v2(uint64_t *place, size_t size) { *place = fake_alloc(size); return 0; }
int cuMemHostGetDevicePointer_v2(uint64_t *place, void *at, unsigned flags) { *place = (uintptr_t)at; return flags ? INVALID_VALUE : 0; }

int cuStreamWriteValue64_v2(void *stream, uint64_t at, uint64_t value, unsigned flags)
{
    (void)stream;
    __atomic_store_n((uint64_t *)(uintptr_t)at, value, __ATOMIC_RELEASE);
    return flags ? INVALID_VALUE : 0;
}

int cuDevicePrimaryCtxRetain(void **place, int ordinal) { (void)ordinal; *place = &context; return 0; }
int cuCtxPushCurrent_v2(void *it) { return it == &context ? 0 : INVALID_VALUE; }
int cuCtxPopCurrent_v2(void **place) { *place = &context; return 0; }
int cuCtxGetId(void *it, uint64_t *id) { (void)it; *id = 1; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &context; return 0; }
int cuStreamSynchronize(void *stream) { (void)stream; return 0; }

int cuMemHostAlloc(void **place, size_t size, unsigned flags)
{
    (void)flags;
    *place = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *place == MAP_FAILED ? 2 : 0;
}

int cuMemcpyDtoHAsync_v2(void *into, uint64_t from, size_t size, void *stream)
{
    (void)stream;
    if (!is_gpu(from, size))
        return INVALID_VALUE;
    count(1, into, size);
    memcpy(into, fake_bytes(from), size);
    return 0;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream)
{
    (void)stream;
    if (!is_gpu(to, size))
        return INVALID_VALUE;
    count(0, from, size);
    memcpy(fake_bytes(to), from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *into, uint64_t from, size_t size) { return cuMemcpyDtoHAsync_v2(into, from, size, NULL); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return cuMemcpyHtoDAsync_v2(to, from, size, NULL); }

/* As in current drivers: a file that the CPU cannot map. Programs that look the function up get another address than that of the symbol. */
static int export_memory(void *handle, uint64_t address, size_t size, int kind, unsigned long long flags)
{
    int ends[2];
    if (kind != 1 || flags != 0 || !is_gpu(address, size) || address % PAGE || size % PAGE || pipe(ends) != 0)
        return INVALID_VALUE;
    close(ends[1]);
    *(int *)handle = ends[0];
    return 0;
}

int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int kind, unsigned long long flags)
{
    return export_memory(handle, address, size, kind, flags);
}

/* As in the driver: ordinary memory is not device memory (flag 4). */
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags)
{
    if (flags == 1) {
        pinned.at = at;
        pinned.size = size;
        return 0;
    }
    registered = (int)flags;
    return flags & 4 ? NOT_SUPPORTED : 0;
}

int cuMemHostUnregister(void *at) { return at == pinned.at ? 0 : INVALID_VALUE; }

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status);

int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, found, version, flags, NULL);
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
    (void)flags;
    if (status)
        *status = 0;
    if (!strcmp(symbol, "cuMemGetHandleForAddressRange"))
        *found = (void *)export_memory;
    else if (!strcmp(symbol, "cuMemHostRegister"))
        *found = (void *)cuMemHostRegister_v2;
    else if (!strcmp(symbol, "cuGetProcAddress"))
        *found = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    else
        return 500;
    return 0;
}
