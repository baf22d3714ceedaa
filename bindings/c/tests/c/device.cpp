// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Compiles device.cuh for the CPU, with substitutes for CUDA's declarations.
#define __CUDACC__ 1
// The verbs use GPU instructions; headers.cpp includes their CPU version.
#define GDSYNC_DEVICE_VERBS_CUH
#define __host__
#define __device__

static long long cycles;

// A clock that advances only when it is read, so timeouts are immediate.
static inline long long clock64() { return cycles += 1LL << 28; }
static inline void __threadfence_block() {}

#include <gdsync/device.cuh>

#include <cstdio>
#include <cstdlib>

static void check(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

template <typename S, typename T> static int waits(T word, T value, gdsync::wait_cond_t condition) {
    S sem;
    sem.ptr = &word;
    sem.value = value;
    return gdsync::device::wait(sem, condition);
}

int main() {
    using namespace gdsync;
    const uint32_t all = 0xffffffffu;

    check(waits<isem32_t>(5u, 5u, GDS_WAIT_COND_EQ) == 0, "equal");
    check(waits<isem32_t>(5u, 6u, GDS_WAIT_COND_EQ) == ERROR_TIMEOUT, "not equal");
    check(waits<isem32_t>(3u, all, GDS_WAIT_COND_GEQ) == 0, "after the turn of the counter");
    check(waits<isem32_t>(all, 3u, GDS_WAIT_COND_GEQ) == ERROR_TIMEOUT, "before it");
    check(waits<isem64_t>(UINT64_C(1) << 40, UINT64_C(7), GDS_WAIT_COND_GEQ) == 0, "64 bits");
    check(waits<isem32_t>(12u, 4u, GDS_WAIT_COND_AND) == 0, "a common bit");
    check(waits<isem32_t>(12u, 3u, GDS_WAIT_COND_AND) == ERROR_TIMEOUT, "none");
    check(waits<isem32_t>(all ^ 1u, all ^ 1u, GDS_WAIT_COND_NOR) == 0, "a bit of neither");
    check(waits<isem32_t>(1u, all ^ 1u, GDS_WAIT_COND_NOR) == ERROR_TIMEOUT, "none of neither");
    check(waits<isem32_t>(1u, 1u, (wait_cond_t)9) == ERROR_INVALID, "no condition");
    check(large_timeout == (clock_t)1 << 32, "the time-out");

    struct sem32 own = {0, 7};
    sem32_t *same = &own;
    device::release(*same);
    check(own.sem == 7 && device::wait_eq(own) == 0, "a word of its own");
    check(device::wait_geq(own) == 0 && device::wait_and(own) == 0 && device::wait_nor(own) == 0, "each by its name");
    struct isem32 there;
    struct isem64 long_one;
    uint32_t word = 0;
    there.ptr = &word;
    there.value = 9;
    device::release(there);
    check(word == 9 && long_one.ptr == NULL && long_one.value == 0, "a word elsewhere");
    std::puts("device ok");
    return 0;
}
