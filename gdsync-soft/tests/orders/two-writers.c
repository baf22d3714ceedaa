/* Two queue pairs write one place; the second write follows a message about the first, and not its completion.
   https://github.com/vllm-project/vllm/pull/56104 */

#include "peer.h"

/* Messages between the writers, there and back, before the second writes. */
enum { TURNS = 50, MESSAGES = 2 };

static struct {
    OWN_PAGE uint64_t slot;
} memory;

int main(void) {
    struct side side = begin(1);
    struct rail first = rail(&side, 8), second = rail(&side, 8), between = rail(&side, 8);
    struct area all = area(&side, &memory, sizeof(memory), 0);
    for (turn = 1; turn <= TURNS; turn++) {
        post_word(&first, &all, &memory.slot, 2 * turn);
#ifdef ORDERED
        completion(first.sends);
#endif
        for (int i = 0; i < MESSAGES; i++) {
            send_empty(&between);
            receive(&between);
        }
        write_word(&second, &all, &memory.slot, 2 * turn + 1);
#ifndef ORDERED
        completion(first.sends);
#endif
        expect(&memory.slot, 1, 2 * turn + 1);
    }
    return finish(&side);
}
