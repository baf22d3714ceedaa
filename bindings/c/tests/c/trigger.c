/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Triggers: one word releases sends of several queue pairs, by a stream, by the CPU, and by the program's store.
 */
#include "common.h"

enum { PEERS = 3, BYTES = 8 };

struct peers {
    struct rig rigs[PEERS]; /* of one context and domain; their left sides have the trigger */
    gdsync_trigger_t *trigger;
};

static void open_peers(struct peers *peers) {
    struct ibv_context *context = gdsync_soft_open(NULL);
    struct ibv_pd *pd = gdsync_alloc_pd(context);
    int i;

    CHECK(pd != NULL);
    peers->trigger = gdsync_trigger_create(pd, context);
    CHECK(peers->trigger != NULL && *peers->trigger->word == 0);
    for (i = 0; i < PEERS; i++) {
        struct rig *rig = &peers->rigs[i];
        gds_qp_init_attr_t attr;
        memset(rig, 0, sizeof(*rig));
        rig->context = context;
        rig->pd = pd;
        OK(gdsync_query_port(context, 1, &rig->port));
        memset(&attr, 0, sizeof(attr));
        attr.cap.max_send_wr = attr.cap.max_recv_wr = DEPTH;
        attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
        attr.qp_type = IBV_QPT_RC;
        rig->sides[0].qp = gdsync_trigger_create_qp(peers->trigger, &attr, -1, GDS_CREATE_QP_DEFAULT);
        CHECK(rig->sides[0].qp != NULL && attr.send_cq == SEND_CQ(rig->sides[0].qp)->cq);
        make_memory(rig, &rig->sides[0]);
        make_side(rig, &rig->sides[1], IBV_QPT_RC, -1, GDS_CREATE_QP_DEFAULT);
        to_ready(rig, &rig->sides[0], &rig->sides[1], IBV_QPT_RC);
        to_ready(rig, &rig->sides[1], &rig->sides[0], IBV_QPT_RC);
    }
}

static void close_peers(struct peers *peers) {
    struct ibv_context *context = peers->rigs[0].context;
    struct ibv_pd *pd = peers->rigs[0].pd;
    int i, side;

    for (i = 0; i < PEERS; i++) {
        for (side = 0; side < 2; side++) {
            OK(gds_destroy_qp(peers->rigs[i].sides[side].qp));
            OK(gdsync_dereg_mr(peers->rigs[i].sides[side].mr));
            free(peers->rigs[i].sides[side].buffer);
        }
    }
    CHECK_STATUS(EBUSY, gdsync_dealloc_pd(pd));
    OK(gdsync_trigger_free(peers->trigger));
    CHECK_STATUS(EINVAL, gdsync_trigger_free(peers->trigger));
    OK(gdsync_dealloc_pd(pd));
    OK(gdsync_soft_close(context));
}

/* Prepares a write of a value to the right side. */
static void prepare(struct rig *rig, uint8_t value, gds_send_request_t *request) {
    struct ibv_sge sge = sge_of(&rig->sides[0], 0, BYTES);
    gds_send_wr wr = send_of(&sge, value), *bad = NULL;
    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)rig->sides[1].buffer;
    wr.wr.rdma.rkey = rig->sides[1].mr->rkey;
    memset(rig->sides[0].buffer, value, BYTES);
    OK(gds_prepare_send(rig->sides[0].qp, &wr, &bad, request));
}

static void has_arrived(struct peers *peers, uint8_t value) {
    int i;
    for (i = 0; i < PEERS; i++) {
        (void)poll_success(SEND_CQ(peers->rigs[i].sides[0].qp), value);
        CHECK(peers->rigs[i].sides[1].buffer[0] == value);
    }
}

/* A stream's batch has sends to all peers, and writes the word once. */
static void by_a_stream(struct peers *peers) {
    CUstream stream = gdsync_soft_stream_create();
    gds_send_request_t requests[PEERS];
    int i;

    for (i = 0; i < PEERS; i++) {
        prepare(&peers->rigs[i], 11, &requests[i]);
    }
    OK(gds_stream_post_send_all(stream, PEERS, requests));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(*(volatile uint64_t *)peers->trigger->word == gdsync_trigger_word(PEERS));
    has_arrived(peers, 11);
    OK(gdsync_soft_stream_destroy(stream));
}

