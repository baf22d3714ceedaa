// Who calls together: a thread for itself, threads of a warp, or a block.
#ifndef GDSYNC_DEVICE_GROUP_CUH
#define GDSYNC_DEVICE_GROUP_CUH

#include "queue.cuh"

namespace gdsync {

// How many threads make a call together. On the host every thread is for itself.
enum class scope {
    // The calling thread.
    thread,
    // The threads of a warp that happen to make the call at the same time: any of them may be missing. Those that come apart make
    // several groups, which is slower and no mistake.
    warp,
    // All threads of a block: every one of them makes the call.
    block,
};

namespace detail {

// The last one leads: its request is the last of the call, whose first bytes ring the card. A thread for itself leads itself.
template <scope S> class Group {
  public:
    GDSYNC_DEVICE u32 rank() const { return 0; }
    GDSYNC_DEVICE u32 size() const { return 1; }
    GDSYNC_DEVICE bool leads() const { return true; }
    GDSYNC_DEVICE bool any(bool value) const { return value; }
    GDSYNC_DEVICE void sync() const {}
    GDSYNC_DEVICE void share(status &, u64 &) const {}
    GDSYNC_DEVICE void share(status &) const {}
};

// GDSYNC_DEVICE_GROUPS: a test of the host brings the functions of CUDA that are called here, and `lanes_before`.
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

    // Gives everybody what the leader has.
    GDSYNC_DEVICE void share(status &result, u64 &value) const {
        const int leader = 31 - __clz((int)mask_);
        result = (status)__shfl_sync(mask_, (int)result, leader);
        value = __shfl_sync(mask_, value, leader);
    }

    GDSYNC_DEVICE void share(status &result) const { result = (status)__shfl_sync(mask_, (int)result, 31 - __clz((int)mask_)); }

  private:
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

    GDSYNC_DEVICE void share(status &result, u64 &value) const {
        __shared__ int shared_result;
        __shared__ u64 shared_value;
        if (leads()) {
            shared_result = (int)result;
            shared_value = value;
        }
        __syncthreads();
        result = (status)shared_result;
        value = shared_value;
        // Nobody writes the next one's before everybody has read this one's.
        __syncthreads();
    }

    GDSYNC_DEVICE void share(status &result) const {
        u64 none = 0;
        share(result, none);
    }
};

#endif

} // namespace detail
} // namespace gdsync

#endif
