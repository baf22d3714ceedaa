/* Receive memory pools, connections that use them, and dynamically connected transport. */
#include "devx.h"

enum { ENTRIES = 8, STRIDE = 32, MESSAGES = 6, POOL_RECORD = PAGE, TARGETS = 2 * PAGE, POOL_SIZE = 3 * PAGE };

static const uint64_t ACCESS_KEY = 0x1122334455667788;

/* A pool: ring, record, and the memory of its receives, 8 bytes each. */
struct pool {
    uint8_t *memory;
    struct mlx5dv_devx_umem *umem;
    struct mlx5dv_devx_obj *object, *mkey;
    uint32_t number;
};

static void fill_create_rmp(void *in, uint32_t pd, uint32_t umem, unsigned type)
{
    const unsigned wq = 80 * 8;
    memset(in, 0, COMMAND);
    put(in, 0, 16, 0x90c);
    put(in, 0x100 + 8, 4, 1);               /* state: ready */
    put(in, wq, 4, type);
    put(in, wq + 0x48, 24, pd);
    put(in, wq + 0x80, 64, POOL_RECORD);    /* dbr_addr */
    put(in, wq + 0x10c, 4, 5);              /* log_wq_stride */
    put(in, wq + 0x11b, 5, 3);              /* log_wq_sz */
    put(in, wq + 0x140, 32, umem);          /* dbr_umem_id */
    put(in, wq + 0x160, 32, umem);          /* wq_umem_id */
}

static struct pool create_pool(struct ibv_context *context, uint32_t pd, unsigned type)
{
    struct pool pool = {.memory = pages(POOL_SIZE)};
    uint8_t in[COMMAND], out[16] = {0};
    uint32_t key;
    CHECK(pool.umem = mlx5dv_devx_umem_reg(context, pool.memory, POOL_SIZE, IBV_ACCESS_LOCAL_WRITE));
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x200); /* CREATE_MKEY */
    put(in, 0x80 + 0x14, 1, 1); /* lw */
    put(in, 0x80 + 0x16, 2, 1); /* access mode MTT */
    put(in, 0x80 + 0x68, 24, pd);
    put(in, 0x80 + 0x80, 64, (uintptr_t)pool.memory);
    put(in, 0x80 + 0xc0, 64, POOL_SIZE);
    put(in, 0x320, 32, pool.umem->umem_id);
    CHECK(pool.mkey = mlx5dv_devx_obj_create(context, in, sizeof(in), out, 16));
    key = number_of(out) << 8;
    for (unsigned i = 0; i < ENTRIES; i++) {
        uint8_t *entry = pool.memory + i * STRIDE;
        /* A list that links every entry to the one after the next; a cyclic queue ignores it. */
        put(entry, 16, 16, (i + 3) % ENTRIES);
        put(entry, 128, 32, 8);
        put(entry, 160, 32, key);
        put(entry, 192, 64, (uintptr_t)pool.memory + TARGETS + i * 8);
    }
    fill_create_rmp(in, pd, pool.umem->umem_id, type);
    CHECK(pool.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK(status_of(out) == 0 && (pool.number = number_of(out)) != 0);
    return pool;
}

static void announce(struct pool *pool, unsigned posted)
{
    __atomic_store_n((uint32_t *)(pool->memory + POOL_RECORD), htobe32(posted), __ATOMIC_RELEASE);
}

static void destroy_pool(struct pool *pool)
{
    CHECK(mlx5dv_devx_obj_destroy(pool->object) == 0);
    CHECK(mlx5dv_devx_obj_destroy(pool->mkey) == 0);
    CHECK(mlx5dv_devx_umem_dereg(pool->umem) == 0);
    CHECK(munmap(pool->memory, POOL_SIZE) == 0);
}

/* A queue pair of a service type, with a pool or without receives. Its send ring is at the beginning of its memory. */
static struct qp create_other(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd, uint32_t cq,
                              unsigned service, uint32_t pool)
{
    struct qp qp = {.log_size = 4, .uar = uar, .size = RECORD_AT + PAGE};
    uint8_t in[COMMAND], out[16] = {0};
    const unsigned qpc = 0xc0;
    qp.memory = pages(qp.size);
    CHECK(qp.umem = mlx5dv_devx_umem_reg(context, qp.memory, qp.size, IBV_ACCESS_LOCAL_WRITE));
    fill_create_qp(in, uar, pd, cq, qp.umem->umem_id, qp.log_size);
    put(in, qpc + 8, 8, service);
    put(in, qpc + 0x49, 4, 0);
    put(in, qpc + 0x565, 3, pool ? 1 : 3);  /* rq_type */
    put(in, qpc + 0x568, 24, pool);
    CHECK(qp.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK((qp.number = number_of(out)) != 0);
    return qp;
}

/* Posts an inline send of 8 bytes, to a target for DC. */
static void post_send(struct ibv_context *context, struct qp *qp, uint64_t value, uint32_t target, uint64_t key)
{
    uint32_t *records = (uint32_t *)(qp->memory + RECORD_AT);
    unsigned first = qp->head & ((1u << qp->log_size) - 1), vector = target ? 48 : 0, blocks = target ? 2 : 1;
    uint8_t *entry = qp->memory + first * 64;
    uint64_t doorbell;
    memset(entry, 0, blocks * 64);
    put(entry, 8, 16, qp->head & 0xffff);
    put(entry, 24, 8, 0x0a);                       /* SEND */
    put(entry, 32, 24, qp->number);
    put(entry, 56, 8, (16 + vector + 16) / 16);    /* ds */
    entry[11] = 8;                                 /* a completion */
    if (target) {
        struct ibv_port_attr port;
        union ibv_gid gid;
        CHECK(ibv_query_port(context, 1, &port) == 0);
        put(entry, 128, 64, key);
        put(entry, 192, 32, 0x80000000u | target); /* dqp_dct */
        if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
            CHECK(ibv_query_gid(context, 1, 3, &gid) == 0);
            put(entry, 352, 32, 1u << 30 | 3u << 20);
            memcpy(entry + 48, &gid, 16);
        } else {
            put(entry, 240, 16, port.lid);
        }
    }
    put(entry, (16 + vector) * 8, 32, 0x80000000u | 8);
    memcpy(entry + 16 + vector + 4, &value, 8);
    qp->head += blocks;
    __atomic_store_n(&records[1], htobe32(qp->head & 0xffff), __ATOMIC_RELEASE);
    memcpy(&doorbell, entry, 8);
    __atomic_store_n((uint64_t *)qp->uar->reg_addr, doorbell, __ATOMIC_RELEASE);
}

