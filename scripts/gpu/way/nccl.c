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

static int (*get_unique_id)(unique_id *), (*init_rank)(void **, int, unique_id, int), (*group_start)(void), (*group_end)(void);
static int (*send)(const void *, size_t, int, int, void *, void *), (*receive)(void *, size_t, int, int, void *, void *);
static int (*async_error)(void *, int *);
static const char *(*error_text)(int);
static void *communicator;

static void check(const char *what, int code) {
    if (code != 0) {
        fail(what, error_text(code));
    }
}

static const char *open_nccl(struct job *job) {
    const struct {
        const char *name;
        void *function;
    } functions[] = {{"ncclGetUniqueId", &get_unique_id},        {"ncclCommInitRank", &init_rank}, {"ncclGroupStart", &group_start},
                     {"ncclGroupEnd", &group_end},               {"ncclSend", &send},              {"ncclRecv", &receive},
                     {"ncclCommGetAsyncError", &async_error}, {"ncclGetErrorString", &error_text}};
    const char *path = getenv("WAY_NCCL");
    void *library = dlopen(path ? path : "libnccl.so.2", RTLD_NOW);
    int gpus[64], code;
    unique_id id = {{0}};
    if (!library) {
        return dlerror();
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        if (!(*(void **)functions[i].function = dlsym(library, functions[i].name))) {
            return dlerror();
        }
    }
    if (job->ranks > 64) {
        return "it has at most 64 ranks here";
    }
    OK(MPI_Allgather(&job->gpu, 1, MPI_INT, gpus, 1, MPI_INT, MPI_COMM_WORLD));
    for (int one = 0; one < job->ranks; one++) {
        for (int other = 0; other < one; other++) {
            if (gpus[one] == gpus[other]) {
                return "NCCL needs a GPU for each rank";
            }
        }
    }
    code = job->rank == 0 ? get_unique_id(&id) : 0;
    OK(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
    code = code ? code : init_rank(&communicator, job->ranks, id, job->rank);
    if (code != 0) {
        return error_text(code);
    }
    allocate(job);
    return NULL;
}

static void exchange(struct job *job, int step, int sends, int receives) {
    check("ncclGroupStart", group_start());
    for (int peer = 0; peer < job->ranks; peer++) {
        if (peer != job->rank && sends) {
            check("ncclSend", send(job->out + block(job, step, peer), job->size, UINT8, peer, communicator, job->stream));
        }
        if (peer != job->rank && receives) {
            check("ncclRecv", receive(job->in + block(job, step, peer), job->size, UINT8, peer, communicator, job->stream));
        }
    }
    check("ncclGroupEnd", group_end());
}

static void close_nccl(struct job *job) {
    int state = 0;
    (void)job;
    check("ncclCommGetAsyncError", async_error(communicator, &state));
    check("NCCL", state);
}

const struct way by_nccl = {"nccl", open_nccl, exchange, close_nccl};
