/* Queues, and memory. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

const uintptr_t MPIS_QUEUE_NULL = 0;

/* The Rust part checks the pointer before it uses it. */
static const void *engine_of(MPIS_Queue queue)
{
    return (const void *)queue;
}

/* Errors of queues have no communicator. */
static int reported(int gdsync_error)
{
    return gdsync_error ? mpis_fail_engine(MPI_COMM_WORLD, gdsync_error) : MPI_SUCCESS;
}

int MPIS_Queue_init(MPIS_Queue *queue, MPIS_Queue_type type, void *stream)
{
    const void *made = NULL;
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!queue)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the place for the queue is a null pointer");
    if (type != THREAD && type != GPU_MEM_OPS)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_UNSUPPORTED_OPERATION,
                         "queues of type %d are not supported: use GPU_MEM_OPS (%d) or THREAD (%d)", (int)type,
                         (int)GPU_MEM_OPS, (int)THREAD);
    if (type == GPU_MEM_OPS && !stream)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG,
                         "the stream is a null pointer: pass the address of a cudaStream_t");
    error = reported(gdsync_mpi_queue(type == THREAD ? NULL : stream, &made));
    if (error == MPI_SUCCESS)
        *queue = (MPIS_Queue)made;
    return error;
}

int MPIS_Queue_free(MPIS_Queue *queue)
{
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!queue)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the queue is a null pointer: pass its address");
    error = reported(gdsync_mpi_queue_free(engine_of(*queue)));
    if (error == MPI_SUCCESS)
        *queue = MPIS_QUEUE_NULL;
    return error;
}

int MPIS_Queue_wait(MPIS_Queue queue)
{
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    mpis_match_progress();
    return reported(gdsync_mpi_queue_wait(engine_of(queue)));
}

int MPIS_Queue_match(MPIS_Queue queue, MPIS_Request *request, MPI_Status *status)
{
    if (queue == MPIS_QUEUE_NULL && mpis_check_running() == MPI_SUCCESS)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the queue is MPIS_QUEUE_NULL");
    return MPIS_Match(request, status);
}

int MPIS_Enqueue_startall(MPIS_Queue queue, int len, MPIS_Request requests[])
{
    const void **engines;
    int index, error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (len < 0 || (len > 0 && !requests))
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the list of %d requests is a null pointer or has no length",
                         len);
    mpis_match_progress();
    engines = malloc((len ? len : 1) * sizeof *engines);
    if (!engines)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_NO_MEM, "there is no memory for a list of %d requests", len);
    for (index = 0; index < len && error == MPI_SUCCESS; index++) {
        error = mpis_request_check(&requests[index]);
        if (error != MPI_SUCCESS)
            break;
        if (requests[index]->kind == MPIS_MATCH || requests[index]->state != MPIS_MATCHED)
            error = mpis_fail(mpis_handler_of(requests[index]->comm), MPI_ERR_REQUEST,
                              "request %d of the list is not matched: match it before it is started", index);
        engines[index] = requests[index]->engine;
    }
    if (error == MPI_SUCCESS) {
        error = gdsync_mpi_start(engine_of(queue), (size_t)len, engines);
        if (error)
            error = mpis_fail_engine(len ? mpis_handler_of(requests[0]->comm) : MPI_COMM_WORLD, error);
    }
    free(engines);
    return error;
}

int MPIS_Enqueue_start(MPIS_Queue queue, MPIS_Request *request)
{
    return MPIS_Enqueue_startall(queue, 1, request);
}

int MPIS_Enqueue_waitall(MPIS_Queue queue)
{
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    mpis_match_progress();
    return reported(gdsync_mpi_enqueue_wait(engine_of(queue)));
}

int gdsync_mpis_launch(MPIS_Queue queue, void (*function)(void *), void *argument)
{
    int error = mpis_check_running();

    return error == MPI_SUCCESS ? reported(gdsync_mpi_launch(engine_of(queue), function, argument)) : error;
}

int MPIS_Alloc_mem(MPI_Aint size, MPI_Info info, void **baseptr)
{
    char kind[MPI_MAX_INFO_VAL + 1] = "system";
    int error = mpis_check_running(), is_set;

    if (error != MPI_SUCCESS)
        return error;
    if (!baseptr || size < 0)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG,
                         "the size is %lld, or the place for the address is a null pointer", (long long)size);
    if (info != MPI_INFO_NULL)
        MPI_Info_get(info, "mpi_memory_alloc_kinds", MPI_MAX_INFO_VAL, kind, &is_set);
    if (strcmp(kind, "system") != 0 && strcmp(kind, "cuda:device") != 0)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_INFO_VALUE,
                         "mpi_memory_alloc_kinds is \"%.60s\": the kinds are \"system\" and \"cuda:device\"", kind);
    return reported(gdsync_mpi_allocate((uint64_t)size, kind[0] == 'c', baseptr));
}

int MPIS_Free_mem(void *baseptr)
{
    int error = mpis_check_running();

    return error == MPI_SUCCESS ? reported(gdsync_mpi_deallocate(baseptr)) : error;
}
