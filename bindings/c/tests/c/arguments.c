/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Null and bad arguments of every function return EINVAL, or the errno in the table, and a text. Prints each function's name after its
  * checks, for the test to compare with the exported ones.
 */
#include "common.h"

#include <gdsync/team.h>

static struct rig rig;
static CUstream stream;
static struct gds_cq nobody;

static void nothing(void *argument) { (void)argument; }

/* Checks that the failed call has set a text. */
static void said(const char *name) {
    size_t length = strlen(name);
    CHECK(strncmp(gdsync_error_text(), name, length) == 0 && gdsync_error_text()[length] == ':');
    CHECK(strlen(gdsync_error_text()) > length + 8);
}

#define BAD(wanted, function, ...)                                                                                             \
    do {                                                                                                                       \
        CHECK_STATUS(wanted, function(__VA_ARGS__));                                                                           \
        said(#function);                                                                                                       \
        puts(#function);                                                                                                       \
    } while (0)

#define BAD_POINTER(wanted, function, ...)                                                                                     \
    do {                                                                                                                       \
        errno = 0;                                                                                                             \
        CHECK(function(__VA_ARGS__) == NULL);                                                                                  \
        CHECK_STATUS(wanted, errno);                                                                                           \
        said(#function);                                                                                                       \
        puts(#function);                                                                                                       \
    } while (0)

#define BAD_COUNT(wanted, function, ...)                                                                                       \
    do {                                                                                                                       \
        errno = 0;                                                                                                             \
        CHECK_STATUS(-1, function(__VA_ARGS__));                                                                               \
        CHECK_STATUS(wanted, errno);                                                                                           \
        said(#function);                                                                                                       \
        puts(#function);                                                                                                       \
    } while (0)

static void queue_pairs(void) {
    struct gds_qp *qp = rig.sides[0].qp, copy;
    gds_qp_init_attr_t attr;
    struct ibv_qp_attr to;
    struct ibv_recv_wr recv, *bad_recv = NULL;
    struct ibv_wc wc;
    int value;

    memset(&attr, 0, sizeof(attr));
    memset(&copy, 0, sizeof(copy));
    memset(&to, 0, sizeof(to));
    memset(&recv, 0, sizeof(recv));
    BAD(EINVAL, gds_query_param, GDS_PARAM_VERSION, NULL);
    BAD(EINVAL, gds_query_param, GDS_NUM_PARAMS, &value);
    attr.qp_type = IBV_QPT_RC;
    BAD_POINTER(EINVAL, gds_create_qp, NULL, rig.context, &attr, -1, 0);
    BAD_POINTER(EINVAL, gds_create_qp, rig.pd, NULL, &attr, -1, 0);
    BAD_POINTER(EINVAL, gds_create_qp, rig.pd, rig.context, NULL, -1, 0);
    BAD_POINTER(EINVAL, gds_create_qp, rig.pd, rig.context, &attr, -1, 1 << 20);
    BAD_POINTER(EINVAL, gds_create_qp, rig.pd, rig.context, &attr, -2, 0);
    BAD_POINTER(EOPNOTSUPP, gds_create_qp, rig.pd, rig.context, &attr, -1, GDS_CREATE_QP_WQ_ON_GPU);
    attr.srq = (struct ibv_srq *)&attr;
    BAD_POINTER(EOPNOTSUPP, gds_create_qp, rig.pd, rig.context, &attr, -1, 0);
    attr.srq = NULL;
    attr.qp_type = IBV_QPT_RAW_PACKET;
    BAD_POINTER(EINVAL, gds_create_qp, rig.pd, rig.context, &attr, -1, 0);
    BAD(EINVAL, gds_destroy_qp, NULL);
    BAD(EINVAL, gds_destroy_qp, &copy);
    BAD(EINVAL, gds_modify_qp, NULL, &to, 0);
    BAD(EINVAL, gds_modify_qp, qp, NULL, 0);
    BAD(EINVAL, gds_modify_qp, &copy, &to, 0);
    to.qp_state = (enum ibv_qp_state)99;
    BAD(EINVAL, gds_modify_qp, qp, &to, IBV_QP_STATE);
    BAD(EINVAL, gds_post_recv, NULL, &recv, &bad_recv);
    BAD(EINVAL, gds_post_recv, qp, NULL, &bad_recv);
    recv.num_sge = -1;
    BAD(EINVAL, gds_post_recv, qp, &recv, &bad_recv);
    CHECK(bad_recv == &recv);
    recv.num_sge = 1;
    BAD(EINVAL, gds_post_recv, qp, &recv, NULL);
    BAD_COUNT(EINVAL, gds_poll_cq, NULL, 1, &wc);
    BAD_COUNT(EINVAL, gds_poll_cq, &nobody, 1, &wc);
    BAD_COUNT(EINVAL, gds_poll_cq, SEND_CQ(qp), 1, NULL);
    BAD_COUNT(EINVAL, gds_poll_cq, SEND_CQ(qp), -1, &wc);
#ifdef GDSYNC_EXP_VERBS
    BAD(EINVAL, gdsync_post_recv, NULL, &recv, &bad_recv);
    BAD(EINVAL, gdsync_post_recv, qp->qp, NULL, &bad_recv);
    BAD_COUNT(EINVAL, gdsync_poll_cq, NULL, 1, &wc);
    BAD_COUNT(EINVAL, gdsync_poll_cq, SEND_CQ(qp)->cq, 1, NULL);
#endif
}

static void sends(void) {
    struct gds_qp *qp = rig.sides[0].qp, copy;
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr good = send_of(&sge, 0), wr = good, *bad = NULL;
    gds_send_request_t request;
    struct ibv_sge sges[2];
    size_t i;

    memset(&copy, 0, sizeof(copy));
    memset(&request, 0, sizeof(request));
    BAD(EINVAL, gds_post_send, NULL, &wr, &bad);
    BAD(EINVAL, gds_post_send, &copy, &wr, &bad);
    BAD(EINVAL, gds_post_send, qp, NULL, &bad);
    BAD(EINVAL, gds_prepare_send, NULL, &wr, &bad, &request);
    BAD(EINVAL, gds_prepare_send, qp, NULL, &bad, &request);
    BAD(EINVAL, gds_prepare_send, qp, &wr, &bad, NULL);
    BAD(EINVAL, gds_stream_queue_send, stream, NULL, &wr, &bad);
    BAD(EINVAL, gds_stream_queue_send, stream, qp, NULL, &bad);
    for (i = 0; i < 6; i++) {
        wr = good;
        bad = NULL;
        switch (i) {
        case 0: set_opcode(&wr, 77); break;
        case 1: set_flags(&wr, IBV_SEND_SIGNALED | 1 << 20); break;
        case 2: wr.num_sge = -5; break;
        case 3: wr.sg_list = NULL; break;
        case 4: wr.num_sge = 100000; break;
        default:
            set_opcode(&wr, IBV_WR_ATOMIC_FETCH_AND_ADD);
            wr.num_sge = 0;
            break;
        }
        BAD(EINVAL, gds_post_send, qp, &wr, &bad);
        CHECK(bad == &wr);
        BAD(EINVAL, gds_prepare_send, qp, &wr, &bad, &request);
        BAD(EINVAL, gds_stream_queue_send, stream, qp, &wr, NULL);
    }
    wr = good;
    set_flags(&wr, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    sge.length = 4096;
    BAD(EINVAL, gds_post_send, qp, &wr, &bad);
    /* Lengths without memory, whose copies would take 8 GiB. */
    sges[0] = sges[1] = sge;
    sges[0].length = sges[1].length = ~(uint32_t)0;
    wr.sg_list = sges;
    wr.num_sge = 2;
    BAD(EINVAL, gds_post_send, qp, &wr, &bad);
    CHECK(strstr(gdsync_error_text(), "is 8589934590, but the queue pair takes ") != NULL);
    BAD(EINVAL, gds_stream_post_send, stream, NULL);
    BAD(EINVAL, gds_stream_post_send, stream, &request);
    BAD(EINVAL, gds_stream_post_send_all, stream, 0, &request);
    BAD(EINVAL, gds_stream_post_send_all, stream, -1, &request);
    BAD(EINVAL, gds_stream_post_send_all, stream, 1, NULL);
    BAD(EINVAL, gdsync_cancel_send, NULL);
    BAD(EINVAL, gdsync_cancel_send, &request);
}

static void waits(void) {
    struct gds_cq *cq = SEND_CQ(rig.sides[0].qp);
    gds_wait_request_t request;
    uint32_t word = 0;
    int i;

    memset(&request, 0, sizeof(request));
    BAD(EINVAL, gds_prepare_wait_cq, NULL, &request, 0);
    BAD(EINVAL, gds_prepare_wait_cq, &nobody, &request, 0);
    BAD(EINVAL, gds_prepare_wait_cq, cq, NULL, 0);
    BAD(EINVAL, gds_prepare_wait_cq, cq, &request, 1);
    BAD(EINVAL, gds_append_wait_cq, NULL, &word, 1);
    BAD(EINVAL, gds_append_wait_cq, &request, NULL, 1);
    BAD(EINVAL, gds_append_wait_cq, &request, &word, 1);
    BAD(EINVAL, gds_stream_post_wait_cq, stream, NULL);
    BAD(EINVAL, gds_stream_post_wait_cq, stream, &request);
    BAD(EINVAL, gds_stream_post_wait_cq_all, stream, 0, &request);
    BAD(EINVAL, gds_stream_post_wait_cq_all, stream, 1, NULL);
    BAD(EINVAL, gds_stream_wait_cq, stream, NULL, 0);
    BAD(EINVAL, gds_stream_wait_cq, stream, cq, 1);
    BAD(EINVAL, gds_post_wait_cq, NULL, &request, 0);
    BAD(EINVAL, gds_post_wait_cq, cq, NULL, 0);
    BAD(EINVAL, gds_post_wait_cq, cq, &request, 1);
    BAD(EINVAL, gds_post_wait_cq, cq, &request, 0);
    BAD(EINVAL, gds_abort_wait_cq, NULL, &request);
    BAD(EINVAL, gds_abort_wait_cq, cq, NULL);
    BAD(EINVAL, gdsync_cancel_wait, NULL);
    BAD(EINVAL, gdsync_cancel_wait, &request);

    receive(&rig.sides[0], 0, 8, 1);
    OK(gds_prepare_wait_cq(RECV_CQ(rig.sides[0].qp), &request, 0));
    for (i = 0; i < GDS_WAIT_INFO_MAX_OPS - 2; i++) {
        OK(gds_append_wait_cq(&request, &word, 1));
    }
    BAD(ENOMEM, gds_append_wait_cq, &request, &word, 1);
    BAD(EINVAL, gds_append_wait_cq, &request, (uint32_t *)((uintptr_t)&word + 2), 1);
    OK(gdsync_cancel_wait(&request));
}

static void descriptors(void) {
    gds_descriptor_t desc;
    gds_wait_value32_t wait;
    gds_write_value32_t write;
    gds_write_memory_t memory;
    uint32_t word = 0;
    uint8_t bytes[8];
    uint32_t *odd = (uint32_t *)((uintptr_t)&word + 1);
    gds_send_request_t zero;

    BAD(EINVAL, gds_prepare_wait_value32, NULL, &word, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, NULL, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, odd, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, &word, 0, (gds_wait_cond_flag_t)4, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, &word, 0, GDS_WAIT_COND_EQ, 0);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, &word, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST | GDS_MEMORY_GPU);
    BAD(EINVAL, gds_prepare_wait_value32, &wait, &word, 0, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST | GDS_WRITE_PRE_BARRIER);
    BAD(EINVAL, gds_prepare_write_value32, NULL, &word, 0, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_write_value32, &write, NULL, 0, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_write_value32, &write, &word, 0, GDS_MEMORY_HOST | GDS_WAIT_POST_FLUSH);
    BAD(EINVAL, gds_prepare_write_memory, NULL, bytes, bytes, 1, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_write_memory, &memory, NULL, bytes, 1, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_write_memory, &memory, bytes, NULL, 1, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_prepare_write_memory, &memory, bytes, bytes, 1, 1 << 9);

    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, NULL, 0);
    BAD(EINVAL, gds_post_descriptors, 1, NULL, 0);
    desc.tag = (gds_tag_t)5;
    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, &desc, 0);
    BAD(EINVAL, gds_post_descriptors, 1, &desc, 0);
    desc.tag = GDS_TAG_SEND;
    desc.send = NULL;
    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, &desc, 0);
    memset(&zero, 0, sizeof(zero));
    desc.send = &zero;
    BAD(EINVAL, gds_post_descriptors, 1, &desc, 0);
    desc.tag = GDS_TAG_WAIT;
    desc.wait = NULL;
    BAD(EINVAL, gds_post_descriptors, 1, &desc, 0);
    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, &desc, 1);
    BAD(EINVAL, gds_post_descriptors, 1, &desc, 1);
    /* A wait that no value satisfies is refused. */
    desc.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&desc.wait32, &word, 0, GDS_WAIT_COND_AND, GDS_MEMORY_HOST));
    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, &desc, 0);
    desc.tag = GDS_TAG_WRITE_MEMORY;
    OK(gds_prepare_write_memory(&desc.writemem, bytes, bytes, (size_t)1 << 40, GDS_MEMORY_HOST));
    BAD(EINVAL, gds_stream_post_descriptors, stream, 1, &desc, 0);
}

