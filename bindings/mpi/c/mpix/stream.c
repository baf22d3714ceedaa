/* Software streams and their graphs. */
#include "mpix.h"

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

/* Returns the stream of a call, if MPI runs. */
static int running_stream(int qtype, void *queue, int *kind, void *const **stream)
{
    int error = mpis_check_running();

    return error == MPI_SUCCESS ? mpix_stream(MPI_COMM_WORLD, qtype, queue, kind, stream) : error;
}

int gdsync_mpix_launch(int qtype, void *queue, void (*function)(void *), void *argument)
{
    void *const *stream;
    int kind, error = running_stream(qtype, queue, &kind, &stream);

    return error == MPI_SUCCESS ? reported(gdsync_mpi_stream_launch(kind, stream, function, argument)) : error;
}

int gdsync_mpix_synchronize(int qtype, void *queue)
{
    void *const *stream;
    int kind, error = running_stream(qtype, queue, &kind, &stream);

    return error == MPI_SUCCESS ? reported(gdsync_mpi_stream_wait(kind, stream)) : error;
}

int gdsync_mpix_graph_launch(gdsync_mpix_graph graph, int qtype, void *queue)
{
    void *const *stream;
    int kind, error = running_stream(qtype, queue, &kind, &stream);

    return error == MPI_SUCCESS ? reported(gdsync_mpi_graph_launch(graph, kind, stream)) : error;
}

int gdsync_mpix_graph_destroy(gdsync_mpix_graph *graph)
{
    int error = mpis_check_running();

    if (error != MPI_SUCCESS)
        return error;
    if (!graph)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_ARG, "the graph is a null pointer: pass its address");
    error = reported(gdsync_mpi_graph_free(*graph));
    if (error == MPI_SUCCESS)
        *graph = NULL;
    return error;
}
