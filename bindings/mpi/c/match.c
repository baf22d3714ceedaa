/* Matching: the sides of a request exchange their connection info, on duplicates of the communicator and with the program's tag,
 * and so in the order of the calls for a peer and a tag, or, if they are partitioned, in that of order.c. The side that replies has
 * matched once the other one confirms that it is connected, too: a queue pair that is not drops what arrives, and the card sends it
 * again after its time-out of seconds. Only mpis_match_settle and mpis_match_end block. */
#include "internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Polls before the waiting thread sleeps. */
#define SPINS 1000
#define SLEEP_NS 50000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MPIS_Request matching;

/* Records the first cause of a failure. */
static void record(MPIS_Request request, int error)
{
    if (request->failed)
        return;
    request->failed = mpis_class(error);
    gdsync_mpi_error_text(request->text, sizeof request->text);
}

static void record_mpi(MPIS_Request request, int error)
{
    int len = 0;

    if (request->failed || error == MPI_SUCCESS)
        return;
    MPI_Error_class(error, &request->failed);
    MPI_Error_string(error, request->text, &len);
}

static void settle(MPIS_Request request, struct mpis_exchange *exchange, int error)
{
    record_mpi(request, error);
    exchange->phase = MPIS_SETTLED;
}

static int send_message(struct mpis_exchange *exchange, int tag, MPI_Comm comm)
{
    return MPI_Isend(&exchange->ours, sizeof exchange->ours, MPI_BYTE, exchange->peer, tag, comm, &exchange->outgoing);
}

static int receive_message(struct mpis_exchange *exchange, int tag, MPI_Comm comm)
{
    return MPI_Irecv(&exchange->theirs, sizeof exchange->theirs, MPI_BYTE, exchange->peer, tag, comm, &exchange->incoming);
}

/* Replaces the unsent info of a failed request with a refusal. */
static void refuse(MPIS_Request request, const char *refusal)
{
    int index;

    for (index = 0; index < request->number; index++) {
        struct mpis_exchange *exchange = &request->exchanges[index];
        if (exchange->phase == MPIS_SENDING && exchange->outgoing == MPI_REQUEST_NULL)
            memcpy(exchange->ours.info, refusal, sizeof exchange->ours.info);
    }
}

/* Connects with the other side, whose info has arrived. */
static void take_info(MPIS_Request request, int index)
{
    struct mpis_exchange *exchange = &request->exchanges[index];
    MPI_Comm replies = request->comm->replies;
    char refusal[GDSYNC_MPI_INFO_BYTES];
    int error = 0;

    if (!request->failed)
        error = gdsync_mpi_connect(request->engine, index, exchange->theirs.info, refusal);
    if (error) {
        record(request, error);
        refuse(request, refusal);
    }
    exchange->phase = MPIS_CONFIRMING;
    if (exchange->sends)
        error = MPI_Isend(NULL, 0, MPI_BYTE, exchange->peer, exchange->ours.reply_tag + 1, replies, &exchange->incoming);
    else {
        error = MPI_Irecv(NULL, 0, MPI_BYTE, exchange->peer, exchange->theirs.reply_tag + 1, replies, &exchange->incoming);
        if (error == MPI_SUCCESS)
            error = send_message(exchange, exchange->theirs.reply_tag, replies);
    }
    if (error != MPI_SUCCESS)
        settle(request, exchange, error);
}

static void advance(MPIS_Request request, int index)
{
    struct mpis_exchange *exchange = &request->exchanges[index];
    int done = 0, error = MPI_SUCCESS;

    if (exchange->phase == MPIS_SENDING) {
        if (request->order && !exchange->sends)
            error = mpis_order_test(request, &exchange->theirs, &done);
        else
            error = MPI_Test(&exchange->incoming, &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS)
            settle(request, exchange, error);
        else if (done)
            take_info(request, index);
    }
    if (exchange->phase == MPIS_CONFIRMING) {
        MPI_Request both[] = {exchange->outgoing, exchange->incoming};
        error = MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE);
        exchange->outgoing = both[0];
        exchange->incoming = both[1];
        if (error != MPI_SUCCESS || done)
            settle(request, exchange, error);
    }
}

