// Kernels that post, for `gdsync bench device` and the library's tests on a GPU.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

static const u64 LONG = 20000000000ull;

// The destination of a kernel's requests, and the place of its results: addresses that are the same for the card and the GPU.
struct places {
    u64 local;
    u64 remote;
    // Words that the kernel writes.
    u64 *results;
    u32 lkey;
    u32 rkey;
};

__device__ u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }

// The first words of the results: the number of failed calls, and the result of the last of them: the status in the highest byte,
// the error of the queue pair in the others.
__device__ void tell(const gdsync_device_qp &qp, const places &at, status result) {
    if (result != status::ok) {
        atomicAdd(&at.results[0], 1ull);
        at.results[1] = (u64)result << 56 | error(qp);
    }
}

// Every kind of request, by one thread, each waited for. Words at `remote`: 0 put, 1 put inline, 2 and 3 put with signal, 4 and 5
// put with an added signal, 6 read by get, 7 target of additions, 8 target of swaps. At `local`: 0 is the source, 1 to 4 are
// results.
extern "C" __global__ void operations(gdsync_device_qp qp, places at) {
    u64 inlined = 0x1122334455667788ull;
    const local_memory from = {at.local, at.lkey};
    GDSYNC_DEVICE_LOOP
    for (u32 step = 0; step < 7; step++) {
        // For each word of the remote side, the place of the step's result.
        const u32 word = step < 3 ? step : step == 3 ? 4 : step + 2;
        const remote_memory to = {at.remote + 8 * word, at.rkey}, behind = {to.address + 8, at.rkey};
        const local_memory place = {at.local + 8 * (step < 3 ? 0 : step - 2), at.lkey};
        status result = status::ok;
        switch (step) {
        case 0: result = put(qp, to, from, 8); break;
        case 1: result = put_inline(qp, to, &inlined, 8); break;
        case 2: result = put_signal(qp, to, from, 8, behind, 33); break;
        case 3: result = put_signal_add(qp, to, from, 8, behind, 55, place); break;
        case 4: result = get(qp, to, place, 8); break;
        case 5: result = fetch_add(qp, to, 5, place); break;
        default: result = compare_swap(qp, to, 8, 88, place); break;
        }
        tell(qp, at, result == status::ok ? quiet(qp, LONG) : result);
    }
    // The kernel sees its puts arrive, as the memory is the host's.
    at.results[2] = (u64)wait_signal((const u64 *)(at.remote + 24), 33, LONG);
    at.results[3] = crc32((const void *)at.local, 8);
}

// Every thread of the grid posts `count` words into its `slots` slots, every fifth with an addition after it to the word at
// `remote`; every third is not rung at once. Thread n uses queue n modulo `queues`.
extern "C" __global__ void storm(const gdsync_device_qp *qps, u32 queues, u64 count, u32 slots, places at) {
    const u32 thread = thread_of_grid();
    const gdsync_device_qp qp = qps[thread % queues];
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 i = 0; i < count && result == status::ok; i++) {
        u64 value = (u64)thread << 32 | i;
        post_options options;
        options.timeout(LONG);
        if (i % 3 == 0) {
            options.more();
        }
        result = put_inline(qp, {at.remote + 8 * (1 + thread * slots + i % slots), at.rkey}, &value, 8, options);
        if (result == status::ok && i % 5 == 0) {
            result = fetch_add(qp, {at.remote, at.rkey}, 1, {at.local + 8 * thread, at.lkey}, options);
        }
    }
    if (result == status::ok) {
        result = quiet(qp, LONG);
    }
    tell(qp, at, result);
}

template <scope S> __device__ status puts(const gdsync_device_qp &qp, u64 rounds, const places &at) {
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 i = 0; i < rounds && result == status::ok; i++) {
        u64 value = (u64)thread_of_grid() << 32 | i;
        post_options options;
        options.timeout(LONG);
        result = put_inline<S>(qp, {at.remote + 8 * thread_of_grid(), at.rkey}, &value, 8, options);
    }
    return result == status::ok ? quiet<S>(qp, LONG) : result;
}

// Every thread posts to a separate word, together with its warp (1) or its block (2).
extern "C" __global__ void together(gdsync_device_qp qp, u32 which, u64 rounds, places at) {
    tell(qp, at, which == 1 ? puts<scope::warp>(qp, rounds, at) : puts<scope::block>(qp, rounds, at));
}

// Writes the words at `local` (GPU memory, for the card as for the kernel), puts them, and waits for the signal after them.
extern "C" __global__ void exchange(gdsync_device_qp qp, u64 words, u64 round, remote_memory signal, places at) {
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) {
        ((u64 *)at.local)[i] = round << 32 | i;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        status result = put_signal(qp, {at.remote, at.rkey}, {at.local, at.lkey}, words * 8, signal, round);
        tell(qp, at, result == status::ok ? quiet(qp, LONG) : result);
    }
}

