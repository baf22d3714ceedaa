/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * The types of the "exp" verbs of the old Mellanox OFED that users of libgdsync fill in, on the verbs of today's rdma-core. gdsync does not
  * support fields, flags and operations that are missing here.
  *
  * The header also redirects ibv_poll_cq and ibv_post_recv to gdsync, which polls and fills the queues of its queue pairs itself and passes other
  * calls on to their provider. Define GDSYNC_NO_VERBS_REDIRECT before the first include to call gds_poll_cq and gds_post_recv instead.
 */
#ifndef GDSYNC_INFINIBAND_VERBS_EXP_H
#define GDSYNC_INFINIBAND_VERBS_EXP_H

#ifndef GDSYNC_EXP_VERBS
#error "define GDSYNC_EXP_VERBS before the first include, or compile with -DGDSYNC_EXP_VERBS, for programs of the old exp verbs"
#endif

#include <infiniband/verbs.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Operations. The numbers are those of IBV_WR_*. */
enum ibv_exp_wr_opcode {
    IBV_EXP_WR_RDMA_WRITE = 0,
    IBV_EXP_WR_RDMA_WRITE_WITH_IMM = 1,
    IBV_EXP_WR_SEND = 2,
    IBV_EXP_WR_SEND_WITH_IMM = 3,
    IBV_EXP_WR_RDMA_READ = 4,
    IBV_EXP_WR_ATOMIC_CMP_AND_SWP = 5,
    IBV_EXP_WR_ATOMIC_FETCH_AND_ADD = 6
};

/* Flags of exp_send_flags. The numbers are those of IBV_SEND_*. */
enum ibv_exp_send_flags {
    IBV_EXP_SEND_FENCE = 1 << 0,
    IBV_EXP_SEND_SIGNALED = 1 << 1,
    IBV_EXP_SEND_SOLICITED = 1 << 2,
    IBV_EXP_SEND_INLINE = 1 << 3
};

/* The set fields of a struct ibv_exp_qp_init_attr. */
enum ibv_exp_qp_init_attr_comp_mask {
    IBV_EXP_QP_INIT_ATTR_PD = 1 << 0,
    IBV_EXP_QP_INIT_ATTR_XRCD = 1 << 1,
    IBV_EXP_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2,
    IBV_EXP_QP_INIT_ATTR_RES_DOMAIN = 1 << 9,
    IBV_EXP_QP_INIT_ATTR_PEER_DIRECT = 1 << 10
};

/* A resource domain. Every queue pair of gdsync has its own doorbell register without one. */
struct ibv_exp_res_domain;

/* A send work request. */
struct ibv_exp_send_wr {
    uint64_t wr_id;
    struct ibv_exp_send_wr *next;
    struct ibv_sge *sg_list;
    int num_sge;
    enum ibv_exp_wr_opcode exp_opcode;
    int reserved;
    union {
        uint32_t imm_data; /* in network byte order */
        uint32_t invalidate_rkey;
    } ex;
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
        } atomic;
        struct {
            struct ibv_ah *ah;
            uint32_t remote_qpn;
            uint32_t remote_qkey;
        } ud;
    } wr;
    uint64_t exp_send_flags;
    uint32_t comp_mask;
};

/* The attributes of a queue pair. gdsync reads cap, qp_type, sq_sig_all and srq (which must be NULL), and sets pd, the two completion queues,
 * cap.max_inline_data and comp_mask. */
struct ibv_exp_qp_init_attr {
    void *qp_context;
    struct ibv_cq *send_cq;
    struct ibv_cq *recv_cq;
    struct ibv_srq *srq;
    struct ibv_qp_cap cap;
    enum ibv_qp_type qp_type;
    int sq_sig_all;
    uint32_t comp_mask;
    struct ibv_pd *pd;
    struct ibv_xrcd *xrcd;
    uint32_t exp_create_flags;
    struct ibv_exp_res_domain *res_domain;
    void *peer_direct_attrs;
};

/* ibv_poll_cq for any queue; gdsync polls its own. */
int gdsync_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);

/* ibv_post_recv for any queue pair; gdsync fills its own. */
int gdsync_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

#ifdef __cplusplus
}
#endif

#ifndef GDSYNC_NO_VERBS_REDIRECT
#define ibv_poll_cq(cq, num_entries, wc) gdsync_poll_cq((cq), (num_entries), (wc))
#define ibv_post_recv(qp, wr, bad_wr) gdsync_post_recv((qp), (wr), (bad_wr))
#endif

#endif
