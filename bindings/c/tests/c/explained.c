/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * What errors name: the value and its limit, the missing attribute, the cause of a late flush, and the objects that are left.
 */
#include "common.h"

#include <gdsync/team.h>

static struct rig rig;

static void says(const char *words) {
    if (strstr(gdsync_error_text(), words) == NULL) {
        fprintf(stderr, "\"%s\" is not in \"%s\"\n", words, gdsync_error_text());
        exit(1);
    }
}

static void refused(gds_qp_init_attr_t *attr, const char *words) {
    CHECK(gds_create_qp(rig.pd, rig.context, attr, -1, 0) == NULL && errno == EINVAL);
    says(words);
}

static void creation(void) {
    gds_qp_init_attr_t attr;

    memset(&attr, 0, sizeof(attr));
    refused(&attr, "qp_init_attr.qp_type (not set) is 0");
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = 1 << 20;
    refused(&attr, "qp_init_attr.cap.max_send_wr is 1048576, but this device has at most 32768");
    attr.cap.max_send_wr = 16;
    attr.cap.max_recv_wr = 1 << 20;
    refused(&attr, "qp_init_attr.cap.max_recv_wr is 1048576, but this device has at most 32768");
    attr.cap.max_recv_wr = 16;
    attr.cap.max_send_sge = 200;
    refused(&attr, "qp_init_attr.cap.max_send_sge is 200, but");
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 200;
    refused(&attr, "qp_init_attr.cap.max_recv_sge is 200, but");
    attr.cap.max_recv_sge = 1;
    attr.cap.max_inline_data = 100000;
    refused(&attr, "qp_init_attr.cap.max_inline_data is 100000, but this device has at most 972");
}

