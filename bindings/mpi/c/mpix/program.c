/* The beginning and the end of the library. */
#include "mpix.h"

#include <pthread.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void end(void)
{
    struct gdsync_mpi_counts engine;
    struct mpix_counts counts;
    int rank = -1;

    pthread_mutex_lock(&lock);
    if (mpix_is_running()) {
        /* Calls are refused from now on. */
        mpix_set_running(0);
        gdsync_mpi_thread_stop();
        gdsync_mpi_links_finish(mpix_message_ended);
        mpix_operations_end();
        gdsync_mpi_graphs_end();
        mpix_operations_counts(&counts);
        if (gdsync_mpi_counts(&engine) == 0 && mpis_wants_statistics()) {
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            fprintf(stderr,
                    "gdsync-mpix rank %d: %llu sends and %llu receives by a thread of the CPU, %llu given up, "
                    "%llu partitions by the card; of links, %llu messages by streams and the card, and %llu by the thread\n",
                    rank, counts.sends, counts.receives, counts.given_up, (unsigned long long)engine.partitions,
                    (unsigned long long)engine.by_stream, (unsigned long long)engine.by_thread);
        }
    }
    pthread_mutex_unlock(&lock);
}

static void end_of_program(void)
{
    struct gdsync_mpi_counts counts;

    end();
    gdsync_mpi_finish(&counts);
}

static int begin(void)
{
    const struct gdsync_mpi_calls calls = {mpix_operation_start, mpix_operation_retire, mpix_operations_progress};
    struct mpis_comm *world;
    int level = MPI_THREAD_SINGLE, error;

    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_OTHER,
                         "MPI was initialized without MPI_THREAD_MULTIPLE (level %d), and a thread of this library calls "
                         "it: call MPI_Init_thread with MPI_THREAD_MULTIPLE", level);
    if (mpix_is_running())
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_OTHER,
                         "the library is initialized: call MPIX_Init once, and then MPIX_Finalize");
    mpis_on_finalize(end_of_program);
    error = mpix_operations_prepare();
    if (error == MPI_SUCCESS)
        error = mpis_comm_get(MPI_COMM_WORLD, &world);
    if (error != MPI_SUCCESS)
        return error;
    mpis_comm_release(world);
    error = mpix_link_world();
    if (error != MPI_SUCCESS)
        return error;
    error = gdsync_mpi_thread_start(&calls);
    if (error)
        return mpis_fail_engine(MPI_COMM_WORLD, error);
    mpix_set_running(1);
    return MPI_SUCCESS;
}

int MPIX_Init(void)
{
    int error = mpis_check_running();

    /* Without MPI there is no error handler to call. */
    if (error != MPI_SUCCESS)
        return error;
    pthread_mutex_lock(&lock);
    error = begin();
    pthread_mutex_unlock(&lock);
    return error;
}

int MPIX_Finalize(void)
{
    int error = mpix_check_running();

    if (error == MPI_SUCCESS)
        end();
    return error;
}
