/* Barriers and all-reduces in the order of streams. */
#include "queue.h"

#include <math.h>
#include <stdint.h>

#define ROUNDS 20

static void reduce(MPIS_Queue queue, MPI_Comm comm, int count)
{
    int me, ranks, at, round;
    double *in = calloc(count + 1, sizeof *in), *out = calloc(count + 1, sizeof *out);
    long *bits = calloc(count + 1, sizeof *bits);
    MPIS_Request requests[2];

    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &ranks);
    OK(MPIS_Allreduce_init(in, out, count, MPI_DOUBLE, MPI_SUM, comm, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Allreduce_init(MPI_IN_PLACE, bits, count, MPI_LONG, MPI_BOR, comm, MPI_INFO_NULL, &requests[1]));
    OK(MPIS_Matchall(2, requests, MPI_STATUSES_IGNORE));
    for (round = 0; round < ROUNDS; round++) {
        for (at = 0; at < count; at++) {
            in[at] = 100 * me + at + round;
            bits[at] = 1L << (me + at % 8);
        }
        OK(MPIS_Enqueue_startall(queue, 2, requests));
        OK(MPIS_Enqueue_waitall(queue));
        OK(MPIS_Queue_wait(queue));
        for (at = 0; at < count; at++) {
            CHECK(out[at] == 100.0 * (ranks * (ranks - 1) / 2) + ranks * (at + round));
            CHECK(bits[at] == ((1L << ranks) - 1) << at % 8);
            CHECK(in[at] == 100 * me + at + round);
        }
    }
    OK(MPIS_Request_freeall(2, requests));
    free(in);
    free(out);
    free(bits);
}

/* Every kind of number and every operation, compared with MPI. */
static void kinds(MPIS_Queue queue)
{
    const MPI_Datatype types[] = {MPI_INT8_T,   MPI_UINT8_T, MPI_INT16_T,  MPI_UINT16_T, MPI_INT32_T,
                                  MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T, MPI_FLOAT,    MPI_DOUBLE};
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    int type, op, at;

    for (type = 0; type < 10; type++)
        for (op = 0; op < (type < 8 ? 10 : 4); op++) {
            unsigned char in[8 * 5], out[8 * 5] = {0}, expected[8 * 5] = {0};
            MPIS_Request request;
            for (at = 0; at < (int)sizeof in; at++)
                in[at] = (unsigned char)(at * 29 + rank * 57 + 3);
            if (type == 8)
                for (at = 0; at < 5; at++)
                    ((float *)(void *)in)[at] = (float)(rank * 3 - at);
            if (type == 9)
                for (at = 0; at < 5; at++)
                    ((double *)(void *)in)[at] = rank * 3 - at;
            OK(MPIS_Allreduce_init(in, out, 5, types[type], ops[op], MPI_COMM_WORLD, MPI_INFO_NULL, &request));
            OK(MPIS_Match(&request, MPI_STATUS_IGNORE));
            OK(MPIS_Enqueue_start(queue, &request));
            OK(MPIS_Wait(&request, MPI_STATUS_IGNORE));
            OK(MPIS_Request_free(&request));
            MPI_Allreduce(in, expected, 5, types[type], ops[op], MPI_COMM_WORLD);
            if (memcmp(out, expected, sizeof out) != 0)
                fprintf(stderr, "type %d, operation %d\n", type, op);
            CHECK(memcmp(out, expected, sizeof out) == 0);
        }
}

/* All ranks get the same bytes, even where the order of ranks could change them: zeros of both signs, infinities, and NaNs with a payload
 * of each rank. */
static void specials(MPIS_Queue queue, MPI_Comm comm, int count)
{
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX};
    double *in = calloc(count, sizeof *in), *out = calloc(count, sizeof *out), *first = calloc(count, sizeof *first);
    float *in_short = calloc(count, sizeof *in_short), *out_short = calloc(count, sizeof *out_short);
    int me, ranks, op, at;

    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &ranks);
    const double all[] = {0.0, -0.0, nan(""), 1.0, -INFINITY, INFINITY, 1e-310, -nan("")};
    for (at = 0; at < count; at++) {
        /* Each element has another mixture; the first has only zeros, and the second only NaNs. */
        unsigned mixed = ((unsigned)at * 2654435761u + (unsigned)me * 2246822519u) >> 15;
        in[at] = all[at == 0 ? me % 2 : at == 1 ? 2 + me % 2 * 5 : (int)(mixed % (at % 2 ? 8 : 2))];
        in_short[at] = (float)in[at];
        if (in[at] != in[at]) {
            ((uint64_t *)(void *)in)[at] |= (uint64_t)me + 1;
            ((uint32_t *)(void *)in_short)[at] |= (uint32_t)me + 1;
        }
    }
    for (op = 0; op < 4; op++) {
        MPIS_Request requests[2];

        OK(MPIS_Allreduce_init(in, out, count, MPI_DOUBLE, ops[op], comm, MPI_INFO_NULL, &requests[0]));
        OK(MPIS_Allreduce_init(in_short, out_short, count, MPI_FLOAT, ops[op], comm, MPI_INFO_NULL, &requests[1]));
        OK(MPIS_Matchall(2, requests, MPI_STATUSES_IGNORE));
        OK(MPIS_Enqueue_startall(queue, 2, requests));
        OK(MPIS_Enqueue_waitall(queue));
        OK(MPIS_Queue_wait(queue));
        OK(MPIS_Request_freeall(2, requests));
        memcpy(first, out, count * sizeof *out);
        MPI_Bcast(first, count, MPI_DOUBLE, 0, comm);
        CHECK(memcmp(first, out, count * sizeof *out) == 0);
        memcpy(first, out_short, count * sizeof *out_short);
        MPI_Bcast(first, count, MPI_FLOAT, 0, comm);
        CHECK(memcmp(first, out_short, count * sizeof *out_short) == 0);
        if (ranks > 1 && op == 2)
            CHECK(out[0] == 0 && signbit(out[0]) && signbit(out_short[0]));
        if (ranks > 1 && op == 3)
            CHECK(out[0] == 0 && !signbit(out[0]) && !signbit(out_short[0]));
        CHECK(isnan(out[1]) && isnan(out_short[1]));
    }
    free(in);
    free(out);
    free(first);
    free(in_short);
    free(out_short);
}

