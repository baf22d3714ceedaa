// The platform: threads of a GPU (nvcc, NVRTC, clang), or of a host program, where the header is tested without a
// GPU. Uses no header of the C++ library, as NVRTC has none.
#ifndef GDSYNC_DEVICE_PLATFORM_CUH
#define GDSYNC_DEVICE_PLATFORM_CUH

#if defined(__CUDACC__)
#define GDSYNC_DEVICE __device__ __forceinline__
// For functions that are called from many places, outside the fast path of a post.
#define GDSYNC_DEVICE_RARE inline __device__ __noinline__
// Before a loop that is not to be unrolled.
#define GDSYNC_DEVICE_LOOP _Pragma("unroll 1")
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#error "gdsync's device header needs sm_70 or newer: scoped memory order, and threads of a warp that progress independently"
#endif
#else
#define GDSYNC_DEVICE inline
#define GDSYNC_DEVICE_RARE inline
#define GDSYNC_DEVICE_LOOP
#include <sched.h>
#include <time.h>
#endif

namespace gdsync {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "the widths that the card's formats have");

namespace detail {

// Nanoseconds of a monotonic clock.
GDSYNC_DEVICE u64 now_ns() {
#if defined(__CUDACC__)
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000ull + (u64)now.tv_nsec;
#endif
}

// Lets other threads run for some nanoseconds.
GDSYNC_DEVICE void relax(u32 nanoseconds) {
#if defined(__CUDACC__)
    __nanosleep(nanoseconds);
#else
    (void)nanoseconds;
    sched_yield();
#endif
}

// Measures how long a loop has waited. The first check reads the clock for the first time: a loop that does not wait does not pay
// for it.
//
// Each pause is a 16th of the time waited so far: the pauses add little to the wait, and long waits check rarely. If many threads
// of one warp checked all the time, they would keep the thread that they wait for from running, at least under a sanitizer.
class Waited {
  public:
    GDSYNC_DEVICE Waited() : start_(0), looked_again_(false) {}

    // Pauses a moment. Returns true once the time is over and the caller has checked again since: this thread may
    // itself have been suspended.
    GDSYNC_DEVICE bool longer_than(u64 nanoseconds) {
        const u64 now = now_ns();
        if (start_ == 0) {
            start_ = now;
        }
        const u64 waited = now - start_;
        if (waited >= nanoseconds) {
            const bool is_over = looked_again_ || nanoseconds == 0;
            looked_again_ = true;
            return is_over;
        }
        const u64 rest = waited / 16;
        relax(rest < SHORTEST_REST ? SHORTEST_REST : rest > LONGEST_REST ? LONGEST_REST : (u32)rest);
        return false;
    }

  private:
    // In nanoseconds.
    static const u32 SHORTEST_REST = 32, LONGEST_REST = 500;

    u64 start_;
    bool looked_again_;
};

GDSYNC_DEVICE u32 big_endian(u32 value) {
#if defined(__CUDACC__)
    return __byte_perm(value, 0, 0x0123);
#else
    return __builtin_bswap32(value);
#endif
}

GDSYNC_DEVICE u64 big_endian(u64 value) {
    return (u64)big_endian((u32)value) << 32 | big_endian((u32)(value >> 32));
}

} // namespace detail
} // namespace gdsync

#endif
