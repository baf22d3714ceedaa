/* Waits of the CPU, and the end of requests of both kinds. */
#include "mpix.h"

int mpix_check_request(const MPIX_Request *request)
{
    int error = mpix_check_running();

    if (error == MPI_SUCCESS && !request)
        error = mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    return error;
}

/* A request that is in a list twice would be completed, and released, twice. */
static int check_distinct(int count, const MPIX_Request *reqs)
{
    int at, first = 0;

    for (at = 0; at < count && !first; at++) {
        struct mpix_request *each = reqs[at];
        if (each && each->listed)
            first = each->listed;
        else if (each)
            each->listed = at + 1;
    }
    count = at;
    for (at = 0; at < count; at++)
        if (reqs[at])
            ((struct mpix_request *)reqs[at])->listed = 0;
    if (!first)
        return MPI_SUCCESS;
    return mpis_fail(MPI_COMM_WORLD, MPI_ERR_REQUEST, "request %d of the list is request %d of it, too: list each once",
                     count - 1, first - 1);
}

int mpix_check_list(int count, const MPIX_Request *reqs)
{
    int error = mpix_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (count < 0)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_COUNT, "the list has %d requests: pass a number from 0 on", count);
    if (count > 0 && !reqs)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the list of requests is a null pointer");
    return check_distinct(count, reqs);
}

int MPIX_Wait(MPIX_Request *req, MPI_Status *status)
{
    int error = mpix_check_request(req);
    struct mpix_request *request;

    if (error != MPI_SUCCESS)
        return error;
    request = *req;
    if (!request) {
        mpis_status(status, MPI_ANY_SOURCE, MPI_ANY_TAG, 0, MPI_SUCCESS);
        return MPI_SUCCESS;
    }
    if (request->kind == MPIX_PARTITIONED)
        return mpix_partitioned_wait((struct mpix_partitioned *)request, status);
    error = mpix_operation_wait((struct mpix_operation *)request, status);
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
    struct mpix_request *freed;

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
