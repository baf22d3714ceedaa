/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * One program of two files: compiled with GDSYNC_EXP_VERBS, this one is a library that sends on the queue pair of the other dialect's program,
  * prepares a wait, and hands both requests back.
 */
#include "common.h"

void send_and_wait(struct gds_qp *qp, struct ibv_sge *sge, gds_send_request_t *send, gds_wait_request_t *wait);

#ifdef GDSYNC_EXP_VERBS

void send_and_wait(struct gds_qp *qp, struct ibv_sge *sge, gds_send_request_t *send, gds_wait_request_t *wait) {
    gds_send_wr wr = send_of(sge, 7), *bad = NULL;
    OK(gds_prepare_send(qp, &wr, &bad, send));
    OK(gds_prepare_wait_cq(&qp->send_cq, wait, 0));
}

#else

int main(void) {
    struct rig rig;
    CUstream stream = gdsync_soft_stream_create();
    gds_send_request_t send;
    gds_wait_request_t wait;
    struct ibv_sge sge;

    rig_open(&rig, IBV_QPT_RC);
    sge = sge_of(&rig.sides[0], 0, 32);
    memcpy(rig.sides[0].buffer, "from the other dialect", 23);
    receive(&rig.sides[1], 64, 32, 8);
    send_and_wait(rig.sides[0].qp, &sge, &send, &wait);
    OK(gds_stream_post_send(stream, &send));
    OK(gds_stream_post_wait_cq(stream, &wait));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    (void)poll_success(SEND_CQ(rig.sides[0].qp), 7);
    (void)poll_success(RECV_CQ(rig.sides[1].qp), 8);
    CHECK(strcmp((const char *)rig.sides[1].buffer + 64, "from the other dialect") == 0);
    OK(gdsync_soft_stream_destroy(stream));
    rig_close(&rig);
    puts("dialects ok");
    return 0;
}

#endif
