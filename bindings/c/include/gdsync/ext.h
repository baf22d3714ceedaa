/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * gdsync's own calls, which libgdsync has not: the software card and software streams, what a program needs to use them without
 * libibverbs at run time, persistent requests, checked waits, a registration cache, triggers, held sends, and the ways out. Teams: <gdsync/team.h>.
 *
 * Functions that return an int return 0 or a positive errno; those that return a pointer return NULL and set errno.
 */
#ifndef GDSYNC_EXT_H
#define GDSYNC_EXT_H

#include <gdsync.h>

#ifdef GDSYNC_UPSTREAM_VERBS
#define gdsync_send_init gdsync_upstream_send_init
#define gdsync_trigger_create_qp gdsync_upstream_trigger_create_qp
#endif

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
/* The program promises that a CUDA stream lives until it calls gdsync_stream_forget. So gdsync may ask the driver about it, and a post of sends
 * does not end with a write of its progress: one memory operation less, 0.6 us of the GPU's time. With GDSYNC_STREAM_NEVER_CAPTURED, it also
 * promises that nothing captures the stream, and posts do not ask whether something does. EBUSY: the stream has work outstanding. Nothing
 * changes for a software stream. No other thread uses the stream during the call. */
int gdsync_stream_keep(CUstream stream, unsigned flags);
#define GDSYNC_STREAM_NEVER_CAPTURED 1u

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

/* ---- Waits that say how the work ended ---- */

#define GDSYNC_STATUS_PENDING 0u   /* not completed */
#define GDSYNC_STATUS_OK 1u        /* completed */
#define GDSYNC_STATUS_FAILED 0x100u /* with the card's syndrome in the lowest 8 bits */

/* What became of the work that a stream waits for. */
typedef struct gdsync_status {
    const uint32_t *word; /* GDSYNC_STATUS_*, in host memory: written once, before the stream passes the wait */
} gdsync_status_t;

/* Has a stream wait for the next completion that nothing waits for, as gds_stream_wait_cq does, and returns its status. Streams go on
 * after failed work, too; what follows the wait may read the word (GDS_MEMORY_HOST). A thread of the library looks at the completion. */
gdsync_status_t *gdsync_stream_wait_cq_checked(CUstream stream, struct gds_cq *cq);
/* Waits on the CPU. 0: it has completed well. EHOSTDOWN: the remote side does not answer; ECANCELED: its queue pair had failed before;
 * EIO: it has failed otherwise, and gdsync_error_text says how. ETIMEDOUT: it has not completed. */
int gdsync_status_wait(gdsync_status_t *status, unsigned timeout_ms);
/* The word is read no more, by streams and kernels neither. */
int gdsync_status_free(gdsync_status_t *status);

/* ---- Registrations that are kept ---- */

/* A cache of registrations of a domain. Those that nothing uses make way for new ones, the longest unused first. */
typedef struct gdsync_cache gdsync_cache_t;

/* Registered memory: for the addr, length and lkey of an ibv_sge, and for the remote side. */
typedef struct gdsync_region {
    uint64_t addr; /* the first byte: lower than asked for where the registration is larger */
    size_t length;
    uint32_t lkey;
    uint32_t rkey;
} gdsync_region_t;

typedef struct gdsync_cache_statistics {
    uint64_t hits; /* calls that a registration which was there has served */
    uint64_t misses;
    uint64_t evictions;     /* registrations that made way */
    uint64_t invalidations; /* registrations that went with their memory */
    uint64_t not_kept;      /* registrations that found no room beside those in use */
    uint64_t entries;       /* registrations held now */
    uint64_t bytes;
} gdsync_cache_statistics_t;

/* At most so many registrations and bytes; 0 for 1,024, and for 4 GiB. pd is of context; both outlive the cache and its regions. */
gdsync_cache_t *gdsync_cache_create(struct ibv_pd *pd, struct ibv_context *context, size_t entries, uint64_t bytes);
/* Memory with at least this access (IBV_ACCESS_*), registered now or before. It stays registered until gdsync_cache_release, which comes
 * after the work that names it has completed. Before the program unmaps the memory: gdsync_cache_invalidate. */
gdsync_region_t *gdsync_cache_get(gdsync_cache_t *cache, void *addr, size_t length, int access);
/* The same of a GPU's memory. Where its address has become another allocation's, that one is registered. */
gdsync_region_t *gdsync_cache_get_gpu(gdsync_cache_t *cache, int gpu_id, CUdeviceptr addr, size_t length, int access);
int gdsync_cache_release(gdsync_region_t *region);
/* Forgets every registration that has one of these bytes. How many; regions that are not released stay registered until then. */
int gdsync_cache_invalidate(gdsync_cache_t *cache, const void *addr, size_t length);
int gdsync_cache_statistics(gdsync_cache_t *cache, gdsync_cache_statistics_t *statistics);
int gdsync_cache_free(gdsync_cache_t *cache);

