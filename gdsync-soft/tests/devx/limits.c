/* The limits of the device: creation succeeds at each, and fails with EINVAL above it. */
#include "devx.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* Creates a queue pair and destroys it. Returns 0 or the error. */
static int queue_pair(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = type};
    struct ibv_qp *qp = ibv_create_qp(pd, &asked);
    if (!qp)
        return errno;
    CHECK(asked.cap.max_send_wr >= cap.max_send_wr && asked.cap.max_send_sge >= cap.max_send_sge);
    CHECK(asked.cap.max_recv_wr >= cap.max_recv_wr && asked.cap.max_recv_sge >= cap.max_recv_sge);
    CHECK(asked.cap.max_inline_data >= cap.max_inline_data);
    CHECK(ibv_destroy_qp(qp) == 0);
    return 0;
}

static int completion_queue(int entries)
{
    struct ibv_cq *made = ibv_create_cq(context, entries, NULL, NULL, 0);
    if (!made)
        return errno;
    CHECK(made->cqe >= entries && ibv_destroy_cq(made) == 0);
    return 0;
}

static int shared_queue(uint32_t max_wr, uint32_t max_sge)
{
    struct ibv_srq_init_attr asked = {.attr = {.max_wr = max_wr, .max_sge = max_sge}};
    struct ibv_srq *srq = ibv_create_srq(pd, &asked);
    if (!srq)
        return errno;
    CHECK(asked.attr.max_wr >= max_wr && asked.attr.max_sge >= max_sge && ibv_destroy_srq(srq) == 0);
    return 0;
}

static int device_memory(size_t length)
{
    struct ibv_alloc_dm_attr asked = {.length = length};
    struct ibv_dm *dm = ibv_alloc_dm(context, &asked);
    if (!dm)
        return errno;
    CHECK(ibv_free_dm(dm) == 0);
    return 0;
}

/* Makes a queue pair ready to receive, with so many reads in flight. */
static int reads_in_flight(uint8_t count)
{
    struct ibv_qp_init_attr asked = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &asked);
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_qp_attr ready = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = count, .min_rnr_timer = 12};
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int result;
    CHECK(qp);
    CHECK(ibv_query_gid(context, 1, 0, &ready.ah_attr.grh.dgid) == 0);
    ready.ah_attr.is_global = 1;
    ready.ah_attr.port_num = 1;
    ready.ah_attr.grh.hop_limit = 1;
    ready.dest_qp_num = qp->qp_num;
    CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS) == 0);
    result = ibv_modify_qp(qp, &ready, mask);
    CHECK(ibv_destroy_qp(qp) == 0);
    return result;
}

/* libmlx5 gives each send 4 blocks of 64 bytes (UD: 2), so that it may be any request: that many fewer fit, on every
 * card. Lists up to the device's maximum fit with any number of receives and any amount of inline data. */
static void queue_pairs(const struct ibv_device_attr *device)
{
    const enum ibv_qp_type types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    uint32_t most = (uint32_t)device->max_qp_wr, sges = (uint32_t)device->max_sge;
    for (unsigned i = 0; i < 3; i++) {
        uint32_t sends = types[i] == IBV_QPT_UD ? most / 2 : most / 4;
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){sends, most, 1, 1, 0}) == 0);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){1, most + 1, 1, 1, 0}) == EINVAL);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){most + 1, 1, 1, 1, 0}) == EINVAL);
        for (uint32_t sge = 1; sge <= sges; sge++)
            for (uint32_t count = 1; count <= most / 16; count *= 8)
                CHECK(queue_pair(types[i], (struct ibv_qp_cap){count, count, sge, sges + 1 - sge, sge * 16}) == 0);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){1, 1, 64, 1, 0}) == EINVAL);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){1, 1, 1, 65, 0}) == EINVAL);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){1, 1, 1, 1, 828}) == 0);
        CHECK(queue_pair(types[i], (struct ibv_qp_cap){1, 1, 1, 1, 1024}) == EINVAL);
    }
}

int main(void)
{
    struct ibv_device_attr device;
    struct ibv_device_attr_ex extended;
    context = open_device();
    CHECK(ibv_query_device(context, &device) == 0 && ibv_query_device_ex(context, NULL, &extended) == 0);
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(cq = ibv_create_cq(context, 1, NULL, NULL, 0));
    queue_pairs(&device);
    CHECK(completion_queue(device.max_cqe) == 0 && completion_queue(device.max_cqe + 1) == EINVAL);
    CHECK(shared_queue((uint32_t)device.max_srq_wr, 1) == 0);
    CHECK(shared_queue((uint32_t)device.max_srq_wr, (uint32_t)device.max_srq_sge) == 0);
    CHECK(shared_queue((uint32_t)device.max_srq_wr + 1, 1) == EINVAL);
    CHECK(shared_queue(1, (uint32_t)device.max_srq_sge + 1) == EINVAL);
    CHECK(device_memory(extended.max_dm_size) == 0 && device_memory(extended.max_dm_size + 1) == EINVAL);
    CHECK(reads_in_flight((uint8_t)device.max_qp_rd_atom) == 0);
    CHECK(reads_in_flight((uint8_t)(device.max_qp_rd_atom + 1)) == EINVAL);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
