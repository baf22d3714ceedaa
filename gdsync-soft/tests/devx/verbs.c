/* Verbs objects, modified and queried by commands. */
#include "devx.h"

static void move(struct ibv_context *context, struct ibv_qp *qp, unsigned opcode)
{
    uint8_t in[COMMAND], out[16] = {0};
    fill_transition(in, context, opcode, qp->qp_num, qp->qp_num);
    CHECK(mlx5dv_devx_qp_modify(qp, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(status_of(out) == 0);
}

/* The state in the device's context, and in verbs. */
static void expect(struct ibv_qp *qp, unsigned state, enum ibv_qp_state verbs)
{
    uint8_t in[16] = {0}, out[COMMAND] = {0};
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr initial;
    put(in, 0, 16, 0x50b);
    put(in, 0x48, 24, qp->qp_num);
    CHECK(mlx5dv_devx_qp_query(qp, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0xc0, 4) == state);
    CHECK(ibv_query_qp(qp, &attributes, IBV_QP_STATE, &initial) == 0);
    CHECK(attributes.qp_state == verbs);
    if (verbs == IBV_QPS_RTS) {
        CHECK(attributes.dest_qp_num == qp->qp_num && get(out, 0xc0 + 0xa8, 24) == qp->qp_num);
        CHECK(attributes.path_mtu == IBV_MTU_1024 && attributes.timeout == 10 && attributes.retry_cnt == 1);
        CHECK(attributes.max_rd_atomic == 4 && attributes.max_dest_rd_atomic == 4);
        CHECK(attributes.qp_access_flags == (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
        CHECK(attributes.ah_attr.port_num == 1);
        CHECK(attributes.ah_attr.is_global || attributes.ah_attr.dlid != 0);
        CHECK(get(out, 0xc0 + 0x38d, 3) == 1 && get(out, 0xc0 + 0x390, 3) == 7);
    }
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr initial = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                       .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    uint64_t *memory = pages(PAGE);
    struct ibv_wc completion;
    uint8_t in[COMMAND] = {0}, out[COMMAND] = {0};

    CHECK(pd && cq);
    CHECK(qp = ibv_create_qp(pd, &initial));
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    expect(qp, 0, IBV_QPS_RESET);
    move(context, qp, 0x502);
    expect(qp, 1, IBV_QPS_INIT);
    move(context, qp, 0x503);
    expect(qp, 2, IBV_QPS_RTR);
    move(context, qp, 0x504);
    expect(qp, 3, IBV_QPS_RTS);

    memory[0] = 0x1122334455667788;
    {
        struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
        struct ibv_send_wr request = {.wr_id = 7, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                      .send_flags = IBV_SEND_SIGNALED,
                                      .wr.rdma = {.remote_addr = (uintptr_t)(memory + 8), .rkey = mr->rkey}}, *bad;
        time_t end = time(NULL) + 10;
        int polled = 0;
        CHECK(ibv_post_send(qp, &request, &bad) == 0);
        while (polled == 0) {
            CHECK((polled = ibv_poll_cq(cq, 1, &completion)) >= 0);
            CHECK(time(NULL) < end);
        }
    }
    CHECK(completion.status == IBV_WC_SUCCESS && completion.wr_id == 7);
    CHECK(memory[8] == memory[0]);

    put(in, 0, 16, 0x402); /* QUERY_CQ */
    put(in, 0x48, 24, ({ struct mlx5dv_cq dv = {0}; struct mlx5dv_obj object = {.cq = {cq, &dv}};
                         CHECK(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ) == 0); dv.cqn; }));
    CHECK(mlx5dv_devx_cq_query(cq, in, 16, out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x168, 24) == 1); /* producer_counter */

    memset(in, 0, sizeof(in));
    fill_transition(in, context, 0x505, qp->qp_num, 0); /* RTS2RTS: revokes only the right to write */
    put(in, 0x80, 32, 1 << 3);                          /* rwe */
    CHECK(mlx5dv_devx_qp_modify(qp, in, sizeof(in), out, 16) == 0);
    put(in, 0, 16, 0x50b);
    CHECK(mlx5dv_devx_qp_query(qp, in, 16, out, sizeof(out)) == 0);
    CHECK(get(out, 0xc0 + 0x490, 1) == 1 && get(out, 0xc0 + 0x491, 1) == 0);

    move(context, qp, 0x507);
    expect(qp, 6, IBV_QPS_ERR);
    move(context, qp, 0x50a);
    expect(qp, 0, IBV_QPS_RESET);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
