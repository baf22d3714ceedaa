/* The last rank dies: the others' requests with it, and only those, end with an error. (A stopped rank is waited for, as its card still
 * responds.) Needs an mpirun that leaves the other ranks alone. */
#include "common.h"
#include "stream-triggering.h"

#include <signal.h>
#include <unistd.h>

/* Requests with the rank that dies: rank 0 sends, rank 1 receives, rank 2 receives and waits on the CPU, and all have a barrier. */
int main(void)
{
    MPI_Comm alive;
    MPIS_Queue queue;
    MPIS_Request request = MPIS_REQUEST_NULL, barrier, ring[2];
    int value = 0, in = 0, error, last;

    begin();
    last = size - 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_split(MPI_COMM_WORLD, rank < last, rank, &alive);
    OK(MPIS_Queue_init(&queue, THREAD, NULL));
    OK(MPIS_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &barrier));
    if (rank == last) {
        MPIS_Request three[3];
        OK(MPIS_Recv_init(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &three[0]));
        OK(MPIS_Send_init(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &three[1]));
        OK(MPIS_Send_init(&value, 1, MPI_INT, 2, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &three[2]));
        OK(MPIS_Matchall(3, three, MPI_STATUSES_IGNORE));
        OK(MPIS_Match(&barrier, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        raise(SIGKILL);
    }
    if (rank == 0)
        OK(MPIS_Send_init(&value, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    else
        OK(MPIS_Recv_init(&value, 1, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPIS_Match(&request, MPI_STATUS_IGNORE));
    OK(MPIS_Match(&barrier, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);

    OK(MPIS_Enqueue_start(queue, &request));
    if (rank == 2)
        error = MPIS_Wait(&request, MPI_STATUS_IGNORE);
    else {
        OK(MPIS_Enqueue_waitall(queue));
        error = MPIS_Queue_wait(queue);
    }
    CHECK(failed(error, PEER_HAS_DIED, "peer"));
    /* It cannot be started again. */
    CHECK(MPIS_Enqueue_start(queue, &request) != MPI_SUCCESS);

    error = MPIS_Enqueue_start(queue, &barrier);
    if (error == MPI_SUCCESS) {
        OK(MPIS_Enqueue_waitall(queue));
        error = MPIS_Queue_wait(queue);
    }
    CHECK(failed(error, PEER_HAS_DIED, "peer"));

    /* The other requests continue. */
    OK(MPIS_Send_init(&rank, 1, MPI_INT, (rank + 1) % last, 0, alive, MPI_INFO_NULL, &ring[0]));
    OK(MPIS_Recv_init(&in, 1, MPI_INT, (rank + last - 1) % last, 0, alive, MPI_INFO_NULL, &ring[1]));
    OK(MPIS_Matchall(2, ring, MPI_STATUSES_IGNORE));
    OK(MPIS_Enqueue_startall(queue, 2, ring));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(in == (rank + last - 1) % last);
    OK(MPIS_Request_freeall(2, ring));
    OK(MPIS_Request_free(&request));
    OK(MPIS_Request_free(&barrier));
    OK(MPIS_Queue_free(&queue));
    MPI_Barrier(alive);
    if (rank == 0)
        puts("dead ok");
    fflush(stdout);
    /* MPI_Finalize waits for all ranks. */
    _exit(0);
}
