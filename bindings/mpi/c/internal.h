/* What the files of the C part share: those here are of both libraries, those in mpis/ and mpix/ of one. */
#ifndef GDSYNC_MPIS_INTERNAL_H
#define GDSYNC_MPIS_INTERNAL_H

#include "engine.h"
#include "stream-triggering.h"

/* Bytes of an error's text. */
#define MPIS_TEXT MPI_MAX_ERROR_STRING

/* The messages to, or from, a peer with a tag, on a linked communicator. */
struct mpis_link {
    int sends, peer, tag;
    struct MPIS_Request_struct *matched;
    struct mpis_link *next;
};

/* A communicator of the program, with the duplicates on which requests match. Kept as its attribute. */
struct mpis_comm {
    MPI_Comm program;
    int is_freed;
    int refs;
    /* The largest tag. */
    int most;
    /* Where senders offer transfers, with the program's tags, and collectives. All ranks make collectives in the same
     * order: their number is their tag. */
    MPI_Comm transfers, collectives;
    int made;
    /* Where receivers reply, with a tag that the sender has chosen: replies come in any order. */
    MPI_Comm replies;
    int asked;
    /* Where senders offer links; MPI_COMM_NULL where the communicator is not linked. */
    MPI_Comm linked;
    struct mpis_link *links;
};

enum mpis_kind { MPIS_TRANSFER, MPIS_COLLECTIVE, MPIS_LINK, MPIS_MATCH };
enum mpis_state { MPIS_UNMATCHED, MPIS_MATCHING, MPIS_MATCHED, MPIS_FAILED };

/* What the sides of a leg send each other. */
struct mpis_message {
    int reply_tag;
    char offer[GDSYNC_MPI_OFFER];
};

/* A leg while it matches. The sending side sends its offer first; the receiving side connects, and then replies: so no
 * message is sent to a queue pair that is not connected. */
struct mpis_leg {
    enum { MPIS_OFFERED, MPIS_REPLIED, MPIS_SETTLED } phase;
    int sends, peer;
    MPI_Request outgoing, incoming;
    struct mpis_message ours, theirs;
};

struct MPIS_Request_struct {
    enum mpis_kind kind;
    enum mpis_state state;
    int refs;
    struct mpis_comm *comm;
    int peer, tag;
    /* The Rust part's request; NULL where the peer is MPI_PROC_NULL. */
    const void *engine;
    /* Of the message, once it is matched. */
    uint64_t bytes;
    /* Why matching has failed: the first cause. */
    int failed;
    char text[MPIS_TEXT];
    int number;
    struct mpis_leg *legs;
    /* Of a match request: what is matched. */
    struct MPIS_Request_struct *target;
    /* The list of those that are matching. */
    struct MPIS_Request_struct *next;
};

/* errors.c */
int mpis_fail(MPI_Comm comm, int mpi_class, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a class of the Rust part, with the text of its last error. */
int mpis_fail_engine(MPI_Comm comm, int gdsync_class);
int mpis_class(int gdsync_class);
/* The code of a class of MPI with a text, for a status: no error handler is called. */
int mpis_code(int mpi_class, const char *text);
/* The communicator whose error handler is called for a request. */
MPI_Comm mpis_handler_of(const struct mpis_comm *comm);

/* comm.c */
int mpis_check_running(void);
/* GDSYNC_MPI_STATS=1 */
int mpis_wants_statistics(void);
/* MPI_Finalize has begun: what deletes an attribute of MPI_COMM_SELF calls this first. */
void mpis_end_of_program(void);
int mpis_comm_get(MPI_Comm comm, struct mpis_comm **found);
void mpis_comm_hold(struct mpis_comm *comm);
void mpis_comm_release(struct mpis_comm *comm);
/* Links a communicator. Collective over it. */
int mpis_comm_link(MPI_Comm comm);
/* What is known of a communicator that is linked; NULL of others. Without a share. */
struct mpis_comm *mpis_comm_linked(MPI_Comm comm);

/* types.c */
int mpis_contiguous(MPI_Comm comm, MPI_Count count, MPI_Datatype datatype, MPI_Aint *start, uint64_t *bytes);
int mpis_element(MPI_Comm comm, MPI_Datatype datatype, uint32_t *element);
int mpis_operation(MPI_Comm comm, MPI_Op op, uint32_t *operation);

/* match.c */
int mpis_match_begin(MPIS_Request request);
void mpis_match_progress(void);
/* Whether a request is matching. */
int mpis_match_outstanding(void);
/* Waits until the request has matched, or failed to. */
void mpis_match_settle(MPIS_Request request);
/* The same, and returns its error. */
int mpis_match_end(MPIS_Request request, MPI_Status *status);

/* mpis/program.c, mpix/program.c: the library's part of the end of the program. */
void mpis_library_end(void);

/* request.c. A new request has the caller's share of the communicator. */
MPIS_Request mpis_request_new(enum mpis_kind kind, struct mpis_comm *comm);
/* Hands a request out, or reports why it could not be made. */
int mpis_request_made(MPIS_Request request, int gdsync_error, MPIS_Request *into);
void mpis_request_hold(MPIS_Request request);
void mpis_request_release(MPIS_Request request);
void mpis_status(MPI_Status *status, int peer, int tag, uint64_t bytes, int error);
/* No wildcards. */
int mpis_check_peer(MPI_Comm comm, int peer);
int mpis_check_tag(MPI_Comm comm, int most, int tag);
/* Both, of a request that is matched before it starts. */
int mpis_check_matched(const struct mpis_comm *known, int peer, int tag);

/* mpis/requests.c */
int mpis_request_check(const MPIS_Request *request);

#endif
