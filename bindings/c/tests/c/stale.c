/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Handles of destroyed objects and other values return EINVAL and a text with the value. The library must not access the memory: run this
  * under valgrind.
 */
#include "common.h"

/* Checks that the error names the value and the remedy. */
static void said(const void *value, const char *word) {
    char number[32];
    snprintf(number, sizeof(number), "%#lx", (unsigned long)(uintptr_t)value);
    CHECK(strstr(gdsync_error_text(), number) != NULL);
    CHECK(strstr(gdsync_error_text(), word) != NULL);
    CHECK(strchr(gdsync_error_text() + strcspn(gdsync_error_text(), ":") + 1, ':') != NULL);
}

#define STALE(value, word, call)                                                                                               \
    do {                                                                                                                       \
        CHECK_STATUS(EINVAL, call);                                                                                            \
        said((const void *)(value), word);                                                                                     \
    } while (0)

#define STALE_COUNT(value, word, call)                                                                                         \
    do {                                                                                                                       \
        errno = 0;                                                                                                             \
        CHECK_STATUS(-1, call);                                                                                                \
        CHECK_STATUS(EINVAL, errno);                                                                                           \
        said((const void *)(value), word);                                                                                     \
    } while (0)

#define STALE_POINTER(value, word, call)                                                                                       \
    do {                                                                                                                       \
        errno = 0;                                                                                                             \
        CHECK((call) == NULL);                                                                                                 \
        CHECK_STATUS(EINVAL, errno);                                                                                           \
        said((const void *)(value), word);                                                                                     \
    } while (0)

/* Every function with a queue pair or one of its completion queues. */
static void no_queue_pair(struct rig *rig, struct gds_qp *qp, CUstream stream, const char *word) {
    struct ibv_sge sge = sge_of(&rig->sides[0], 0, 8);
    gds_send_wr send = send_of(&sge, 1), *bad = NULL;
    struct gds_cq *queues[2];
    struct ibv_recv_wr recv, *bad_recv = NULL;
    struct ibv_qp_attr attr;
    gds_send_request_t request;
    gds_wait_request_t wait;
    struct ibv_wc wc;
    int i;

    memset(&attr, 0, sizeof(attr));
    memset(&recv, 0, sizeof(recv));
    memset(&wait, 0, sizeof(wait));
    STALE(qp, word, gds_post_send(qp, &send, &bad));
    STALE(qp, word, gds_prepare_send(qp, &send, &bad, &request));
    STALE(qp, word, gds_stream_queue_send(stream, qp, &send, &bad));
    /* The fast path of one element refuses them, too. */
    send.num_sge = 0;
    STALE(qp, word, gds_post_send(qp, &send, &bad));
    STALE(qp, word, gds_post_recv(qp, &recv, &bad_recv));
    STALE(qp, word, gds_modify_qp(qp, &attr, IBV_QP_STATE));
    STALE(qp, word, gdsync_abort_qp(qp));
    STALE(qp, word, gds_destroy_qp(qp));
#ifdef GDSYNC_EXP_VERBS
    queues[0] = (struct gds_cq *)((uintptr_t)qp + offsetof(struct gds_qp, send_cq));
    queues[1] = (struct gds_cq *)((uintptr_t)qp + offsetof(struct gds_qp, recv_cq));
#else
    queues[0] = (struct gds_cq *)((uintptr_t)qp + offsetof(struct gds_qp, gdsync_queues));
    queues[1] = queues[0] + 1;
#endif
    for (i = 0; i < 2; i++) {
        STALE_COUNT(queues[i], word, gds_poll_cq(queues[i], 1, &wc));
        STALE(queues[i], word, gds_prepare_wait_cq(queues[i], &wait, 0));
        STALE(queues[i], word, gds_stream_wait_cq(stream, queues[i], 0));
        STALE(queues[i], word, gds_post_wait_cq(queues[i], &wait, 0));
        STALE(queues[i], word, gds_abort_wait_cq(queues[i], &wait));
    }
}

