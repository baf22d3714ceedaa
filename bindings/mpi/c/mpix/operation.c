/* Sends and receives that a stream triggers, and waits for them. */
#include "mpix.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define NAP_NS 50000

/* Of the ends of operations, and of the places of their statuses. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of communicators: how many of their operations no stream has triggered yet. */
static int waiting_key = MPI_KEYVAL_INVALID;

/* MPI knows nothing of operations that no stream has triggered: their communicator stays until they are. */
static int at_comm_free(MPI_Comm comm, int key, void *value, void *extra)
{
    const struct timespec nap = {0, NAP_NS};
    int *waiting = value;

    (void)key, (void)extra;
    if (comm == MPI_COMM_SELF)
        mpis_end_of_program();
    while (__atomic_load_n(waiting, __ATOMIC_ACQUIRE) > 0)
        nanosleep(&nap, NULL);
    free(waiting);
    return MPI_SUCCESS;
}

int mpix_operations_prepare(void)
{
    if (waiting_key != MPI_KEYVAL_INVALID)
        return MPI_SUCCESS;
    return MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_comm_free, &waiting_key, NULL);
}

static int waiting_of(MPI_Comm comm, int **waiting)
{
    int error, is_known = 0;

    pthread_mutex_lock(&lock);
    error = MPI_Comm_get_attr(comm, waiting_key, waiting, &is_known);
    if (error == MPI_SUCCESS && !is_known) {
        *waiting = calloc(1, sizeof **waiting);
        error = *waiting ? MPI_Comm_set_attr(comm, waiting_key, *waiting)
                         : mpis_fail(comm, MPI_ERR_NO_MEM, "there is no memory for an attribute of the communicator");
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Whether a datatype is MPI's own. */
static int is_named(MPI_Datatype datatype)
{
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;

    MPI_Type_get_envelope(datatype, &integers, &addresses, &types, &combiner);
    return combiner == MPI_COMBINER_NAMED;
}

/* The program may free a datatype of its own before the stream triggers the operation. */
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

void mpix_operation_release(struct mpix_operation *operation)
{
    if (__atomic_sub_fetch(&operation->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (operation->engine)
        gdsync_mpi_operation_free(operation->engine);
    if (operation->message)
        gdsync_mpi_message_free(operation->message);
    if (operation->link)
        mpis_request_release(operation->link);
    free(operation);
}

/* The operation is not triggered any more. */
static void end(struct mpix_operation *operation)
{
    if (operation->is_duplicate)
        MPI_Type_free(&operation->datatype);
    operation->is_duplicate = 0;
}

void mpix_operation_gone(void *given)
{
    end(given);
    mpix_operation_release(given);
}

void mpix_operation_complete(struct mpix_operation *operation, int error, const MPI_Status *status)
{
    int is_in_graph = operation->is_in_graph, outstanding = --operation->outstanding;

    if (!is_in_graph)
        end(operation);
    pthread_mutex_lock(&lock);
    if (error == MPI_SUCCESS)
        operation->status = *status;
    else
        mpis_status(&operation->status, operation->peer, operation->tag, 0, error);
    operation->status.MPI_ERROR = operation->error = error;
    operation->is_complete = 1;
    if (operation->wanted)
        *operation->wanted = operation->status;
    pthread_mutex_unlock(&lock);
    /* After the status: streams go on from here. The last of several launches may free it. */
    if (!is_in_graph || outstanding == 0)
        gdsync_mpi_operation_completed(operation->engine);
    if (!is_in_graph)
        mpix_operation_release(operation);
}

/* Where the status of an operation is to be; NULL: nowhere. */
static void want(struct mpix_operation *operation, MPI_Status *status)
{
    pthread_mutex_lock(&lock);
    operation->wanted = status == MPI_STATUS_IGNORE ? NULL : status;
    if (operation->wanted && operation->is_complete)
        *operation->wanted = operation->status;
    pthread_mutex_unlock(&lock);
}

int mpix_operation_wait(struct mpix_operation *operation, MPI_Status *status)
{
    int error;

    if (operation->is_by_stream)
        error = mpix_message_wait(operation, status);
    else {
        gdsync_mpi_operation_wait(operation->engine);
        pthread_mutex_lock(&lock);
        if (status != MPI_STATUS_IGNORE)
            *status = operation->status;
        error = operation->error;
        pthread_mutex_unlock(&lock);
    }
    mpix_operation_release(operation);
    return error;
}

static int check(int sends, const void *buffer, int count, MPI_Datatype datatype, int peer, int tag, MPI_Comm comm)
{
    int *most = NULL, has_most = 0, error = MPI_SUCCESS;

    if (count < 0)
        return mpis_fail(comm, MPI_ERR_COUNT, "the count is %d: pass a number from 0 on", count);
    if (datatype == MPI_DATATYPE_NULL)
        return mpis_fail(comm, MPI_ERR_TYPE, "the datatype is MPI_DATATYPE_NULL");
    /* A datatype of absolute addresses begins at MPI_BOTTOM, which is null in many MPIs. */
    if (!buffer && count > 0 && peer != MPI_PROC_NULL && is_named(datatype))
        return mpis_fail(comm, MPI_ERR_BUFFER, "the buffer of %d elements is a null pointer: pass a valid one", count);
    if (sends || peer != MPI_ANY_SOURCE)
        error = mpis_check_peer(comm, peer);
    if (error != MPI_SUCCESS || (!sends && tag == MPI_ANY_TAG))
        return error;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &most, &has_most);
    return mpis_check_tag(comm, has_most ? *most : 32767, tag);
}

/* Has a stream trigger what the thread has MPI do. */
static int enqueue_mpi(struct mpix_operation *operation, MPI_Datatype datatype, int kind, void *const *stream)
{
    int gdsync_error, error = MPI_SUCCESS;

    if (!operation->is_in_graph)
        error = waiting_of(operation->comm, &operation->waiting);
    if (error == MPI_SUCCESS)
        error = keep_datatype(operation, datatype);
    if (error != MPI_SUCCESS)
        return error;
    /* The thread's share: it may start the operation as soon as that is enqueued. */
    operation->refs = 2;
    if (operation->waiting)
        __atomic_add_fetch(operation->waiting, 1, __ATOMIC_RELAXED);
    gdsync_error = gdsync_mpi_enqueue(kind, stream, operation->engine);
    if (!gdsync_error)
        return MPI_SUCCESS;
    error = mpis_fail_engine(operation->comm, gdsync_error);
    if (operation->waiting)
        __atomic_sub_fetch(operation->waiting, 1, __ATOMIC_RELEASE);
    end(operation);
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
        *request = operation;
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

/* The requests of a list that a stream can wait for. */
static int check_waitable(int count, MPIX_Request *reqs)
{
    int at, error = mpix_check_list(count, reqs);

    for (at = 0; at < count && error == MPI_SUCCESS; at++) {
        const struct mpix_request *each = reqs[at];
        if (each && each->kind != MPIX_ENQUEUED)
            return mpis_fail(MPI_COMM_WORLD, MPI_ERR_REQUEST,
                             "request %d of the list is partitioned: a stream cannot wait for it. Call MPIX_Wait", at);
    }
    return error;
}

/* Each launch writes the status that a graph's wait names. A stream's wait is for one launch, and which one that is, is not
 * known here. */
static int check_statuses(int count, MPIX_Request *reqs, int kind, void *const *stream)
{
    int at, is_graph = 0, gdsync_error = gdsync_mpi_is_graph(kind, stream, &is_graph);

    if (gdsync_error)
        return mpis_fail_engine(MPI_COMM_WORLD, gdsync_error);
    for (at = 0; at < count && !is_graph; at++) {
        const struct mpix_operation *each = reqs[at];
        if (each && each->is_in_graph)
            return mpis_fail(MPI_COMM_WORLD, MPI_ERR_UNSUPPORTED_OPERATION,
                             "request %d of the list is in a graph, and a stream's wait for it has no status: pass "
                             "MPI_STATUS_IGNORE, or have a graph wait for it", at);
    }
    return MPI_SUCCESS;
}

/* What a stream waits for: flags of the thread's, and messages that streams have posted. */
struct waits {
    const void **engines, **messages;
    size_t number, posted;
};

static void add(struct waits *waits, struct mpix_operation *operation, MPI_Status *status)
{
    /* The stream writes no status. */
    if (operation->is_by_stream && status != MPI_STATUS_IGNORE)
        mpix_message_watch(operation);
    if (operation->is_by_stream) {
        waits->messages[waits->posted++] = operation->message;
        return;
    }
    /* Before the stream may pass the wait. What a graph's wait wants stays. */
    if (!operation->is_in_graph || status != MPI_STATUS_IGNORE)
        want(operation, status);
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
            add(&waits, reqs[at], status);
    }
    gdsync_error = gdsync_mpi_enqueue_message_waits(kind, stream, waits.posted, waits.messages);
    if (!gdsync_error)
        gdsync_error = gdsync_mpi_enqueue_waits(kind, stream, waits.number, waits.engines);
    free(waits.engines);
    for (at = 0; at < count; at++) {
        struct mpix_operation *each = reqs[at];
        if (!each)
            continue;
        if (!gdsync_error) {
            mpix_operation_release(each);
            reqs[at] = MPIX_REQUEST_NULL;
        } else if (!each->is_by_stream && (!each->is_in_graph || statuses != MPI_STATUSES_IGNORE))
            want(each, MPI_STATUS_IGNORE);
    }
    return gdsync_error ? mpis_fail_engine(MPI_COMM_WORLD, gdsync_error) : MPI_SUCCESS;
}

int MPIX_Wait_enqueue(MPIX_Request *req, MPI_Status *status, int qtype, void *queue)
{
    return MPIX_Waitall_enqueue(1, req, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status, qtype, queue);
}
