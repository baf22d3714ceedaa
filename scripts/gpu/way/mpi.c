/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By MPI: the CPU waits for the stream, and for the messages before it enqueues the next kernel.
 */
#include "way.h"

enum { MOST = 64 };

static const char *open_mpi(struct job *job) {
    if (job->on_gpu) {
        return "it has pinned memory only here";
    }
    if (job->ranks > MOST) {
        return "it has at most 64 ranks here";
    }
    allocate(job);
    return NULL;
}

static void exchange(struct job *job, int step, int sends, int receives) {
    MPI_Request requests[2 * MOST];
    int count = 0, size = (int)job->size;
    /* Posted early: the kernel that read these blocks has ended, as an earlier step has waited for it. */
    for (int peer = 0; receives && peer < job->ranks; peer++) {
        if (peer != job->rank) {
            OK(MPI_Irecv(job->in + block(job, step, peer), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[count++]));
        }
    }
    if (sends) {
        synchronize(job);
    }
    for (int peer = 0; sends && peer < job->ranks; peer++) {
        if (peer != job->rank) {
            OK(MPI_Isend(job->out + block(job, step, peer), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[count++]));
        }
    }
    OK(MPI_Waitall(count, requests, MPI_STATUSES_IGNORE));
}

static void close_mpi(struct job *job) { (void)job; }

const struct way by_mpi = {"mpi", open_mpi, exchange, close_mpi};
