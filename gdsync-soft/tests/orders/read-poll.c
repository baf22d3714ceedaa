/* The end of a read's memory is polled, and the rest taken for read.
   https://github.com/ofiwg/libfabric/issues/655 */

#include "peer.h"

/* The last word is in a separate packet: those of cards have 64 KiB at most. */
enum { TURNS = 20, WORDS = 64 * 1024 / 8 + 1, CONTENT = 7 };

static struct {
    OWN_PAGE uint64_t source[WORDS];
    OWN_PAGE uint64_t result[WORDS];
} memory;

static void reads(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.result, WORDS, 0);
        CHECK(post(rail, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, area, memory.result, memory.source,
                   sizeof(memory.result)) == 0);
#ifdef ORDERED
        completion(rail->sends);
#else
        UNTIL(load(&memory.result[WORDS - 1]) == CONTENT);
#endif
        expect(memory.result, WORDS, CONTENT);
#ifndef ORDERED
        completion(rail->sends);
#endif
    }
}

int main(void) {
    fill(memory.source, WORDS, CONTENT);
    return two_sides(1, 8, &memory, sizeof(memory), reads, NULL);
}
