/* Messages of a linked communicator: their order; any buffers, tags and streams; messages ahead of the streams and after them, and
 * before the other side has any; and refusals. */
#include "common_mpix.h"
#include "ring_step.h"

#define MANY 1000

static int gate;

static void wait_for_gate(void *argument)
{
    (void)argument;
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE))
        ;
}

/* Rounds that the program enqueues ahead of the stream, without statuses. */
static void rounds(int more)
{
    MPIX_Request requests[2];
    int last = round_number + more, round;

    for (round = 0; round < more; round++) {
        OK(send_to((rank + 1) % size, 7, sent, LEN, MPI_INT, MPI_COMM_WORLD, &requests[0]));
        OK(receive_from((rank + size - 1) % size, 7, received, LEN, MPI_INT, MPI_COMM_WORLD, &requests[1]));
        OK(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE, SOFTWARE, &stream));
        CHECK(requests[0] == MPIX_REQUEST_NULL && requests[1] == MPIX_REQUEST_NULL);
        OK(gdsync_mpix_launch(SOFTWARE, &stream, step, NULL));
    }
    OK(synchronize());
    CHECK(right == last * LEN && round_number == last);
}

/* First before the sides have matched, and more messages than a queue pair has room for; then as many as it has room for. */
static void many_rounds(void)
{
    int at;

    fill();
    rounds(400);
    for (at = 0; at < 4; at++)
        rounds(50);
}

