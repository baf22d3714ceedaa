// Notified writes under ThreadSanitizer, each queue pair with a separate card: ranks that are threads, a warp, and a
// block.
#include "host_groups.hpp"

#include "model_card.hpp"
#include "../../../kernels/notify.cu"

#include <memory>
#include <thread>
#include <vector>

static const u32 SLOT = 100, MOST_RANKS = 3, WORDS = 64;

struct Memory {
    alignas(64) u8 outbox[MOST_RANKS * SLOT] = {};
    alignas(64) u8 inbox[MOST_RANKS * SLOT] = {};
    alignas(64) u32 words[WORDS] = {};
};

// Ranks and their cards.
struct Ranks {
    explicit Ranks(u32 ranks) : size(ranks), memories(ranks), cards(ranks * ranks) {
        for (Memory &memory : memories) {
            std::memset(memory.inbox, GUARD, sizeof memory.inbox);
            outboxes.push_back({(u64)memory.outbox, sizeof memory.outbox, 0, 0, 1});
            inboxes.push_back({(u64)memory.inbox, sizeof memory.inbox, (u64)memory.words, WORDS, 2});
        }
        for (Card &card : cards) {
            queue_pairs.push_back(describe(card));
        }
    }

    job of(u32 rank, u64 rounds) {
        Memory &own = memories[rank];
        job j = {};
        j.queue = {(u64)&queue_pairs[rank * size], size, rank, GDSYNC_NOTIFY_VERSION, 0, 0};
        j.outbox = {(u64)outboxes.data(), (u64)own.outbox, 0, (u64)own.outbox, sizeof own.outbox, 3, 0, size, GDSYNC_NOTIFY_VERSION, 0, 0};
        j.inbox = {(u64)inboxes.data(), (u64)own.inbox,   (u64)own.words, (u64)own.inbox, sizeof own.inbox, 4, WORDS, size,
                   GDSYNC_NOTIFY_VERSION, rank % 2 == 0 ? 0 : GDSYNC_SEGMENT_ATOMIC_IN_GPU, 0};
        j.rounds = rounds;
        j.slot = SLOT;
        j.timeout_ns = LONG;
        return j;
    }

    u32 size;
    std::vector<Memory> memories;
    std::vector<Card> cards;
    std::vector<gdsync_device_qp> queue_pairs;
    std::vector<gdsync_segment_part> outboxes, inboxes;
};

// Runs `act(thread)` in that many threads beside the cards.
template <class Act> static void with_cards(Ranks &ranks, u32 count, const Act &act) {
    std::vector<std::thread> running, threads;
    for (Card &card : ranks.cards) {
        running.emplace_back([&card] { run(card); });
    }
    for (u32 thread = 0; thread < count; thread++) {
        threads.emplace_back([&act, thread] { check(act(thread) == 0, "the thread went wrong", thread); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    for (Card &card : ranks.cards) {
        __atomic_store_n(&card.stop, true, __ATOMIC_RELEASE);
    }
    for (std::thread &card : running) {
        card.join();
    }
}

// The threads of a group are one rank, which writes to itself.
template <scope S> static void in_group(u32 threads, u64 rounds) {
    for (int round = 0; round < 2; round++) {
        Ranks ranks(2);
        const job both = ranks.of(0, rounds);
        job j = both;
        j.queue.size = j.outbox.size = j.inbox.size = 1;
        with_cards(ranks, threads, [&](u32 thread) {
            become(thread);
            const u32 line = round == 0 ? all_to_all<S>(j) : together<S>(j);
            check(line == 0, "line of notify.cu", line);
            // Threads that name different ranks post nothing.
            const u32 other = thread == 2 ? 1 : 0;
            const status refused = notify<S>(both.queue, other, both.inbox, 0, 1);
            check(refused == status::invalid, "a notification to different ranks", (u64)refused);
            return line;
        });
        const gdsync_device_state &state = ranks.cards[0].state;
        check(state.reserved == state.completed, "not everything has completed", state.completed);
    }
}

int main(int, char **arguments) {
    const u64 rounds = std::strtoull(arguments[1], nullptr, 10);
    make_barriers();
    Ranks ranks(MOST_RANKS);
    with_cards(ranks, MOST_RANKS, [&](u32 rank) {
        const u32 line = all_to_all<scope::thread>(ranks.of(rank, rounds));
        check(line == 0, "line of notify.cu", line);
        return line;
    });
    in_group<scope::warp>(LANES[0], rounds);
    in_group<scope::block>(IN_BLOCK, rounds);
    std::puts("ok");
    return 0;
}
