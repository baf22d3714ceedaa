/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * By UCX, after a synchronization: tagged messages of libucp. The library is loaded at run time; its headers are those of UCX's development
 * package, without which this way is absent.
 */
#include "way.h"

#if __has_include(<ucp/api/ucp.h>)
#include <dlfcn.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { ADDRESS = 4096 };

#define FUNCTIONS(X)                                                                                                                         \
    X(ucp_config_read) X(ucp_init_version) X(ucp_worker_create) X(ucp_worker_get_address) X(ucp_ep_create) X(ucp_tag_send_nbx)               \
    X(ucp_tag_recv_nbx) X(ucp_worker_progress) X(ucp_request_check_status) X(ucp_request_free) X(ucs_status_string)
#define X(name) static __typeof__(name) *at_##name;
FUNCTIONS(X)
#undef X

static ucp_worker_h worker;
static ucp_ep_h peers[MOST_RANKS];
static ucs_status_ptr_t requests[2 * MOST_RANKS];
static const ucp_request_param_t PLAIN;
static int count;

static void check(const char *what, ucs_status_t status) {
    if (status != UCS_OK) {
        fail(what, at_ucs_status_string(status));
    }
}

static const char *open_ucx(struct job *job) {
    static char addresses[MOST_RANKS][ADDRESS];
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t mode = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE};
    /* It depends on libucs, so dlsym finds that library's function, too. */
    void *library = dlopen("libucp.so.0", RTLD_NOW);
    ucp_config_t *config;
    ucp_context_h context;
    ucp_address_t *address;
    size_t length;
    ucs_status_t status;
#define X(name)                                                                                                                              \
    if (!library || !(*(void **)&at_##name = dlsym(library, #name)))                                                                         \
        return dlerror();
    FUNCTIONS(X)
#undef X
    check("ucp_config_read", at_ucp_config_read(NULL, NULL, &config));
    status = at_ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
    status = status == UCS_OK ? at_ucp_worker_create(context, &mode, &worker) : status;
    if (status != UCS_OK) {
        return at_ucs_status_string(status);
    }
    check("ucp_worker_get_address", at_ucp_worker_get_address(worker, &address, &length));
    if (length > ADDRESS) {
        fail("ucp_worker_get_address", "an address of more than 4096 bytes");
    }
    memcpy(addresses[job->rank], address, length);
    OK(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, addresses, ADDRESS, MPI_BYTE, MPI_COMM_WORLD));
    for (int peer = 0; peer < job->ranks; peer++) {
        ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = (ucp_address_t *)addresses[peer]};
        if (peer != job->rank) {
            check("ucp_ep_create", at_ucp_ep_create(worker, &to, &peers[peer]));
        }
    }
    allocate(job);
    return NULL;
}

static void begin(void) { count = 0; }

/* Messages from a rank match in order. */
static void post_receive(const struct job *job, int step, int peer) {
    requests[count++] = at_ucp_tag_recv_nbx(worker, job->in + block(job, step, peer), job->size, (ucp_tag_t)peer, (ucp_tag_t)-1, &PLAIN);
}

static void post_send(const struct job *job, int step, int peer) {
    requests[count++] = at_ucp_tag_send_nbx(peers[peer], job->out + block(job, step, peer), job->size, (ucp_tag_t)job->rank, &PLAIN);
}

static void end(const struct job *job) {
    (void)job;
    for (int i = 0; i < count; i++) {
        int is_pending = UCS_PTR_IS_PTR(requests[i]);
        ucs_status_t status = is_pending ? UCS_INPROGRESS : UCS_PTR_STATUS(requests[i]);
        while (status == UCS_INPROGRESS) {
            at_ucp_worker_progress(worker);
            status = at_ucp_request_check_status(requests[i]);
        }
        check("a tagged message", status);
        if (is_pending) {
            at_ucp_request_free(requests[i]);
        }
    }
}

static void close_ucx(const struct job *job) { (void)job; }

const struct way by_ucx = {"ucx", 1, open_ucx, begin, post_receive, post_send, end, close_ucx};
#else
static const char *open_ucx(struct job *job) {
    (void)job;
    return "compiled without UCX's headers";
}

const struct way by_ucx = {"ucx", 1, open_ucx, NULL, NULL, NULL, NULL, NULL};
#endif
