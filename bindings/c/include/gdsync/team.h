/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Teams: ranks that write into each other's memory, with notifications, by the CPU and in the order of streams. And how the
 * processes of a job meet, by their launcher's environment or by the program's own all-gather. docs/c-abi.md begins
 * with a transport that is made of it.
 *
 * Functions that return an int return 0 or a positive errno; those that return a pointer return NULL and set errno; those that
 * return a number return -1 and set errno. gdsync_error_text() of <gdsync/ext.h> says why in words. A dead rank is EHOSTDOWN.
 */
#ifndef GDSYNC_TEAM_H
#define GDSYNC_TEAM_H

#include <gdsync.h>

GDS_BEGIN_DECLS

/* ---- Meeting ---- */

/* A rank among the ranks of its job. One thread at a time exchanges by it; all ranks call the same exchanges in the same order. */
typedef struct gdsync_bootstrap gdsync_bootstrap_t;

/* Meets the other processes as the launcher's environment says: mpirun, srun, torchrun, or GDSYNC_RANK and GDSYNC_SIZE. On several
 * hosts GDSYNC_ROOT=host:port is where rank 0 listens, and GDSYNC_KEY or GDSYNC_KEY_FILE what all prove. timeout_ms holds for that, and
 * for each later exchange. EINVAL: no launcher; ETIMEDOUT: ranks did not come. */
gdsync_bootstrap_t *gdsync_bootstrap_from_env(unsigned timeout_ms);
/* The same, where the program says who meets: at host:port of rank 0, or, on one host, under a name that only this job has. */
gdsync_bootstrap_t *gdsync_bootstrap_join(uint32_t rank, uint32_t size, const char *address, unsigned timeout_ms);

/* Gives `own`, `bytes` long on every rank, to all ranks, and fills `all` with those of all ranks in their order, as MPI_Allgather of
 * MPI_BYTE does. Returns 0, or another number for a failure. It must not call gdsync with the bootstrap. */
typedef int (*gdsync_all_gather_t)(void *argument, const void *own, void *all, size_t bytes);
/* By means of the program's own. The library calls all_gather on the thread that passes the bootstrap to a function below, and during
 * that call only. timeout_ms is how long collective calls of a team wait. EPROTO: all_gather has failed. */
gdsync_bootstrap_t *gdsync_bootstrap_with(uint32_t rank, uint32_t size, gdsync_all_gather_t all_gather, void *argument,
                                          unsigned timeout_ms);

int gdsync_bootstrap_rank(gdsync_bootstrap_t *bootstrap);
int gdsync_bootstrap_size(gdsync_bootstrap_t *bootstrap);
/* Sends length bytes, as many on every rank, to all, and writes those of all ranks to `all`, in their order. At most 1 MiB a rank. */
int gdsync_bootstrap_all_gather(gdsync_bootstrap_t *bootstrap, const void *own, size_t length, void *all);
int gdsync_bootstrap_barrier(gdsync_bootstrap_t *bootstrap);
int gdsync_bootstrap_free(gdsync_bootstrap_t *bootstrap);

/* ---- Teams ---- */

/* Connected ranks: every queue of a team reaches every rank, this one included. */
typedef struct gdsync_team gdsync_team_t;

/* How queues are connected; the same on all ranks. */
enum gdsync_connections {
    GDSYNC_CONNECTIONS_BY_SIZE = 0, /* up to 16 ranks a queue pair each, else dynamic ones where the card has them */
    GDSYNC_CONNECTIONS_EACH = 1,    /* a queue pair to each rank */
    GDSYNC_CONNECTIONS_DYNAMIC = 2  /* a few queue pairs that reach all ranks (DC) */
};

/* Zeroes are the defaults. */
typedef struct gdsync_team_attr {
    unsigned queues;          /* the same on all ranks; 0 for 1. A stream that sends has one of its own */
    unsigned connections;     /* enum gdsync_connections */
    unsigned post_timeout_ms; /* how long a call waits for room in a queue; 0 for 30,000 */
    unsigned reserved;        /* 0 */
} gdsync_team_attr_t;

/* Connects the ranks: all call this. pd is of context, of libibverbs or of a software card; both outlive the team. attr may be NULL. The
 * team takes the bootstrap, and its handle is gone, also where this fails; where an argument is wrong (EINVAL), it stays. */
gdsync_team_t *gdsync_team_create(gdsync_bootstrap_t *bootstrap, struct ibv_pd *pd, struct ibv_context *context,
                                  const gdsync_team_attr_t *attr);
