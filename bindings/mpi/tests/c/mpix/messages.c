/* Messages of MPI: wildcards, order, plain sends and receives at the other side, datatypes, communicators, and errors. */
#include "common_mpix.h"

#include <pthread.h>
#include <time.h>

#define MANY 1000

static MPIX_Request requests[2 * MANY];
static MPI_Status statuses[2 * MANY];

/* Messages of one peer and tag in the order of the stream; with wildcards, from all ranks. */
static void order_and_wildcards(void)
{
    int at, out[MANY], in[MANY], next = (rank + 1) % size, from[64] = {0};

    for (at = 0; at < MANY; at++) {
        out[at] = rank * MANY + at;
        OK(send_to(next, 3, &out[at], 1, MPI_INT, MPI_COMM_WORLD, &requests[at]));
        OK(receive_from((rank + size - 1) % size, 3, &in[at], 1, MPI_INT, MPI_COMM_WORLD, &requests[MANY + at]));
    }
    OK(MPIX_Waitall_enqueue(2 * MANY, requests, statuses, SOFTWARE, &stream));
    OK(synchronize());
    for (at = 0; at < MANY; at++)
        CHECK(in[at] == (rank + size - 1) % size * MANY + at && statuses[MANY + at].MPI_TAG == 3);

    for (at = 0; at < size; at++) {
        OK(send_to(at, rank, &rank, 1, MPI_INT, MPI_COMM_WORLD, &requests[at]));
        OK(receive_from(MPI_ANY_SOURCE, MPI_ANY_TAG, &in[at], 1, MPI_INT, MPI_COMM_WORLD, &requests[size + at]));
    }
    OK(MPIX_Waitall(2 * size, requests, statuses));
    for (at = 0; at < size; at++) {
        CHECK(statuses[size + at].MPI_SOURCE == in[at] && statuses[size + at].MPI_TAG == in[at]);
        from[in[at]]++;
    }
    for (at = 0; at < size; at++)
        CHECK(from[at] == 1);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The other side needs neither a stream nor this library. */
static void plain_sides(void)
{
    int peer = rank ^ 1, out = rank + 40, in = -1;
    MPI_Status status;

    if (peer >= size)
        return;
    if (rank % 2 == 0) {
        OK(send_to(peer, 1, &out, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]));
        OK(receive_from(peer, 2, &in, 1, MPI_INT, MPI_COMM_WORLD, &requests[1]));
        OK(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE, SOFTWARE, &stream));
        OK(synchronize());
    } else {
        MPI_Recv(&in, 1, MPI_INT, peer, 1, MPI_COMM_WORLD, &status);
        MPI_Send(&out, 1, MPI_INT, peer, 2, MPI_COMM_WORLD);
    }
    CHECK(in == peer + 40);
}

static int gate;

static void wait_for_gate(void *argument)
{
    (void)argument;
    while (!__atomic_load_n(&gate, __ATOMIC_ACQUIRE))
        ;
}

static void *open_gate(void *argument)
{
    struct timespec nap = {0, 20000000};

    (void)argument;
    nanosleep(&nap, NULL);
    __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The program frees a datatype with gaps, and a communicator, before the stream triggers their operations. */
static void freed_early(void)
{
    int out[8], in[4] = {-1, -1, -1, -1}, at, next = (rank + 1) % size, before = (rank + size - 1) % size;
    MPI_Datatype evens;
    MPI_Comm comm;
    pthread_t opener;

    for (at = 0; at < 8; at++)
        out[at] = rank * 10 + at;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Type_vector(4, 1, 2, MPI_INT, &evens);
    MPI_Type_commit(&evens);
    gate = 0;
    OK(gdsync_mpix_launch(SOFTWARE, &stream, wait_for_gate, NULL));
    OK(send_to(next, 5, out, 1, evens, comm, &requests[0]));
    OK(receive_from(before, 5, in, 4, MPI_INT, comm, &requests[1]));
    OK(wait_for(&requests[0], MPI_STATUS_IGNORE));
    OK(wait_for(&requests[1], MPI_STATUS_IGNORE));
    MPI_Type_free(&evens);
    CHECK(in[0] == -1);
    CHECK(pthread_create(&opener, NULL, open_gate, NULL) == 0);
    MPI_Comm_free(&comm);
    pthread_join(opener, NULL);
    OK(synchronize());
    for (at = 0; at < 4; at++)
        CHECK(in[at] == before * 10 + 2 * at);
}

static void own_communicators(void)
{
    int out[3] = {rank, rank + 100, 0}, in[3] = {-1, -1, 5}, at;
    MPI_Comm comms[3] = {MPI_COMM_SELF, MPI_COMM_NULL, MPI_COMM_WORLD};

    /* The same peer and tag on each; the last message is empty. */
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[1]);
    for (at = 0; at < 3; at++) {
        int me;
        MPI_Comm_rank(comms[at], &me);
        OK(receive_from(me, 9, &in[at], at < 2, MPI_INT, comms[at], &requests[at]));
    }
    for (at = 2; at >= 0; at--) {
        int me;
        MPI_Comm_rank(comms[at], &me);
        OK(send_to(me, 9, &out[at], at < 2, MPI_INT, comms[at], &requests[3 + at]));
    }
    OK(MPIX_Waitall_enqueue(6, requests, statuses, SOFTWARE, &stream));
    OK(synchronize());
    CHECK(in[0] == rank && in[1] == rank + 100 && in[2] == 5);
    MPI_Get_count(&statuses[2], MPI_INT, &at);
    CHECK(at == 0);
    MPI_Comm_free(&comms[1]);
}

