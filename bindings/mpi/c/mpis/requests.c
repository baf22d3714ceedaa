/* Creates and frees requests of MPIS_*. */
#include "internal.h"

const MPIS_Request MPIS_REQUEST_NULL = 0;

int mpis_request_check(const MPIS_Request *request)
{
    if (mpis_check_running() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    if (!request)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    if (*request == MPIS_REQUEST_NULL)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_REQUEST,
                         "the request is MPIS_REQUEST_NULL: it was never made, or freed");
    return MPI_SUCCESS;
}

static int transfer(int sends, void *buffer, MPI_Count count, MPI_Datatype datatype, int peer, int tag, MPI_Comm comm,
                    MPIS_Request *into)
{
    struct mpis_comm *known;
    MPIS_Request request;
    MPI_Aint start;
    uint64_t bytes;
    int error = mpis_library_comm(comm, &known);

    if (error != MPI_SUCCESS)
        return error;
    if (!into)
        error = mpis_fail(comm, MPI_ERR_ARG, "the place for the request is a null pointer");
    if (error == MPI_SUCCESS)
        error = mpis_check_matched(known, peer, tag);
    if (error == MPI_SUCCESS)
        error = mpis_contiguous(comm, count, datatype, &start, &bytes);
    if (error == MPI_SUCCESS && bytes > 0 && !buffer)
        error = mpis_fail(comm, MPI_ERR_BUFFER,
                          "the buffer of %llu bytes is a null pointer (or MPI_BOTTOM): pass a valid one",
                          (unsigned long long)bytes);
    if (error != MPI_SUCCESS) {
        mpis_comm_release(known);
        return error;
    }
    request = mpis_request_new(MPIS_TRANSFER, known);
    if (!request)
        return MPI_ERR_NO_MEM;
    request->peer = peer;
    request->tag = tag;
    if (peer == MPI_PROC_NULL)
        return mpis_request_made(request, 0, into);
    buffer = bytes ? (char *)buffer + start : NULL;
    return mpis_request_made(request, gdsync_mpi_transfer(sends, buffer, bytes, &request->engine), into);
}

int MPIS_Send_init(const void *buffer, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                   MPI_Info info, MPIS_Request *request)
{
    (void)info;
    return transfer(1, (void *)buffer, count, datatype, dest, tag, comm, request);
}

/* A ready send is an ordinary one: it does not rely on a posted receive. */
int MPIS_Rsend_init(const void *buffer, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                    MPI_Info info, MPIS_Request *request)
{
    return MPIS_Send_init(buffer, count, datatype, dest, tag, comm, info, request);
}

int MPIS_Recv_init(void *buffer, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                   MPI_Info info, MPIS_Request *request)
{
    (void)info;
    return transfer(0, buffer, count, datatype, source, tag, comm, request);
}

/* Makes a collective without its Rust request. All ranks make collectives in the same order, so their number is the tag. */
static int collective(MPI_Comm comm, MPIS_Request *into, MPIS_Request *request, int *rank, int *size)
{
    struct mpis_comm *known;
    int error = mpis_library_comm(comm, &known);

    if (error != MPI_SUCCESS)
        return error;
    if (!into) {
        mpis_comm_release(known);
        return mpis_fail(comm, MPI_ERR_ARG, "the place for the request is a null pointer");
    }
    *request = mpis_request_new(MPIS_COLLECTIVE, known);
    if (!*request)
        return MPI_ERR_NO_MEM;
    (*request)->tag = known->next_number;
    known->next_number = known->next_number == known->max_tag ? 0 : known->next_number + 1;
    MPI_Comm_rank(comm, rank);
    MPI_Comm_size(comm, size);
    return MPI_SUCCESS;
}

int MPIS_Barrier_init(MPI_Comm comm, MPI_Info info, MPIS_Request *request)
{
    MPIS_Request new;
    int rank, size, error = collective(comm, request, &new, &rank, &size);

    (void)info;
    return error == MPI_SUCCESS ? mpis_request_made(new, gdsync_mpi_barrier(rank, size, &new->engine), request) : error;
}

int MPIS_Allreduce_init(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                        MPI_Info info, MPIS_Request *request)
{
    struct gdsync_mpi_reduction what = {sendbuf == MPI_IN_PLACE ? NULL : sendbuf, recvbuf, 0, 0, 0, 0, 0};
    MPIS_Request new;
    int error = collective(comm, request, &new, &what.rank, &what.size);

    (void)info;
    if (error != MPI_SUCCESS)
        return error;
    if (count < 0)
        error = mpis_fail(comm, MPI_ERR_COUNT, "the count is %d: pass a number from 0 on", count);
    else if (count > 0 && (!recvbuf || !sendbuf))
        error = mpis_fail(comm, MPI_ERR_BUFFER, "a buffer of the all-reduce is a null pointer: pass a valid one");
    if (error == MPI_SUCCESS)
        error = mpis_element(comm, datatype, &what.element);
    if (error == MPI_SUCCESS)
        error = mpis_operation(comm, op, &what.operation);
    if (error != MPI_SUCCESS) {
        mpis_request_release(new);
        return error;
    }
    what.count = (uint64_t)count;
    return mpis_request_made(new, gdsync_mpi_allreduce(&what, &new->engine), request);
}

int MPIS_Request_free(MPIS_Request *request)
{
    if (mpis_check_running() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    if (!request)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    if (*request != MPIS_REQUEST_NULL)
        mpis_request_release(*request);
    *request = MPIS_REQUEST_NULL;
    return MPI_SUCCESS;
}
