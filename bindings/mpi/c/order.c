/* The order in which partitioned requests match, per communicator, peer, tag and direction. Each request has a place in it, from its
 * creation on. The first start fixes the place; a request that is freed before leaves it to the next one. Both sides count alike, and
 * the sending side's connection info names its place, so it does not matter which of these calls come first. */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>

/* A place that no start has fixed. Places without an owner, which follow all others, are those of requests to come. */
struct place {
    unsigned number;
    MPIS_Request owner;
    struct place *next;
};

/* Connection info from the sending side, kept until the request of its place asks for it. */
struct offer {
    struct mpis_info_message message;
    struct offer *next;
};

struct mpis_order {
    int sends, peer, tag;
    unsigned next_number;
    struct place *places;
    /* Under the lock of match.c: what has arrived, and a receive into `arriving`. */
    struct offer *offers, *arriving;
    MPI_Request incoming;
    struct mpis_order *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Returns the order of a peer, a tag and a direction, which the first call makes; NULL if there is no memory. */
static struct mpis_order *order_of(struct mpis_comm *comm, int sends, int peer, int tag)
{
    struct mpis_order *found;

    for (found = comm->orders; found; found = found->next)
        if (found->sends == sends && found->peer == peer && found->tag == tag)
            return found;
    found = calloc(1, sizeof *found);
    if (found) {
        *found = (struct mpis_order){.sends = sends, .peer = peer, .tag = tag, .next = comm->orders};
        found->incoming = MPI_REQUEST_NULL;
        comm->orders = found;
    }
    return found;
}

int mpis_order_join(MPIS_Request request, int sends)
{
    struct place **at = NULL;

    pthread_mutex_lock(&lock);
    request->order = order_of(request->comm, sends, request->peer, request->tag);
    if (request->order)
        for (at = &request->order->places; *at && (*at)->owner; at = &(*at)->next)
            ;
    if (at && !*at && (*at = calloc(1, sizeof **at)) != NULL)
        (*at)->number = request->order->next_number++;
    if (at && *at)
        (*at)->owner = request;
    else
        request->order = NULL;
    pthread_mutex_unlock(&lock);
    return request->order ? MPI_SUCCESS
                          : mpis_fail(mpis_handler_of(request->comm), MPI_ERR_NO_MEM, "there is no memory for a request");
}

/* Returns where the place of a request is in the list. */
static struct place **find(MPIS_Request request)
{
    struct place **at = &request->order->places;

    while ((*at)->owner != request)
        at = &(*at)->next;
    return at;
}

void mpis_order_leave(MPIS_Request request)
{
    struct place *at;

    pthread_mutex_lock(&lock);
    for (at = *find(request); at->owner; at = at->next) {
        at->owner = at->next ? at->next->owner : NULL;
        if (!at->next)
            break;
    }
    pthread_mutex_unlock(&lock);
}

unsigned mpis_order_fix(MPIS_Request request)
{
    struct place **at, *fixed;
    unsigned number;

    pthread_mutex_lock(&lock);
    at = find(request);
    fixed = *at;
    *at = fixed->next;
    pthread_mutex_unlock(&lock);
    number = fixed->number;
    free(fixed);
    return number;
}

/* Takes the info for a place, if it has arrived. */
static int take(struct mpis_order *order, unsigned place, struct mpis_info_message *into)
{
    struct offer **at, *taken;

    for (at = &order->offers; (taken = *at) != NULL; at = &taken->next)
        if (taken->message.place == place) {
            *into = taken->message;
            *at = taken->next;
            free(taken);
            return 1;
        }
    return 0;
}

int mpis_order_test(MPIS_Request request, struct mpis_info_message *into, int *done)
{
    struct mpis_order *order = request->order;
    int error = MPI_SUCCESS, arrived = 1;

    while (!(*done = take(order, request->place, into)) && arrived && error == MPI_SUCCESS) {
        if (!order->arriving) {
            if (!(order->arriving = calloc(1, sizeof *order->arriving)))
                return MPI_ERR_NO_MEM;
            error = MPI_Irecv(&order->arriving->message, sizeof order->arriving->message, MPI_BYTE, order->peer, order->tag,
                              request->comm->transfers, &order->incoming);
        }
        if (error == MPI_SUCCESS)
            error = MPI_Test(&order->incoming, &arrived, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS)
            free(order->arriving);
        else if (arrived) {
            order->arriving->next = order->offers;
            order->offers = order->arriving;
        }
        if (error != MPI_SUCCESS || arrived)
            order->arriving = NULL;
    }
    return error;
}

void mpis_orders_free(struct mpis_order *order)
{
    struct mpis_order *next;
    struct offer *offer;
    struct place *place;

    for (; order; order = next) {
        next = order->next;
        while ((offer = order->offers) != NULL) {
            order->offers = offer->next;
            free(offer);
        }
        while ((place = order->places) != NULL) {
            order->places = place->next;
            free(place);
        }
        free(order);
    }
}
