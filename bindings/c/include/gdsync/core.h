/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Queue pairs, sends, waits and descriptors. Included by <gdsync.h>.
 */
#ifndef GDSYNC_CORE_H
#define GDSYNC_CORE_H

#ifndef __GDSYNC_H__
#error "include gdsync.h, which includes this header"
#endif

/* ---- Version ---- */

#define GDS_API_MAJOR_VERSION 2
#define GDS_API_MINOR_VERSION 2
#define GDS_API_VERSION (((unsigned)GDS_API_MAJOR_VERSION << 16) | (unsigned)GDS_API_MINOR_VERSION)
/* True if a library of version v serves a program that was compiled with this header. */
#define GDS_API_VERSION_COMPATIBLE(v)                                                                                          \
    ((((unsigned)(v) >> 16) == (unsigned)GDS_API_MAJOR_VERSION) &&                                                             \
     (((unsigned)(v) & 0xffffU) >= (unsigned)GDS_API_MINOR_VERSION))

typedef enum gds_param {
    GDS_PARAM_VERSION, /* the library's GDS_API_VERSION */
    GDS_NUM_PARAMS
} gds_param_t;

/* Stores the value of a parameter. EINVAL: unknown parameter. */
int gds_query_param(gds_param_t param, int *value);

/* ---- Queue pairs ---- */

enum gds_create_qp_flags {
    GDS_CREATE_QP_DEFAULT = 0,
    GDS_CREATE_QP_WQ_ON_GPU = 1 << 0, /* refused, as libgdsync does */
    /* The other flags are wishes: the software card grants them if the CPU can map memory of GPU gpu_id. Otherwise the log says why not. */
    GDS_CREATE_QP_TX_CQ_ON_GPU = 1 << 1,
    GDS_CREATE_QP_RX_CQ_ON_GPU = 1 << 2,
    GDS_CREATE_QP_WQ_DBREC_ON_GPU = 1 << 5
};

#ifdef GDSYNC_EXP_VERBS
typedef struct ibv_exp_qp_init_attr gds_qp_init_attr_t;
typedef struct ibv_exp_send_wr gds_send_wr;
#else
typedef struct ibv_qp_init_attr gds_qp_init_attr_t;
typedef struct ibv_send_wr gds_send_wr;
/* The functions for these structs. */
#define gds_create_qp gdsync_upstream_create_qp
#define gds_post_send gdsync_upstream_post_send
#define gds_stream_queue_send gdsync_upstream_stream_queue_send
#define gds_prepare_send gdsync_upstream_prepare_send
#endif

/* The handle of a queue pair is the pointer that gds_create_qp returned. The handle of a completion queue is its send_cq or recv_cq, or with
 * GDSYNC_EXP_VERBS their address. Other values, such as copies of the structs, and handles of destroyed objects are EINVAL. */
typedef struct gds_cq {
    struct ibv_cq *cq;
    uint32_t curr_offset; /* index of the completion for which the last wait was prepared, plus 1 */
} gds_cq_t;

#ifdef GDSYNC_EXP_VERBS
typedef struct gds_qp {
    struct ibv_qp *qp;
    struct gds_cq send_cq;
    struct gds_cq recv_cq;
    struct ibv_exp_res_domain *res_domain; /* gdsync's own */
    struct ibv_context *dev_context;
    struct gds_cq *gdsync_queues[2]; /* of the other dialect */
} gds_qp_t;
#else
typedef struct gds_qp {
    struct ibv_qp *qp;
    struct gds_cq gdsync_queues[2]; /* gdsync's own */
    void *gdsync_own;
    struct ibv_context *dev_context;
    struct gds_cq *send_cq;
    struct gds_cq *recv_cq;
} gds_qp_t;
#endif

/* Makes a queue pair (RC, UC or UD) with its own two completion queues and doorbell register, in the state RESET; the program moves it on
 * with ibv_modify_qp or gds_modify_qp. gpu_id is checked if there is a CUDA driver; -1 for none. If a context of that GPU is current, the
 * library registers its memory there, so that the first post on a stream of the GPU need not. NULL and errno on failure. The program keeps
 * the domain and the context, which must outlive the queue pair. */
struct gds_qp *gds_create_qp(struct ibv_pd *pd, struct ibv_context *context, gds_qp_init_attr_t *qp_init_attr, int gpu_id,
                             int flags);

