/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * A program of libibverbs with its own device, domain, memory, state transitions and queue beside gdsync's, whose completions
  * and receives go by libibverbs' names in the old dialect.
 */
#include "common.h"

#include <gdsync/team.h>

enum { ROUNDS = 300, SIZE = 1024 };

static void move(struct ibv_context *context, struct ibv_qp *qp, uint32_t remote) {
    struct ibv_port_attr port;
    struct ibv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    CHECK(ibv_query_port(context, 1, &port) == 0);
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE;
    OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = remote;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.dlid = port.lid;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    CHECK(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    attr.ah_attr.grh.hop_limit = 1;
    OK(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    OK(ibv_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC));
}

/* A cache of registrations in a domain of libibverbs. */
static void kept_in(struct ibv_pd *pd, struct ibv_context *context, void *memory, const struct ibv_mr *other) {
    gdsync_cache_t *cache = gdsync_cache_create(pd, context, 0, 0);
    gdsync_region_t *region = gdsync_cache_get(cache, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(region != NULL && region->lkey != other->lkey);
    OK(gdsync_cache_release(region));
    CHECK(gdsync_cache_invalidate(cache, memory, SIZE) == 1);
    OK(gdsync_cache_free(cache));
}

static int alone(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    memcpy(all, own, bytes);
    return 0;
}

/* A team on libibverbs' objects, which writes to itself in the order of a stream. */
static void of_one(struct ibv_pd *pd, struct ibv_context *context, CUstream stream) {
    gdsync_bootstrap_t *bootstrap = gdsync_bootstrap_with(0, 1, alone, NULL, PATIENCE_MS);
    gdsync_team_t *team = gdsync_team_create(bootstrap, pd, context, NULL);
    gdsync_segment_t *segment = gdsync_segment_allocate(team, 2 * SIZE, 1);
    char *data = (char *)gdsync_segment_data(segment);
    gdsync_put_t put;
    uint32_t id = 0;

    CHECK(data != NULL);
    memset(data, 5, SIZE);
    memset(&put, 0, sizeof(put));
    put.from = put.to = segment;
    put.length = put.to_offset = SIZE;
    put.value = 1;
    OK(gdsync_stream_exchange(stream, team, 0, 1, &put, segment, 1, &id));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(data[SIZE] == 5 && data[2 * SIZE - 1] == 5);
    OK(gdsync_team_flush(team, 0, PATIENCE_MS));
    OK(gdsync_segment_free(segment));
    OK(gdsync_team_free(team));
}

int main(void) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *plain_cq;
    struct ibv_qp *plain;
    struct ibv_qp_init_attr plain_attr;
    struct ibv_qp_attr asked;
    struct ibv_mr *mr;
    gds_qp_init_attr_t attr;
    struct gds_qp *qp;
    CUstream stream = gdsync_soft_stream_create();
    static uint8_t memory[2][SIZE];
    int round;

    CHECK(list != NULL && list[0] != NULL && stream != NULL);
    context = ibv_open_device(list[0]);
    CHECK(context != NULL);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr != NULL);
    plain_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    memset(&plain_attr, 0, sizeof(plain_attr));
    plain_attr.send_cq = plain_attr.recv_cq = plain_cq;
    plain_attr.qp_type = IBV_QPT_RC;
    plain_attr.cap.max_send_wr = plain_attr.cap.max_recv_wr = 16;
    plain_attr.cap.max_send_sge = plain_attr.cap.max_recv_sge = 1;
    plain = ibv_create_qp(pd, &plain_attr);
    CHECK(plain != NULL);
    memset(&attr, 0, sizeof(attr));
    attr.qp_type = IBV_QPT_RC;
    attr.cap = plain_attr.cap;
    qp = gds_create_qp(pd, context, &attr, -1, GDS_CREATE_QP_RX_CQ_ON_GPU);
    CHECK(qp != NULL);
    move(context, qp->qp, plain->qp_num);
    move(context, plain, qp->qp->qp_num);
    CHECK(ibv_query_qp(qp->qp, &asked, IBV_QP_STATE, &plain_attr) == 0 && asked.qp_state == IBV_QPS_RTS);

    for (round = 0; round < ROUNDS; round++) {
        struct ibv_sge from = {(uint64_t)(uintptr_t)memory[0], SIZE, mr->lkey};
        struct ibv_sge to = {(uint64_t)(uintptr_t)memory[1], SIZE, mr->lkey};
        struct ibv_recv_wr recv, *bad_recv;
        gds_send_wr send, *bad;
        struct ibv_wc wc;
        memset(&recv, 0, sizeof(recv));
        recv.sg_list = &to;
        recv.num_sge = 1;
        recv.wr_id = (uint64_t)round;
        memset(memory[0], round, SIZE);
        OK(ibv_post_recv(plain, &recv, &bad_recv));
        send = send_of(&from, (uint64_t)round + 7);
        OK(gds_stream_queue_send(stream, qp, &send, &bad));
        OK(gds_stream_wait_cq(stream, SEND_CQ(qp), 0));
        OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
        wc = poll_success(SEND_CQ(qp), (uint64_t)round + 7);
        CHECK(wc.qp_num == qp->qp->qp_num && wc.opcode == IBV_WC_SEND);
        while (ibv_poll_cq(plain_cq, 1, &wc) == 0) {
            sched_yield();
        }
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)round && wc.byte_len == SIZE);
        CHECK(memcmp(memory[0], memory[1], SIZE) == 0);
        /* A receive on gdsync's queue pair. */
        recv.wr_id = (uint64_t)round + 9;
    #ifdef GDSYNC_EXP_VERBS
        OK(ibv_post_recv(qp->qp, &recv, &bad_recv));
#else
        OK(gds_post_recv(qp, &recv, &bad_recv));
#endif
        {
            struct ibv_send_wr back, *bad_back;
            memset(&back, 0, sizeof(back));
            back.sg_list = &from;
            back.num_sge = 1;
            back.opcode = IBV_WR_SEND;
            back.send_flags = IBV_SEND_SIGNALED;
            OK(ibv_post_send(plain, &back, &bad_back));
        }
        wc = poll_success(RECV_CQ(qp), (uint64_t)round + 9);
        CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == SIZE);
        while (ibv_poll_cq(plain_cq, 1, &wc) == 0) {
            sched_yield();
        }
        CHECK(wc.status == IBV_WC_SUCCESS);
    }
    kept_in(pd, context, memory[0], mr);
    of_one(pd, context, stream);
    OK(gdsync_soft_stream_destroy(stream));
    OK(gds_destroy_qp(qp));
    OK(ibv_destroy_qp(plain));
    OK(ibv_destroy_cq(plain_cq));
    OK(ibv_dereg_mr(mr));
    OK(ibv_dealloc_pd(pd));
    OK(ibv_close_device(context));
    puts("verbs ok");
    return 0;
}