static void changes(void) {
    struct side side;
    struct ibv_qp_attr attr;
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad;

    make_side(&rig, &side, IBV_QPT_RC, -1, 0);
    CHECK_STATUS(EINVAL, gds_post_send(side.qp, &wr, &bad));
    says("is not connected: call gdsync_bootstrap_connect, or gds_modify_qp, first");
    memset(&attr, 0, sizeof(attr));
    attr.qp_state = IBV_QPS_INIT;
    CHECK_STATUS(EINVAL, gds_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX));
    says("the change from RESET to INIT needs IBV_QP_ACCESS_FLAGS, which attr_mask lacks");
    attr.port_num = 9;
    CHECK_STATUS(EINVAL, gds_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
    says("attr->port_num is 9, but 1 to 1 are possible");
    attr.port_num = 1;
    OK(gds_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_RTR;
    CHECK_STATUS(EINVAL, gds_modify_qp(side.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN));
    says("needs IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, which attr_mask lacks");
    OK(gds_destroy_qp(side.qp));
    OK(gdsync_dereg_mr(side.mr));
    free(side.buffer);
}

static void verbs(void) {
    struct ibv_ah_attr address;
    struct ibv_port_attr port;
    union ibv_gid gid;

    CHECK(gdsync_reg_mr(rig.pd, &rig, sizeof(rig), IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
    says("access has IBV_ACCESS_REMOTE_WRITE, but not IBV_ACCESS_LOCAL_WRITE");
    CHECK(gdsync_reg_mr(rig.pd, (void *)(uintptr_t)0x1000, 4096, 0) == NULL && errno == EFAULT);
    says("may not read all of the 4096 bytes from 0x1000");
    memset(&address, 0, sizeof(address));
    CHECK(gdsync_create_ah(rig.pd, &address) == NULL && errno == EINVAL);
    says("attr->port_num is 0 (not set), but the device has ports 1 to 1");
    CHECK_STATUS(EINVAL, gdsync_query_port(rig.context, 7, &port));
    says("port is 7, but the device has ports 1 to 1");
    CHECK_STATUS(EINVAL, gdsync_query_gid(rig.context, 1, 99, &gid));
    says("index is 99, but the port has ");
}

static int alone(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    memcpy(all, own, bytes);
    return 0;
}

static void left(void) {
    gdsync_team_attr_t attr;
    gdsync_team_t *team;
    gdsync_segment_t *segment;
    gdsync_trigger_t *trigger = gdsync_trigger_create(rig.pd, rig.context);
    gdsync_ready_word_t *word = gdsync_ready_word_create(rig.pd, rig.context);
    gdsync_cache_t *cache = gdsync_cache_create(rig.pd, rig.context, 0, 0);
    gdsync_region_t *region = gdsync_cache_get(cache, rig.sides[0].buffer, 64, IBV_ACCESS_LOCAL_WRITE);

    memset(&attr, 0, sizeof(attr));
    attr.queues = 100000;
    CHECK(gdsync_team_create(gdsync_bootstrap_with(0, 1, alone, NULL, 1000), rig.pd, rig.context, &attr) == NULL);
    says("queues is 100000, but each takes 1 queue pairs, and the card has 32768");
    team = gdsync_team_create(gdsync_bootstrap_with(0, 1, alone, NULL, 1000), rig.pd, rig.context, NULL);
    segment = gdsync_segment_allocate(team, 64, 1);
    CHECK(segment != NULL && trigger != NULL && word != NULL && region != NULL);
    CHECK_STATUS(EBUSY, gdsync_dealloc_pd(rig.pd));
    says("2 memory regions (gdsync_dereg_mr), 2 queue pairs (gds_destroy_qp), 1 trigger (gdsync_trigger_free), 1 ready word "
         "(gdsync_ready_word_free), 1 registration cache (gdsync_cache_free), 1 cached region (gdsync_cache_release), 1 team "
         "(gdsync_team_free), 1 segment (gdsync_segment_free)");
    OK(gdsync_segment_free(segment));
    OK(gdsync_team_free(team));
    OK(gdsync_cache_release(region));
    OK(gdsync_cache_free(cache));
    OK(gdsync_ready_word_free(word));
    OK(gdsync_trigger_free(trigger));
    CHECK_STATUS(EBUSY, gdsync_soft_close(rig.context));
    says("the context has objects left, which are to be destroyed before: 1 protection domain (gdsync_dealloc_pd), 2 memory regions "
         "(gdsync_dereg_mr), 2 queue pairs (gds_destroy_qp)");
}

/* Acknowledgements of puts are on their way for longer than such a flush waits, unless the machine stands still meanwhile. */
static void flush_late(gdsync_team_t *team, const gdsync_put_t *put, unsigned timeout_ms, const char *words) {
    int tries, status = 0;

    for (tries = 0; tries < 100 && (status == 0 || strstr(gdsync_error_text(), words) == NULL); tries++) {
        OK(gdsync_put(team, 0, 1, put));
        status = gdsync_team_flush(team, 0, timeout_ms);
        CHECK(status == 0 || status == ETIMEDOUT);
        OK(gdsync_team_flush(team, 0, PATIENCE_MS));
    }
    CHECK(status == ETIMEDOUT);
    says(words);
}

static void flushes(void) {
    gdsync_team_t *team = gdsync_team_create(gdsync_bootstrap_with(0, 1, alone, NULL, 1000), rig.pd, rig.context, NULL);
    gdsync_segment_t *segment = gdsync_segment_allocate(team, 64, 1);
    gdsync_put_t put;

    CHECK(segment != NULL);
    memset(&put, 0, sizeof(put));
    put.to = segment;
    put.value = 1;
    flush_late(team, &put, 20, "within 20 ms: requests to rank 0 have not completed; queue pair 0x");
    /* A program that polls gets no cause. */
    flush_late(team, &put, 0, "within 0 ms");
    CHECK(strcmp(gdsync_error_text(), "gdsync_team_flush: the queue was not flushed within 0 ms") == 0);
    OK(gdsync_segment_free(segment));
    OK(gdsync_team_free(team));
}

int main(void) {
    rig_open(&rig, IBV_QPT_RC);
    creation();
    changes();
    verbs();
    flushes();
    left();
    rig_close(&rig);
    puts("explained ok");
    return 0;
}
