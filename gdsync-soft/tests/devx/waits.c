/* Work requests that wait, on verbs queue pairs of libmlx5, and masters and slaves made by commands. */
#include "devx.h"

enum { ROUNDS = 20, LINKS = 3, WAIT = 0x0f, SEND_EN = 0x17, WRITE = 8, REACHED = 0x14 };

/* A send queue, made by verbs or by a command. */
struct sq {
    uint8_t *ring;
    unsigned blocks;
    uint32_t *record;
    volatile uint64_t *bell;
    uint32_t number;
    uint32_t head;
};

/* The next block of 64 bytes, with a control segment; the entry is announced by `ring_sq`. */
static uint8_t *entry(struct sq *sq, unsigned opcode, unsigned modifier, unsigned units, int signaled)
{
    uint8_t *at = sq->ring + (sq->head % sq->blocks) * 64;
    memset(at, 0, 64);
    put(at, 0, 8, modifier);
    put(at, 8, 16, sq->head & 0xffff);
    put(at, 24, 8, opcode);
    put(at, 32, 24, sq->number);
    put(at, 56, 8, units);
    at[11] = signaled ? 8 : 0;
    sq->head++;
    return at;
}

static void wait_word(struct sq *sq, uint32_t key, void *word, uint64_t ticket)
{
    uint8_t *at = entry(sq, WAIT, 1, 3, 0);
    put(at, 128, 32, REACHED); /* not (ticket cyclic bigger than word) */
    put(at, 160, 32, key);
    put(at, 192, 64, (uintptr_t)word);
    put(at, 256, 64, ticket);
    put(at, 320, 64, UINT64_MAX);
}

static void indexed(struct sq *sq, unsigned opcode, uint32_t index, uint32_t number)
{
    uint8_t *at = entry(sq, opcode, 0, 2, 0);
    put(at, 192, 32, index);
    put(at, 224, 32, number);
}

static void write_inline(struct sq *sq, uint64_t value, void *address, uint32_t key)
{
    uint8_t *at = entry(sq, WRITE, 0, 3, 1);
    put(at, 128, 64, (uintptr_t)address);
    put(at, 192, 32, key);
    put(at, 256, 32, 0x80000008);
    memcpy(at + 36, &value, 8);
}

static void announce(struct sq *sq)
{
    __atomic_store_n(&sq->record[1], htobe32(sq->head & 0xffff), __ATOMIC_RELEASE);
}

static void ring_sq(struct sq *sq)
{
    uint64_t bell;
    announce(sq);
    memcpy(&bell, sq->ring + ((sq->head - 1) % sq->blocks) * 64, 8);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    *sq->bell = bell;
}

/* Waits until a word has a value, for ten seconds at most. */
static void comes(const uint64_t *word, uint64_t value)
{
    time_t end = time(NULL) + 10;
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
        CHECK(time(NULL) < end);
}

/* A verbs queue pair, connected to itself. */
struct link {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    uint32_t cqn;
    struct sq sq;
};

