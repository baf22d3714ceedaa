/* Partition keys: SOFTHCA_PKEYS=0xffff,0x8001,0x0001,0x0002. The table as a program sees it, and the packets that pass. */

#include "check.h"
#include <arpa/inet.h>
#include <infiniband/verbs.h>

static const uint16_t KEYS[] = {0xffff, 0x8001, 0x0001, 0x0002};
enum { COUNT = 4, QKEY = 0x11111111 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];

static struct ibv_port_attr port(void) {
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    return port;
}

static int init(struct ibv_qp *qp, uint16_t index) {
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .pkey_index = index, .port_num = 1, .qkey = QKEY};
    int rights = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | rights);
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type, uint16_t index) {
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1};
    asked.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp *qp = ibv_create_qp(pd, &asked);
    CHECK(qp && init(qp, index) == 0);
    return qp;
}

static void bring_up(struct ibv_qp *qp, struct ibv_qp *peer) {
    int is_ud = qp->qp_type == IBV_QPT_UD;
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp_num,
                             .max_dest_rd_atomic = 1, .min_rnr_timer = 14,
                             .ah_attr = {.dlid = port().lid, .port_num = 1}};
    int connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                    IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | (is_ud ? 0 : connected)) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 8, .retry_cnt = 1, .rnr_retry = 7, .max_rd_atomic = 1};
    connected = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN | (is_ud ? 0 : connected)) == 0);
}

static struct ibv_wc completion(void) {
    struct ibv_wc wc;
    while (ibv_poll_cq(cq, 1, &wc) == 0)
        ;
    return wc;
}

/* Sends a message between two indices of the table. Returns the status of the send; the port has counted a drop if the
 * message does not arrive. */
static enum ibv_wc_status send_between(enum ibv_qp_type type, uint16_t from, uint16_t to, int arrives) {
    struct ibv_qp *left = queue_pair(type, from), *right = queue_pair(type, to);
    bring_up(left, right);
    bring_up(right, left);
    uint32_t before = port().bad_pkey_cntr;
    struct ibv_sge place = {(uintptr_t)memory, 256, mr->lkey}, data = {(uintptr_t)memory + 2048, 64, mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &place, .num_sge = 1}, *bad_receive;
    CHECK(ibv_post_recv(right, &receive, &bad_receive) == 0);
    struct ibv_ah_attr address = {.dlid = port().lid, .port_num = 1};
    struct ibv_ah *ah = ibv_create_ah(pd, &address);
    struct ibv_send_wr send = {.wr_id = 2, .sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    if (type == IBV_QPT_UD) {
        send.wr.ud.ah = ah;
        send.wr.ud.remote_qpn = right->qp_num;
        send.wr.ud.remote_qkey = QKEY;
    }
    CHECK(ah && ibv_post_send(left, &send, &bad_send) == 0);
    enum ibv_wc_status status = IBV_WC_GENERAL_ERR;
    for (int left_over = arrives ? 2 : 1; left_over; left_over--) {
        struct ibv_wc wc = completion();
        CHECK(wc.wr_id == 2 || wc.status == IBV_WC_SUCCESS);
        if (wc.wr_id == 2)
            status = wc.status;
    }
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0 && ibv_destroy_ah(ah) == 0);
    CHECK((port().bad_pkey_cntr > before) == !arrives);
    return status;
}

static void table(void) {
    struct ibv_device_attr device;
    CHECK(ibv_query_device(context, &device) == 0 && device.max_pkeys == COUNT);
    CHECK(port().pkey_tbl_len == COUNT && port().bad_pkey_cntr == 0);
    __be16 key;
    for (int index = 0; index < COUNT; index++)
        CHECK(ibv_query_pkey(context, 1, index, &key) == 0 && ntohs(key) == KEYS[index]);
    CHECK(ibv_query_pkey(context, 1, COUNT, &key) != 0);
    CHECK(ibv_get_pkey_index(context, 1, htons(0x0002)) == 3);
    struct ibv_qp *qp = queue_pair(IBV_QPT_RC, 3);
    struct ibv_qp_attr now;
    struct ibv_qp_init_attr made;
    CHECK(ibv_query_qp(qp, &now, IBV_QP_PKEY_INDEX, &made) == 0 && now.pkey_index == 3);
    CHECK(init(qp, COUNT) == EINVAL && ibv_query_qp(qp, &now, IBV_QP_PKEY_INDEX, &made) == 0);
    CHECK(now.pkey_index == 3 && ibv_destroy_qp(qp) == 0);
}

int main(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
    CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
    table();
    CHECK(send_between(IBV_QPT_RC, 0, 0, 1) == IBV_WC_SUCCESS);
    CHECK(send_between(IBV_QPT_RC, 1, 2, 1) == IBV_WC_SUCCESS);
    CHECK(send_between(IBV_QPT_RC, 2, 1, 1) == IBV_WC_SUCCESS);
    CHECK(send_between(IBV_QPT_RC, 0, 1, 0) == IBV_WC_RETRY_EXC_ERR);
    CHECK(send_between(IBV_QPT_RC, 2, 2, 0) == IBV_WC_RETRY_EXC_ERR);
    CHECK(send_between(IBV_QPT_UD, 1, 2, 1) == IBV_WC_SUCCESS);
    CHECK(send_between(IBV_QPT_UD, 1, 3, 0) == IBV_WC_SUCCESS);
    return 0;
}
