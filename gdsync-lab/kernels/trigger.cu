// Kernels that release sends by triggers, and wait for arrivals: for `gdsync bench device` and `gdsync bench graph`, and for the
// library's tests on a GPU.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

static const u64 LONG = 20000000000ull;

// Messages of 8 bytes, each in a separate place. Memory of the host, at the GPU's addresses.
struct messages {
    // The source: message n is in place n modulo `places`.
    u64 *source;
    // The destination.
    const u64 *target;
    u64 places;
    // Words that the kernels write: 0 number of failed calls, 1 in its highest byte the status of the last of them, 2 missing
    // messages, from 8 on times.
    u64 *results;
};

// The content of a message: never 0, and different in each lap of the places.
__device__ u64 content(u64 message) { return message * 0x9e3779b97f4a7c15ull | 1; }

__device__ void tell(const messages &all, status result) {
    if (result != status::ok) {
        atomicAdd(&all.results[0], 1ull);
        all.results[1] = (u64)result << 56;
    }
}

__device__ void write_message(const messages &all, u64 message) { all.source[message % all.places] = content(message); }

// Counts missing messages. The caller has waited for all.
__device__ void check_messages(const messages &all, u64 first, u64 count) {
    GDSYNC_DEVICE_LOOP
    for (u64 message = first; message < first + count; message++) {
        if (detail::load_relaxed_system(&all.target[message % all.places]) != content(message)) {
            atomicAdd(&all.results[2], 1ull);
        }
    }
}

// One thread; each round it writes `each` messages, releases them by the ticket of the last, waits until the arrival word shows
// that all have arrived, and compares. Messages are tickets, and rounds are the collector's numbers, from `first` on.
extern "C" __global__ void release_rounds(gdsync_trigger trigger, gdsync_collector collector, u64 first, u64 number, u32 rounds, u32 each,
                                          messages all) {
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u32 round = 0; round < rounds && result == status::ok; round++) {
        const u64 message = first + (u64)round * each;
        GDSYNC_DEVICE_LOOP
        for (u32 i = 0; i < each; i++) {
            write_message(all, message + i);
        }
        release(trigger, message + each - 1);
        result = wait_arrivals(collector, number + round, LONG);
        check_messages(all, message, each);
    }
    tell(all, result);
}

// A thread for each message, in as many blocks: the last one to write its message releases all of them. `arrived` counts the
// threads over all launches.
extern "C" __global__ void release_together(gdsync_trigger trigger, gdsync_collector collector, u64 first, u64 number, u64 *arrived,
                                            messages all) {
    const u32 threads = gridDim.x * blockDim.x;
    write_message(all, first + blockIdx.x * blockDim.x + threadIdx.x);
    // Release, and acquire: the writes of the others precede the last one's release of the trigger.
    __threadfence();
    const bool last = atomicAdd(arrived, 1ull) % threads == threads - 1;
    __threadfence();
    if (last) {
        release(trigger, first + threads - 1);
        tell(all, wait_arrivals(collector, number, LONG));
        check_messages(all, first, threads);
    }
}

// The GPU's clock cycles of a step: `results[8 + round]`, each after a store to the host's memory. 0: a fence of system scope and a
// store, by hand. 1: a trigger, after which the card writes the message to its place, where the kernel waits for it.
extern "C" __global__ void release_cycles(gdsync_trigger trigger, u32 which, u64 first, u32 rounds, messages all) {
    GDSYNC_DEVICE_LOOP
    for (u32 round = 0; round < rounds; round++) {
        const u64 message = first + round;
        status result = status::ok;
        write_message(all, message);
        const long long start = clock64();
        if (which == 0) {
            asm volatile("fence.acq_rel.sys;\n\tst.relaxed.sys.global.u64 [%0], %1;" ::"l"(trigger.word), "l"(message) : "memory");
        } else {
            release(trigger, message);
        }
        const long long end = clock64();
        all.results[8 + round] = (u64)(end - start);
        if (which == 0) {
            // Until the stores have arrived, as the card's message has below.
            detail::relax(5000);
        } else {
            const u64 *place = &all.target[message % all.places];
            detail::Waited waited;
            while (detail::load_relaxed_system(place) != content(message) && result == status::ok) {
                result = waited.longer_than(LONG) ? status::timed_out : status::ok;
            }
        }
        tell(all, result);
    }
}

// The node of a graph: counts in `ticket`, a word of GPU memory, writes the message of that number, and releases it.
extern "C" __global__ void release_next(gdsync_trigger trigger, u64 *ticket, messages all) {
    const u64 next = ++*ticket;
    write_message(all, next);
    release(trigger, next);
}

// The same for a graph in which the next node copies the 8 bytes at `big_endian` to the trigger.
extern "C" __global__ void prepare_next(u64 *big_endian, u64 *ticket, messages all) {
    const u64 next = ++*ticket;
    write_message(all, next);
    *big_endian = detail::big_endian(next);
}