// Puts once, and waits at most `timeout`: status, error, and nanoseconds.
extern "C" __global__ void attempt(gdsync_device_qp qp, u64 timeout, places at) {
    const u64 start = detail::now_ns();
    const status posted = put(qp, {at.remote, at.rkey}, {at.local, at.lkey}, 8);
    at.results[0] = (u64)(posted == status::ok ? quiet(qp, timeout) : posted);
    at.results[1] = error(qp);
    at.results[2] = detail::now_ns() - start;
}

// The GPU's clock cycles of a call: `results[round]`, as the first thread measures them. 0: one thread, one put. 1: one thread, 32
// puts, a doorbell for each. 2: one thread, 32 puts, one doorbell. 3: a warp. 4: a block.
extern "C" __global__ void cycles(gdsync_device_qp qp, u32 which, u32 rounds, places at) {
    const remote_memory to = {at.remote + 8 * threadIdx.x, at.rkey};
    const local_memory from = {at.local + 8 * threadIdx.x, at.lkey};
    post_options more;
    more.more();
    GDSYNC_DEVICE_LOOP
    for (u32 round = 0; round < rounds; round++) {
        status result = status::ok;
        const long long start = clock64();
        switch (which) {
        case 0:
            result = put(qp, to, from, 8);
            break;
        case 1:
        case 2:
            GDSYNC_DEVICE_LOOP
            for (u32 i = 0; i < 32 && result == status::ok; i++) {
                result = put(qp, to, from, 8, which == 1 || i == 31 ? post_options() : more);
            }
            break;
        case 3:
            result = put<scope::warp>(qp, to, from, 8);
            break;
        default:
            result = put<scope::block>(qp, to, from, 8);
        }
        const long long end = clock64();
        __syncthreads();
        if (threadIdx.x == 0) {
            at.results[2 + round] = (u64)(end - start);
            result = result == status::ok ? quiet(qp, LONG) : result;
            tell(qp, at, result);
        }
        __syncthreads();
    }
}

// The cycles of the steps of a put, in order, as `detail::publish` and `detail::ring_card` perform them for a single thread: from
// `results[6 * round]`. Each read of the clock waits for its step, so that the next step does not include it.
extern "C" __global__ void steps(gdsync_device_qp qp, u32 rounds, places at) {
    gdsync_device_state *state = detail::state_of(qp);
    const bool mailbox = (qp.flags & GDSYNC_DEVICE_QP_MAILBOX) != 0;
    GDSYNC_DEVICE_LOOP
    for (u32 round = 0; round < rounds; round++) {
        long long times[7];
        times[0] = clock64();
        u64 first = 0;
        status result = detail::take(state, 1, qp.limit, first) == detail::attempt::taken ? status::ok : status::invalid;
        times[1] = clock64();
        const u64 value = detail::write_put(qp, first, {at.remote, at.rkey}, {at.local, at.lkey}, 8, true);
        times[2] = clock64();
        const u64 found = detail::exchange_before_acquire_gpu(&state->ready, first, first | GDSYNC_DEVICE_RINGING);
        detail::acquire_and_release_to_system();
        if (detail::not_before_here(found) != first) {
            result = status::invalid;
        }
        detail::store_behind_release_gpu(&state->ready, (first + 1) | GDSYNC_DEVICE_RINGING);
        times[3] = clock64();
        if (!mailbox) {
            detail::store_behind_release_system((u32 *)qp.send_record, detail::big_endian((u32)(first + 1) & 0xffff));
            detail::release_to_system();
        }
        times[4] = clock64();
        detail::store_behind_release_system((u64 *)qp.doorbell, mailbox ? first + 1 : value);
        times[5] = clock64();
        detail::store_relaxed_gpu(&state->posted, first + 1);
        detail::clear_release_gpu(&state->ready, GDSYNC_DEVICE_RINGING);
        times[6] = clock64();
        for (u32 i = 0; i < 6; i++) {
            at.results[2 + 6 * round + i] = (u64)(times[i + 1] - times[i]);
        }
        tell(qp, at, result == status::ok ? quiet(qp, LONG) : result);
    }
}

// Every thread puts `count` words, and waits after each, or at the end. Thread n of block b uses queue n / `sharers` + b *
// `of_block`. The third and fourth results are the first start and the last end, in nanoseconds.
extern "C" __global__ void rate(const gdsync_device_qp *qps, u32 sharers, u32 of_block, u64 count, u32 wait_each, places at) {
    const gdsync_device_qp qp = qps[threadIdx.x / sharers + blockIdx.x * of_block];
    const u32 thread = thread_of_grid();
    const remote_memory to = {at.remote + 8 * thread, at.rkey};
    const local_memory from = {at.local + 8 * thread, at.lkey};
    post_options options;
    options.timeout(LONG);
    atomicMin(&at.results[2], detail::now_ns());
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 i = 0; i < count && result == status::ok; i++) {
        result = put(qp, to, from, 8, options);
        if (result == status::ok && (wait_each != 0 || i + 1 == count)) {
            result = quiet(qp, LONG);
        }
    }
    atomicMax(&at.results[3], detail::now_ns());
    tell(qp, at, result);
}
