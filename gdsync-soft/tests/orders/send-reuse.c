/* The sender fills its buffer anew when the peer has answered the header; lost packets are sent again from the buffer.
   https://github.com/nfs-ganesha/nfs-ganesha/pull/14 */

#include "peer.h"

/* The message has two packets at least: those of cards have 64 KiB at most. */
enum { TURNS = 20, WORDS = 128 * 1024 / 8 };

static struct {
    OWN_PAGE uint64_t source[WORDS];
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t credit;
} memory;

static void reads(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        /* The header has come, and the sender may go on. */
        UNTIL(load(&memory.data[0]) == turn);
        write_word(rail, area, &memory.credit, turn);
        receive(rail);
        expect(memory.data, WORDS, turn);
        send_empty(rail);
    }
}

static void writes(const struct rail *rail, const struct area *area) {
#ifdef ORDERED
    int flags = IBV_SEND_SIGNALED;
#else
    int flags = 0;
#endif
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.source, WORDS, turn);
        CHECK(post(rail, IBV_WR_RDMA_WRITE, flags, area, memory.source, memory.data, sizeof(memory.data)) == 0);
#ifdef ORDERED
        completion(rail->sends);
#endif
        UNTIL(load(&memory.credit) == turn);
        fill(memory.source, WORDS, ~turn);
        send_empty(rail);
        receive(rail);
    }
}

int main(void) {
    return two_sides(1, 8, &memory, sizeof(memory), reads, writes);
}
