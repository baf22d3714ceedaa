/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * What errors of the library, which names calls of Rust, say in C: every name of src/words.rs, by a call whose error has it.
 */
#include "common.h"

#include <gdsync/team.h>

static struct rig rig;
static gdsync_team_t *team;

static int alone(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    memcpy(all, own, bytes);
    return 0;
}

static int send_of_an_unconnected_queue_pair(void) {
    struct side side;
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad;
    int status;

    make_side(&rig, &side, IBV_QPT_RC, -1, 0);
    status = gds_post_send(side.qp, &wr, &bad);
    OK(gds_destroy_qp(side.qp));
    OK(gdsync_dereg_mr(side.mr));
    free(side.buffer);
    return status;
}

static int doorbell_of_a_send_that_a_trigger_releases(void) {
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad;
    gdsync_trigger_t *trigger = gdsync_trigger_create(rig.pd, rig.context);
    gds_send_request_t request;
    gds_mlx5_send_info_t ring;
    gds_qp_init_attr_t attr;
    struct side side;
    int status;

    memset(&attr, 0, sizeof(attr));
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    side.qp = gdsync_trigger_create_qp(trigger, &attr, -1, GDS_CREATE_QP_DEFAULT);
    CHECK(side.qp != NULL);
    to_ready(&rig, &side, &side, IBV_QPT_RC);
    OK(gds_prepare_send(side.qp, &wr, &bad, &request));
    status = gds_mlx5_get_send_info(1, &request, &ring);
    OK(gds_destroy_qp(side.qp));
    OK(gdsync_trigger_free(trigger));
    return status;
}

static int ticket_of_a_send_without_a_trigger(void) {
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad;
    gds_send_request_t request;
    uint64_t ticket;

    OK(gds_prepare_send(rig.sides[0].qp, &wr, &bad, &request));
    return gdsync_send_ticket(&request, &ticket);
}

static int start_of_an_active_request(void) {
    CUstream stream = gdsync_soft_stream_create();
    struct ibv_sge sge = sge_of(&rig.sides[1], 0, 8);
    struct ibv_recv_wr wr;
    gdsync_request_t *request;
    int status;

    memset(&wr, 0, sizeof(wr));
    wr.sg_list = &sge;
    wr.num_sge = 1;
    request = gdsync_recv_init(rig.sides[1].qp, &wr);
    OK(gdsync_start_all(stream, 1, &request));
    status = gdsync_start_all(stream, 1, &request);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(stream));
    return status;
}

static int send_of_a_failed_queue_pair(void) {
    struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad;

    OK(gdsync_abort_qp(rig.sides[0].qp));
    return gds_post_send(rig.sides[0].qp, &wr, &bad);
}

static int segment_of_no_memory(void) {
    errno = 0;
    return gdsync_segment_register(team, rig.sides[0].buffer, 0, 1) == NULL ? errno : 0;
}

static int put_by_a_queue_that_the_team_lacks(void) { return gdsync_put(team, 3, 0, NULL); }

/* "go on without it (gdsync_team_shrink)" needs a process that dies: teams.c. */
static const struct {
    int (*call)(void);
    int status;
    const char *said;
} table[] = {
    {send_of_an_unconnected_queue_pair, EINVAL, "is not connected: call gdsync_bootstrap_connect, or gds_modify_qp, first"},
    {doorbell_of_a_send_that_a_trigger_releases, EINVAL, "and not by a doorbell: take the ticket (gdsync_send_ticket)"},
    {ticket_of_a_send_without_a_trigger, EINVAL, "has no trigger: make it with gdsync_trigger_create_qp"},
    {start_of_an_active_request, EBUSY, "the request is active: call gdsync_request_complete, or have the same stream wait for it"},
    {segment_of_no_memory, EINVAL, "a part without data is made by gdsync_segment_allocate(0, notifications)"},
    {put_by_a_queue_that_the_team_lacks, EINVAL, "none of the 1 of the team: ask for more in queues of gdsync_team_attr_t"},
    {send_of_a_failed_queue_pair, EIO, "is in the error state (aborted): poll it until it is empty, and make another"},
};

int main(void) {
    size_t i;

    rig_open(&rig, IBV_QPT_RC);
    team = gdsync_team_create(gdsync_bootstrap_with(0, 1, alone, NULL, PATIENCE_MS), rig.pd, rig.context, NULL);
    CHECK(team != NULL);
    for (i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        int status = table[i].call();
        if (status != table[i].status || strstr(gdsync_error_text(), table[i].said) == NULL) {
            fprintf(stderr, "\"%s\" is not in \"%s\", of status %d\n", table[i].said, gdsync_error_text(), status);
            return 1;
        }
    }
    OK(gdsync_team_free(team));
    rig_close(&rig);
    puts("words ok");
    return 0;
}
