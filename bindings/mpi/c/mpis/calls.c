/* Matching and waiting calls, and lists of requests. */
#include "internal.h"

#include <stdlib.h>

/* Returns the place of a request's status in a list. */
static MPI_Status *status_at(MPI_Status statuses[], int index)
{
    return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[index];
}

static int check_list(int len, MPIS_Request requests[])
{
    if (mpis_check_running() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    if (len < 0)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_COUNT, "the list has %d requests: pass a number from 0 on", len);
    if (len > 0 && !requests)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the list of requests is a null pointer");
    return MPI_SUCCESS;
}

int MPIS_Match(MPIS_Request *request, MPI_Status *status)
{
    int error = mpis_request_check(request);

    if (error == MPI_SUCCESS)
        error = mpis_match_begin(*request);
    return error == MPI_SUCCESS ? mpis_match_end(*request, status) : error;
}

/* Begins all matches before it waits for any, so ranks may list their requests in any order. */
int MPIS_Matchall(int len, MPIS_Request requests[], MPI_Status statuses[])
{
    int index, each, error = check_list(len, requests);

    for (index = 0; index < len && error == MPI_SUCCESS; index++)
        error = mpis_request_check(&requests[index]);
    if (error != MPI_SUCCESS)
        return error;
    for (index = 0; index < len && error == MPI_SUCCESS; index++)
        error = mpis_match_begin(requests[index]);
    /* A refused match did not begin, nor did those after it. */
    len = error == MPI_SUCCESS ? len : index - 1;
    for (index = 0; index < len; index++) {
        each = mpis_match_end(requests[index], status_at(statuses, index));
        error = error == MPI_SUCCESS ? each : error;
    }
    return error;
}

int MPIS_Imatch(MPIS_Request *request, MPIS_Request *match_request)
{
    MPIS_Request made;
    int error = mpis_request_check(request);

    if (error != MPI_SUCCESS)
        return error;
    if (!match_request)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the place for the match request is a null pointer");
    made = calloc(1, sizeof *made);
    if (!made)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_NO_MEM, "there is no memory for a request");
    error = mpis_match_begin(*request);
    if (error != MPI_SUCCESS) {
        free(made);
        return error;
    }
    made->kind = MPIS_MATCH;
    made->refs = 1;
    made->target = *request;
    mpis_request_hold(made->target);
    *match_request = made;
    return MPI_SUCCESS;
}

int MPIS_Is_matched(MPIS_Request *request, int *matched)
{
    int error = mpis_request_check(request);
    MPIS_Request asked;

    if (error != MPI_SUCCESS)
        return error;
    if (!matched)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the place for the answer is a null pointer");
    asked = (*request)->kind == MPIS_MATCH ? (*request)->target : *request;
    mpis_match_progress();
    *matched = asked->state == MPIS_MATCHED;
    if (asked->state == MPIS_FAILED)
        return mpis_fail(mpis_handler_of(asked->comm), asked->failed, "%s", asked->text);
    return MPI_SUCCESS;
}

int MPIS_Wait(MPIS_Request *request, MPI_Status *status)
{
    MPIS_Request waited;
    uint64_t bytes = 0;
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!request)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    waited = *request;
    if (waited && waited->kind == MPIS_MATCH) {
        error = mpis_match_end(waited->target, status);
        mpis_request_release(waited);
        *request = MPIS_REQUEST_NULL;
        return error;
    }
    if (!waited || !waited->engine || waited->state != MPIS_MATCHED) {
        mpis_status(status, waited && waited->peer == MPI_PROC_NULL ? MPI_PROC_NULL : MPI_ANY_SOURCE, MPI_ANY_TAG, 0,
                    MPI_SUCCESS);
        return MPI_SUCCESS;
    }
    mpis_match_progress();
    error = gdsync_mpi_wait(waited->engine, &bytes);
    if (error)
        error = mpis_fail_engine(mpis_handler_of(waited->comm), error);
    mpis_status(status, waited->peer, waited->tag, bytes, error);
    return error;
}

int MPIS_Waitall(int len, MPIS_Request requests[], MPI_Status statuses[])
{
    int index, each, error = check_list(len, requests);

    if (error != MPI_SUCCESS)
        return error;
    for (index = 0; index < len; index++) {
        each = MPIS_Wait(&requests[index], status_at(statuses, index));
        error = error == MPI_SUCCESS ? each : error;
    }
    return error;
}

int MPIS_Request_freeall(int len, MPIS_Request requests[])
{
    int index, error = check_list(len, requests);

    for (index = 0; index < len && error == MPI_SUCCESS; index++)
        error = MPIS_Request_free(&requests[index]);
    return error;
}