/* An intercommunicator of the even and the odd ranks: the peer is a rank of the other group. */
static void between_groups(void)
{
    int out = rank, in = -1, parity = rank % 2, mine, others;
    MPI_Comm group, both;

    MPI_Comm_split(MPI_COMM_WORLD, parity, rank, &group);
    MPI_Intercomm_create(group, 0, MPI_COMM_WORLD, 1 - parity, 3, &both);
    MPI_Comm_rank(group, &mine);
    MPI_Comm_remote_size(both, &others);
    CHECK(mine < others);
    OK(send_to(mine, 4, &out, 1, MPI_INT, both, &requests[0]));
    OK(receive_from(mine, 4, &in, 1, MPI_INT, both, &requests[1]));
    OK(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE, SOFTWARE, &stream));
    OK(synchronize());
    CHECK(in == (rank ^ 1));
    MPI_Comm_free(&both);
    MPI_Comm_free(&group);
}

/* A freed request completes; a truncated one fails, and the stream passes its wait. */
static void ends(void)
{
    int out[4] = {1, 2, 3, 4}, in[4] = {0}, code;
    MPI_Status status;

    OK(send_to(rank, 1, out, 4, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(MPIX_Request_free(&requests[0]));
    CHECK(requests[0] == MPIX_REQUEST_NULL);
    OK(receive_from(rank, 1, in, 4, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(MPIX_Wait(&requests[1], MPI_STATUS_IGNORE));
    CHECK(in[3] == 4);

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    OK(send_to(rank, 2, out, 4, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(receive_from(rank, 2, in, 2, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(wait_for(&requests[1], &status));
    OK(wait_for(&requests[0], MPI_STATUS_IGNORE));
    OK(synchronize());
    MPI_Error_class(status.MPI_ERROR, &code);
    CHECK(code == MPI_ERR_TRUNCATE);
    OK(send_to(rank, 2, out, 4, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(receive_from(rank, 2, in, 2, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(MPIX_Wait(&requests[0], MPI_STATUS_IGNORE));
    MPI_Error_class(MPIX_Wait(&requests[1], &status), &code);
    CHECK(code == MPI_ERR_TRUNCATE && requests[1] == MPIX_REQUEST_NULL);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* Messages that MPI does not send eagerly. */
static void long_messages(void)
{
    int len = 1 << 20, at, next = (rank + 1) % size, before = (rank + size - 1) % size;
    int *out = malloc(len * sizeof *out), *in = malloc(len * sizeof *in);

    for (at = 0; at < len; at++)
        out[at] = rank + at * 3;
    OK(send_to(next, 1, out, len, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(receive_from(before, 1, in, len, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE, SOFTWARE, &stream));
    OK(synchronize());
    for (at = 0; at < len; at++)
        CHECK(in[at] == before + at * 3);
    free(out);
    free(in);
}

int main(void)
{
    begin_mpix();
    order_and_wildcards();
    plain_sides();
    freed_early();
    own_communicators();
    between_groups();
    ends();
    long_messages();
    end_mpix("messages ok");
    return 0;
}