static void queue_pairs(CUstream stream) {
    struct rig rig;
    struct gds_qp *gone[2], *qp, copy;
#ifdef GDSYNC_EXP_VERBS
    struct ibv_qp *raw;
    struct ibv_cq *queue;
    struct ibv_recv_wr recv, *bad = NULL;
    struct ibv_wc wc;
#endif
    int i;

    rig_open(&rig, IBV_QPT_RC);
    copy = *rig.sides[0].qp;
#ifdef GDSYNC_EXP_VERBS
    raw = copy.qp;
    queue = copy.send_cq.cq;
    memset(&recv, 0, sizeof(recv));
#endif
    no_queue_pair(&rig, &copy, stream, "gdsync's");
    no_queue_pair(&rig, (struct gds_qp *)(uintptr_t)0x1000, stream, "gdsync's");
    /* Addresses inside a struct, and after the last one. */
    no_queue_pair(&rig, (struct gds_qp *)((uintptr_t)rig.sides[0].qp + 4), stream, "");
    no_queue_pair(&rig, rig.sides[1].qp + 1000, stream, "gdsync's");
    for (i = 0; i < 2; i++) {
        gone[i] = rig.sides[i].qp;
        OK(gds_destroy_qp(gone[i]));
        CHECK(gone[i]->qp == NULL && gone[i]->dev_context == NULL);
    }
    for (i = 0; i < 2; i++) {
        no_queue_pair(&rig, gone[i], stream, "destroyed");
    }
#ifdef GDSYNC_EXP_VERBS
    STALE_COUNT(queue, "gone", gdsync_poll_cq(queue, 1, &wc));
    STALE(raw, "gone", gdsync_post_recv(raw, &recv, &bad));
#endif
    /* New objects have new handles, and the old handles stay stale. */
    for (i = 0; i < 64; i++) {
        struct side side;
        make_side(&rig, &side, IBV_QPT_RC, -1, 0);
        CHECK(side.qp != gone[0] && side.qp != gone[1]);
        if (i % 16 == 0) {
            no_queue_pair(&rig, gone[i / 16 % 2], stream, "destroyed");
        }
        qp = side.qp;
        OK(gds_destroy_qp(qp));
        STALE(qp, "destroyed", gds_destroy_qp(qp));
        OK(gdsync_dereg_mr(side.mr));
        free(side.buffer);
    }
    for (i = 0; i < 2; i++) {
        OK(gdsync_dereg_mr(rig.sides[i].mr));
        free(rig.sides[i].buffer);
    }
    OK(gdsync_dealloc_pd(rig.pd));
    OK(gdsync_soft_close(rig.context));
}

static void nothing(void *argument) { (void)argument; }

/* Every function with a stream. A destroyed software stream's handle is never passed to CUDA. */
static void no_stream(struct rig *rig, CUstream stream) {
    struct side *left = &rig->sides[0];
    struct ibv_sge sge = sge_of(left, 0, 8);
    gds_send_wr send = send_of(&sge, 1), *bad = NULL;
    gds_send_request_t request;
    gds_wait_request_t wait;
    gds_descriptor_t desc;
    uint32_t word = 0;

    desc.tag = GDS_TAG_WRITE_VALUE32;
    OK(gds_prepare_write_value32(&desc.write32, &word, 1, GDS_MEMORY_HOST));
    OK(gds_prepare_send(left->qp, &send, &bad, &request));
    STALE(stream, "destroyed", gds_stream_post_send(stream, &request));
    STALE(stream, "destroyed", gds_stream_post_send_all(stream, 1, &request));
    OK(gds_prepare_wait_cq(SEND_CQ(left->qp), &wait, 0));
    STALE(stream, "destroyed", gds_stream_post_wait_cq(stream, &wait));
    STALE(stream, "destroyed", gds_stream_post_wait_cq_all(stream, 1, &wait));
    OK(gdsync_cancel_wait(&wait));
    OK(gdsync_cancel_send(&request));
    STALE(stream, "destroyed", gds_stream_queue_send(stream, left->qp, &send, &bad));
    STALE(stream, "destroyed", gds_stream_wait_cq(stream, SEND_CQ(left->qp), 0));
    STALE(stream, "destroyed", gds_stream_post_descriptors(stream, 1, &desc, 0));
    STALE(stream, "destroyed", gdsync_soft_stream_launch(stream, nothing, NULL));
    STALE(stream, "destroyed", gdsync_stream_synchronize(stream, 1));
    STALE(stream, "destroyed", gdsync_stream_forget(stream));
    STALE(stream, "destroyed", gdsync_soft_stream_destroy(stream));
    CHECK(word == 0);
}