static void the_rest(void) {
    gds_mem_desc_t memory;
    gds_send_request_t send;
    gds_wait_request_t wait;
    gds_mlx5_send_info_t ring;
    gds_mlx5_wait_info_t sem;
    gds_mlx5_dword_wait_info_t word_info;
    struct ibv_port_attr port;
    struct ibv_ah_attr path;
    union ibv_gid gid;
    uint32_t word = 0;

    memset(&memory, 0, sizeof(memory));
    memset(&send, 0, sizeof(send));
    memset(&wait, 0, sizeof(wait));
    memset(&path, 0, sizeof(path));
    BAD(EINVAL, gds_alloc_mapped_memory, NULL, 1, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_alloc_mapped_memory, &memory, 0, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_alloc_mapped_memory, &memory, 1, GDS_MEMORY_IO);
    BAD(ENOMEM, gds_alloc_mapped_memory, &memory, ~(size_t)0, GDS_MEMORY_HOST);
    BAD(EINVAL, gds_free_mapped_memory, NULL);
    BAD(EINVAL, gds_free_mapped_memory, &memory);
    BAD(EINVAL, gds_mlx5_get_dword_wait_info, NULL, 0, GDS_MEMORY_HOST, &word_info);
    BAD(EINVAL, gds_mlx5_get_dword_wait_info, &word, 0, GDS_MEMORY_HOST, NULL);
    BAD(EINVAL, gds_mlx5_get_dword_wait_info, &word, 0, 0, &word_info);
    BAD(EINVAL, gds_mlx5_get_send_info, 1, NULL, &ring);
    BAD(EINVAL, gds_mlx5_get_send_info, 1, &send, NULL);
    BAD(EINVAL, gds_mlx5_get_send_info, 0, &send, &ring);
    BAD(EINVAL, gds_mlx5_get_send_info, 1, &send, &ring);
    BAD(EINVAL, gds_mlx5_get_wait_info, 1, NULL, &sem);
    BAD(EINVAL, gds_mlx5_get_wait_info, 1, &wait, NULL);
    BAD(EINVAL, gds_mlx5_get_wait_info, -1, &wait, &sem);
    BAD(EINVAL, gds_mlx5_get_wait_info, 1, &wait, &sem);

    BAD_POINTER(ENODEV, gdsync_soft_open, "no such card");
    BAD(EINVAL, gdsync_soft_close, NULL);
    BAD(EINVAL, gdsync_soft_close, (struct ibv_context *)&word);
    BAD(EBUSY, gdsync_soft_close, rig.context);
    BAD_POINTER(EINVAL, gdsync_alloc_pd, NULL);
    BAD(EINVAL, gdsync_dealloc_pd, NULL);
    BAD(EBUSY, gdsync_dealloc_pd, rig.pd);
    BAD_POINTER(EINVAL, gdsync_reg_mr, NULL, &word, 4, 0);
    BAD_POINTER(EINVAL, gdsync_reg_mr, rig.pd, NULL, 4, 0);
    BAD(EINVAL, gdsync_dereg_mr, NULL);
    BAD(EINVAL, gdsync_query_port, NULL, 1, &port);
    BAD(EINVAL, gdsync_query_port, rig.context, 1, NULL);
    BAD(EINVAL, gdsync_query_port, rig.context, 99, &port);
    BAD(EINVAL, gdsync_query_gid, NULL, 1, 0, &gid);
    BAD(EINVAL, gdsync_query_gid, rig.context, 1, 0, NULL);
    BAD_POINTER(EINVAL, gdsync_create_ah, NULL, &path);
    BAD_POINTER(EINVAL, gdsync_create_ah, rig.pd, NULL);
    BAD(EINVAL, gdsync_destroy_ah, NULL);

    BAD(EINVAL, gdsync_soft_stream_destroy, NULL);
    BAD(EINVAL, gdsync_soft_stream_destroy, (CUstream)&word);
    BAD(EINVAL, gdsync_soft_stream_launch, NULL, nothing, NULL);
    BAD(EINVAL, gdsync_soft_stream_launch, stream, NULL, NULL);
    BAD(EINVAL, gdsync_stream_forget, stream);
    BAD(EINVAL, gdsync_stream_keep, stream, 2);
    BAD(EINVAL, gdsync_stream_keep, (CUstream)(uintptr_t)0x7fffff7, 0);
    BAD(EINVAL, gdsync_stream_go_on, (CUstream)(uintptr_t)0x7fffff7);
    OK(gdsync_stream_keep(stream, GDSYNC_STREAM_NEVER_CAPTURED));
    BAD(EINVAL, gdsync_abort_qp, NULL);
    BAD(EINVAL, gdsync_forget_memory, NULL, 1);
    BAD(ETIMEDOUT, gdsync_stream_synchronize, stream, 1);
}