static void expect_receives(struct pool *pool, struct cq *near, struct cq *far, unsigned type, unsigned user_index)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        unsigned index = type ? i : i * 3 % ENTRIES;
        const uint8_t *entry = next_entry(near);
        uint64_t value;
        CHECK(entry[63] >> 4 == 0);
        give_back(near);
        entry = next_entry(far);
        CHECK(entry[63] >> 4 == 2);                     /* a send has arrived */
        CHECK(get(entry, 60 * 8, 16) == index);
        CHECK(get(entry, 32 * 8 + 8, 24) == user_index);
        give_back(far);
        memcpy(&value, pool->memory + TARGETS + index * 8, 8);
        CHECK(value == 0x5000 + i);
    }
}

/* A connection with a pool at one side. */
static void connection(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd, unsigned type)
{
    struct cq near = create_cq(context, uar, 4), far = create_cq(context, uar, 4);
    struct pool pool = create_pool(context, pd, type);
    struct qp sender = create_other(context, uar, pd, near.number, 0, 0);
    struct qp receiver = create_other(context, uar, pd, far.number, 0, pool.number);
    connect_qp(context, &sender, receiver.number);
    connect_qp(context, &receiver, sender.number);
    announce(&pool, MESSAGES);
    for (unsigned i = 0; i < MESSAGES; i++)
        post_send(context, &sender, 0x5000 + i, 0, 0);
    expect_receives(&pool, &near, &far, type, 0xabc);
    CHECK(mlx5dv_devx_obj_destroy(pool.object) != 0 && errno == EBUSY);
    destroy_qp(&sender);
    destroy_qp(&receiver);
    destroy_pool(&pool);
    destroy_cq(&near);
    destroy_cq(&far);
}

static void fill_create_dct(void *in, uint32_t pd, uint32_t cq, uint32_t pool)
{
    const unsigned dctc = 0x80;
    memset(in, 0, COMMAND);
    put(in, 0, 16, 0x710);
    put(in, dctc + 0x28, 24, 0xdef);        /* user_index */
    put(in, dctc + 0x48, 24, cq);
    put(in, dctc + 0x93, 5, 12);            /* min_rnr_nak */
    put(in, dctc + 0xa8, 24, pool);
    put(in, dctc + 0xc8, 24, pd);
    put(in, dctc + 0x100, 64, ACCESS_KEY);
    put(in, dctc + 0x145, 3, IBV_MTU_1024);
    put(in, dctc + 0x148, 8, 1);            /* port */
    put(in, dctc + 0x168, 8, 0);            /* my_addr_index */
}

static void dynamic(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd)
{
    struct cq near = create_cq(context, uar, 4), far = create_cq(context, uar, 4);
    struct pool pool = create_pool(context, pd, 0);
    struct qp initiator = create_other(context, uar, pd, near.number, 5, 0);
    struct mlx5dv_devx_obj *target;
    uint8_t in[COMMAND], out[16] = {0};
    const uint8_t *entry;
    uint32_t number;
    connect_qp(context, &initiator, 0);
    fill_create_dct(in, pd, far.number, pool.number);
    CHECK(target = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK((number = number_of(out)) != 0);
    announce(&pool, MESSAGES);
    for (unsigned i = 0; i < MESSAGES; i++)
        post_send(context, &initiator, 0x5000 + i, number, ACCESS_KEY);
    expect_receives(&pool, &near, &far, 0, 0xdef);
    post_send(context, &initiator, 0, number, ACCESS_KEY + 1);
    entry = next_entry(&near);
    CHECK(entry[63] >> 4 == 13 && entry[55] == 0x13); /* remote access */

    memset(out, 0, sizeof(out));
    fill_create_dct(in, pd, far.number, number);
    CHECK(!mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)) && status_of(out) == 5);
    fill_create_rmp(in, pd, pool.umem->umem_id, 2);
    CHECK(!mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)) && status_of(out) == 3);

    CHECK(mlx5dv_devx_obj_destroy(target) == 0);
    destroy_qp(&initiator);
    destroy_pool(&pool);
    destroy_cq(&near);
    destroy_cq(&far);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    uint8_t in[16] = {0}, out[16] = {0};
    struct mlx5dv_devx_obj *pd;
    CHECK(uar);
    put(in, 0, 16, 0x800); /* ALLOC_PD */
    CHECK(pd = mlx5dv_devx_obj_create(context, in, 16, out, 16));
    connection(context, uar, number_of(out), 0);
    connection(context, uar, number_of(out), 1);
    dynamic(context, uar, number_of(out));
    CHECK(mlx5dv_devx_obj_destroy(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
