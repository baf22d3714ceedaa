/* Waits of the CPU, and the end of requests of both kinds. */
#include "mpix.h"

static int wait_for_operation(struct mpix_operation *operation, MPI_Status *status)
{
    int error;

    if (operation->is_by_stream)
        error = mpix_message_wait(operation, status);
    else {
        gdsync_mpi_operation_wait(operation->engine);
        error = mpix_operation_result(operation, status);
    }
    mpix_operation_release(operation);
    return error;
}

int MPIX_Wait(MPIX_Request *req, MPI_Status *status)
{
    int error = mpix_check_request(req);
    struct gdsync_mpix_request *request;

    if (error != MPI_SUCCESS)
        return error;
    request = *req;
    if (!request) {
        mpis_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, MPI_SUCCESS);
        return MPI_SUCCESS;
    }
    if (request->kind == MPIX_PARTITIONED)
        return mpix_partitioned_wait((struct mpix_partitioned *)request, status);
    error = wait_for_operation((struct mpix_operation *)request, status);
    *req = MPIX_REQUEST_NULL;
    return error;
}

int MPIX_Waitall(int count, MPIX_Request *reqs, MPI_Status *statuses)
{
    int at, each, error = mpix_check_list(count, reqs);

    if (error != MPI_SUCCESS)
        return error;
    for (at = 0; at < count; at++) {
        each = MPIX_Wait(&reqs[at], statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[at]);
        error = error == MPI_SUCCESS ? each : error;
    }
    return error;
}

int MPIX_Request_free(MPIX_Request *request)
{
    int error = mpix_check_request(request);
    struct gdsync_mpix_request *freed;

    if (error != MPI_SUCCESS)
        return error;
    freed = *request;
    if (freed && freed->kind == MPIX_PARTITIONED)
        mpix_partitioned_free((struct mpix_partitioned *)freed);
    else if (freed)
        mpix_operation_release((struct mpix_operation *)freed);
    *request = MPIX_REQUEST_NULL;
    return MPI_SUCCESS;
}
