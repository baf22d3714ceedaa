/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A first program: each rank computes a number from the one that has arrived, and sends it to the next rank, for ROUNDS rounds. The CPU
 * enqueues all of it on a stream, and waits once. docs/c.md explains it.
 *
 *     cc -o ring ring.c $(pkg-config --cflags --libs gdsync)
 *     gdsync run -n 2 ./ring
 */
#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 32, TIMEOUT_MS = 10000 };

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s failed: %s\n", what, gdsync_error_text());
        exit(1);
    }
}

#define OK(call) check((call) == 0, #call)

/* A number for each round, so that none is overwritten before it was read. */
static struct { uint64_t in[ROUNDS + 1], out[ROUNDS]; } memory;

/* On a GPU, a kernel. */
static void compute(void *argument) {
    const int *round = (const int *)argument;
    memory.out[*round] = memory.in[*round] + 1;
}

static struct gds_qp *make(struct ibv_context *context, struct ibv_pd *pd) {
    gds_qp_init_attr_t attr;
    memset(&attr, 0, sizeof(attr));
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = attr.cap.max_recv_wr = ROUNDS;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    return gds_create_qp(pd, context, &attr, -1, GDS_CREATE_QP_DEFAULT);
}

/* A stream goes on after a failed send or receive, whose completion has the reason. */
static void completed(struct gds_cq *cq) {
    struct ibv_wc wc[ROUNDS];
    int i, number = gds_poll_cq(cq, ROUNDS, wc);
    check(number == ROUNDS, "polling");
    for (i = 0; i < number; i++) {
        check(wc[i].status == IBV_WC_SUCCESS, "a send or a receive");
    }
}

int main(void) {
    static int rounds[ROUNDS];
    gdsync_bootstrap_t *bootstrap = gdsync_bootstrap_from_env(TIMEOUT_MS);
    struct ibv_context *context = gdsync_soft_open(NULL);
    struct ibv_pd *pd = gdsync_alloc_pd(context);
    struct ibv_mr *mr = gdsync_reg_mr(pd, &memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    struct gds_qp *next = make(context, pd), *before = make(context, pd);
    CUstream stream = gdsync_soft_stream_create();
    gdsync_connection_t connections[2];
    uint32_t rank, size;
    int round;

    check(bootstrap != NULL && mr != NULL && next != NULL && before != NULL && stream != NULL, "opening");
    rank = (uint32_t)gdsync_bootstrap_rank(bootstrap);
    size = (uint32_t)gdsync_bootstrap_size(bootstrap);
    connections[0].qp = next;
    connections[0].rank = (rank + 1) % size;
    connections[0].tag = rank; /* the rank that sends */
    connections[1].qp = before;
    connections[1].rank = connections[1].tag = (rank + size - 1) % size;
    OK(gdsync_bootstrap_connect(bootstrap, 2, connections));

    for (round = 0; round < ROUNDS; round++) {
        struct ibv_sge in = {(uint64_t)(uintptr_t)&memory.in[round + 1], sizeof(uint64_t), mr->lkey};
        struct ibv_recv_wr receive, *bad = NULL;
        memset(&receive, 0, sizeof(receive));
        receive.sg_list = &in;
        receive.num_sge = 1;
        OK(gds_post_recv(before, &receive, &bad));
    }
    for (round = 0; round < ROUNDS; round++) {
        struct ibv_sge out = {(uint64_t)(uintptr_t)&memory.out[round], sizeof(uint64_t), mr->lkey};
        gds_send_wr send, *bad = NULL;
        memset(&send, 0, sizeof(send));
        send.opcode = IBV_WR_SEND;
        send.send_flags = IBV_SEND_SIGNALED;
        send.sg_list = &out;
        send.num_sge = 1;
        rounds[round] = round;
        OK(gdsync_soft_stream_launch(stream, compute, &rounds[round])); /* compute<<<..., stream>>> */
        OK(gds_stream_queue_send(stream, next, &send, &bad));           /* the stream rings the card, */
        OK(gds_stream_wait_cq(stream, next->send_cq, 0));               /* and waits for the end of the send, */
        OK(gds_stream_wait_cq(stream, before->recv_cq, 0));             /* and for the other rank's message */
    }
    OK(gdsync_stream_synchronize(stream, TIMEOUT_MS));
    completed(next->send_cq);
    completed(before->recv_cq);
    check(memory.in[ROUNDS] == ROUNDS, "the last number");
    OK(gdsync_bootstrap_barrier(bootstrap)); /* a rank that ends while others send to it is missing */
    if (rank == 0) {
        printf("%u ranks, %d rounds, the last number is %lu\n", size, ROUNDS, (unsigned long)memory.in[ROUNDS]);
    }

    OK(gdsync_soft_stream_destroy(stream));
    OK(gds_destroy_qp(next));
    OK(gds_destroy_qp(before));
    OK(gdsync_dereg_mr(mr));
    OK(gdsync_dealloc_pd(pd));
    OK(gdsync_soft_close(context));
    OK(gdsync_bootstrap_free(bootstrap));
    return 0;
}
