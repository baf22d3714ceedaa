/* Refusals: with a class of MPI, a text that says why, and a call of the communicator's error handler. */
#include "common_mpix.h"

#include <stdint.h>

static int handled;

static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm, (void)code;
    handled++;
}

static int make(int count, MPI_Datatype type, int peer, int tag, MPIX_Request *request)
{
    static char buffer[1 << 12];

    return send_to(peer, tag, buffer, count, type, MPI_COMM_WORLD, request);
}

static void operations(void)
{
    MPIX_Request request = (MPIX_Request)1;
    int value = 0, before = handled;

    CHECK(failed(make(1, MPI_INT, MPI_ANY_SOURCE, 0, &request), MPI_ERR_RANK, "ranks 0 to"));
    CHECK(handled == before + 1 && request == (MPIX_Request)1);
    CHECK(failed(make(1, MPI_INT, size, 0, &request), MPI_ERR_RANK, "ranks 0 to"));
    CHECK(failed(make(1, MPI_INT, 0, MPI_ANY_TAG, &request), MPI_ERR_TAG, "tags are 0 to"));
    CHECK(failed(make(1, MPI_INT, 0, -5, &request), MPI_ERR_TAG, "-5"));
    CHECK(failed(make(-1, MPI_INT, 0, 0, &request), MPI_ERR_COUNT, "-1"));
    CHECK(failed(make(1, MPI_DATATYPE_NULL, 0, 0, &request), MPI_ERR_TYPE, "MPI_DATATYPE_NULL"));
    CHECK(failed(make(1, MPI_INT, 0, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(send_to(0, 0, NULL, 1, MPI_INT, MPI_COMM_WORLD, &request), MPI_ERR_BUFFER, "null"));
    CHECK(failed(send_to(0, 0, &value, 1, MPI_INT, MPI_COMM_NULL, &request), MPI_ERR_COMM, "NULL"));
    CHECK(failed(receive_from(-7, 0, &value, 1, MPI_INT, MPI_COMM_WORLD, &request), MPI_ERR_RANK, "-7"));
    CHECK(failed(receive_from(0, -9, &value, 1, MPI_INT, MPI_COMM_WORLD, &request), MPI_ERR_TAG, "-9"));
}

static void queues(void)
{
    MPIX_Request request;
    gdsync_mpix_stream gone = NULL, never = (gdsync_mpix_stream)&request;
    int value = 0, at, types[] = {77, SOFTWARE};
    int classes[] = {MPI_ERR_ARG, MPI_ERR_ARG};
    const char *words[] = {"77", "null"};

    for (at = 0; at < 2; at++) {
        void *queue = at < 1 ? &stream : NULL;
        CHECK(failed(MPIX_Isend_enqueue(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request, types[at], queue), classes[at],
                     words[at]));
        CHECK(failed(MPIX_Waitall_enqueue(0, NULL, MPI_STATUSES_IGNORE, types[at], queue), classes[at], words[at]));
        CHECK(failed(gdsync_mpix_synchronize(types[at], queue), classes[at], words[at]));
        CHECK(failed(gdsync_mpix_launch(types[at], queue, NULL, NULL), classes[at], words[at]));
    }
    OK(gdsync_mpix_stream_create(&gone));
    never = gone;
    OK(gdsync_mpix_stream_destroy(&gone));
    CHECK(failed(MPIX_Irecv_enqueue(&value, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request, SOFTWARE, &never), MPI_ERR_ARG,
                 "no queue or software stream"));
    CHECK(failed(gdsync_mpix_stream_destroy(&never), MPI_ERR_ARG, "no queue or software stream"));
    CHECK(failed(gdsync_mpix_stream_destroy(NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(gdsync_mpix_stream_create(NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(gdsync_mpix_launch(SOFTWARE, &stream, NULL, NULL), MPI_ERR_ARG, "null"));
}

/* A list with a request twice is refused and stays unchanged. */
static void repeated(void)
{
    MPIX_Request list[3] = {MPIX_REQUEST_NULL, MPIX_REQUEST_NULL, MPIX_REQUEST_NULL};
    int value = 7, got = 0;

    OK(send_to(rank, 6, &value, 1, MPI_INT, MPI_COMM_WORLD, &list[0]));
    OK(receive_from(rank, 6, &got, 1, MPI_INT, MPI_COMM_WORLD, &list[1]));
    list[2] = list[0];
    CHECK(failed(MPIX_Waitall(3, list, MPI_STATUSES_IGNORE), MPI_ERR_REQUEST, "request 2 of the list is request 0"));
    CHECK(failed(MPIX_Waitall_enqueue(3, list, MPI_STATUSES_IGNORE, SOFTWARE, &stream), MPI_ERR_REQUEST, "list each once"));
    OK(MPIX_Waitall(2, list, MPI_STATUSES_IGNORE));
    CHECK(got == 7);
}

static void waits(void)
{
    MPIX_Request none = MPIX_REQUEST_NULL;
    MPI_Status status;

    CHECK(failed(MPIX_Wait(NULL, MPI_STATUS_IGNORE), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Waitall(1, NULL, MPI_STATUSES_IGNORE), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Waitall(-1, &none, MPI_STATUSES_IGNORE), MPI_ERR_COUNT, "-1"));
    CHECK(failed(MPIX_Waitall_enqueue(-1, &none, MPI_STATUSES_IGNORE, SOFTWARE, &stream), MPI_ERR_COUNT, "-1"));
    CHECK(failed(MPIX_Waitall_enqueue(1, NULL, MPI_STATUSES_IGNORE, SOFTWARE, &stream), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Wait_enqueue(NULL, &status, SOFTWARE, &stream), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Request_free(NULL), MPI_ERR_ARG, "null"));
    OK(MPIX_Request_free(&none));
    OK(MPIX_Wait(&none, &status));
    CHECK(status.MPI_SOURCE == MPI_ANY_SOURCE);
    status.MPI_TAG = 0;
    OK(MPIX_Wait_enqueue(&none, &status, SOFTWARE, &stream));
    CHECK(status.MPI_TAG == MPI_ANY_TAG);
    OK(MPIX_Waitall(0, NULL, MPI_STATUSES_IGNORE));
}

static int psend(int partitions, MPI_Count count, MPI_Datatype type, int peer, int tag, MPIX_Request *request)
{
    static char buffer[1 << 12];

    return MPIX_Psend_init(buffer, partitions, count, type, peer, tag, MPI_COMM_WORLD, MPI_INFO_NULL, request);
}

static void partitioned(void)
{
    MPIX_Request request, operation, none = MPIX_REQUEST_NULL;
    MPIX_Prequest for_kernels = MPIX_PREQUEST_NULL;
    MPI_Datatype gaps;
    MPI_Status status;
    int value = 0, flag, before = handled;

    CHECK(failed(psend(0, 1, MPI_INT, 0, 0, &request), MPI_ERR_ARG, "0 partitions"));
    CHECK(handled == before + 1);
    CHECK(failed(psend(9000, 0, MPI_INT, 0, 0, &request), MPI_ERR_ARG, "from 1 to 8192"));
    CHECK(failed(psend(1, -1, MPI_INT, 0, 0, &request), MPI_ERR_COUNT, "-1"));
    CHECK(failed(psend(4, INT64_MAX / 2, MPI_BYTE, 0, 0, &request), MPI_ERR_COUNT, "2^63"));
    CHECK(failed(psend(1, 1, MPI_INT, MPI_ANY_SOURCE, 0, &request), MPI_ERR_RANK, "MPI_ANY_SOURCE"));
    CHECK(failed(psend(1, 1, MPI_INT, 0, MPI_ANY_TAG, &request), MPI_ERR_TAG, "MPI_ANY_TAG"));
    CHECK(failed(psend(1, 1, MPI_INT, size, 0, &request), MPI_ERR_RANK, "ranks 0 to"));
    CHECK(failed(psend(1, 1, MPI_INT, 0, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Precv_init(NULL, 1, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, MPI_INFO_NULL, &request), MPI_ERR_BUFFER,
                 "null"));
    CHECK(failed(MPIX_Precv_init(&value, 1, 1, MPI_INT, 0, 0, MPI_COMM_NULL, MPI_INFO_NULL, &request), MPI_ERR_COMM,
                 "NULL"));
    MPI_Type_vector(2, 1, 2, MPI_INT, &gaps);
    MPI_Type_commit(&gaps);
    CHECK(failed(psend(1, 1, gaps, 0, 0, &request), MPI_ERR_TYPE, "contiguous"));
    MPI_Type_free(&gaps);

    /* The sides differ: both fail. */
    OK(psend(2, 1, MPI_INT, (rank + 1) % size, 3, &request));
    OK(MPIX_Precv_init(&value, 1, 1, MPI_INT, (rank + size - 1) % size, 3, MPI_COMM_WORLD, MPI_INFO_NULL, &operation));
    OK(MPIX_Start(&operation));
    OK(MPIX_Start(&request));
    CHECK(failed(MPIX_Wait(&operation, &status), MPI_ERR_ARG, "partitions-2-of-4-bytes"));
    CHECK(status.MPI_ERROR != MPI_SUCCESS);
    CHECK(failed(MPIX_Wait(&request, &status), MPI_ERR_ARG, "partitions-2-of-4-bytes"));
    OK(MPIX_Request_free(&request));
    OK(MPIX_Request_free(&operation));

    OK(psend(2, 1, MPI_INT, (rank + 1) % size, 4, &request));
    CHECK(failed(MPIX_Pready(0, &request), MPI_ERR_REQUEST, "not started"));
    CHECK(failed(MPIX_Wait_enqueue(&request, &status, SOFTWARE, &stream), MPI_ERR_REQUEST, "partitioned"));
    CHECK(failed(MPIX_Pready(0, &none), MPI_ERR_REQUEST, "MPIX_REQUEST_NULL"));
    CHECK(failed(MPIX_Pready(0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Start(NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Startall(-2, &request), MPI_ERR_COUNT, "-2"));
    CHECK(failed(MPIX_Startall(1, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Start(&none), MPI_ERR_REQUEST, "MPIX_REQUEST_NULL"));
    CHECK(failed(MPIX_Parrived(&request, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Parrived(&none, 0, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Parrived(NULL, 0, &flag), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Parrived(&request, 0, &flag), MPI_ERR_REQUEST, "sends"));
    CHECK(failed(MPIX_Prequest_create(none, &for_kernels), MPI_ERR_REQUEST, "MPIX_REQUEST_NULL"));
    CHECK(failed(MPIX_Prequest_create(request, NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(MPIX_Prequest_free(NULL), MPI_ERR_ARG, "null"));
    OK(MPIX_Prequest_free(&for_kernels));
    OK(MPIX_Start(&request));
    CHECK(failed(MPIX_Start(&request), MPI_ERR_REQUEST, "started already"));
    CHECK(failed(MPIX_Prequest_create(request, &for_kernels), MPI_ERR_REQUEST, "before its first start"));
    CHECK(failed(MPIX_Pready(2, &request), MPI_ERR_ARG, "partition is 2"));
    OK(MPIX_Pready(0, &request));
    CHECK(failed(MPIX_Pready(0, &request), MPI_ERR_REQUEST, "ready already"));
    /* Frees an active request, whose other side is never made. */
    OK(MPIX_Request_free(&request));
    OK(receive_from(MPI_PROC_NULL, 0, &value, 1, MPI_INT, MPI_COMM_WORLD, &operation));
    CHECK(failed(MPIX_Start(&operation), MPI_ERR_REQUEST, "not partitioned"));
    CHECK(failed(MPIX_Parrived(&operation, 0, &flag), MPI_ERR_REQUEST, "not partitioned"));
    /* No request of a refused list starts. */
    OK(psend(1, 1, MPI_INT, MPI_PROC_NULL, 4, &request));
    CHECK(failed(MPIX_Startall(2, (MPIX_Request[]){request, operation}), MPI_ERR_REQUEST, "not partitioned"));
    OK(MPIX_Wait(&operation, &status));
    /* Without a peer, refusals are those of a request with one. */
    CHECK(failed(MPIX_Pready(0, &request), MPI_ERR_REQUEST, "not started"));
    CHECK(failed(MPIX_Pready(1, &request), MPI_ERR_ARG, "partition is 1"));
    CHECK(failed(MPIX_Parrived(&request, 0, &flag), MPI_ERR_REQUEST, "sends"));
    OK(MPIX_Start(&request));
    CHECK(failed(MPIX_Start(&request), MPI_ERR_REQUEST, "started already"));
    OK(MPIX_Pready(0, &request));
    OK(MPIX_Wait(&request, &status));
    OK(MPIX_Request_free(&request));
    OK(MPIX_Precv_init(&value, 1, 1, MPI_INT, MPI_PROC_NULL, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    CHECK(failed(MPIX_Parrived(&request, -1, &flag), MPI_ERR_ARG, "partition is -1"));
    OK(MPIX_Start(&request));
    CHECK(failed(MPIX_Pready(0, &request), MPI_ERR_REQUEST, "receives"));
    OK(MPIX_Request_free(&request));
}

int main(void)
{
    MPI_Errhandler own;
    int value = 0;
    MPIX_Request request;

    begin();
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
    CHECK(failed(MPIX_Finalize(), MPI_ERR_OTHER, "MPIX_Init"));
    OK(gdsync_mpix_stream_create(&stream));
    CHECK(failed(send_to(0, 0, &value, 1, MPI_INT, MPI_COMM_WORLD, &request), MPI_ERR_OTHER, "MPIX_Init"));
    CHECK(failed(MPIX_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_OTHER, "MPIX_Init"));
    CHECK(failed(gdsync_mpix_link(MPI_COMM_WORLD), MPI_ERR_OTHER, "MPIX_Init"));
    setenv("GDSYNC_MPIX_LINKS", "yes", 1);
    CHECK(failed(MPIX_Init(), MPI_ERR_ARG, "GDSYNC_MPIX_LINKS is \"yes\""));
    setenv("GDSYNC_MPIX_LINKS", "0", 1);
    OK(MPIX_Init());
    CHECK(failed(MPIX_Init(), MPI_ERR_OTHER, "once"));
    operations();
    queues();
    waits();
    repeated();
    partitioned();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Errhandler_free(&own);
    end_mpix("refused ok");
    return 0;
}