/* Destroys a queue pair and its completion queues, and cancels what was prepared on them; no other thread uses them. Work in flight is
 * aborted, so that streams that wait for it go on. EINVAL: not a queue pair of gds_create_qp, or destroyed. */
int gds_destroy_qp(struct gds_qp *qp);

/* ibv_modify_qp, on any provider. */
int gds_modify_qp(gds_qp_t *qp, struct ibv_qp_attr *attr, int attr_mask);

/* ---- Work, at once ---- */

/* Posts a list of sends; the CPU rings the doorbell. */
int gds_post_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr);

/* Posts a list of receives. */
int gds_post_recv(struct gds_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

/* Polls. Returns the number of completions, or -1 and errno. It does not return a completion before the stream or kernel that waits for it
 * has passed, nor while a wait for it is prepared; neither does ibv_poll_cq on a queue of gdsync. */
int gds_poll_cq(struct gds_cq *cq, int num_entries, struct ibv_wc *wc);

/* Prepares a list of sends and posts it on a stream. */
int gds_stream_queue_send(CUstream stream, struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr);

/* Makes a stream wait for the next completion for which nothing waits. flags: 0. */
int gds_stream_wait_cq(CUstream stream, struct gds_cq *cq, int flags);

/* ---- Work in two steps ---- */

typedef enum gds_memory_type {
    GDS_MEMORY_GPU = 1,  /* an address that streams can use: of cudaMalloc or cudaMallocHost */
    GDS_MEMORY_HOST = 2, /* any other memory of the process */
    GDS_MEMORY_IO = 4,   /* registers that the program has registered with CUDA */
    GDS_MEMORY_MASK = 0x7
} gds_memory_type_t;

/* To be combined with a gds_memory_type_t by |. */
typedef enum gds_wait_flags {
    GDS_WAIT_POST_FLUSH_REMOTE = 1 << 3, /* earlier writes of cards are visible afterwards; if the GPU needs and supports it */
    GDS_WAIT_POST_FLUSH = GDS_WAIT_POST_FLUSH_REMOTE
} gds_wait_flags_t;

typedef enum gds_write_flags {
    GDS_WRITE_PRE_BARRIER_SYS = 1 << 4, /* a barrier before the write */
    GDS_WRITE_PRE_BARRIER = GDS_WRITE_PRE_BARRIER_SYS
} gds_write_flags_t;

typedef enum gds_write_memory_flags {
    GDS_WRITE_MEMORY_POST_BARRIER_SYS = 1 << 4, /* a barrier after the write */
    GDS_WRITE_MEMORY_PRE_BARRIER_SYS = 1 << 5   /* a barrier before it */
} gds_write_memory_flags_t;

/* Used by libgdsync itself; no function takes them. */
typedef enum gds_membar_flags {
    GDS_MEMBAR_FLUSH_REMOTE = 1 << 4,
    GDS_MEMBAR_DEFAULT = 1 << 5,
    GDS_MEMBAR_SYS = 1 << 6,
    GDS_MEMBAR_MLX5 = 1 << 7
} gds_membar_flags_t;

enum { GDS_SEND_INFO_MAX_OPS = 32, GDS_WAIT_INFO_MAX_OPS = 32 };

/* A prepared send: a number of the library's object. Copies have the same number; posting one uses up all. A send that is discarded without
 * being posted keeps its slots of the send queue, and blocks later sends, until gdsync_cancel_send (<gdsync/ext.h>) or gds_destroy_qp. */
#ifdef GDSYNC_EXP_VERBS
typedef struct gds_send_request {
    struct ibv_exp_peer_commit commit;
    struct peer_op_wr wr[GDS_SEND_INFO_MAX_OPS];
    uint64_t gdsync_own[4]; /* of the other dialect */
} gds_send_request_t;
#else
typedef struct gds_send_request {
    uint64_t gdsync_own[4 + 7 * GDS_SEND_INFO_MAX_OPS + 4];
} gds_send_request_t;
#endif

/* Prepares a list of sends as one request. If one fails, none is prepared. */
int gds_prepare_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr, gds_send_request_t *request);
/* Posts prepared sends on a stream, in the order in which they were prepared. If that fails, they are cancelled. */
int gds_stream_post_send(CUstream stream, gds_send_request_t *request);
int gds_stream_post_send_all(CUstream stream, int count, gds_send_request_t *request);

