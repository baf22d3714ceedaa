/* Helpers of the programs in this folder: bit fields, and queues made by DEVX commands.
 *
 * Offsets are in bits from the beginning of a command, as in `mlx5_ifc.h` of rdma-core and Linux. */
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);               \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { PAGE = 4096, COMMAND = 272, EQN_VECTOR = 0 };

static void put(void *command, unsigned at, unsigned width, uint64_t value)
{
    uint8_t *bytes = command;
    for (unsigned i = 0; i < width; i++) {
        unsigned bit = at + width - 1 - i;
        uint8_t mask = (uint8_t)(0x80 >> bit % 8);
        bytes[bit / 8] = (uint8_t)((value >> i & 1) ? bytes[bit / 8] | mask : bytes[bit / 8] & ~mask);
    }
}

static uint64_t get(const void *command, unsigned at, unsigned width)
{
    const uint8_t *bytes = command;
    uint64_t value = 0;
    for (unsigned bit = at; bit < at + width; bit++)
        value = value << 1 | (bytes[bit / 8] >> (7 - bit % 8) & 1);
    return value;
}

static unsigned status_of(const void *answer) { return (unsigned)get(answer, 0, 8); }
static unsigned syndrome_of(const void *answer) { return (unsigned)get(answer, 0x20, 32); }
static unsigned number_of(const void *answer) { return (unsigned)get(answer, 0x48, 24); }

static struct ibv_context *open_device(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct mlx5dv_context_attr attributes = {.flags = MLX5DV_CONTEXT_FLAGS_DEVX};
    struct ibv_context *context;
    CHECK(list && list[0]);
    CHECK(context = mlx5dv_open_device(list[0], &attributes));
    ibv_free_device_list(list);
    return context;
}

static void *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static struct ibv_qp *create_rc(struct ibv_pd *pd, struct ibv_cq *cq, int signal_all)
{
    struct ibv_qp_init_attr initial = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = signal_all,
                                       .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2}};
    struct ibv_qp *qp = ibv_create_qp(pd, &initial);
    CHECK(qp);
    return qp;
}

struct remote {
    uint32_t number;
    uint16_t lid;
    union ibv_gid gid;
};

/* The address of a queue pair. */
static struct remote remote_of(struct ibv_qp *qp)
{
    struct remote own = {.number = qp->qp_num};
    struct ibv_port_attr port;
    CHECK(ibv_query_port(qp->context, 1, &port) == 0 && ibv_query_gid(qp->context, 1, 0, &own.gid) == 0);
    own.lid = port.lid;
    return own;
}

static void connect_rc(struct ibv_qp *qp, const struct remote *to)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC};
    struct ibv_port_attr port;

    CHECK(ibv_query_port(qp->context, 1, &port) == 0);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = to->number;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 12;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = to->lid;
    attr.ah_attr.is_global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    attr.ah_attr.grh.dgid = to->gid;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 4;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* A verbs queue pair that is connected to itself. */
static struct ibv_qp *connect_to_itself(struct ibv_pd *pd, struct ibv_cq *cq, int signal_all)
{
    struct ibv_qp *qp = create_rc(pd, cq, signal_all);
    struct remote own = remote_of(qp);
    connect_rc(qp, &own);
    return qp;
}

/* A completion queue. Its ring is at the beginning of its memory, the record in the last page, which is also registered alone with no
 * access, as UCX does: the device only reads records. */
struct cq {
    uint8_t *memory;
    size_t size;
    struct mlx5dv_devx_umem *umem, *records;
    struct mlx5dv_devx_obj *object;
    uint32_t number;
    unsigned log_size;
    uint32_t consumed;
};

static void fill_create_cq(void *in, struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t umem,
                           unsigned log_size)
{
    uint32_t eqn;
    CHECK(mlx5dv_devx_query_eqn(context, EQN_VECTOR, &eqn) == 0);
    memset(in, 0, COMMAND);
    put(in, 0, 16, 0x400);
    put(in, 0x80 + 0x20, 32, umem);          /* dbr_umem_id */
    put(in, 0x80 + 0x63, 5, log_size);       /* log_cq_size */
    put(in, 0x80 + 0x68, 24, uar->page_id);  /* uar_page */
    put(in, 0x80 + 0xb8, 8, eqn);            /* c_eqn */
    put(in, 0x80 + 0x1c0, 64, ((uint64_t)64 << log_size) + PAGE - ((uint64_t)64 << log_size) % PAGE);
    put(in, 0x2c0, 32, umem);                /* cq_umem_id */
}

