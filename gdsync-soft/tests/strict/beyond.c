/* Writes one byte beyond the peer's region if it has an argument, and expects the error. Succeeds in any case. */
#include "../orders/peer.h"

static struct {
    OWN_PAGE char data[4096];
} memory;

static int is_wrong;

static void writes(const struct rail *rail, const struct area *area) {
    struct ibv_wc done;
    int count;
    char *there = memory.data + (is_wrong ? 1 : 0);
    CHECK(post(rail, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, area, memory.data, there, sizeof(memory.data)) == 0);
    UNTIL((count = ibv_poll_cq(rail->sends, 1, &done)));
    CHECK(count == 1 && done.status == (is_wrong ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS));
}

int main(int count, char **words) {
    (void)words;
    is_wrong = count > 1;
    return two_sides(1, 4, &memory, sizeof(memory), NULL, writes);
}
