/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A message transport for a runtime on gdsync's C interface, and a program that uses it. docs/c-abi.md explains it step by step.
 *
 *     cc -o transport transport.c $(pkg-config --cflags --libs gdsync)
 *     mpirun -n 4 ./transport                 (or srun, or GDSYNC_RANK, GDSYNC_SIZE and GDSYNC_JOB for each process)
 *     mpicc -DWITH_MPI -o transport transport.c ...      the same, bootstrapped by MPI
 *
 * Each rank sends to the next one and receives from the previous one, ROUNDS times. Streams do the work, in order: they wait for room, run a
 * function that fills the message, send, wait for the neighbour's message, run a function that reads it, and return the room. The CPU only
 * enqueues. This program uses software streams and the software card; with CUDA, a CUstream and kernels replace streams and functions.
 */
#define _POSIX_C_SOURCE 200809L

#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_MPI
#include <mpi.h>
#endif

/* ---- The transport ---- */

/* Messages in flight from one rank to another. */
enum { SLOTS = 4, PATIENCE_MS = 30000 };

struct transport {
    struct ibv_context *context;
    struct ibv_pd *pd;
    gdsync_team_t *team;
    gdsync_segment_t *segment;
    uint8_t *memory;
    uint32_t rank, size;
    size_t slot_bytes;
    unsigned long *sent, *received; /* by rank */
};

/* A rank's part has SLOTS buffers for messages to each other rank, and as many for messages from it. */
static size_t outgoing(const struct transport *t, uint32_t rank, unsigned long number) {
    return ((size_t)rank * 2 * SLOTS + number % SLOTS) * t->slot_bytes;
}

static size_t incoming(const struct transport *t, uint32_t rank, unsigned long number) {
    return ((size_t)rank * 2 * SLOTS + SLOTS + number % SLOTS) * t->slot_bytes;
}

/* Notifications that the other rank sets: a message has arrived, and a buffer there has become free. */
static uint32_t arrival(uint32_t rank, unsigned long number) { return rank * 2 * SLOTS + (uint32_t)(number % SLOTS); }
static uint32_t room(uint32_t rank, unsigned long number) { return rank * 2 * SLOTS + SLOTS + (uint32_t)(number % SLOTS); }

/* Connects the ranks of a bootstrap, which is consumed. Returns 0 or an errno. */
static int transport_open(struct transport *t, gdsync_bootstrap_t *bootstrap, size_t slot_bytes) {
    uint32_t rank;

    memset(t, 0, sizeof(*t));
    if (bootstrap == NULL) {
        return errno;
    }
    /* A program with a card opens it with libibverbs: ibv_open_device, ibv_alloc_pd. */
    t->context = gdsync_soft_open(NULL);
    t->pd = t->context == NULL ? NULL : gdsync_alloc_pd(t->context);
    if (t->pd == NULL) {
        return errno;
    }
    t->team = gdsync_team_create(bootstrap, t->pd, t->context, NULL);
    if (t->team == NULL) {
        return errno;
    }
    t->rank = (uint32_t)gdsync_team_rank(t->team);
    t->size = (uint32_t)gdsync_team_size(t->team);
    t->slot_bytes = slot_bytes;
    /* For GPU memory: gdsync_segment_allocate_gpu. For existing memory: gdsync_segment_register. */
    t->segment = gdsync_segment_allocate(t->team, (size_t)t->size * 2 * SLOTS * slot_bytes, t->size * 2 * SLOTS);
    t->sent = (unsigned long *)calloc(t->size, sizeof(*t->sent));
    t->received = (unsigned long *)calloc(t->size, sizeof(*t->received));
    if (t->segment == NULL || t->sent == NULL || t->received == NULL) {
        return ENOMEM;
    }
    t->memory = (uint8_t *)gdsync_segment_data(t->segment);
    /* The death of a rank then ends the waits for it, and no others. */
    for (rank = 0; rank < t->size; rank++) {
        int error = gdsync_notification_expect_from(t->segment, rank * 2 * SLOTS, 2 * SLOTS, rank);
        if (error != 0) {
            return error;
        }
    }
    return gdsync_team_barrier(t->team);
}

/* Returns the buffer of the next message to a rank; later work of the stream writes it. */
static int transport_begin(struct transport *t, CUstream stream, uint32_t to, uint8_t **message) {
    unsigned long number = t->sent[to];
    uint32_t free_again = room(to, number);

    *message = t->memory + outgoing(t, to, number);
    /* Room at the receiver implies that the last message of this buffer has arrived. */
    return number < SLOTS ? 0 : gdsync_stream_wait_notifications(stream, t->team, t->segment, 1, &free_again);
}

/* Sends it in stream order. */
static int transport_send(struct transport *t, CUstream stream, uint32_t to, size_t length) {
    gdsync_put_t put;

    memset(&put, 0, sizeof(put));
    put.from = put.to = t->segment;
    put.from_offset = outgoing(t, to, t->sent[to]);
    put.length = length;
    put.to_offset = incoming(t, t->rank, t->sent[to]);
    put.rank = to;
    put.notification = arrival(t->rank, t->sent[to]);
    put.value = 1;
    t->sent[to]++;
    return gdsync_stream_put(stream, t->team, 0, 1, &put);
}

