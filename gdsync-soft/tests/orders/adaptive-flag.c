/* The peer polls a flag that was written after the data on the same queue pair; adaptive routing may place it before them.
   https://github.com/NVIDIA/nccl/issues/850 */

#include "peer.h"

enum { TURNS = 50, WORDS = 512 };

static struct {
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t flag;
    OWN_PAGE uint64_t credit;
} memory;

static void reads(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        UNTIL(load(&memory.flag) == turn);
        expect(memory.data, WORDS, turn);
        write_word(rail, area, &memory.credit, turn);
    }
}

static void writes(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.data, WORDS, turn);
#ifdef ORDERED
        int flags = IBV_SEND_SIGNALED;
#else
        int flags = 0;
#endif
        CHECK(post(rail, IBV_WR_RDMA_WRITE, flags, area, memory.data, memory.data, sizeof(memory.data)) == 0);
#ifdef ORDERED
        completion(rail->sends);
#endif
        write_word(rail, area, &memory.flag, turn);
        UNTIL(load(&memory.credit) == turn);
    }
}

int main(void) {
    return two_sides(1, 8, &memory, sizeof(memory), reads, writes);
}
