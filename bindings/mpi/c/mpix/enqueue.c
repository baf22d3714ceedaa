/* Enqueues sends, receives and waits on streams and in graphs. */
#include "mpix.h"

#include <stdlib.h>

/* Returns whether a datatype is predefined. */
static int is_named(MPI_Datatype datatype)
{
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;

    MPI_Type_get_envelope(datatype, &integers, &addresses, &types, &combiner);
    return combiner == MPI_COMBINER_NAMED;
}

/* Duplicates a derived datatype, as the program may free it before the stream triggers the operation. */
static int keep_datatype(struct mpix_operation *operation, MPI_Datatype datatype)
{
    int error;

    operation->datatype = datatype;
    if (is_named(datatype))
        return MPI_SUCCESS;
    error = MPI_Type_dup(datatype, &operation->datatype);
    operation->is_duplicate = error == MPI_SUCCESS;
    return error;
}

static int check(int sends, const void *buffer, int count, MPI_Datatype datatype, int peer, int tag, MPI_Comm comm)
{
    int *max_tag = NULL, has_max_tag = 0, error = MPI_SUCCESS;

    if (count < 0)
        return mpis_fail(comm, MPI_ERR_COUNT, "the count is %d: pass a number from 0 on", count);
    if (datatype == MPI_DATATYPE_NULL)
        return mpis_fail(comm, MPI_ERR_TYPE, "the datatype is MPI_DATATYPE_NULL");
    /* A datatype of absolute addresses starts at MPI_BOTTOM, which is a null pointer in many MPIs. */
    if (!buffer && count > 0 && peer != MPI_PROC_NULL && is_named(datatype))
        return mpis_fail(comm, MPI_ERR_BUFFER, "the buffer of %d elements is a null pointer: pass a valid one", count);
    if (sends || peer != MPI_ANY_SOURCE)
        error = mpis_check_peer(comm, peer);
    if (error != MPI_SUCCESS || (!sends && tag == MPI_ANY_TAG))
        return error;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &max_tag, &has_max_tag);
    return mpis_check_tag(comm, has_max_tag ? *max_tag : 32767, tag);
}

/* Enqueues the trigger of an operation that the thread starts in MPI. */
static int enqueue_mpi(struct mpix_operation *operation, MPI_Datatype datatype, int kind, void *const *stream)
{
    int gdsync_error, error = MPI_SUCCESS;

    if (!operation->is_in_graph)
        error = mpix_operation_waiting(operation->comm, &operation->waiting);
    if (error == MPI_SUCCESS)
        error = keep_datatype(operation, datatype);
    if (error != MPI_SUCCESS)
        return error;
    /* The thread's reference: it may start the operation as soon as it is enqueued. */
    operation->refs = 2;
    if (operation->waiting)
        __atomic_add_fetch(operation->waiting, 1, __ATOMIC_RELAXED);
    gdsync_error = gdsync_mpi_enqueue(kind, stream, operation->engine);
    if (!gdsync_error)
        return MPI_SUCCESS;
    error = mpis_fail_engine(operation->comm, gdsync_error);
    if (operation->waiting)
        __atomic_sub_fetch(operation->waiting, 1, __ATOMIC_RELEASE);
    mpix_operation_end(operation);
    operation->refs = 1;
    return error;
}

static int enqueue(int sends, void *buffer, int count, MPI_Datatype datatype, int peer, int tag, MPI_Comm comm,
                   MPIX_Request *request, int qtype, void *queue)
{
    struct mpix_operation *operation;
    void *const *stream;
    int kind, is_in_graph = 0, gdsync_error, error = mpix_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (comm == MPI_COMM_NULL)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_COMM, "the communicator is MPI_COMM_NULL");
    if (!request)
        return mpis_fail(comm, MPI_ERR_ARG, "the place for the request is a null pointer");
    error = check(sends, buffer, count, datatype, peer, tag, comm);
    if (error == MPI_SUCCESS)
        error = mpix_stream(comm, qtype, queue, &kind, &stream);
    if (error == MPI_SUCCESS && (gdsync_error = gdsync_mpi_is_graph(kind, stream, &is_in_graph)) != 0)
        error = mpis_fail_engine(comm, gdsync_error);
    if (error == MPI_SUCCESS && is_in_graph && mpis_comm_linked(comm))
        error = mpis_fail(comm, MPI_ERR_UNSUPPORTED_OPERATION,
                          "the communicator is linked, and a message of a link is sent once: a graph, which is launched any "
                          "number of times, takes another communicator (MPI_Comm_dup)");
    if (error != MPI_SUCCESS)
        return error;
    operation = calloc(1, sizeof *operation);
    if (!operation)
        return mpis_fail(comm, MPI_ERR_NO_MEM, "there is no memory for a request");
    *operation = (struct mpix_operation){
        .request = {MPIX_ENQUEUED}, .refs = 1, .sends = sends, .count = count, .peer = peer, .tag = tag,
        .buffer = buffer, .comm = comm, .is_in_graph = is_in_graph
    };
    error = mpix_link_of(comm, sends, peer, tag, &operation->link);
    if (error == MPI_SUCCESS && (gdsync_error = gdsync_mpi_operation(operation, is_in_graph, &operation->engine)) != 0)
        error = mpis_fail_engine(comm, gdsync_error);
    if (error == MPI_SUCCESS)
        error = operation->link ? mpix_message_enqueue(operation, count, datatype, kind, stream)
                                : enqueue_mpi(operation, datatype, kind, stream);
    if (error == MPI_SUCCESS)
        *request = &operation->request;
    else
        mpix_operation_release(operation);
    return error;
}

