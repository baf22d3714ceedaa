/* MPI_Finalize with outstanding work: a receive without a message, a match without its other side, an active request that was freed,
 * and queues and requests that are never freed. */
#include "queue.h"

int main(void)
{
    static int values[3];
    MPIS_Request requests[4], match;
    MPIS_Queue queue;
    int peer, matched;

    begin();
    peer = rank ^ 1;
    queue_init(&queue);
    OK(MPIS_Recv_init(&values[0], 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Send_init(&values[1], 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]));
    OK(MPIS_Recv_init(&values[2], 1, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]));
    OK(MPIS_Send_init(&values[2], 1, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[3]));
    OK(MPIS_Matchall(4, requests, MPI_STATUSES_IGNORE));
    OK(MPIS_Enqueue_startall(queue, 2, &requests[2]));
    OK(MPIS_Request_free(&requests[2]));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    /* The receives are started, the sends never. */
    OK(MPIS_Enqueue_start(queue, &requests[0]));
    OK(MPIS_Enqueue_waitall(queue));
    /* A match without its other side. */
    OK(MPIS_Recv_init(&values[0], 1, MPI_INT, peer, 2, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]));
    OK(MPIS_Imatch(&requests[2], &match));
    OK(MPIS_Is_matched(&match, &matched));
    CHECK(!matched);
    OK(MPIS_Request_free(&match));
    OK(MPIS_Request_free(&requests[2]));
    end("outstanding ok");
    /* After the end of MPI, calls return an error. */
    CHECK(MPIS_Request_free(&requests[1]) == MPI_ERR_OTHER);
    CHECK(MPIS_Queue_wait(queue) == MPI_ERR_OTHER);
    return 0;
}