int gdsync_team_rank(gdsync_team_t *team);
int gdsync_team_size(gdsync_team_t *team);
/* Returns when all ranks have called this. Outstanding writes are not flushed. */
int gdsync_team_barrier(gdsync_team_t *team);
/* Returns when what was posted to a queue before, by the CPU and by streams, has arrived: the sources may change. */
int gdsync_team_flush(gdsync_team_t *team, unsigned queue, unsigned timeout_ms);
/* 1 where a rank is known to be dead, or was dropped; else 0. A dead rank ends every wait for it. */
int gdsync_team_is_dead(gdsync_team_t *team, uint32_t rank);
/* All survivors call this: they agree on the dead ranks, drop them, and go on under their old numbers. The number of ranks dropped.
 * ESHUTDOWN: the others have dropped this rank. */
int gdsync_team_shrink(gdsync_team_t *team);
/* A rank that leaves while others write to it is dead to them: flush, and meet at a barrier before. Free its segments, too. */
int gdsync_team_free(gdsync_team_t *team);

/* ---- Segments: memory of which every rank has a part, and notifications there ---- */

/* Notifications are 32-bit words, numbered from 0; 0 is "not set". A reader that sees one sees the data written before it. */
typedef struct gdsync_segment_handle gdsync_segment_t;

/* Makes this rank's part. All ranks call one of these in the same order; parts may differ in kind and length. */
gdsync_segment_t *gdsync_segment_allocate(gdsync_team_t *team, size_t length, unsigned notifications);
/* In memory of a GPU, of its primary context. */
gdsync_segment_t *gdsync_segment_allocate_gpu(gdsync_team_t *team, int gpu_id, size_t length, unsigned notifications);
/* Over host memory of the program, which keeps it until gdsync_segment_free has returned 0. */
gdsync_segment_t *gdsync_segment_register(gdsync_team_t *team, void *addr, size_t length, unsigned notifications);
/* Over memory of a GPU, made with its primary context, as the runtime's cudaMalloc makes it. */
gdsync_segment_t *gdsync_segment_register_gpu(gdsync_team_t *team, int gpu_id, CUdeviceptr addr, size_t length,
                                              unsigned notifications);
/* Where this rank's data is: an address of the host, or of the GPU. */
void *gdsync_segment_data(gdsync_segment_t *segment);
/* EBUSY: a stream has not passed work with the memory. The segment is gone, and the program keeps the memory until the stream has. */
int gdsync_segment_free(gdsync_segment_t *segment);

/* ---- Notified writes ---- */

/* Writes bytes of this rank's part of a segment into another rank's part, and sets a notification there. */
typedef struct gdsync_put {
    gdsync_segment_t *from; /* not looked at where length is 0 */
    size_t from_offset;
    size_t length; /* 0: the notification alone */
    gdsync_segment_t *to;
    uint64_t to_offset;
    uint32_t rank;
    uint32_t notification;
    uint32_t value;    /* 0: no notification */
    uint32_t reserved; /* 0 */
} gdsync_put_t;

/* Posts puts by the CPU, in order. Where one fails, those before it are posted. Puts to one rank by one queue arrive in order. */
int gdsync_put(gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[]);
/* The same in the order of a stream, in one batch: all of them, or none where it fails. Sources hold what is sent when the stream
 * reaches them, and may change behind gdsync_stream_quiet, or gdsync_team_flush. */
int gdsync_stream_put(CUstream stream, gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[]);
/* Has a stream wait for notifications of this rank's part, and clear them, in one batch. A second one of the same number that arrives
 * before the first is cleared is lost: the receiver confirms, or numbers are used in turn. */
int gdsync_stream_wait_notifications(CUstream stream, gdsync_team_t *team, gdsync_segment_t *segment, size_t number,
                                     const uint32_t ids[]);
/* Both in one batch: the puts, then the waits. */
int gdsync_stream_exchange(CUstream stream, gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[],
                           gdsync_segment_t *segment, size_t waits, const uint32_t ids[]);
/* Has a stream wait until what was given to a queue for a rank has arrived there: the sources may change. */
int gdsync_stream_quiet(CUstream stream, gdsync_team_t *team, unsigned queue, uint32_t rank);

/* Says which rank sets notifications first to first + count - 1. At first, any may. Waits for them then end with EHOSTDOWN when that
 * rank is dead, and not when another is. */
int gdsync_notification_expect_from(gdsync_segment_t *segment, uint32_t first, uint32_t count, uint32_t rank);
/* Waits on the CPU until one of these is set, and writes the lowest such number to *id. ETIMEDOUT; EHOSTDOWN: the rank that sets it is
 * dead. */
int gdsync_notification_wait(gdsync_segment_t *segment, uint32_t first, uint32_t count, uint32_t *id, unsigned timeout_ms);
/* Clears a notification, in one step, and writes its old value, or 0, to *value, which may be NULL. */
int gdsync_notification_reset(gdsync_segment_t *segment, uint32_t id, uint32_t *value);
/* Whether a stream that has passed the wait for a notification got it: EHOSTDOWN where the wait was released, as the rank is dead. */
int gdsync_notification_check(gdsync_segment_t *segment, uint32_t id);

GDS_END_DECLS

#endif
