/* A ring of sends and receives in the order of a stream: rounds that are enqueued ahead, waits of the stream and of the CPU, and the
 * null stream without CUDA. */
#include "common_mpix.h"
#include "ring_step.h"

#define ROUNDS 100

static void check_status(const MPI_Status *status, int tag, int len)
{
    int count;

    MPI_Get_count(status, MPI_INT, &count);
    CHECK(status->MPI_SOURCE == (rank + size - 1) % size && status->MPI_TAG == tag);
    CHECK(status->MPI_ERROR == MPI_SUCCESS && count == len);
}

static void rounds(void)
{
    MPIX_Request requests[2];
    static MPI_Status statuses[ROUNDS][2];
    int round;

    fill();
    memset(statuses, 0xee, sizeof statuses);
    for (round = 0; round < ROUNDS; round++) {
        OK(send_to((rank + 1) % size, 7, sent, LEN, MPI_INT, MPI_COMM_WORLD, &requests[0]));
        OK(receive_from((rank + size - 1) % size, 7, received, LEN, MPI_INT, MPI_COMM_WORLD, &requests[1]));
        OK(MPIX_Waitall_enqueue(2, requests, statuses[round], SOFTWARE, &stream));
        CHECK(requests[0] == MPIX_REQUEST_NULL && requests[1] == MPIX_REQUEST_NULL);
        OK(gdsync_mpix_launch(SOFTWARE, &stream, step, NULL));
    }
    OK(synchronize());
    CHECK(right == ROUNDS * LEN && round_number == ROUNDS);
    for (round = 0; round < ROUNDS; round++)
        check_status(&statuses[round][1], 7, LEN);
}

/* CUDA queues: without CUDA, the null stream is a software stream of the process. */
static void null_stream(void)
{
    void *queue = NULL, *other = &queue;
    MPIX_Request requests[3] = {NULL, NULL, MPIX_REQUEST_NULL};
    MPI_Status statuses[3];
    int send = rank + 1, value = -1;

    OK(MPIX_Isend_enqueue(&send, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD, &requests[0],
                          MPIX_QUEUE_CUDA_STREAM, &queue));
    OK(MPIX_Irecv_enqueue(&value, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, &requests[1],
                          MPIX_QUEUE_CUDA_STREAM, &queue));
    /* The CPU waits. */
    OK(MPIX_Waitall(3, requests, statuses));
    CHECK(value == (rank + size - 1) % size + 1 && requests[1] == MPIX_REQUEST_NULL);
    check_status(&statuses[1], 0, 1);
    CHECK(statuses[2].MPI_SOURCE == MPI_ANY_SOURCE);
    OK(MPIX_Irecv_enqueue(&value, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &requests[0], MPIX_QUEUE_CUDA_STREAM,
                          &queue));
    OK(MPIX_Wait_enqueue(&requests[0], &statuses[0], MPIX_QUEUE_CUDA_STREAM, &queue));
    OK(gdsync_mpix_synchronize(MPIX_QUEUE_CUDA_STREAM, &queue));
    CHECK(statuses[0].MPI_SOURCE == MPI_PROC_NULL && statuses[0].MPI_ERROR == MPI_SUCCESS);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(failed(MPIX_Isend_enqueue(&send, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &requests[0], MPIX_QUEUE_CUDA_STREAM, &other),
                 MPI_ERR_ARG, "MPIX_QUEUE_GDSYNC_SOFTWARE"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

int main(void)
{
    begin_mpix();
    rounds();
    null_stream();
    end_mpix("enqueued ok");
    return 0;
}
