/* Partitioned requests: MPI matches them when they are made, and the card carries them. */
#include "mpix.h"

#include <stdlib.h>

struct mpix_partitioned {
    struct gdsync_mpix_request request;
    int sends, partitions;
    /* The request that is matched; its Rust request is NULL if the peer is MPI_PROC_NULL. */
    MPIS_Request matched;
    int is_started;
    /* The first start has fixed the order of matches. */
    int is_fixed;
    /* Kernels set its partition flags, which the thread polls. */
    int has_flags;
};

static int check_buffer(MPI_Comm comm, void **buffer, int partitions, MPI_Count count, MPI_Datatype datatype,
                        uint64_t *bytes)
{
    MPI_Aint start;
    int error;

    if (partitions < 1)
        return mpis_fail(comm, MPI_ERR_ARG, "the request has %d partitions: pass a number from 1 on", partitions);
    if (count > INT64_MAX / partitions)
        return mpis_fail(comm, MPI_ERR_COUNT, "%d partitions of %lld elements are more than 2^63 elements", partitions,
                         (long long)count);
    error = mpis_contiguous(comm, count < 0 ? count : count * partitions, datatype, &start, bytes);
    if (error != MPI_SUCCESS)
        return error;
    if (*bytes > 0 && !*buffer)
        return mpis_fail(comm, MPI_ERR_BUFFER,
                         "the buffer of %llu bytes is a null pointer (or MPI_BOTTOM): pass a valid one",
                         (unsigned long long)*bytes);
    *buffer = *bytes ? (char *)*buffer + start : NULL;
    *bytes /= (uint64_t)partitions;
    return MPI_SUCCESS;
}

/* Makes a request with the next place in the order of its matches. Takes over the reference to the communicator. */
static int match(int sends, void *buffer, int partitions, uint64_t bytes, int peer, int tag, struct mpis_comm *known,
                 MPIS_Request *into)
{
    MPIS_Request matched = mpis_request_new(MPIS_PARTITIONED, known);
    int gdsync_error = 0, error;

    if (!matched)
        return MPI_ERR_NO_MEM;
    matched->peer = peer;
    matched->tag = tag;
    if (peer != MPI_PROC_NULL)
        gdsync_error = gdsync_mpi_partitioned(sends, buffer, partitions, bytes, &matched->engine);
    error = mpis_request_made(matched, gdsync_error, into);
    if (error != MPI_SUCCESS || !matched->engine)
        return error;
    error = mpis_order_join(matched, sends);
    if (error != MPI_SUCCESS)
        mpis_request_release(matched);
    return error;
}

static int init(int sends, void *buffer, int partitions, MPI_Count count, MPI_Datatype datatype, int peer, int tag,
                MPI_Comm comm, MPIX_Request *request)
{
    struct mpix_partitioned *made;
    struct mpis_comm *known;
    uint64_t bytes;
    int error = mpix_check_running();

    if (error == MPI_SUCCESS)
        error = mpis_comm_get(comm, &known);
    if (error != MPI_SUCCESS)
        return error;
    if (!request)
        error = mpis_fail(comm, MPI_ERR_ARG, "the place for the request is a null pointer");
    if (error == MPI_SUCCESS)
        error = mpis_check_matched(known, peer, tag);
    if (error == MPI_SUCCESS)
        error = check_buffer(comm, &buffer, partitions, count, datatype, &bytes);
    if (error != MPI_SUCCESS) {
        mpis_comm_release(known);
        return error;
    }
    made = calloc(1, sizeof *made);
    if (!made) {
        mpis_comm_release(known);
        return mpis_fail(comm, MPI_ERR_NO_MEM, "there is no memory for a request");
    }
    made->request.kind = MPIX_PARTITIONED;
    made->sends = sends;
    made->partitions = partitions;
    error = match(sends, buffer, partitions, bytes, peer, tag, known, &made->matched);
    if (error == MPI_SUCCESS)
        *request = &made->request;
    else
        free(made);
    return error;
}

int MPIX_Psend_init(const void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                    MPI_Comm comm, MPI_Info info, MPIX_Request *request)
{
    (void)info;
    return init(1, (void *)buf, partitions, count, datatype, dest, tag, comm, request);
}

int MPIX_Precv_init(void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int source, int tag,
                    MPI_Comm comm, MPI_Info info, MPIX_Request *request)
{
    (void)info;
    return init(0, buf, partitions, count, datatype, source, tag, comm, request);
}

/* Returns the partitioned request at a place. */
static int find(const MPIX_Request *place, struct mpix_partitioned **found)
{
    int error = mpix_check_request(place);

    if (error != MPI_SUCCESS)
        return error;
    *found = (struct mpix_partitioned *)*place;
    if (!*found || (*found)->request.kind != MPIX_PARTITIONED)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_REQUEST,
                         "the request is %s: pass one of MPIX_Psend_init or MPIX_Precv_init",
                         *found ? "not partitioned" : "MPIX_REQUEST_NULL");
    return MPI_SUCCESS;
}

static int reported(const struct mpix_partitioned *request, int gdsync_error)
{
    return gdsync_error ? mpis_fail_engine(mpis_handler_of(request->matched->comm), gdsync_error) : MPI_SUCCESS;
}

static int refused(const struct mpix_partitioned *request, int mpi_class, const char *format, int partition)
{
    return mpis_fail(mpis_handler_of(request->matched->comm), mpi_class, format, partition, request->partitions);
}

