/* What the files of MPIX_* share. */
#ifndef GDSYNC_MPIX_H
#define GDSYNC_MPIX_H

#include "internal.h"
#include "mpi-acx.h"

/* What every request begins with: the program has it as an MPIX_Request. */
enum mpix_kind { MPIX_ENQUEUED = 1, MPIX_PARTITIONED };
struct mpix_request {
    enum mpix_kind kind;
    /* While a list is checked: its place there, from 1 on. */
    int listed;
};

/* What this rank has done. */
struct mpix_counts {
    unsigned long long sends, receives, given_up;
};

/* program.c */
/* MPI_SUCCESS between MPIX_Init and MPIX_Finalize. */
int mpix_check_running(void);

/* stream.c: the kind of stream of the Rust part, and the place of its handle. */
int mpix_stream(MPI_Comm comm, int qtype, void *queue, int *kind, void *const **stream);

/* mpi.c: what the thread that calls MPI does. */
struct mpix_operation;
int mpix_operations_prepare(void);
void mpix_operation_start(void *operation, int is_given_up);
void mpix_operation_gone(void *operation);
int mpix_operations_progress(void);
/* Ends what is outstanding. The thread has ended. */
void mpix_operations_end(void);
/* What the thread has done, and counts from 0 on again. */
void mpix_operations_counts(struct mpix_counts *into);

/* operation.c: a send or a receive of MPI that a stream triggers. */
struct mpix_operation {
    struct mpix_request request;
    /* The program's share, until it has waited for the request, and the thread's, until the operation is complete; in a
     * graph, until that is gone. */
    int refs;
    const void *engine;
    int sends, count, peer, tag;
    void *buffer;
    MPI_Datatype datatype;
    /* The datatype is a duplicate: the program may free its own before the stream triggers the operation. */
    int is_duplicate;
    MPI_Comm comm;
    /* It is in a graph, which triggers it any number of times. */
    int is_in_graph;
    /* Of one in a graph: launches that were started and are not complete. More than one is a mistake of the program. */
    int outstanding;
    /* How many operations of the communicator no stream has triggered yet; NULL of messages of links, and in graphs. */
    int *waiting;
    /* Its link, and its message there; NULL where MPI carries it. */
    MPIS_Request link;
    const void *message;
    /* The stream and the card do all of it: the thread knows nothing of it, and the flag is not set. */
    int is_by_stream;
    /* Set under a lock: how it ended, and where a stream's wait, or a graph's, wants the status. */
    int is_complete, error;
    MPI_Status status, *wanted;
};

/* `status` is not used where the operation has failed. */
void mpix_operation_complete(struct mpix_operation *operation, int error, const MPI_Status *status);
void mpix_operation_release(struct mpix_operation *operation);
int mpix_operation_wait(struct mpix_operation *operation, MPI_Status *status);

/* link.c */
/* Links MPI_COMM_WORLD if GDSYNC_MPIX_LINKS says so. */
int mpix_link_world(void);
/* The link of a message, with a share of it; NULL where MPI carries it. */
int mpix_link_of(MPI_Comm comm, int sends, int peer, int tag, MPIS_Request *link);
int mpix_message_enqueue(struct mpix_operation *operation, int count, MPI_Datatype datatype, int kind,
                         void *const *stream);
/* A stream has triggered a message of the thread's, or it is given up. */
void mpix_message_start(struct mpix_operation *operation, int is_given_up);
/* The thread is to write the status of a message that a stream has posted. */
void mpix_message_watch(struct mpix_operation *operation);
/* Waits on the CPU for one that a stream has posted. */
int mpix_message_wait(struct mpix_operation *operation, MPI_Status *status);
void mpix_message_ended(void *operation, int gdsync_class, const char *text, uint64_t bytes);

/* partitioned.c */
struct mpix_partitioned;
int mpix_partitioned_wait(struct mpix_partitioned *request, MPI_Status *status);
void mpix_partitioned_free(struct mpix_partitioned *request);

/* wait.c */
/* The library runs, and the place of a request, or of a list, is one. */
int mpix_check_request(const MPIX_Request *request);
int mpix_check_list(int count, const MPIX_Request *reqs);

#endif
