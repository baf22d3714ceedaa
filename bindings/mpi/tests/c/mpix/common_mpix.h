/* Helpers of the test programs of libgdsync-mpix. */
#ifndef COMMON_MPIX_H
#define COMMON_MPIX_H

#define WITH_THREADS 1
#include "common.h"
#include "mpi-acx.h"

#define SOFTWARE MPIX_QUEUE_GDSYNC_SOFTWARE

static gdsync_mpix_stream stream;

/* The library, with a software stream. */
static inline void begin_mpix(void)
{
    begin();
    OK(MPIX_Init());
    OK(gdsync_mpix_stream_create(&stream));
}

static inline void end_mpix(const char *said)
{
    OK(gdsync_mpix_stream_destroy(&stream));
    CHECK(!stream);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPIX_Finalize());
    end(said);
}

static inline int send_to(int peer, int tag, const void *buffer, int count, MPI_Datatype type, MPI_Comm comm,
                          MPIX_Request *request)
{
    return MPIX_Isend_enqueue(buffer, count, type, peer, tag, comm, request, SOFTWARE, &stream);
}

static inline int receive_from(int peer, int tag, void *buffer, int count, MPI_Datatype type, MPI_Comm comm,
                               MPIX_Request *request)
{
    return MPIX_Irecv_enqueue(buffer, count, type, peer, tag, comm, request, SOFTWARE, &stream);
}

static inline int wait_for(MPIX_Request *request, MPI_Status *status)
{
    return MPIX_Wait_enqueue(request, status, SOFTWARE, &stream);
}

static inline int synchronize(void)
{
    return gdsync_mpix_synchronize(SOFTWARE, &stream);
}

#endif
