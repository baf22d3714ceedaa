/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Calls of gdsync that libgdsync does not have: the software card and software streams, verbs for programs that do not load libibverbs,
  * persistent requests, checked waits, a registration cache, triggers, held sends, cancelling and aborting. Teams: <gdsync/team.h>.
 *
 * Functions that return an int return 0 or a positive errno; those that return a pointer return NULL and set errno.
 */
#ifndef GDSYNC_EXT_H
#define GDSYNC_EXT_H

#include <gdsync.h>

#ifndef GDSYNC_EXP_VERBS
#define gdsync_send_init gdsync_upstream_send_init
#define gdsync_trigger_create_qp gdsync_upstream_trigger_create_qp
#endif

GDS_BEGIN_DECLS

/* Returns the text of this thread's last failed call, with value, limit and remedy; empty before the first failure. Valid until the thread's
 * next failure. */
const char *gdsync_error_text(void);

/* ---- Verbs, for the software card and others ---- */

/* Opens a software card of this process: name, such as "softhca0", or NULL for the first. With such a context, a program calls the functions
 * below instead of libibverbs'. */
struct ibv_context *gdsync_soft_open(const char *name);
/* Closes the context. EBUSY: it still has objects. */
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

/* Makes a software stream: a thread that performs its work in order. Every function with a CUstream takes it. The handle is a number that CUDA
 * does not use. */
CUstream gdsync_soft_stream_create(void);
/* Destroys a software stream, which still performs its work. The handle is EINVAL from then on. */
int gdsync_soft_stream_destroy(CUstream stream);
/* Runs a function in the order of a software stream, as a kernel runs on a CUDA stream. It must not call gdsync. */
int gdsync_soft_stream_launch(CUstream stream, void (*function)(void *), void *argument);
/* Waits until a CUDA or software stream has performed everything. ETIMEDOUT after that many milliseconds; EHOSTDOWN: it has stopped at a wait
 * for a notification of a dead rank (<gdsync/team.h>), and does not perform what follows; gdsync_error_text names the rank. */
int gdsync_stream_synchronize(CUstream stream, unsigned timeout_ms);
/* Lets a stream go on at waits for notifications of dead ranks, now and from now on: it performs what follows them, without the data. The
 * program then calls gdsync_notification_check. */
int gdsync_stream_go_on(CUstream stream);
/* Releases gdsync's state of a CUDA stream, which no other thread uses. A stream that the program keeps (gdsync_stream_keep) is forgotten before
 * it is destroyed; for others this call is optional, before or after. */
int gdsync_stream_forget(CUstream stream);
/* Promises that a CUDA stream is alive until gdsync_stream_forget. gdsync can then ask the driver about its progress, so posts need not record
 * an event, which takes 0.3 us of CPU time, and waits while another thread is in a call that waits for the GPU, such as cudaFree.
 * GDSYNC_STREAM_NEVER_CAPTURED also promises that nothing captures the stream, so posts do not check for that. No other thread uses the stream
 * during the call, which does nothing for software streams. EBUSY: the stream has outstanding work. */
int gdsync_stream_keep(CUstream stream, unsigned flags);
#define GDSYNC_STREAM_NEVER_CAPTURED 1u

/* ---- Persistent requests: made once, started on streams any number of times ---- */

/* A send, an RDMA write or a receive, with its buffers. Only one call at a time may use it. */
typedef struct gdsync_request gdsync_request_t;

/* Makes a persistent request of a copy of a work request: a single one (next is NULL) of a connection (RC or UC), IBV_WR_SEND or
 * IBV_WR_RDMA_WRITE, with or without immediate data; its completions have its wr_id. Each start sends what the buffers hold when the
 * stream reaches it. The memory stays registered until the request is freed. */
gdsync_request_t *gdsync_send_init(struct gds_qp *qp, const gds_send_wr *wr);
/* Makes a persistent receive. It is posted when the stream reaches the start, so the other side's queue pair needs receiver-not-ready retries
 * (rnr_retry). Until the stream has reached it, the queue pair takes no other receives: gds_post_recv returns EINVAL. */
gdsync_request_t *gdsync_recv_init(struct gds_qp *qp, const struct ibv_recv_wr *wr);
/* Starts all requests of a list in one batch, or none if it fails. The stream performs them in its order. Waits for room in a queue or the
 * stream as gds_stream_queue_send does. EBUSY: one is active, and this stream has no wait for it before. */
int gdsync_start_all(CUstream stream, size_t number, gdsync_request_t *const requests[]);
/* Makes a stream wait, in one batch, until the newest start of each request has completed, successfully or not. Later work of the stream finds
 * received data in the buffers, and may write buffers that were sent. EINVAL: one is inactive. */
