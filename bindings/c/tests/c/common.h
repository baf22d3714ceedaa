/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Helpers of the test programs: checks, and two connected queue pairs on a software card.
 */
#ifndef GDSYNC_TEST_COMMON_H
#define GDSYNC_TEST_COMMON_H

#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/mlx5.h>
#include <gdsync/tools.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the two dialects of the headers write differently. */
#ifdef GDSYNC_EXP_VERBS
#define SEND_CQ(pair) (&(pair)->send_cq)
#define RECV_CQ(pair) (&(pair)->recv_cq)
static inline void set_opcode(gds_send_wr *wr, int opcode) { wr->exp_opcode = (enum ibv_exp_wr_opcode)opcode; }
static inline void set_flags(gds_send_wr *wr, unsigned flags) { wr->exp_send_flags = flags; }
static inline void set_immediate(gds_send_wr *wr, uint32_t data) { wr->ex.imm_data = data; }
#else
#define SEND_CQ(pair) ((pair)->send_cq)
#define RECV_CQ(pair) ((pair)->recv_cq)
static inline void set_opcode(gds_send_wr *wr, int opcode) { wr->opcode = (enum ibv_wr_opcode)opcode; }
static inline void set_flags(gds_send_wr *wr, unsigned flags) { wr->send_flags = flags; }
static inline void set_immediate(gds_send_wr *wr, uint32_t data) { wr->imm_data = data; }
#endif

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d, gdsync: %s)\n", __FILE__, __LINE__, #condition, errno, gdsync_error_text()); \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

/* Checks a status, and that an error has a text. */
#define CHECK_STATUS(wanted, call)                                                                                             \
    do {                                                                                                                       \
        int status_ = (call);                                                                                                  \
        if (status_ != (wanted)) {                                                                                             \
            fprintf(stderr, "%s:%d: %s is %d, not %d (%s)\n", __FILE__, __LINE__, #call, status_, (wanted),                    \
                    gdsync_error_text());                                                                                      \
            exit(1);                                                                                                           \
        }                                                                                                                      \
    } while (0)

#define OK(call) CHECK_STATUS(0, call)

enum { BUFFER = 1 << 16, DEPTH = 64, PATIENCE_MS = 30000 };

struct side {
    struct gds_qp *qp;
    uint8_t *buffer;
    struct ibv_mr *mr;
};

struct rig {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_port_attr port;
    struct side sides[2];
};

static inline void make_memory(struct rig *rig, struct side *side) {
    CHECK(posix_memalign((void **)&side->buffer, 4096, BUFFER) == 0);
    memset(side->buffer, 0, BUFFER);
    side->mr = gdsync_reg_mr(rig->pd, side->buffer, BUFFER,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                 IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(side->mr != NULL);
}

static inline void make_side(struct rig *rig, struct side *side, enum ibv_qp_type type, int gpu_id, int flags) {
    gds_qp_init_attr_t attr;
    memset(&attr, 0, sizeof(attr));
    attr.cap.max_send_wr = DEPTH;
    attr.cap.max_recv_wr = DEPTH;
    attr.cap.max_send_sge = 2;
    attr.cap.max_recv_sge = 2;
    attr.cap.max_inline_data = 16;
    attr.qp_type = type;
    side->qp = gds_create_qp(rig->pd, rig->context, &attr, gpu_id, flags);
    CHECK(side->qp != NULL);
    CHECK(attr.send_cq == SEND_CQ(side->qp)->cq && attr.cap.max_inline_data >= 16);
    CHECK(side->qp->dev_context == rig->context && side->qp->qp->qp_num != 0);
    make_memory(rig, side);
}

static inline void to_ready(struct rig *rig, struct side *side, const struct side *remote, enum ibv_qp_type type) {
    struct ibv_qp_attr attr;
    union ibv_gid gid;
    int connected = type != IBV_QPT_UD;
    OK(gdsync_query_gid(rig->context, 1, 0, &gid));
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 0x1234;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    OK(gds_modify_qp(side->qp, &attr,
                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)));
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = rig->port.active_mtu;
    attr.dest_qp_num = remote->qp->qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.dlid = rig->port.lid;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.is_global = rig->port.link_layer == IBV_LINK_LAYER_ETHERNET;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.hop_limit = 1;
    OK(gds_modify_qp(side->qp, &attr,
                     connected ? IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
                               : IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    OK(gds_modify_qp(side->qp, &attr,
                     connected ? IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                     IBV_QP_MAX_QP_RD_ATOMIC
                               : IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static inline void rig_open_on(struct rig *rig, enum ibv_qp_type type, int gpu_id, int flags) {
    int i;
    memset(rig, 0, sizeof(*rig));
    rig->context = gdsync_soft_open(NULL);
    CHECK(rig->context != NULL);
    rig->pd = gdsync_alloc_pd(rig->context);
    CHECK(rig->pd != NULL);
    OK(gdsync_query_port(rig->context, 1, &rig->port));
    CHECK(rig->port.state == IBV_PORT_ACTIVE);
    for (i = 0; i < 2; i++) {
        make_side(rig, &rig->sides[i], type, gpu_id, flags);
    }
    for (i = 0; i < 2; i++) {
        to_ready(rig, &rig->sides[i], &rig->sides[1 - i], type);
    }
}

static inline void rig_open(struct rig *rig, enum ibv_qp_type type) { rig_open_on(rig, type, -1, GDS_CREATE_QP_DEFAULT); }

/* Destroys everything. The card closes, so no object is left on it. */
static inline void rig_close(struct rig *rig) {
    int i;
    for (i = 0; i < 2; i++) {
        OK(gds_destroy_qp(rig->sides[i].qp));
        OK(gdsync_dereg_mr(rig->sides[i].mr));
        free(rig->sides[i].buffer);
    }
    OK(gdsync_dealloc_pd(rig->pd));
    OK(gdsync_soft_close(rig->context));
}

static inline struct ibv_sge sge_of(const struct side *side, size_t offset, uint32_t length) {
    struct ibv_sge sge;
    sge.addr = (uint64_t)(uintptr_t)(side->buffer + offset);
    sge.length = length;
    sge.lkey = side->mr->lkey;
    return sge;
}

static inline gds_send_wr send_of(struct ibv_sge *sge, uint64_t wr_id) {
    gds_send_wr wr;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = sge;
    wr.num_sge = 1;
    set_opcode(&wr, IBV_WR_SEND);
    set_flags(&wr, IBV_SEND_SIGNALED);
    return wr;
}

static inline void receive(struct side *side, size_t offset, uint32_t length, uint64_t wr_id) {
    struct ibv_sge sge = sge_of(side, offset, length);
    struct ibv_recv_wr wr, *bad = NULL;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    OK(gds_post_recv(side->qp, &wr, &bad));
}

/* Polls until a completion arrives. */
static inline struct ibv_wc poll_one(struct gds_cq *cq) {
    struct ibv_wc wc;
    int n;
    while ((n = gds_poll_cq(cq, 1, &wc)) == 0) {
        sched_yield();
    }
    CHECK(n == 1);
    return wc;
}

static inline struct ibv_wc poll_success(struct gds_cq *cq, uint64_t wr_id) {
    struct ibv_wc wc = poll_one(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
    return wc;
}

#endif
