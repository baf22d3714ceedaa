/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A first program of stream-triggered MPI: heat spreads along a ring of cells, of which each rank has CELLS. A step exchanges the cells at
 * the edges with both neighbours, and computes. The CPU enqueues all steps, and waits once. docs/mpi.md explains it.
 *
 *     mpicc -o diffusion diffusion.c $(pkg-config --cflags --libs gdsync-mpis)
 *     mpirun --bind-to none -n 4 ./diffusion
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <stream-triggering.h>
#include <string.h>

enum { CELLS = 1000, STEPS = 200, TO_LEFT = 0, TO_RIGHT = 1 };

/* cells[0] and cells[CELLS + 1] are the neighbours' cells at the edges. */
static long cells[CELLS + 2], next[CELLS + 2];

static void spread(const long *now, long *then, int count) {
    int i;
    for (i = 1; i <= count; i++) {
        then[i] = (now[i - 1] + 2 * now[i] + now[i + 1]) / 4;
    }
}

/* On a GPU, a kernel. */
static void compute(void *unused) {
    (void)unused;
    spread(cells, next, CELLS);
    memcpy(cells, next, sizeof(cells));
}

/* Computes the whole ring on this rank. Returns whether its part is the same. */
static int is_right(int rank, int ranks) {
    int step, i, all = ranks * CELLS;
    long *now = calloc((size_t)all + 2, sizeof(long)), *then = calloc((size_t)all + 2, sizeof(long));
    int right = now != NULL && then != NULL;

    for (i = 1; right && i <= all; i++) {
        now[i] = (i - 1) % CELLS == 0 ? 1000000000 : 0;
    }
    for (step = 0; right && step < STEPS; step++) {
        now[0] = now[all];
        now[all + 1] = now[1];
        spread(now, then, all);
        memcpy(now, then, ((size_t)all + 2) * sizeof(long));
    }
    right = right && memcmp(cells + 1, now + 1 + rank * CELLS, CELLS * sizeof(long)) == 0;
    free(now);
    free(then);
    return right;
}

int main(int argc, char **argv) {
    MPIS_Queue queue;
    MPIS_Request requests[4];
    int rank, ranks, left, right, step, own, all;

    /* Errors of MPI and of MPIS_* end the job, with their text, as the communicator's error handler says. */
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    left = (rank + ranks - 1) % ranks;
    right = (rank + 1) % ranks;
    cells[1] = 1000000000;

    MPIS_Queue_init(&queue, THREAD, NULL); /* on a GPU: GPU_MEM_OPS, and the address of a cudaStream_t */
    MPIS_Send_init(&cells[1], 1, MPI_LONG, left, TO_LEFT, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]);
    MPIS_Send_init(&cells[CELLS], 1, MPI_LONG, right, TO_RIGHT, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]);
    MPIS_Recv_init(&cells[0], 1, MPI_LONG, left, TO_RIGHT, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]);
    MPIS_Recv_init(&cells[CELLS + 1], 1, MPI_LONG, right, TO_LEFT, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[3]);
    MPIS_Matchall(4, requests, MPI_STATUSES_IGNORE);

    for (step = 0; step < STEPS; step++) {
        MPIS_Enqueue_startall(queue, 4, requests);
        MPIS_Enqueue_waitall(queue);
        gdsync_mpis_launch(queue, compute, NULL); /* on a GPU: compute<<<blocks, threads, 0, stream>>>(...) */
    }
    MPIS_Queue_wait(queue);

    own = is_right(rank, ranks);
    MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%d ranks, %d steps: %s\n", ranks, STEPS, all ? "every cell is right" : "cells are wrong");
    }
    MPIS_Request_freeall(4, requests);
    MPIS_Queue_free(&queue);
    MPI_Finalize();
    return all ? 0 : 1;
}
