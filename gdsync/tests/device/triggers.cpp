// Triggers and arrival words under ThreadSanitizer: threads that write their parts of a step, the last of which
// releases it, and a card that is a thread of the same program. It copies by plain loads and stores, so that every
// order that the header leaves open is a race.
#include "gdsync/device_verbs.cuh"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

using namespace gdsync;

static const u32 THREADS = 8;
static const u64 LONG = 60000000000ull;

static u64 source[THREADS], target[THREADS];
// The trigger's word, the arrival word, and the number of written parts of steps.
static u64 word = 0, arrived = 0, written = 0;

static void check(bool right, const char *what, u64 value) {
    if (!right) {
        std::fprintf(stderr, "%s: %llu\n", what, value);
        std::exit(1);
    }
}

// Waits for each ticket as WAIT does, performs the released work, and counts.
static void run(u64 steps) {
    for (u64 step = 1; step <= steps; step++) {
        // The bytes of the word are those of a big-endian number.
        while (__builtin_bswap64(__atomic_load_n(&word, __ATOMIC_ACQUIRE)) < step) {
            sched_yield();
        }
        for (u32 i = 0; i < THREADS; i++) {
            target[i] = source[i];
        }
        __atomic_store_n(&arrived, step, __ATOMIC_RELEASE);
    }
}

int main(int, char **arguments) {
    const u64 steps = std::strtoull(arguments[1], nullptr, 10);
    const gdsync_trigger trigger = {(u64)&word};
    const gdsync_collector collector = {(u64)&arrived};
    check(wait_arrivals(collector, 1, 1000000) == status::timed_out, "nothing has arrived", arrived);
    std::thread card([&] { run(steps); });
    std::vector<std::thread> threads;
    for (u32 thread = 0; thread < THREADS; thread++) {
        threads.emplace_back([&, thread] {
            for (u64 step = 1; step <= steps; step++) {
                source[thread] = step << 32 | thread;
                // Acquire: the last one's release follows the writes of all, and their reads of the previous step.
                if (__atomic_add_fetch(&written, 1, __ATOMIC_ACQ_REL) == step * THREADS) {
                    release(trigger, step);
                }
                check(wait_arrivals(collector, step, LONG) == status::ok, "a step does not arrive", step);
                check(target[thread] == (step << 32 | thread), "another message has arrived", target[thread]);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    card.join();
    std::puts("ok");
    return 0;
}
