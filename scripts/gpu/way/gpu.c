/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
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

static int (*cu_init)(unsigned), (*cu_device_count)(int *), (*cu_device_get)(int *, int), (*cu_context_retain)(void **, int);
static int (*cu_context_set)(void *), (*cu_context_synchronize)(void), (*cu_stream_create)(void **, unsigned), (*cu_stream_synchronize)(void *);
static int (*cu_event_create)(void **, unsigned), (*cu_event_record)(void *, void *), (*cu_event_synchronize)(void *);
static int (*cu_mem_alloc)(device_pointer *, size_t), (*cu_host_alloc)(void **, size_t, unsigned), (*cu_fill)(device_pointer, unsigned char, size_t);
static int (*cu_copy_to_host)(void *, device_pointer, size_t), (*cu_module_load)(void **, const void *);
static int (*cu_module_function)(void **, void *, const char *), (*cu_launch)(const struct launch *, void *, void **, void **);
static int (*nvrtc_create)(void **, const char *, const char *, int, void *, void *), (*nvrtc_compile)(void *, int, void *);
static int (*nvrtc_ptx_size)(void *, size_t *), (*nvrtc_ptx)(void *, char *);

static void *kernel, *marks[2];
static int marked;
static size_t launched, most;
static device_pointer begins, ends, wrong;

static void load(void *library, const char *name, void *function) {
    if (!library || !(*(void **)function = dlsym(library, name))) {
        fail(name, dlerror());
    }
}

static char *compile(void) {
    const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    void *library = NULL, *program;
    size_t size;
    char *ptx;
    for (size_t i = 0; !library && i < sizeof(names) / sizeof(*names); i++) {
        library = dlopen(names[i], RTLD_NOW);
    }
    load(library, "nvrtcCreateProgram", &nvrtc_create);
    load(library, "nvrtcCompileProgram", &nvrtc_compile);
    load(library, "nvrtcGetPTXSize", &nvrtc_ptx_size);
    load(library, "nvrtcGetPTX", &nvrtc_ptx);
    OK(nvrtc_create(&program, KERNEL, "step.cu", 0, NULL, NULL));
    OK(nvrtc_compile(program, 0, NULL));
    OK(nvrtc_ptx_size(program, &size));
    ptx = malloc(size);
    OK(nvrtc_ptx(program, ptx));
    return ptx;
}

void gpu_begin(struct job *job, size_t kernels) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module;
    char *ptx = compile();
    int count, device;
    load(library, "cuInit", &cu_init);
    load(library, "cuDeviceGetCount", &cu_device_count);
    load(library, "cuDeviceGet", &cu_device_get);
    load(library, "cuDevicePrimaryCtxRetain", &cu_context_retain);
    load(library, "cuCtxSetCurrent", &cu_context_set);
    load(library, "cuCtxSynchronize", &cu_context_synchronize);
    load(library, "cuStreamCreate", &cu_stream_create);
    load(library, "cuStreamSynchronize", &cu_stream_synchronize);
    load(library, "cuEventCreate", &cu_event_create);
    load(library, "cuEventRecord", &cu_event_record);
    load(library, "cuEventSynchronize", &cu_event_synchronize);
    load(library, "cuMemAlloc_v2", &cu_mem_alloc);
    load(library, "cuMemHostAlloc", &cu_host_alloc);
    load(library, "cuMemsetD8_v2", &cu_fill);
    load(library, "cuMemcpyDtoH_v2", &cu_copy_to_host);
    load(library, "cuModuleLoadData", &cu_module_load);
    load(library, "cuModuleGetFunction", &cu_module_function);
    load(library, "cuLaunchKernelEx", &cu_launch);
    OK(cu_init(0));
    OK(cu_device_count(&count));
    job->gpu = job->rank % count;
    OK(cu_device_get(&device, job->gpu));
    OK(cu_context_retain(&context, device));
    OK(cu_context_set(context));
    OK(cu_stream_create(&job->stream, NON_BLOCKING));
    OK(cu_module_load(&module, ptx));
    OK(cu_module_function(&kernel, module, "step"));
    free(ptx);
    for (int i = 0; i < 2; i++) {
        OK(cu_event_create(&marks[i], BLOCKING_SYNC | DISABLE_TIMING));
    }
    most = kernels;
    OK(cu_mem_alloc(&begins, 8 * most));
    OK(cu_mem_alloc(&ends, 8 * most));
    OK(cu_mem_alloc(&wrong, 4));
    OK(cu_fill(begins, 0xff, 8 * most));
    OK(cu_fill(ends, 0, 8 * most));
    OK(cu_fill(wrong, 0, 4));
    OK(cu_context_synchronize());
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
    OK(cu_launch(&launch, kernel, arguments, NULL));
}

void gpu_mark(const struct job *job) {
    OK(cu_event_record(marks[marked & 1], job->stream));
    if (marked++ > 0) {
        OK(cu_event_synchronize(marks[marked & 1]));
    }
}

void gpu_finish(const struct job *job) {
    OK(cu_event_record(marks[0], job->stream));
    OK(cu_event_synchronize(marks[0]));
    marked = 0;
}

void synchronize(struct job *job) { OK(cu_stream_synchronize(job->stream)); }

void allocate(struct job *job) {
    device_pointer memory;
    void *pinned;
    if (job->on_gpu) {
        OK(cu_mem_alloc(&memory, 2 * half(job)));
        job->out = (uint8_t *)(uintptr_t)memory;
    } else {
        OK(cu_host_alloc(&pinned, 2 * half(job), PORTABLE));
        job->out = pinned;
    }
    job->in = job->out + half(job);
}

unsigned gpu_wrong(void) {
    unsigned count;
    OK(cu_copy_to_host(&count, wrong, 4));
    return count;
}

size_t gpu_times(size_t first, double *idle_ns, double *busy_ns) {
    uint64_t *begin = malloc(8 * launched), *end = malloc(8 * launched);
    OK(cu_copy_to_host(begin, begins, 8 * launched));
    OK(cu_copy_to_host(end, ends, 8 * launched));
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
