/* Refusals: by the device with a status and a syndrome, by the kernel with an errno. */
#include "devx.h"
#include <unistd.h>

static void refused(struct ibv_context *context, const void *in, size_t size, unsigned status)
{
    uint8_t out[16] = {0};
    errno = 0;
    CHECK(mlx5dv_devx_obj_create(context, in, size, out, sizeof(out)) == NULL);
    CHECK(errno == EREMOTEIO);
    CHECK(status_of(out) == status);
    CHECK(syndrome_of(out) != 0);
}

static void general(struct ibv_context *context, unsigned opcode, int error, unsigned status)
{
    uint8_t in[16] = {0}, out[16] = {0};
    put(in, 0, 16, opcode);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == error);
    CHECK(status_of(out) == status);
    CHECK((syndrome_of(out) != 0) == (status != 0));
}

/* A command with one wrong field. */
#define WRONG(fill, at, width, value, status)                                                               \
    do {                                                                                                    \
        fill;                                                                                               \
        put(in, at, width, value);                                                                          \
        refused(context, in, sizeof(in), status);                                                           \
    } while (0)

enum { BAD_OP = 2, BAD_PARAM = 3, BAD_RES = 5, BAD_QP_STATE = 0x10, BAD_INP_LEN = 0x50 };

int main(void)
{
    struct ibv_context *context = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    uint8_t in[COMMAND] = {0}, out[COMMAND] = {0};
    struct mlx5dv_devx_umem *read_only;
    struct mlx5dv_devx_obj *pd;
    struct cq cq;
    struct qp qp;
    uint32_t pdn, eqn, umem;
    char *memory = pages(PAGE);

    CHECK(uar);
    general(context, 0xbff, EREMOTEIO, BAD_OP);  /* in the range that the kernel passes on */
    general(context, 0x750, EREMOTEIO, BAD_OP);  /* QUERY_VPORT_STATE, which this card lacks */
    general(context, 0x80d, 0, 0);               /* NOP */
    general(context, 0x400, EINVAL, 0);          /* not a general command */
    CHECK(mlx5dv_devx_query_eqn(context, 99, &eqn) == EINVAL);
    CHECK(mlx5dv_devx_umem_reg(context, memory, 0, IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EINVAL);
    CHECK(mlx5dv_devx_umem_reg(context, memory, PAGE, IBV_ACCESS_REMOTE_WRITE) == NULL && errno == EINVAL);
    CHECK(mlx5dv_devx_umem_reg(context, (void *)64, 64, 0) == NULL && errno == EFAULT);
    {
        struct mlx5dv_devx_umem_in of_file = {.size = PAGE, .pgsz_bitmap = PAGE, .comp_mask = MLX5DV_UMEM_MASK_DMABUF};
        int ends[2];
        CHECK(pipe(ends) == 0);
        of_file.dmabuf_fd = ends[0]; /* cannot be mapped */
        CHECK(mlx5dv_devx_umem_reg_ex(context, &of_file) == NULL && errno == EOPNOTSUPP);
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        of_file.comp_mask = 0;
        of_file.addr = memory;
        of_file.pgsz_bitmap = 0;
        CHECK(mlx5dv_devx_umem_reg_ex(context, &of_file) == NULL && errno == EINVAL);
    }

    put(in, 0, 16, 0x904); /* CREATE_SQ */
    refused(context, in, sizeof(in), BAD_OP);
    put(in, 0, 16, 0x999);
    CHECK(mlx5dv_devx_obj_create(context, in, sizeof(in), out, 16) == NULL && errno == EINVAL);
    CHECK(status_of(out) == 0);

    put(in, 0, 16, 0x800);
    CHECK(pd = mlx5dv_devx_obj_create(context, in, 16, out, 16));
    pdn = number_of(out);
    cq = create_cq(context, uar, 4);
    qp = create_qp(context, uar, pdn, cq.number);
    CHECK(read_only = mlx5dv_devx_umem_reg(context, memory, PAGE, 0));

    umem = cq.umem->umem_id;
#define CQ fill_create_cq(in, context, uar, umem, 4)
    WRONG(CQ, 0x280, 64, cq.size - 512, BAD_PARAM);       /* the ring leaves the memory */
    WRONG(CQ, 0x280, 64, UINT64_MAX - 8, BAD_PARAM);
    WRONG(CQ, 0x280, 64, 32, BAD_PARAM);                  /* not aligned */
    WRONG(CQ, 0x2c0, 32, 0xdead, BAD_RES);                /* no such memory */
    WRONG(CQ, 0x2c0, 32, read_only->umem_id, BAD_PARAM);  /* not writable */
    WRONG(CQ, 0x80 + 0x20, 32, 0xdead, BAD_RES);
    WRONG(CQ, 0x80 + 0x1c0, 64, cq.size - 4, BAD_PARAM);  /* the record leaves the memory */
    WRONG(CQ, 0x80 + 0x1c0, 64, 4, BAD_PARAM);
    WRONG(CQ, 0x80 + 0x63, 5, 31, BAD_PARAM);             /* too large */
    WRONG(CQ, 0x80 + 0x68, 24, 1, BAD_RES);               /* no such page of registers */
    WRONG(CQ, 0x80 + 0xb8, 8, 0xee, BAD_RES);             /* no such event queue */
    WRONG(CQ, 0x80 + 8, 3, 2, BAD_PARAM);                 /* entries of neither 64 nor 128 bytes */
    WRONG(CQ; put(in, 0x80 + 0xc3, 5, 1), 0x80 + 0x54, 6, 63, BAD_PARAM); /* page offset: 63/64 of 8 KiB */
    CQ;
    refused(context, in, 64, BAD_INP_LEN);

    umem = qp.umem->umem_id;
#define QP fill_create_qp(in, uar, pdn, cq.number, umem, 6)
    WRONG(QP, 0x800, 64, qp.size, BAD_PARAM);
    WRONG(QP, 0x800, 64, 16, BAD_PARAM);
    WRONG(QP, 0x840, 32, 0xdead, BAD_RES);
    WRONG(QP, 0xc0 + 0x28, 24, 1, BAD_RES);               /* no such domain */
    WRONG(QP, 0xc0 + 0x3e8, 24, 1, BAD_RES);              /* no such completion queue */
    WRONG(QP, 0xc0 + 0x68, 24, 1, BAD_RES);
    WRONG(QP, 0xc0 + 8, 8, 3, BAD_PARAM);                 /* XRC */
    WRONG(QP, 0xc0 + 0x565, 3, 1, BAD_RES);               /* no such shared receive queue */
    WRONG(QP, 0xc0 + 0x500, 64, qp.size, BAD_PARAM);
    WRONG(QP, 0xc0 + 0x630, 8, 0x22, BAD_PARAM);          /* 64 bytes inside entries of 64 bytes */
    WRONG(QP, 0xc0 + 0x638, 8, 2, BAD_PARAM);
    WRONG(QP, 0xc0 + 0x80, 2, 2, BAD_PARAM);              /* rung by a processor of the card */
    WRONG(QP, 0xc0 + 0x3e3, 5, 1, BAD_PARAM);             /* two streams of an initiator */
    WRONG(QP, 0xc0 + 0x403, 5, 1, BAD_PARAM);
    WRONG(QP, 0xc0 + 0x49d, 1, 1, BAD_PARAM);             /* receives that another queue releases */
    QP;
    refused(context, in, 64, BAD_INP_LEN);

    /* RTR before INIT; an unknown mask; another object's number; no transition. */
    fill_transition(in, context, 0x503, qp.number, qp.number);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_QP_STATE && syndrome_of(out) != 0);
    fill_transition(in, context, 0x506, qp.number, qp.number);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_QP_STATE);
    fill_transition(in, context, 0x502, qp.number, qp.number);
    put(in, 0x80, 32, 1u << 31);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_PARAM);
    fill_transition(in, context, 0x502, qp.number, qp.number);
    put(in, 0xc0 + 0xc0 + 0x128, 8, 2);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_PARAM);
    fill_transition(in, context, 0x502, qp.number, qp.number);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, 64, out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_INP_LEN);
    put(in, 0x48, 24, qp.number + 1);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EINVAL);
    fill_transition(in, context, 0x509, qp.number, qp.number);
    CHECK(mlx5dv_devx_obj_modify(qp.object, in, sizeof(in), out, 16) == EINVAL);
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x403); /* MODIFY_CQ */
    put(in, 0x48, 24, cq.number);
    CHECK(mlx5dv_devx_obj_modify(cq.object, in, sizeof(in), out, 16) == EREMOTEIO);
    CHECK(status_of(out) == BAD_OP);
    put(in, 0, 16, 0x50b); /* QUERY_QP of a completion queue */
    CHECK(mlx5dv_devx_obj_query(cq.object, in, 16, out, sizeof(out)) == EINVAL);

    /* In use by the queue pair and by both queues; afterwards they can be destroyed. */
    CHECK(mlx5dv_devx_obj_destroy(cq.object) == EBUSY);
    CHECK(mlx5dv_devx_obj_destroy(pd) == EBUSY);
    CHECK(mlx5dv_devx_umem_dereg(cq.umem) == EBUSY);
    CHECK(mlx5dv_devx_umem_dereg(qp.umem) == EBUSY);
    destroy_qp(&qp);
    destroy_cq(&cq);
    CHECK(mlx5dv_devx_umem_dereg(read_only) == 0);
    CHECK(mlx5dv_devx_obj_destroy(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
