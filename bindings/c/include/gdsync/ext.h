/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * gdsync's own calls, which libgdsync has not: the software card and software streams, what a program needs to use them without
 * libibverbs at run time, and the ways out.
 *
 * Functions that return an int return 0 or a positive errno; those that return a pointer return NULL and set errno.
 */
#ifndef GDSYNC_EXT_H
#define GDSYNC_EXT_H

#include <gdsync.h>

GDS_BEGIN_DECLS

/* Why the last call of this thread that failed did so: value, limit and remedy. Empty where none has. Valid until the thread's next
 * failure. */
const char *gdsync_error_text(void);

/* ---- Verbs, on the software card as on any other ---- */

/* Opens a software card of this process; name, such as "softhca0", or NULL for the first. A program with such a context calls the
 * functions below on it, and none of libibverbs'. */
struct ibv_context *gdsync_soft_open(const char *name);
/* Closes it. EBUSY: objects are left on it. */
int gdsync_soft_close(struct ibv_context *context);

struct ibv_pd *gdsync_alloc_pd(struct ibv_context *context);
int gdsync_dealloc_pd(struct ibv_pd *pd);
struct ibv_mr *gdsync_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
int gdsync_dereg_mr(struct ibv_mr *mr);
int gdsync_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
int gdsync_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
struct ibv_ah *gdsync_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int gdsync_destroy_ah(struct ibv_ah *ah);

/* ---- Streams ---- */

/* A stream in software: a thread that performs what it is given in order. Every function with a CUstream takes it. Its name is a number, and
 * none of CUDA's. */
CUstream gdsync_soft_stream_create(void);
/* What was given to it is still performed. Its name says EINVAL from then on. */
int gdsync_soft_stream_destroy(CUstream stream);
/* Runs a function in the order of a software stream, as a kernel would. It must not call gdsync. */
int gdsync_soft_stream_launch(CUstream stream, void (*function)(void *), void *argument);
/* Waits until a stream, of CUDA or in software, has performed everything. ETIMEDOUT after so many milliseconds. */
int gdsync_stream_synchronize(CUstream stream, unsigned timeout_ms);
/* gdsync forgets a CUDA stream that is at its end, and that no other thread uses, before its program destroys it. Needed where gds_prepare_write_memory was the last. */
int gdsync_stream_forget(CUstream stream);

/* ---- Persistent requests: made once, started on streams as often as wanted ---- */

/* A send, an RDMA write or a receive, with its buffers. One call at a time uses it. */
typedef struct gdsync_request gdsync_request_t;

/* Makes a request of a work request, which is copied: one (next is NULL), of a connection (RC or UC), IBV_EXP_WR_SEND or
 * IBV_EXP_WR_RDMA_WRITE, with or without immediate data; its completion has its wr_id. Each start sends what the buffers hold when the
 * stream reaches it. The memory stays registered until the request is freed. */
gdsync_request_t *gdsync_send_init(struct gds_qp *qp, const gds_send_wr *wr);
/* The same, to receive. The receive is posted when the stream reaches the start, so the other side's queue pair needs
 * receiver-not-ready retries (rnr_retry). Until then, nothing else is received there: gds_post_recv says EINVAL. */
gdsync_request_t *gdsync_recv_init(struct gds_qp *qp, const struct ibv_recv_wr *wr);
/* Starts requests, in one batch: all of them, or none where it fails. The stream performs them in its order. EBUSY: one is active, and
 * this stream does not wait for it before. Waits as gds_stream_queue_send does while a queue or the stream has no room. */
int gdsync_start_all(CUstream stream, size_t number, gdsync_request_t *const requests[]);
/* Has a stream wait until the newest start of each request has completed, well or not, in one batch. EINVAL: one is not active. What the
 * stream does next finds in the buffers what was received, and may write to those that were sent. */
int gdsync_wait_all(CUstream stream, size_t number, gdsync_request_t *const requests[]);
/* Waits on the CPU until every start of the request has completed, and writes its completion to *wc: the first that failed (wc->status),
 * or else the newest. The request is inactive then. ETIMEDOUT after so many milliseconds; EINVAL: it is inactive. Polling the completion
 * queue does not return these completions. */
int gdsync_request_complete(gdsync_request_t *request, struct ibv_wc *wc, unsigned timeout_ms);
/* EBUSY: it is active. Destroying the queue pair frees its requests, active or not. */
int gdsync_request_free(gdsync_request_t *request);

/* ---- Ways out ---- */

/* Takes a prepared send back. */
int gdsync_cancel_send(gds_send_request_t *request);
/* Gives a prepared wait back: the next wait is for the same completion, where no later one was prepared. */
int gdsync_cancel_wait(gds_wait_request_t *request);
/* Fails a queue pair: its work completes with errors, and streams that wait for it go on. Any thread may. */
int gdsync_abort_qp(struct gds_qp *qp);
/* Has gdsync forget that host memory was named in descriptors (GDS_MEMORY_HOST) on a CUDA stream, which registers its pages. Before
 * it is unmapped and the address used for something else. */
int gdsync_forget_memory(const void *addr, size_t length);

GDS_END_DECLS

#endif