/* Makes the stream wait for a rank's next message; later work of the stream finds it at *message. */
static int transport_receive(struct transport *t, CUstream stream, uint32_t from, const uint8_t **message) {
    uint32_t arrived = arrival(from, t->received[from]);

    *message = t->memory + incoming(t, from, t->received[from]);
    return gdsync_stream_wait_notifications(stream, t->team, t->segment, 1, &arrived);
}

/* Returns the buffer in stream order, by a notification alone. */
static int transport_release(struct transport *t, CUstream stream, uint32_t from) {
    gdsync_put_t put;

    memset(&put, 0, sizeof(put));
    put.to = t->segment;
    put.rank = from;
    put.notification = room(t->rank, t->received[from]);
    put.value = 1;
    t->received[from]++;
    return gdsync_stream_put(stream, t->team, 0, 1, &put);
}

/* Waits for a stream. EHOSTDOWN: a rank is dead, and the stream has stopped at a wait for its data. */
static int transport_finish(CUstream stream) { return gdsync_stream_synchronize(stream, PATIENCE_MS); }

/* A rank that exits while others write to it is dead to them. */
static int transport_close(struct transport *t) {
    int error = gdsync_team_flush(t->team, 0, PATIENCE_MS);

    error = error != 0 ? error : gdsync_team_barrier(t->team);
    error = error != 0 ? error : gdsync_segment_free(t->segment);
    error = error != 0 ? error : gdsync_team_free(t->team);
    error = error != 0 ? error : gdsync_dealloc_pd(t->pd);
    free(t->sent);
    free(t->received);
    return error != 0 ? error : gdsync_soft_close(t->context);
}

/* ---- A program on it ---- */

enum { ROUNDS = 500, BYTES = 4096 };

static int own_rank = -1;

static void check(int error, const char *what) {
    if (error != 0) {
        fprintf(stderr, "transport: rank %d: %s: errno %d: %s\n", own_rank, what, error, gdsync_error_text());
        exit(1);
    }
}

#define OK(call) check((call), #call)

/* Arguments of a function in stream order, like those of a kernel. */
struct step {
    uint8_t *out;
    const uint8_t *in;
    uint32_t rank, from, round;
    unsigned long *wrong;
};

static uint8_t byte_of(uint32_t rank, uint32_t round, size_t i) { return (uint8_t)(rank * 31 + round * 7 + i); }

static void fill(void *argument) {
    struct step *step = (struct step *)argument;
    size_t i;
    for (i = 0; i < BYTES; i++) {
        step->out[i] = byte_of(step->rank, step->round, i);
    }
}

static void compare(void *argument) {
    struct step *step = (struct step *)argument;
    size_t i;
    for (i = 0; i < BYTES; i++) {
        *step->wrong += step->in[i] != byte_of(step->from, step->round, i);
    }
}

#ifdef WITH_MPI
static int by_mpi(void *comm, const void *own, void *all, size_t bytes) {
    return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)comm);
}
#endif

static gdsync_bootstrap_t *meet(void) {
#ifdef WITH_MPI
    static MPI_Comm world;
    int rank, size;
    MPI_Init(NULL, NULL);
    world = MPI_COMM_WORLD;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &size);
    return gdsync_bootstrap_with((uint32_t)rank, (uint32_t)size, by_mpi, &world, PATIENCE_MS);
#else
    return gdsync_bootstrap_from_env(PATIENCE_MS);
#endif
}

int main(void) {
    static struct step steps[ROUNDS];
    struct transport t;
    unsigned long wrong = 0;
    uint32_t round, next, before;
    CUstream stream = gdsync_soft_stream_create();

    OK(transport_open(&t, meet(), BYTES));
    own_rank = (int)t.rank;
    next = (t.rank + 1) % t.size;
    before = (t.rank + t.size - 1) % t.size;
    for (round = 0; round < ROUNDS; round++) {
        struct step *step = &steps[round];
        step->rank = t.rank;
        step->from = before;
        step->round = round;
        step->wrong = &wrong;
        OK(transport_begin(&t, stream, next, &step->out));
        OK(gdsync_soft_stream_launch(stream, fill, step));
        OK(transport_send(&t, stream, next, BYTES));
        OK(transport_receive(&t, stream, before, &step->in));
        OK(gdsync_soft_stream_launch(stream, compare, step));
        OK(transport_release(&t, stream, before));
    }
    OK(transport_finish(stream));
    if (wrong != 0) {
        fprintf(stderr, "transport: rank %u: %lu bytes are wrong\n", t.rank, wrong);
        return 1;
    }
    OK(gdsync_soft_stream_destroy(stream));
    if (t.rank == 0) {
        printf("transport: %u ranks, %d messages of %d bytes each, every byte as sent\n", t.size, ROUNDS, BYTES);
    }
    OK(transport_close(&t));
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    return 0;
}
