/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Teams: ranks that write to each other's memory, with notifications, by the CPU and in the order of streams; and the bootstrap of a job's
  * processes, by the launcher's environment or the program's all-gather. docs/c-abi.md begins with a transport that uses teams.
  *
  * Functions that return an int return 0 or a positive errno; those that return a pointer return NULL and set errno; those that return a number
  * return -1 and set errno. gdsync_error_text() of <gdsync/ext.h> describes the error. A dead rank is EHOSTDOWN.
 */
#ifndef GDSYNC_TEAM_H
#define GDSYNC_TEAM_H

#include <gdsync.h>

GDS_BEGIN_DECLS

/* ---- Bootstrap ---- */

/* A rank's connection to the ranks of its job. One thread at a time uses it; all ranks make the same calls in the same order. */
typedef struct gdsync_bootstrap gdsync_bootstrap_t;

/* Connects the job's processes as the launcher's environment says: gdsync run, mpirun, srun, torchrun, or GDSYNC_RANK, GDSYNC_SIZE and GDSYNC_JOB
 * (a name that only this job has). On several hosts, GDSYNC_ROOT=host:port is where rank 0 listens, and all ranks prove that they have GDSYNC_KEY or
 * GDSYNC_KEY_FILE. timeout_ms holds for this call and for each later exchange. EINVAL: no launcher; ETIMEDOUT: ranks are missing. */
gdsync_bootstrap_t *gdsync_bootstrap_from_env(unsigned timeout_ms);
/* The same without a launcher: the ranks connect at host:port of rank 0 or, on one host, under a name that only this job uses. */
gdsync_bootstrap_t *gdsync_bootstrap_join(uint32_t rank, uint32_t size, const char *address, unsigned timeout_ms);

/* Sends `own`, `bytes` long on every rank, to all ranks, and fills `all` with the blocks of all ranks in order, as MPI_Allgather of MPI_BYTE does.
 * Returns 0, or another number after a failure. It must not call gdsync with the bootstrap. */
typedef int (*gdsync_all_gather_t)(void *argument, const void *own, void *all, size_t bytes);
/* A bootstrap by the program's all-gather. The library calls all_gather only on the thread that passes the bootstrap to a function below, and
 * during that call. timeout_ms is how long collective calls of a team wait. EPROTO: all_gather has failed. */
gdsync_bootstrap_t *gdsync_bootstrap_with(uint32_t rank, uint32_t size, gdsync_all_gather_t all_gather, void *argument,
                                          unsigned timeout_ms);

int gdsync_bootstrap_rank(gdsync_bootstrap_t *bootstrap);
int gdsync_bootstrap_size(gdsync_bootstrap_t *bootstrap);
/* Sends length bytes, the same number on every rank, to all, and writes the blocks of all ranks to `all` in order. At most 1 MiB a rank. */
int gdsync_bootstrap_all_gather(gdsync_bootstrap_t *bootstrap, const void *own, size_t length, void *all);
int gdsync_bootstrap_barrier(gdsync_bootstrap_t *bootstrap);
int gdsync_bootstrap_free(gdsync_bootstrap_t *bootstrap);

/* A queue pair to connect: of gds_create_qp, RC or UC, in the state RESET or INIT. */
typedef struct gdsync_connection {
    struct gds_qp *qp;
    uint32_t rank; /* the rank with the other side, perhaps this one */
    uint32_t tag;  /* the sides of two ranks with the same tag are connected, in the order of their lists */
} gdsync_connection_t;

/* Connects queue pairs, so that they need no gds_modify_qp: exchanges their addresses and moves them to RTS. Returns once all ranks have done so, all of
 * which call this, with any number of queue pairs. Remote access is what their memory regions allow; retries have no limit while the other side
 * has no receive posted, and end after 2 s if it does not answer. EINVAL: a side is missing. If it fails on one rank, it fails on all. */
int gdsync_bootstrap_connect(gdsync_bootstrap_t *bootstrap, size_t number, const gdsync_connection_t connections[]);

/* ---- Teams ---- */

/* Connected ranks. Every queue of a team reaches every rank, including this one. */
typedef struct gdsync_team gdsync_team_t;

/* The connections of queues; the same on all ranks. */
enum gdsync_connections {
    GDSYNC_CONNECTIONS_BY_SIZE = 0, /* a queue pair to each of up to 16 ranks, otherwise dynamic ones if the card has them */
    GDSYNC_CONNECTIONS_EACH = 1,    /* a queue pair to each rank */
    GDSYNC_CONNECTIONS_DYNAMIC = 2  /* a few queue pairs that reach all ranks (DC) */
};

/* Zeros are the defaults. */
typedef struct gdsync_team_attr {
    unsigned queues;          /* the same on all ranks; 0 for 1. Each sending stream needs its own */
    unsigned connections;     /* enum gdsync_connections */
    unsigned post_timeout_ms; /* how long a call waits for room in a queue; 0 for 30,000 */
    unsigned reserved;        /* 0 */
} gdsync_team_attr_t;

/* Connects the ranks, all of which call this. pd is of context, of libibverbs or of a software card; both outlive the team. attr may be NULL. The
 * call uses up the bootstrap, even if it fails, unless an argument is invalid (EINVAL). */
gdsync_team_t *gdsync_team_create(gdsync_bootstrap_t *bootstrap, struct ibv_pd *pd, struct ibv_context *context,
                                  const gdsync_team_attr_t *attr);
