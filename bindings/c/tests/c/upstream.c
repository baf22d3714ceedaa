/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * The dialect of upstream verbs, as programs of libgdsync's branch use it: libibverbs' structs, pointers to completion queues, gds_poll_cq and
  * gds_post_recv. Two queue pairs on a software card exchange messages; and refusals.
 */
#define GDSYNC_UPSTREAM_VERBS
#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/mlx5.h>
#include <gdsync/team.h>
#include <gdsync/tools.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef IBV_EXP_WR_SEND
#error the old verbs are not included
#endif

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d, gdsync: %s)\n", __FILE__, __LINE__, #condition, errno, gdsync_error_text()); \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

#define CHECK_STATUS(wanted, call) CHECK((call) == (wanted))
#define OK(call) CHECK_STATUS(0, call)

enum { BUFFER = 4096, BYTES = 64, ROUNDS = 20, PATIENCE_MS = 30000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static gdsync_trigger_t *trigger;
static gds_qp_t *qps[2];
static uint8_t *buffers[2];
static struct ibv_mr *regions[2];

static void connect_to(gds_qp_t *qp, const gds_qp_t *remote) {
    struct ibv_port_attr port;
    struct ibv_qp_attr attr;

    OK(gdsync_query_port(context, 1, &port));
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    OK(gds_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = port.active_mtu;
    attr.dest_qp_num = remote->qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.dlid = port.lid;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    attr.ah_attr.grh.hop_limit = 1;
    OK(gdsync_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    OK(gds_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                         IBV_QP_MIN_RNR_TIMER));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    OK(gds_modify_qp(qp, &attr,
                     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC));
}

static gds_qp_init_attr_t attributes(void) {
    gds_qp_init_attr_t attr;
    memset(&attr, 0, sizeof(attr));
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 32;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = 16;
    attr.qp_type = IBV_QPT_RC;
    return attr;
}

/* The second queue pair has a trigger. */
static void open_all(void) {
    int i;

    context = gdsync_soft_open(NULL);
    pd = gdsync_alloc_pd(context);
    CHECK(pd != NULL);
    trigger = gdsync_trigger_create(pd, context);
    CHECK(trigger != NULL);
    for (i = 0; i < 2; i++) {
        gds_qp_init_attr_t attr = attributes();
        qps[i] = i == 0 ? gds_create_qp(pd, context, &attr, -1, GDS_CREATE_QP_DEFAULT)
                        : gdsync_trigger_create_qp(trigger, &attr, -1, GDS_CREATE_QP_DEFAULT);
        CHECK(qps[i] != NULL && qps[i]->dev_context == context && qps[i]->qp->qp_num != 0);
        CHECK(attr.send_cq == qps[i]->send_cq->cq && attr.recv_cq == qps[i]->recv_cq->cq);
        CHECK(attr.send_cq != attr.recv_cq && attr.cap.max_inline_data >= 16);
        CHECK(posix_memalign((void **)&buffers[i], 4096, BUFFER) == 0);
        memset(buffers[i], 0, BUFFER);
        regions[i] = gdsync_reg_mr(pd, buffers[i], BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        CHECK(regions[i] != NULL);
    }
    connect_to(qps[0], qps[1]);
    connect_to(qps[1], qps[0]);
}

static void close_all(void) {
    int i;
    for (i = 0; i < 2; i++) {
        OK(gds_destroy_qp(qps[i]));
        OK(gdsync_dereg_mr(regions[i]));
        free(buffers[i]);
    }
    OK(gdsync_trigger_free(trigger));
    OK(gdsync_dealloc_pd(pd));
    OK(gdsync_soft_close(context));
}

static struct ibv_sge sge_of(int side, size_t offset) {
    struct ibv_sge sge;
    sge.addr = (uint64_t)(uintptr_t)(buffers[side] + offset);
    sge.length = BYTES;
    sge.lkey = regions[side]->lkey;
    return sge;
}

static gds_send_wr send_of(struct ibv_sge *sge, uint64_t wr_id) {
    gds_send_wr wr;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    return wr;
}

static void receive(int side, size_t offset, uint64_t wr_id) {
    struct ibv_sge sge = sge_of(side, offset);
    struct ibv_recv_wr wr, *bad = NULL;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    OK(gds_post_recv(qps[side], &wr, &bad));
}

static struct ibv_wc poll_one(gds_cq_t *cq, uint64_t wr_id) {
    struct ibv_wc wc;
    int n;
    while ((n = gds_poll_cq(cq, 1, &wc)) == 0) {
        sched_yield();
    }
    CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
    return wc;
}

/* Two streams answer each other; requests are prepared and posted as descriptors, or queued directly. */
static void rounds(void) {
    CUstream streams[2];
    uint64_t round;
    int i;

    for (i = 0; i < 2; i++) {
        streams[i] = gdsync_soft_stream_create();
    }
    for (round = 1; round <= ROUNDS; round++) {
        struct ibv_sge there = sge_of(0, 0), back = sge_of(1, 1024);
        gds_send_wr wr = send_of(&there, round), *bad = NULL;
        gds_send_request_t send;
        gds_wait_request_t wait;
        gds_descriptor_t descs[2];

        receive(1, 1024, round);
        receive(0, 1024, round);
        memset(buffers[0], (int)round, BYTES);
        OK(gds_prepare_send(qps[0], &wr, &bad, &send));
        OK(gds_prepare_wait_cq(qps[0]->recv_cq, &wait, 0));
        descs[0].tag = GDS_TAG_SEND;
        descs[0].send = &send;
        descs[1].tag = GDS_TAG_WAIT;
        descs[1].wait = &wait;
        OK(gds_stream_post_descriptors(streams[0], 2, descs, 0));
        wr = send_of(&back, round);
        OK(gds_stream_wait_cq(streams[1], qps[1]->recv_cq, 0));
        OK(gds_stream_queue_send(streams[1], qps[1], &wr, &bad));
        for (i = 0; i < 2; i++) {
            OK(gdsync_stream_synchronize(streams[i], PATIENCE_MS));
            (void)poll_one(qps[i]->recv_cq, round);
            (void)poll_one(qps[i]->send_cq, round);
        }
        CHECK(buffers[0][1024] == round && buffers[0][1024 + BYTES - 1] == round);
    }
    CHECK(*(volatile uint64_t *)trigger->word == gdsync_trigger_word(ROUNDS));
    for (i = 0; i < 2; i++) {
        OK(gdsync_soft_stream_destroy(streams[i]));
    }
}

/* A list, whose requests keep their order, immediate data and flags. */
static void lists(void) {
    struct ibv_sge sge = sge_of(0, 0);
    gds_send_wr wrs[3], *bad = NULL;
    struct ibv_wc wc;
    int i;

    for (i = 0; i < 3; i++) {
        wrs[i] = send_of(&sge, 100 + (uint64_t)i);
        wrs[i].next = i < 2 ? &wrs[i + 1] : NULL;
        receive(1, 2048, 200 + (uint64_t)i);
    }
    wrs[0].opcode = IBV_WR_RDMA_WRITE;
    wrs[0].send_flags = 0;
    wrs[0].wr.rdma.remote_addr = (uint64_t)(uintptr_t)(buffers[1] + 3072);
    wrs[0].wr.rdma.rkey = regions[1]->rkey;
    wrs[1].opcode = IBV_WR_SEND_WITH_IMM;
    wrs[1].imm_data = 0x01020304;
    wrs[2].send_flags |= IBV_SEND_INLINE;
    sge.length = 16;
    memset(buffers[0], 77, BYTES);
    OK(gds_post_send(qps[0], wrs, &bad));
    (void)poll_one(qps[0]->send_cq, 101);
    (void)poll_one(qps[0]->send_cq, 102);
    wc = poll_one(qps[1]->recv_cq, 200);
    CHECK((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && wc.imm_data == 0x01020304 && wc.byte_len == 16);
    (void)poll_one(qps[1]->recv_cq, 201);
    CHECK(buffers[1][3072] == 77 && buffers[1][3072 + 15] == 77 && buffers[1][3072 + 16] == 0);

    /* The second request is refused and named; the first is posted. */
    wrs[1].opcode = (enum ibv_wr_opcode)77;
    CHECK_STATUS(EINVAL, gds_post_send(qps[0], wrs, &bad));
    CHECK(bad == &wrs[1] && strstr(gdsync_error_text(), "gds_post_send: exp_opcode is 0x4d") != NULL);
    /* Nothing of the list is prepared or queued. */
    bad = NULL;
    wrs[1].opcode = IBV_WR_SEND;
    wrs[2].send_flags = 1u << 20;
    {
        gds_send_request_t request;
        CUstream stream = gdsync_soft_stream_create();
        CHECK_STATUS(EINVAL, gds_prepare_send(qps[0], wrs, &bad, &request));
        CHECK(bad == &wrs[2]);
        bad = NULL;
        CHECK_STATUS(EINVAL, gds_stream_queue_send(stream, qps[0], wrs, &bad));
        CHECK(bad == &wrs[2]);
        CHECK_STATUS(EINVAL, gds_stream_queue_send(stream, qps[0], wrs, NULL));
        OK(gdsync_soft_stream_destroy(stream));
    }
    /* A circular list. */
    bad = NULL;
    wrs[2].next = wrs;
    CHECK_STATUS(EINVAL, gds_post_send(qps[0], wrs, &bad));
    CHECK(bad == NULL && strstr(gdsync_error_text(), "65536") != NULL);
}

static void persistent(void) {
    struct ibv_sge sge = sge_of(0, 0);
    gds_send_wr wr = send_of(&sge, 300), next = wr;
    gdsync_request_t *request = gdsync_send_init(qps[0], &wr);
    CUstream stream = gdsync_soft_stream_create();
    struct ibv_wc wc;

    CHECK(request != NULL);
    /* The third receive of `lists` is left over. */
    OK(gdsync_start_all(stream, 1, &request));
    OK(gdsync_request_complete(request, &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 300);
    (void)poll_one(qps[1]->recv_cq, 202);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_request_free(request));
    wr.next = &next;
    CHECK(gdsync_send_init(qps[0], &wr) == NULL && errno == EOPNOTSUPP);
    CHECK(gdsync_send_init(qps[0], NULL) == NULL && errno == EINVAL);
    CHECK(gdsync_send_init(NULL, &wr) == NULL && errno == EINVAL);
    OK(gdsync_soft_stream_destroy(stream));
}

static void refusals(void) {
    gds_qp_init_attr_t attr = attributes();
    struct ibv_sge sge = sge_of(0, 0);
    gds_send_wr wr = send_of(&sge, 1), *bad = NULL;
    gds_send_request_t request;
    gds_qp_t copy = *qps[0];
    gds_cq_t queue = *qps[0]->send_cq;
    struct ibv_wc wc;

    CHECK(gds_create_qp(NULL, context, &attr, -1, 0) == NULL && errno == EINVAL);
    CHECK(gds_create_qp(pd, context, NULL, -1, 0) == NULL && errno == EINVAL);
    CHECK(gdsync_trigger_create_qp(trigger, NULL, -1, 0) == NULL && errno == EINVAL);
    CHECK(gdsync_trigger_create_qp(NULL, &attr, -1, 0) == NULL && errno == EINVAL);
    attr.qp_type = IBV_QPT_RAW_PACKET;
    CHECK(gds_create_qp(pd, context, &attr, -1, 0) == NULL && errno == EINVAL);
    CHECK(strncmp(gdsync_error_text(), "gds_create_qp:", 14) == 0);
    CHECK_STATUS(EINVAL, gds_post_send(NULL, &wr, &bad));
    CHECK_STATUS(EINVAL, gds_post_send(&copy, &wr, &bad));
    CHECK_STATUS(EINVAL, gds_post_send(qps[0], NULL, &bad));
    CHECK_STATUS(EINVAL, gds_prepare_send(qps[0], NULL, &bad, &request));
    CHECK_STATUS(EINVAL, gds_prepare_send(qps[0], &wr, &bad, NULL));
    CHECK_STATUS(EINVAL, gds_stream_queue_send((CUstream)(uintptr_t)0x7fffff7, qps[0], NULL, &bad));
    CHECK(gds_poll_cq(&queue, 1, &wc) == -1 && errno == EINVAL);
    wr.num_sge = -1;
    CHECK_STATUS(EINVAL, gds_post_send(qps[0], &wr, &bad));
    CHECK(bad == &wr);
    CHECK_STATUS(EINVAL, gds_post_send(qps[0], &wr, NULL));
}

int main(void) {
    open_all();
    rounds();
    lists();
    persistent();
    refusals();
    close_all();
    puts("upstream ok");
    return 0;
}
