/* The peer's credit is taken for room in the send queue, which only completions give back.
   https://github.com/apache/brpc/issues/3202 */

#include "peer.h"

enum { TURNS = 50 };

static struct {
    OWN_PAGE uint64_t message;
    OWN_PAGE uint64_t credit;
} memory;

static void sends(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        /* Every message that the peer has seen has left the queue. */
        UNTIL(load(&memory.credit) + rail->depth >= turn);
#ifdef ORDERED
        if (turn > rail->depth)
            completion(rail->sends);
#else
        struct ibv_wc done;
        while (ibv_poll_cq(rail->sends, 1, &done) > 0)
            ;
#endif
        int flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
        int error = post(rail, IBV_WR_RDMA_WRITE, flags, area, &turn, &memory.message, sizeof(turn));
        if (error)
            WRONG("no room in a queue of %u: %s", rail->depth, strerror(error));
    }
}

static void answers(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        UNTIL(load(&memory.message) >= turn);
        write_word(rail, area, &memory.credit, turn);
    }
}

int main(void) {
    return two_sides(1, 1, &memory, sizeof(memory), sends, answers);
}