/* Returns whether all exchanges are settled, after advancing them. */
static int is_settled(MPIS_Request request)
{
    int index, settled = 1;

    for (index = 0; index < request->number; index++) {
        if (request->exchanges[index].phase != MPIS_SETTLED)
            advance(request, index);
        settled &= request->exchanges[index].phase == MPIS_SETTLED;
    }
    return settled;
}

/* Returns whether the request has matched or failed to match. */
static int finish(MPIS_Request request)
{
    int error;

    if (!is_settled(request))
        return 0;
    if (!request->failed && (error = gdsync_mpi_complete_match(request->engine, &request->bytes)) != 0)
        record(request, error);
    /* Other peers may have matched: what they start ends. */
    if (request->failed)
        gdsync_mpi_abandon_match(request->engine);
    request->state = request->failed ? MPIS_FAILED : MPIS_MATCHED;
    free(request->exchanges);
    request->exchanges = NULL;
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

static int make_exchanges(MPIS_Request request)
{
    int index, error;

    if ((error = gdsync_mpi_peers(request->engine, &request->number)) != 0)
        return error;
    request->exchanges = calloc(request->number ? request->number : 1, sizeof *request->exchanges);
    if (!request->exchanges)
        return GDSYNC_MPI_MEMORY;
    for (index = 0; index < request->number; index++) {
        struct mpis_exchange *exchange = &request->exchanges[index];
        if ((error = gdsync_mpi_peer(request->engine, index, &exchange->peer, &exchange->sends)) != 0)
            return error;
        if (request->kind != MPIS_COLLECTIVE)
            exchange->peer = request->peer;
        exchange->outgoing = exchange->incoming = MPI_REQUEST_NULL;
    }
    for (index = 0; index < request->number; index++) {
        struct mpis_exchange *exchange = &request->exchanges[index];
        /* The other sides get a refusal. */
        if ((error = gdsync_mpi_connection_info(request->engine, index, exchange->ours.info)) != 0) {
            record(request, error);
            refuse(request, exchange->ours.info);
            break;
        }
    }
    return 0;
}

/* Posts the first messages of an exchange. */
static int begin_exchange(MPIS_Request request, struct mpis_exchange *exchange)
{
    struct mpis_comm *comm = request->comm;
    MPI_Comm infos = request->kind == MPIS_LINK ? comm->linked
                      : request->kind == MPIS_COLLECTIVE ? comm->collectives : comm->transfers;
    int error;

    if (!exchange->sends)
        return request->order ? MPI_SUCCESS : receive_message(exchange, request->tag, infos);
    exchange->ours.place = request->place;
    exchange->ours.reply_tag = comm->next_reply_tag;
    comm->next_reply_tag = comm->next_reply_tag > comm->max_tag - 4 ? 0 : comm->next_reply_tag + 2;
    error = receive_message(exchange, exchange->ours.reply_tag, comm->replies);
    return error == MPI_SUCCESS ? send_message(exchange, request->tag, infos) : error;
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
    pthread_mutex_lock(&lock);
    if ((error = make_exchanges(request)) != 0) {
        free(request->exchanges);
        request->exchanges = NULL;
        pthread_mutex_unlock(&lock);
        return mpis_fail_engine(handler, error);
    }
    if (request->order)
        request->place = mpis_order_fix(request);
    for (index = 0; index < request->number; index++)
        if ((error = begin_exchange(request, &request->exchanges[index])) != MPI_SUCCESS)
            settle(request, &request->exchanges[index], error);
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
    const struct timespec interval = {0, SLEEP_NS};
    int spins;

    for (spins = 0; state_of(request) == MPIS_MATCHING; spins++) {
        mpis_match_progress();
        /* There may be more ranks than processors. */
        if (spins < SPINS)
            sched_yield();
        else
            nanosleep(&interval, NULL);
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
