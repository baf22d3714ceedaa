/* Stream-triggered MPI: the interface of mpi-advance/stream-triggering, on gdsync (libgdsync-mpis).
 *
  * A request is matched once with its other side, and then started and waited for on a queue's stream any number of times.
  * docs/mpi-reference.md of gdsync describes every call. Calls return MPI_SUCCESS, or an error code of MPI, whose text MPI_Error_string returns,
  * after they have called the communicator's error handler. */
#ifndef GDSYNC_STREAM_TRIGGERING_H
#define GDSYNC_STREAM_TRIGGERING_H

#include <mpi.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t MPIS_Queue;
typedef struct MPIS_Request_struct *MPIS_Request;

/* Codes of the original interface. gdsync returns MPIS_SUCCESS or error codes of MPI. */
enum {
    MPIS_SUCCESS = 0,
    MPIS_NOT_READY = -1,
    MPIS_INVALID_REQUEST_STATE = -2,
    MPIS_UNSUPPORTED_BEHAVIOR = -3
};

extern const uintptr_t MPIS_QUEUE_NULL;
extern const MPIS_Request MPIS_REQUEST_NULL;

enum MPIS_Queue_type {
    /* The queue has its own software stream; the stream argument is ignored, and may be NULL. */
    THREAD = 0,
    /* The CUDA stream that the argument points to (cudaStream_t *). */
    GPU_MEM_OPS = 3,
    /* Slingshot: refused. */
    CXI = 4
};
#ifndef __cplusplus
typedef enum MPIS_Queue_type MPIS_Queue_type;
#endif
typedef enum MPIS_Queue_type MPS_Queue_type;

/* Does nothing. */
void MPIS_Hello_world(void);

int MPIS_Queue_init(MPIS_Queue *queue, MPIS_Queue_type type, void *stream);
int MPIS_Queue_free(MPIS_Queue *queue);
int MPIS_Queue_wait(MPIS_Queue queue);

int MPIS_Enqueue_start(MPIS_Queue queue, MPIS_Request *request);
int MPIS_Enqueue_startall(MPIS_Queue queue, int len, MPIS_Request requests[]);
int MPIS_Enqueue_waitall(MPIS_Queue queue);

int MPIS_Match(MPIS_Request *request, MPI_Status *status);
int MPIS_Matchall(int len, MPIS_Request requests[], MPI_Status statuses[]);
int MPIS_Imatch(MPIS_Request *request, MPIS_Request *match_request);
int MPIS_Is_matched(MPIS_Request *request, int *matched);
int MPIS_Queue_match(MPIS_Queue queue, MPIS_Request *request, MPI_Status *status);

int MPIS_Wait(MPIS_Request *request, MPI_Status *status);
int MPIS_Waitall(int len, MPIS_Request requests[], MPI_Status statuses[]);
int MPIS_Request_free(MPIS_Request *request);
int MPIS_Request_freeall(int len, MPIS_Request requests[]);

int MPIS_Send_init(const void *buffer, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                   MPI_Info info, MPIS_Request *request);
int MPIS_Rsend_init(const void *buffer, MPI_Count count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                    MPI_Info info, MPIS_Request *request);
int MPIS_Recv_init(void *buffer, MPI_Count count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                   MPI_Info info, MPIS_Request *request);
int MPIS_Barrier_init(MPI_Comm comm, MPI_Info info, MPIS_Request *request);
int MPIS_Allreduce_init(const void *sendbuf, void *recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                        MPI_Comm comm, MPI_Info info, MPIS_Request *request);

int MPIS_Alloc_mem(MPI_Aint size, MPI_Info info, void **baseptr);
int MPIS_Free_mem(void *baseptr);

/* An addition of gdsync: runs a function in the order of a THREAD queue, as a kernel runs on a CUDA stream. The function must not call
 * MPI or this library. */
int gdsync_mpis_launch(MPIS_Queue queue, void (*function)(void *), void *argument);

#ifdef __cplusplus
}
#endif

#endif
