/* Communicators, and the beginning and the end of the program. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int comm_key = MPI_KEYVAL_INVALID, end_key = MPI_KEYVAL_INVALID;
/* MPI_Finalize has begun. */
static int is_ending;

int mpis_check_running(void)
{
    int running = 0, over = 0;

    MPI_Initialized(&running);
    MPI_Finalized(&over);
    return running && !over && !is_ending ? MPI_SUCCESS : MPI_ERR_OTHER;
}

/* The first thing that MPI_Finalize does: the attributes of MPI_COMM_SELF are deleted. */
static int at_end(MPI_Comm comm, int key, void *value, void *extra)
{
    struct gdsync_mpi_counts counts;
    const char *wanted = getenv("GDSYNC_MPI_STATS");
    int rank = -1;

    (void)comm, (void)key, (void)value, (void)extra;
    is_ending = 1;
    if (gdsync_mpi_finish(&counts) == 0 && wanted && strcmp(wanted, "1") == 0) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        fprintf(stderr,
                "gdsync-mpis rank %d: %llu starts, %llu waits, %llu batches, %llu memory operations, "
                "%llu by the CPU\n", rank, (unsigned long long)counts.starts, (unsigned long long)counts.waits,
                (unsigned long long)counts.batches, (unsigned long long)counts.operations,
                (unsigned long long)counts.cpu);
    }
    return MPI_SUCCESS;
}

static int at_comm_free(MPI_Comm comm, int key, void *value, void *extra)
{
    struct mpis_comm *known = value;

    (void)comm, (void)key, (void)extra;
    known->is_freed = 1;
    if (!is_ending) {
        MPI_Comm_free(&known->transfers);
        MPI_Comm_free(&known->collectives);
        MPI_Comm_free(&known->replies);
    }
    mpis_comm_release(known);
    return MPI_SUCCESS;
}

/* Once in the process. */
static int make_keys(void)
{
    int error = MPI_SUCCESS;

    pthread_mutex_lock(&lock);
    if (comm_key == MPI_KEYVAL_INVALID)
        error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_comm_free, &comm_key, NULL);
    if (error == MPI_SUCCESS && end_key == MPI_KEYVAL_INVALID) {
        gdsync_mpi_meanwhile(mpis_match_progress);
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

/* Collective over the communicator. */
static int make(MPI_Comm comm, struct mpis_comm **made)
{
    struct mpis_comm *new = calloc(1, sizeof *new);
    int error = MPI_ERR_NO_MEM, has_most = 0, *most = NULL;

    if (!new)
        return error;
    MPI_Comm_get_attr(comm, MPI_TAG_UB, &most, &has_most);
    new->most = has_most ? *most : 32767;
    new->program = comm;
    new->refs = 1;
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
        __atomic_add_fetch(&(*found)->refs, 1, __ATOMIC_RELAXED);
    return error;
}

void mpis_comm_release(struct mpis_comm *comm)
{
    if (comm && __atomic_sub_fetch(&comm->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(comm);
}

/* MPI_COMM_WORLD is made ready while all ranks are in a call of MPI: later, not all of them may make a request on it. */
static int begin(int error)
{
    struct mpis_comm *world;

    if (error == MPI_SUCCESS && mpis_comm_get(MPI_COMM_WORLD, &world) == MPI_SUCCESS)
        mpis_comm_release(world);
    return error;
}

int MPI_Init(int *argc, char ***argv)
{
    return begin(PMPI_Init(argc, argv));
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    return begin(PMPI_Init_thread(argc, argv, required, provided));
}

void MPIS_Hello_world(void)
{
}
