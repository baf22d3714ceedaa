/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Persistent requests: made once, started and waited for on streams, completed by the CPU; and refusals.
 */
#include "common.h"

enum { BYTES = 64, ROUNDS = 100 };

static gdsync_request_t *send_request(struct side *side, size_t offset, uint64_t wr_id) {
    struct ibv_sge sge = sge_of(side, offset, BYTES);
    gds_send_wr wr = send_of(&sge, wr_id);
    gdsync_request_t *made = gdsync_send_init(side->qp, &wr);
    CHECK(made != NULL);
    return made;
}

static struct ibv_recv_wr receive_of(struct ibv_sge *sge, uint64_t wr_id) {
    struct ibv_recv_wr wr;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    return wr;
}

static gdsync_request_t *recv_request(struct side *side, size_t offset, uint64_t wr_id) {
    struct ibv_sge sge = sge_of(side, offset, BYTES);
    struct ibv_recv_wr wr = receive_of(&sge, wr_id);
    gdsync_request_t *made = gdsync_recv_init(side->qp, &wr);
    CHECK(made != NULL);
    return made;
}

struct count {
    uint8_t *in, *out;
};

/* Sends back the received number plus one. */
static void add_one(void *argument) {
    struct count *count = (struct count *)argument;
    size_t i;
    for (i = 0; i < BYTES; i++) {
        count->out[i] = (uint8_t)(count->in[i] + 1);
    }
}