int gdsync_team_rank(gdsync_team_t *team);
int gdsync_team_size(gdsync_team_t *team);
/* Returns when all ranks have called it. Does not flush outstanding writes. */
int gdsync_team_barrier(gdsync_team_t *team);
/* Returns when everything that the CPU and streams have posted to a queue before has arrived, so that the sources may change. */
int gdsync_team_flush(gdsync_team_t *team, unsigned queue, unsigned timeout_ms);
/* Returns 1 if a rank is known to be dead or was dropped, otherwise 0. A dead rank ends every wait for it. */
int gdsync_team_is_dead(gdsync_team_t *team, uint32_t rank);
/* Called by all survivors: they agree on the dead ranks, drop them, and continue with their old numbers. Returns the number of dropped ranks.
 * ESHUTDOWN: the others have dropped this rank. */
int gdsync_team_shrink(gdsync_team_t *team);
/* Frees a team. To ranks that still write to this rank it is dead: flush, and call a barrier before. Free its segments, too. */
int gdsync_team_free(gdsync_team_t *team);

/* ---- Segments: memory to which every rank contributes a part, with notifications ---- */

/* Notifications are 32-bit words, numbered from 0; the value 0 means "not set". A reader that sees one sees the data written before it. */
typedef struct gdsync_segment_handle gdsync_segment_t;

/* Makes this rank's part. All ranks call one of these functions in the same order; parts may differ in kind and length. */
gdsync_segment_t *gdsync_segment_allocate(gdsync_team_t *team, size_t length, unsigned notifications);
/* A part in memory of a GPU's primary context. */
gdsync_segment_t *gdsync_segment_allocate_gpu(gdsync_team_t *team, int gpu_id, size_t length, unsigned notifications);
/* A part in host memory of the program, which keeps it until gdsync_segment_free has returned 0. */
gdsync_segment_t *gdsync_segment_register(gdsync_team_t *team, void *addr, size_t length, unsigned notifications);
/* A part in GPU memory of the program, made with the GPU's primary context, as by the runtime's cudaMalloc. */
gdsync_segment_t *gdsync_segment_register_gpu(gdsync_team_t *team, int gpu_id, CUdeviceptr addr, size_t length,
                                              unsigned notifications);
/* Returns the address of this rank's data, on the host or the GPU. */
void *gdsync_segment_data(gdsync_segment_t *segment);
/* Frees a segment. EBUSY: a stream still has to pass work with the memory. The segment is freed all the same, but the program keeps the memory
 * until then. */
int gdsync_segment_free(gdsync_segment_t *segment);

/* ---- Notified writes ---- */

/* A write of bytes of this rank's part of a segment to another rank's part, with a notification there. */
typedef struct gdsync_put {
    gdsync_segment_t *from; /* unused if length is 0 */
    size_t from_offset;
    size_t length; /* 0: the notification alone */
    gdsync_segment_t *to;
    uint64_t to_offset;
    uint32_t rank;
    uint32_t notification;
    uint32_t value;    /* 0: no notification */
    uint32_t reserved; /* 0 */
} gdsync_put_t;

/* Posts puts by the CPU, in order. If one fails, those before it are posted. Puts to one rank by one queue arrive in order. */
int gdsync_put(gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[]);
/* Posts puts in the order of a stream, in one batch: all of them, or none if it fails. A source is read when the stream reaches the put, and may
 * change after gdsync_stream_quiet or gdsync_team_flush. */
int gdsync_stream_put(CUstream stream, gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[]);
/* Makes a stream wait for notifications of this rank's part, and clear them, in one batch. A second notification of the same number that arrives
 * before the first is cleared is lost: let the receiver confirm, or use numbers in turn. If the rank that sets one is dead, the stream stops there,
 * and gdsync_stream_synchronize returns EHOSTDOWN, until gdsync_stream_go_on. */
int gdsync_stream_wait_notifications(CUstream stream, gdsync_team_t *team, gdsync_segment_t *segment, size_t number,
                                     const uint32_t ids[]);
/* Both in one batch: the puts, then the waits. */
int gdsync_stream_exchange(CUstream stream, gdsync_team_t *team, unsigned queue, size_t number, const gdsync_put_t puts[],
                           gdsync_segment_t *segment, size_t waits, const uint32_t ids[]);
/* Makes a stream wait until everything that a queue was given for a rank has arrived there, so that the sources may change. */
int gdsync_stream_quiet(CUstream stream, gdsync_team_t *team, unsigned queue, uint32_t rank);

/* Declares that only this rank sets notifications first to first + count - 1; by default any rank may. Waits for them end with EHOSTDOWN when
 * that rank dies, and not when another does. */
int gdsync_notification_expect_from(gdsync_segment_t *segment, uint32_t first, uint32_t count, uint32_t rank);
/* Waits on the CPU until one of these notifications is set, and writes the lowest such number to *id. ETIMEDOUT; EHOSTDOWN: the rank that sets it
 * is dead. */
int gdsync_notification_wait(gdsync_segment_t *segment, uint32_t first, uint32_t count, uint32_t *id, unsigned timeout_ms);
/* Clears a notification atomically, and writes its old value, or 0, to *value, which may be NULL. */
int gdsync_notification_reset(gdsync_segment_t *segment, uint32_t id, uint32_t *value);
/* Returns whether a stream that has passed the wait for a notification got it. EHOSTDOWN: the rank is dead, and a stream that goes on
 * (gdsync_stream_go_on) has no data. */
int gdsync_notification_check(gdsync_segment_t *segment, uint32_t id);

GDS_END_DECLS

#endif
