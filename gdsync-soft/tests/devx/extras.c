/* The UDP source port of RoCE, and ECE (enhanced connection establishment): Ethernet has them, InfiniBand refuses. */
#include "devx.h"

static void modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask, uint16_t lid, union ibv_gid gid, int ethernet)
{
    struct ibv_qp_attr attr = {
        .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1,
        .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
        .ah_attr = {.port_num = 1, .dlid = lid, .is_global = (uint8_t)ethernet, .grh = {.dgid = gid, .hop_limit = 1}}};
    CHECK(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE) == 0);
}

static unsigned source_port(struct ibv_qp *qp)
{
    uint8_t in[16] = {0}, out[COMMAND] = {0};
    put(in, 0, 16, 0x50b);
    put(in, 0x48, 24, qp->qp_num);
    CHECK(mlx5dv_devx_qp_query(qp, in, sizeof(in), out, sizeof(out)) == 0);
    return (unsigned)get(out, 0xc0 + 0xc0 + 0x110, 16);
}

/* A command with bits of opt_param_mask_95_32. Returns its status. */
static unsigned rts2rts(struct ibv_qp *qp, uint64_t mask)
{
    uint8_t in[COMMAND] = {0}, out[16] = {0};
    put(in, 0, 16, 0x505);
    put(in, 0x48, 24, qp->qp_num);
    put(in, 0x840, 64, mask);
    put(in, 0xc0 + 0xc0 + 0x110, 16, 50000);
    CHECK(mlx5dv_devx_qp_modify(qp, in, sizeof(in), out, sizeof(out)) == 0 || errno == EREMOTEIO);
    return status_of(out);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *qp = create_rc(pd, cq, 0);
    struct ibv_ece ece = {0}, asked = {.vendor_id = 0x15b3, .options = 0x20000003};
    struct ibv_port_attr port;
    union ibv_gid gid;
    int ethernet;
    CHECK(ibv_query_port(context, 1, &port) == 0 && ibv_query_gid(context, 1, 0, &gid) == 0);
    ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;

    /* A new queue pair offers version 1 without options; a card without ECE offers nothing. */
    CHECK(ibv_query_ece(qp, &ece) == 0);
    CHECK(ece.vendor_id == 0x15b3 && ece.options == (ethernet ? 0x10000000 : 0) && ece.comp_mask == 0);
    CHECK(ibv_set_ece(qp, &asked) == (ethernet ? 0 : EOPNOTSUPP));
    asked.vendor_id = 1;
    CHECK(ibv_set_ece(qp, &asked) == EINVAL);

    modify(qp, IBV_QPS_INIT, IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS, port.lid, gid, ethernet);
    CHECK(ibv_query_ece(qp, &ece) == 0);
    CHECK(ece.options == (ethernet ? 0x10000000 : 0)); /* of the peer's offer, what the card has */
    CHECK(mlx5dv_modify_qp_udp_sport(qp, 55555) == EOPNOTSUPP); /* before RTS */
    modify(qp, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER, port.lid, gid, ethernet);
    modify(qp, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
           port.lid, gid, ethernet);
    CHECK(mlx5dv_modify_qp_udp_sport(qp, 55555) == (ethernet ? 0 : EOPNOTSUPP));
    CHECK(source_port(qp) == (ethernet ? 55555 : 0));
    CHECK(rts2rts(qp, 1 << 2) == (ethernet ? 0 : 3));
    CHECK(source_port(qp) == (ethernet ? 50000 : 0));
    CHECK(rts2rts(qp, 1 << 1) == 3); /* a QoS group, which the card has not */
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