static void streams(void) {
    struct rig rig;
    CUstream gone = gdsync_soft_stream_create(), other;
    gds_descriptor_t desc;
    uint32_t word = 0;
    int i;

    CHECK(gone != NULL);
    rig_open(&rig, IBV_QPT_RC);
    /* The library has read it. */
    desc.tag = GDS_TAG_WRITE_VALUE32;
    OK(gds_prepare_write_value32(&desc.write32, &word, 1, GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(gone, 1, &desc, 0));
    OK(gdsync_soft_stream_destroy(gone));
    no_stream(&rig, gone);
    for (i = 0; i < 20; i++) {
        other = gdsync_soft_stream_create();
        /* Neither a pointer nor a special handle of CUDA. */
        CHECK(other != gone && (uintptr_t)other % 8 == 7);
        OK(gds_stream_post_descriptors(other, 1, &desc, 0));
        STALE(gone, "destroyed", gds_stream_post_descriptors(gone, 1, &desc, 0));
        OK(gdsync_soft_stream_destroy(other));
    }
    no_stream(&rig, other);
    no_stream(&rig, (CUstream)(uintptr_t)0x7fffffff7);
    STALE(&word, "software", gdsync_soft_stream_destroy((CUstream)&word));
    STALE(&word, "software", gdsync_soft_stream_launch((CUstream)&word, nothing, NULL));
    rig_close(&rig);
}

/* Objects that libibverbs makes itself. */
static void verbs(void) {
    struct rig rig;
    struct ibv_mr *region, *freed;
    struct ibv_ah_attr path;
    struct ibv_ah *ah;
    struct ibv_pd *pd;
    struct ibv_context *context, *first;
    union ibv_gid gid;
    gds_qp_init_attr_t attr;
    struct ibv_sge sge;
    gds_send_wr send, *bad = NULL;

    rig_open(&rig, IBV_QPT_UD);
    sge = sge_of(&rig.sides[0], 0, 8);
    send = send_of(&sge, 1);
    memset(&path, 0, sizeof(path));
    path.dlid = rig.port.lid;
    path.port_num = 1;
    ah = gdsync_create_ah(rig.pd, &path);
    CHECK(ah != NULL);
    STALE(ah, "region", gdsync_dereg_mr((struct ibv_mr *)ah));
    OK(gdsync_destroy_ah(ah));
    STALE(ah, "gone", gdsync_destroy_ah(ah));
    send.wr.ud.ah = ah;
    STALE(ah, "gone", gds_post_send(rig.sides[0].qp, &send, &bad));
    CHECK(bad == &send);

    region = gdsync_reg_mr(rig.pd, rig.sides[0].buffer, 4096, 0);
    CHECK(region != NULL);
    freed = region;
    OK(gdsync_dereg_mr(region));
    STALE(freed, "gone", gdsync_dereg_mr(freed));
    STALE(rig.pd, "context", gdsync_soft_close((struct ibv_context *)rig.pd));
    STALE_POINTER(&gid, "domain", gdsync_reg_mr((struct ibv_pd *)&gid, rig.sides[0].buffer, 8, 0));

    pd = rig.pd;
    first = rig.context;
    rig_close(&rig);
    STALE(pd, "gone", gdsync_dealloc_pd(pd));
    STALE_POINTER(pd, "gone", gdsync_create_ah(pd, &path));
    STALE(first, "gone", gdsync_soft_close(first));
    STALE(first, "gone", gdsync_query_port(first, 1, &rig.port));
    STALE(first, "gone", gdsync_query_gid(first, 1, 0, &gid));
    STALE_POINTER(first, "gone", gdsync_alloc_pd(first));
    context = gdsync_soft_open(NULL);
    CHECK(context != NULL);
    memset(&attr, 0, sizeof(attr));
    attr.qp_type = IBV_QPT_RC;
    STALE_POINTER(&gid, "domain", gds_create_qp((struct ibv_pd *)&gid, context, &attr, -1, 0));
    OK(gdsync_soft_close(context));
}

int main(void) {
    CUstream stream = gdsync_soft_stream_create();
    CHECK(stream != NULL);
    queue_pairs(stream);
    OK(gdsync_soft_stream_destroy(stream));
    streams();
    verbs();
    puts("stale ok");
    return 0;
}
