/* Streams: those that the program names, and software streams. */
#include "mpix.h"

int mpix_stream(MPI_Comm comm, int qtype, void *queue, int *kind, void *const **stream)
{
    if (qtype == MPIX_QUEUE_CUDA_GRAPH)
        return mpis_fail(comm, MPI_ERR_UNSUPPORTED_OPERATION,
                         "MPIX_QUEUE_CUDA_GRAPH is not supported: a graph is launched any number of times, and a request "
                         "is triggered once. Enqueue on a stream (MPIX_QUEUE_CUDA_STREAM)");
    if (qtype != MPIX_QUEUE_CUDA_STREAM && qtype != MPIX_QUEUE_GDSYNC_SOFTWARE)
        return mpis_fail(comm, MPI_ERR_ARG,
                         "there are no queues of type %d: use MPIX_QUEUE_CUDA_STREAM (%d) or MPIX_QUEUE_GDSYNC_SOFTWARE "
                         "(%d)", qtype, MPIX_QUEUE_CUDA_STREAM, MPIX_QUEUE_GDSYNC_SOFTWARE);
    if (!queue)
        return mpis_fail(comm, MPI_ERR_ARG, "the queue is a null pointer: pass the address of a stream");
    *kind = qtype == MPIX_QUEUE_CUDA_STREAM ? GDSYNC_MPI_CUDA : GDSYNC_MPI_SOFTWARE;
    *stream = queue;
    return MPI_SUCCESS;
}

/* Errors of streams have no communicator. */
static int reported(int gdsync_error)
{
    return gdsync_error ? mpis_fail_engine(MPI_COMM_WORLD, gdsync_error) : MPI_SUCCESS;
}

int gdsync_mpix_stream_create(gdsync_mpix_stream *stream)
{
    const void *made = NULL;
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!stream)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the place for the stream is a null pointer");
    error = reported(gdsync_mpi_queue(NULL, &made));
    if (error == MPI_SUCCESS)
        *stream = (gdsync_mpix_stream)made;
    return error;
}

int gdsync_mpix_stream_destroy(gdsync_mpix_stream *stream)
{
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!stream)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the stream is a null pointer: pass its address");
    error = reported(gdsync_mpi_queue_free(*stream));
    if (error == MPI_SUCCESS)
        *stream = NULL;
    return error;
}

int gdsync_mpix_launch(int qtype, void *queue, void (*function)(void *), void *argument)
{
    void *const *stream;
    int kind, error = mpis_check_running();

    if (error == MPI_SUCCESS)
        error = mpix_stream(MPI_COMM_WORLD, qtype, queue, &kind, &stream);
    return error == MPI_SUCCESS ? reported(gdsync_mpi_stream_launch(kind, stream, function, argument)) : error;
}

int gdsync_mpix_synchronize(int qtype, void *queue)
{
    void *const *stream;
    int kind, error = mpis_check_running();

    if (error == MPI_SUCCESS)
        error = mpix_stream(MPI_COMM_WORLD, qtype, queue, &kind, &stream);
    return error == MPI_SUCCESS ? reported(gdsync_mpi_stream_wait(kind, stream)) : error;
}