int MPIX_Isend_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                       MPIX_Request *request, int qtype, void *queue)
{
    return enqueue(1, (void *)buf, count, datatype, dest, tag, comm, request, qtype, queue);
}

int MPIX_Irecv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                       MPIX_Request *request, int qtype, void *queue)
{
    return enqueue(0, buf, count, datatype, source, tag, comm, request, qtype, queue);
}

/* Refuses a list with requests for which a stream cannot wait. */
static int check_waitable(int count, MPIX_Request *reqs)
{
    int at, error = mpix_check_list(count, reqs);

    for (at = 0; at < count && error == MPI_SUCCESS; at++) {
        const struct gdsync_mpix_request *each = reqs[at];
        if (each && each->kind != MPIX_ENQUEUED)
            return mpis_fail(MPI_COMM_WORLD, MPI_ERR_REQUEST,
                             "request %d of the list is partitioned: a stream cannot wait for it. Call MPIX_Wait", at);
    }
    return error;
}

/* Refuses statuses for operations in graphs where a stream waits: each launch writes the status that a graph's wait names, and it
 * is unknown for which launch a stream's wait is. */
static int check_statuses(int count, MPIX_Request *reqs, int kind, void *const *stream)
{
    int at, is_graph = 0, gdsync_error = gdsync_mpi_is_graph(kind, stream, &is_graph);

    if (gdsync_error)
        return mpis_fail_engine(MPI_COMM_WORLD, gdsync_error);
    for (at = 0; at < count && !is_graph; at++) {
        const struct mpix_operation *each = (const struct mpix_operation *)reqs[at];
        if (each && each->is_in_graph)
            return mpis_fail(MPI_COMM_WORLD, MPI_ERR_UNSUPPORTED_OPERATION,
                             "request %d of the list is in a graph, and a stream's wait for it has no status: pass "
                             "MPI_STATUS_IGNORE, or have a graph wait for it", at);
    }
    return MPI_SUCCESS;
}

/* The flags and posted messages for which a stream waits. */
struct waits {
    const void **engines, **messages;
    size_t number, posted;
};

static void add(struct waits *waits, struct mpix_operation *operation, MPI_Status *status)
{
    /* The thread writes the status, as the stream cannot. */
    if (operation->is_by_stream && status != MPI_STATUS_IGNORE)
        mpix_message_watch(operation);
    if (operation->is_by_stream) {
        waits->messages[waits->posted++] = operation->message;
        return;
    }
    /* Before the stream can pass the wait. A place that a graph's wait has set stays. */
    if (!operation->is_in_graph || status != MPI_STATUS_IGNORE)
        mpix_operation_want(operation, status);
    waits->engines[waits->number++] = operation->engine;
}

int MPIX_Waitall_enqueue(int count, MPIX_Request *reqs, MPI_Status *statuses, int qtype, void *queue)
{
    struct waits waits = {NULL, NULL, 0, 0};
    void *const *stream;
    int at, kind, gdsync_error, error = check_waitable(count, reqs);

    if (error == MPI_SUCCESS)
        error = mpix_stream(MPI_COMM_WORLD, qtype, queue, &kind, &stream);
    if (error == MPI_SUCCESS && statuses != MPI_STATUSES_IGNORE)
        error = check_statuses(count, reqs, kind, stream);
    if (error != MPI_SUCCESS)
        return error;
    waits.engines = malloc((count ? 2 * (size_t)count : 1) * sizeof *waits.engines);
    if (!waits.engines)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_NO_MEM, "there is no memory for a list of %d requests", count);
    waits.messages = waits.engines + count;
    for (at = 0; at < count; at++) {
        MPI_Status *status = statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[at];
        if (!reqs[at])
            mpis_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, MPI_SUCCESS);
        else
            add(&waits, (struct mpix_operation *)reqs[at], status);
    }
    gdsync_error = gdsync_mpi_enqueue_message_waits(kind, stream, waits.posted, waits.messages);
    if (!gdsync_error)
        gdsync_error = gdsync_mpi_enqueue_waits(kind, stream, waits.number, waits.engines);
    free(waits.engines);
    for (at = 0; at < count; at++) {
        struct mpix_operation *each = (struct mpix_operation *)reqs[at];
        if (!each)
            continue;
        if (!gdsync_error) {
            mpix_operation_release(each);
            reqs[at] = MPIX_REQUEST_NULL;
        } else if (!each->is_by_stream && (!each->is_in_graph || statuses != MPI_STATUSES_IGNORE))
            mpix_operation_want(each, MPI_STATUS_IGNORE);
    }
    return gdsync_error ? mpis_fail_engine(MPI_COMM_WORLD, gdsync_error) : MPI_SUCCESS;
}

int MPIX_Wait_enqueue(MPIX_Request *req, MPI_Status *status, int qtype, void *queue)
{
    return MPIX_Waitall_enqueue(1, req, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status, qtype, queue);
}
