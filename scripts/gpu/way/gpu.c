/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The GPU's part: the kernel of a step, and the CUDA driver and NVRTC, which are loaded at run time.
 */
#define _GNU_SOURCE
#include "way.h"

#include <dlfcn.h>
#include <stdlib.h>

/* Each word depends on its step, its place and both ranks, so that a block that is missing, late or another's is wrong. Begin and end are those
 * of the first and the last of the kernel's blocks. */
static const char KERNEL[] =
    "typedef unsigned long long u64;\n"
    "__device__ u64 now() { u64 at; asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(at) :: \"memory\"); return at; }\n"
    "__device__ unsigned value(int from, int to, int step, unsigned at) {\n"
    "    unsigned mixed = (at * 64 + from) * 64 + to;\n"
    "    mixed = (mixed ^ (step + 1) * 2654435761u) * 2246822519u;\n"
    "    return mixed ^ mixed >> 15;\n"
    "}\n"
    "extern \"C\" __global__ void step(unsigned *out, const volatile unsigned *in, unsigned words, int rank, int ranks, int checked, int filled,\n"
    "                                  u64 work, u64 *begin, u64 *end, unsigned *wrong) {\n"
    "    u64 start = now();\n"
    "    unsigned first = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x, bad = 0;\n"
    "    if (threadIdx.x == 0) atomicMin(begin, start);\n"
    "    for (int peer = 0; peer < ranks; peer++)\n"
    "        for (unsigned at = first; checked >= 0 && peer != rank && at < words; at += all)\n"
    "            bad += in[((u64)(checked & 1) * ranks + peer) * words + at] != value(peer, rank, checked, at);\n"
    "    if (bad) atomicAdd(wrong, bad);\n"
    "    while (now() - start < work) {}\n"
    "    for (int peer = 0; peer < ranks; peer++)\n"
    "        for (unsigned at = first; filled >= 0 && peer != rank && at < words; at += all)\n"
    "            out[((u64)(filled & 1) * ranks + peer) * words + at] = value(rank, peer, filled, at);\n"
    "    __syncthreads();\n"
    "    if (threadIdx.x == 0) atomicMax(end, now());\n"
    "}\n";

typedef unsigned long long device_pointer;

/* The driver's CUlaunchConfig. */
struct launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};

enum { THREADS = 256, MOST_BLOCKS = 32, PORTABLE = 1, NON_BLOCKING = 1, BLOCKING_SYNC = 1, DISABLE_TIMING = 2 };

#define DRIVER(X)                                                                                                                            \
    X(cuInit, (unsigned)) X(cuDeviceGetCount, (int *)) X(cuDeviceGet, (int *, int)) X(cuDevicePrimaryCtxRetain, (void **, int))              \
    X(cuCtxSetCurrent, (void *)) X(cuCtxSynchronize, (void)) X(cuStreamCreate, (void **, unsigned)) X(cuStreamSynchronize, (void *))         \
    X(cuEventCreate, (void **, unsigned)) X(cuEventRecord, (void *, void *)) X(cuEventSynchronize, (void *))                                 \
    X(cuMemAlloc_v2, (device_pointer *, size_t)) X(cuMemHostAlloc, (void **, size_t, unsigned))                                              \
    X(cuMemsetD8_v2, (device_pointer, unsigned char, size_t)) X(cuMemcpyDtoH_v2, (void *, device_pointer, size_t))                           \
    X(cuModuleLoadData, (void **, const void *)) X(cuModuleGetFunction, (void **, void *, const char *))                                     \
    X(cuLaunchKernelEx, (const struct launch *, void *, void **, void **))
#define NVRTC(X)                                                                                                                             \
    X(nvrtcCreateProgram, (void **, const char *, const char *, int, void *, void *)) X(nvrtcCompileProgram, (void *, int, void *))          \
    X(nvrtcGetPTXSize, (void *, size_t *)) X(nvrtcGetPTX, (void *, char *))
#define X(name, arguments) static int(*name) arguments;
DRIVER(X)
NVRTC(X)
#undef X

static void *kernel, *marks[2];
static int marked;
static size_t launched, most;
static device_pointer begins, ends, wrong;

static void *library(const char *const names[]) {
    void *found = NULL;
    for (int i = 0; !found && names[i]; i++) {
        found = dlopen(names[i], RTLD_NOW);
    }
    if (!found) {
        fail(names[0], dlerror());
    }
    return found;
}

