/* Memory of verbs: regions of every kind, memory windows, indirect keys, device memory, and their capabilities. */
#include "devx.h"

enum { SIZE = 2 * PAGE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *left, *right;
static struct ibv_mr *source, *target;
static char *from, *to;

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_port_attr port;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
                              .max_dest_rd_atomic = 4, .min_rnr_timer = 1};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
    CHECK(ibv_query_port(context, 1, &port) == 0);
    rtr.ah_attr.port_num = 1;
    rtr.ah_attr.dlid = port.lid;
    if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
        rtr.ah_attr.is_global = 1;
        rtr.ah_attr.grh.hop_limit = 1;
        CHECK(ibv_query_gid(context, 1, 0, &rtr.ah_attr.grh.dgid) == 0);
    }
    CHECK(ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    CHECK(ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    CHECK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* Connects both queue pairs to each other, also after an error. */
static void connect_both(void)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(left, &reset, IBV_QP_STATE) == 0 && ibv_modify_qp(right, &reset, IBV_QP_STATE) == 0);
    connect_to(left, right);
    connect_to(right, left);
}

/* Waits for the next completion, for ten seconds at most. */
static struct ibv_wc next(void)
{
    struct ibv_wc wc;
    time_t end = time(NULL) + 10;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(time(NULL) < end);
    CHECK(count == 1);
    return wc;
}

static enum ibv_wc_status write_to(uint32_t lkey, uint64_t at, uint32_t rkey, uint64_t remote, uint32_t length)
{
    struct ibv_sge sge = {.addr = at, .length = length, .lkey = lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = rkey;
    CHECK(ibv_post_send(left, &wr, &bad) == 0);
    return next().status;
}

/* Writes 8 bytes of the source through a key; returns whether it is refused as remote access. */
static void writes(uint32_t rkey, uint64_t remote)
{
    CHECK(write_to(source->lkey, (uintptr_t)from, rkey, remote, 8) == IBV_WC_SUCCESS);
}

static void is_refused(uint32_t rkey, uint64_t remote)
{
    struct ibv_wc wc;
    CHECK(write_to(source->lkey, (uintptr_t)from, rkey, remote, 8) == IBV_WC_REM_ACCESS_ERR);
    while (ibv_poll_cq(cq, 1, &wc) > 0)
        ;
    connect_both();
}

static void regions(void)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    char *memory = pages(SIZE);
    struct ibv_pd *other;
    struct ibv_mr *mr, *null;
    struct ibv_sge sge;
    CHECK(other = ibv_alloc_pd(context));
    /* Another range, other rights, another domain. */
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE));
    is_refused(mr->rkey, (uintptr_t)memory);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all) == 0);
    writes(mr->rkey, (uintptr_t)memory);
    CHECK(memcmp(memory, from, 8) == 0);
    is_refused(mr->rkey, (uintptr_t)memory + PAGE);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + PAGE, PAGE, 0) == 0);
    writes(mr->rkey, (uintptr_t)memory + PAGE);
    CHECK(mr->addr == memory + PAGE);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0);
    is_refused(mr->rkey, (uintptr_t)memory + PAGE);
    CHECK(ibv_dealloc_pd(other) == EBUSY);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)PAGE, PAGE, 0) != 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(other) == 0);
    /* A region that begins at 0. */
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, all | IBV_ACCESS_ZERO_BASED));
    writes(mr->rkey, 16);
    CHECK(memcmp(memory + 16, from, 8) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    /* The null region: zeros. */
    CHECK(null = ibv_alloc_null_mr(pd));
    memset(to, 7, 16);
    CHECK(write_to(null->lkey, 0, target->rkey, (uintptr_t)to, 8) == IBV_WC_SUCCESS);
    CHECK(memcmp(to, "\0\0\0\0\0\0\0\0\7", 9) == 0);
    CHECK(ibv_dereg_mr(null) == 0);
    /* On-demand memory: of a range, and everything. */
    CHECK(mr = ibv_reg_mr(pd, memory, SIZE, all | IBV_ACCESS_ON_DEMAND));
    sge = (struct ibv_sge){.addr = (uintptr_t)memory, .length = PAGE, .lkey = mr->lkey};
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
    sge.addr += SIZE;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == EFAULT);
    sge.lkey = source->lkey;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
    CHECK(ibv_advise_mr(pd, 77, 0, &sge, 1) == EOPNOTSUPP);
    writes(mr->rkey, (uintptr_t)memory + 32);
    CHECK(memcmp(memory + 32, from, 8) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(mr = ibv_reg_mr(pd, NULL, SIZE_MAX, all | IBV_ACCESS_ON_DEMAND));
    writes(mr->rkey, (uintptr_t)memory + 64);
    CHECK(memcmp(memory + 64, from, 8) == 0);
    is_refused(mr->rkey, PAGE);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(munmap(memory, SIZE) == 0);
}