static struct cq create_cq(struct ibv_context *context, struct mlx5dv_devx_uar *uar, unsigned log_size)
{
    struct cq cq = {.log_size = log_size};
    uint8_t in[COMMAND], out[16] = {0};
    size_t ring = (size_t)64 << log_size;
    size_t record = ring + PAGE - ring % PAGE;
    cq.size = record + PAGE;
    cq.memory = pages(cq.size);
    for (size_t i = 0; i < (size_t)1 << log_size; i++)
        cq.memory[i * 64 + 63] = 0xf1;
    CHECK(cq.umem = mlx5dv_devx_umem_reg(context, cq.memory, cq.size, IBV_ACCESS_LOCAL_WRITE));
    CHECK(cq.records = mlx5dv_devx_umem_reg(context, cq.memory + record, PAGE, 0));
    fill_create_cq(in, context, uar, cq.umem->umem_id, log_size);
    put(in, 0x80 + 0x20, 32, cq.records->umem_id);
    put(in, 0x80 + 0x1c0, 64, 0); /* dbr_addr */
    CHECK(cq.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK(status_of(out) == 0);
    CHECK((cq.number = number_of(out)) != 0);
    return cq;
}

static void destroy_cq(struct cq *cq)
{
    CHECK(mlx5dv_devx_obj_destroy(cq->object) == 0);
    CHECK(mlx5dv_devx_umem_dereg(cq->umem) == 0);
    CHECK(mlx5dv_devx_umem_dereg(cq->records) == 0);
    CHECK(munmap(cq->memory, cq->size) == 0);
}

/* Waits for the next entry, for ten seconds at most. */
static const uint8_t *next_entry(struct cq *cq)
{
    volatile uint8_t *entry = cq->memory + (cq->consumed & ((1u << cq->log_size) - 1)) * 64;
    unsigned owner = cq->consumed >> cq->log_size & 1;
    time_t end = time(NULL) + 10;
    while ((entry[63] & 1) != owner || entry[63] >> 4 == 0xf)
        CHECK(time(NULL) < end);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    cq->consumed++;
    return (const uint8_t *)entry;
}

static void give_back(struct cq *cq)
{
    size_t ring = (size_t)64 << cq->log_size;
    uint32_t *record = (uint32_t *)(cq->memory + ring + PAGE - ring % PAGE);
    __atomic_store_n(record, htobe32(cq->consumed & 0xffffff), __ATOMIC_RELEASE);
}

/* A queue pair: receive ring (4 entries of 16 bytes, one block), send ring, and the record in the last page. */
struct qp {
    uint8_t *memory;
    size_t size;
    struct mlx5dv_devx_umem *umem;
    struct mlx5dv_devx_obj *object;
    struct mlx5dv_devx_uar *uar;
    uint32_t number;
    unsigned log_size;
    uint32_t head;
};

enum { RECEIVE_BYTES = 64, RECORD_AT = 2 * PAGE };

static void fill_create_qp(void *in, struct mlx5dv_devx_uar *uar, uint32_t pd, uint32_t cq, uint32_t umem,
                           unsigned log_size)
{
    const unsigned qpc = 0xc0;
    memset(in, 0, COMMAND);
    put(in, 0, 16, 0x500);
    put(in, qpc + 0x13, 2, 3);              /* pm_state: migrated */
    put(in, qpc + 0x28, 24, pd);
    put(in, qpc + 0x49, 4, 2);              /* log_rq_size */
    put(in, qpc + 0x51, 4, log_size);       /* log_sq_size */
    put(in, qpc + 0x68, 24, uar->page_id);
    put(in, qpc + 0x88, 24, 0xabc);         /* user_index */
    put(in, qpc + 0x3e8, 24, cq);           /* cqn_snd */
    put(in, qpc + 0x4e8, 24, cq);           /* cqn_rcv */
    put(in, qpc + 0x500, 64, RECORD_AT);    /* dbr_addr */
    put(in, qpc + 0x720, 32, umem);         /* dbr_umem_id */
    put(in, 0x840, 32, umem);               /* wq_umem_id */
}

static struct qp create_qp(struct ibv_context *context, struct mlx5dv_devx_uar *uar, uint32_t pd, uint32_t cq)
{
    struct qp qp = {.log_size = 6, .uar = uar, .size = RECORD_AT + PAGE};
    uint8_t in[COMMAND], out[16] = {0};
    qp.memory = pages(qp.size);
    CHECK(qp.umem = mlx5dv_devx_umem_reg(context, qp.memory, qp.size, 0)); /* the device only reads it */
    fill_create_qp(in, uar, pd, cq, qp.umem->umem_id, qp.log_size);
    CHECK(qp.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK((qp.number = number_of(out)) != 0);
    return qp;
}

static void destroy_qp(struct qp *qp)
{
    CHECK(mlx5dv_devx_obj_destroy(qp->object) == 0);
    CHECK(mlx5dv_devx_umem_dereg(qp->umem) == 0);
    CHECK(munmap(qp->memory, qp->size) == 0);
}

/* Transitions to this queue pair of this port, with a timeout of some milliseconds and one retry. */
static void fill_transition(void *in, struct ibv_context *context, unsigned opcode, uint32_t qpn, uint32_t peer)
{
    const unsigned qpc = 0xc0, path = qpc + 0xc0;
    struct ibv_port_attr port;
    memset(in, 0, COMMAND);
    put(in, 0, 16, opcode);
    put(in, 0x48, 24, qpn);
    put(in, path + 0x128, 8, 1);            /* vhca_port_num */
    put(in, qpc + 0x13, 2, 3);              /* pm_state: migrated */
    switch (opcode) {
    case 0x502:
        put(in, qpc + 0x490, 1, 1);         /* rre */
        put(in, qpc + 0x491, 1, 1);         /* rwe */
        put(in, qpc + 0x492, 1, 1);         /* rae */
        put(in, qpc + 0x48c, 4, 3);         /* atomic_mode: up to 64 bits */
        break;
    case 0x503:
        CHECK(ibv_query_port(context, 1, &port) == 0);
        put(in, qpc + 0x40, 3, IBV_MTU_1024);
        put(in, qpc + 0x43, 5, 30);         /* log_msg_max */
        put(in, qpc + 0xa8, 24, peer);      /* remote_qpn */
        put(in, qpc + 0x488, 3, 2);         /* log_rra_max */
        put(in, qpc + 0x4a3, 5, 12);        /* min_rnr_nak */
        put(in, qpc + 0x4a8, 24, 0x123);    /* next_rcv_psn */
        if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
            union ibv_gid gid;
            CHECK(ibv_query_gid(context, 1, 3, &gid) == 0);
            put(in, path + 0x48, 8, 3);     /* src_addr_index */
            put(in, path + 0x58, 8, 64);    /* hop_limit */
            put(in, path + 0x80, 64, be64toh(gid.global.subnet_prefix));
            put(in, path + 0xc0, 64, be64toh(gid.global.interface_id));
        } else {
            put(in, path + 0x30, 16, port.lid);
        }
        break;
    case 0x504:
        put(in, path + 0x40, 5, 10);        /* ack_timeout */
        put(in, qpc + 0x388, 3, 2);         /* log_sra_max */
        put(in, qpc + 0x38d, 3, 1);         /* retry_count */
        put(in, qpc + 0x390, 3, 7);         /* rnr_retry */
        put(in, qpc + 0x3c8, 24, 0x123);    /* next_send_psn */
        break;
    }
}

static void connect_qp(struct ibv_context *context, struct qp *qp, uint32_t peer)
{
    for (unsigned opcode = 0x502; opcode <= 0x504; opcode++) {
        uint8_t in[COMMAND], out[16] = {0};
        fill_transition(in, context, opcode, qp->number, peer);
        CHECK(mlx5dv_devx_obj_modify(qp->object, in, sizeof(in), out, sizeof(out)) == 0);
        CHECK(status_of(out) == 0);
    }
}

/* Posts an inline RDMA write of 8 bytes, and rings the doorbell. */
static void post_write(struct qp *qp, uint64_t value, uint64_t address, uint32_t key)
{
    uint32_t *records = (uint32_t *)(qp->memory + RECORD_AT);
    uint8_t *entry = qp->memory + RECEIVE_BYTES + (qp->head & ((1u << qp->log_size) - 1)) * 64;
    uint64_t doorbell;
    memset(entry, 0, 64);
    put(entry, 8, 16, qp->head & 0xffff);
    put(entry, 24, 8, 8);                   /* RDMA_WRITE */
    put(entry, 32, 24, qp->number);
    put(entry, 56, 8, 3);                   /* segments of 16 bytes */
    entry[11] = 8;                          /* an entry in the completion queue */
    put(entry, 128, 64, address);
    put(entry, 192, 32, key);
    put(entry, 256, 32, 0x80000008);        /* 8 bytes inline */
    memcpy(entry + 36, &value, 8);
    qp->head++;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&records[1], htobe32(qp->head & 0xffff), __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(&doorbell, entry, 8);
    *(volatile uint64_t *)qp->uar->reg_addr = doorbell;
}
