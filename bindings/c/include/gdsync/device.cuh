/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Semaphores for kernels: words that kernels release and wait for. C++ only. From C++11 on also the verbs for kernels; device_verbs.cuh has them
  * alone, for compilers without system headers.
 */
#ifndef GDSYNC_DEVICE_CUH
#define GDSYNC_DEVICE_CUH

#include <gdsync.h>

#ifdef __cplusplus

#include <assert.h>
#include <time.h>

#ifdef __CUDACC__
#define GDSYNC_BOTH __host__ __device__
#else
#define GDSYNC_BOTH
#endif

namespace gdsync {

// Cycles after which a wait times out: about 2.5 s at 1.7 GHz.
static const clock_t large_timeout = (clock_t)1 << 32;

enum {
    ERROR_TIMEOUT = 11, // EAGAIN
    ERROR_INVALID = 22  // EINVAL
};

typedef gds_wait_cond_flag_t wait_cond_t;

// A semaphore with its own word, and the value to store or to compare with.
struct sem32 {
    typedef uint32_t T;
    typedef int32_t Tsigned;
    T sem;
    T value;

    GDSYNC_BOTH inline volatile T *access_once() { return &sem; }
};
typedef struct sem32 sem32_t;

// A semaphore whose word is elsewhere.
struct isem32 {
    typedef uint32_t T;
    typedef int32_t Tsigned;
    T *ptr;
    T value;

    GDSYNC_BOTH isem32() : ptr(NULL), value(0) {}
    GDSYNC_BOTH inline volatile T *access_once() { return ptr; }
};
typedef struct isem32 isem32_t;

struct isem64 {
    typedef uint64_t T;
    typedef int64_t Tsigned;
    T *ptr;
    T value;

    GDSYNC_BOTH isem64() : ptr(NULL), value(0) {}
    GDSYNC_BOTH inline volatile T *access_once() { return ptr; }
};
typedef struct isem64 isem64_t;

#ifdef __CUDACC__

namespace device {

// Stores the value. The caller fences what has to be visible before.
template <typename S> __device__ inline void release(S &sem) {
    assert(sem.access_once() != NULL);
    *sem.access_once() = sem.value;
}

// The four conditions of gds_wait_cond_flag_t.
template <typename S> struct equal {
    static __device__ inline bool holds(typename S::T word, typename S::T value) { return word == value; }
};
template <typename S> struct geq {
    static __device__ inline bool holds(typename S::T word, typename S::T value) {
        return (typename S::Tsigned)(word - value) >= 0;
    }
};
template <typename S> struct common {
    static __device__ inline bool holds(typename S::T word, typename S::T value) { return (word & value) != 0; }
};
template <typename S> struct neither {
    static __device__ inline bool holds(typename S::T word, typename S::T value) { return (typename S::T) ~(word | value) != 0; }
};

// Waits until the condition holds. Returns 0 or ERROR_TIMEOUT. Uses clock64, as the 32 bits of clock wrap within the timeout.
template <typename C, typename S> __device__ inline int wait_until(S &sem) {
    const long long start = clock64();
    do {
        if (C::holds(*sem.access_once(), sem.value)) {
            return 0;
        }
        // Later reads must not be performed before this one.
        __threadfence_block();
    } while (clock64() - start < (long long)large_timeout);
    return ERROR_TIMEOUT;
}

template <typename S> __device__ inline int wait_eq(S &sem) { return wait_until<equal<S> >(sem); }
template <typename S> __device__ inline int wait_geq(S &sem) { return wait_until<geq<S> >(sem); }
template <typename S> __device__ inline int wait_and(S &sem) { return wait_until<common<S> >(sem); }
template <typename S> __device__ inline int wait_nor(S &sem) { return wait_until<neither<S> >(sem); }

// Waits for a condition that is known at run time.
template <typename S> __device__ inline int wait(S &sem, wait_cond_t cond) {
    switch (cond) {
    case GDS_WAIT_COND_EQ: return wait_eq(sem);
    case GDS_WAIT_COND_GEQ: return wait_geq(sem);
    case GDS_WAIT_COND_AND: return wait_and(sem);
    case GDS_WAIT_COND_NOR: return wait_nor(sem);
    default: return ERROR_INVALID;
    }
}

} // namespace device

#endif // __CUDACC__

} // namespace gdsync

#undef GDSYNC_BOTH

// GPUs before Volta only have the semaphores.
#if __cplusplus >= 201103L && !(defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700)
#include <gdsync/device_verbs.cuh>
#endif

#endif // __cplusplus

#endif
