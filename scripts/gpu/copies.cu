// The time of two consecutive copies by the driver, out of GPU memory and into it, through host memory: the minimum for a message
// between two processes on one GPU. Prints GB of payload per second.
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <chrono>
#include <algorithm>
#include <vector>

static void check(CUresult result, const char *call) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s failed: %d\n", call, (int)result);
        exit(1);
    }
}
#define CALL(call) check(call, #call)

int main() {
    CUdevice device;
    CUcontext context;
    CALL(cuInit(0));
    CALL(cuDeviceGet(&device, 0));
    CALL(cuDevicePrimaryCtxRetain(&context, device));
    CALL(cuCtxSetCurrent(context));
    const size_t largest = 64 << 20;
    CUdeviceptr from, to;
    CALL(cuMemAlloc(&from, largest));
    CALL(cuMemAlloc(&to, largest));
    void *pinned, *pageable = aligned_alloc(4096, largest);
    CALL(cuMemHostAlloc(&pinned, largest, 0));
    std::fill((char *)pageable, (char *)pageable + largest, 1);
    printf("BYTES       PINNED GB/s  PAGEABLE GB/s\n");
    for (size_t bytes : {size_t(64) << 10, size_t(1) << 20, size_t(16) << 20, largest}) {
        double rates[2];
        for (int kind = 0; kind < 2; kind++) {
            void *host = kind ? pageable : pinned;
            std::vector<double> times;
            for (int round = 0; round < 60; round++) {
                auto start = std::chrono::steady_clock::now();
                CALL(cuMemcpyDtoH(host, from, bytes));
                CALL(cuMemcpyHtoD(to, host, bytes));
                CALL(cuCtxSynchronize());
                times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
            }
            std::sort(times.begin(), times.end());
            rates[kind] = bytes / times[times.size() / 2] / 1e9;
        }
        printf("%-10zu  %11.2f  %13.2f\n", bytes, rates[0], rates[1]);
    }
    return 0;
}