static void bind(struct ibv_qp *qp, struct ibv_mw *mw, uint32_t rkey, char *at, uint64_t length)
{
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_wc wc;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = target, .addr = (uintptr_t)at, .length = length,
                                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    wc = next();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
    mw->rkey = rkey;
}

static void windows(void)
{
    struct ibv_mw_bind of = {.send_flags = IBV_SEND_SIGNALED};
    struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_sge into = {.addr = (uintptr_t)to, .length = 64, .lkey = target->lkey};
    struct ibv_recv_wr *bad_receive, receive = {.sg_list = &into, .num_sge = 1};
    struct ibv_mw *mw;
    struct ibv_wc wc, more;
    uint32_t before;
    /* Type 1, bound by a verb, and closed by another bind. */
    CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
    of.bind_info = (struct ibv_mw_bind_info){.mr = target, .addr = (uintptr_t)to + 64, .length = 64,
                                             .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    before = mw->rkey;
    CHECK(ibv_bind_mw(right, mw, &of) == 0);
    wc = next();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
    writes(mw->rkey, (uintptr_t)to + 64);
    is_refused(mw->rkey, (uintptr_t)to + 63);
    is_refused(before, (uintptr_t)to + 64);
    of.bind_info.length = 0;
    CHECK(ibv_bind_mw(right, mw, &of) == 0);
    CHECK(next().status == IBV_WC_SUCCESS);
    is_refused(mw->rkey, (uintptr_t)to + 64);
    CHECK(ibv_dealloc_mw(mw) == 0);
    /* Type 2: closed by its owner. */
    CHECK(mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
    bind(right, mw, ibv_inc_rkey(mw->rkey), to, 64);
    writes(mw->rkey, (uintptr_t)to);
    wr.invalidate_rkey = mw->rkey;
    CHECK(ibv_post_send(right, &wr, &bad) == 0);
    wc = next();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV);
    is_refused(mw->rkey, (uintptr_t)to);
    /* Closed by a send of the peer. */
    bind(right, mw, ibv_inc_rkey(mw->rkey), to, 64);
    writes(mw->rkey, (uintptr_t)to);
    CHECK(ibv_post_recv(right, &receive, &bad_receive) == 0);
    wr = (struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = mw->rkey};
    CHECK(ibv_post_send(left, &wr, &bad) == 0);
    wc = next();
    more = next();
    if (wc.opcode != IBV_WC_RECV)
        wc = more;
    CHECK(wc.status == IBV_WC_SUCCESS && more.status == IBV_WC_SUCCESS);
    CHECK(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == mw->rkey);
    is_refused(mw->rkey, (uintptr_t)to);
    /* Bound to the other queue pair, and bound twice. */
    bind(left, mw, ibv_inc_rkey(mw->rkey), to, 64);
    is_refused(mw->rkey, (uintptr_t)to);
    CHECK(ibv_dealloc_mw(mw) == 0);
    CHECK(!ibv_alloc_mw(pd, 3) && errno == EINVAL);
}

static void indirect(void)
{
    struct mlx5dv_mkey_init_attr init = {.pd = pd, .create_flags = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, .max_entries = 3};
    struct ibv_qp_init_attr_ex attr = {
        .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .pd = pd, .cap = {16, 16, 4, 4, 512},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    struct mlx5dv_qp_init_attr more = {.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
                                       .send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED};
    struct ibv_sge list[] = {{(uintptr_t)from + 100, 3, source->lkey}, {(uintptr_t)from + 10, 5, source->lkey}};
    struct mlx5dv_mr_interleaved blocks[] = {{(uintptr_t)to, 1, 1, target->lkey}, {(uintptr_t)to + 100, 1, 3, target->lkey}};
    uint32_t all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    struct mlx5dv_mkey *gathers, *spreads;
    struct ibv_qp *old = left;
    struct ibv_qp_ex *extended;
    struct mlx5dv_qp_ex *dv;
    CHECK(gathers = mlx5dv_create_mkey(&init));
    CHECK(init.max_entries == 4);
    CHECK(spreads = mlx5dv_create_mkey(&init));
    CHECK(left = mlx5dv_create_qp(context, &attr, &more));
    connect_both();
    CHECK(extended = ibv_qp_to_qp_ex(left));
    CHECK(dv = mlx5dv_qp_ex_from_ibv_qp_ex(extended));
    ibv_wr_start(extended);
    extended->wr_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
    mlx5dv_wr_mr_list(dv, gathers, all, 2, list);
    mlx5dv_wr_mr_interleaved(dv, spreads, all, 4, 2, blocks);
    extended->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(extended, spreads->rkey, 0);
    ibv_wr_set_sge(extended, gathers->lkey, 0, 8);
    CHECK(ibv_wr_complete(extended) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(next().status == IBV_WC_SUCCESS);
    for (int i = 0; i < 8; i++) {
        int offset = i % 2 ? 100 + i / 2 * 4 : i / 2 * 2;
        CHECK(to[offset] == (i < 3 ? from[100 + i] : from[10 + i - 3]));
    }
    CHECK(ibv_destroy_qp(left) == 0);
    left = old;
    connect_both();
    CHECK(mlx5dv_destroy_mkey(gathers) == 0 && mlx5dv_destroy_mkey(spreads) == 0);
    init.create_flags |= MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE;
    CHECK(!mlx5dv_create_mkey(&init));
}

/* Keys of keys by commands, as UCX makes them. */
static void fixed(void)
{
    uint8_t in[COMMAND + 32] = {0}, out[16] = {0};
    struct mlx5dv_obj obj;
    struct mlx5dv_pd domain;
    struct mlx5dv_devx_obj *key;
    uint32_t rkey;
    obj.pd.in = pd;
    obj.pd.out = &domain;
    CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == 0);
    put(in, 0, 16, 0x200);
    put(in, 0x80 + 0x11, 4, 7);          /* rw, rr, lw */
    put(in, 0x80 + 0x16, 2, 3);          /* KSM */
    put(in, 0x80 + 0x20, 24, 0xffffff);  /* qpn */
    put(in, 0x80 + 0x38, 8, 0x5a);       /* mkey_7_0 */
    put(in, 0x80 + 0x68, 24, domain.pdn);
    put(in, 0x80 + 0x80, 64, 0x10000);   /* start_addr */
    put(in, 0x80 + 0xc0, 64, 128);       /* len */
    put(in, 0x80 + 0x1a0, 32, 2);        /* translations_octword_size */
    put(in, 0x80 + 0x1db, 5, 6);         /* log_entity_size */
    put(in, 0x300, 32, 2);               /* translations_octword_actual_size */
    for (unsigned i = 0; i < 2; i++) {
        put(in, 0x880 + i * 128 + 32, 32, target->lkey);
        put(in, 0x880 + i * 128 + 64, 64, (uintptr_t)to + (i == 0 ? 256 : 0));
    }
    CHECK(key = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    rkey = number_of(out) << 8 | 0x5a;
    memset(to, 0, 512);
    writes(rkey, 0x10000 + 60);
    CHECK(memcmp(to + 256 + 60, from, 4) == 0 && memcmp(to, from + 4, 4) == 0);
    is_refused(rkey, 0x10000 + 121);
    CHECK(mlx5dv_devx_obj_destroy(key) == 0);
    is_refused(rkey, 0x10000);
    put(in, 0x300, 32, 3);
    CHECK(!mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK(status_of(out) == 0x50);
    put(in, 0x300, 32, 0x10001);
    CHECK(!mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    CHECK(status_of(out) == 3);
}

static void device_memory(const struct ibv_device_attr_ex *attributes)
{
    struct ibv_alloc_dm_attr attr = {.length = 2 * PAGE + 64};
    uint64_t word;
    struct ibv_dm *dm, *rest;
    struct ibv_mr *mr;
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    CHECK(attributes->max_dm_size > 0);
    CHECK(dm = ibv_alloc_dm(context, &attr));
    CHECK(ibv_memcpy_to_dm(dm, 2 * PAGE, from, 64) == 0);
    CHECK(mr = ibv_reg_dm_mr(pd, dm, PAGE, PAGE + 64, (unsigned)all | IBV_ACCESS_ZERO_BASED));
    CHECK(write_to(mr->lkey, PAGE, target->rkey, (uintptr_t)to, 64) == IBV_WC_SUCCESS);
    CHECK(memcmp(to, from, 64) == 0);
    writes(mr->rkey, 8);
    CHECK(ibv_memcpy_from_dm(&word, dm, PAGE + 8, 8) == 0 && memcmp(&word, from, 8) == 0);
    is_refused(mr->rkey, PAGE + 64);
    CHECK(ibv_free_dm(dm) == EBUSY);
    struct ibv_mr *empty = ibv_reg_dm_mr(pd, dm, PAGE, 0, (unsigned)all | IBV_ACCESS_ZERO_BASED);
    CHECK(empty && ibv_dereg_mr(empty) == 0);
    CHECK(!ibv_reg_mr(pd, from, 0, (unsigned)all | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
    CHECK(!ibv_reg_dm_mr(pd, dm, PAGE, 2 * PAGE, (unsigned)all | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
    CHECK(!ibv_reg_dm_mr(pd, dm, 0, PAGE, (unsigned)all) && errno == EINVAL);
    attr.length = attributes->max_dm_size;
    CHECK(!ibv_alloc_dm(context, &attr));
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
    CHECK(rest = ibv_alloc_dm(context, &attr));
    CHECK(ibv_memcpy_from_dm(&word, rest, 2 * PAGE, 8) == 0 && word == 0);
    CHECK(!mlx5dv_dm_map_op_addr(rest, 0) && errno == EOPNOTSUPP);
    CHECK(ibv_free_dm(rest) == 0);
    attr.length = attributes->max_dm_size + 1;
    CHECK(!ibv_alloc_dm(context, &attr) && errno == EINVAL);
}

int main(void)
{
    struct ibv_device_attr_ex attributes;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {16, 16, 4, 4, 0}};
    context = open_device();
    CHECK(ibv_query_device_ex(context, NULL, &attributes) == 0);
    CHECK(attributes.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
    CHECK(attributes.odp_caps.per_transport_caps.rc_odp_caps == 0x3f);
    CHECK(attributes.pci_atomic_caps.compare_swap == 3 && attributes.pci_atomic_caps.fetch_add == 3);
    CHECK(attributes.orig_attr.atomic_cap != IBV_ATOMIC_NONE);
    CHECK(attributes.orig_attr.max_mw > 0);
    CHECK(attributes.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
    CHECK(pd = ibv_alloc_pd(context));
    CHECK(cq = ibv_create_cq(context, 64, NULL, NULL, 0));
    attr.send_cq = attr.recv_cq = cq;
    CHECK(left = ibv_create_qp(pd, &attr));
    CHECK(right = ibv_create_qp(pd, &attr));
    from = pages(SIZE);
    to = pages(SIZE);
    for (int i = 0; i < SIZE; i++)
        from[i] = (char)(i * 7 + 1);
    CHECK(source = ibv_reg_mr(pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE));
    CHECK(target = ibv_reg_mr(pd, to, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND));
    connect_both();
    regions();
    windows();
    indirect();
    fixed();
    device_memory(&attributes);
    CHECK(ibv_dereg_mr(source) == 0 && ibv_dereg_mr(target) == 0);
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
