/* Queue pairs without one of their queues, which name no completion queue for it: DOCA's open verbs (`doca_verbs_qp.cpp`,
 * in NCCL's GDAKI) make those that only send, with rq_type 3 and cqn_rcv 0. And the fields that they set in transitions. */
#include "devx.h"

enum { QPC = 0xc0, PATH = QPC + 0xc0, NO_RECEIVES = 3, OPT_DSCP = 1 << 17, OPT_SGID_INDEX = 1 << 23 };

struct fields {
    unsigned rq_type, no_sq;
    uint32_t cqn_snd, cqn_rcv;
};

/* Creates a queue pair with these fields. Returns the status of the answer. */
static unsigned create(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd, struct fields fields, struct qp *qp)
{
    uint8_t in[COMMAND], out[16] = {0};
    *qp = (struct qp){.log_size = 6, .uar = uar, .size = RECORD_AT + PAGE};
    qp->memory = pages(qp->size);
    CHECK(qp->umem = mlx5dv_devx_umem_reg(context, qp->memory, qp->size, IBV_ACCESS_LOCAL_WRITE));
    fill_create_qp(in, uar, pd, fields.cqn_snd, qp->umem->umem_id, qp->log_size);
    put(in, QPC + 0x565, 3, fields.rq_type);
    put(in, QPC + 0x50, 1, fields.no_sq);
    put(in, QPC + 0x4e8, 24, fields.cqn_rcv);
    if (fields.rq_type == NO_RECEIVES)
        put(in, 0x800, 64, RECEIVE_BYTES); /* wq_umem_offset: the send ring, where post_write has it */
    qp->object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out));
    qp->number = number_of(out);
    if (!qp->object)
        CHECK(mlx5dv_devx_umem_dereg(qp->umem) == 0 && munmap(qp->memory, qp->size) == 0);
    return status_of(out);
}

/* Connects with the fields of DOCA: an MTU of 4096 bytes, `atomic_mode`, and one resend after an RNR NAK. */
static void connect_as_doca(struct ibv_context *context, struct qp *qp, uint32_t peer, unsigned atomic_mode)
{
    for (unsigned opcode = 0x502; opcode <= 0x504; opcode++) {
        uint8_t in[COMMAND], out[16] = {0};
        fill_transition(in, context, opcode, qp->number, peer);
        put(in, QPC + 0x48c, 4, opcode == 0x502 ? atomic_mode : 0);
        if (opcode == 0x503)
            put(in, QPC + 0x40, 3, IBV_MTU_4096);
        if (opcode == 0x504)
            put(in, QPC + 0x390, 3, 1); /* rnr_retry */
        CHECK(mlx5dv_devx_obj_modify(qp->object, in, sizeof(in), out, sizeof(out)) == 0);
    }
}

static unsigned mtu_of(struct qp *qp)
{
    uint8_t in[16] = {0}, out[COMMAND] = {0};
    put(in, 0, 16, 0x50b); /* QUERY_QP */
    put(in, 0x48, 24, qp->number);
    CHECK(mlx5dv_devx_obj_query(qp->object, in, sizeof(in), out, sizeof(out)) == 0);
    return (unsigned)get(out, QPC + 0x40, 3);
}

static unsigned rts_to_rts(struct qp *qp, unsigned index)
{
    uint8_t in[COMMAND], out[16] = {0};
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x505);
    put(in, 0x48, 24, qp->number);
    put(in, 0x80, 32, OPT_DSCP | OPT_SGID_INDEX);
    put(in, PATH + 0x48, 8, index); /* src_addr_index */
    put(in, PATH + 0x10a, 6, 26);   /* dscp */
    mlx5dv_devx_obj_modify(qp->object, in, sizeof(in), out, sizeof(out));
    return status_of(out);
}

