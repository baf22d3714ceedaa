/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Waits with a status for work that completes, fails, is flushed, or whose other side is dead.
 */
#include "common.h"

enum { BYTES = 64 };

static gds_send_wr write_of(struct rig *rig, struct ibv_sge *sge, uint32_t rkey) {
    gds_send_wr wr = send_of(sge, 1);
    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)(rig->sides[1].buffer + 128);
    wr.wr.rdma.rkey = rkey;
    return wr;
}

/* After the wait, a descriptor of the stream reads the status word. */
static void completes(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0];
    struct ibv_sge sge = sge_of(left, 0, BYTES);
    gds_send_wr wr = write_of(rig, &sge, rig->sides[1].mr->rkey), *bad = NULL;
    gdsync_status_t *status, *gone;
    gds_descriptor_t desc;
    uint32_t gate = 0;

    memset(left->buffer, 7, BYTES);
    /* The gate holds the work back, so the status is pending. */
    desc.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&desc.wait32, &gate, 1, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(stream, 1, &desc, 0));
    OK(gds_stream_queue_send(stream, left->qp, &wr, &bad));
    status = gdsync_stream_wait_cq_checked(stream, SEND_CQ(left->qp));
    CHECK(status != NULL && *(const volatile uint32_t *)status->word == GDSYNC_STATUS_PENDING);
    CHECK_STATUS(ETIMEDOUT, gdsync_status_wait(status, 0));
    OK(gds_prepare_wait_value32(&desc.wait32, (uint32_t *)(uintptr_t)status->word, GDSYNC_STATUS_OK, GDS_WAIT_COND_AND,
                                GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(stream, 1, &desc, 0));
    __atomic_store_n(&gate, 1, __ATOMIC_SEQ_CST);
    OK(gdsync_status_wait(status, PATIENCE_MS));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(*(const volatile uint32_t *)status->word == GDSYNC_STATUS_OK && rig->sides[1].buffer[128] == 7);
    gone = status;
    OK(gdsync_status_free(status));
    CHECK_STATUS(EINVAL, gdsync_status_wait(gone, 0));
    CHECK_STATUS(EINVAL, gdsync_status_free(gone));
    (void)poll_success(SEND_CQ(left->qp), 1);
    /* No work is outstanding. */
    CHECK(gdsync_stream_wait_cq_checked(stream, SEND_CQ(left->qp)) == NULL && errno == EINVAL);
}

/* The first send fails, and the second is flushed: the stream passes both waits. */
static void fails(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0];
    struct ibv_sge sge = sge_of(left, 0, BYTES);
    gds_send_wr wrong = write_of(rig, &sge, rig->sides[1].mr->rkey + 1), right = write_of(rig, &sge, rig->sides[1].mr->rkey);
    gds_send_wr *bad = NULL;
    gdsync_status_t *first, *second;

    wrong.next = &right;
    OK(gds_stream_queue_send(stream, left->qp, &wrong, &bad));
    first = gdsync_stream_wait_cq_checked(stream, SEND_CQ(left->qp));
    second = gdsync_stream_wait_cq_checked(stream, SEND_CQ(left->qp));
    CHECK(first != NULL && second != NULL);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK_STATUS(EIO, gdsync_status_wait(first, PATIENCE_MS));
    CHECK(strstr(gdsync_error_text(), "remote access error") != NULL);
    CHECK((*first->word & GDSYNC_STATUS_FAILED) != 0 && (*first->word & 0xff) == 0x13);
    CHECK_STATUS(ECANCELED, gdsync_status_wait(second, PATIENCE_MS));
    CHECK(strstr(gdsync_error_text(), "flushed") != NULL);
    CHECK(strstr(gdsync_error_text(), " ms before: remote access error") != NULL);
    CHECK_STATUS(EIO, gds_stream_queue_send(stream, left->qp, &right, &bad));
    OK(gdsync_status_free(first));
    OK(gdsync_status_free(second));
}

/* The other side has posted no receive: the errors of a stream, of a status and of a request say so. */
static void names_the_cause(struct rig *rig, CUstream stream) {
    static const char RNR[] = " waits for a receive of the peer (RNR), resent ";
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge from = sge_of(left, 0, BYTES);
    gds_send_wr wr = send_of(&from, 1), *bad = NULL;
    gdsync_status_t *status;
    int tries;

    OK(gds_stream_queue_send(stream, left->qp, &wr, &bad));
    status = gdsync_stream_wait_cq_checked(stream, SEND_CQ(left->qp));
    CHECK(status != NULL);
    /* Until the card has got the first refusal. */
    for (tries = 0; tries < 1000; tries++) {
        CHECK_STATUS(ETIMEDOUT, gdsync_status_wait(status, 20));
        if (strstr(gdsync_error_text(), RNR) != NULL) {
            break;
        }
    }
    CHECK(tries < 1000);
    CHECK_STATUS(ETIMEDOUT, gdsync_stream_synchronize(stream, 20));
    CHECK(strstr(gdsync_error_text(), "within 20 ms: wait for completion ") != NULL);
    CHECK(strstr(gdsync_error_text(), RNR) != NULL && strstr(gdsync_error_text(), ", peer queue pair 0x") != NULL);
    /* A program that polls gets the wait alone. */
    CHECK_STATUS(ETIMEDOUT, gdsync_stream_synchronize(stream, 0));
    CHECK(strstr(gdsync_error_text(), ": wait for completion ") != NULL && strstr(gdsync_error_text(), RNR) == NULL);
    receive(right, 128, BYTES, 2);
    OK(gdsync_status_wait(status, PATIENCE_MS));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_status_free(status));
    (void)poll_success(SEND_CQ(left->qp), 1);
    (void)poll_success(RECV_CQ(right->qp), 2);
}

/* The other side's queue pair is destroyed, so its card does not respond. */
static void peer_is_gone(CUstream stream) {
    struct rig rig;
    struct ibv_sge sge;
    gds_send_wr wr, *bad = NULL;
    gdsync_status_t *status;

    rig_open(&rig, IBV_QPT_RC);
    sge = sge_of(&rig.sides[0], 0, BYTES);
    wr = write_of(&rig, &sge, rig.sides[1].mr->rkey);
    OK(gds_destroy_qp(rig.sides[1].qp));
    OK(gds_stream_queue_send(stream, rig.sides[0].qp, &wr, &bad));
    status = gdsync_stream_wait_cq_checked(stream, SEND_CQ(rig.sides[0].qp));
    CHECK(status != NULL);
    CHECK_STATUS(EHOSTDOWN, gdsync_status_wait(status, PATIENCE_MS));
    CHECK(strstr(gdsync_error_text(), "does not answer") != NULL);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_status_free(status));
    OK(gds_destroy_qp(rig.sides[0].qp));
    OK(gdsync_dereg_mr(rig.sides[0].mr));
    OK(gdsync_dereg_mr(rig.sides[1].mr));
    free(rig.sides[0].buffer);
    free(rig.sides[1].buffer);
    OK(gdsync_dealloc_pd(rig.pd));
    OK(gdsync_soft_close(rig.context));
}

int main(void) {
    struct rig rig;
    CUstream stream = gdsync_soft_stream_create();

    CHECK(stream != NULL);
    rig_open(&rig, IBV_QPT_RC);
    completes(&rig, stream);
    names_the_cause(&rig, stream);
    fails(&rig, stream);
    rig_close(&rig);
    peer_is_gone(stream);
    OK(gdsync_soft_stream_destroy(stream));
    puts("checked ok");
    return 0;
}
