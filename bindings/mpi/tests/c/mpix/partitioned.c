/* Partitioned transfers: rounds in a ring, partitions in any order and from several threads, matching by communicator, peer and tag,
 * starts before the match, empty partitions, partitions of several work requests, and flags of kernels. */
#include "common_mpix.h"

#include <pthread.h>

#define PARTITIONS 10
#define ROUNDS 30
#define LONG 5000

static int next, before;

static int psend(const void *buffer, int partitions, int count, int peer, int tag, MPI_Comm comm, MPIX_Request *request)
{
    return MPIX_Psend_init(buffer, partitions, count, MPI_INT, peer, tag, comm, MPI_INFO_NULL, request);
}

static int precv(void *buffer, int partitions, int count, int peer, int tag, MPI_Comm comm, MPIX_Request *request)
{
    return MPIX_Precv_init(buffer, partitions, count, MPI_INT, peer, tag, comm, MPI_INFO_NULL, request);
}

static void ring(void)
{
    int out[PARTITIONS], in[PARTITIONS], at, round, arrived, count;
    MPIX_Request both[2];
    MPI_Status statuses[2];

    OK(psend(out, PARTITIONS, 1, next, 0, MPI_COMM_WORLD, &both[0]));
    OK(precv(in, PARTITIONS, 1, before, 0, MPI_COMM_WORLD, &both[1]));
    for (round = 0; round < ROUNDS; round++) {
        memset(in, 0xee, sizeof in);
        OK(MPIX_Startall(2, both));
        for (at = 0; at < PARTITIONS; at++) {
            int index = (at * 7 + round) % PARTITIONS;
            out[index] = rank * 1000 + round * 10 + index;
            OK(MPIX_Pready(index, &both[0]));
        }
        for (at = PARTITIONS - 1; at >= 0; at--) {
            do {
                OK(MPIX_Parrived(&both[1], at, &arrived));
            } while (!arrived);
            CHECK(in[at] == before * 1000 + round * 10 + at);
        }
        OK(MPIX_Waitall(2, both, statuses));
        MPI_Get_count(&statuses[1], MPI_INT, &count);
        CHECK(count == PARTITIONS && statuses[1].MPI_SOURCE == before && statuses[1].MPI_TAG == 0);
    }
    /* Both are inactive: a wait returns at once. */
    OK(MPIX_Waitall(2, both, statuses));
    CHECK(statuses[1].MPI_SOURCE == MPI_ANY_SOURCE);
    OK(MPIX_Request_free(&both[0]));
    OK(MPIX_Request_free(&both[1]));
    CHECK(both[0] == MPIX_REQUEST_NULL);
}

