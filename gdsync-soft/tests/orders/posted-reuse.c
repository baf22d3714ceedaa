/* A posted buffer changes because something later has come on another queue pair; the card may not have read it.
   https://github.com/openucx/ucx/issues/6040 */

#include "peer.h"

/* Writes of the other queue pair that complete before the buffer changes. */
enum { TURNS = 50, WORDS = 128, OTHERS = 3 };

static struct {
    OWN_PAGE uint64_t source[WORDS];
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t other;
} memory;

int main(void) {
    struct side side = begin(1);
    struct rail rails[] = {rail(&side, 8), rail(&side, 8)};
    struct area all = area(&side, &memory, sizeof(memory), 0);
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.source, WORDS, turn);
        CHECK(post(&rails[0], IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, &all, memory.source, memory.data,
                   sizeof(memory.data)) == 0);
#ifdef ORDERED
        completion(rails[0].sends);
#endif
        for (int i = 0; i < OTHERS; i++)
            write_word(&rails[1], &all, &memory.other, turn);
        fill(memory.source, WORDS, ~turn);
#ifndef ORDERED
        completion(rails[0].sends);
#endif
        expect(memory.data, WORDS, turn);
    }
    return finish(&side);
}
