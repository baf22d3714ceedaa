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