/* The other side makes its request only after it has received a message that is sent after the start. */
static void late(void)
{
    int out[2] = {rank, rank + 100}, in[2] = {-1, -1}, token = 0, peer = rank ^ 1;
    MPIX_Request request;

    if (peer >= size)
        return;
    if (rank % 2 == 0) {
        OK(psend(out, 2, 1, peer, 5, MPI_COMM_WORLD, &request));
        OK(MPIX_Start(&request));
        OK(MPIX_Pready(1, &request));
        MPI_Send(&token, 1, MPI_INT, peer, 77, MPI_COMM_WORLD);
        OK(MPIX_Pready(0, &request));
        /* The program calls only MPI: the thread matches the sides. */
        MPI_Recv(&token, 1, MPI_INT, peer, 78, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&token, 1, MPI_INT, peer, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        OK(precv(in, 2, 1, peer, 5, MPI_COMM_WORLD, &request));
        OK(MPIX_Start(&request));
        OK(MPIX_Wait(&request, MPI_STATUS_IGNORE));
        CHECK(in[0] == peer && in[1] == peer + 100);
        MPI_Send(&token, 1, MPI_INT, peer, 78, MPI_COMM_WORLD);
    }
    OK(MPIX_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPIX_Request_free(&request));
}

/* Requests of one peer and tag match in their order, independently of other tags and communicators. */
static void matching(void)
{
    int out[4], in[4] = {-1, -1, -1, -1}, at;
    MPIX_Request requests[8];
    MPI_Comm other;

    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    for (at = 0; at < 4; at++) {
        MPI_Comm comm = at == 3 ? other : at == 2 ? MPI_COMM_SELF : MPI_COMM_WORLD;
        out[at] = rank * 10 + at;
        OK(psend(&out[at], 1, 1, at == 2 ? 0 : next, 1, comm, &requests[at]));
    }
    for (at = 3; at >= 0; at--) {
        /* The second request of the same tag matches second. */
        int place = at < 2 ? 1 - at : at;
        MPI_Comm comm = at == 3 ? other : at == 2 ? MPI_COMM_SELF : MPI_COMM_WORLD;
        OK(precv(&in[place], 1, 1, at == 2 ? 0 : before, 1, comm, &requests[4 + place]));
    }
    OK(MPIX_Startall(8, requests));
    for (at = 0; at < 4; at++)
        OK(MPIX_Pready(0, &requests[at]));
    OK(MPIX_Waitall(8, requests, MPI_STATUSES_IGNORE));
    for (at = 0; at < 4; at++)
        CHECK(in[at] == (at == 2 ? rank : before) * 10 + at);
    for (at = 0; at < 8; at++)
        OK(MPIX_Request_free(&requests[at]));
    MPI_Comm_free(&other);
}

/* Sends the value of one partition, or receives it. */
static void transfer(int sends, int *value, MPIX_Request *request)
{
    OK(MPIX_Start(request));
    if (sends)
        OK(MPIX_Pready(0, request));
    OK(MPIX_Wait(request, MPI_STATUS_IGNORE));
    CHECK(sends || *value == 7);
}

/* A request that is freed before its first start has no part in the matches: in a pair of ranks, one of the two sides makes and frees
 * one, before or after the other side has started. */
static void freed(int frees, int before_start)
{
    int out[2] = {6, 7}, in[2] = {-1, -1}, token = 0, peer = rank ^ 1, sends = rank % 2 == 0, *value = sends ? &out[1] : &in[1];
    MPIX_Request unused, request;

    if (peer >= size)
        return;
    if (sends == frees) {
        OK((sends ? psend(out, 1, 1, peer, 8, MPI_COMM_WORLD, &unused) : precv(in, 1, 1, peer, 8, MPI_COMM_WORLD, &unused)));
        if (!before_start)
            MPI_Recv(&token, 1, MPI_INT, peer, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        OK(MPIX_Request_free(&unused));
    }
    OK((sends ? psend(value, 1, 1, peer, 8, MPI_COMM_WORLD, &request) : precv(value, 1, 1, peer, 8, MPI_COMM_WORLD, &request)));
    if (sends != frees && !before_start) {
        OK(MPIX_Start(&request));
        MPI_Send(&token, 1, MPI_INT, peer, 77, MPI_COMM_WORLD);
        if (sends)
            OK(MPIX_Pready(0, &request));
        OK(MPIX_Wait(&request, MPI_STATUS_IGNORE));
    }
    /* A first round, or a second one. */
    transfer(sends, value, &request);
    if (sends == frees && !before_start)
        transfer(sends, value, &request);
    OK(MPIX_Request_free(&request));
    CHECK(in[0] == -1);
}

/* Of five requests, each side frees the second and the fourth before their first start, never starts the first, and starts the others in
 * any order, after it has freed the communicator. */
static void unstarted(void)
{
    int out[5] = {0, 1, 2, 3, 7}, in[5] = {-1, -1, -1, -1, -1}, at;
    MPIX_Request sends[5], receives[5];
    MPI_Comm other;

    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    for (at = 0; at < 4; at++) {
        OK(psend(&out[at], 1, 1, next, 1, other, &sends[at]));
        OK(precv(&in[at], 1, 1, before, 1, other, &receives[at]));
    }
    OK(MPIX_Request_free(&sends[1]));
    OK(MPIX_Request_free(&receives[3]));
    OK(psend(&out[4], 1, 1, next, 1, other, &sends[4]));
    OK(precv(&in[4], 1, 1, before, 1, other, &receives[4]));
    OK(MPIX_Request_free(&receives[1]));
    OK(MPIX_Request_free(&sends[3]));
    MPI_Comm_free(&other);
    OK(MPIX_Start(&receives[2]));
    OK(MPIX_Start(&sends[4]));
    OK(MPIX_Pready(0, &sends[4]));
    OK(MPIX_Start(&sends[2]));
    OK(MPIX_Pready(0, &sends[2]));
    OK(MPIX_Start(&receives[4]));
    OK(MPIX_Wait(&receives[4], MPI_STATUS_IGNORE));
    OK(MPIX_Wait(&receives[2], MPI_STATUS_IGNORE));
    OK(MPIX_Wait(&sends[2], MPI_STATUS_IGNORE));
    OK(MPIX_Wait(&sends[4], MPI_STATUS_IGNORE));
    CHECK(in[0] == -1 && in[1] == -1 && in[2] == 2 && in[3] == -1 && in[4] == 7);
    for (at = 0; at < 5; at += 2) {
        OK(MPIX_Request_free(&sends[at]));
        OK(MPIX_Request_free(&receives[at]));
    }
}

static MPIX_Request shared;

static void *mark(void *first)
{
    int at;

    for (at = *(int *)first; at < PARTITIONS; at += 2)
        OK(MPIX_Pready(at, &shared));
    return NULL;
}

/* The test has set the length of a work request to a fraction of a partition. */
static void long_partitions(void)
{
    int *out = malloc(PARTITIONS * LONG * sizeof *out), *in = malloc(PARTITIONS * LONG * sizeof *in);
    int at, round, firsts[2] = {0, 1};
    MPIX_Request receive;
    pthread_t other;

    OK(psend(out, PARTITIONS, LONG, next, 1, MPI_COMM_WORLD, &shared));
    OK(precv(in, PARTITIONS, LONG, before, 1, MPI_COMM_WORLD, &receive));
    for (round = 0; round < 3; round++) {
        for (at = 0; at < PARTITIONS * LONG; at++) {
            out[at] = rank + at * 3 + round;
            in[at] = -1;
        }
        OK(MPIX_Start(&shared));
        OK(MPIX_Start(&receive));
        CHECK(pthread_create(&other, NULL, mark, &firsts[1]) == 0);
        mark(&firsts[0]);
        pthread_join(other, NULL);
        OK(MPIX_Wait(&receive, MPI_STATUS_IGNORE));
        OK(MPIX_Wait(&shared, MPI_STATUS_IGNORE));
        for (at = 0; at < PARTITIONS * LONG; at++)
            CHECK(in[at] == before + at * 3 + round);
    }
    OK(MPIX_Request_free(&shared));
    OK(MPIX_Request_free(&receive));
    free(out);
    free(in);
}

static void nothing(void)
{
    int arrived = 0, token = 1;
    MPIX_Request requests[3], none = MPIX_REQUEST_NULL;
    MPI_Status statuses[3];

    /* Empty partitions, and no peer. */
    OK(psend(NULL, 3, 0, next, 2, MPI_COMM_WORLD, &requests[0]));
    OK(precv(NULL, 3, 0, before, 2, MPI_COMM_WORLD, &requests[1]));
    OK(precv(&token, 1, 1, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &requests[2]));
    /* Inactive requests and null requests are complete. */
    OK(MPIX_Parrived(&requests[1], 0, &arrived));
    CHECK(arrived);
    arrived = 0;
    OK(MPIX_Parrived(&none, 0, &arrived));
    CHECK(arrived);
    OK(MPIX_Startall(3, requests));
    arrived = 0;
    OK(MPIX_Parrived(&requests[2], 0, &arrived));
    CHECK(arrived);
    OK(MPIX_Pready(2, &requests[0]));
    OK(MPIX_Pready(0, &requests[0]));
    OK(MPIX_Pready(1, &requests[0]));
    OK(MPIX_Waitall(3, requests, statuses));
    CHECK(statuses[1].MPI_SOURCE == before && statuses[2].MPI_SOURCE == MPI_PROC_NULL && token == 1);
    OK(MPIX_Request_free(&requests[0]));
    OK(MPIX_Request_free(&requests[1]));
    OK(MPIX_Request_free(&requests[2]));
}

/* As MPIX_Pready and MPIX_Parrived in kernels. */
static void mark_all(void *given)
{
    struct gdsync_mpix_marks *marks = given;
    unsigned at;

    for (at = 0; at < marks->partitions; at++)
        __atomic_store_n(&marks->marks[marks->partitions - 1 - at], marks->round, __ATOMIC_RELEASE);
}

static void wait_until_arrived(void *given)
{
    struct gdsync_mpix_marks *marks = given;
    unsigned at;

    for (at = 0; at < marks->partitions; at++)
        while (__atomic_load_n(&marks->marks[at], __ATOMIC_ACQUIRE) != marks->round)
            ;
}

/* A stream's functions flag partitions, and see them arrive. */
static void kernels(void)
{
    int out[PARTITIONS], in[PARTITIONS], at, round;
    MPIX_Request both[2], no_peer;
    MPIX_Prequest marks[3];

    OK(psend(out, PARTITIONS, 1, next, 6, MPI_COMM_WORLD, &both[0]));
    OK(precv(in, PARTITIONS, 1, before, 6, MPI_COMM_WORLD, &both[1]));
    OK(psend(out, 1, 1, MPI_PROC_NULL, 6, MPI_COMM_WORLD, &no_peer));
    OK(MPIX_Prequest_create(both[0], &marks[0]));
    OK(MPIX_Prequest_create(both[1], &marks[1]));
    OK(MPIX_Prequest_create(no_peer, &marks[2]));
    CHECK(marks[2] == MPIX_PREQUEST_NULL);
    for (round = 0; round < ROUNDS; round++) {
        for (at = 0; at < PARTITIONS; at++) {
            out[at] = rank * 1000 + round * 10 + at;
            in[at] = -1;
        }
        OK(MPIX_Startall(2, both));
        OK(gdsync_mpix_launch(SOFTWARE, &stream, mark_all, marks[0]));
        OK(gdsync_mpix_launch(SOFTWARE, &stream, wait_until_arrived, marks[1]));
        OK(synchronize());
        for (at = 0; at < PARTITIONS; at++)
            CHECK(in[at] == before * 1000 + round * 10 + at);
        OK(MPIX_Waitall(2, both, MPI_STATUSES_IGNORE));
    }
    OK(MPIX_Prequest_free(&marks[0]));
    OK(MPIX_Prequest_free(&marks[1]));
    CHECK(marks[0] == MPIX_PREQUEST_NULL);
    OK(MPIX_Request_free(&both[0]));
    OK(MPIX_Request_free(&both[1]));
    OK(MPIX_Request_free(&no_peer));
}

int main(void)
{
    int round;

    begin_mpix();
    next = (rank + 1) % size;
    before = (rank + size - 1) % size;
    ring();
    late();
    matching();
    for (round = 0; round < 4; round++)
        freed(round % 2, round / 2);
    unstarted();
    long_partitions();
    nothing();
    kernels();
    end_mpix("partitioned ok");
    return 0;
}