static struct link make(struct ibv_context *context, struct ibv_pd *pd)
{
    struct link link = {.cq = ibv_create_cq(context, 64, NULL, NULL, 0)};
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1,
                                                                  .max_recv_sge = 1}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_port_attr port;
    struct mlx5dv_qp qp = {0};
    struct mlx5dv_cq cq = {0};
    struct mlx5dv_obj objects = {.qp = {.out = &qp}, .cq = {.out = &cq}};
    CHECK(link.cq && ibv_query_port(context, 1, &port) == 0);
    init.send_cq = init.recv_cq = link.cq;
    CHECK(link.qp = ibv_create_qp(pd, &init));
    CHECK(ibv_modify_qp(link.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = link.qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = port.lid;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = 3;
        attr.ah_attr.grh.hop_limit = 64;
        CHECK(ibv_query_gid(context, 1, 3, &attr.ah_attr.grh.dgid) == 0);
    }
    CHECK(ibv_modify_qp(link.qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    CHECK(ibv_modify_qp(link.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    objects.qp.in = link.qp;
    objects.cq.in = link.cq;
    CHECK(mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0);
    CHECK(qp.sq.stride == 64);
    link.cqn = cq.cqn;
    link.sq = (struct sq){.ring = qp.sq.buf, .blocks = qp.sq.wqe_cnt, .record = (uint32_t *)qp.dbrec, .bell = qp.bf.reg,
                          .number = link.qp->qp_num};
    return link;
}

/* Queues that wait for one word, and a collector that waits for their completions: one store and one load a round. */
static void words(struct ibv_context *context)
{
    struct ibv_pd *pd = ibv_alloc_pd(context);
    uint64_t *memory = pages(PAGE), *trigger = memory, *arrival = memory + 8, *target = memory + 16;
    struct link links[LINKS], collector;
    struct ibv_mr *mr;
    CHECK(pd && (mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    for (unsigned n = 0; n < LINKS; n++)
        links[n] = make(context, pd);
    collector = make(context, pd);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned n = 0; n < LINKS; n++) {
            wait_word(&links[n].sq, mr->lkey, trigger, round);
            write_inline(&links[n].sq, round, &target[n], mr->rkey);
            ring_sq(&links[n].sq);
            indexed(&collector.sq, WAIT, (uint32_t)round - 1, links[n].cqn);
        }
        write_inline(&collector.sq, round, arrival, mr->rkey);
        ring_sq(&collector.sq);
        CHECK(ibv_query_port(context, 1, &(struct ibv_port_attr){0}) == 0);
        CHECK(__atomic_load_n(arrival, __ATOMIC_ACQUIRE) == round - 1 && target[0] == round - 1);
        __atomic_store_n(trigger, htobe64(round), __ATOMIC_RELEASE);
        comes(arrival, round);
        for (unsigned n = 0; n < LINKS; n++)
            CHECK(target[n] == round);
    }
    for (unsigned n = 0; n <= LINKS; n++) {
        struct link *link = n < LINKS ? &links[n] : &collector;
        CHECK(ibv_destroy_qp(link->qp) == 0 && ibv_destroy_cq(link->cq) == 0);
    }
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && munmap(memory, PAGE) == 0);
}

/* A queue pair with one additional context field, connected to itself. */
static struct qp make_special(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd, uint32_t cq,
                              unsigned at, unsigned width, uint64_t value)
{
    struct qp qp = {.log_size = 6, .uar = uar, .size = RECORD_AT + PAGE};
    uint8_t in[COMMAND], out[COMMAND] = {0};
    qp.memory = pages(qp.size);
    CHECK(qp.umem = mlx5dv_devx_umem_reg(context, qp.memory, qp.size, IBV_ACCESS_LOCAL_WRITE));
    fill_create_qp(in, uar, pd, cq, qp.umem->umem_id, qp.log_size);
    put(in, 0xc0 + at, width, value);
    CHECK(qp.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    qp.number = number_of(out);
    connect_qp(context, &qp, qp.number);
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x50b); /* QUERY_QP */
    put(in, 0x48, 24, qp.number);
    CHECK(mlx5dv_devx_obj_query(qp.object, in, 16, out, sizeof(out)) == 0);
    CHECK(get(out, 0xc0 + at, width) == value);
    return qp;
}

static struct sq queue_of(struct qp *qp)
{
    return (struct sq){.ring = qp->memory + RECEIVE_BYTES, .blocks = 1u << qp->log_size,
                       .record = (uint32_t *)(qp->memory + RECORD_AT), .bell = qp->uar->reg_addr, .number = qp->number};
}

/* A master that waits for a word and then for its slaves' entries; and a queue pair without a record. */
static void masters(struct ibv_context *context)
{
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct mlx5dv_pd dv_pd = {0};
    struct mlx5dv_obj objects = {.pd = {.in = pd, .out = &dv_pd}};
    struct mlx5dv_devx_uar *uar[4];
    uint64_t *memory = pages(PAGE), *trigger = memory, *arrival = memory + 8, *target = memory + 16;
    struct cq master_cq, cqs[2], lone_cq;
    struct qp master, slaves[2], lone;
    struct sq master_sq, slave_sqs[2], lone_sq;
    uint8_t in[COMMAND], out[16] = {0};
    struct ibv_mr *mr;
    CHECK(pd && mlx5dv_init_obj(&objects, MLX5DV_OBJ_PD) == 0);
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    for (unsigned n = 0; n < 4; n++)
        CHECK(uar[n] = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF));
    master_cq = create_cq(context, uar[0], 6);
    master = make_special(context, uar[0], dv_pd.pdn, master_cq.number, 0x49f, 1, 1); /* cd_master */
    master_sq = queue_of(&master);
    for (unsigned n = 0; n < 2; n++) {
        cqs[n] = create_cq(context, uar[1 + n], 6);
        slaves[n] = make_special(context, uar[1 + n], dv_pd.pdn, cqs[n].number, 0x49e, 1, 1); /* cd_slave_send */
        slave_sqs[n] = queue_of(&slaves[n]);
    }
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (unsigned n = 0; n < 2; n++) {
            write_inline(&slave_sqs[n], round, &target[n], mr->rkey);
            announce(&slave_sqs[n]); /* which releases nothing */
        }
        wait_word(&master_sq, mr->lkey, trigger, round);
        for (unsigned n = 0; n < 2; n++)
            indexed(&master_sq, SEND_EN, slave_sqs[n].head & 0xffff, slaves[n].number);
        for (unsigned n = 0; n < 2; n++)
            indexed(&master_sq, WAIT, (uint32_t)round - 1, cqs[n].number);
        write_inline(&master_sq, round, arrival, mr->rkey);
        ring_sq(&master_sq);
        CHECK(ibv_query_port(context, 1, &(struct ibv_port_attr){0}) == 0);
        CHECK(target[0] == round - 1 && target[1] == round - 1);
        __atomic_store_n(trigger, htobe64(round), __ATOMIC_RELEASE);
        comes(arrival, round);
        CHECK(target[0] == round && target[1] == round);
        next_entry(&master_cq);
        give_back(&master_cq);
        for (unsigned n = 0; n < 2; n++) {
            next_entry(&cqs[n]);
            give_back(&cqs[n]);
        }
    }

    /* Without a record: one store of the producer index to a separate register. The completion queue has 2 entries, is never
     * consumed, and ignores overruns. */
    lone_cq = create_cq(context, uar[3], 1);
    CHECK(mlx5dv_devx_obj_destroy(lone_cq.object) == 0);
    fill_create_cq(in, context, uar[3], lone_cq.umem->umem_id, 1);
    put(in, 0x80 + 0xe, 1, 1); /* oi */
    CHECK(lone_cq.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    lone_cq.number = number_of(out);
    lone = make_special(context, uar[3], dv_pd.pdn, lone_cq.number, 0x80, 2, 1); /* send_dbr_mode */
    lone_sq = queue_of(&lone);
    lone_sq.bell = (uint64_t *)((uint8_t *)uar[3]->base_addr + 0x600);
    for (uint64_t round = 1; round <= 3 * ROUNDS; round++) {
        uint8_t bell[8] = {0};
        uint64_t word;
        write_inline(&lone_sq, round, &target[2], mr->rkey);
        put(bell, 8, 16, lone_sq.head & 0xffff);
        put(bell, 32, 24, lone.number);
        memcpy(&word, bell, 8);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        *lone_sq.bell = word;
        comes(&target[2], round);
    }

    destroy_qp(&lone);
    destroy_cq(&lone_cq);
    destroy_qp(&master);
    destroy_cq(&master_cq);
    for (unsigned n = 0; n < 2; n++) {
        destroy_qp(&slaves[n]);
        destroy_cq(&cqs[n]);
    }
    for (unsigned n = 0; n < 4; n++)
        mlx5dv_devx_free_uar(uar[n]);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && munmap(memory, PAGE) == 0);
}

/* A verbs completion queue that ignores overruns. */
static void ignores_overruns(struct ibv_context *context)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 3, .wc_flags = IBV_WC_STANDARD_FLAGS,
                                       .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                       .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
    CHECK(cq && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

int main(void)
{
    struct ibv_context *context = open_device();
    uint8_t in[16] = {0}, out[16 + 4096] = {0};
    put(in, 0, 16, 0x100); /* QUERY_HCA_CAP, of the general ones */
    put(in, 0x30, 16, 1);
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x68b, 2) == 3); /* wait_on_data, wait_on_time */
    CHECK(get(out, 0x80 + 0x22c, 1) == 1); /* cd */
    put(in, 0x30, 16, 0x20 << 1 | 1);      /* of their second part */
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x2e1, 1) == 1 && get(out, 0x80 + 0x2e3, 5) == 8); /* send_dbr_mode_no_dbr_ext */
    words(context);
    masters(context);
    ignores_overruns(context);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