/* Two streams answer each other without the CPU. */
static void rounds(struct rig *rig) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    CUstream streams[2];
    gdsync_request_t *there[2], *back[2];
    struct count counts[2];
    struct ibv_wc wc;
    int i, round;

    for (i = 0; i < 2; i++) {
        streams[i] = gdsync_soft_stream_create();
        CHECK(streams[i] != NULL);
        counts[i].in = rig->sides[i].buffer + BYTES;
        counts[i].out = rig->sides[i].buffer;
    }
    there[0] = send_request(left, 0, 10);
    there[1] = recv_request(right, BYTES, 11);
    back[0] = recv_request(left, BYTES, 12);
    back[1] = send_request(right, 0, 13);
    for (round = 0; round < ROUNDS; round++) {
        gdsync_request_t *both[2] = {back[0], there[0]};
        OK(gdsync_start_all(streams[0], 2, both));
        OK(gdsync_wait_all(streams[0], 2, both));
        OK(gdsync_soft_stream_launch(streams[0], add_one, &counts[0]));
        OK(gdsync_start_all(streams[1], 1, &there[1]));
        OK(gdsync_wait_all(streams[1], 1, &there[1]));
        OK(gdsync_soft_stream_launch(streams[1], add_one, &counts[1]));
        OK(gdsync_start_all(streams[1], 1, &back[1]));
        OK(gdsync_wait_all(streams[1], 1, &back[1]));
    }
    for (i = 0; i < 2; i++) {
        OK(gdsync_stream_synchronize(streams[i], PATIENCE_MS));
    }
    /* In each round, either side adds one. */
    CHECK(left->buffer[0] == (uint8_t)(2 * ROUNDS) && right->buffer[BYTES - 1] == (uint8_t)(2 * ROUNDS - 1));
    OK(gdsync_request_complete(back[0], &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 12 && wc.opcode == IBV_WC_RECV && wc.byte_len == BYTES);
    OK(gdsync_request_complete(there[0], &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 10 && wc.opcode == IBV_WC_SEND);
    CHECK_STATUS(EINVAL, gdsync_request_complete(there[0], &wc, 0));
    CHECK(gds_poll_cq(RECV_CQ(left->qp), 1, &wc) == 0 && gds_poll_cq(SEND_CQ(right->qp), 1, &wc) == 0);
    /* A free of a request checks whether it has completed. */
    for (i = 0; i < 2; i++) {
        OK(gdsync_request_free(there[i]));
        OK(gdsync_request_free(back[i]));
        OK(gdsync_soft_stream_destroy(streams[i]));
    }
}

/* A write with immediate data, for an ordinary receive of the program. */
static void writes(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge sge = sge_of(left, 0, BYTES);
    gds_send_wr wr = send_of(&sge, 20);
    gdsync_request_t *write;
    struct ibv_wc wc;

    set_opcode(&wr, IBV_WR_RDMA_WRITE_WITH_IMM);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)(right->buffer + 1000);
    wr.wr.rdma.rkey = right->mr->rkey;
    set_immediate(&wr, 0x01020304);
    write = gdsync_send_init(left->qp, &wr);
    CHECK(write != NULL);
    memset(left->buffer, 0x5a, BYTES);
    receive(right, 2000, 8, 21);
    OK(gdsync_start_all(stream, 1, &write));
    OK(gdsync_request_complete(write, &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 20 && wc.opcode == IBV_WC_RDMA_WRITE);
    wc = poll_success(RECV_CQ(right->qp), 21);
    CHECK(wc.imm_data == 0x01020304 && right->buffer[1000] == 0x5a && right->buffer[1000 + BYTES - 1] == 0x5a);
    OK(gdsync_request_free(write));
}

static void refusals(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    gdsync_request_t *send = send_request(left, 0, 30), *receives[2], *nothing = NULL, *gone;
    struct ibv_sge sge = sge_of(left, 0, BYTES);
    gds_send_wr wr = send_of(&sge, 0), next = wr;
    struct ibv_recv_wr recv_wr = receive_of(&sge, 0), recv_next = recv_wr;
    struct ibv_wc wc;

    /* Work requests that cannot be persistent. */
    CHECK(gdsync_send_init(NULL, &wr) == NULL && errno == EINVAL);
    CHECK(gdsync_send_init(left->qp, NULL) == NULL && errno == EINVAL);
    wr.next = &next;
    CHECK(gdsync_send_init(left->qp, &wr) == NULL && errno == EOPNOTSUPP);
    wr.next = NULL;
    set_opcode(&wr, IBV_WR_RDMA_READ);
    CHECK(gdsync_send_init(left->qp, &wr) == NULL && errno == EINVAL);
    set_opcode(&wr, IBV_WR_SEND);
    set_flags(&wr, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    CHECK(gdsync_send_init(left->qp, &wr) == NULL && errno == EINVAL);
    set_flags(&wr, IBV_SEND_SIGNALED);
    wr.num_sge = 3;
    CHECK(gdsync_recv_init(left->qp, NULL) == NULL && errno == EINVAL);
    recv_wr.next = &recv_next;
    CHECK(gdsync_recv_init(left->qp, &recv_wr) == NULL && errno == EOPNOTSUPP);

    /* A refused list starts nothing. */
    OK(gdsync_start_all(stream, 0, NULL));
    OK(gdsync_wait_all(stream, 0, NULL));
    CHECK_STATUS(EINVAL, gdsync_start_all(stream, 1, NULL));
    CHECK_STATUS(EINVAL, gdsync_start_all(stream, 1, &nothing));
    receives[0] = recv_request(right, 0, 31);
    receives[1] = receives[0];
    CHECK_STATUS(EBUSY, gdsync_start_all(stream, 2, receives));
    CHECK_STATUS(EINVAL, gdsync_wait_all(stream, 1, receives));
    CHECK_STATUS(EINVAL, gdsync_request_complete(receives[0], &wc, 0));
    CHECK_STATUS(EINVAL, gdsync_request_complete(receives[0], NULL, 0));

    /* Active requests. */
    OK(gdsync_start_all(stream, 1, receives));
    CHECK_STATUS(EBUSY, gdsync_start_all(stream, 1, receives));
    CHECK_STATUS(EBUSY, gdsync_request_free(receives[0]));
    CHECK_STATUS(ETIMEDOUT, gdsync_request_complete(receives[0], &wc, 20));
    CHECK(strstr(gdsync_error_text(), "within 20 ms: queue pair 0x") != NULL);
    CHECK(strstr(gdsync_error_text(), ", which has no send outstanding") != NULL);
    OK(gdsync_start_all(stream, 1, &send));
    OK(gdsync_request_complete(receives[0], &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 31);
    OK(gdsync_request_complete(send, &wc, PATIENCE_MS));
    gone = send;
    OK(gdsync_request_free(send));
    CHECK_STATUS(EINVAL, gdsync_request_free(gone));
    CHECK_STATUS(EINVAL, gdsync_start_all(stream, 1, &gone));
    CHECK_STATUS(EINVAL, gdsync_request_free(NULL));
    OK(gdsync_request_free(receives[0]));
}

/* The remote side refuses a write: the stream goes on, the completion has the reason, and the queue pair has failed. */
static void failures(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge sge = sge_of(left, 0, BYTES);
    gds_send_wr wr = send_of(&sge, 40);
    gdsync_request_t *write, *receive_of_it = recv_request(left, 0, 41);
    struct ibv_wc wc;

    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)right->buffer;
    wr.wr.rdma.rkey = right->mr->rkey + 1;
    write = gdsync_send_init(left->qp, &wr);
    CHECK(write != NULL);
    OK(gdsync_start_all(stream, 1, &write));
    OK(gdsync_wait_all(stream, 1, &write));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_request_complete(write, &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 40);
    CHECK_STATUS(EIO, gdsync_start_all(stream, 1, &write));
    CHECK_STATUS(EIO, gdsync_start_all(stream, 1, &receive_of_it));
    /* Destroying the queue pair frees the requests. */
}

/* Destroying a queue pair frees its requests, one of which is active. */
static void gone_with_the_queue_pair(void) {
    struct rig rig;
    CUstream stream = gdsync_soft_stream_create();
    gdsync_request_t *active, *idle;
    struct ibv_wc wc;

    rig_open(&rig, IBV_QPT_RC);
    active = recv_request(&rig.sides[0], 0, 50);
    idle = send_request(&rig.sides[0], 0, 51);
    OK(gdsync_start_all(stream, 1, &active));
    OK(gdsync_wait_all(stream, 1, &active));
    rig_close(&rig);
    CHECK_STATUS(EINVAL, gdsync_request_complete(active, &wc, 0));
    CHECK_STATUS(EINVAL, gdsync_start_all(stream, 1, &idle));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(stream));
}

/* Datagrams are refused. */
static void datagrams(void) {
    struct rig rig;
    struct ibv_sge sge;
    gds_send_wr wr;

    rig_open(&rig, IBV_QPT_UD);
    sge = sge_of(&rig.sides[0], 0, BYTES);
    wr = send_of(&sge, 0);
    CHECK(gdsync_send_init(rig.sides[0].qp, &wr) == NULL && errno == EOPNOTSUPP);
    rig_close(&rig);
}

int main(void) {
    struct rig rig;
    CUstream stream = gdsync_soft_stream_create();

    CHECK(stream != NULL);
    rig_open(&rig, IBV_QPT_RC);
    rounds(&rig);
    writes(&rig, stream);
    refusals(&rig, stream);
    failures(&rig, stream);
    rig_close(&rig);
    OK(gdsync_soft_stream_destroy(stream));
    gone_with_the_queue_pair();
    datagrams();
    puts("persistent ok");
    return 0;
}
