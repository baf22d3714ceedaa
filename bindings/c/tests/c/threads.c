/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Threads that make, use and destroy queue pairs and streams at the same time, and that share one queue pair.
 */
#include "common.h"

#include <pthread.h>

enum { THREADS = 4, RIGS = 5, ROUNDS = 40, SHARED_SENDS = 200 };

/* Makes, uses and destroys a rig repeatedly. */
static void *alone(void *argument) {
    int i, round;
    (void)argument;
    for (i = 0; i < RIGS; i++) {
        struct rig rig;
        CUstream stream = gdsync_soft_stream_create();
        CHECK(stream != NULL);
        rig_open(&rig, IBV_QPT_RC);
        for (round = 0; round < ROUNDS; round++) {
            struct ibv_sge sge = sge_of(&rig.sides[0], 0, 8);
            gds_send_wr wr = send_of(&sge, 1), *bad = NULL;
            gds_send_request_t request;
            receive(&rig.sides[1], 8, 8, 2);
            OK(gds_prepare_send(rig.sides[0].qp, &wr, &bad, &request));
            OK(gds_stream_post_send(stream, &request));
            OK(gds_stream_wait_cq(stream, RECV_CQ(rig.sides[1].qp), 0));
            poll_success(SEND_CQ(rig.sides[0].qp), 1);
            poll_success(RECV_CQ(rig.sides[1].qp), 2);
        }
        rig_close(&rig);
        OK(gdsync_soft_stream_destroy(stream));
    }
    return NULL;
}

/* Threads share one queue pair; any of them polls a completion. */
struct shared {
    struct rig rig;
    int polled;
};

static void *together(void *argument) {
    struct shared *shared = (struct shared *)argument;
    struct side *left = &shared->rig.sides[0];
    int sent = 0;
    while (__atomic_load_n(&shared->polled, __ATOMIC_ACQUIRE) < THREADS * SHARED_SENDS) {
        struct ibv_sge sge = sge_of(left, 0, 8);
        gds_send_wr wr = send_of(&sge, 5), *bad = NULL;
        struct ibv_wc wc[8];
        int n, i;
        set_opcode(&wr, IBV_WR_RDMA_WRITE);
        wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)shared->rig.sides[1].buffer;
        wr.wr.rdma.rkey = shared->rig.sides[1].mr->rkey;
        if (sent < SHARED_SENDS) {
            int status = gds_post_send(left->qp, &wr, &bad);
            CHECK(status == 0 || status == ENOMEM);
            sent += status == 0;
        }
        n = gds_poll_cq(SEND_CQ(left->qp), 8, wc);
        CHECK(n >= 0);
        for (i = 0; i < n; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == 5);
        }
        __atomic_add_fetch(&shared->polled, n, __ATOMIC_ACQ_REL);
        if (n == 0) {
            sched_yield();
        }
    }
    return NULL;
}

static void run(void *(*body)(void *), void *argument) {
    pthread_t threads[THREADS];
    int i;
    for (i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, body, argument) == 0);
    }
    for (i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    struct shared shared;
    run(alone, NULL);
    shared.polled = 0;
    rig_open(&shared.rig, IBV_QPT_RC);
    run(together, &shared);
    rig_close(&shared.rig);
    puts("threads ok");
    return 0;
}
