// Warps and blocks of the device header on host threads, under ThreadSanitizer, with the model's card.
#include "host_groups.hpp"
#include "model_card.hpp"

#include <thread>
#include <vector>

// One thread of the block: every other call with a signal after the word, every third not rung at once.
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
        // One thread of the group has an invalid request: no thread posts.
        const u64 length = thread == 3 || thread == 20 ? 100 : 8;
        const status refused = put_inline<S>(qp, slot, &value, length, options);
        check(refused == status::invalid, "a request that cannot be was posted", (u64)refused);
        if (i % 5 == 0) {
            const u64 before = ticket;
            check(fetch_add<S>(qp, {(u64)&card.counter, 1}, 1, {0x1000, 2}, options) == status::ok, "an addition failed", error(qp));
            // The leader has an earlier ticket than the others, as if a warp had diverged in its posts.
            const u64 own = detail::Group<S>().leads() ? before : ticket;
            check(wait<S>(qp, own, LONG) == status::ok, "a wait failed", error(qp));
            check(detail::load_acquire_gpu(&card.state.completed) >= own, "a wait has not waited", own);
        }
    }
    check(quiet<S>(qp, LONG) == status::ok, "quiet failed", error(qp));
}

int main(int, char **arguments) {
    const u64 count = std::strtoull(arguments[1], nullptr, 10);
    make_barriers();
    static Card cards[2];
    for (int round = 0; round < 2; round++) {
        Card &card = cards[round];
        const gdsync_device_qp qp = describe(card);
        std::thread running([&] { run(card); });
        std::vector<std::thread> threads;
        for (u32 thread = 0; thread < IN_BLOCK; thread++) {
            threads.emplace_back([&, thread] {
                become(thread);
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
