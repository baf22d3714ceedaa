/* Requests match in order for each communicator, peer and tag. */
#include "queue.h"

#include <time.h>

/* Pairs of ranks exchange four messages with two tags, which the two sides match in different orders. */
static void tags(MPIS_Queue queue, MPI_Comm comm, int base)
{
    int peer = rank ^ 1, at, out[4], in[4] = {0};
    MPIS_Request sends[4], receives[4], all[8];

    for (at = 0; at < 4; at++) {
        out[at] = base + 10 * rank + at;
        OK(MPIS_Send_init(&out[at], 1, MPI_INT, peer, at % 2, comm, MPI_INFO_NULL, &sends[at]));
        OK(MPIS_Recv_init(&in[at], 1, MPI_INT, peer, at % 2, comm, MPI_INFO_NULL, &receives[at]));
    }
    /* Per tag, the order is the same: 0 before 2, 1 before 3. */
    for (at = 0; at < 4; at++) {
        int other = rank % 2 ? at : (int[]){1, 3, 0, 2}[at];
        all[at] = sends[other];
        all[4 + at] = receives[other];
    }
    OK(MPIS_Matchall(8, all, MPI_STATUSES_IGNORE));
    OK(MPIS_Enqueue_startall(queue, 8, all));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    for (at = 0; at < 4; at++)
        CHECK(in[at] == base + 10 * peer + at);
    OK(MPIS_Request_freeall(8, all));
}

static void several_communicators(MPIS_Queue queue)
{
    MPI_Comm twin, half;
    int out[2] = {100 + rank, 200 + rank}, in[2] = {0}, peer = rank ^ 1, sub;
    MPIS_Request requests[4], match[4];
    int at;

    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    /* The same peer and tag; one side matches in the other order. */
    OK(MPIS_Send_init(&out[0], 1, MPI_INT, peer, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Send_init(&out[1], 1, MPI_INT, peer, 5, twin, MPI_INFO_NULL, &requests[1]));
    OK(MPIS_Recv_init(&in[0], 1, MPI_INT, peer, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[2]));
    OK(MPIS_Recv_init(&in[1], 1, MPI_INT, peer, 5, twin, MPI_INFO_NULL, &requests[3]));
    for (at = 0; at < 4; at++)
        OK(MPIS_Imatch(&requests[rank % 2 ? at : 3 - at], &match[at]));
    OK(MPIS_Waitall(4, match, MPI_STATUSES_IGNORE));
    CHECK(match[3] == MPIS_REQUEST_NULL);
    /* Matched requests outlive their communicator. */
    MPI_Comm_free(&twin);
    OK(MPIS_Enqueue_startall(queue, 4, requests));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(in[0] == 100 + peer && in[1] == 200 + peer);
    OK(MPIS_Request_freeall(4, requests));

    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, -rank, &half);
    MPI_Comm_rank(half, &sub);
    CHECK(sub == 1 - rank % 2);
    tags(queue, MPI_COMM_WORLD, 1000);
    OK(MPIS_Send_init(&rank, 1, MPI_INT, 1 - sub, 0, half, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Recv_init(&in[0], 1, MPI_INT, 1 - sub, 0, half, MPI_INFO_NULL, &requests[1]));
    OK(MPIS_Matchall(2, requests, MPI_STATUSES_IGNORE));
    OK(MPIS_Enqueue_startall(queue, 2, requests));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(in[0] == peer);
    OK(MPIS_Request_freeall(2, requests));
    MPI_Comm_free(&half);
}

/* A receive has matched when its sender is connected, too, and not before. */
static void receivers_wait_for_connections(MPIS_Queue queue)
{
    const struct timespec some = {0, 1000000};
    int value = rank, peer = rank ^ 1, has_matched = 0, tries;
    MPIS_Request transfer, match;

    if (rank % 2) {
        OK(MPIS_Recv_init(&value, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &transfer));
        OK(MPIS_Match(&transfer, MPI_STATUS_IGNORE));
        MPI_Send(&has_matched, 1, MPI_INT, peer, 8, MPI_COMM_WORLD);
    } else {
        OK(MPIS_Send_init(&value, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, MPI_INFO_NULL, &transfer));
        OK(MPIS_Imatch(&transfer, &match));
        /* Without a call of this library, this side does not connect. */
        for (tries = 0; tries < 100 && !has_matched; tries++) {
            MPI_Iprobe(peer, 8, MPI_COMM_WORLD, &has_matched, MPI_STATUS_IGNORE);
            nanosleep(&some, NULL);
        }
        CHECK(!has_matched);
        OK(MPIS_Wait(&match, MPI_STATUS_IGNORE));
        MPI_Recv(&has_matched, 1, MPI_INT, peer, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    OK(MPIS_Enqueue_start(queue, &transfer));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(value == (rank & ~1));
    OK(MPIS_Request_free(&transfer));
}

static void itself_and_no_one(MPIS_Queue queue)
{
    MPI_Comm comms[] = {MPI_COMM_SELF, MPI_COMM_WORLD};
    double out = rank + 0.5, in;
    MPIS_Request requests[4];
    MPI_Status statuses[4];
    int at;

    for (at = 0; at < 2; at++) {
        int self = at == 0 ? 0 : rank;
        in = 0;
        OK(MPIS_Recv_init(&in, 1, MPI_DOUBLE, self, 3, comms[at], MPI_INFO_NULL, &requests[0]));
        OK(MPIS_Send_init(&out, 1, MPI_DOUBLE, self, 3, comms[at], MPI_INFO_NULL, &requests[1]));
        OK(MPIS_Send_init(&out, 1, MPI_DOUBLE, MPI_PROC_NULL, 3, comms[at], MPI_INFO_NULL, &requests[2]));
        OK(MPIS_Recv_init(&in, 1, MPI_DOUBLE, MPI_PROC_NULL, 3, comms[at], MPI_INFO_NULL, &requests[3]));
        OK(MPIS_Matchall(4, requests, statuses));
        CHECK(statuses[3].MPI_SOURCE == MPI_PROC_NULL);
        OK(MPIS_Enqueue_startall(queue, 4, requests));
        OK(MPIS_Enqueue_waitall(queue));
        OK(MPIS_Queue_wait(queue));
        CHECK(in == rank + 0.5);
        OK(MPIS_Request_freeall(4, requests));
    }
}

/* Only two ranks have a request on MPI_COMM_WORLD, which is the program's first. */
static void two_of_all(MPIS_Queue queue)
{
    int value = rank == 0 ? 42 : 0;
    MPIS_Request request;

    if (rank > 1)
        return;
    if (rank == 0)
        OK(MPIS_Rsend_init(&value, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    else
        OK(MPIS_Recv_init(&value, 1, MPI_INT, 0, 9, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPIS_Queue_match(queue, &request, MPI_STATUS_IGNORE));
    OK(MPIS_Enqueue_start(queue, &request));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(value == 42);
    OK(MPIS_Request_free(&request));
}

int main(void)
{
    MPIS_Queue queue;
    int provided;

    OK(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    queue_init(&queue);
    two_of_all(queue);
    tags(queue, MPI_COMM_WORLD, 0);
    several_communicators(queue);
    receivers_wait_for_connections(queue);
    itself_and_no_one(queue);
    OK(MPIS_Queue_free(&queue));
    end("order ok");
    return 0;
}
