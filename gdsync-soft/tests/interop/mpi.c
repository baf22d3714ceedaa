/* Ranks of MPI that check every value: messages between all pairs, collectives, and one-sided accesses. Rank 0 finally
 * reports the bytes that the software card has sent for all of them. */
#include <inttypes.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The card's counter, in words of four octets, for all processes. */
#define COUNTER "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"

#define CHECK(condition)                                                                                                     \
    do {                                                                                                                     \
        if (!(condition)) {                                                                                                  \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);                                           \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                                    \
        }                                                                                                                    \
    } while (0)

static int rank, ranks;
/* Bytes that ranks have sent to others in messages of this program. */
static uint64_t sent;

static void *allocate(size_t size)
{
    void *memory = calloc(1, size ? size : 1);

    CHECK(memory);
    return memory;
}

static uint64_t sent_by_card(void)
{
    FILE *file = fopen(COUNTER, "r");
    uint64_t words;

    CHECK(file && fscanf(file, "%" SCNu64, &words) == 1);
    fclose(file);
    return words * 4;
}

/* Byte `at` of the message of a size from one rank to another. */
static uint8_t byte_of(int from, int to, size_t size, size_t at)
{
    return (uint8_t)(at * 7 + at / 251 + size + from * 31 + to * 13 + 1);
}

/* Each rank sends to each rank, itself included, at the same time. */
static void messages(size_t size)
{
    uint8_t *outgoing = allocate(size * ranks), *incoming = allocate(size * ranks);
    MPI_Request *requests = allocate(2 * ranks * sizeof *requests);
    MPI_Status *statuses = allocate(2 * ranks * sizeof *statuses);
    int peer, count;
    size_t at;

    for (peer = 0; peer < ranks; peer++) {
        for (at = 0; at < size; at++)
            outgoing[peer * size + at] = byte_of(rank, peer, size, at);
        MPI_Irecv(incoming + peer * size, (int)size, MPI_BYTE, peer, (int)(size % 1000), MPI_COMM_WORLD, &requests[peer]);
    }
    for (peer = 0; peer < ranks; peer++)
        MPI_Isend(outgoing + peer * size, (int)size, MPI_BYTE, peer, (int)(size % 1000), MPI_COMM_WORLD, &requests[ranks + peer]);
    MPI_Waitall(2 * ranks, requests, statuses);
    for (peer = 0; peer < ranks; peer++) {
        MPI_Get_count(&statuses[peer], MPI_BYTE, &count);
        CHECK(count == (int)size && statuses[peer].MPI_SOURCE == peer);
        for (at = 0; at < size; at++)
            CHECK(incoming[peer * size + at] == byte_of(peer, rank, size, at));
    }
    sent += size * (ranks - 1);
    free(outgoing);
    free(incoming);
    free(requests);
    free(statuses);
}

/* Sums over all ranks, and all-to-all exchange. */
static void collectives(int count)
{
    int64_t *terms = allocate(count * sizeof *terms), *sums = allocate(count * sizeof *sums);
    int32_t *outgoing = allocate((size_t)count * ranks * sizeof *outgoing), *incoming = allocate((size_t)count * ranks * sizeof *incoming);
    int i, peer;

    for (i = 0; i < count; i++)
        terms[i] = (int64_t)i * (rank + 1) - rank;
    for (i = 0; i < count * ranks; i++)
        outgoing[i] = rank * 1000003 + i;
    MPI_Allreduce(terms, sums, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Alltoall(outgoing, count, MPI_INT32_T, incoming, count, MPI_INT32_T, MPI_COMM_WORLD);
    for (i = 0; i < count; i++)
        CHECK(sums[i] == (int64_t)i * ranks * (ranks + 1) / 2 - ranks * (ranks - 1) / 2);
    for (peer = 0; peer < ranks; peer++)
        for (i = 0; i < count; i++)
            CHECK(incoming[peer * count + i] == peer * 1000003 + rank * count + i);
    free(terms);
    free(sums);
    free(outgoing);
    free(incoming);
}

/* Puts to the right, gets from the left, and a counter of rank 0 that all add to. */
static void one_sided(size_t size)
{
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, i;
    uint8_t *memory, *mine = allocate(size), *theirs = allocate(size);
    int64_t *counter, one = 1, before, last = -1, expected = 0, mark = rank + 100;
    MPI_Win window, counters;
    size_t at;

    MPI_Win_allocate((MPI_Aint)(2 * size), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    for (at = 0; at < size; at++) {
        mine[at] = byte_of(rank, right, size, at);
        /* The peer reads this half with MPI_Get. */
        memory[size + at] = byte_of(rank, rank, size, at);
    }
    MPI_Win_fence(0, window);
    MPI_Put(mine, (int)size, MPI_BYTE, right, 0, (int)size, MPI_BYTE, window);
    MPI_Get(theirs, (int)size, MPI_BYTE, left, (MPI_Aint)size, (int)size, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    for (at = 0; at < size; at++) {
        CHECK(memory[at] == byte_of(left, rank, size, at));
        CHECK(theirs[at] == byte_of(left, left, size, at));
    }
    sent += 2 * size;
    MPI_Win_free(&window);

    MPI_Win_allocate(2 * sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &counters);
    counter[0] = counter[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, counters);
    for (i = 0; i < 20; i++) {
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, counters);
        MPI_Win_flush(0, counters);
        CHECK(before > last && before < 20 * ranks);
        last = before;
    }
    MPI_Compare_and_swap(&mark, &expected, &before, MPI_INT64_T, 0, 1, counters);
    MPI_Win_flush(0, counters);
    CHECK(before == 0 || before >= 100);
    MPI_Win_unlock_all(counters);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, counters);
    CHECK(rank != 0 || (counter[0] == 20 * ranks && counter[1] >= 100 && counter[1] < 100 + ranks));
    MPI_Win_unlock(rank, counters);
    MPI_Win_free(&counters);
    free(mine);
    free(theirs);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {0, 1, 8, 33, 1000, 8192, 20000, 100000, 3 << 20};
    uint64_t before, all = 0;
    size_t i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    before = sent_by_card();
    MPI_Barrier(MPI_COMM_WORLD);
    for (i = 0; i < sizeof sizes / sizeof *sizes; i++)
        messages(sizes[i]);
    for (i = 0; i < 3; i++)
        messages(500);
    collectives(1);
    collectives(50000);
    one_sided(8);
    one_sided(1 << 20);
    MPI_Reduce(&sent, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        before = sent_by_card() - before;
        CHECK(before >= all);
        printf("%d ranks: every value as expected, %" PRIu64 " bytes by the card\n", ranks, before);
    }
    MPI_Finalize();
    return 0;
}
