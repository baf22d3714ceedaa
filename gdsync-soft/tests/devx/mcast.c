/* Multicast groups by libibverbs: the receivers of datagrams to a group, and refusals. */
#include "devx.h"
#include <unistd.h>

enum { QKEY = 0x1ee7, MLID = 0xc0de, SLOT = 128, GRH = 40, GROUP_QPN = 0xffffff };

static uint8_t *memory;
static struct ibv_mr *mr;

static struct ibv_qp *datagrams(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq, uint32_t create_flags)
{
    struct ibv_qp_init_attr_ex initial = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (create_flags ? IBV_QP_INIT_ATTR_CREATE_FLAGS : 0),
        .create_flags = create_flags,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    struct ibv_qp *qp = ibv_create_qp_ex(context, &initial);

    if (!qp)
        return NULL;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

static void receive(struct ibv_qp *qp, unsigned slot)
{
    struct ibv_sge place = {(uintptr_t)memory + slot * SLOT, SLOT, mr->lkey};
    struct ibv_recv_wr work = {.wr_id = slot, .sg_list = &place, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qp, &work, &bad) == 0);
}

/* Sends to the group, and counts the completed receives. Each has a network header, then the message. */
static unsigned reached(struct ibv_qp *from, struct ibv_ah *ah, struct ibv_cq *cq, const union ibv_gid *group, unsigned expected)
{
    static const char text[] = "to the group";
    struct ibv_sge data = {(uintptr_t)memory + PAGE - SLOT, sizeof(text), mr->lkey};
    struct ibv_send_wr work = {.sg_list = &data, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    unsigned received = 0, sent = 0, idle = 0;

    memcpy(memory + PAGE - SLOT, text, sizeof(text));
    work.wr.ud.ah = ah;
    work.wr.ud.remote_qpn = GROUP_QPN;
    work.wr.ud.remote_qkey = QKEY;
    CHECK(ibv_post_send(from, &work, &bad) == 0);
    /* Unexpected completions would arrive within these milliseconds. */
    while (!sent || received < expected || idle < 20) {
        struct ibv_wc completion;
        if (ibv_poll_cq(cq, 1, &completion) == 0) {
            idle++;
            CHECK(idle < 10000);
            usleep(1000);
            continue;
        }
        CHECK(completion.status == IBV_WC_SUCCESS);
        if (completion.opcode == IBV_WC_SEND) {
            sent++;
        } else {
            const uint8_t *packet = memory + completion.wr_id * SLOT;
            CHECK(completion.wc_flags & IBV_WC_GRH && completion.byte_len == GRH + sizeof(text));
            CHECK(memcmp(packet + GRH, text, sizeof(text)) == 0 && memcmp(packet + 24, group, 16) == 0);
            CHECK(completion.src_qp == from->qp_num);
            received++;
        }
    }
    return received;
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 31, NULL, NULL, 0);
    struct ibv_device_attr device;
    union ibv_gid group = {.raw = {0xff, 0x12}}, unicast;
    struct ibv_ah_attr address = {.dlid = MLID, .is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
    struct ibv_qp *one, *two, *three, *deaf, *connected;
    struct ibv_port_attr port;
    struct ibv_ah *ah;
    pid_t process = getpid();

    memcpy(group.raw + 8, &process, sizeof(process));
    memory = pages(PAGE);
    CHECK(pd && cq && (mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE)));
    CHECK(ibv_query_device(context, &device) == 0 && ibv_query_port(context, 1, &port) == 0);
    CHECK(device.max_mcast_grp > 0 && device.max_mcast_qp_attach >= 3);
    CHECK(device.max_total_mcast_qp_attach >= device.max_mcast_qp_attach);
    CHECK(ibv_query_gid(context, 1, 0, &unicast) == 0);
    address.grh.dgid = group;
    CHECK(ah = ibv_create_ah(pd, &address));
    CHECK((one = datagrams(context, pd, cq, 0)) && (two = datagrams(context, pd, cq, 0)) &&
          (three = datagrams(context, pd, cq, 0)));
    for (unsigned slot = 0; slot < 12; slot++)
        receive(slot % 3 == 0 ? one : slot % 3 == 1 ? two : three, slot);

    CHECK(reached(one, ah, cq, &group, 0) == 0);
    CHECK(ibv_attach_mcast(two, &group, MLID) == 0 && ibv_attach_mcast(three, &group, MLID) == 0);
    CHECK(ibv_attach_mcast(two, &group, MLID) == 0);
    CHECK(reached(one, ah, cq, &group, 2) == 2);
    CHECK(reached(two, ah, cq, &group, 2) == 2); /* a member hears itself */
    CHECK(ibv_destroy_qp(two) == EBUSY);
    CHECK(ibv_detach_mcast(two, &group, MLID) == 0);
    CHECK(ibv_detach_mcast(two, &group, MLID) == EINVAL);
    CHECK(reached(one, ah, cq, &group, 1) == 1);

    /* Only multicast GIDs, only datagrams; on InfiniBand only LIDs of groups. */
    CHECK(ibv_attach_mcast(one, &unicast, MLID) == EINVAL);
    connected = connect_to_itself(pd, cq, 1);
    CHECK(ibv_attach_mcast(connected, &group, MLID) == EINVAL);
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND)
        CHECK(ibv_attach_mcast(one, &group, port.lid) == EINVAL);

    /* A queue pair without multicast loopback, if libmlx5 allows to request it. */
    if ((deaf = datagrams(context, pd, cq, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB))) {
        CHECK(ibv_attach_mcast(deaf, &group, MLID) == 0);
        receive(deaf, 12);
        CHECK(reached(deaf, ah, cq, &group, 1) == 1);
        CHECK(ibv_detach_mcast(deaf, &group, MLID) == 0 && ibv_destroy_qp(deaf) == 0);
    }
    printf("block self: %s\n", deaf ? "asked for" : "not passed on");

    CHECK(ibv_detach_mcast(three, &group, MLID) == 0);
    CHECK(ibv_destroy_qp(one) == 0 && ibv_destroy_qp(two) == 0 && ibv_destroy_qp(three) == 0);
    CHECK(ibv_destroy_qp(connected) == 0 && ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
