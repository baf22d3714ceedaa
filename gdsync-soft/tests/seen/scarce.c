/* A process with too little of something: calls fail, no signal ends it, and with more they succeed. */

#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the last attempt left, for the next one to go on with. */
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static char memory[1 << 16];

/* Takes what is missing. Returns whether nothing is. */
static int attempt(void) {
    if (!context) {
        struct ibv_device **devices = ibv_get_device_list(NULL);
        if (devices && devices[0])
            context = ibv_open_device(devices[0]);
        if (devices)
            ibv_free_device_list(devices);
    }
    if (context && !pd)
        pd = ibv_alloc_pd(context);
    if (context && !channel)
        channel = ibv_create_comp_channel(context);
    if (channel && !cq)
        cq = ibv_create_cq(context, 64, NULL, channel, 0);
    if (pd && !mr)
        mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
    if (cq && pd && !qp) {
        struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
        asked.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
        qp = ibv_create_qp(pd, &asked);
    }
    if (!events)
        events = rdma_create_event_channel();
    if (events && !id && rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
        id = NULL;
    struct sockaddr_in any = {.sin_family = AF_INET};
    int is_bound = id && (rdma_get_src_port(id) || rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
    char text[64];
    FILE *lid = fopen("/sys/class/infiniband/mlx5_0/ports/1/lid", "r");
    int is_read = lid && fgets(text, sizeof(text), lid);
    if (lid)
        fclose(lid);
    return mr && qp && is_bound && is_read;
}

static void give_back(void) {
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_destroy_comp_channel(channel) == 0 && ibv_dealloc_pd(pd) == 0 && rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(events);
    qp = NULL, mr = NULL, cq = NULL, channel = NULL, pd = NULL, id = NULL, events = NULL;
}

/* Attempts with a limit, and then without. Returns whether the limit was enough. */
static int with_limit(int what, rlim_t limit) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit before, now;
        CHECK(getrlimit(what, &before) == 0);
        now = (struct rlimit){limit, before.rlim_max};
        CHECK(setrlimit(what, &now) == 0);
        int enough = attempt();
        CHECK(setrlimit(what, &before) == 0);
        CHECK(attempt());
        give_back();
        CHECK(ibv_close_device(context) == 0);
        _exit(enough ? 0 : 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3)) {
        fprintf(stderr, "limit %d of %llu: status %#x\n", what, (unsigned long long)limit, status);
        _exit(1);
    }
    return WEXITSTATUS(status) == 0;
}

static rlim_t address_space(void) {
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%llu", &pages) == 1 && fclose(file) == 0);
    return pages * sysconf(_SC_PAGESIZE);
}

static void *on_small_stack(void *result) {
    *(int *)result = attempt();
    if (*(int *)result)
        give_back();
    return NULL;
}

/* The smallest stack that a thread may have. libmlx5 itself needs more to open a device. */
static void threads(void) {
    pthread_attr_t small;
    pthread_t thread;
    int result = 0;
    CHECK(attempt());
    give_back();
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&thread, &small, on_small_stack, &result) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && result && ibv_close_device(context) == 0);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "threads")) {
        threads();
        return 0;
    }
    int refused = 0;
    if (!strcmp(arguments[1], "files")) {
        int used = dup(0);
        for (int more = 0; more < 64; more++)
            refused += !with_limit(RLIMIT_NOFILE, used + more);
        CHECK(refused > 0 && refused < 64);
    } else if (!strcmp(arguments[1], "size")) {
        for (rlim_t size = 0; size <= 1 << 30; size = size ? 4 * size : 1)
            refused += !with_limit(RLIMIT_FSIZE, size);
        CHECK(refused > 0 && with_limit(RLIMIT_FSIZE, 1 << 30));
    } else {
        rlim_t used = address_space();
        for (int more = 0; more < 64; more++)
            refused += !with_limit(RLIMIT_AS, used + ((rlim_t)more << 18));
        CHECK(refused > 0);
    }
    return 0;
}