int gdsync_wait_all(CUstream stream, size_t number, gdsync_request_t *const requests[]);
/* Waits on the CPU until every start of the request has completed, and writes a completion to *wc: that of the first failed start (wc->status),
 * or else of the newest. The request is then inactive. Polling does not return these completions. ETIMEDOUT after that many milliseconds;
 * EINVAL: it is inactive. */
int gdsync_request_complete(gdsync_request_t *request, struct ibv_wc *wc, unsigned timeout_ms);
/* Frees a request. EBUSY: it is active. Destroying the queue pair frees its requests, active or not. */
int gdsync_request_free(gdsync_request_t *request);

/* ---- Waits with a status ---- */

#define GDSYNC_STATUS_PENDING 0u   /* not completed */
#define GDSYNC_STATUS_OK 1u        /* completed */
#define GDSYNC_STATUS_FAILED 0x100u /* with the card's syndrome in the lowest 8 bits */

/* The status of work for which a stream waits. */
typedef struct gdsync_status {
    const uint32_t *word; /* GDSYNC_STATUS_*, in host memory; written once, before the stream passes the wait */
} gdsync_status_t;

/* Makes a stream wait for the next completion for which nothing waits, as gds_stream_wait_cq does, and returns its status. Streams go on after
 * failed work, too; work after the wait may read the word (GDS_MEMORY_HOST). A thread of the library reads the completion. */
gdsync_status_t *gdsync_stream_wait_cq_checked(CUstream stream, struct gds_cq *cq);
/* Waits on the CPU. 0: the work has completed. EHOSTDOWN: the remote side does not respond; ECANCELED: the queue pair had failed before; EIO:
 * another failure, described by gdsync_error_text. ETIMEDOUT: it has not completed. */
int gdsync_status_wait(gdsync_status_t *status, unsigned timeout_ms);
/* Frees a status, whose word no stream or kernel reads any more. */
int gdsync_status_free(gdsync_status_t *status);

/* ---- Registration cache ---- */

/* A cache of the registrations of a domain. It evicts unused registrations for new ones, the longest unused first. */
typedef struct gdsync_cache gdsync_cache_t;

/* Registered memory: addr, length and lkey for an ibv_sge, and rkey for the remote side. */
typedef struct gdsync_region {
    uint64_t addr; /* the first byte, before the requested one if the registration is larger */
    size_t length;
    uint32_t lkey;
    uint32_t rkey;
} gdsync_region_t;

typedef struct gdsync_cache_statistics {
    uint64_t hits; /* calls that an existing registration has served */
    uint64_t misses;
    uint64_t evictions;     /* evicted registrations */
    uint64_t invalidations; /* registrations whose memory was invalidated */
    uint64_t not_kept;      /* registrations without room beside those in use */
    uint64_t entries;       /* registrations held now */
    uint64_t bytes;
} gdsync_cache_statistics_t;

/* Limits the number of registrations and their bytes; 0 for 1,024 and 4 GiB. pd is of context; both outlive the cache and its regions. */
gdsync_cache_t *gdsync_cache_create(struct ibv_pd *pd, struct ibv_context *context, size_t entries, uint64_t bytes);
/* Returns memory that is registered with at least this access (IBV_ACCESS_*), now or by an earlier call. It stays registered until
 * gdsync_cache_release, to be called after all work that uses it has completed. Call gdsync_cache_invalidate before unmapping the memory. */
gdsync_region_t *gdsync_cache_get(gdsync_cache_t *cache, void *addr, size_t length, int access);
/* The same for memory of a GPU. If the address now has another allocation, that one is registered. */
gdsync_region_t *gdsync_cache_get_gpu(gdsync_cache_t *cache, int gpu_id, CUdeviceptr addr, size_t length, int access);
int gdsync_cache_release(gdsync_region_t *region);
/* Forgets every registration of any of these bytes. Returns their number; regions stay registered until they are released. */
int gdsync_cache_invalidate(gdsync_cache_t *cache, const void *addr, size_t length);
int gdsync_cache_statistics(gdsync_cache_t *cache, gdsync_cache_statistics_t *statistics);
int gdsync_cache_free(gdsync_cache_t *cache);

/* ---- Triggers: a word in memory by which the card releases sends ---- */

/* One store to the word releases sends of any number of queue pairs (docs/card-trigger.md). Each send gets a ticket, from 1 on, when it is
 * prepared. A stream writes the word once for all such sends of a batch, and rings no doorbell. */
typedef struct gdsync_trigger_handle {
    uint64_t *word; /* gdsync_trigger_word of the newest released ticket; 0 at first. Kernels have its address in a gdsync_trigger of device.cuh */
} gdsync_trigger_t;

