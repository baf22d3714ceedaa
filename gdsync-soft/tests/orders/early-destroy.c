/* A queue pair is destroyed while its last request is outstanding, which may then never leave.
   https://github.com/kvcache-ai/Mooncake/pull/2427 */

#include "peer.h"

/* Writes of another queue pair that complete before the queue pair of a last message is destroyed. */
enum { TURNS = 20, OTHERS = 2 };

static struct {
    OWN_PAGE uint64_t last[TURNS];
    OWN_PAGE uint64_t other;
} memory;

static void ends(const struct rail rails[TURNS], const struct rail *other, const struct area *area) {
#ifdef ORDERED
    int flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
#else
    int flags = IBV_SEND_INLINE;
#endif
    for (turn = 1; turn <= TURNS; turn++) {
        const struct rail *rail = &rails[turn - 1];
        CHECK(post(rail, IBV_WR_RDMA_WRITE, flags, area, &turn, &memory.last[turn - 1], sizeof(turn)) == 0);
#ifdef ORDERED
        completion(rail->sends);
#endif
        for (int i = 0; i < OTHERS; i++)
            write_word(other, area, &memory.other, turn);
        CHECK(ibv_destroy_qp(rail->qp) == 0);
    }
}

static void awaits(void) {
    for (turn = 1; turn <= TURNS; turn++)
        UNTIL(load(&memory.last[turn - 1]) == turn);
}

int main(void) {
    struct side side = begin(2);
    struct rail rails[TURNS], other = rail(&side, 8);
    for (int i = 0; i < TURNS; i++)
        rails[i] = rail(&side, 1);
    struct area all = area(&side, &memory, sizeof(memory), 0);
    if (side.is_peer)
        ends(rails, &other, &all);
    else
        awaits();
    return finish(&side);
}
