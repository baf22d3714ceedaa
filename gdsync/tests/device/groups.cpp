// Warps and blocks of the device header, whose threads are here those of the host: what CUDA has for them is made of barriers. Under
// ThreadSanitizer, with the model's card.
#define GDSYNC_DEVICE_GROUPS
#define __shared__ static

#include <pthread.h>
#include <thread>
#include <vector>

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

#include "model_card.hpp"

// One thread of the block: every other call with a signal behind the word, every third not rung at once.
template <scope S> static void post_in_group(const gdsync_device_qp &qp, Card &card, u32 thread, u64 count) {
    for (u64 i = 0; i < count; i++) {
        const u64 value = (u64)thread << 32 | i;
        const remote_memory slot = {(u64)&card.target[thread * SLOTS + i % SLOTS], 1};
        u64 ticket = 0;
        post_options options;
        options.timeout(LONG).ticket_to(&ticket);
        if (i % 3 == 0) {
            options.more();
        }
        check(put_inline<S>(qp, slot, &value, 8, options) == status::ok, "a put failed", error(qp));
        check(ticket % 8 == 0, "a ticket that is none of the group's", ticket);
        // One of the group gives a request that cannot be: nobody posts.
        const u64 length = thread == 3 || thread == 20 ? 100 : 8;
        const status refused = put_inline<S>(qp, slot, &value, length, options);
        check(refused == status::invalid, "a request that cannot be was posted", (u64)refused);
        if (i % 5 == 0) {
            check(fetch_add<S>(qp, {(u64)&card.counter, 1}, 1, {0x1000, 2}, options) == status::ok, "an addition failed", error(qp));
            check(wait<S>(qp, ticket, LONG) == status::ok, "a wait failed", error(qp));
        }
    }
    check(quiet<S>(qp, LONG) == status::ok, "quiet failed", error(qp));
}

int main(int, char **arguments) {
    const u64 count = std::strtoull(arguments[1], nullptr, 10);
    for (unsigned i = 0; i < 2; i++) {
        pthread_barrier_init(&of_warp[i], nullptr, LANES[i]);
    }
    pthread_barrier_init(&of_block, nullptr, IN_BLOCK);
    static Card cards[2];
    for (int round = 0; round < 2; round++) {
        Card &card = cards[round];
        const gdsync_device_qp qp = describe(card);
        std::thread running([&] { run(card); });
        std::vector<std::thread> threads;
        for (u32 thread = 0; thread < IN_BLOCK; thread++) {
            threads.emplace_back([&, thread] {
                threadIdx = {thread % blockDim.x, thread / blockDim.x, 0};
                warp = thread < LANES[0] ? 0 : 1;
                lane = thread - (warp == 0 ? 0 : LANES[0]);
                if (round == 0) {
                    post_in_group<scope::warp>(qp, card, thread, count);
                } else {
                    post_in_group<scope::block>(qp, card, thread, count);
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        __atomic_store_n(&card.stop, true, __ATOMIC_RELEASE);
        running.join();
        check(card.counter == IN_BLOCK * ((count + 4) / 5), "additions were lost", card.counter);
        for (u64 i = 0; i < IN_BLOCK * SLOTS; i++) {
            const u64 thread = i / SLOTS, slot = i % SLOTS;
            const u64 last = (count - 1 - slot) / SLOTS * SLOTS + slot;
            check(card.target[i] == (thread << 32 | last), "a write was lost", card.target[i]);
        }
        check(card.state.reserved == card.state.completed, "not everything has completed", card.state.completed);
    }
    std::puts("ok");
    return 0;
}
