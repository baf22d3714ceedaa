/* The last rank dies: partitions to and from it, and only those, end with an error. Needs an mpirun that leaves the other ranks
 * alone. */
#include "common_mpix.h"

#include <signal.h>
#include <unistd.h>

static int psend(const int *buffer, int peer, MPIX_Request *request)
{
    return MPIX_Psend_init(buffer, 2, 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}

static int precv(int *buffer, int peer, MPIX_Request *request)
{
    return MPIX_Precv_init(buffer, 2, 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}

static void mark(MPIX_Request *request)
{
    OK(MPIX_Pready(0, request));
    OK(MPIX_Pready(1, request));
}

/* The last rank receives from rank 0 and sends to rank 1, once. Rank 0 also sends to rank 1. */
int main(void)
{
    int out[2] = {1, 2}, in[2], other[2], last;
    MPIX_Request requests[2];
    MPI_Status status;

    begin();
    OK(MPIX_Init());
    last = size - 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank != 1)
        OK(psend(out, 1, &requests[0]));
    else
        OK(precv(in, last, &requests[0]));
    if (rank == last)
        OK(precv(in, 0, &requests[1]));
    else if (rank == 0)
        OK(psend(out, last, &requests[1]));
    else
        OK(precv(other, 0, &requests[1]));
    OK(MPIX_Startall(2, requests));
    if (rank != 1)
        mark(&requests[0]);
    if (rank == 0)
        mark(&requests[1]);
    OK(MPIX_Waitall(2, requests, MPI_STATUSES_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last)
        raise(SIGKILL);

    /* The two still exchange partitions. */
    out[1] = 5;
    OK(MPIX_Startall(2, requests));
    if (rank == 0) {
        mark(&requests[0]);
        mark(&requests[1]);
        OK(MPIX_Wait(&requests[0], &status));
        CHECK(failed(MPIX_Wait(&requests[1], &status), PEER_HAS_DIED, "peer"));
    } else {
        OK(MPIX_Wait(&requests[1], &status));
        CHECK(other[1] == 5);
        CHECK(failed(MPIX_Wait(&requests[0], &status), PEER_HAS_DIED, "peer"));
    }
    CHECK(status.MPI_ERROR != MPI_SUCCESS);
    /* It cannot be started again. */
    CHECK(MPIX_Start(&requests[rank == 0]) != MPI_SUCCESS);
    OK(MPIX_Request_free(&requests[0]));
    OK(MPIX_Request_free(&requests[1]));
    OK(MPIX_Finalize());
    if (rank == 0) {
        MPI_Recv(&in, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        puts("dead ok");
    } else
        MPI_Send(&in, 1, MPI_INT, 0, 9, MPI_COMM_WORLD);
    fflush(stdout);
    /* MPI_Finalize waits for all ranks. */
    _exit(0);
}
