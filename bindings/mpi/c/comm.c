/* Communicators, and the end of the program. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int comm_key = MPI_KEYVAL_INVALID, end_key = MPI_KEYVAL_INVALID;
/* True once MPI_Finalize has begun. */
static int is_ending;
/* The library's part of the end of the program. */
static void (*library_end)(void);

int mpis_wants_statistics(void)
{
    const char *wanted = getenv("GDSYNC_MPI_STATS");

    return wanted && strcmp(wanted, "1") == 0;
}

int mpis_check_running(void)
{
    int running = 0, over = 0;

    MPI_Initialized(&running);
    MPI_Finalized(&over);
    return running && !over && !is_ending ? MPI_SUCCESS : MPI_ERR_OTHER;
}

void mpis_on_finalize(void (*end)(void))
{
    __atomic_store_n(&library_end, end, __ATOMIC_RELEASE);
}

void mpis_end_of_program(void)
{
    void (*end)(void) = __atomic_load_n(&library_end, __ATOMIC_ACQUIRE);

    if (!__atomic_exchange_n(&is_ending, 1, __ATOMIC_ACQ_REL) && end)
        end();
}

/* MPI_Finalize first deletes the attributes of MPI_COMM_SELF, the last one first. */
static int at_end(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    mpis_end_of_program();
    return MPI_SUCCESS;
}

/* Waits for links to match: the matching messages are on the communicator. */
static void free_links(struct mpis_comm *known)
{
    struct mpis_link *link;

    while ((link = known->links) != NULL) {
        known->links = link->next;
        if (!is_ending)
            mpis_match_settle(link->matched);
        mpis_request_release(link->matched);
        free(link);
    }
}

static int at_comm_free(MPI_Comm comm, int key, void *value, void *extra)
{
    struct mpis_comm *known = value;

    (void)key, (void)extra;
    /* Only MPI_Finalize frees MPI_COMM_SELF. */
    if (comm == MPI_COMM_SELF)
        mpis_end_of_program();
    free_links(known);
    known->is_freed = 1;
    mpis_comm_release(known);
    return MPI_SUCCESS;
}

/* Requests keep the duplicates, on which they match. */
void mpis_comm_release(struct mpis_comm *known)
{
    if (!known || __atomic_sub_fetch(&known->refs, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    if (mpis_check_running() == MPI_SUCCESS) {
        MPI_Comm_free(&known->transfers);
        MPI_Comm_free(&known->collectives);
        MPI_Comm_free(&known->replies);
        if (known->linked != MPI_COMM_NULL)
            MPI_Comm_free(&known->linked);
    }
    mpis_orders_free(known->orders);
    free(known);
}

/* Makes the keys once in the process. */
static int make_keys(void)
{
    int error = MPI_SUCCESS;

    pthread_mutex_lock(&lock);
    if (comm_key == MPI_KEYVAL_INVALID)
        error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_comm_free, &comm_key, NULL);
    if (error == MPI_SUCCESS && end_key == MPI_KEYVAL_INVALID) {
        gdsync_mpi_set_match_progress(mpis_match_progress);
        error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_end, &end_key, NULL);
        if (error == MPI_SUCCESS)
            error = MPI_Comm_set_attr(MPI_COMM_SELF, end_key, NULL);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static int duplicate(MPI_Comm comm, MPI_Comm *made)
{
    int error = MPI_Comm_dup(comm, made);

    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
    return error;
}

/* Makes the state of a communicator. Collective over it. */
static int make(MPI_Comm comm, struct mpis_comm **made)
{
    struct mpis_comm *new = calloc(1, sizeof *new);
    int error = MPI_ERR_NO_MEM, has_max_tag = 0, *max_tag = NULL;

    if (!new)
        return error;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &max_tag, &has_max_tag);
    new->max_tag = has_max_tag ? *max_tag : 32767;
    new->program = comm;
    new->refs = 1;
    new->linked = MPI_COMM_NULL;
    error = duplicate(comm, &new->transfers);
    if (error == MPI_SUCCESS)
        error = duplicate(comm, &new->collectives);
    if (error == MPI_SUCCESS)
        error = duplicate(comm, &new->replies);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_set_attr(comm, comm_key, new);
    if (error != MPI_SUCCESS) {
        free(new);
        return error;
    }
    *made = new;
    return MPI_SUCCESS;
}

int mpis_comm_get(MPI_Comm comm, struct mpis_comm **found)
{
    int error, is_known = 0, is_inter = 0;

    if (mpis_check_running() != MPI_SUCCESS)
        return MPI_ERR_OTHER;
    if (comm == MPI_COMM_NULL)
        return mpis_fail(MPI_COMM_WORLD, MPI_ERR_COMM, "the communicator is MPI_COMM_NULL");
    MPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        return mpis_fail(comm, MPI_ERR_COMM, "requests on intercommunicators are not supported: merge it first");
    error = make_keys();
    if (error == MPI_SUCCESS)
        error = MPI_Comm_get_attr(comm, comm_key, found, &is_known);
    if (error == MPI_SUCCESS && !is_known)
        error = make(comm, found);
    if (error == MPI_SUCCESS)
        mpis_comm_hold(*found);
    return error;
}

int mpis_comm_link(MPI_Comm comm)
{
    struct mpis_comm *known;
    int error = mpis_comm_get(comm, &known);

    if (error != MPI_SUCCESS)
        return error;
    if (known->linked == MPI_COMM_NULL)
        error = duplicate(comm, &known->linked);
    mpis_comm_release(known);
    return error;
}

struct mpis_comm *mpis_comm_linked(MPI_Comm comm)
{
    struct mpis_comm *known = NULL;
    int is_known = 0;

    if (comm_key == MPI_KEYVAL_INVALID || MPI_Comm_get_attr(comm, comm_key, &known, &is_known) != MPI_SUCCESS)
        return NULL;
    return is_known && known->linked != MPI_COMM_NULL ? known : NULL;
}
