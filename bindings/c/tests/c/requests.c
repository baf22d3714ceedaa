/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Prepared requests that are copied, posted twice, discarded, cancelled or handed to kernels; and failures.
 */
#include "common.h"

static void prepare(struct side *side, uint64_t wr_id, gds_send_request_t *request) {
    struct ibv_sge sge = sge_of(side, 0, 8);
    gds_send_wr wr = send_of(&sge, wr_id), *bad = NULL;
    OK(gds_prepare_send(side->qp, &wr, &bad, request));
}

/* Copies name the same request; a used-up one is refused in any list. */
static void copies(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gds_send_request_t sends[2], copy, zero;
    gds_wait_request_t waits[2], again;
    gds_descriptor_t descs[2];
    uint32_t before;

    memset(&zero, 0, sizeof(zero));
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &zero));
    receive(right, 0, 8, 1);
    receive(right, 0, 8, 2);
    prepare(left, 1, &sends[0]);
    prepare(left, 2, &sends[1]);
    copy = sends[0];
    /* A list that names a request twice is refused and changes nothing. */
    descs[0].tag = GDS_TAG_SEND;
    descs[0].send = &sends[0];
    descs[1].tag = GDS_TAG_SEND;
    descs[1].send = &copy;
    CHECK_STATUS(EINVAL, gds_stream_post_descriptors(stream, 2, descs, 0));
    before = RECV_CQ(right->qp)->curr_offset;
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &waits[0], 0));
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &waits[1], 0));
    CHECK(RECV_CQ(right->qp)->curr_offset == before + 2);
#ifdef GDSYNC_EXP_VERBS
    CHECK(waits[1].peek.offset == before + 1 && waits[0].peek.offset == before);
#endif
    OK(gds_stream_post_send_all(stream, 2, sends));
    OK(gds_stream_post_wait_cq_all(stream, 2, waits));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    again = waits[0];
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &copy));
    CHECK_STATUS(EINVAL, gds_stream_post_wait_cq(stream, &again));
    CHECK_STATUS(EINVAL, gdsync_cancel_send(&copy));
    CHECK_STATUS(EINVAL, gdsync_cancel_wait(&again));
    poll_success(SEND_CQ(left->qp), 1);
    poll_success(SEND_CQ(left->qp), 2);
    poll_success(RECV_CQ(right->qp), 1);
    poll_success(RECV_CQ(right->qp), 2);
}

/* A completion cannot be polled while a wait for it is prepared. gds_post_wait_cq leaves it to the CPU, and the next wait is for the next
 * completion. */
static void polling_behind_waits(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gds_send_request_t send;
    gds_wait_request_t first, second;
    struct ibv_wc wc;
    uint32_t at;

    receive(right, 0, 8, 1);
    receive(right, 0, 8, 2);
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &first, 0));
    prepare(left, 1, &send);
    OK(gds_stream_post_send(stream, &send));
    poll_success(SEND_CQ(left->qp), 1);
    CHECK(gds_poll_cq(RECV_CQ(right->qp), 1, &wc) == 0);
#ifdef GDSYNC_EXP_VERBS
    CHECK(ibv_poll_cq(right->qp->recv_cq.cq, 1, &wc) == 0);
#endif
    at = RECV_CQ(right->qp)->curr_offset;
    OK(gds_post_wait_cq(RECV_CQ(right->qp), &first, 0));
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &second, 0));
    CHECK(RECV_CQ(right->qp)->curr_offset == at + 1);
    poll_success(RECV_CQ(right->qp), 1);
    CHECK_STATUS(EINVAL, gds_abort_wait_cq(RECV_CQ(right->qp), &first));
    /* After a wait is cancelled, the next one is for the same completion. */
    OK(gdsync_cancel_wait(&second));
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &first, 0));
    CHECK(RECV_CQ(right->qp)->curr_offset == at + 1);
    OK(gds_abort_wait_cq(RECV_CQ(right->qp), &first));
    prepare(left, 2, &send);
    OK(gds_stream_post_send(stream, &send));
    poll_success(SEND_CQ(left->qp), 2);
    poll_success(RECV_CQ(right->qp), 2);
    /* No completion is outstanding. */
    CHECK_STATUS(EINVAL, gds_prepare_wait_cq(RECV_CQ(right->qp), &first, 0));
}

/* A discarded request blocks later ones, with an error that says so, until it is cancelled. */
static void thrown_away(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gds_send_request_t lost, later;

    receive(right, 0, 8, 1);
    prepare(left, 1, &lost);
    prepare(left, 2, &later);
    /* The later request cannot be posted, and is cancelled. */
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &later));
    CHECK(strstr(gdsync_error_text(), "prepared earlier") != NULL);
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &later));
    OK(gdsync_cancel_send(&lost));
    prepare(left, 3, &later);
    OK(gds_stream_post_send(stream, &later));
    poll_success(SEND_CQ(left->qp), 3);
    poll_success(RECV_CQ(right->qp), 1);
}

