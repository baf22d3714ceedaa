/* Matching: each leg's sides send each other their offers, on duplicates of the communicator and with the program's
 * tag, so in the order of the calls for a peer and a tag. Nothing here blocks but mpis_match_end. */
#include "internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Looks at the list before the waiting thread sleeps. */
#define SPINS 1000
#define NAP_NS 50000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MPIS_Request matching;

/* Remembers the first cause. */
static void note(MPIS_Request request, int error)
{
    if (request->failed)
        return;
    request->failed = mpis_class(error);
    gdsync_mpi_error_text(request->text, sizeof request->text);
}

static void note_mpi(MPIS_Request request, int error)
{
    int len = 0;

    if (request->failed || error == MPI_SUCCESS)
        return;
    MPI_Error_class(error, &request->failed);
    MPI_Error_string(error, request->text, &len);
}

static void settle(MPIS_Request request, struct mpis_leg *leg, int error)
{
    note_mpi(request, error);
    leg->phase = MPIS_SETTLED;
}

static int send_message(struct mpis_leg *leg, int tag, MPI_Comm comm)
{
    return MPI_Isend(&leg->ours, sizeof leg->ours, MPI_BYTE, leg->peer, tag, comm, &leg->outgoing);
}

static int receive_message(struct mpis_leg *leg, int tag, MPI_Comm comm)
{
    return MPI_Irecv(&leg->theirs, sizeof leg->theirs, MPI_BYTE, leg->peer, tag, comm, &leg->incoming);
}

/* The request has failed: the peers that have not got its offers get a refusal. */
static void refuse(MPIS_Request request, const char *refusal)
{
    int index;

    for (index = 0; index < request->number; index++) {
        struct mpis_leg *leg = &request->legs[index];
        if (leg->phase == MPIS_OFFERED && leg->outgoing == MPI_REQUEST_NULL)
            memcpy(leg->ours.offer, refusal, sizeof leg->ours.offer);
    }
}

/* The other side's offer is there. */
static void take_offer(MPIS_Request request, int index)
{
    struct mpis_leg *leg = &request->legs[index];
    char refusal[GDSYNC_MPI_OFFER];
    int error = 0;

    if (!request->failed)
        error = gdsync_mpi_answer(request->engine, index, leg->theirs.offer, refusal);
    if (error) {
        note(request, error);
        refuse(request, refusal);
    }
    leg->phase = MPIS_REPLIED;
    if (!leg->sends && (error = send_message(leg, leg->theirs.reply_tag, request->comm->replies)) != MPI_SUCCESS)
        settle(request, leg, error);
}

static void advance(MPIS_Request request, int index)
{
    struct mpis_leg *leg = &request->legs[index];
    int done = 0, error = MPI_SUCCESS;

    if (leg->phase == MPIS_OFFERED) {
        error = MPI_Test(&leg->incoming, &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS)
            settle(request, leg, error);
        else if (done)
            take_offer(request, index);
    }
    if (leg->phase == MPIS_REPLIED) {
        error = MPI_Test(&leg->outgoing, &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS || done)
            settle(request, leg, error);
    }
}

/* Whether all its legs are settled. */
static int is_settled(MPIS_Request request)
{
    int index, settled = 1;

    for (index = 0; index < request->number; index++) {
        if (request->legs[index].phase != MPIS_SETTLED)
            advance(request, index);
        settled &= request->legs[index].phase == MPIS_SETTLED;
    }
    return settled;
}

/* Returns whether it has matched, or failed to. */
static int finish(MPIS_Request request)
{
    int error;

    if (!is_settled(request))
        return 0;
    if (!request->failed && (error = gdsync_mpi_matched(request->engine, &request->bytes)) != 0)
        note(request, error);
    /* Peers of other legs may have matched: what they start ends. */
    if (request->failed)
        gdsync_mpi_abandon(request->engine);
    request->state = request->failed ? MPIS_FAILED : MPIS_MATCHED;
    free(request->legs);
    request->legs = NULL;
    request->number = 0;
    return 1;
}

void mpis_match_progress(void)
{
    MPIS_Request *at, request;

    pthread_mutex_lock(&lock);
    for (at = &matching; (request = *at) != NULL;) {
        if (finish(request)) {
            *at = request->next;
            mpis_request_release(request);
        } else
            at = &request->next;
    }
    pthread_mutex_unlock(&lock);
}

