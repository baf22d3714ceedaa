/* The order in which messages reach memory: capabilities, the fields of a queue pair's and a DC target's context, and the
   driver's flag. */
#define _GNU_SOURCE
#include "devx.h"

static void capabilities(struct ibv_context *context)
{
    uint8_t in[16] = {0}, out[16 + 4096];
    put(in, 0, 16, 0x100);
    put(in, 0x30, 16, 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x20, 1) == 1);    /* hca_cap_2 */
    CHECK(get(out, 0x80 + 0x1c8, 3) == 7);   /* dp_ordering_ooo_rw: XRC, DC, RC */
    CHECK(get(out, 0x80 + 0x330, 5) == 0x1f); /* dp_ordering_ooo_all: UD, UC, XRC, DC, RC */
    put(in, 0x30, 16, 0x20 << 1 | 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x88, 1) == 1);    /* dp_ordering_force */
#ifdef OOO_DP
    struct mlx5dv_context more = {.comp_mask = MLX5DV_CONTEXT_MASK_OOO_RECV_WRS};
    CHECK(mlx5dv_query_device(context, &more) == 0 && more.comp_mask & MLX5DV_CONTEXT_MASK_OOO_RECV_WRS);
    CHECK(more.ooo_recv_wrs_caps.max_rc > 0 && more.ooo_recv_wrs_caps.max_dct > 0);
#endif
}

/* dp_ordering_force, dp_ordering_1 and dp_ordering_0, as the context has them. */
static unsigned ordering_of(const uint8_t *out)
{
    return (unsigned)(get(out, 0xc0 + 0x27, 1) << 2 | get(out, 0xc0 + 0x49c, 1) << 1 | get(out, 0xc0 + 0x26, 1));
}

/* Makes a queue pair ready to receive with these bits. Returns what a query tells of them; 8 if it was refused. */
static unsigned made(struct ibv_context *context, struct qp *qp, unsigned bits)
{
    uint8_t in[COMMAND], out[COMMAND];
    for (unsigned opcode = 0x502; opcode <= 0x503; opcode++) {
        fill_transition(in, context, opcode, qp->number, qp->number);
        put(in, 0xc0 + 0x27, 1, bits >> 2);
        put(in, 0xc0 + 0x49c, 1, bits >> 1 & 1);
        put(in, 0xc0 + 0x26, 1, bits & 1);
        if (mlx5dv_devx_obj_modify(qp->object, in, sizeof(in), out, sizeof(out)) != 0) {
            CHECK(status_of(out) == 3);
            bits = 8;
        }
    }
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x50b); /* QUERY_QP */
    put(in, 0x48, 24, qp->number);
    CHECK(mlx5dv_devx_obj_query(qp->object, in, 16, out, sizeof(out)) == 0);
    unsigned told = bits == 8 ? 8 : ordering_of(out);
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x50a); /* 2RST_QP */
    put(in, 0x48, 24, qp->number);
    CHECK(mlx5dv_devx_obj_modify(qp->object, in, 16, out, sizeof(out)) == 0);
    return told;
}

int main(int count, char **arguments)
{
    /* The order of the network, where nothing is forced. */
    const unsigned network = count > 1 ? (unsigned)atoi(arguments[1]) : 0;
    struct ibv_context *context = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct mlx5dv_pd dv_pd = {0};
    struct mlx5dv_obj object = {.pd = {pd, &dv_pd}};

    capabilities(context);
    CHECK(uar && pd && mlx5dv_init_obj(&object, MLX5DV_OBJ_PD) == 0);
    struct cq cq = create_cq(context, uar, 4);
    struct qp qp = create_qp(context, uar, dv_pd.pdn, cq.number);
    for (unsigned bits = 0; bits < 8; bits++) {
        unsigned is_known = (bits & 3) != 3, is_forced = bits >> 2;
        CHECK(made(context, &qp, bits) == (!is_known ? 8 : is_forced ? bits : network));
    }
    destroy_qp(&qp);
    destroy_cq(&cq);

    struct ibv_cq *sends = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *verbs = connect_to_itself(pd, sends, 0);
    uint8_t in[16] = {0}, out[COMMAND];
    put(in, 0, 16, 0x50b);
    put(in, 0x48, 24, verbs->qp_num);
    CHECK(mlx5dv_devx_qp_query(verbs, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(ordering_of(out) == network);
    CHECK(ibv_destroy_qp(verbs) == 0);
#ifdef OOO_DP
    struct ibv_qp_init_attr_ex asked = {.send_cq = sends, .recv_cq = sends, .qp_type = IBV_QPT_RC, .pd = pd,
                                        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
                                        .comp_mask = IBV_QP_INIT_ATTR_PD};
    struct mlx5dv_qp_init_attr more = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
                                       .create_flags = MLX5DV_QP_CREATE_OOO_DP};
    CHECK(verbs = mlx5dv_create_qp(context, &asked, &more));
    struct remote own = remote_of(verbs);
    connect_rc(verbs, &own);
    put(in, 0x48, 24, verbs->qp_num);
    CHECK(mlx5dv_devx_qp_query(verbs, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(ordering_of(out) == 6); /* OOO_ALL, forced */
    CHECK(ibv_destroy_qp(verbs) == 0);
#endif
    CHECK(ibv_destroy_cq(sends) == 0 && ibv_dealloc_pd(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
