/* Error codes of MPI with the library's text: one code for each class, whose text is that of the last error. */
#include "internal.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_CLASSES 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int mpi_class, code;
} codes[MAX_CLASSES];
static int known;

/* Returns whether MPI returns the text of a code. MPICH 4.0 returns a generic text for codes that are added to its classes. */
static int has_text(int code)
{
    static const char probe[] = "gdsync";
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    return MPI_Add_error_string(code, probe) == MPI_SUCCESS && MPI_Error_string(code, text, &length) == MPI_SUCCESS &&
           strstr(text, probe) != NULL;
}

/* Returns the code of a class, or the class itself if MPI adds no code, or none with a text. */
static int code_of(int mpi_class)
{
    int at, code = mpi_class;

    for (at = 0; at < known; at++)
        if (codes[at].mpi_class == mpi_class)
            return codes[at].code;
    if (known < MAX_CLASSES && MPI_Add_error_code(mpi_class, &code) == MPI_SUCCESS) {
        codes[known].mpi_class = mpi_class;
        codes[known].code = has_text(code) ? code : mpi_class;
        return codes[known++].code;
    }
    return mpi_class;
}

int mpis_code(int mpi_class, const char *text)
{
    int code;

    pthread_mutex_lock(&lock);
    code = code_of(mpi_class);
    if (code != mpi_class)
        MPI_Add_error_string(code, text);
    pthread_mutex_unlock(&lock);
    return code;
}

int mpis_fail(MPI_Comm comm, int mpi_class, const char *format, ...)
{
    char text[MPIS_TEXT];
    va_list values;
    int code, running = 0, over = 1;

    MPI_Initialized(&running);
    MPI_Finalized(&over);
    if (!running || over)
        return mpi_class;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    code = mpis_code(mpi_class, text);
    MPI_Comm_call_errhandler(comm, code);
    return code;
}

int mpis_class(int gdsync_class)
{
    switch (gdsync_class) {
    case GDSYNC_MPI_ARGUMENT:
        return MPI_ERR_ARG;
    case GDSYNC_MPI_BUFFER:
        return MPI_ERR_BUFFER;
    case GDSYNC_MPI_REQUEST:
        return MPI_ERR_REQUEST;
    case GDSYNC_MPI_TRUNCATE:
        return MPI_ERR_TRUNCATE;
    case GDSYNC_MPI_UNSUPPORTED:
        return MPI_ERR_UNSUPPORTED_OPERATION;
    case GDSYNC_MPI_MEMORY:
        return MPI_ERR_NO_MEM;
#ifdef MPI_ERR_PROC_FAILED
    case GDSYNC_MPI_PEER:
        return MPI_ERR_PROC_FAILED;
#endif
    default:
        return MPI_ERR_OTHER;
    }
}

int mpis_fail_engine(MPI_Comm comm, int gdsync_class)
{
    char text[MPIS_TEXT];

    gdsync_mpi_error_text(text, sizeof text);
    return mpis_fail(comm, mpis_class(gdsync_class), "%s", text);
}

MPI_Comm mpis_handler_of(const struct mpis_comm *comm)
{
    return comm && !comm->is_freed ? comm->program : MPI_COMM_WORLD;
}