/* Many messages of one tag, from separate buffers, before the other side receives any. */
static void outstanding(void)
{
    static int out[MANY], in[MANY];
    static MPIX_Request sends[MANY], receives[MANY];
    static MPI_Status statuses[MANY];
    int at, count, next = (rank + 1) % size, before = (rank + size - 1) % size;

    for (at = 0; at < MANY; at++) {
        out[at] = rank * MANY + at;
        OK(send_to(next, 3, &out[at], 1, MPI_INT, MPI_COMM_WORLD, &sends[at]));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (at = 0; at < MANY; at++)
        OK(receive_from(before, 3, &in[at], 1, MPI_INT, MPI_COMM_WORLD, &receives[at]));
    /* Statuses of a stream's wait, and of the CPU's. */
    OK(MPIX_Waitall_enqueue(MANY, receives, statuses, SOFTWARE, &stream));
    OK(MPIX_Waitall(MANY, sends, MPI_STATUSES_IGNORE));
    OK(synchronize());
    for (at = 0; at < MANY; at++) {
        MPI_Get_count(&statuses[at], MPI_INT, &count);
        CHECK(in[at] == before * MANY + at && count == 1);
        CHECK(statuses[at].MPI_SOURCE == before && statuses[at].MPI_TAG == 3 && statuses[at].MPI_ERROR == MPI_SUCCESS);
    }
}

/* Two streams have messages of one link; the second stream waits for the first. */
static void two_streams(void)
{
    gdsync_mpix_stream other;
    MPIX_Request requests[4];
    MPI_Status status;
    int out[2] = {rank, rank + 100}, in[2] = {-1, -1}, count;
    int next = (rank + 1) % size, before = (rank + size - 1) % size;

    OK(gdsync_mpix_stream_create(&other));
    __atomic_store_n(&gate, 0, __ATOMIC_RELEASE);
    OK(gdsync_mpix_launch(SOFTWARE, &stream, wait_for_gate, NULL));
    OK(send_to(next, 4, &out[0], 1, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(MPIX_Isend_enqueue(&out[1], 1, MPI_INT, next, 4, MPI_COMM_WORLD, &requests[1], SOFTWARE, &other));
    OK(receive_from(before, 4, &in[0], 2, MPI_INT, MPI_COMM_WORLD, &requests[2]));
    OK(MPIX_Irecv_enqueue(&in[1], 1, MPI_INT, before, 4, MPI_COMM_WORLD, &requests[3], SOFTWARE, &other));
    /* Each stream waits for messages of the other stream. */
    OK(MPIX_Wait_enqueue(&requests[3], MPI_STATUS_IGNORE, SOFTWARE, &stream));
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    OK(MPIX_Wait(&requests[2], &status));
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 1 && status.MPI_SOURCE == before && in[0] == before);
    OK(MPIX_Wait_enqueue(&requests[0], MPI_STATUS_IGNORE, SOFTWARE, &other));
    OK(MPIX_Request_free(&requests[1]));
    OK(synchronize());
    CHECK(in[1] == before + 100);
    OK(gdsync_mpix_stream_destroy(&other));
}

/* Other communicators, sends to the rank itself, empty messages, MPI_PROC_NULL, and a communicator that is freed early. */
static void own_communicators(void)
{
    int out[3] = {rank, rank + 100, 0}, in[3] = {-1, -1, 5}, at, me;
    MPI_Comm comms[3] = {MPI_COMM_SELF, MPI_COMM_NULL, MPI_COMM_WORLD};
    MPIX_Request requests[7];
    MPI_Status statuses[7];

    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[1]);
    OK(gdsync_mpix_link(MPI_COMM_SELF));
    OK(gdsync_mpix_link(comms[1]));
    OK(gdsync_mpix_link(comms[1]));
    for (at = 0; at < 3; at++) {
        MPI_Comm_rank(comms[at], &me);
        OK(receive_from(me, 9, &in[at], at < 2, MPI_INT, comms[at], &requests[at]));
    }
    for (at = 2; at >= 0; at--) {
        MPI_Comm_rank(comms[at], &me);
        OK(send_to(me, 9, &out[at], at < 2, MPI_INT, comms[at], &requests[3 + at]));
    }
    OK(receive_from(MPI_PROC_NULL, 9, NULL, 4, MPI_INT, MPI_COMM_WORLD, &requests[6]));
    OK(MPIX_Waitall_enqueue(7, requests, statuses, SOFTWARE, &stream));
    MPI_Comm_free(&comms[1]);
    OK(synchronize());
    CHECK(in[0] == rank && in[1] == rank + 100 && in[2] == 5);
    MPI_Get_count(&statuses[2], MPI_INT, &at);
    CHECK(at == 0 && statuses[6].MPI_SOURCE == MPI_PROC_NULL);
}

static void refused(void)
{
    int in[4] = {0}, out[4] = {1, 2, 3, 4}, code, at;
    MPIX_Request requests[3];
    MPI_Datatype evens;
    MPI_Status status;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(failed(receive_from(MPI_ANY_SOURCE, 0, in, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]), MPI_ERR_RANK,
                 "MPI_ANY_SOURCE"));
    CHECK(failed(receive_from(rank, MPI_ANY_TAG, in, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]), MPI_ERR_TAG,
                 "MPI_ANY_TAG"));
    MPI_Type_vector(2, 1, 2, MPI_INT, &evens);
    MPI_Type_commit(&evens);
    CHECK(failed(send_to(rank, 0, in, 1, evens, MPI_COMM_WORLD, &requests[0]), MPI_ERR_TYPE, ""));
    MPI_Type_free(&evens);
    CHECK(failed(send_to(rank, 0, in, 65537 / 4 + 1, MPI_INT, MPI_COMM_WORLD, &requests[0]), MPI_ERR_ARG,
                 "GDSYNC_MPI_PART_BYTES"));
    CHECK(failed(gdsync_mpix_link(MPI_COMM_NULL), MPI_ERR_COMM, "MPI_COMM_NULL"));

    /* A receive that is too short ends the link at both sides. */
    for (at = 0; at < 2; at++) {
        OK(send_to(rank, 1 + at, out, 4, MPI_INT, MPI_COMM_WORLD, &requests[0]));
        OK(receive_from(rank, 1 + at, in, 2, MPI_INT, MPI_COMM_WORLD, &requests[1]));
        if (at == 0) {
            OK(wait_for(&requests[1], &status));
            OK(synchronize());
            MPI_Error_class(status.MPI_ERROR, &code);
        } else
            MPI_Error_class(MPIX_Wait(&requests[1], &status), &code);
        CHECK(code == MPI_ERR_TRUNCATE);
        MPI_Error_class(MPIX_Wait(&requests[0], &status), &code);
        CHECK(code == MPI_ERR_TRUNCATE);
        CHECK(failed(send_to(rank, 1 + at, out, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]), MPI_ERR_TRUNCATE,
                     "an earlier message"));
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

int main(void)
{
    begin_mpix();
    many_rounds();
    outstanding();
    two_streams();
    own_communicators();
    refused();
    end_mpix("linked ok");
    return 0;
}
