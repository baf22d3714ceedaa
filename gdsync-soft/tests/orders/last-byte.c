/* The peer polls the end of a message, and takes the rest for written.
   https://github.com/Derecho-Project/derecho/issues/47 */

#include "peer.h"

/* The last word is in a separate packet: those of cards have 64 KiB at most. */
enum { TURNS = 20, WORDS = 64 * 1024 / 8 + 1 };

static struct {
    OWN_PAGE uint64_t data[WORDS];
    OWN_PAGE uint64_t credit;
} memory;

static void reads(const struct rail *rail, const struct area *area) {
    for (turn = 1; turn <= TURNS; turn++) {
#ifdef ORDERED
        receive(rail);
#else
        UNTIL(load(&memory.data[WORDS - 1]) == turn);
#endif
        expect(memory.data, WORDS, turn);
        write_word(rail, area, &memory.credit, turn);
    }
}

static void writes(const struct rail *rail, const struct area *area) {
#ifdef ORDERED
    enum ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
#else
    enum ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
#endif
    for (turn = 1; turn <= TURNS; turn++) {
        fill(memory.data, WORDS, turn);
        CHECK(post(rail, opcode, IBV_SEND_SIGNALED, area, memory.data, memory.data, sizeof(memory.data)) == 0);
        completion(rail->sends);
        UNTIL(load(&memory.credit) == turn);
    }
}

int main(void) {
    return two_sides(1, 8, &memory, sizeof(memory), reads, writes);
}
