/* The peer polls a flag that was written after the data, into a region without relaxed ordering; the data's region has it.
   https://github.com/deepseek-ai/DeepEP/issues/40 */

#include "peer.h"

enum { TURNS = 50, WORDS = 512 };

static struct {
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t flag;
    OWN_PAGE uint64_t credit;
} memory;

static void reads(const struct rail *rail, const struct area *words) {
    for (turn = 1; turn <= TURNS; turn++) {
#ifdef ORDERED
        receive(rail);
#else
        UNTIL(load(&memory.flag) == turn);
#endif
        expect(memory.data, WORDS, turn);
        write_word(rail, words, &memory.credit, turn);
    }
}

static void writes(const struct rail *rail, const struct area *data, const struct area *words) {
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.data, WORDS, turn);
        CHECK(post(rail, IBV_WR_RDMA_WRITE, 0, data, memory.data, memory.data, sizeof(memory.data)) == 0);
#ifdef ORDERED
        int flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
        CHECK(post(rail, IBV_WR_RDMA_WRITE_WITH_IMM, flags, words, &turn, &memory.flag, sizeof(turn)) == 0);
#else
        post_word(rail, words, &memory.flag, turn);
#endif
        completion(rail->sends);
        UNTIL(load(&memory.credit) == turn);
    }
}

int main(void) {
    struct side side = begin(2);
    struct rail between = rail(&side, 8);
    struct area data = area(&side, memory.data, sizeof(memory.data), IBV_ACCESS_RELAXED_ORDERING);
    struct area words = area(&side, &memory.flag, sizeof(memory) - sizeof(memory.data), 0);
    if (side.is_peer)
        writes(&between, &data, &words);
    else
        reads(&between, &words);
    return finish(&side);
}
