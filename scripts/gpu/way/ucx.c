/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By UCX: tagged messages of libucp after the CPU has waited for the stream, as in mpi.c. The library is loaded at run time; the headers are
 * those of its development package, without which this way is absent.
 */
#include "way.h"

#if __has_include(<ucp/api/ucp.h>)
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { MOST = 64 };

#define FUNCTIONS(X)                                                                                                                         \
    X(ucp_config_read) X(ucp_config_release) X(ucp_init_version) X(ucp_worker_create) X(ucp_worker_get_address) X(ucp_ep_create)            \
    X(ucp_tag_send_nbx) X(ucp_tag_recv_nbx) X(ucp_worker_progress) X(ucp_request_check_status) X(ucp_request_free)
#define X(name) static __typeof__(name) *at_##name;
FUNCTIONS(X)
#undef X

static ucp_worker_h worker;
static ucp_ep_h peers[MOST];
static const char *(*status_text)(ucs_status_t);

static const char *load(void) {
    void *library = dlopen("libucp.so.0", RTLD_NOW), *found = dlopen("libucs.so.0", RTLD_NOW);
    if (!library || !found) {
        return dlerror();
    }
#define X(name)                                                                                                                              \
    if (!(*(void **)&at_##name = dlsym(library, #name)))                                                                                     \
        return dlerror();
    FUNCTIONS(X)
#undef X
    *(void **)&status_text = dlsym(found, "ucs_status_string");
    return status_text ? NULL : dlerror();
}

static void check(const char *what, ucs_status_t status) {
    if (status != UCS_OK) {
        fail(what, status_text(status));
    }
}

static const char *open_ucx(struct job *job) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t mode = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    const char *absent = job->on_gpu ? "it has pinned memory only here" : job->ranks > MOST ? "it has at most 64 ranks here" : load();
    ucp_config_t *config;
    ucp_context_h context;
    ucp_address_t *address;
    size_t length, longest, lengths[MOST];
    ucs_status_t status;
    char *all;
    if (absent) {
        return absent;
    }
    check("ucp_config_read", at_ucp_config_read(NULL, NULL, &config));
    status = at_ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
    at_ucp_config_release(config);
    if (status != UCS_OK || (status = at_ucp_worker_create(context, &mode, &worker)) != UCS_OK) {
        return status_text(status);
    }
    check("ucp_worker_get_address", at_ucp_worker_get_address(worker, &address, &length));
    OK(MPI_Allreduce(&length, &longest, 1, MPI_UNSIGNED_LONG, MPI_MAX, MPI_COMM_WORLD));
    all = calloc((size_t)job->ranks + 1, longest);
    memcpy(all + (size_t)job->ranks * longest, address, length);
    OK(MPI_Allgather(&length, 1, MPI_UNSIGNED_LONG, lengths, 1, MPI_UNSIGNED_LONG, MPI_COMM_WORLD));
    OK(MPI_Allgather(all + (size_t)job->ranks * longest, (int)longest, MPI_BYTE, all, (int)longest, MPI_BYTE, MPI_COMM_WORLD));
    for (int peer = 0; peer < job->ranks; peer++) {
        ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)(all + (size_t)peer * longest)};
        if (peer != job->rank) {
            check("ucp_ep_create", at_ucp_ep_create(worker, &to, &peers[peer]));
        }
    }
    free(all);
    allocate(job);
    return NULL;
}

static void finish(ucs_status_ptr_t request) {
    ucs_status_t status = UCS_PTR_IS_PTR(request) ? UCS_INPROGRESS : UCS_PTR_STATUS(request);
    while (status == UCS_INPROGRESS) {
        at_ucp_worker_progress(worker);
        status = at_ucp_request_check_status(request);
    }
    check("a tagged message", status);
    if (UCS_PTR_IS_PTR(request)) {
        at_ucp_request_free(request);
    }
}

static void exchange(struct job *job, int step, int sends, int receives) {
    const ucp_request_param_t plain = {0};
    ucs_status_ptr_t requests[2 * MOST];
    int count = 0;
    /* Messages from a rank match in order. */
    for (int peer = 0; receives && peer < job->ranks; peer++) {
        if (peer != job->rank) {
            requests[count++] = at_ucp_tag_recv_nbx(worker, job->in + block(job, step, peer), job->size, (ucp_tag_t)peer, (ucp_tag_t)-1, &plain);
        }
    }
    if (sends) {
        synchronize(job);
    }
    for (int peer = 0; sends && peer < job->ranks; peer++) {
        if (peer != job->rank) {
            requests[count++] = at_ucp_tag_send_nbx(peers[peer], job->out + block(job, step, peer), job->size, (ucp_tag_t)job->rank, &plain);
        }
    }
    while (count > 0) {
        finish(requests[--count]);
    }
}
#else
static const char *open_ucx(struct job *job) {
    (void)job;
    return "compiled without UCX's headers";
}

static void exchange(struct job *job, int step, int sends, int receives) { (void)job, (void)step, (void)sends, (void)receives; }
#endif

static void close_ucx(struct job *job) { (void)job; }

const struct way by_ucx = {"ucx", open_ucx, exchange, close_ucx};
