/* Cancellation of threads that poll. The event of a completion channel is a write, which is a cancellation point. */

#include "check.h"
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>

enum { ROUNDS = 200 };

static struct ibv_context *context;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];
static atomic_int is_cancelled;

static void connect_to_itself(void) {
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qp->qp_num,
                              .max_dest_rd_atomic = 1, .min_rnr_timer = 14, .ah_attr = {.dlid = port.lid, .port_num = 1}};
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                     IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Polls until a write has completed, with a cancellation that is pending all the time. */
static void *polls(void *done) {
    struct ibv_sge data = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr write = {.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc completion;
    write.wr.rdma.remote_addr = (uintptr_t)memory + 8;
    write.wr.rdma.rkey = mr->rkey;
    while (!atomic_load(&is_cancelled))
        ;
    CHECK(ibv_req_notify_cq(cq, 0) == 0 && ibv_post_send(qp, &write, &bad) == 0);
    while (ibv_poll_cq(cq, 1, &completion) == 0)
        ;
    *(int *)done = completion.status == IBV_WC_SUCCESS;
    pthread_testcancel();
    return NULL;
}

int main(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_comp_channel *channel;
    struct ibv_pd *pd;
    CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
    CHECK((channel = ibv_create_comp_channel(context)) && (pd = ibv_alloc_pd(context)));
    CHECK((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    asked.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
    CHECK((qp = ibv_create_qp(pd, &asked)));
    connect_to_itself();
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *result;
        int is_done = 0;
        atomic_store(&is_cancelled, 0);
        CHECK(pthread_create(&thread, NULL, polls, &is_done) == 0 && pthread_cancel(thread) == 0);
        atomic_store(&is_cancelled, 1);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && is_done);
        struct ibv_cq *told;
        void *own;
        CHECK(ibv_get_cq_event(channel, &told, &own) == 0);
        ibv_ack_cq_events(told, 1);
    }
    return 0;
}
