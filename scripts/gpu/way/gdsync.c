/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By gdsync: notified writes in the order of the stream. The CPU only enqueues.
 */
#include "way.h"

#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>
#include <string.h>

enum { PATIENCE_MS = 30000 };

static gdsync_team_t *team;
static gdsync_segment_t *segment;
static gdsync_put_t puts[MOST_RANKS];
static uint32_t arrivals[MOST_RANKS];
static size_t put_count, arrival_count;

static void check(int failed) {
    if (failed) {
        fail("gdsync", gdsync_error_text());
    }
}

static int gather(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static const char *open_gdsync(struct job *job) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    struct ibv_pd *pd;
    gdsync_bootstrap_t *bootstrap;
    for (int i = 0; devices && devices[i] && !context; i++) {
        context = strcmp(ibv_get_device_name(devices[i]), job->card) == 0 ? ibv_open_device(devices[i]) : NULL;
    }
    pd = context ? ibv_alloc_pd(context) : NULL;
    if (!pd) {
        return "libibverbs has no such card";
    }
    check(!(bootstrap = gdsync_bootstrap_with((uint32_t)job->rank, (uint32_t)job->ranks, gather, NULL, PATIENCE_MS)));
    check(!(team = gdsync_team_create(bootstrap, pd, context, NULL)));
    if (job->on_gpu) {
        check(!(segment = gdsync_segment_allocate_gpu(team, job->gpu, 2 * half(job), 2 * (unsigned)job->ranks)));
        job->out = gdsync_segment_data(segment);
        job->in = job->out + half(job);
    } else {
        allocate(job);
        check(!(segment = gdsync_segment_register(team, job->out, 2 * half(job), 2 * (unsigned)job->ranks)));
    }
    return NULL;
}

static void begin(void) { put_count = arrival_count = 0; }

/* A step's notification of a rank's block: cleared before that rank sets it again, two steps later. */
static uint32_t arrival(const struct job *job, int step, int from) { return (uint32_t)((step & 1) * job->ranks + from); }

static void post_receive(const struct job *job, int step, int peer) { arrivals[arrival_count++] = arrival(job, step, peer); }

static void post_send(const struct job *job, int step, int peer) {
    puts[put_count++] = (gdsync_put_t){.from = segment,
                                       .from_offset = block(job, step, peer),
                                       .length = job->size,
                                       .to = segment,
                                       .to_offset = half(job) + block(job, step, job->rank),
                                       .rank = (uint32_t)peer,
                                       .notification = arrival(job, step, job->rank),
                                       .value = 1};
}

static void end(const struct job *job) {
    check(gdsync_stream_exchange(job->stream, team, 0, put_count, puts, segment, arrival_count, arrivals));
}

static void close_gdsync(const struct job *job) {
    check(gdsync_stream_synchronize(job->stream, PATIENCE_MS));
    check(gdsync_team_flush(team, 0, PATIENCE_MS));
    check(gdsync_team_barrier(team));
}

const struct way by_gdsync = {"gdsync", 0, open_gdsync, begin, post_receive, post_send, end, close_gdsync};
