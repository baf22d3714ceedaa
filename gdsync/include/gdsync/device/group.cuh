// The threads that make a call together: one thread, threads of a warp, or a block.
#ifndef GDSYNC_DEVICE_GROUP_CUH
#define GDSYNC_DEVICE_GROUP_CUH

#include "queue.cuh"

namespace gdsync {

// The group of threads that make a call together. On the host every thread calls alone.
enum class scope {
    // The calling thread.
    thread,
    // The threads of a warp that make the call at the same time: any of them may be missing. Diverged threads form several groups,
    // which is slower and correct. All name the same queue pair: calls to different ones are made at thread scope.
    warp,
    // All threads of a block: every one of them makes the call.
    block,
};

namespace detail {

// The last thread leads: its request is the last of the call, whose first bytes ring the card. A single thread leads itself.
template <scope S> class Group {
  public:
    GDSYNC_DEVICE u32 rank() const { return 0; }
    GDSYNC_DEVICE u32 size() const { return 1; }
    GDSYNC_DEVICE bool leads() const { return true; }
    GDSYNC_DEVICE bool any(bool value) const { return value; }
    GDSYNC_DEVICE void sync() const {}
    template <class How> GDSYNC_DEVICE void share(How &, u64 &) const {}
    template <class How> GDSYNC_DEVICE void share(How &) const {}
};

// GDSYNC_DEVICE_GROUPS: a test on the host provides the CUDA functions that are called here, and `lanes_before`.
#if defined(__CUDACC__) || defined(GDSYNC_DEVICE_GROUPS)

#if defined(__CUDACC__)
// The lanes of the warp with lower numbers than this thread's.
GDSYNC_DEVICE u32 lanes_before() {
    u32 lanes;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanes));
    return lanes;
}
#endif

template <> class Group<scope::warp> {
  public:
    GDSYNC_DEVICE Group() : mask_(__activemask()) {}

    GDSYNC_DEVICE u32 rank() const { return __popc(mask_ & lanes_before()); }
    GDSYNC_DEVICE u32 size() const { return __popc(mask_); }
    GDSYNC_DEVICE bool leads() const { return rank() + 1 == size(); }
    GDSYNC_DEVICE bool any(bool value) const { return __any_sync(mask_, value); }

    // Orders memory among the threads, too (CUDA C++ Programming Guide, `__syncwarp`).
    GDSYNC_DEVICE void sync() const { __syncwarp(mask_); }

    // Gives all threads the leader's values. Orders memory as `sync` does.
    //
    // While the leader waits in divergent code, other threads of the warp run, so threads of several groups may arrive here
    // converged. A compiler that does not know that uses one thread's mask for all of them before a shuffle, but not before
    // `__syncwarp`, which each thread calls with its mask: after it all threads of a group are together.
    template <class How> GDSYNC_DEVICE void share(How &how, u64 &value) const {
        share(how);
        value = __shfl_sync(mask_, value, leader());
    }

    template <class How> GDSYNC_DEVICE void share(How &how) const {
        __syncwarp(mask_);
        how = (How)__shfl_sync(mask_, (int)how, leader());
    }

  private:
    GDSYNC_DEVICE int leader() const { return 31 - __clz((int)mask_); }

    u32 mask_;
};

template <> class Group<scope::block> {
  public:
    GDSYNC_DEVICE u32 rank() const { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
    GDSYNC_DEVICE u32 size() const { return blockDim.x * blockDim.y * blockDim.z; }
    GDSYNC_DEVICE bool leads() const { return rank() + 1 == size(); }
    GDSYNC_DEVICE bool any(bool value) const { return __syncthreads_or(value); }

    // Orders memory among the threads, too.
    GDSYNC_DEVICE void sync() const { __syncthreads(); }

    template <class How> GDSYNC_DEVICE void share(How &how, u64 &value) const {
        __shared__ int shared_how;
        __shared__ u64 shared_value;
        if (leads()) {
            shared_how = (int)how;
            shared_value = value;
        }
        __syncthreads();
        how = (How)shared_how;
        value = shared_value;
        // The leader of the next call must not write before all threads have read.
        __syncthreads();
    }

    template <class How> GDSYNC_DEVICE void share(How &how) const {
        u64 none = 0;
        share(how, none);
    }
};

#endif

} // namespace detail
} // namespace gdsync

#endif
