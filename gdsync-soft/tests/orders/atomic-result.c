/* The result of an atomic operation is used when something later has completed on another queue pair.
   https://github.com/ROCm/rocm-systems/pull/5635 */

#include "peer.h"

/* Writes of the other queue pair that complete before the result is read. */
enum { TURNS = 50, OTHERS = 2 };

static struct {
    OWN_PAGE uint64_t counter;
    OWN_PAGE uint64_t result;
    OWN_PAGE uint64_t other;
} memory;

static void counts(const struct rail rails[2], const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
        fill(&memory.result, 1, ~0ul);
        CHECK(post(&rails[0], IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, area, &memory.result, &memory.counter,
                   sizeof(memory.result)) == 0);
#ifdef ORDERED
        completion(rails[0].sends);
#endif
        for (int i = 0; i < OTHERS; i++)
            write_word(&rails[1], area, &memory.other, turn);
        expect(&memory.result, 1, turn - 1);
#ifndef ORDERED
        completion(rails[0].sends);
#endif
    }
}

int main(void) {
    return two_sides(2, 8, &memory, sizeof(memory), counts, NULL);
}
