/* Helpers of the test programs. */
#ifndef COMMON_H
#define COMMON_H

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef WITH_THREADS
#define WITH_THREADS 0
#endif

/* The class of an error with a dead rank. */
#ifdef MPI_ERR_PROC_FAILED
#define PEER_HAS_DIED MPI_ERR_PROC_FAILED
#else
#define PEER_HAS_DIED MPI_ERR_OTHER
#endif

static int rank, size;

/* Ends all ranks unless a condition holds. */
#define CHECK(holds)                                                                                                  \
    do {                                                                                                              \
        if (!(holds)) {                                                                                               \
            fprintf(stderr, "%s:%d: rank %d: %s does not hold\n", __FILE__, __LINE__, rank, #holds);                  \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                                             \
        }                                                                                                             \
    } while (0)

#define OK(call) CHECK((call) == MPI_SUCCESS)

static inline void begin(void)
{
    int level;

    /* libgdsync-mpix calls MPI from its own thread. */
    if (WITH_THREADS)
        OK(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
    else
        OK(MPI_Init(NULL, NULL));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

/* Prints on rank 0, after a barrier. */
static inline void end(const char *said)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        puts(said);
    OK(MPI_Finalize());
}

/* Returns whether a call has failed with an error of a class whose text contains a word. */
static inline int failed(int code, int wanted, const char *word)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int class = MPI_SUCCESS, len;

    MPI_Error_class(code, &class);
    MPI_Error_string(code, text, &len);
    if (class == wanted && strstr(text, word))
        return 1;
    fprintf(stderr, "rank %d: class %d, not %d: %s (not %s)\n", rank, class, wanted, text, word);
    return 0;
}

#endif
