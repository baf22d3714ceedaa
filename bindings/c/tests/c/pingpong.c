/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Two queue pairs and two software streams: each stream waits for the other's message, computes, and answers, without the CPU.
 */
#include "common.h"

enum { ROUNDS = 1000, SIZE = 64 };

/* Computes the next message from the received one, as a kernel would. */
struct step {
    const uint8_t *from;
    uint8_t *to;
};

static void increment(void *argument) {
    const struct step *step = (const struct step *)argument;
    uint32_t number;
    memcpy(&number, step->from, sizeof(number));
    number++;
    memcpy(step->to, &number, sizeof(number));
}

static void play(int flags) {
    struct rig rig;
    struct step steps[2];
    CUstream streams[2];
    uint32_t last;
    int i, round;

    rig_open_on(&rig, IBV_QPT_RC, -1, flags);
    for (i = 0; i < 2; i++) {
        streams[i] = gdsync_soft_stream_create();
        CHECK(streams[i] != NULL);
        steps[i].from = rig.sides[i].buffer + SIZE;
        steps[i].to = rig.sides[i].buffer;
    }
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < 2; i++) {
            struct side *side = &rig.sides[i];
            struct ibv_sge sge = sge_of(side, 0, SIZE);
            gds_send_wr wr = send_of(&sge, (uint64_t)round), *bad = NULL;
            receive(side, SIZE, SIZE, (uint64_t)round);
            if (i == 0) {
                OK(gds_stream_queue_send(streams[0], side->qp, &wr, &bad));
                OK(gds_stream_wait_cq(streams[0], RECV_CQ(side->qp), 0));
                OK(gdsync_soft_stream_launch(streams[0], increment, &steps[0]));
            } else {
                OK(gds_stream_wait_cq(streams[1], RECV_CQ(side->qp), 0));
                OK(gdsync_soft_stream_launch(streams[1], increment, &steps[1]));
                OK(gds_stream_queue_send(streams[1], side->qp, &wr, &bad));
            }
        }
        if (round % 32 == 31 || round == ROUNDS - 1) {
            int done = round % 32 + 1, k;
            for (i = 0; i < 2; i++) {
                for (k = 0; k < done; k++) {
                    uint64_t wr_id = (uint64_t)(round - done + 1 + k);
                    CHECK(poll_success(SEND_CQ(rig.sides[i].qp), wr_id).opcode == IBV_WC_SEND);
                    struct ibv_wc wc = poll_success(RECV_CQ(rig.sides[i].qp), wr_id);
                    CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == SIZE);
                }
            }
        }
    }
    for (i = 0; i < 2; i++) {
        OK(gdsync_stream_synchronize(streams[i], PATIENCE_MS));
    }
    memcpy(&last, rig.sides[0].buffer, sizeof(last));
    CHECK(last == 2 * ROUNDS);
    for (i = 0; i < 2; i++) {
        OK(gdsync_soft_stream_destroy(streams[i]));
    }
    rig_close(&rig);
}

int main(void) {
    play(GDS_CREATE_QP_DEFAULT);
    /* These wishes are not granted without a GPU. */
    play(GDS_CREATE_QP_TX_CQ_ON_GPU | GDS_CREATE_QP_RX_CQ_ON_GPU | GDS_CREATE_QP_WQ_DBREC_ON_GPU);
    puts("pingpong ok");
    return 0;
}