/* Uses the pointers as a kernel does. Without a GPU they are the CPU's. */
static void kernels(struct rig *rig) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gds_send_request_t send;
    gds_wait_request_t wait;
    gds_mlx5_send_info_t ring;
    gds_mlx5_wait_info_t sem;
    gds_mlx5_dword_wait_info_t word;
    struct ibv_wc wc;
    uint32_t mine = 5;
    int round;

    for (round = 0; round < 3 * DEPTH; round++) {
        receive(right, 0, 8, 1);
        prepare(left, (uint64_t)round, &send);
        OK(gds_prepare_wait_cq(SEND_CQ(left->qp), &wait, 0));
        OK(gds_mlx5_get_send_info(1, &send, &ring));
        OK(gds_mlx5_get_wait_info(1, &wait, &sem));
        CHECK(!ring.membar && ring.membar_full);
        *ring.dbrec_ptr = ring.dbrec_value;
        __sync_synchronize();
        __atomic_store_n(ring.db_ptr, ring.db_value, __ATOMIC_SEQ_CST);
        for (;;) {
            uint32_t now = __atomic_load_n(sem.cqe_ptr, __ATOMIC_ACQUIRE);
            if (sem.cond == GDS_WAIT_COND_AND ? (now & sem.cqe_value) != 0 : ~(now | sem.cqe_value) != 0) {
                break;
            }
            sched_yield();
        }
        CHECK(gds_poll_cq(SEND_CQ(left->qp), 1, &wc) == 0);
        __atomic_store_n(sem.flag_ptr, sem.flag_value, __ATOMIC_RELEASE);
        poll_success(SEND_CQ(left->qp), (uint64_t)round);
        poll_success(RECV_CQ(right->qp), 1);
    }
    CHECK_STATUS(EINVAL, gds_mlx5_get_send_info(1, &send, &ring));
    CHECK_STATUS(EINVAL, gds_mlx5_get_wait_info(1, &wait, &sem));
    OK(gds_mlx5_get_dword_wait_info(&mine, 6, GDS_MEMORY_HOST, &word));
    CHECK(word.ptr == &mine && word.value == 6);
}

/* A full queue returns ENOMEM, prepares nothing, and names the failed request. */
static void full(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gds_send_request_t sends[1024];
    struct ibv_sge sge = sge_of(left, 0, 8);
    gds_send_wr wr = send_of(&sge, 0), *bad = NULL;
    int count, status = 0, i;

    for (count = 0; count < 1024; count++) {
        status = gds_prepare_send(left->qp, &wr, &bad, &sends[count]);
        if (status) {
            break;
        }
    }
    CHECK(status == ENOMEM && bad == &wr && count >= DEPTH);
    for (i = 0; i < count; i += 32) {
        int part = count - i < 32 ? count - i : 32, k;
        for (k = 0; k < part; k++) {
            receive(right, 0, 8, 1);
        }
        OK(gds_stream_post_send_all(stream, part, &sends[i]));
        for (k = 0; k < part; k++) {
            poll_success(SEND_CQ(left->qp), 0);
            poll_success(RECV_CQ(right->qp), 1);
        }
    }
}

/* A write to unregistered memory: the waiting stream goes on, a poll returns the error, and the queue pair refuses work. */
static void failure(CUstream stream) {
    struct rig rig;
    struct side *left = &rig.sides[0], *right = &rig.sides[1];
    struct ibv_sge sge;
    gds_send_wr wr, *bad = NULL;
    struct ibv_wc wc;

    rig_open(&rig, IBV_QPT_RC);
    sge = sge_of(left, 0, 8);
    wr = send_of(&sge, 11);
    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    wr.wr.rdma.remote_addr = 0x1000;
    wr.wr.rdma.rkey = right->mr->rkey ^ 0xff00;
    OK(gds_stream_queue_send(stream, left->qp, &wr, &bad));
    OK(gds_stream_wait_cq(stream, SEND_CQ(left->qp), 0));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    wc = poll_one(SEND_CQ(left->qp));
    CHECK(wc.wr_id == 11 && wc.status == IBV_WC_REM_ACCESS_ERR);
    CHECK_STATUS(EIO, gds_post_send(left->qp, &wr, &bad));
    CHECK(bad == &wr);
    rig_close(&rig);

    /* An abort wakes a stream that waits for a message that never comes. */
    rig_open(&rig, IBV_QPT_RC);
    receive(right, 0, 8, 12);
    OK(gds_stream_wait_cq(stream, RECV_CQ(right->qp), 0));
    CHECK_STATUS(ETIMEDOUT, gdsync_stream_synchronize(stream, 5));
    OK(gdsync_abort_qp(right->qp));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(poll_one(RECV_CQ(right->qp)).status == IBV_WC_WR_FLUSH_ERR);
    rig_close(&rig);
}

/* Destroys a queue pair with prepared work and a waiting stream. */
static void gone(CUstream stream) {
    struct rig rig;
    gds_send_request_t send;
    gds_wait_request_t wait;

    rig_open(&rig, IBV_QPT_RC);
    prepare(&rig.sides[0], 1, &send);
    receive(&rig.sides[1], 0, 8, 1);
    receive(&rig.sides[1], 0, 8, 2);
    OK(gds_stream_wait_cq(stream, RECV_CQ(rig.sides[1].qp), 0));
    OK(gds_prepare_wait_cq(RECV_CQ(rig.sides[1].qp), &wait, 0));
    rig_close(&rig);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &send));
    CHECK_STATUS(EINVAL, gds_stream_post_wait_cq(stream, &wait));
    CHECK_STATUS(EINVAL, gds_destroy_qp(rig.sides[0].qp));
}

int main(void) {
    struct rig rig;
    CUstream stream = gdsync_soft_stream_create();

    CHECK(stream != NULL);
    rig_open(&rig, IBV_QPT_RC);
    copies(&rig, stream);
    polling_behind_waits(&rig, stream);
    thrown_away(&rig, stream);
    full(&rig, stream);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    kernels(&rig);
    rig_close(&rig);
    failure(stream);
    gone(stream);
    OK(gdsync_soft_stream_destroy(stream));
    puts("requests ok");
    return 0;
}
