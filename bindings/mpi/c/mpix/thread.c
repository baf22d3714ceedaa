/* The work of the thread that calls MPI on behalf of streams. Only one thread at a time calls these functions. */
#include "mpix.h"

#include <stdlib.h>

/* Operations that MPI has not completed: lists with the same indices. */
static MPI_Request *requests;
static struct mpix_operation **operations;
static int *indices;
static MPI_Status *statuses;
static int number, room;
static struct mpix_counts counts;

/* Makes room for another operation. */
static int grow(void)
{
    int more = room ? 2 * room : 64;
    void *lists[4] = {realloc(requests, more * sizeof *requests), NULL, NULL, NULL};

    /* A list that has moved is used from now on, even if another list gets no memory. */
    if (lists[0])
        requests = lists[0];
    if ((lists[1] = realloc(operations, more * sizeof *operations)))
        operations = lists[1];
    if ((lists[2] = realloc(indices, more * sizeof *indices)))
        indices = lists[2];
    if ((lists[3] = realloc(statuses, more * sizeof *statuses)))
        statuses = lists[3];
    if (!lists[0] || !lists[1] || !lists[2] || !lists[3])
        return MPI_ERR_NO_MEM;
    room = more;
    return MPI_SUCCESS;
}

static int call(struct mpix_operation *operation, MPI_Request *request)
{
    if (number == room && grow() != MPI_SUCCESS)
        return MPI_ERR_NO_MEM;
    if (operation->sends)
        return MPI_Isend(operation->buffer, operation->count, operation->datatype, operation->peer, operation->tag,
                         operation->comm, request);
    return MPI_Irecv(operation->buffer, operation->count, operation->datatype, operation->peer, operation->tag,
                     operation->comm, request);
}

void mpix_operation_start(void *given, int is_given_up)
{
    struct mpix_operation *operation = given;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    int done = 0, error = MPI_ERR_OTHER;

    operation->outstanding++;
    if (operation->link) {
        counts.given_up += is_given_up != 0;
        mpix_message_start(operation, is_given_up);
        return;
    }
    if (is_given_up)
        counts.given_up++;
    else if (operation->peer == MPI_PROC_NULL) {
        mpis_status(&status, MPI_PROC_NULL, MPI_ANY_TAG, 0, MPI_SUCCESS);
        error = MPI_SUCCESS;
        done = 1;
    } else {
        counts.sends += operation->sends != 0;
        counts.receives += operation->sends == 0;
        error = call(operation, &request);
        if (error == MPI_SUCCESS)
            error = MPI_Test(&request, &done, &status);
    }
    /* From here on the program may free the communicator. */
    if (operation->waiting)
        __atomic_sub_fetch(operation->waiting, 1, __ATOMIC_RELEASE);
    if (error != MPI_SUCCESS || done)
        mpix_operation_complete(operation, error, &status);
    else {
        requests[number] = request;
        operations[number++] = operation;
    }
}

int mpix_operations_progress(void)
{
    int at, kept = 0, completed = 0, rounds = 0, messages = 0, error;

    if (number > 0) {
        error = MPI_Testsome(number, requests, &completed, indices, statuses);
        for (at = 0; at < completed; at++) {
            int each = error == MPI_ERR_IN_STATUS ? statuses[at].MPI_ERROR : MPI_SUCCESS;
            mpix_operation_complete(operations[indices[at]], each, &statuses[at]);
            operations[indices[at]] = NULL;
        }
        for (at = 0; at < number; at++)
            if (operations[at]) {
                operations[kept] = operations[at];
                requests[kept++] = requests[at];
            }
        number = kept;
    }
    mpis_match_progress();
    gdsync_mpi_poll_partition_flags(&rounds);
    gdsync_mpi_links_progress(mpix_message_ended, &messages);
    return number + mpis_match_outstanding() + rounds + messages;
}

void mpix_operations_end(void)
{
    MPI_Status status;
    int at;

    for (at = 0; at < number; at++) {
        /* Cancels a receive that MPI has not matched. Sends cannot be cancelled, and are left to MPI. */
        if (operations[at]->sends)
            MPI_Request_free(&requests[at]);
        else {
            MPI_Cancel(&requests[at]);
            MPI_Wait(&requests[at], &status);
        }
        mpix_operation_complete(operations[at], MPI_ERR_OTHER, &status);
    }
    counts.given_up += number;
    number = 0;
}

void mpix_operations_counts(struct mpix_counts *into)
{
    *into = counts;
    counts = (struct mpix_counts){0, 0, 0};
}
