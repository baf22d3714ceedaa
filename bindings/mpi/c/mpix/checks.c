/* Checks of the library's state and of arguments. */
#include "mpix.h"

static int is_running;

void mpix_set_running(int running)
{
    __atomic_store_n(&is_running, running, __ATOMIC_RELEASE);
}

int mpix_is_running(void)
{
    return __atomic_load_n(&is_running, __ATOMIC_ACQUIRE);
}

int mpix_check_running(void)
{
    if (mpis_check_running() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    if (!mpix_is_running())
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_OTHER, "the library is not initialized: call MPIX_Init first");
    return MPI_SUCCESS;
}

int mpix_stream(MPI_Comm comm, int qtype, void *queue, int *kind, void *const **stream)
{
    switch (qtype) {
    case MPIX_QUEUE_CUDA_STREAM:
        *kind = GDSYNC_MPI_CUDA;
        break;
    case MPIX_QUEUE_CUDA_GRAPH:
        *kind = GDSYNC_MPI_CUDA_GRAPH;
        break;
    case MPIX_QUEUE_GDSYNC_SOFTWARE:
        *kind = GDSYNC_MPI_SOFTWARE;
        break;
    case MPIX_QUEUE_GDSYNC_GRAPH:
        *kind = GDSYNC_MPI_SOFTWARE_GRAPH;
        break;
    default:
        return mpis_fail(comm, MPI_ERR_ARG,
                         "there are no queues of type %d: use MPIX_QUEUE_CUDA_STREAM (%d), MPIX_QUEUE_CUDA_GRAPH (%d), "
                         "MPIX_QUEUE_GDSYNC_SOFTWARE (%d) or MPIX_QUEUE_GDSYNC_GRAPH (%d)", qtype, MPIX_QUEUE_CUDA_STREAM,
                         MPIX_QUEUE_CUDA_GRAPH, MPIX_QUEUE_GDSYNC_SOFTWARE, MPIX_QUEUE_GDSYNC_GRAPH);
    }
    if (!queue)
        return mpis_fail(comm, MPI_ERR_ARG, "the queue is a null pointer: pass the address of a stream or of a graph");
    *stream = queue;
    return MPI_SUCCESS;
}

int mpix_check_request(const MPIX_Request *request)
{
    int error = mpix_check_running();

    if (error == MPI_SUCCESS && !request)
        error = mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the request is a null pointer: pass its address");
    return error;
}

/* Refuses a list that has a request twice, which would complete and release it twice. */
static int check_distinct(int count, const MPIX_Request *reqs)
{
    int at, first = 0;

    for (at = 0; at < count && !first; at++) {
        struct gdsync_mpix_request *each = reqs[at];
        if (each && each->listed)
            first = each->listed;
        else if (each)
            each->listed = at + 1;
    }
    count = at;
    for (at = 0; at < count; at++)
        if (reqs[at])
            reqs[at]->listed = 0;
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
