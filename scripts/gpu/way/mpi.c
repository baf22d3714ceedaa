/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By MPI, after a synchronization.
 */
#include "way.h"

static MPI_Request requests[2 * MOST_RANKS];
static int count;

static const char *open_mpi(struct job *job) {
    allocate(job);
    return NULL;
}

static void begin(void) { count = 0; }

static void post_receive(const struct job *job, int step, int peer) {
    OK(MPI_Irecv(job->in + block(job, step, peer), (int)job->size, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[count++]));
}

static void post_send(const struct job *job, int step, int peer) {
    OK(MPI_Isend(job->out + block(job, step, peer), (int)job->size, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[count++]));
}

static void end(const struct job *job) {
    (void)job;
    OK(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE));
}

static void close_mpi(const struct job *job) { (void)job; }

const struct way by_mpi = {"mpi", 1, open_mpi, begin, post_receive, post_send, end, close_mpi};