/* EOPNOTSUPP: the card does not wait for words. */
gdsync_trigger_t *gdsync_trigger_create(struct ibv_pd *pd, struct ibv_context *context);
/* As gds_create_qp, in the trigger's domain. The sends of all its queue pairs are posted in the order in which they were prepared. */
struct gds_qp *gdsync_trigger_create_qp(gdsync_trigger_t *trigger, gds_qp_init_attr_t *qp_init_attr, int gpu_id, int flags);
/* Hands the ticket of a prepared send, or of a list's last one, to the program, whose kernel, graph or CPU stores its gdsync_trigger_word to the
 * word. This uses up the request. EINVAL: its queue pair has no trigger, or lower tickets are not posted yet. */
int gdsync_send_ticket(gds_send_request_t *request, uint64_t *ticket);
/* Releases a ticket of gdsync_send_ticket, and all lower ones, by the CPU. */
int gdsync_trigger_release(gdsync_trigger_t *trigger, uint64_t ticket);
/* Returns the value of the word that releases a ticket: the ticket's bytes in big-endian order. */
uint64_t gdsync_trigger_word(uint64_t ticket);
/* Frees a trigger. The word stays as long as the trigger's queue pairs. */
int gdsync_trigger_free(gdsync_trigger_t *trigger);

/* ---- Persistent requests by a trigger, and sends that the card holds back until their receives are posted ---- */

/* A word of the sending side that holds back sends. The receiving side counts it up (gdsync_count_init), for which it needs the address and the
 * rkey. */
typedef struct gdsync_ready_word {
    uint64_t *word; /* gdsync_trigger_word of the number of posted receives; 0 at first */
    uint32_t rkey;
} gdsync_ready_word_t;

/* Makes a word in its own host memory, registered with local and remote write. pd is of context; both outlive the word and its requests. */
gdsync_ready_word_t *gdsync_ready_word_create(struct ibv_pd *pd, struct ibv_context *context);
/* Frees a word. Requests that wait for it keep its memory and go on, but the program must not access *word any more. */
int gdsync_ready_word_free(gdsync_ready_word_t *word);
/* Makes the card hold back the starts of a send or write from now on: start n, counted from the request's first one, until the word has reached n.
 * Later sends of its queue pair wait, too. A start takes one more slot of the send queue (max_send_wr). EBUSY: it is active, until
 * gdsync_request_complete. EINVAL: a receive, or a word of another domain. EOPNOTSUPP: the card does not wait for words. While a send is held
 * back, the card does not detect the death of the other side. A program that has waited long enough stores gdsync_trigger_word of n to *word,
 * unless the other side starts by a trigger, whose receive may be posted before its buffer is free. */
int gdsync_send_behind(gdsync_request_t *send, gdsync_ready_word_t *word);
/* Makes a request that writes the number of its start, from 1 on, to the other side's ready word at this address and key. It is on the receive's
 * queue pair, which needs max_inline_data of 8 or more, and is started in a list with the receive. It may start again while it is active, so
 * no stream needs to wait for it. Its completion has the wr_id 0. */
gdsync_request_t *gdsync_count_init(struct gds_qp *qp, uint64_t remote_addr, uint32_t rkey);
/* As gdsync_start_all, by one memory operation for any list: the stream writes the trigger's word. The card gets the sends at once, each behind a
 * wait for the word, which takes one more slot of its send queue (max_send_wr).
 *
 * Receives are posted at once, and not when the stream reaches the start, so an early message is written to the buffer early. The other side's
 * sends must therefore be held back: there by gdsync_send_behind, here by a gdsync_count_init in the list, which waits for the stream as the
 * sends do.
 *
 * The queue pairs are in the trigger's domain, and not of gdsync_trigger_create_qp: EINVAL. A start takes a ticket. EBUSY: a request is active,
 * or another stream still has to write a ticket of the trigger, or to ring for a send of the queue pair. */
int gdsync_start_all_by_trigger(CUstream stream, gdsync_trigger_t *trigger, size_t number, gdsync_request_t *const requests[]);

/* ---- Cancelling and aborting ---- */

/* Cancels a prepared send. */
int gdsync_cancel_send(gds_send_request_t *request);
/* Cancels a prepared wait: the next wait is for the same completion, if no later one was prepared. */
int gdsync_cancel_wait(gds_wait_request_t *request);
/* Fails a queue pair: its work completes with errors, and streams that wait for it go on. Any thread may call it. */
int gdsync_abort_qp(struct gds_qp *qp);
/* Makes gdsync forget the pages that descriptors have named (GDS_MEMORY_HOST) on a CUDA stream, which has registered them. To be called before
 * the memory is unmapped and its address reused. */
int gdsync_forget_memory(const void *addr, size_t length);

GDS_END_DECLS

#endif
