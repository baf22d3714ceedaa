/* Requests of both libraries: their creation, reference counts, statuses, and the checks of their arguments. */
#include "internal.h"

#include <stdlib.h>

void mpis_status(MPI_Status *status, int peer, int tag, uint64_t bytes, int error)
{
    if (status == MPI_STATUS_IGNORE)
        return;
    status->MPI_SOURCE = peer;
    status->MPI_TAG = tag;
    status->MPI_ERROR = error;
    MPI_Status_set_elements_x(status, MPI_BYTE, (MPI_Count)bytes);
    MPI_Status_set_cancelled(status, 0);
}

void mpis_comm_hold(struct mpis_comm *comm)
{
    __atomic_add_fetch(&comm->refs, 1, __ATOMIC_RELAXED);
}

void mpis_request_hold(MPIS_Request request)
{
    __atomic_add_fetch(&request->refs, 1, __ATOMIC_RELAXED);
}

void mpis_request_release(MPIS_Request request)
{
    if (__atomic_sub_fetch(&request->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (request->target)
        mpis_request_release(request->target);
    if (request->engine)
        gdsync_mpi_request_free(request->engine);
    mpis_comm_release(request->comm);
    free(request->exchanges);
    free(request);
}

MPIS_Request mpis_request_new(enum mpis_kind kind, struct mpis_comm *comm)
{
    MPIS_Request request = calloc(1, sizeof *request);

    if (!request) {
        MPI_Comm handler = mpis_handler_of(comm);
        mpis_comm_release(comm);
        mpis_fail(handler, MPI_ERR_NO_MEM, "there is no memory for a request");
        return NULL;
    }
    request->kind = kind;
    request->state = MPIS_UNMATCHED;
    request->refs = 1;
    request->comm = comm;
    request->peer = MPI_PROC_NULL;
    request->tag = MPI_ANY_TAG;
    return request;
}

int mpis_request_made(MPIS_Request request, int gdsync_error, MPIS_Request *into)
{
    int error;

    if (gdsync_error == 0) {
        *into = request;
        return MPI_SUCCESS;
    }
    error = mpis_fail_engine(mpis_handler_of(request->comm), gdsync_error);
    mpis_request_release(request);
    return error;
}

int mpis_check_peer(MPI_Comm comm, int peer)
{
    int size = 0, is_inter = 0;

    MPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        MPI_Comm_remote_size(comm, &size);
    else
        MPI_Comm_size(comm, &size);
    if (peer == MPI_PROC_NULL || (peer >= 0 && peer < size))
        return MPI_SUCCESS;
    return mpis_fail(comm, MPI_ERR_RANK, "the rank is %d, but the communicator has the ranks 0 to %d", peer, size - 1);
}

int mpis_check_tag(MPI_Comm comm, int max_tag, int tag)
{
    if (tag >= 0 && tag <= max_tag)
        return MPI_SUCCESS;
    return mpis_fail(comm, MPI_ERR_TAG, "the tag is %d, but tags are 0 to %d", tag, max_tag);
}

int mpis_check_matched(const struct mpis_comm *known, int peer, int tag)
{
    MPI_Comm comm = known->program;
    int error;

    if (peer == MPI_ANY_SOURCE)
        return mpis_fail(comm, MPI_ERR_RANK,
                         "MPI_ANY_SOURCE: a request is matched with one peer, before it is started. Name its rank");
    if (tag == MPI_ANY_TAG)
        return mpis_fail(comm, MPI_ERR_TAG,
                         "MPI_ANY_TAG: a request is matched with one other, before it is started. Name its tag");
    error = mpis_check_peer(comm, peer);
    return error == MPI_SUCCESS ? mpis_check_tag(comm, known->max_tag, tag) : error;
}
