/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Lists of sends: their order, immediate data and flags, and the request at which a list fails.
 */
#include "common.h"

enum { BYTES = 64 };

static struct rig rig;

/* A write, a send with immediate data, and an inline send. */
static void arrive(gds_send_wr *wrs, struct ibv_sge *sge) {
    struct side *right = &rig.sides[1];
    gds_send_wr *bad = NULL;
    struct ibv_wc wc;
    int i;

    for (i = 0; i < 3; i++) {
        wrs[i] = send_of(sge, 100 + (uint64_t)i);
        wrs[i].next = i < 2 ? &wrs[i + 1] : NULL;
    }
    receive(right, 2048, BYTES, 200);
    receive(right, 2048, BYTES, 201);
    set_opcode(&wrs[0], IBV_WR_RDMA_WRITE);
    set_flags(&wrs[0], 0);
    wrs[0].wr.rdma.remote_addr = (uint64_t)(uintptr_t)(right->buffer + 3072);
    wrs[0].wr.rdma.rkey = right->mr->rkey;
    set_opcode(&wrs[1], IBV_WR_SEND_WITH_IMM);
    set_immediate(&wrs[1], 0x01020304);
    set_flags(&wrs[2], IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    memset(rig.sides[0].buffer, 77, BYTES);
    OK(gds_post_send(rig.sides[0].qp, wrs, &bad));
    (void)poll_success(SEND_CQ(rig.sides[0].qp), 101);
    (void)poll_success(SEND_CQ(rig.sides[0].qp), 102);
    wc = poll_success(RECV_CQ(right->qp), 200);
    CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data == 0x01020304 && wc.byte_len == 16);
    (void)poll_success(RECV_CQ(right->qp), 201);
    CHECK(right->buffer[3072] == 77 && right->buffer[3072 + 15] == 77 && right->buffer[3072 + 16] == 0);
}

static void refused(gds_send_wr *wrs) {
    struct gds_qp *qp = rig.sides[0].qp;
    CUstream stream = gdsync_soft_stream_create();
    gds_send_request_t request;
    gds_send_wr *bad = NULL;

    /* The second request is refused and named; the first is posted. */
    set_opcode(&wrs[1], 77);
    CHECK_STATUS(EINVAL, gds_post_send(qp, wrs, &bad));
    CHECK(bad == &wrs[1] && strstr(gdsync_error_text(), "gds_post_send: opcode is 77, but") != NULL);
    /* Nothing of the list is prepared or queued. */
    bad = NULL;
    set_opcode(&wrs[1], IBV_WR_SEND);
    set_flags(&wrs[2], 1u << 20);
    CHECK_STATUS(EINVAL, gds_prepare_send(qp, wrs, &bad, &request));
    CHECK(bad == &wrs[2]);
    bad = NULL;
    CHECK_STATUS(EINVAL, gds_stream_queue_send(stream, qp, wrs, &bad));
    CHECK(bad == &wrs[2]);
    CHECK_STATUS(EINVAL, gds_stream_queue_send(stream, qp, wrs, NULL));
    CHECK(gdsync_send_init(qp, wrs) == NULL && errno == EOPNOTSUPP);
    OK(gdsync_soft_stream_destroy(stream));
#ifndef GDSYNC_EXP_VERBS
    /* A circular list. */
    bad = NULL;
    wrs[2].next = wrs;
    CHECK_STATUS(EINVAL, gds_post_send(qp, wrs, &bad));
    CHECK(bad == NULL && strstr(gdsync_error_text(), "65536") != NULL);
#endif
}

int main(void) {
    struct ibv_sge sge;
    gds_send_wr wrs[3];

    rig_open(&rig, IBV_QPT_RC);
    sge = sge_of(&rig.sides[0], 0, 16);
    arrive(wrs, &sge);
    refused(wrs);
    rig_close(&rig);
    puts("lists ok");
    return 0;
}
