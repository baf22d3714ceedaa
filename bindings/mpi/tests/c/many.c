/* A thousand requests at a time, empty and long; messages of several work requests. */
#include "queue.h"

#define REQUESTS 1000
#define LONG 100003

static MPIS_Request requests[REQUESTS], matches[REQUESTS];
static unsigned char out[REQUESTS], in[REQUESTS];

static void thousand(MPIS_Queue queue)
{
    int at, round, matched, left = size / 2 * 2;

    if (rank >= left)
        return;
    for (at = 0; at < REQUESTS; at++) {
        int peer = rank ^ 1;
        /* Every tenth message is empty. */
        int count = at % 10 != 0;
        if (rank % 2 == 0)
            OK(MPIS_Send_init(&out[at], count, MPI_BYTE, peer, at, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[at]));
        else
            OK(MPIS_Recv_init(&in[at], count, MPI_BYTE, peer, at, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[at]));
    }
    for (at = 0; at < REQUESTS; at++)
        OK(MPIS_Imatch(&requests[rank % 2 ? REQUESTS - 1 - at : at], &matches[at]));
    do {
        OK(MPIS_Is_matched(&matches[0], &matched));
    } while (!matched);
    OK(MPIS_Waitall(REQUESTS, matches, MPI_STATUSES_IGNORE));
    for (round = 0; round < 3; round++) {
        for (at = 0; at < REQUESTS; at++)
            out[at] = (unsigned char)(at * 7 + round);
        OK(MPIS_Enqueue_startall(queue, REQUESTS, requests));
        OK(MPIS_Enqueue_waitall(queue));
        OK(MPIS_Queue_wait(queue));
        for (at = 0; at < REQUESTS && rank % 2; at++)
            CHECK(in[at] == (at % 10 ? (unsigned char)(at * 7 + round) : 0));
    }
    OK(MPIS_Request_freeall(REQUESTS, requests));
}

/* The test has set the length of a work request to a fraction of the message's. */
static void long_message(MPIS_Queue queue)
{
    int peer = (rank + 1) % size, before = (rank + size - 1) % size, at, round, count;
    unsigned char *sent = malloc(LONG), *received = malloc(2 * LONG);
    MPIS_Request both[2];
    MPI_Status statuses[2];

    OK(MPIS_Send_init(sent, LONG, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &both[0]));
    /* The receive is longer than the message. */
    OK(MPIS_Recv_init(received, 2 * LONG, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &both[1]));
    OK(MPIS_Matchall(2, both, statuses));
    MPI_Get_count(&statuses[1], MPI_BYTE, &count);
    CHECK(count == LONG);
    for (round = 0; round < 5; round++) {
        for (at = 0; at < LONG; at++)
            sent[at] = (unsigned char)(at * 13 + at / 251 + rank * 31 + round);
        memset(received, 0xee, 2 * LONG);
        OK(MPIS_Enqueue_startall(queue, 2, both));
        OK(MPIS_Waitall(2, both, statuses));
        MPI_Get_count(&statuses[1], MPI_BYTE, &count);
        CHECK(count == LONG);
        for (at = 0; at < LONG; at++)
            CHECK(received[at] == (unsigned char)(at * 13 + at / 251 + before * 31 + round));
        CHECK(received[LONG] == 0xee);
    }
    OK(MPIS_Request_freeall(2, both));
    free(sent);
    free(received);
}

int main(void)
{
    MPIS_Queue queue;

    begin();
    queue_init(&queue);
    thousand(queue);
    long_message(queue);
    OK(MPIS_Queue_free(&queue));
    end("many ok");
    return 0;
}
