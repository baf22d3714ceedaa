/* A ring whose rounds are enqueued ahead, without calls of the CPU between them. */
#include "common.h"
#include "stream-triggering.h"
#include "ring_step.h"

#define ROUNDS 300
#define CPU_ROUNDS 100

int main(void)
{
    MPIS_Queue queue;
    MPIS_Request requests[2];
    MPI_Status statuses[2];
    int round, count;

    begin();
    fill();
    OK(MPIS_Queue_init(&queue, THREAD, NULL));
    OK(MPIS_Send_init(sent, LEN, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Recv_init(received, LEN, MPI_INT, (rank + size - 1) % size, 7, MPI_COMM_WORLD, MPI_INFO_NULL,
                      &requests[1]));
    OK(MPIS_Matchall(2, requests, statuses));
    CHECK(statuses[1].MPI_SOURCE == (rank + size - 1) % size && statuses[1].MPI_TAG == 7);
    MPI_Get_count(&statuses[1], MPI_INT, &count);
    CHECK(count == LEN);
    for (round = 0; round < ROUNDS; round++) {
        OK(MPIS_Enqueue_startall(queue, 2, requests));
        OK(MPIS_Enqueue_waitall(queue));
        OK(gdsync_mpis_launch(queue, step, NULL));
    }
    OK(MPIS_Queue_wait(queue));
    CHECK(right == ROUNDS * LEN && round_number == ROUNDS);

    /* The same, with waits of the CPU. */
    for (round = 0; round < CPU_ROUNDS; round++) {
        OK(MPIS_Enqueue_startall(queue, 2, requests));
        OK(MPIS_Waitall(2, requests, statuses));
        MPI_Get_count(&statuses[1], MPI_INT, &count);
    }
    CHECK(count == LEN && received[5] == (rank + size - 1) % size * 1000000 + ROUNDS * 1000 + 5);

    OK(MPIS_Request_freeall(2, requests));
    CHECK(requests[0] == MPIS_REQUEST_NULL);
    OK(MPIS_Queue_free(&queue));
    CHECK(queue == MPIS_QUEUE_NULL);
    end("ring ok");
    return 0;
}
