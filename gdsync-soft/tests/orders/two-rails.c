/* The data goes by one queue pair, the flag by another: nothing orders the two.
   https://github.com/NVIDIA/nccl/issues/924 */

#include "peer.h"

enum { TURNS = 50, WORDS = 128 };

static struct {
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t count;
    OWN_PAGE uint64_t flag;
    OWN_PAGE uint64_t credit;
} memory;

static void reads(const struct rail rails[2], const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        UNTIL(load(&memory.flag) == turn);
        expect(memory.data, load(&memory.count), turn);
        write_word(&rails[1], area, &memory.credit, turn);
    }
}

static void writes(const struct rail rails[2], const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.data, WORDS, turn);
        CHECK(post(&rails[0], IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, area, memory.data, memory.data,
                   sizeof(memory.data)) == 0);
#ifdef ORDERED
        completion(rails[0].sends);
#endif
        /* The control rail carries the size, and then the flag. */
        write_word(&rails[1], area, &memory.count, WORDS);
        write_word(&rails[1], area, &memory.flag, turn);
        UNTIL(load(&memory.credit) == turn);
#ifndef ORDERED
        completion(rails[0].sends);
#endif
    }
}

int main(void) {
    return two_sides(2, 8, &memory, sizeof(memory), reads, writes);
}