static void load(void *from, const char *name, void *function) {
    if (!(*(void **)function = dlsym(from, name))) {
        fail(name, dlerror());
    }
}

static char *compile(void) {
    void *nvrtc = library((const char *const[]){"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", NULL}), *program;
    size_t size;
    char *ptx;
#define X(name, arguments) load(nvrtc, #name, &name);
    NVRTC(X)
#undef X
    OK(nvrtcCreateProgram(&program, KERNEL, "step.cu", 0, NULL, NULL));
    OK(nvrtcCompileProgram(program, 0, NULL));
    OK(nvrtcGetPTXSize(program, &size));
    ptx = malloc(size);
    OK(nvrtcGetPTX(program, ptx));
    return ptx;
}

void gpu_begin(struct job *job, size_t kernels) {
    void *driver = library((const char *const[]){"libcuda.so.1", NULL}), *context, *module;
    char *ptx = compile();
    int count, device;
#define X(name, arguments) load(driver, #name, &name);
    DRIVER(X)
#undef X
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    job->gpu = job->rank % count;
    OK(cuDeviceGet(&device, job->gpu));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&job->stream, NON_BLOCKING));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&kernel, module, "step"));
    free(ptx);
    for (int i = 0; i < 2; i++) {
        OK(cuEventCreate(&marks[i], BLOCKING_SYNC | DISABLE_TIMING));
    }
    most = kernels;
    OK(cuMemAlloc_v2(&begins, 8 * most));
    OK(cuMemAlloc_v2(&ends, 8 * most));
    OK(cuMemAlloc_v2(&wrong, 4));
    OK(cuMemsetD8_v2(begins, 0xff, 8 * most));
    OK(cuMemsetD8_v2(ends, 0, 8 * most));
    OK(cuMemsetD8_v2(wrong, 0, 4));
    OK(cuCtxSynchronize());
}

void gpu_launch(const struct job *job, int checked, int filled, uint64_t work_ns) {
    unsigned words = (unsigned)(job->size / 4), blocks = (words + THREADS - 1) / THREADS;
    struct launch launch = {{blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS, 1, 1}, {THREADS, 1, 1}, 0, job->stream, NULL, 0};
    device_pointer out = (uintptr_t)job->out, in = (uintptr_t)job->in, begin = begins + 8 * launched, end = ends + 8 * launched;
    int rank = job->rank, ranks = job->ranks;
    void *arguments[] = {&out, &in, &words, &rank, &ranks, &checked, &filled, &work_ns, &begin, &end, &wrong};
    if (launched++ == most) {
        fail("gpu_launch", "more kernels than were announced");
    }
    OK(cuLaunchKernelEx(&launch, kernel, arguments, NULL));
}

void gpu_mark(const struct job *job) {
    OK(cuEventRecord(marks[marked & 1], job->stream));
    if (marked++ > 0) {
        OK(cuEventSynchronize(marks[marked & 1]));
    }
}

void gpu_finish(const struct job *job) {
    OK(cuEventRecord(marks[0], job->stream));
    OK(cuEventSynchronize(marks[0]));
    marked = 0;
}

void synchronize(const struct job *job) { OK(cuStreamSynchronize(job->stream)); }

void allocate(struct job *job) {
    device_pointer memory;
    void *pinned;
    if (job->on_gpu) {
        OK(cuMemAlloc_v2(&memory, 2 * half(job)));
        job->out = (uint8_t *)(uintptr_t)memory;
    } else {
        OK(cuMemHostAlloc(&pinned, 2 * half(job), PORTABLE));
        job->out = pinned;
    }
    job->in = job->out + half(job);
}

unsigned gpu_wrong(void) {
    unsigned count;
    OK(cuMemcpyDtoH_v2(&count, wrong, 4));
    return count;
}

size_t gpu_times(size_t first, double *idle_ns, double *busy_ns) {
    uint64_t *begin = malloc(8 * launched), *end = malloc(8 * launched);
    OK(cuMemcpyDtoH_v2(begin, begins, 8 * launched));
    OK(cuMemcpyDtoH_v2(end, ends, 8 * launched));
    *idle_ns = *busy_ns = 0;
    for (size_t i = first; i < launched; i++) {
        if (end[i] == 0) {
            fail("gpu_times", "a kernel has not run");
        }
        *busy_ns += (double)(end[i] - begin[i]);
        *idle_ns += i > first ? (double)(int64_t)(begin[i] - end[i - 1]) : 0;
    }
    free(begin);
    free(end);
    return launched - first;
}
