/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Posts sends on streams, in one call and in two, while another stream has not passed the queue pair's earlier sends, and while the stream is
  * full.
 */
#include "common.h"

/* A word for which a stream waits. */
struct gate {
    uint32_t word;
};

static void hold(CUstream stream, struct gate *gate) {
    gds_descriptor_t wait;
    gate->word = 0;
    wait.tag = GDS_TAG_WAIT_VALUE32;
    wait.wait32.ptr = &gate->word;
    wait.wait32.value = 1;
    wait.wait32.cond_flags = GDS_WAIT_COND_EQ;
    wait.wait32.flags = GDS_MEMORY_HOST;
    OK(gds_stream_post_descriptors(stream, 1, &wait, 0));
}

static void release(struct gate *gate) { __atomic_store_n(&gate->word, 1, __ATOMIC_RELEASE); }

/* Sends by one call or by two. */
static int send_on(CUstream stream, struct side *side, uint64_t wr_id, int calls) {
    struct ibv_sge sge = sge_of(side, 0, 8);
    gds_send_wr wr = send_of(&sge, wr_id), *bad = NULL;
    gds_send_request_t request;
    int status;
    if (calls == 1) {
        return gds_stream_queue_send(stream, side->qp, &wr, &bad);
    }
    OK(gds_prepare_send(side->qp, &wr, &bad, &request));
    status = gds_stream_post_send(stream, &request);
    /* The request is used up, whether posted or refused. */
    CHECK_STATUS(EINVAL, gds_stream_post_send(stream, &request));
    return status;
}

static void arrives(struct rig *rig, uint64_t wr_id) {
    poll_success(SEND_CQ(rig->sides[0].qp), wr_id);
    poll_success(RECV_CQ(rig->sides[1].qp), wr_id);
}

/* Outstanding work of one stream keeps another from the queue pair until it has passed; the library notices that itself. */
static void between_streams(int calls) {
    struct rig rig;
    struct gate gate;
    CUstream first = gdsync_soft_stream_create(), second = gdsync_soft_stream_create();
    struct side *left = &rig.sides[0], *right = &rig.sides[1];
    uint64_t wr_id = 0;
    int round;

    CHECK(first != NULL && second != NULL);
    rig_open(&rig, IBV_QPT_RC);
    for (round = 0; round < 5; round++) {
        receive(right, 0, 8, wr_id);
        receive(right, 0, 8, wr_id + 1);
        hold(first, &gate);
        OK(send_on(first, left, wr_id, calls));
        CHECK_STATUS(EBUSY, send_on(second, left, 1000, calls));
        CHECK(strstr(gdsync_error_text(), "stream") != NULL);
        CHECK_STATUS(EBUSY, send_on(second, left, 1001, calls));
        release(&gate);
        arrives(&rig, wr_id);
        /* The library may not have noticed yet that the first stream has passed. */
        while (send_on(second, left, wr_id + 1, calls) == EBUSY) {
            sched_yield();
        }
        arrives(&rig, wr_id + 1);
        OK(gdsync_stream_synchronize(second, PATIENCE_MS));
        wr_id += 2;
    }
    rig_close(&rig);
    OK(gdsync_soft_stream_destroy(first));
    OK(gdsync_soft_stream_destroy(second));
}

/* A full stream refuses posts after GDSYNC_POST_TIMEOUT_MS (20 here), until it has room. */
static void full(int calls) {
    struct rig rig;
    struct gate gate;
    CUstream stream = gdsync_soft_stream_create();
    struct side *left = &rig.sides[0], *right = &rig.sides[1];
    gds_descriptor_t write;
    uint32_t written = 0;
    int i, status = 0;

    CHECK(stream != NULL);
    rig_open(&rig, IBV_QPT_RC);
    receive(right, 0, 8, 7);
    receive(right, 0, 8, 8);
    OK(send_on(stream, left, 7, calls));
    arrives(&rig, 7);
    hold(stream, &gate);
    write.tag = GDS_TAG_WRITE_VALUE32;
    write.write32.ptr = &written;
    write.write32.flags = GDS_MEMORY_HOST;
    for (i = 0; i < 2000 && !status; i++) {
        write.write32.value = (uint32_t)i + 1;
        status = gds_stream_post_descriptors(stream, 1, &write, 0);
    }
    CHECK(status == EAGAIN && i > 1000);
    CHECK_STATUS(EAGAIN, send_on(stream, left, 1000, calls));
    CHECK_STATUS(EAGAIN, send_on(stream, left, 1001, calls));
    release(&gate);
    while ((status = send_on(stream, left, 8, calls)) == EAGAIN) {
        sched_yield();
    }
    CHECK(status == 0);
    arrives(&rig, 8);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(written == (uint32_t)i - 1);
    rig_close(&rig);
    OK(gdsync_soft_stream_destroy(stream));
}

int main(void) {
    int calls;
    for (calls = 1; calls <= 2; calls++) {
        between_streams(calls);
        full(calls);
    }
    puts("streams ok");
    return 0;
}
