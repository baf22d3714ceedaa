/* Stream-triggered MPI: the interface of NVIDIA's mpi-acx, on gdsync (libgdsync-mpix).
 *
 * Sends and receives that a CUDA stream starts and waits for, and partitioned transfers. docs/mpi.md of gdsync
 * describes every call and what it returns: MPI_SUCCESS, or an error code of MPI whose text MPI_Error_string has, after
 * the communicator's error handler was called. */
#ifndef GDSYNC_MPI_ACX_H
#define GDSYNC_MPI_ACX_H

#include <mpi.h>
#include <stddef.h>

#include "gdsync/mpix_device.h"

/* Programs of the original expect them; the library needs neither. */
#ifdef __has_include
#if __has_include(<cuda.h>) && __has_include(<cuda_runtime.h>)
#include <cuda.h>
#include <cuda_runtime.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef void *MPIX_Request;
typedef void *MPIX_Prequest;

#define MPIX_REQUEST_NULL NULL
#define MPIX_PREQUEST_NULL NULL

/* What the argument `queue` points to. */
enum {
    /* A cudaStream_t. On a machine without CUDA the null stream is a software stream of the process. */
    MPIX_QUEUE_CUDA_STREAM = 0,
    /* A cudaGraph_t, which the call makes: each launch of a graph that has it as a child performs the operation anew. (So does a
     * launch of what a stream has captured.) The current context is that of its GPU. */
    MPIX_QUEUE_CUDA_GRAPH = 1,
    /* gdsync's own: a gdsync_mpix_stream. */
    MPIX_QUEUE_GDSYNC_SOFTWARE = 100,
    /* gdsync's own: a gdsync_mpix_graph, which the call makes. */
    MPIX_QUEUE_GDSYNC_GRAPH = 101
};

/* Collective over MPI_COMM_WORLD. */
int MPIX_Init(void);
int MPIX_Finalize(void);

int MPIX_Isend_enqueue(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                       MPIX_Request *request, int qtype, void *queue);
int MPIX_Irecv_enqueue(void *buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                       MPIX_Request *request, int qtype, void *queue);
int MPIX_Wait_enqueue(MPIX_Request *req, MPI_Status *status, int qtype, void *queue);
int MPIX_Waitall_enqueue(int count, MPIX_Request *reqs, MPI_Status *statuses, int qtype, void *queue);

int MPIX_Psend_init(const void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                    MPI_Comm comm, MPI_Info info, MPIX_Request *request);
int MPIX_Precv_init(void *buf, int partitions, MPI_Count count, MPI_Datatype datatype, int source, int tag,
                    MPI_Comm comm, MPI_Info info, MPIX_Request *request);
int MPIX_Start(MPIX_Request *request);
int MPIX_Startall(int count, MPIX_Request *request);
/* For kernels; of a request that is not active. It is the request's until that is freed. */
int MPIX_Prequest_create(MPIX_Request request, MPIX_Prequest *prequest);
int MPIX_Prequest_free(MPIX_Prequest *request);

int MPIX_Wait(MPIX_Request *req, MPI_Status *status);
int MPIX_Waitall(int count, MPIX_Request *reqs, MPI_Status *statuses);
int MPIX_Request_free(MPIX_Request *request);

/* gdsync's own: messages of MPIX_Isend_enqueue and MPIX_Irecv_enqueue on the communicator are carried by the stream and the
 * card from now on, without MPI and the CPU. Collective over it, before its first message. Both sides of each message enqueue
 * it; receives name their source and their tag. GDSYNC_MPIX_LINKS=1 does it for MPI_COMM_WORLD. */
int gdsync_mpix_link(MPI_Comm comm);

/* gdsync's own: a software stream, which takes the place of a CUDA stream where there is no GPU. */
typedef struct gdsync_mpix_stream_object *gdsync_mpix_stream;
int gdsync_mpix_stream_create(gdsync_mpix_stream *stream);
int gdsync_mpix_stream_destroy(gdsync_mpix_stream *stream);
/* Runs a function in the order of a software stream, as a kernel runs on a CUDA stream. It must not call MPI. */
int gdsync_mpix_launch(int qtype, void *queue, void (*function)(void *), void *argument);
/* Waits until a stream has performed everything. */
int gdsync_mpix_synchronize(int qtype, void *queue);

/* gdsync's own: a graph of software streams, in the place of a cudaGraph_t. Its launches are performed in the stream's order. */
typedef const struct gdsync_mpix_graph_object *gdsync_mpix_graph;
int gdsync_mpix_graph_launch(gdsync_mpix_graph graph, int qtype, void *queue);
int gdsync_mpix_graph_destroy(gdsync_mpix_graph *graph);

#ifndef __CUDACC__
/* `request` is the address of an MPIX_Request. */
int MPIX_Pready(int partition, void *request);
int MPIX_Parrived(void *request, int partition, int *flag);
#endif

#ifdef __cplusplus
}
#endif

#endif
