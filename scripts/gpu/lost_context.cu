// The driver's behaviour for one GPU after a kernel has crashed on another, in the same process: which calls still work.
// nvcc -o lost_context lost_context.cu -lcuda; needs two GPUs.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <sys/mman.h>

__global__ void crash() { *(volatile int *)8 = 1; }

static const char *name(CUresult result) {
    const char *text = "?";
    cuGetErrorName(result, &text);
    return text;
}

static void tell(const char *what, CUresult result) { printf("%-64s %s\n", what, name(result)); }

static void *page() { return mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

static void calls(const char *when) {
    printf("\n%s\n", when);
    const struct {
        const char *what;
        unsigned flags;
    } kinds[] = {{"register, no flags", 0}, {"register, device map", 2}, {"register, portable", 1}, {"register, portable and device map", 3}};
    for (auto kind : kinds) {
        void *pages = page();
        CUresult result = cuMemHostRegister(pages, 1 << 16, kind.flags);
        tell(kind.what, result);
        if (result == CUDA_SUCCESS) {
            CUdeviceptr at;
            tell("  its device pointer", cuMemHostGetDevicePointer(&at, pages, 0));
            tell("  unregister", cuMemHostUnregister(pages));
        }
    }
    void *host;
    for (unsigned flags : {0u, 1u, 2u, 3u}) {
        CUresult result = cuMemHostAlloc(&host, 4096, flags);
        printf("%-60s %3u %s\n", "allocate host memory, flags", flags, name(result));
        if (result == CUDA_SUCCESS) tell("  free it", cuMemFreeHost(host));
    }
    CUdeviceptr memory;
    CUresult result = cuMemAlloc(&memory, 4096);
    tell("allocate GPU memory", result);
    if (result == CUDA_SUCCESS) tell("  free it", cuMemFree(memory));
    CUstream stream;
    result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    tell("create a stream", result);
    if (result == CUDA_SUCCESS) {
        tell("  query it", cuStreamQuery(stream));
        tell("  destroy it", cuStreamDestroy(stream));
    }
    tell("query the legacy stream", cuStreamQuery(nullptr));
}

int main() {
    CUdevice devices[2];
    CUcontext contexts[2];
    int count = 0;
    cuInit(0);
    cuDeviceGetCount(&count);
    if (count < 2) {
        puts("SKIPPED: there is no second GPU");
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        cuDeviceGet(&devices[i], i);
        cuDevicePrimaryCtxRetain(&contexts[i], devices[i]);
    }
    cuCtxSetCurrent(contexts[0]);
    void *before = page();
    tell("registered before, portable and device map", cuMemHostRegister(before, 1 << 16, 3));
    calls("GPU 0, before");
    cuCtxSetCurrent(contexts[1]);
    crash<<<1, 1>>>();
    tell("GPU 1: synchronize behind the kernel", cuCtxSynchronize());
    cuCtxSetCurrent(contexts[0]);
    calls("GPU 0, after GPU 1's context is lost");
    CUdeviceptr at;
    tell("device pointer of what was registered before", cuMemHostGetDevicePointer(&at, before, 0));
    tell("unregister what was registered before", cuMemHostUnregister(before));
    calls("GPU 0, after that");
    tell("GPU 1: release its primary context", cuDevicePrimaryCtxReset(devices[1]));
    cuCtxSetCurrent(contexts[0]);
    calls("GPU 0, after GPU 1's context was reset");
    return 0;
}