/* A prepared wait: a number, as above. If it is discarded, its completion cannot be polled until gds_post_wait_cq, gdsync_cancel_wait or
 * gds_destroy_qp. */
#ifdef GDSYNC_EXP_VERBS
typedef struct gds_wait_request {
    struct ibv_exp_peer_peek peek;
    struct peer_op_wr wr[GDS_WAIT_INFO_MAX_OPS];
    uint64_t gdsync_own[3]; /* of the other dialect */
} gds_wait_request_t;
#else
typedef struct gds_wait_request {
    uint64_t gdsync_own[5 + 7 * GDS_WAIT_INFO_MAX_OPS + 3];
} gds_wait_request_t;
#endif

/* Prepares a wait for the next completion for which nothing waits. Its work is already posted or prepared. flags: 0. */
int gds_prepare_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags);
/* Makes the stream write a word of host memory after the wait. ENOMEM: more than GDS_WAIT_INFO_MAX_OPS - 2 words. */
int gds_append_wait_cq(gds_wait_request_t *request, uint32_t *dw, uint32_t val);
/* Posts prepared waits on a stream. If that fails, they are cancelled. */
int gds_stream_post_wait_cq(CUstream stream, gds_wait_request_t *request);
int gds_stream_post_wait_cq_all(CUstream stream, int count, gds_wait_request_t *request);
/* Leaves the completion to the CPU, which can poll it. The next wait is for the completion after it. flags: 0. */
int gds_post_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags);
/* As gds_post_wait_cq. */
int gds_abort_wait_cq(struct gds_cq *cq, gds_wait_request_t *request);

/* ---- Words and bytes ---- */

typedef enum gds_wait_cond_flag {
    GDS_WAIT_COND_GEQ = 0, /* the signed difference of word and value is not negative */
    GDS_WAIT_COND_EQ,      /* they are equal */
    GDS_WAIT_COND_AND,     /* they have a bit in common */
    GDS_WAIT_COND_NOR      /* a bit is clear in both */
} gds_wait_cond_flag_t;

typedef struct gds_wait_value32 {
    uint32_t *ptr;
    uint32_t value;
    gds_wait_cond_flag_t cond_flags;
    int flags; /* gds_memory_type_t | gds_wait_flags_t */
} gds_wait_value32_t;

int gds_prepare_wait_value32(gds_wait_value32_t *desc, uint32_t *ptr, uint32_t value, gds_wait_cond_flag_t cond_flags,
                             int flags);

typedef struct gds_write_value32 {
    uint32_t *ptr;
    uint32_t value;
    int flags; /* gds_memory_type_t | gds_write_flags_t */
} gds_write_value32_t;

int gds_prepare_write_value32(gds_write_value32_t *desc, uint32_t *ptr, uint32_t value, int flags);

typedef struct gds_write_memory {
    uint8_t *dest;
    const uint8_t *src; /* copied when the descriptor is posted */
    size_t count;
    int flags; /* gds_memory_type_t | gds_write_memory_flags_t */
} gds_write_memory_t;

int gds_prepare_write_memory(gds_write_memory_t *desc, uint8_t *dest, const uint8_t *src, size_t count, int flags);

/* ---- Mixed ---- */

typedef enum gds_tag {
    GDS_TAG_SEND,
    GDS_TAG_WAIT,
    GDS_TAG_WAIT_VALUE32,
    GDS_TAG_WRITE_VALUE32,
    GDS_TAG_WRITE_MEMORY
} gds_tag_t;

typedef struct gds_descriptor {
    gds_tag_t tag; /* selects the member */
    union {
        gds_send_request_t *send;
        gds_wait_request_t *wait;
        gds_wait_value32_t wait32;
        gds_write_value32_t write32;
        gds_write_memory_t writemem;
    };
} gds_descriptor_t;

/* Posts descriptors on a stream, in order. flags: 0. If one of them fails, sends and waits that were not posted are cancelled; if an argument
 * is invalid, nothing is changed. */
int gds_stream_post_descriptors(CUstream stream, size_t n_descs, gds_descriptor_t *descs, int flags);

/* Performs descriptors at once on the calling thread, which blocks in waits. flags: 0. */
int gds_post_descriptors(size_t n_descs, gds_descriptor_t *descs, int flags);

#endif