/* A late rank delays the others. */
static int arrived, seen[ROUNDS];

static void arrive(void *argument)
{
    (void)argument;
    arrived++;
}

static void barriers(MPIS_Queue queue)
{
    MPI_Win window;
    int *shared, *place, round, at, all;
    MPI_Aint bytes;
    int unit;
    MPIS_Request request;

    MPI_Win_allocate_shared(sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &place, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &shared);
    OK(MPIS_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPIS_Match(&request, MPI_STATUS_IGNORE));
    for (round = 1; round <= ROUNDS; round++) {
        __atomic_store_n(place, round, __ATOMIC_SEQ_CST);
        if (!on_gpu)
            OK(gdsync_mpis_launch(queue, arrive, NULL));
        OK(MPIS_Enqueue_start(queue, &request));
        OK(MPIS_Enqueue_waitall(queue));
        OK(MPIS_Queue_wait(queue));
        for (at = 0, all = 0; at < size; at++) {
            MPI_Win_shared_query(window, at, &bytes, &unit, &shared);
            all += __atomic_load_n(shared, __ATOMIC_SEQ_CST) >= round;
        }
        seen[round - 1] = all;
    }
    for (round = 0; round < ROUNDS; round++)
        CHECK(seen[round] == size);
    CHECK(on_gpu || arrived == ROUNDS);
    OK(MPIS_Request_free(&request));
    MPI_Win_free(&window);
}

/* A started collective may wait for what another rank starts after its own: none of this may deadlock. */
static void orders(MPIS_Queue queue)
{
    MPI_Comm twin;
    MPIS_Request one, other, transfer;
    int value = rank, peer = (rank ^ 1) < size ? rank ^ 1 : MPI_PROC_NULL, round;

    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    OK(MPIS_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &one));
    OK(MPIS_Barrier_init(twin, MPI_INFO_NULL, &other));
    if (rank % 2 == 0)
        OK(MPIS_Send_init(&value, 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &transfer));
    else
        OK(MPIS_Recv_init(&value, 1, MPI_INT, peer, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &transfer));
    OK(MPIS_Matchall(3, (MPIS_Request[]){one, other, transfer}, MPI_STATUSES_IGNORE));
    for (round = 0; round < ROUNDS; round++) {
        if (rank % 2 == 0) {
            OK(MPIS_Enqueue_start(queue, &one));
            OK(MPIS_Enqueue_start(queue, &other));
            OK(MPIS_Enqueue_start(queue, &transfer));
            OK(MPIS_Enqueue_waitall(queue));
        } else {
            OK(MPIS_Enqueue_start(queue, &transfer));
            OK(MPIS_Enqueue_waitall(queue));
            OK(MPIS_Enqueue_start(queue, rank == 1 ? &other : &one));
            if (rank == 3)
                OK(MPIS_Enqueue_waitall(queue));
            OK(MPIS_Enqueue_start(queue, rank == 1 ? &one : &other));
            OK(MPIS_Enqueue_waitall(queue));
        }
    }
    OK(MPIS_Queue_wait(queue));
    CHECK(value == (rank & ~1));
    OK(MPIS_Request_free(&one));
    OK(MPIS_Request_free(&other));
    OK(MPIS_Request_free(&transfer));
    MPI_Comm_free(&twin);
}

int main(void)
{
    /* Up to 4096 numbers of 8 bytes are reduced by doubling, more by a ring. */
    const int counts[] = {0, 1, 2, 3, 1000, 4096, 4097, 20011};
    MPI_Comm some;
    MPIS_Queue queue;
    int at, most;

    begin();
    queue_init(&queue);
    for (at = 0; at < (int)(sizeof counts / sizeof *counts); at++)
        reduce(queue, MPI_COMM_WORLD, counts[at]);
    for (most = 1; most < size; most++) {
        MPI_Comm_split(MPI_COMM_WORLD, rank < most, rank, &some);
        reduce(queue, some, 10);
        reduce(queue, some, 5000);
        specials(queue, some, 63);
        MPI_Comm_free(&some);
    }
    specials(queue, MPI_COMM_WORLD, 63);
    specials(queue, MPI_COMM_WORLD, 10007);
    kinds(queue);
    barriers(queue);
    orders(queue);
    OK(MPIS_Queue_free(&queue));
    end("collectives ok");
    return 0;
}