static void persistent(void) {
    gds_send_wr send_wr;
    struct ibv_recv_wr recv_wr;
    struct ibv_wc wc;
    gdsync_request_t *none = NULL;
    uint64_t word = 0;

    memset(&send_wr, 0, sizeof(send_wr));
    memset(&recv_wr, 0, sizeof(recv_wr));
    BAD_POINTER(EINVAL, gdsync_send_init, NULL, &send_wr);
    BAD_POINTER(EINVAL, gdsync_send_init, rig.sides[0].qp, NULL);
    BAD_POINTER(EINVAL, gdsync_recv_init, NULL, &recv_wr);
    BAD_POINTER(EINVAL, gdsync_recv_init, rig.sides[0].qp, NULL);
    BAD(EINVAL, gdsync_start_all, stream, 1, NULL);
    BAD(EINVAL, gdsync_start_all, stream, 1, &none);
    BAD(EINVAL, gdsync_start_all, (CUstream)(uintptr_t)0x7fffff7, 0, NULL);
    BAD(EINVAL, gdsync_wait_all, stream, 1, NULL);
    BAD(EINVAL, gdsync_wait_all, stream, 1, &none);
    BAD(EINVAL, gdsync_request_complete, NULL, &wc, 0);
    BAD(EINVAL, gdsync_request_complete, (gdsync_request_t *)&word, &wc, 0);
    BAD(EINVAL, gdsync_request_complete, NULL, NULL, 0);
    BAD(EINVAL, gdsync_request_free, NULL);
    BAD(EINVAL, gdsync_request_free, (gdsync_request_t *)&word);
}