int MPIX_Start(MPIX_Request *request)
{
    struct mpix_partitioned *started;
    const void *engine;
    int error = find(request, &started);

    if (error != MPI_SUCCESS)
        return error;
    engine = started->matched->engine;
    if (!engine && started->is_started)
        return refused(started, MPI_ERR_REQUEST, "the request is started already: wait for it before", 0);
    if (engine && !started->is_fixed) {
        error = mpis_match_begin(started->matched);
        if (error != MPI_SUCCESS)
            return error;
        started->is_fixed = 1;
        gdsync_mpi_thread_wake();
    }
    if (engine)
        error = reported(started, gdsync_mpi_partitions_start(engine));
    if (error != MPI_SUCCESS)
        return error;
    started->is_started = 1;
    if (started->has_flags)
        gdsync_mpi_thread_wake();
    return MPI_SUCCESS;
}

int MPIX_Startall(int count, MPIX_Request *request)
{
    struct mpix_partitioned *started;
    int at, error = mpix_check_list(count, request);

    for (at = 0; at < count && error == MPI_SUCCESS; at++)
        error = find(&request[at], &started);
    for (at = 0; at < count && error == MPI_SUCCESS; at++)
        error = MPIX_Start(&request[at]);
    return error;
}

/* The checks of a request without a peer, as the Rust part checks others. */
static int check_partition(const struct mpix_partitioned *request, int partition)
{
    if (partition >= 0 && partition < request->partitions)
        return MPI_SUCCESS;
    return refused(request, MPI_ERR_ARG, "the partition is %d, and the request has %d: count from 0 on", partition);
}

int (MPIX_Pready)(int partition, void *request)
{
    struct mpix_partitioned *sending;
    int error = find(request, &sending);

    if (error != MPI_SUCCESS)
        return error;
    if (sending->matched->engine)
        return reported(sending, gdsync_mpi_partition_ready(sending->matched->engine, partition));
    error = check_partition(sending, partition);
    if (error != MPI_SUCCESS || (sending->sends && sending->is_started))
        return error;
    return refused(sending, MPI_ERR_REQUEST,
                   sending->sends ? "partition %d cannot be ready: the request is not started"
                                  : "partition %d cannot be ready: the request receives", partition);
}

int (MPIX_Parrived)(void *request, int partition, int *flag)
{
    struct mpix_partitioned *receiving;
    MPIX_Request *place = request;
    int error = mpix_check_request(place);

    if (error == MPI_SUCCESS && !flag)
        error = mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the place for the answer is a null pointer");
    if (error != MPI_SUCCESS)
        return error;
    *flag = 1;
    /* MPI calls a null request complete. */
    error = *place ? find(place, &receiving) : MPI_SUCCESS;
    if (error != MPI_SUCCESS || !*place)
        return error;
    if (receiving->matched->engine)
        return reported(receiving, gdsync_mpi_partition_arrived(receiving->matched->engine, partition, flag));
    error = check_partition(receiving, partition);
    if (error != MPI_SUCCESS || !receiving->sends)
        return error;
    return refused(receiving, MPI_ERR_REQUEST, "the request sends: no partition arrives", partition);
}

/* The header calls these on the CPU where a CUDA compiler defines MPIX_Pready and MPIX_Parrived itself. */
int gdsync_mpix_pready(int partition, void *request);
int gdsync_mpix_parrived(void *request, int partition, int *flag);

int gdsync_mpix_pready(int partition, void *request)
{
    return MPIX_Pready(partition, request);
}

int gdsync_mpix_parrived(void *request, int partition, int *flag)
{
    return MPIX_Parrived(request, partition, flag);
}

int mpix_partitioned_wait(struct mpix_partitioned *request, MPI_Status *status)
{
    MPIS_Request matched = request->matched;
    uint64_t bytes = 0;
    int error = MPI_SUCCESS;

    if (!request->is_started || !matched->engine) {
        mpis_status(status, request->is_started ? MPI_PROC_NULL : MPI_ANY_SOURCE, MPI_ANY_TAG, 0, MPI_SUCCESS);
        request->is_started = 0;
        return MPI_SUCCESS;
    }
    error = mpis_match_end(matched, MPI_STATUS_IGNORE);
    if (error == MPI_SUCCESS)
        error = reported(request, gdsync_mpi_wait(matched->engine, &bytes));
    mpis_status(status, matched->peer, matched->tag, bytes, error);
    request->is_started = 0;
    return error;
}

void mpix_partitioned_free(struct mpix_partitioned *request)
{
    if (request->matched->engine && !request->is_fixed)
        mpis_order_leave(request->matched);
    mpis_request_release(request->matched);
    free(request);
}

int MPIX_Prequest_create(MPIX_Request request, MPIX_Prequest *prequest)
{
    struct mpix_partitioned *found;
    uint64_t address = 0;
    int error = find(&request, &found);

    if (error != MPI_SUCCESS)
        return error;
    if (!prequest)
        return mpis_fail(mpis_handler_of(found->matched->comm), MPI_ERR_ARG,
                         "the place for the request of kernels is a null pointer");
    /* Kernels may flag partitions of no peer, too: the pointer is null. */
    if (found->matched->engine)
        error = reported(found, gdsync_mpi_partition_flags(found->matched->engine, &address));
    if (error == MPI_SUCCESS) {
        found->has_flags = 1;
        *prequest = (MPIX_Prequest)(uintptr_t)address;
    }
    return error;
}

/* The request keeps the memory. */
int MPIX_Prequest_free(MPIX_Prequest *request)
{
    int error = mpix_check_running();

    if (error == MPI_SUCCESS && !request)
        error = mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    if (error == MPI_SUCCESS)
        *request = MPIX_PREQUEST_NULL;
    return error;
}