/* Posts a request of another opcode than a write: its segments are those that the caller has put after the first. */
static void post(struct qp *qp, unsigned opcode, const void *segments, unsigned count)
{
    uint32_t *records = (uint32_t *)(qp->memory + RECORD_AT);
    uint8_t *entry = qp->memory + RECEIVE_BYTES + (qp->head & ((1u << qp->log_size) - 1)) * 64;
    uint64_t doorbell;
    memset(entry, 0, 64);
    put(entry, 8, 16, qp->head & 0xffff);
    put(entry, 24, 8, opcode);
    put(entry, 32, 24, qp->number);
    put(entry, 56, 8, count + 1);
    entry[11] = 8;
    memcpy(entry + 16, segments, count * 16);
    qp->head++;
    __atomic_store_n(&records[1], htobe32(qp->head & 0xffff), __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(&doorbell, entry, 8);
    *(volatile uint64_t *)qp->uar->reg_addr = doorbell;
}

static void pair_up(struct ibv_context *context, struct qp *near, struct qp *far, unsigned atomic_mode)
{
    connect_as_doca(context, near, far->number, atomic_mode);
    connect_as_doca(context, far, near->number, atomic_mode);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct mlx5dv_pd numbers;
    struct mlx5dv_obj object = {.pd = {.in = pd, .out = &numbers}};
    uint64_t *target = pages(PAGE);
    struct ibv_mr *mr = ibv_reg_mr(pd, target, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    struct cq cq = create_cq(context, uar, 6);
    struct qp near, far;
    uint8_t segments[48];

    CHECK(uar && pd && mr && mlx5dv_init_obj(&object, MLX5DV_OBJ_PD) == 0);
    const struct fields sends = {.rq_type = NO_RECEIVES, .cqn_snd = cq.number};
    const struct fields receives = {.no_sq = 1, .cqn_rcv = cq.number};

    /* A queue needs its completion queue, and a number that is there names one. */
    struct fields wrong = sends;
    wrong.cqn_snd = 0;
    CHECK(create(context, uar, numbers.pdn, wrong, &near) == 5);
    wrong = sends;
    wrong.cqn_rcv = 0xfffffe;
    CHECK(create(context, uar, numbers.pdn, wrong, &near) == 5);
    wrong = receives;
    wrong.cqn_rcv = 0;
    CHECK(create(context, uar, numbers.pdn, wrong, &near) == 5);

    /* Both only send: writes arrive, atomics are performed, and a send finds no receive, however long it waits. */
    CHECK(create(context, uar, numbers.pdn, sends, &near) == 0 && create(context, uar, numbers.pdn, sends, &far) == 0);
    CHECK(mtu_of(&near) == IBV_MTU_256);  /* DOCA asks before it connects, and refuses 0 */
    pair_up(context, &near, &far, 1);
    CHECK(mtu_of(&near) == IBV_MTU_4096);
    post_write(&near, 0x1234, (uint64_t)(uintptr_t)target, mr->rkey);
    CHECK(next_entry(&cq)[63] >> 4 == 0 && target[0] == 0x1234);
    memset(segments, 0, sizeof(segments));
    put(segments, 0, 64, (uint64_t)(uintptr_t)target);
    put(segments, 64, 32, mr->rkey);
    put(segments, 128, 64, 5);              /* added */
    uint8_t atomic[64] = {0};
    memcpy(atomic, segments, 32);
    put(atomic, 256, 32, 8);                /* result: 8 bytes */
    put(atomic, 288, 32, mr->lkey);
    put(atomic, 320, 64, (uint64_t)(uintptr_t)(target + 8));
    post(&near, 0x12, atomic, 3);           /* fetch and add */
    CHECK(next_entry(&cq)[63] >> 4 == 0 && target[0] == 0x1239);
    CHECK(rts_to_rts(&near, 0) == 0);
    CHECK(rts_to_rts(&near, 200) == 3);
    memset(segments, 0, sizeof(segments));
    put(segments, 0, 32, 0x80000008);       /* 8 bytes inline */
    post(&near, 0x0a, segments, 1);
    const uint8_t *entry = next_entry(&cq);
    CHECK(entry[63] >> 4 == 13 && entry[55] == 0x16); /* a request's error: RNR retries exceeded */
    destroy_qp(&near);
    destroy_qp(&far);

    /* Without an atomic mode the right to atomics has no effect. */
    CHECK(create(context, uar, numbers.pdn, sends, &near) == 0 && create(context, uar, numbers.pdn, sends, &far) == 0);
    pair_up(context, &near, &far, 0);
    post(&near, 0x12, atomic, 3);
    entry = next_entry(&cq);
    CHECK(entry[63] >> 4 == 13 && entry[55] == 0x12 && target[0] == 0x1239); /* remote invalid request */
    destroy_qp(&near);
    destroy_qp(&far);

    /* One only sends, the other only receives. */
    CHECK(create(context, uar, numbers.pdn, sends, &near) == 0 && create(context, uar, numbers.pdn, receives, &far) == 0);
    pair_up(context, &near, &far, 1);
    put(far.memory, 0, 32, 16);
    put(far.memory, 32, 32, mr->lkey);
    put(far.memory, 64, 64, (uint64_t)(uintptr_t)(target + 16));
    __atomic_store_n((uint32_t *)(far.memory + RECORD_AT), htobe32(1), __ATOMIC_RELEASE);
    memset(segments, 0, sizeof(segments));
    put(segments, 0, 32, 0x80000008);
    memset(segments + 4, 0x5a, 8);
    post(&near, 0x0a, segments, 1);
    unsigned seen = 0;
    for (int i = 0; i < 2; i++)
        seen |= 1u << (next_entry(&cq)[63] >> 4);
    CHECK(seen == (1 << 0 | 1 << 2) && target[16] == 0x5a5a5a5a5a5a5a5a); /* a request's entry and a receive's */
    destroy_qp(&near);
    destroy_qp(&far);

    destroy_cq(&cq);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