static void held(void) {
    gdsync_trigger_t *trigger = gdsync_trigger_create(rig.pd, rig.context), no_trigger;
    gdsync_ready_word_t *word = gdsync_ready_word_create(rig.pd, rig.context), copy;
    gdsync_request_t *count, *none = NULL;

    CHECK(trigger != NULL && word != NULL);
    copy = *word;
    no_trigger = *trigger;
    count = gdsync_count_init(rig.sides[0].qp, (uint64_t)(uintptr_t)word->word, word->rkey);
    CHECK(count != NULL);
    BAD_POINTER(EINVAL, gdsync_ready_word_create, NULL, rig.context);
    BAD_POINTER(EINVAL, gdsync_ready_word_create, rig.pd, NULL);
    BAD(EINVAL, gdsync_ready_word_free, NULL);
    BAD(EINVAL, gdsync_ready_word_free, &copy);
    BAD(EINVAL, gdsync_send_behind, NULL, word);
    BAD(EINVAL, gdsync_send_behind, (gdsync_request_t *)&copy, word);
    BAD(EINVAL, gdsync_send_behind, count, NULL);
    BAD(EINVAL, gdsync_send_behind, count, &copy);
    BAD_POINTER(EINVAL, gdsync_count_init, NULL, 8, 0);
    BAD_POINTER(EINVAL, gdsync_count_init, (struct gds_qp *)&copy, 8, 0);
    BAD(EINVAL, gdsync_start_all_by_trigger, stream, NULL, 1, &count);
    BAD(EINVAL, gdsync_start_all_by_trigger, stream, &no_trigger, 1, &count);
    BAD(EINVAL, gdsync_start_all_by_trigger, stream, trigger, 1, NULL);
    BAD(EINVAL, gdsync_start_all_by_trigger, stream, trigger, 1, &none);
    BAD(EINVAL, gdsync_start_all_by_trigger, (CUstream)(uintptr_t)0x7fffff7, trigger, 0, NULL);
    OK(gdsync_request_free(count));
    OK(gdsync_ready_word_free(word));
    OK(gdsync_trigger_free(trigger));
}