/* ---- Triggers: sends that the card holds back until a word in memory says so ---- */

/* One store to the word releases sends of any number of queue pairs (docs/card-trigger.md). Each send takes a ticket, from 1 on, when it
 * is prepared; a stream that is given such sends writes the word, once for all that a batch has, and touches no doorbell. */
typedef struct gdsync_trigger_handle {
    uint64_t *word; /* gdsync_trigger_word of the newest ticket released; 0 at first. For kernels: a gdsync_trigger of device.cuh has its address */
} gdsync_trigger_t;

/* EOPNOTSUPP: the card waits for no words. */
gdsync_trigger_t *gdsync_trigger_create(struct ibv_pd *pd, struct ibv_context *context);
/* As gds_create_qp, in the trigger's domain. Its sends are posted in the order in which they were prepared, whatever queue pairs of the
 * trigger they are of. */
struct gds_qp *gdsync_trigger_create_qp(gdsync_trigger_t *trigger, gds_qp_init_attr_t *qp_init_attr, int gpu_id, int flags);
/* Hands the ticket of a prepared send, of a list's last one, to the program, whose kernel, graph or CPU stores gdsync_trigger_word of it to
 * the word. It uses the request up. EINVAL: its queue pair has no trigger, or tickets below are still to be posted. */
int gdsync_send_ticket(gds_send_request_t *request, uint64_t *ticket);
/* Releases a ticket, and all below it, by the CPU: for tickets of gdsync_send_ticket. */
int gdsync_trigger_release(gdsync_trigger_t *trigger, uint64_t ticket);
/* What the word holds once a ticket is released: its bytes are the ticket's in big-endian order. */
uint64_t gdsync_trigger_word(uint64_t ticket);
/* The word stays as long as the trigger's queue pairs. */
int gdsync_trigger_free(gdsync_trigger_t *trigger);

/* ---- Persistent requests by a trigger, and sends that the card holds back until their receives are posted ---- */

/* A word of the sending side, behind which the card holds sends back. The receiving side counts it up, and needs its address and its rkey
 * for that (gdsync_count_init). */
typedef struct gdsync_ready_word {
    uint64_t *word; /* gdsync_trigger_word of the number of receives that are posted; 0 at first */
    uint32_t rkey;
} gdsync_ready_word_t;

/* A word in host memory of its own, registered with local and remote write. pd is of context; both outlive it and the requests behind it. */
gdsync_ready_word_t *gdsync_ready_word_create(struct ibv_pd *pd, struct ibv_context *context);
/* Requests behind the word keep its memory, and go on. The program looks at *word no more. */
int gdsync_ready_word_free(gdsync_ready_word_t *word);
/* Has the card hold the starts of a send, or write, back from now on: start n, counted from the request's first one, until the word has
 * reached n. What is sent later by its queue pair waits, too. A start takes one place more of the send queue (max_send_wr). EBUSY: it is
 * active; gdsync_request_complete ends that. EINVAL: a receive, or a word of another domain. EOPNOTSUPP: the card waits for no words.
 * While a send is held back, the card does not notice that the other side has died. A program that has waited long enough stores
 * gdsync_trigger_word of n to *word: unless the other side starts by a trigger, whose receive may be posted before its buffer is free. */
int gdsync_send_behind(gdsync_request_t *send, gdsync_ready_word_t *word);
/* Makes a request that writes the number of its start, from 1 on, to the other side's ready word, of which these are address and key. It is
 * of the receive's queue pair, which needs max_inline_data of 8 or more, and starts in one list with the receive. It may start again while
 * it is active, so no stream has to wait for it. Its completion has the wr_id 0. */
gdsync_request_t *gdsync_count_init(struct gds_qp *qp, uint64_t remote_addr, uint32_t rkey);
/* As gdsync_start_all, by one memory operation: the stream writes the trigger's word, whatever is in the list. The card has the sends at
 * once, each behind a wait for the word, which takes one place more of its send queue (max_send_wr).
 *
 * Receives are posted at once, and not when the stream reaches the start: a message that comes earlier is written to the buffer earlier.
 * So the other side's sends have to be held back: there by gdsync_send_behind, here by a gdsync_count_init in the list, which waits for the
 * stream as the sends do.
 *
 * The queue pairs are any of the trigger's domain but those of gdsync_trigger_create_qp: EINVAL. A start takes a ticket. EBUSY: a
 * request is active, or another stream has still to write a ticket of the trigger or to ring for a send of the queue pair. */
int gdsync_start_all_by_trigger(CUstream stream, gdsync_trigger_t *trigger, size_t number, gdsync_request_t *const requests[]);

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
