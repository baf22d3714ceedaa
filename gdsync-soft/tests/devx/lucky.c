/* Writes messages, and checks each when its last byte has arrived (`last-byte`), or when it has completed. Exits with 3 if
 * a message was incomplete. */
#include "devx.h"

#define ROUNDS 2000
#define LENGTH 2048

int main(int count, char **arguments)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 15, NULL, NULL, 0);
    struct ibv_qp *qp = connect_to_itself(pd, cq, 1);
    uint8_t *memory = pages(2 * LENGTH);
    volatile uint8_t *last = memory + 2 * LENGTH - 1;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_sge from = {(uintptr_t)memory, LENGTH, mr->lkey};
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    int polls_last_byte = count > 1 && strcmp(arguments[1], "last-byte") == 0, round;

    send.wr.rdma.remote_addr = (uintptr_t)memory + LENGTH;
    send.wr.rdma.rkey = mr->rkey;
    for (round = 1; round <= ROUNDS; round++) {
        struct ibv_wc completion;
        int found = 0, is_whole;

        memset(memory, round % 251 + 1, LENGTH);
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
        while (polls_last_byte ? *last != memory[0] : (found = ibv_poll_cq(cq, 1, &completion)) == 0)
            ;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        is_whole = memcmp(memory, memory + LENGTH, LENGTH) == 0;
        while (found == 0)
            found = ibv_poll_cq(cq, 1, &completion);
        CHECK(found == 1 && completion.status == IBV_WC_SUCCESS);
        if (!is_whole)
            return 3;
    }
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