static void kept(void) {
    gdsync_cache_t *cache = gdsync_cache_create(rig.pd, rig.context, 0, 0), *no_cache = (gdsync_cache_t *)&rig;
    gdsync_trigger_t *trigger = gdsync_trigger_create(rig.pd, rig.context);
    gdsync_cache_statistics_t statistics;
    gdsync_region_t region;
    gdsync_trigger_t copy;
    gds_qp_init_attr_t attr;
    gds_send_request_t request;
    uint64_t ticket = 0;
    char byte = 0;

    CHECK(cache != NULL && trigger != NULL);
    memset(&region, 0, sizeof(region));
    memset(&attr, 0, sizeof(attr));
    memset(&request, 0, sizeof(request));
    copy = *trigger;
    BAD_POINTER(EINVAL, gdsync_stream_wait_cq_checked, stream, NULL);
    BAD_POINTER(EINVAL, gdsync_stream_wait_cq_checked, stream, &nobody);
    BAD(EINVAL, gdsync_status_wait, NULL, 0);
    BAD(EINVAL, gdsync_status_free, (gdsync_status_t *)&byte);
    BAD_POINTER(EINVAL, gdsync_cache_create, NULL, rig.context, 0, 0);
    BAD_POINTER(EINVAL, gdsync_cache_create, rig.pd, NULL, 0, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get, no_cache, &byte, 1, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get, cache, NULL, 1, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get, cache, &byte, 0, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get, cache, &byte, ~(size_t)0, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get, cache, &byte, 1, 1 << 20);
    BAD_POINTER(EINVAL, gdsync_cache_get_gpu, NULL, 0, 4096, 1, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get_gpu, cache, 0, 0, 1, 0);
    BAD_POINTER(EINVAL, gdsync_cache_get_gpu, cache, -1, 4096, 1, 0);
    BAD(EINVAL, gdsync_cache_release, NULL);
    BAD(EINVAL, gdsync_cache_release, &region);
    BAD_COUNT(EINVAL, gdsync_cache_invalidate, NULL, &byte, 1);
    BAD_COUNT(EINVAL, gdsync_cache_invalidate, cache, &byte, 0);
    BAD(EINVAL, gdsync_cache_statistics, cache, NULL);
    BAD(EINVAL, gdsync_cache_statistics, no_cache, &statistics);
    BAD(EINVAL, gdsync_cache_free, no_cache);
    BAD_POINTER(EINVAL, gdsync_trigger_create, NULL, rig.context);
    BAD_POINTER(EINVAL, gdsync_trigger_create_qp, &copy, &attr, -1, 0);
    BAD_POINTER(EINVAL, gdsync_trigger_create_qp, trigger, NULL, -1, 0);
    BAD_POINTER(EINVAL, gdsync_trigger_create_qp, trigger, &attr, -1, 1 << 20);
    BAD(EINVAL, gdsync_send_ticket, NULL, &ticket);
    BAD(EINVAL, gdsync_send_ticket, &request, NULL);
    BAD(EINVAL, gdsync_send_ticket, &request, &ticket);
    BAD(EINVAL, gdsync_trigger_release, &copy, 1);
    BAD(EINVAL, gdsync_trigger_free, &copy);
    OK(gdsync_trigger_free(trigger));
    OK(gdsync_cache_free(cache));
}

