/* The last rank of a linked communicator dies: messages to and from it end with an error, whether a stream or the CPU waits for them,
 * and other messages do not. Needs an mpirun that leaves the other ranks alone. */
#include "common_mpix.h"

#include <signal.h>
#include <unistd.h>

/* Enqueues both waits at once; the thread writes the statuses. */
static void exchange(int peer, int tag, int *out, int *in, MPI_Status *statuses)
{
    MPIX_Request requests[2];

    OK(send_to(peer, tag, out, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(receive_from(peer, tag, in, 1, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(MPIX_Waitall_enqueue(2, requests, statuses, SOFTWARE, &stream));
    OK(synchronize());
}

/* Ranks 0 and 1 exchange messages with each other and with the last rank. */
int main(void)
{
    int out = 0, in = -1, round, last;
    MPI_Status statuses[2];
    MPIX_Request request;

    begin_mpix();
    last = size - 1;
    OK(gdsync_mpix_link(MPI_COMM_WORLD));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (round = 0; round < 2; round++) {
        out = 10 * rank + round;
        if (rank != last)
            exchange(1 - rank, 1, &out, &in, statuses);
        if (rank == last)
            exchange(0, 2, &out, &in, statuses);
        else if (rank == 0)
            exchange(last, 2, &out, &in, statuses);
        if (rank == last)
            exchange(1, 2, &out, &in, statuses);
        else if (rank == 1)
            exchange(last, 2, &out, &in, statuses);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == last)
        raise(SIGKILL);

    exchange(last, 2, &out, &in, statuses);
    CHECK(failed(statuses[0].MPI_ERROR, PEER_HAS_DIED, "peer") && failed(statuses[1].MPI_ERROR, PEER_HAS_DIED, "peer"));
    /* Each link has failed. */
    CHECK(failed(send_to(last, 2, &out, 1, MPI_INT, MPI_COMM_WORLD, &request), PEER_HAS_DIED, "an earlier message"));
    CHECK(failed(receive_from(last, 2, &in, 1, MPI_INT, MPI_COMM_WORLD, &request), PEER_HAS_DIED, "an earlier message"));
    /* The two still exchange messages. */
    out = 100 + rank;
    exchange(1 - rank, 1, &out, &in, statuses);
    CHECK(in == 101 - rank && statuses[1].MPI_ERROR == MPI_SUCCESS);
    OK(gdsync_mpix_stream_destroy(&stream));
    OK(MPIX_Finalize());
    if (rank == 0) {
        MPI_Recv(&in, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        puts("linked_dead ok");
    } else
        MPI_Send(&in, 1, MPI_INT, 0, 9, MPI_COMM_WORLD);
    fflush(stdout);
    /* MPI_Finalize waits for all ranks. */
    _exit(0);
}
