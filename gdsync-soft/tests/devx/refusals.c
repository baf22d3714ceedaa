/* Features that the card lacks: the errors that programs check for. The log names the feature in the program's terms. */
#include "devx.h"

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr raw = {
        .send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RAW_PACKET};
    struct ibv_qp_init_attr_ex checked = {.send_cq = cq,
                                          .recv_cq = cq,
                                          .cap = {1, 1, 1, 1, 0},
                                          .qp_type = IBV_QPT_UD,
                                          .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
                                          .pd = pd,
                                          .create_flags = IBV_QP_CREATE_SCATTER_FCS};
    struct ibv_qp_init_attr plain = raw;
    struct ibv_counters_init_attr none = {0};
    struct ibv_qp_attr slow = {.rate_limit = 1000};
    struct ibv_qp *qp;
    char byte = 0;
    CHECK(pd && cq);
    CHECK(!ibv_create_qp(pd, &raw) && (errno == EOPNOTSUPP || errno == EPERM)); /* without CAP_NET_RAW */
    CHECK(!ibv_create_qp_ex(context, &checked) && errno == EINVAL);             /* of raw packets only */
    CHECK(!ibv_create_counters(context, &none) && (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT));
    /* The rights of InfiniBand's FLUSH, which newer headers name; and one that no header names. */
    CHECK(!ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE | 1 << 8) && errno == EOPNOTSUPP);
    CHECK(!ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE | 1 << 10) && errno == EINVAL);
    /* UCX looks for dma-bufs by this call: a card that has them answers EBADF. */
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EBADF);
    plain.qp_type = IBV_QPT_RC;
    CHECK(qp = ibv_create_qp(pd, &plain));
    CHECK(ibv_modify_qp(qp, &slow, IBV_QP_RATE_LIMIT) == EINVAL);
    CHECK(ibv_destroy_qp(qp) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
