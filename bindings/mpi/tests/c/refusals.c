/* Refusals: with a class of MPI, a text that says why, and a call of the communicator's error handler. */
#include "common.h"
#include "stream-triggering.h"

static int handled;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    handled++;
}

static int make(MPI_Count count, MPI_Datatype type, int peer, int tag, MPIS_Request *request)
{
    static char buffer[1 << 12];

    return MPIS_Send_init(buffer, count, type, peer, tag, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}

static void arguments(void)
{
    MPIS_Request request;
    MPI_Info info;
    char buffer[8];
    void *memory;

    CHECK(failed(make(1, MPI_INT, MPI_ANY_SOURCE, 0, &request), MPI_ERR_RANK, "MPI_ANY_SOURCE"));
    CHECK(failed(make(1, MPI_INT, size, 0, &request), MPI_ERR_RANK, "ranks 0 to"));
    CHECK(failed(make(1, MPI_INT, 0, MPI_ANY_TAG, &request), MPI_ERR_TAG, "MPI_ANY_TAG"));
    CHECK(failed(make(1, MPI_INT, 0, -5, &request), MPI_ERR_TAG, "-5"));
    CHECK(failed(make(-1, MPI_INT, 0, 0, &request), MPI_ERR_COUNT, "-1"));
    CHECK(failed(make(1, MPI_DATATYPE_NULL, 0, 0, &request), MPI_ERR_TYPE, "MPI_DATATYPE_NULL"));
    CHECK(failed(make(1, MPI_INT, 0, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIS_Send_init(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request), MPI_ERR_BUFFER, "null"));
    CHECK(failed(MPIS_Send_init(buffer, 1, MPI_INT, 0, 0, MPI_COMM_NULL, MPI_INFO_NULL, &request), MPI_ERR_COMM, "NULL"));
    CHECK(failed(MPIS_Allreduce_init(buffer, buffer, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request),
                 MPI_ERR_BUFFER, "MPI_IN_PLACE"));
    CHECK(failed(MPIS_Allreduce_init(buffer, buffer + 4, 1, MPI_FLOAT, MPI_BXOR, MPI_COMM_WORLD, MPI_INFO_NULL, &request),
                 MPI_ERR_ARG, "bit_xor of f32"));
    CHECK(failed(MPIS_Allreduce_init(buffer, buffer + 4, 1, MPI_FLOAT_INT, MPI_MAXLOC, MPI_COMM_WORLD, MPI_INFO_NULL,
                                     &request), MPI_ERR_TYPE, "MPI_DOUBLE"));
    CHECK(failed(MPIS_Allreduce_init(buffer, buffer + 4, 1, MPI_INT, MPI_REPLACE, MPI_COMM_WORLD, MPI_INFO_NULL, &request),
                 MPI_ERR_OP, "MPI_SUM"));
    CHECK(failed(MPIS_Allreduce_init(buffer, buffer + 4, -2, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request),
                 MPI_ERR_COUNT, "-2"));
    MPI_Info_create(&info);
    OK(MPIS_Alloc_mem(100, info, &memory));
    ((char *)memory)[99] = 1;
    OK(MPIS_Free_mem(memory));
    CHECK(failed(MPIS_Free_mem(memory), MPI_ERR_BUFFER, "MPIS_Alloc_mem"));
    MPI_Info_set(info, "mpi_memory_alloc_kinds", "rocm:device");
    CHECK(failed(MPIS_Alloc_mem(100, info, &memory), MPI_ERR_INFO_VALUE, "cuda:device"));
    MPI_Info_free(&info);
}

static void types(void)
{
    MPI_Datatype vector, gap, twice, swapped;
    MPIS_Request request;

    MPI_Type_vector(4, 1, 2, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    CHECK(failed(make(1, vector, 0, 0, &request), MPI_ERR_TYPE, "contiguous"));
    MPI_Type_create_resized(MPI_INT, 0, 12, &gap);
    MPI_Type_commit(&gap);
    OK(make(1, gap, 0, 0, &request));
    OK(MPIS_Request_free(&request));
    CHECK(failed(make(2, gap, 0, 0, &request), MPI_ERR_TYPE, "extent of 12"));
    /* Two halves in reverse order. */
    MPI_Type_create_indexed_block(2, 1, (int[]){1, 0}, MPI_INT, &swapped);
    MPI_Type_commit(&swapped);
    CHECK(failed(make(1, swapped, 0, 0, &request), MPI_ERR_TYPE, "order"));
    /* Contiguous types, made in different ways. */
    MPI_Type_create_indexed_block(2, 1, (int[]){0, 1}, MPI_INT, &twice);
    MPI_Type_commit(&twice);
    OK(make(3, twice, 0, 0, &request));
    OK(MPIS_Request_free(&request));
    MPI_Type_free(&vector);
    MPI_Type_free(&gap);
    MPI_Type_free(&swapped);
    MPI_Type_free(&twice);
}

static void states(MPIS_Queue queue)
{
    MPIS_Request requests[2], null = MPIS_REQUEST_NULL, match;
    MPIS_Queue gone;
    int value = 5, other = 0, matched;

    OK(MPIS_Send_init(&value, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
    OK(MPIS_Recv_init(&other, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]));
    CHECK(failed(MPIS_Enqueue_startall(queue, 2, requests), MPI_ERR_REQUEST, "request 0 of the list is not matched"));
    OK(MPIS_Is_matched(&requests[0], &matched));
    CHECK(!matched);
    OK(MPIS_Matchall(2, requests, MPI_STATUSES_IGNORE));
    OK(MPIS_Is_matched(&requests[0], &matched));
    CHECK(matched);
    CHECK(failed(MPIS_Match(&requests[0], MPI_STATUS_IGNORE), MPI_ERR_REQUEST, "matched once"));
    CHECK(failed(MPIS_Imatch(&requests[0], &match), MPI_ERR_REQUEST, "matched once"));
    CHECK(failed(MPIS_Enqueue_startall(queue, 2, (MPIS_Request[]){requests[0], requests[0]}), MPI_ERR_REQUEST,
                 "request 1 of the list is in it twice"));
    OK(MPIS_Enqueue_startall(queue, 2, requests));
    CHECK(failed(MPIS_Enqueue_start(queue, &requests[1]), MPI_ERR_REQUEST, "started already"));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Enqueue_waitall(queue));
    OK(MPIS_Queue_wait(queue));
    CHECK(other == 5);
    /* Inactive requests are complete. */
    OK(MPIS_Waitall(2, requests, MPI_STATUSES_IGNORE));
    OK(MPIS_Request_freeall(2, requests));
    OK(MPIS_Request_free(&null));
    OK(MPIS_Wait(&null, MPI_STATUS_IGNORE));
    CHECK(failed(MPIS_Match(&null, MPI_STATUS_IGNORE), MPI_ERR_REQUEST, "MPIS_REQUEST_NULL"));
    CHECK(failed(MPIS_Enqueue_start(queue, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIS_Queue_init(&gone, CXI, NULL), MPI_ERR_UNSUPPORTED_OPERATION, "GPU_MEM_OPS"));
    CHECK(failed(MPIS_Queue_init(&gone, GPU_MEM_OPS, NULL), MPI_ERR_ARG, "cudaStream_t"));
    OK(MPIS_Queue_init(&gone, THREAD, NULL));
    match = MPIS_REQUEST_NULL;
    MPIS_Queue copy = gone;
    OK(MPIS_Queue_free(&gone));
    CHECK(failed(MPIS_Queue_wait(copy), MPI_ERR_ARG, "until it is freed"));
    CHECK(failed(MPIS_Enqueue_waitall(MPIS_QUEUE_NULL), MPI_ERR_ARG, "no queue"));
    CHECK(failed(MPIS_Queue_free(&gone), MPI_ERR_ARG, "no queue"));
    CHECK(failed(gdsync_mpis_launch(queue, NULL, NULL), MPI_ERR_ARG, "function"));
}

/* Matches read the settings until one succeeds. */
static void settings(void)
{
    static const char *const wrong[][2] = {{"GDSYNC_MPI_PEER_TIMEOUT_MS", "soon"}, {"GDSYNC_MPI_PART_BYTES", "0"},
                                          {"GDSYNC_MPI_HOLD_SENDS", "2"}};
    MPIS_Queue queue;
    int sent = 0, received = 0;
    char text[64];
    size_t at;

    for (at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        MPIS_Request requests[2];

        OK(MPIS_Send_init(&sent, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
        OK(MPIS_Recv_init(&received, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[1]));
        setenv(wrong[at][0], wrong[at][1], 1);
        snprintf(text, sizeof text, "%s is \"%s\"", wrong[at][0], wrong[at][1]);
        CHECK(failed(MPIS_Matchall(2, requests, MPI_STATUSES_IGNORE), MPI_ERR_ARG, text));
        unsetenv(wrong[at][0]);
        OK(MPIS_Request_freeall(2, requests));
    }
    setenv("GDSYNC_MPI_COLLECT_FROM", "none", 1);
    CHECK(failed(MPIS_Queue_init(&queue, THREAD, NULL), MPI_ERR_ARG, "GDSYNC_MPI_COLLECT_FROM is \"none\""));
    unsetenv("GDSYNC_MPI_COLLECT_FROM");
}

/* The other side gets each of these errors, too. */
static void mismatches(void)
{
    int buffer[8] = {0}, peer = rank ^ 1, at;
    MPIS_Request request, others[2];
    MPI_Status status, statuses[2];

    if (rank % 2 == 0)
        OK(MPIS_Send_init(buffer, 8, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    else
        OK(MPIS_Recv_init(buffer, 4, MPI_INT, peer, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    CHECK(failed(MPIS_Match(&request, &status), MPI_ERR_TRUNCATE, "32 bytes, and the receive 16"));
    CHECK(status.MPI_SOURCE == peer && status.MPI_ERROR != MPI_SUCCESS);
    OK(MPIS_Request_free(&request));

    /* Only the request that is too short fails. */
    for (at = 0; at < 2; at++)
        if (rank % 2 == 0)
            OK(MPIS_Send_init(buffer, 8, MPI_INT, peer, 2 + at, MPI_COMM_WORLD, MPI_INFO_NULL, &others[at]));
        else
            OK(MPIS_Recv_init(buffer, 8 * at, MPI_INT, peer, 2 + at, MPI_COMM_WORLD, MPI_INFO_NULL, &others[at]));
    CHECK(failed(MPIS_Matchall(2, others, statuses), MPI_ERR_TRUNCATE, "the receive 0"));
    CHECK(statuses[0].MPI_ERROR != MPI_SUCCESS && statuses[1].MPI_ERROR == MPI_SUCCESS);
    OK(MPIS_Request_freeall(2, others));

    /* Ranks with different requests on a communicator of two: both fail. */
    MPI_Comm pair;
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &pair);
    if (rank % 2 == 0)
        OK(MPIS_Barrier_init(pair, MPI_INFO_NULL, &request));
    else
        OK(MPIS_Allreduce_init(MPI_IN_PLACE, buffer, 4, MPI_INT, MPI_SUM, pair, MPI_INFO_NULL, &request));
    CHECK(failed(MPIS_Match(&request, MPI_STATUS_IGNORE), MPI_ERR_ARG, "barrier-of-2"));
    OK(MPIS_Request_free(&request));
    MPI_Comm_free(&pair);

    /* Different lengths, and so different algorithms. Each of the four ranks is a peer of the one that differs. */
    static int numbers[10000];
    OK(MPIS_Allreduce_init(MPI_IN_PLACE, numbers, rank == 0 ? 10000 : 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD,
                           MPI_INFO_NULL, &request));
    CHECK(failed(MPIS_Match(&request, MPI_STATUS_IGNORE), MPI_ERR_ARG, "all ranks do the same"));
    OK(MPIS_Request_free(&request));
    OK(MPIS_Allreduce_init(MPI_IN_PLACE, numbers, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPIS_Match(&request, MPI_STATUS_IGNORE));
    OK(MPIS_Request_free(&request));
}

int main(void)
{
    MPI_Errhandler own;
    MPIS_Queue queue;
    int before;

    begin();
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
    OK(MPIS_Queue_init(&queue, THREAD, NULL));
    before = handled;
    CHECK(failed(make(-1, MPI_INT, 0, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(handled == before + 1);
    settings();
    arguments();
    types();
    states(queue);
    mismatches();
    OK(MPIS_Queue_free(&queue));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&own);
    end("refusals ok");
    return 0;
}
