/* Stream-triggered MPI: the interface of NVIDIA's mpi-acx, on gdsync (libgdsync-mpix).
 *
  * Sends and receives that a CUDA stream starts and waits for, and partitioned transfers. docs/mpi-reference.md of gdsync
  * describes every call. Calls return MPI_SUCCESS, or an error code of MPI, whose text MPI_Error_string returns, after they have
  * called the communicator's error handler. */
#ifndef GDSYNC_MPI_ACX_H
#define GDSYNC_MPI_ACX_H

#include <mpi.h>
#include <stddef.h>

#include "gdsync/mpix_device.h"

/* Programs of the original expect these headers; the library needs neither. */
#ifdef __has_include
#if __has_include(<cuda.h>) && __has_include(<cuda_runtime.h>)
#include <cuda.h>
#include <cuda_runtime.h>
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MPIX_REQUEST_NULL ((MPIX_Request)0)
#define MPIX_PREQUEST_NULL ((MPIX_Prequest)0)

/* The type of the object to which the argument `queue` points. */
enum {
    /* A cudaStream_t. On a machine without CUDA the null stream is a software stream of the process. */
    MPIX_QUEUE_CUDA_STREAM = 0,
    /* A cudaGraph_t, which the call makes for the current context's GPU. Each launch of a graph that has it as a child performs
     * the operation anew, and so does each launch of a captured graph. */
    MPIX_QUEUE_CUDA_GRAPH = 1,
    /* A gdsync_mpix_stream; an addition of gdsync. */
    MPIX_QUEUE_GDSYNC_SOFTWARE = 100,
    /* A gdsync_mpix_graph, which the call makes; an addition of gdsync. */
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
/* The request for kernels, made while the request is inactive. It is valid until the request is freed. */
int MPIX_Prequest_create(MPIX_Request request, MPIX_Prequest *prequest);
int MPIX_Prequest_free(MPIX_Prequest *request);

int MPIX_Wait(MPIX_Request *req, MPI_Status *status);
int MPIX_Waitall(int count, MPIX_Request *reqs, MPI_Status *statuses);
int MPIX_Request_free(MPIX_Request *request);

/* An addition of gdsync: the stream and the card carry the communicator's messages of MPIX_Isend_enqueue and MPIX_Irecv_enqueue from
 * now on, without MPI and the CPU. Collective over the communicator, before its first message. Both sides of each message enqueue
 * it; receives name their source and their tag. GDSYNC_MPIX_LINKS=1 links MPI_COMM_WORLD. */
int gdsync_mpix_link(MPI_Comm comm);

/* An addition of gdsync: a software stream, to use instead of a CUDA stream where there is no GPU. */
typedef struct gdsync_mpix_stream_object *gdsync_mpix_stream;
int gdsync_mpix_stream_create(gdsync_mpix_stream *stream);
int gdsync_mpix_stream_destroy(gdsync_mpix_stream *stream);
/* Runs a function in the order of a software stream, as a kernel runs on a CUDA stream. It must not call MPI. */
int gdsync_mpix_launch(int qtype, void *queue, void (*function)(void *), void *argument);
/* Waits until a stream has performed everything. */
int gdsync_mpix_synchronize(int qtype, void *queue);

/* An addition of gdsync: a graph of software streams, to use instead of a cudaGraph_t. Launches run in the stream's order. */
typedef const struct gdsync_mpix_graph_object *gdsync_mpix_graph;
int gdsync_mpix_graph_launch(gdsync_mpix_graph graph, int qtype, void *queue);
int gdsync_mpix_graph_destroy(gdsync_mpix_graph *graph);

#ifndef __CUDACC__
/* `request` is the address of an MPIX_Request. A request itself does not compile. */
int MPIX_Pready(int partition, void *request);
int MPIX_Parrived(void *request, int partition, int *flag);
#endif

#ifdef __cplusplus
}
#endif

#ifndef __CUDACC__
#if defined(__cplusplus) && __cplusplus >= 201103L
int MPIX_Pready(int partition, MPIX_Request request) = delete;
int MPIX_Pready(int partition, MPIX_Prequest request) = delete;
int MPIX_Parrived(MPIX_Request request, int partition, int *flag) = delete;
int MPIX_Parrived(MPIX_Prequest request, int partition, int *flag) = delete;
#elif !defined(__cplusplus) && __STDC_VERSION__ >= 201112L
/* No function takes this type. */
extern const struct gdsync_mpix_pass_the_address {
    int of_the_request;
} gdsync_mpix_pass_the_address;
#define GDSYNC_MPIX_ADDRESS(request)                                                                        \
    _Generic((request), MPIX_Request: gdsync_mpix_pass_the_address,                                         \
             MPIX_Prequest: gdsync_mpix_pass_the_address, default: (request))
#define MPIX_Pready(partition, request) MPIX_Pready(partition, GDSYNC_MPIX_ADDRESS(request))
#define MPIX_Parrived(request, partition, flag) MPIX_Parrived(GDSYNC_MPIX_ADDRESS(request), partition, flag)
#endif
#endif

#endif
