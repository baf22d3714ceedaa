/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By NCCL: ncclSend and ncclRecv on the stream. The library is loaded at run time (WAY_NCCL, or by its name); its header is not needed.
 */
#include "way.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef struct {
    char bytes[128];
} unique_id;
enum { UINT8 = 1 };

#define FUNCTIONS(X)                                                                                                                         \
    X(ncclGetUniqueId, int, (unique_id *)) X(ncclCommInitRank, int, (void **, int, unique_id, int)) X(ncclGroupStart, int, (void))           \
    X(ncclGroupEnd, int, (void)) X(ncclSend, int, (const void *, size_t, int, int, void *, void *))                                          \
    X(ncclRecv, int, (void *, size_t, int, int, void *, void *)) X(ncclCommGetAsyncError, int, (void *, int *))                              \
    X(ncclGetErrorString, const char *, (int))
#define X(name, result, arguments) static result(*name) arguments;
FUNCTIONS(X)
#undef X

static void *communicator;

static void check(const char *what, int code) {
    if (code != 0) {
        fail(what, ncclGetErrorString(code));
    }
}

static void begin(void) { check("ncclGroupStart", ncclGroupStart()); }

static void post_receive(const struct job *job, int step, int peer) {
    check("ncclRecv", ncclRecv(job->in + block(job, step, peer), job->size, UINT8, peer, communicator, job->stream));
}

static void post_send(const struct job *job, int step, int peer) {
    check("ncclSend", ncclSend(job->out + block(job, step, peer), job->size, UINT8, peer, communicator, job->stream));
}

static void end(const struct job *job) {
    (void)job;
    check("ncclGroupEnd", ncclGroupEnd());
}

static const char *open_nccl(struct job *job) {
    const char *path = getenv("WAY_NCCL");
    void *library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    int gpus[MOST_RANKS], code;
    unique_id id = {{0}};
#define X(name, result, arguments)                                                                                                           \
    if (!library || !(*(void **)&name = dlsym(library, #name)))                                                                              \
        return dlerror();
    FUNCTIONS(X)
#undef X
    OK(MPI_Allgather(&job->gpu, 1, MPI_INT, gpus, 1, MPI_INT, MPI_COMM_WORLD));
    /* Ranks have the GPUs in turn. */
    if (gpus[job->ranks - 1] != job->ranks - 1) {
        return "NCCL needs a GPU for each rank";
    }
    code = job->rank == 0 ? ncclGetUniqueId(&id) : 0;
    OK(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
    code = code ? code : ncclCommInitRank(&communicator, job->ranks, id, job->rank);
    if (code) {
        return ncclGetErrorString(code);
    }
    allocate(job);
    /* NCCL connects two ranks at their first exchange, for which both have to ask for the same directions. */
    begin();
    for (int peer = 0; peer < job->ranks; peer++) {
        if (peer != job->rank) {
            post_receive(job, 0, peer);
            post_send(job, 0, peer);
        }
    }
    end(job);
    synchronize(job);
    return NULL;
}

static void close_nccl(const struct job *job) {
    int state;
    (void)job;
    check("ncclCommGetAsyncError", ncclCommGetAsyncError(communicator, &state));
    check("NCCL", state);
}

const struct way by_nccl = {"nccl", 0, open_nccl, begin, post_receive, post_send, end, close_nccl};
