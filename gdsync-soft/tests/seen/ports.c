/* Port numbers of identifiers: free when the call that ends the identifier returns. */

#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 200

extern char **environ;
static struct sockaddr_in place = {.sin_family = AF_INET};
static atomic_int over;

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, enum rdma_port_space space) {
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&place) == 0);
    return id;
}

static void rounds(enum rdma_port_space space, int listens) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    for (int i = 0; i < ROUNDS; i++) {
        struct rdma_cm_id *id = bound(channel, space);
        CHECK(!listens || rdma_listen(id, 1) == 0);
        CHECK(rdma_destroy_id(id) == 0);
    }
    /* The end of the file ends the identifier, too. */
    for (int i = 0; i < ROUNDS / 10; i++) {
        struct rdma_cm_id *id = bound(channel, space);
        CHECK(!listens || rdma_listen(id, 1) == 0);
        struct rdma_event_channel *old = channel;
        CHECK(close(old->fd) == 0 && (channel = rdma_create_event_channel()));
    }
    rdma_destroy_event_channel(channel);
}

/* Another process has the number as soon as it knows that this one has given it up. */
static void hand_over(void) {
    int there[2], back[2], status;
    char byte = 0;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    /* The end of one side ends the other. */
    CHECK(close(child ? there[0] : there[1]) == 0 && close(child ? back[1] : back[0]) == 0);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    for (int i = 0; i < ROUNDS; i++) {
        if (child == 0)
            CHECK(read(there[0], &byte, 1) == 1);
        CHECK(rdma_destroy_id(bound(channel, RDMA_PS_TCP)) == 0);
        CHECK(write(child ? there[1] : back[1], &byte, 1) == 1);
        if (child)
            CHECK(read(back[0], &byte, 1) == 1);
    }
    rdma_destroy_event_channel(channel);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A child that was forked meanwhile does not keep the number. */
static void forked(void) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = bound(channel, RDMA_PS_TCP);
    int ends[2], status;
    char byte;
    CHECK(rdma_listen(id, 1) == 0 && pipe(ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(bound(channel, RDMA_PS_TCP)) == 0);
    CHECK(close(ends[1]) == 0 && waitpid(child, &status, 0) == child && status == 0);
    rdma_destroy_event_channel(channel);
}

/* Programs that are being started have copies of all files for a moment. */
static void *starts(void *nothing) {
    char *arguments[] = {"true", NULL};
    while (!over) {
        pid_t child;
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && waitpid(child, NULL, 0) == child);
    }
    return nothing;
}

/* Asks who serves the number. */
static void *asks(void *nothing) {
    struct sockaddr_in to = place;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (!over) {
        struct rdma_cm_id *id;
        CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
        rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000);
        CHECK(rdma_destroy_id(id) == 0);
    }
    return nothing;
}

static void beside(void *(*other)(void *)) {
    pthread_t thread;
    over = 0;
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0);
    rounds(RDMA_PS_TCP, 1);
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static struct rdma_cm_id *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind) {
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0);
    if (event->event != kind)
        fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
    CHECK(event->event == kind);
    struct rdma_cm_id *id = event->id;
    CHECK(rdma_ack_cm_event(event) == 0);
    return id;
}

/* A listener's number is free while the connections that it has accepted last. */
static void connections_outlive(void) {
    struct rdma_event_channel *channel = rdma_create_event_channel(), *other = rdma_create_event_channel();
    struct rdma_cm_id *listener = bound(channel, RDMA_PS_TCP), *active;
    struct sockaddr_in to = place;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(rdma_listen(listener, 1) == 0 && rdma_create_id(other, &active, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(active, NULL, (struct sockaddr *)&to, 10000) == 0);
    next(other, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(active, 10000) == 0);
    next(other, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_qp_init_attr asked = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
    CHECK(rdma_create_qp(active, NULL, &asked) == 0 && rdma_connect(active, &param) == 0);
    struct rdma_cm_id *passive = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(rdma_create_qp(passive, NULL, &asked) == 0 && rdma_accept(passive, &param) == 0);
    /* The active side tells the other when its program takes the event. */
    next(other, RDMA_CM_EVENT_ESTABLISHED);
    next(channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(rdma_destroy_id(listener) == 0 && rdma_destroy_id(bound(channel, RDMA_PS_TCP)) == 0);
    rdma_destroy_qp(active);
    rdma_destroy_qp(passive);
    CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(passive) == 0);
    rdma_destroy_event_channel(channel);
    rdma_destroy_event_channel(other);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    place.sin_port = htons(atoi(arguments[1]));
    hand_over();
    for (int listens = 0; listens < 2; listens++) {
        rounds(RDMA_PS_TCP, listens);
        rounds(RDMA_PS_UDP, listens);
    }
    forked();
    beside(starts);
    beside(asks);
    connections_outlive();
    /* A number that is in use stays so (`cma_check_port`, for an address that is any). */
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *one = bound(channel, RDMA_PS_TCP), *two;
    CHECK(rdma_create_id(channel, &two, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(two, (struct sockaddr *)&place) == -1 && errno == EADDRNOTAVAIL);
    CHECK(rdma_destroy_id(one) == 0 && rdma_bind_addr(two, (struct sockaddr *)&place) == 0);
    CHECK(rdma_destroy_id(two) == 0);
    rdma_destroy_event_channel(channel);
    return 0;
}