int mpis_match_outstanding(void)
{
    int outstanding;

    pthread_mutex_lock(&lock);
    outstanding = matching != NULL;
    pthread_mutex_unlock(&lock);
    return outstanding;
}

static int make_legs(MPIS_Request request)
{
    int index, error;

    if ((error = gdsync_mpi_legs(request->engine, &request->number)) != 0)
        return error;
    request->legs = calloc(request->number ? request->number : 1, sizeof *request->legs);
    if (!request->legs)
        return GDSYNC_MPI_MEMORY;
    for (index = 0; index < request->number; index++) {
        struct mpis_leg *leg = &request->legs[index];
        if ((error = gdsync_mpi_leg(request->engine, index, &leg->peer, &leg->sends)) != 0)
            return error;
        if (request->kind != MPIS_COLLECTIVE)
            leg->peer = request->peer;
        leg->outgoing = leg->incoming = MPI_REQUEST_NULL;
    }
    for (index = 0; index < request->number; index++) {
        struct mpis_leg *leg = &request->legs[index];
        /* The other sides get its refusal. */
        if ((error = gdsync_mpi_offer(request->engine, index, leg->ours.offer)) != 0) {
            note(request, error);
            refuse(request, leg->ours.offer);
            break;
        }
    }
    return 0;
}

/* The first messages of a leg. */
static int exchange(MPIS_Request request, struct mpis_leg *leg)
{
    struct mpis_comm *comm = request->comm;
    MPI_Comm offers = request->kind == MPIS_LINK ? comm->linked
                      : request->kind == MPIS_TRANSFER ? comm->transfers : comm->collectives;
    int error;

    if (!leg->sends)
        return receive_message(leg, request->tag, offers);
    leg->ours.reply_tag = comm->asked;
    comm->asked = comm->asked == comm->most ? 0 : comm->asked + 1;
    error = receive_message(leg, leg->ours.reply_tag, comm->replies);
    return error == MPI_SUCCESS ? send_message(leg, request->tag, offers) : error;
}

int mpis_match_begin(MPIS_Request request)
{
    MPI_Comm handler = mpis_handler_of(request->comm);
    MPIS_Request *at;
    int index, error;

    if (request->kind == MPIS_MATCH || request->state != MPIS_UNMATCHED)
        return mpis_fail(handler, MPI_ERR_REQUEST, "the request is matched already: a request is matched once");
    if (!request->engine) {
        request->state = MPIS_MATCHED;
        return MPI_SUCCESS;
    }
    if (request->comm->is_freed)
        return mpis_fail(handler, MPI_ERR_COMM, "the communicator was freed before the request was matched");
    pthread_mutex_lock(&lock);
    if ((error = make_legs(request)) != 0) {
        free(request->legs);
        request->legs = NULL;
        pthread_mutex_unlock(&lock);
        return mpis_fail_engine(handler, error);
    }
    for (index = 0; index < request->number; index++)
        if ((error = exchange(request, &request->legs[index])) != MPI_SUCCESS)
            settle(request, &request->legs[index], error);
    request->state = MPIS_MATCHING;
    mpis_request_hold(request);
    for (at = &matching; *at; at = &(*at)->next)
        ;
    request->next = NULL;
    *at = request;
    pthread_mutex_unlock(&lock);
    return MPI_SUCCESS;
}

static int state_of(MPIS_Request request)
{
    int state;

    pthread_mutex_lock(&lock);
    state = request->state;
    pthread_mutex_unlock(&lock);
    return state;
}

void mpis_match_settle(MPIS_Request request)
{
    const struct timespec nap = {0, NAP_NS};
    int spins;

    for (spins = 0; state_of(request) == MPIS_MATCHING; spins++) {
        mpis_match_progress();
        /* MPI may run more ranks than there are processors. */
        if (spins < SPINS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

int mpis_match_end(MPIS_Request request, MPI_Status *status)
{
    int error = MPI_SUCCESS;

    mpis_match_settle(request);
    if (request->state == MPIS_FAILED)
        error = mpis_fail(mpis_handler_of(request->comm), request->failed, "%s", request->text);
    mpis_status(status, request->peer, request->tag, request->bytes, error);
    return error;
}
