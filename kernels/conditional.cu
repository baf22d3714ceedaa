// The body of a graph's WHILE node, in which a kernel decides how often to send. A separate module, as it needs a driver of CUDA
// 12.4.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

// CUDA Runtime API, "Graph Management": the driver provides it when it loads the module.
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

// Sends the next message by its ticket, and decides by its content whether another round follows. `ticket` counts over all
// launches, up to `end`. Message n is in place n modulo `places` of `source`. With handle 0 it does nothing.
extern "C" __global__ void send_while(unsigned long long handle, gdsync_trigger trigger, u64 *ticket, const u64 *end, u64 *source, u64 places) {
    if (handle == 0) {
        return;
    }
    const u64 next = ++*ticket;
    const u64 content = next * 0x9e3779b97f4a7c15ull | 1;
    source[next % places] = content;
    release(trigger, next);
    // About one message in four is the last one of its launch.
    const bool is_last = content >> 62 == 0;
    cudaGraphSetConditional(handle, !is_last && next < *end);
}
