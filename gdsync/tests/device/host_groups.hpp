// What CUDA has for warps and blocks, made of barriers, for threads of the host. Before the device header.
#pragma once

#define GDSYNC_DEVICE_GROUPS
#define __shared__ static

#include <pthread.h>

// A block of two warps, the second with fewer lanes.
static const unsigned LANES[2] = {16, 8}, IN_BLOCK = 24;

struct Dimensions {
    unsigned x, y, z;
};

static const Dimensions blockDim = {IN_BLOCK / 2, 2, 1};
static thread_local Dimensions threadIdx;
static thread_local unsigned lane, warp;
static pthread_barrier_t of_warp[2], of_block;
static unsigned long long slots[2][32], votes[IN_BLOCK];

static int __popc(unsigned value) { return __builtin_popcount(value); }
static int __clz(int value) { return __builtin_clz((unsigned)value); }
static unsigned __activemask() { return (1u << LANES[warp]) - 1; }
static void __syncwarp(unsigned) { pthread_barrier_wait(&of_warp[warp]); }
static void __syncthreads() { pthread_barrier_wait(&of_block); }

template <class Value> static Value __shfl_sync(unsigned mask, Value value, int from) {
    slots[warp][lane] = (unsigned long long)value;
    __syncwarp(mask);
    const Value found = (Value)slots[warp][from];
    __syncwarp(mask);
    return found;
}

static int __any_sync(unsigned mask, int value) {
    int any = 0;
    for (unsigned from = 0; from < LANES[warp]; from++) {
        any |= __shfl_sync(mask, value, (int)from);
    }
    return any;
}

static int __syncthreads_or(int value) {
    votes[threadIdx.y * blockDim.x + threadIdx.x] = (unsigned long long)value;
    __syncthreads();
    int any = 0;
    for (unsigned long long vote : votes) {
        any |= (int)vote;
    }
    __syncthreads();
    return any;
}

namespace gdsync {
namespace detail {
inline unsigned lanes_before() { return (1u << lane) - 1; }
} // namespace detail
} // namespace gdsync

// Before the first thread.
static void make_barriers() {
    for (unsigned i = 0; i < 2; i++) {
        pthread_barrier_init(&of_warp[i], nullptr, LANES[i]);
    }
    pthread_barrier_init(&of_block, nullptr, IN_BLOCK);
}

// Which thread of the block this one is.
static void become(unsigned thread) {
    threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
    warp = thread < LANES[0] ? 0 : 1;
    lane = thread - (warp == 0 ? 0 : LANES[0]);
}
