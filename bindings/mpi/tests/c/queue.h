/* Queues of the test programs of MPIS_*, with software or CUDA streams. */
#ifndef QUEUE_H
#define QUEUE_H

#include "common.h"

#include "stream-triggering.h"

#include <dlfcn.h>

/* True if GDSYNC_TEST_GPU is set: queues have CUDA streams. */
static int on_gpu __attribute__((unused));

/* Makes a queue with a software stream, or with a stream of the GPU that GDSYNC_TEST_GPU names. */
static inline __attribute__((unused)) void queue_init(MPIS_Queue *queue)
{
    const char *gpu = getenv("GDSYNC_TEST_GPU");
    static void *stream;
    void *driver, *context;
    int device;

    on_gpu = gpu != NULL;
    if (!on_gpu) {
        OK(MPIS_Queue_init(queue, THREAD, NULL));
        return;
    }
    CHECK(driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    CHECK(((int (*)(unsigned))dlsym(driver, "cuInit"))(0) == 0);
    CHECK(((int (*)(int *, int))dlsym(driver, "cuDeviceGet"))(&device, atoi(gpu)) == 0);
    CHECK(((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, device) == 0);
    CHECK(((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context) == 0);
    CHECK(((int (*)(void **, unsigned))dlsym(driver, "cuStreamCreate"))(&stream, 1 /* CU_STREAM_NON_BLOCKING */) == 0);
    OK(MPIS_Queue_init(queue, GPU_MEM_OPS, &stream));
}

#endif
