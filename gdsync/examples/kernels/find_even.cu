// Threads search for even numbers, and send each one. One source for threads of a GPU and of the CPU.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

static const u64 LONG = 20000000000ull;

// As `Task` of find_even.rs.
struct task {
    const u64 *numbers;
    u64 count;
    // Words that the threads share: results found, threads that are done, and the status and the queue pair's error of the first
    // failed call.
    u64 *shared;
    // Memory of the receiver: a slot of 8 bytes for each result, and a word with their number plus one.
    u64 slots;
    u64 signal;
    u32 rkey;
    u32 unused;
};

// Adds to a local word, ordered with everything around it.
GDSYNC_DEVICE u64 add(u64 *word, u64 value) {
#if defined(__CUDACC__)
    __threadfence();
    const u64 before = atomicAdd(word, value);
    __threadfence();
    return before;
#else
    return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
#endif
}

GDSYNC_DEVICE void tell(const gdsync_device_qp &qp, const task &work, status result) {
    // The first failure stays.
    if (result != status::ok && detail::exchange_relaxed_gpu(&work.shared[2], 0, (u64)result)) {
        work.shared[3] = error(qp);
    }
}

GDSYNC_DEVICE void look(const gdsync_device_qp &qp, const task &work, u64 thread, u64 threads) {
    post_options patient;
    patient.timeout(LONG);
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 i = thread; i < work.count && result == status::ok; i += threads) {
        const u64 number = work.numbers[i];
        if (number % 2 == 0) {
            const u64 slot = add(&work.shared[0], 1);
            // All threads of the warp that have found a result post together.
            result = put_inline<scope::warp>(qp, {work.slots + 8 * slot, work.rkey}, &number, 8, patient);
        }
    }
    tell(qp, work, result);
    if (add(&work.shared[1], 1) + 1 == threads) {
        // The last thread: everything is posted, and a connection keeps its order.
        const u64 signal = add(&work.shared[0], 0) + 1;
        result = put_inline(qp, {work.signal, work.rkey}, &signal, 8, patient);
        tell(qp, work, result == status::ok ? quiet(qp, LONG) : result);
    }
}

#if defined(__CUDACC__)
extern "C" __global__ void find_even(gdsync_device_qp qp, task work) {
    look(qp, work, blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}
#else
extern "C" void find_even(const gdsync_device_qp *qp, const task *work, u64 thread, u64 threads) {
    look(*qp, *work, thread, threads);
}
#endif
