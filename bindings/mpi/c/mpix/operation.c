/* A send or a receive that a stream or a graph triggers: its references, its completion and its status. */
#include "mpix.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define SLEEP_NS 50000

/* Guards the results of operations and the places of their statuses, and the attribute of communicators. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The attribute of a communicator: the number of its operations that no stream has triggered yet. */
static int waiting_key = MPI_KEYVAL_INVALID;

/* MPI does not know operations that no stream has triggered, so MPI_Comm_free waits for them. */
static int at_comm_free(MPI_Comm comm, int key, void *value, void *extra)
{
    const struct timespec interval = {0, SLEEP_NS};
    int *waiting = value;

    (void)key, (void)extra;
    if (comm == MPI_COMM_SELF)
        mpis_end_of_program();
    while (__atomic_load_n(waiting, __ATOMIC_ACQUIRE) > 0)
        nanosleep(&interval, NULL);
    free(waiting);
    return MPI_SUCCESS;
}

int mpix_operations_prepare(void)
{
    if (waiting_key != MPI_KEYVAL_INVALID)
        return MPI_SUCCESS;
    return MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_comm_free, &waiting_key, NULL);
}

int mpix_operation_waiting(MPI_Comm comm, int **waiting)
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

void mpix_operation_end(struct mpix_operation *operation)
{
    if (operation->is_duplicate)
        MPI_Type_free(&operation->datatype);
    operation->is_duplicate = 0;
}

void mpix_operation_retire(void *given)
{
    mpix_operation_end(given);
    mpix_operation_release(given);
}

void mpix_operation_complete(struct mpix_operation *operation, int error, const MPI_Status *status)
{
    int is_in_graph = operation->is_in_graph, outstanding = --operation->outstanding;

    if (!is_in_graph)
        mpix_operation_end(operation);
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
    /* After the status is written: streams go on from here. The last of several launches may free the operation. */
    if (!is_in_graph || outstanding == 0)
        gdsync_mpi_operation_completed(operation->engine);
    if (!is_in_graph)
        mpix_operation_release(operation);
}

void mpix_operation_want(struct mpix_operation *operation, MPI_Status *status)
{
    pthread_mutex_lock(&lock);
    operation->wanted = status == MPI_STATUS_IGNORE ? NULL : status;
    if (operation->wanted && operation->is_complete)
        *operation->wanted = operation->status;
    pthread_mutex_unlock(&lock);
}

int mpix_operation_result(struct mpix_operation *operation, MPI_Status *status)
{
    int error;

    pthread_mutex_lock(&lock);
    if (status != MPI_STATUS_IGNORE)
        *status = operation->status;
    error = operation->error;
    pthread_mutex_unlock(&lock);
    return error;
}
