// The device header under ThreadSanitizer: eight threads and the model's card.
#include "model_card.hpp"

#include <thread>
#include <vector>

static const u32 THREADS = 8;

// All threads post until the end or the first failure; returns the number of threads that met one.
static u32 drive(const gdsync_device_qp &qp, Card &card, u64 count) {
    std::vector<std::thread> threads;
    u32 failed = 0;
    for (u32 thread = 0; thread < THREADS; thread++) {
        threads.emplace_back([&, thread] {
            status result = status::ok;
            for (u64 i = 0; i < count && result == status::ok; i++) {
                const u64 value = (u64)thread << 32 | i;
                u64 ticket = 0;
                post_options options;
                options.timeout(LONG).ticket_to(&ticket);
                if (i % 3 == 0) {
                    options.more();
                }
                result = put_inline(qp, {(u64)&card.target[thread * SLOTS + i % SLOTS], 1}, &value, 8, options);
                if (result == status::ok && i % 4 == 0) {
                    result = fetch_add(qp, {(u64)&card.counter, 1}, 1, {0x1000, 2}, options);
                }
                if (result == status::ok && i % 16 == 0) {
                    result = wait(qp, ticket, LONG);
                }
            }
            if (result == status::ok) {
                result = quiet(qp, LONG);
            }
            if (result != status::ok) {
                check(result == status::failed, "another end than a failure", (u64)result);
                __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    return failed;
}

int main(int, char **arguments) {
    const u64 count = std::strtoull(arguments[1], nullptr, 10);
    for (int round = 0; round < 3; round++) {
        static Card cards[3];
        Card &card = cards[round];
        card.uses_mailbox = round == 1;
        card.fails_at = round == 2 ? count : ~0ull;
        const gdsync_device_qp qp = describe(card);
        std::thread running([&] { run(card); });
        const u32 failed = drive(qp, card, count);
        __atomic_store_n(&card.stop, true, __ATOMIC_RELEASE);
        running.join();
        if (round == 2) {
            check(failed == THREADS && syndrome(qp) == 0x13 && (error(qp) >> 8 & 0xff) == 0x88, "the failure is told", error(qp));
            continue;
        }
        check(failed == 0, "threads failed", failed);
        check(card.counter == THREADS * ((count + 3) / 4), "additions were lost", card.counter);
        for (u64 i = 0; i < THREADS * SLOTS; i++) {
            const u64 thread = i / SLOTS, slot = i % SLOTS;
            const u64 last = (count - 1 - slot) / SLOTS * SLOTS + slot;
            check(card.target[i] == (thread << 32 | last), "a write was lost", card.target[i]);
        }
    }
    std::puts("ok");
    return 0;
}