/* The program takes the tickets and releases them by one store. */
static void by_the_program(struct peers *peers) {
    gds_send_request_t requests[PEERS], plain;
    struct ibv_sge sge = sge_of(&peers->rigs[0].sides[1], 0, BYTES);
    gds_send_wr wr = send_of(&sge, 1), *bad = NULL;
    struct ibv_wc wc;
    uint64_t ticket = 0;
    int i;

    for (i = 0; i < PEERS; i++) {
        prepare(&peers->rigs[i], 22, &requests[i]);
    }
    /* The lowest ticket first. */
    for (i = 0; i < PEERS; i++) {
        OK(gdsync_send_ticket(&requests[i], &ticket));
        CHECK(ticket == (uint64_t)(PEERS + 1 + i));
    }
    CHECK_STATUS(EINVAL, gdsync_send_ticket(&requests[0], &ticket));
    CHECK(gds_poll_cq(SEND_CQ(peers->rigs[0].sides[0].qp), 1, &wc) == 0);
    __atomic_store_n(peers->trigger->word, gdsync_trigger_word(ticket), __ATOMIC_RELEASE);
    has_arrived(peers, 22);

    for (i = 0; i < PEERS; i++) {
        prepare(&peers->rigs[i], 33, &requests[i]);
        OK(gdsync_send_ticket(&requests[i], &ticket));
    }
    OK(gdsync_trigger_release(peers->trigger, ticket));
    OK(gdsync_trigger_release(peers->trigger, 1));
    has_arrived(peers, 33);

    /* A ticket out of order, and one without a trigger: the send is cancelled. */
    prepare(&peers->rigs[0], 44, &requests[0]);
    prepare(&peers->rigs[1], 44, &requests[1]);
    CHECK_STATUS(EINVAL, gdsync_send_ticket(&requests[1], &ticket));
    OK(gdsync_cancel_send(&requests[0]));
    OK(gds_prepare_send(peers->rigs[0].sides[1].qp, &wr, &bad, &plain));
    CHECK_STATUS(EINVAL, gdsync_send_ticket(&plain, &ticket));
    CHECK_STATUS(EINVAL, gdsync_cancel_send(&plain));
}

/* Another stream may continue once the first has written its ticket, which the library checks. */
static void on_another_stream(struct peers *peers) {
    CUstream first = gdsync_soft_stream_create(), second = gdsync_soft_stream_create();
    gds_send_request_t request;
    gds_descriptor_t wait;
    uint32_t gate = 0;
    int status;

    CHECK(first != NULL && second != NULL);
    wait.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&wait.wait32, &gate, 1, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(first, 1, &wait, 0));
    prepare(&peers->rigs[0], 55, &request);
    OK(gds_stream_post_send(first, &request));
    prepare(&peers->rigs[1], 66, &request);
    CHECK_STATUS(EBUSY, gds_stream_post_send(second, &request));
    CHECK(strstr(gdsync_error_text(), "trigger") != NULL);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    (void)poll_success(SEND_CQ(peers->rigs[0].sides[0].qp), 55);
    /* The library may not have noticed yet that the first stream has passed. */
    do {
        prepare(&peers->rigs[1], 66, &request);
        status = gds_stream_post_send(second, &request);
    } while (status == EBUSY);
    CHECK(status == 0);
    (void)poll_success(SEND_CQ(peers->rigs[1].sides[0].qp), 66);
    OK(gdsync_stream_synchronize(second, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(first));
    OK(gdsync_soft_stream_destroy(second));
}

int main(void) {
    struct peers peers;
    open_peers(&peers);
    by_a_stream(&peers);
    by_the_program(&peers);
    on_another_stream(&peers);
    close_peers(&peers);
    puts("trigger ok");
    return 0;
}
