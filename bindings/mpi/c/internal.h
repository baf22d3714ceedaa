/* Declarations of the C part. The files in this folder belong to both libraries, those in mpis/ and mpix/ to one of them. */
#ifndef GDSYNC_MPIS_INTERNAL_H
#define GDSYNC_MPIS_INTERNAL_H

#include "engine.h"
#include "stream-triggering.h"

/* The size of an error's text. */
#define MPIS_TEXT MPI_MAX_ERROR_STRING

/* The link for messages to or from a peer with a tag, on a linked communicator. */
struct mpis_link {
    int sends, peer, tag;
    struct MPIS_Request_struct *matched;
    struct mpis_link *next;
};

/* The state of a communicator of the program, kept as its attribute: the duplicates on which requests match. */
struct mpis_comm {
    MPI_Comm program;
    int is_freed;
    int refs;
    /* The largest tag. */
    int max_tag;
    /* On these, senders send their connection info: of transfers with the program's tags, of collectives with their number, as all
     * ranks make them in the same order. */
    MPI_Comm transfers, collectives;
    int next_number;
    /* On this, receivers reply with an even tag that the sender has chosen, as replies come in any order, and senders confirm with the
     * next tag. */
    MPI_Comm replies;
    int next_reply_tag;
    /* On this, senders send the info of links; MPI_COMM_NULL if the communicator is not linked. */
    MPI_Comm linked;
    struct mpis_link *links;
    /* The orders of partitioned requests. */
    struct mpis_order *orders;
};

enum mpis_kind { MPIS_TRANSFER, MPIS_PARTITIONED, MPIS_COLLECTIVE, MPIS_LINK, MPIS_MATCH };
enum mpis_state { MPIS_UNMATCHED, MPIS_MATCHING, MPIS_MATCHED, MPIS_FAILED };

/* The message that the sides of an exchange send each other: a line of text, the tag for a reply, and a partitioned request's place in
 * its order. */
struct mpis_info_message {
    int reply_tag;
    unsigned place;
    char info[GDSYNC_MPI_INFO_BYTES];
};

/* The exchange of connection info with a peer while a request matches. The sending side sends first; the receiving side connects
 * and replies; the sending side connects and confirms. So no message is sent to a queue pair that is not connected. */
struct mpis_exchange {
    enum { MPIS_SENDING, MPIS_CONFIRMING, MPIS_SETTLED } phase;
    int sends, peer;
    /* The messages below; at last, the confirmation takes the place of the incoming one. */
    MPI_Request outgoing, incoming;
    struct mpis_info_message ours, theirs;
};

struct MPIS_Request_struct {
    enum mpis_kind kind;
    enum mpis_state state;
    int refs;
    struct mpis_comm *comm;
    int peer, tag;
    /* The Rust part's request; NULL if the peer is MPI_PROC_NULL. */
    const void *engine;
    /* The length of the message, once it is matched. */
    uint64_t bytes;
    /* The first cause of a failed match. */
    int failed;
    char text[MPIS_TEXT];
    int number;
    struct mpis_exchange *exchanges;
    /* Of a partitioned request with a peer: its order, and its place there once that is fixed. */
    struct mpis_order *order;
    unsigned place;
    /* The request that a match request matches. */
    struct MPIS_Request_struct *target;
    /* The list of requests that are matching. */
    struct MPIS_Request_struct *next;
};

/* errors.c */
int mpis_fail(MPI_Comm comm, int mpi_class, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* As mpis_fail, for a class of the Rust part, with the text of its last error. */
int mpis_fail_engine(MPI_Comm comm, int gdsync_class);
int mpis_class(int gdsync_class);
/* Returns the code of an MPI class with a text, for a status, without calling an error handler. */
int mpis_code(int mpi_class, const char *text);
/* Returns the communicator whose error handler is called for a request. */
MPI_Comm mpis_handler_of(const struct mpis_comm *comm);

/* comm.c */
int mpis_check_running(void);
/* Returns whether GDSYNC_MPI_STATS is 1. */
int mpis_wants_statistics(void);
/* Sets the library's part of the end of the program. */
void mpis_on_finalize(void (*end)(void));
/* Ends the library once MPI_Finalize has begun. Every deletion of an attribute of MPI_COMM_SELF calls it first. */
void mpis_end_of_program(void);
int mpis_comm_get(MPI_Comm comm, struct mpis_comm **found);
void mpis_comm_release(struct mpis_comm *known);
/* Links a communicator. Collective over it. */
int mpis_comm_link(MPI_Comm comm);
/* Returns the state of a linked communicator, without a reference; NULL for others. */
struct mpis_comm *mpis_comm_linked(MPI_Comm comm);

/* types.c */
int mpis_contiguous(MPI_Comm comm, MPI_Count count, MPI_Datatype datatype, MPI_Aint *start, uint64_t *bytes);
int mpis_element(MPI_Comm comm, MPI_Datatype datatype, uint32_t *element);
int mpis_operation(MPI_Comm comm, MPI_Op op, uint32_t *operation);

/* match.c */
int mpis_match_begin(MPIS_Request request);
void mpis_match_progress(void);
/* Returns whether a request is matching. */
int mpis_match_outstanding(void);
/* Waits until the request has matched or failed to match. */
void mpis_match_settle(MPIS_Request request);
/* As mpis_match_settle. Returns the request's error. */
int mpis_match_end(MPIS_Request request, MPI_Status *status);

/* order.c */
/* Gives a request the last place of its order. */
int mpis_order_join(MPIS_Request request, int sends);
/* Leaves the place of a request, which is not fixed, to the next one. */
void mpis_order_leave(MPIS_Request request);
/* Fixes and returns the place of a request. */
unsigned mpis_order_fix(MPIS_Request request);
/* Returns in `done` whether the sending side's info for a request has arrived. Called under the lock of match.c. */
int mpis_order_test(MPIS_Request request, struct mpis_info_message *into, int *done);
void mpis_orders_free(struct mpis_order *order);

/* request.c */
void mpis_comm_hold(struct mpis_comm *comm);
/* Makes a request without a Rust request. It takes over the caller's reference to the communicator. */
MPIS_Request mpis_request_new(enum mpis_kind kind, struct mpis_comm *comm);
/* Returns a request to the program, or reports why it could not be made. */
int mpis_request_made(MPIS_Request request, int gdsync_error, MPIS_Request *into);
void mpis_request_hold(MPIS_Request request);
void mpis_request_release(MPIS_Request request);
void mpis_status(MPI_Status *status, int peer, int tag, uint64_t bytes, int error);
/* These refuse wildcards. */
int mpis_check_peer(MPI_Comm comm, int peer);
int mpis_check_tag(MPI_Comm comm, int max_tag, int tag);
/* Both, for a request that is matched before it starts. */
int mpis_check_matched(const struct mpis_comm *known, int peer, int tag);

/* mpis/program.c: as mpis_comm_get, for requests of MPIS_*. */
int mpis_library_comm(MPI_Comm comm, struct mpis_comm **found);

/* mpis/requests.c */
int mpis_request_check(const MPIS_Request *request);

#endif
