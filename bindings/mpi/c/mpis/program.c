/* The beginning and the end of a program of MPIS_*. */
#include "internal.h"

#include <stdio.h>

static void end(void)
{
    struct gdsync_mpi_counts counts;
    int rank = -1;

    if (gdsync_mpi_finish(&counts) != 0 || !mpis_wants_statistics())
        return;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr,
            "gdsync-mpis rank %d: %llu starts, %llu waits, %llu batches, %llu memory operations, "
            "%llu by the CPU\n", rank, (unsigned long long)counts.starts, (unsigned long long)counts.waits,
            (unsigned long long)counts.batches, (unsigned long long)counts.operations,
            (unsigned long long)counts.cpu);
}

int mpis_library_comm(MPI_Comm comm, struct mpis_comm **found)
{
    mpis_on_finalize(end);
    return mpis_comm_get(comm, found);
}

/* Prepares MPI_COMM_WORLD, which is collective: later, not all ranks may make a request on it. */
static int begin(int error)
{
    struct mpis_comm *world;

    if (error == MPI_SUCCESS && mpis_library_comm(MPI_COMM_WORLD, &world) == MPI_SUCCESS)
        mpis_comm_release(world);
    return error;
}

int MPI_Init(int *argc, char ***argv)
{
    return begin(PMPI_Init(argc, argv));
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    return begin(PMPI_Init_thread(argc, argv, required, provided));
}

void MPIS_Hello_world(void)
{
}
