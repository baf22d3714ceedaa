/* Declarations of the files of MPIX_*. */
#ifndef GDSYNC_MPIX_H
#define GDSYNC_MPIX_H

#include "internal.h"
#include "mpi-acx.h"

/* The head of every request, to which an MPIX_Request points. */
enum mpix_kind { MPIX_ENQUEUED = 1, MPIX_PARTITIONED };
struct gdsync_mpix_request {
    enum mpix_kind kind;
    /* The request's place in a list while that is checked, counted from 1. */
    int listed;
};

/* Counts of this rank. */
struct mpix_counts {
    unsigned long long sends, receives, given_up;
};

/* checks.c */
void mpix_set_running(int running);
int mpix_is_running(void);
/* Returns MPI_SUCCESS between MPIX_Init and MPIX_Finalize. */
int mpix_check_running(void);
/* Returns the Rust part's kind of stream, and the place of the handle. */
int mpix_stream(MPI_Comm comm, int qtype, void *queue, int *kind, void *const **stream);
/* Refuse a call while the library does not run, null pointers, and lists that have a request twice. */
int mpix_check_request(const MPIX_Request *request);
int mpix_check_list(int count, const MPIX_Request *reqs);

/* thread.c: the work of the thread that calls MPI. */
struct mpix_operation;
int mpix_operations_prepare(void);
void mpix_operation_start(void *operation, int is_given_up);
void mpix_operation_retire(void *operation);
int mpix_operations_progress(void);
/* Ends outstanding operations, after the thread has ended. */
void mpix_operations_end(void);
/* Returns the thread's counts, and resets them. */
void mpix_operations_counts(struct mpix_counts *into);

/* operation.c: a send or a receive that a stream or a graph triggers. */
struct mpix_operation {
    struct gdsync_mpix_request request;
    /* The program's reference, until it has waited for the request, and the thread's, until the operation is complete or, in a graph,
     * retired. */
    int refs;
    const void *engine;
    int sends, count, peer, tag;
    void *buffer;
    MPI_Datatype datatype;
    /* The datatype is a duplicate, which the operation frees. */
    int is_duplicate;
    MPI_Comm comm;
    /* A graph triggers the operation any number of times. */
    int is_in_graph;
    /* The number of started launches that are not complete. More than one is an error of the program. */
    int outstanding;
    /* The communicator's count of operations that no stream has triggered yet; NULL for messages of links, and in graphs. */
    int *waiting;
    /* The link and the message; NULL if MPI carries the operation. */
    MPIS_Request link;
    const void *message;
    /* The stream and the card do everything: the thread does not know the operation, and the flag is not set. */
    int is_by_stream;
    /* Under the lock of operation.c: the result, and where a wait of a stream or graph has the status written. */
    int is_complete, error;
    MPI_Status status, *wanted;
};

/* Returns the communicator's count of operations that no stream has triggered yet. */
int mpix_operation_waiting(MPI_Comm comm, int **waiting);
/* Frees what only a later trigger would need. */
void mpix_operation_end(struct mpix_operation *operation);
/* `status` is not used if the operation has failed. */
void mpix_operation_complete(struct mpix_operation *operation, int error, const MPI_Status *status);
void mpix_operation_release(struct mpix_operation *operation);
/* Sets the place where the status is written, or with MPI_STATUS_IGNORE none. */
void mpix_operation_want(struct mpix_operation *operation, MPI_Status *status);
/* Returns the error and the status of a completed operation. */
int mpix_operation_result(struct mpix_operation *operation, MPI_Status *status);

/* link.c */
/* Links MPI_COMM_WORLD if GDSYNC_MPIX_LINKS is 1. */
int mpix_link_world(void);
/* Returns a message's link, with a reference; NULL if MPI carries the message. */
int mpix_link_of(MPI_Comm comm, int sends, int peer, int tag, MPIS_Request *link);
int mpix_message_enqueue(struct mpix_operation *operation, int count, MPI_Datatype datatype, int kind,
                         void *const *stream);
/* Starts a deferred message, which a stream has triggered, or gives it up. */
void mpix_message_start(struct mpix_operation *operation, int is_given_up);
/* Asks the thread to write the status of a message that a stream has posted. */
void mpix_message_watch(struct mpix_operation *operation);
/* Waits on the CPU for a message that a stream has posted. */
int mpix_message_wait(struct mpix_operation *operation, MPI_Status *status);
void mpix_message_ended(void *operation, int gdsync_class, const char *text, uint64_t bytes);

/* partitioned.c */
struct mpix_partitioned;
int mpix_partitioned_wait(struct mpix_partitioned *request, MPI_Status *status);
void mpix_partitioned_free(struct mpix_partitioned *request);

#endif
