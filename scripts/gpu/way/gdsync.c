/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By gdsync: notified writes in the order of the stream. The CPU only enqueues.
 */
#include "way.h"

#include <errno.h>
#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>
#include <string.h>

enum { PATIENCE_MS = 30000, MOST = 64 };

static gdsync_team_t *team;
static gdsync_segment_t *segment;

static void check(const char *what, int error) {
    if (error != 0) {
        fail(what, gdsync_error_text());
    }
}

static int gather(void *argument, const void *own, void *all, size_t bytes) {
    (void)argument;
    return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static struct ibv_context *open_card(const char *name) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    for (int i = 0; devices && devices[i] && !context; i++) {
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0) {
            context = ibv_open_device(devices[i]);
        }
    }
    if (devices) {
        ibv_free_device_list(devices);
    }
    return context;
}

static const char *open_gdsync(struct job *job) {
    struct ibv_context *context = open_card(job->card);
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    gdsync_bootstrap_t *bootstrap;
    uint32_t words = 2 * (uint32_t)job->ranks;
    if (!pd) {
        return "libibverbs has no card of this name";
    }
    if (job->ranks > MOST) {
        return "it has at most 64 ranks here";
    }
    bootstrap = gdsync_bootstrap_with((uint32_t)job->rank, (uint32_t)job->ranks, gather, NULL, PATIENCE_MS);
    check("gdsync_bootstrap_with", !bootstrap);
    team = gdsync_team_create(bootstrap, pd, context, NULL);
    check("gdsync_team_create", !team);
    if (job->on_gpu) {
        segment = gdsync_segment_allocate_gpu(team, job->gpu, 2 * half(job), words);
        check("gdsync_segment_allocate_gpu", !segment);
        job->out = gdsync_segment_data(segment);
        job->in = job->out + half(job);
    } else {
        allocate(job);
        segment = gdsync_segment_register(team, job->out, 2 * half(job), words);
        check("gdsync_segment_register", !segment);
    }
    return NULL;
}

/* The notification of a step's block from a rank: cleared before that rank sets it again, two steps later. */
static uint32_t arrival(const struct job *job, int step, int from) { return (uint32_t)((step & 1) * job->ranks + from); }

static void exchange(struct job *job, int step, int sends, int receives) {
    gdsync_put_t puts[MOST];
    uint32_t ids[MOST];
    size_t count = 0;
    for (int peer = 0; peer < job->ranks; peer++) {
        if (peer == job->rank) {
            continue;
        }
        ids[count] = arrival(job, step, peer);
        puts[count++] = (gdsync_put_t){.from = segment,
                                       .from_offset = block(job, step, peer),
                                       .length = job->size,
                                       .to = segment,
                                       .to_offset = half(job) + block(job, step, job->rank),
                                       .rank = (uint32_t)peer,
                                       .notification = arrival(job, step, job->rank),
                                       .value = 1};
    }
    if (sends && receives) {
        check("gdsync_stream_exchange", gdsync_stream_exchange(job->stream, team, 0, count, puts, segment, count, ids));
    } else if (sends) {
        check("gdsync_stream_put", gdsync_stream_put(job->stream, team, 0, count, puts));
    } else {
        check("gdsync_stream_wait_notifications", gdsync_stream_wait_notifications(job->stream, team, segment, count, ids));
    }
}

static void close_gdsync(struct job *job) {
    check("gdsync_stream_synchronize", gdsync_stream_synchronize(job->stream, PATIENCE_MS));
    check("gdsync_team_flush", gdsync_team_flush(team, 0, PATIENCE_MS));
    check("gdsync_team_barrier", gdsync_team_barrier(team));
}

const struct way by_gdsync = {"gdsync", open_gdsync, exchange, close_gdsync};