static int no_gather(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    memcpy(all, own, bytes);
    return 0;
}

static void teams(void) {
    gdsync_connection_t connection;
    gdsync_bootstrap_t *alone = gdsync_bootstrap_with(0, 1, no_gather, NULL, 1000), *no_bootstrap = (gdsync_bootstrap_t *)&rig;
    gdsync_team_t *no_team = (gdsync_team_t *)&rig, *team;
    gdsync_segment_t *no_segment = (gdsync_segment_t *)&rig;
    uint32_t id = 0;
    char byte = 0;

    setenv("GDSYNC_RANK", "no number", 1);
    BAD_POINTER(EINVAL, gdsync_bootstrap_from_env, 1);
    BAD_POINTER(EINVAL, gdsync_bootstrap_join, 0, 1, NULL, 1);
    BAD_POINTER(EINVAL, gdsync_bootstrap_join, 1, 1, "a job", 1);
    BAD_POINTER(EINVAL, gdsync_bootstrap_with, 0, 1, NULL, NULL, 1);
    BAD_POINTER(EINVAL, gdsync_bootstrap_with, 2, 1, no_gather, NULL, 1);
    BAD_COUNT(EINVAL, gdsync_bootstrap_rank, NULL);
    BAD_COUNT(EINVAL, gdsync_bootstrap_size, no_bootstrap);
    BAD(EINVAL, gdsync_bootstrap_all_gather, NULL, &byte, 1, &byte);
    BAD(EINVAL, gdsync_bootstrap_all_gather, alone, NULL, 1, &byte);
    BAD(EINVAL, gdsync_bootstrap_all_gather, alone, &byte, 1, NULL);
    BAD(EINVAL, gdsync_bootstrap_barrier, NULL);
    BAD(EINVAL, gdsync_bootstrap_free, no_bootstrap);
    memset(&connection, 0, sizeof(connection));
    BAD(EINVAL, gdsync_bootstrap_connect, alone, 1, NULL);
    BAD(EINVAL, gdsync_bootstrap_connect, alone, 1, &connection);
    connection.qp = rig.sides[0].qp;
    BAD(EINVAL, gdsync_bootstrap_connect, no_bootstrap, 1, &connection);
    BAD_POINTER(EINVAL, gdsync_team_create, NULL, rig.pd, rig.context, NULL);
    BAD_POINTER(EINVAL, gdsync_team_create, alone, NULL, rig.context, NULL);
    BAD_POINTER(EINVAL, gdsync_team_create, alone, rig.pd, NULL, NULL);
    team = gdsync_team_create(alone, rig.pd, rig.context, NULL);
    CHECK(team != NULL);
    BAD_COUNT(EINVAL, gdsync_team_rank, NULL);
    BAD_COUNT(EINVAL, gdsync_team_size, no_team);
    BAD(EINVAL, gdsync_team_barrier, no_team);
    BAD(EINVAL, gdsync_team_flush, NULL, 0, 1);
    BAD(EINVAL, gdsync_team_flush, team, 1, 1);
    BAD_COUNT(EINVAL, gdsync_team_is_dead, NULL, 0);
    BAD_COUNT(EINVAL, gdsync_team_shrink, no_team);
    BAD(EINVAL, gdsync_team_free, NULL);
    BAD_POINTER(EINVAL, gdsync_segment_allocate, NULL, 8, 1);
    BAD_POINTER(EINVAL, gdsync_segment_allocate_gpu, team, -1, 8, 1);
    BAD_POINTER(EINVAL, gdsync_segment_register, team, NULL, 8, 1);
    BAD_POINTER(EINVAL, gdsync_segment_register, team, &byte, 0, 1);
    BAD_POINTER(EINVAL, gdsync_segment_register_gpu, team, 0, 0, 8, 1);
    BAD_POINTER(EINVAL, gdsync_segment_register_gpu, team, -1, 4096, 8, 1);
    BAD_POINTER(EINVAL, gdsync_segment_data, NULL);
    BAD(EINVAL, gdsync_segment_free, no_segment);
    BAD(EINVAL, gdsync_put, team, 0, 1, NULL);
    BAD(EINVAL, gdsync_put, no_team, 0, 0, NULL);
    BAD(EINVAL, gdsync_stream_put, stream, team, 0, 1, NULL);
    BAD(EINVAL, gdsync_stream_put, (CUstream)(uintptr_t)0x7fffff7, team, 0, 0, NULL);
    BAD(EINVAL, gdsync_stream_wait_notifications, stream, team, no_segment, 1, &id);
    BAD(EINVAL, gdsync_stream_exchange, stream, team, 0, 0, NULL, NULL, 0, NULL);
    BAD(EINVAL, gdsync_stream_quiet, stream, NULL, 0, 0);
    BAD(EINVAL, gdsync_notification_expect_from, NULL, 0, 1, 0);
    BAD(EINVAL, gdsync_notification_wait, no_segment, 0, 1, &id, 0);
    BAD(EINVAL, gdsync_notification_reset, NULL, 0, &id);
    BAD(EINVAL, gdsync_notification_check, NULL, 0);
    OK(gdsync_team_free(team));
}

int main(void) {
    uint32_t gate = 0;
    gds_descriptor_t desc;

    rig_open(&rig, IBV_QPT_RC);
    stream = gdsync_soft_stream_create();
    CHECK(stream != NULL);
    queue_pairs();
    sends();
    waits();
    descriptors();
    persistent();
    held();
    kept();
    teams();
    /* For the wait that times out. */
    desc.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&desc.wait32, &gate, 1, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(stream, 1, &desc, 0));
    the_rest();
    __atomic_store_n(&gate, 1, __ATOMIC_SEQ_CST);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(stream));
    rig_close(&rig);
    return 0;
}
