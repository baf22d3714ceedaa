/* Links: the card carries the messages of a linked communicator, without MPI. */
#include "mpix.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int mpix_link_world(void)
{
    const char *wanted = getenv("GDSYNC_MPIX_LINKS");

    if (!wanted || strcmp(wanted, "0") == 0)
        return MPI_SUCCESS;
    if (strcmp(wanted, "1") != 0)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG,
                         "GDSYNC_MPIX_LINKS is \"%s\", neither 0 nor 1: unset it or correct it", wanted);
    return mpis_comm_link(MPI_COMM_WORLD);
}

int gdsync_mpix_link(MPI_Comm comm)
{
    int error = mpix_check_running();

    return error == MPI_SUCCESS ? mpis_comm_link(comm) : error;
}

/* Makes a link and begins its match, in the order of first messages. */
static int make(struct mpis_comm *known, int sends, int peer, int tag, struct mpis_link **made)
{
    struct mpis_link *new = calloc(1, sizeof *new);
    MPIS_Request matched;
    int error;

    if (!new)
        return mpis_fail(known->program, MPI_ERR_NO_MEM, "there is no memory for a link");
    *new = (struct mpis_link){.sends = sends, .peer = peer, .tag = tag};
    mpis_comm_hold(known);
    matched = mpis_request_new(MPIS_LINK, known);
    if (!matched) {
        free(new);
        return MPI_ERR_NO_MEM;
    }
    matched->peer = peer;
    matched->tag = tag;
    error = mpis_request_made(matched, gdsync_mpi_link(sends, &matched->engine), &new->matched);
    if (error == MPI_SUCCESS && (error = mpis_match_begin(matched)) != MPI_SUCCESS)
        mpis_request_release(matched);
    if (error != MPI_SUCCESS) {
        free(new);
        return error;
    }
    gdsync_mpi_thread_wake();
    *made = new;
    return MPI_SUCCESS;
}

int mpix_link_of(MPI_Comm comm, int sends, int peer, int tag, MPIS_Request *link)
{
    struct mpis_comm *known = mpis_comm_linked(comm);
    struct mpis_link **at, *found;
    int error = MPI_SUCCESS;

    *link = NULL;
    if (!known || peer == MPI_PROC_NULL)
        return MPI_SUCCESS;
    error = mpis_check_matched(known, peer, tag);
    if (error != MPI_SUCCESS)
        return error;
    pthread_mutex_lock(&lock);
    for (at = &known->links; (found = *at) != NULL; at = &found->next)
        if (found->peer == peer && found->tag == tag && found->sends == sends)
            break;
    if (found)
        *at = found->next;
    else
        error = make(known, sends, peer, tag, &found);
    /* Moves the link to the front, to be found first. */
    if (error == MPI_SUCCESS) {
        found->next = known->links;
        known->links = found;
        *link = found->matched;
        mpis_request_hold(*link);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

void mpix_message_ended(void *given, int gdsync_class, const char *text, uint64_t bytes)
{
    struct mpix_operation *operation = given;
    MPI_Status status;
    int error = gdsync_class ? mpis_code(mpis_class(gdsync_class), text) : MPI_SUCCESS;

    mpis_status(&status, operation->peer, operation->tag, bytes, error);
    mpix_operation_complete(operation, error, &status);
}

int mpix_message_enqueue(struct mpix_operation *operation, int count, MPI_Datatype datatype, int kind,
                         void *const *stream)
{
    MPI_Comm comm = operation->comm;
    uint64_t bytes;
    MPI_Aint start;
    int gdsync_error, error = mpis_contiguous(comm, count, datatype, &start, &bytes);

    if (error != MPI_SUCCESS)
        return error;
    gdsync_error = gdsync_mpi_message(operation->link->engine, operation, bytes ? (char *)operation->buffer + start : NULL,
                                      bytes, &operation->message);
    if (!gdsync_error)
        gdsync_error = gdsync_mpi_message_enqueue(operation->link->engine, kind, stream, operation->message,
                                                  &operation->is_by_stream);
    if (gdsync_error)
        return mpis_fail_engine(comm, gdsync_error);
    if (operation->is_by_stream)
        return MPI_SUCCESS;
    /* The thread's reference. */
    __atomic_add_fetch(&operation->refs, 1, __ATOMIC_RELAXED);
    gdsync_error = gdsync_mpi_enqueue(kind, stream, operation->engine);
    if (!gdsync_error)
        return MPI_SUCCESS;
    error = mpis_fail_engine(comm, gdsync_error);
    gdsync_mpi_message_withdraw(operation->link->engine, operation->message);
    mpix_operation_release(operation);
    return error;
}

void mpix_message_start(struct mpix_operation *operation, int is_given_up)
{
    int gdsync_error = 0;

    if (!is_given_up)
        gdsync_error = gdsync_mpi_message_trigger(operation->link->engine, operation->message);
    else
        gdsync_mpi_message_withdraw(operation->link->engine, operation->message);
    if (is_given_up || gdsync_error)
        mpix_message_ended(operation, gdsync_error ? gdsync_error : GDSYNC_MPI_OTHER,
                           "the library was finalized before the stream reached the message", 0);
}

void mpix_message_watch(struct mpix_operation *operation)
{
    /* The thread's reference. */
    __atomic_add_fetch(&operation->refs, 1, __ATOMIC_RELAXED);
    operation->is_by_stream = 0;
    gdsync_mpi_message_watch(operation->link->engine, operation->message);
}

int mpix_message_wait(struct mpix_operation *operation, MPI_Status *status)
{
    uint64_t bytes = 0;
    int gdsync_error = gdsync_mpi_message_wait(operation->link->engine, operation->message, &bytes);
    int error = gdsync_error ? mpis_fail_engine(mpis_handler_of(operation->link->comm), gdsync_error) : MPI_SUCCESS;

    mpis_status(status, operation->peer, operation->tag, bytes, error);
    return error;
}
