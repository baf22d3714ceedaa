/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A ring of MPI processes on gdsync's C interface: each rank sends to the next one and receives from the previous one, for many rounds.
 * MPI exchanges only the queue pairs' addresses. A stream rings the card and waits; every byte of every round is checked.
 *
 *     mpicc -o ring ring.c $(pkg-config --cflags --libs gdsync)
 *     mpirun -n 4 ./ring [--gpu N] [--rounds N] [--size BYTES]
 *
 * Uses software streams and the software card. With the CUDA toolkit's cuda.h in the include path and -lcuda, `--gpu N` uses CUDA streams;
 * messages stay in host memory.
 */
#define _POSIX_C_SOURCE 200809L

#include <gdsync.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* WINDOW rounds are enqueued before the CPU waits for one. There are twice as many receive buffers, so that the neighbour may be a window
 * ahead. */
enum { WINDOW = 8, PATIENCE_MS = 20000 };

static int own_rank;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "ring: rank %d: %s: %s\n", own_rank, what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void check(int good, const char *what) {
    if (!good) {
        fail(what, gdsync_error_text());
    }
}

#define OK(call) check((call) == 0, #call)

struct ring {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct gds_qp *next, *before;
    uint8_t *memory;
    struct ibv_mr *region;
    CUstream stream;
    int gpu, rank, ranks;
    long rounds;
    size_t size;
};

static struct gds_qp *make_queue_pair(struct ring *ring) {
    gds_qp_init_attr_t attr;
    struct gds_qp *qp;
    memset(&attr, 0, sizeof(attr));
    attr.cap.max_send_wr = 2 * WINDOW;
    attr.cap.max_recv_wr = 2 * WINDOW;
    attr.cap.max_send_sge = 1;
    attr.cap.max_recv_sge = 1;
    attr.qp_type = IBV_QPT_RC;
    qp = gds_create_qp(ring->pd, ring->context, &attr, ring->gpu, GDS_CREATE_QP_DEFAULT);
    check(qp != NULL, "gds_create_qp");
    return qp;
}

static int by_mpi(void *comm, const void *own, void *all, size_t bytes) {
    return MPI_Allgather(own, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(MPI_Comm *)comm);
}

/* Connects the queue pairs of all ranks. MPI exchanges their addresses. */
static void connect_all(struct ring *ring) {
    MPI_Comm world = MPI_COMM_WORLD;
    gdsync_bootstrap_t *bootstrap =
        gdsync_bootstrap_with((uint32_t)ring->rank, (uint32_t)ring->ranks, by_mpi, &world, PATIENCE_MS);
    gdsync_connection_t connections[2];
    check(bootstrap != NULL, "gdsync_bootstrap_with");
    connections[0].qp = ring->next;
    connections[0].rank = (uint32_t)((ring->rank + 1) % ring->ranks);
    connections[0].tag = (uint32_t)ring->rank; /* the rank that sends */
    connections[1].qp = ring->before;
    connections[1].rank = connections[1].tag = (uint32_t)((ring->rank + ring->ranks - 1) % ring->ranks);
    OK(gdsync_bootstrap_connect(bootstrap, 2, connections));
    OK(gdsync_bootstrap_free(bootstrap));
}

static size_t sent_from(const struct ring *ring, long round) { return (size_t)(round % WINDOW) * ring->size; }

static size_t received_at(const struct ring *ring, long round) {
    return (size_t)(WINDOW + round % (2 * WINDOW)) * ring->size;
}

static struct ibv_sge place(const struct ring *ring, size_t offset) {
    struct ibv_sge sge;
    sge.addr = (uint64_t)(uintptr_t)(ring->memory + offset);
    sge.length = (uint32_t)ring->size;
    sge.lkey = ring->region->lkey;
    return sge;
}

static void receive(struct ring *ring, long first, long last) {
    long round;
    for (round = first; round < last; round++) {
        struct ibv_sge sge = place(ring, received_at(ring, round));
        struct ibv_recv_wr wr, *bad = NULL;
        memset(&wr, 0, sizeof(wr));
        wr.wr_id = (uint64_t)round;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        OK(gds_post_recv(ring->before, &wr, &bad));
    }
}

static uint8_t content(int rank, long round, size_t i) {
    return (uint8_t)(i * 13 + i / 251 + (size_t)rank * 151 + (size_t)round * 7);
}

/* A round: the send, and waits for its completion and for the incoming message. */
static void enqueue(struct ring *ring, long round) {
    size_t i, at = sent_from(ring, round);
    struct ibv_sge sge = place(ring, at);
    gds_send_wr wr, *bad = NULL;
    for (i = 0; i < ring->size; i++) {
        ring->memory[at + i] = content(ring->rank, round, i);
    }
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = (uint64_t)round;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    OK(gds_stream_queue_send(ring->stream, ring->next, &wr, &bad));
    OK(gds_stream_wait_cq(ring->stream, ring->next->send_cq, 0));
    OK(gds_stream_wait_cq(ring->stream, ring->before->recv_cq, 0));
}

static void completed(struct gds_cq *cq, long round) {
    struct ibv_wc wc;
    check(gds_poll_cq(cq, 1, &wc) == 1, "a stream has passed a wait, and there is no completion");
    if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)round) {
        fail("a completion", wc.status != IBV_WC_SUCCESS ? "it is an error" : "it is out of order");
    }
}

static void check_round(struct ring *ring, long round) {
    const uint8_t *bytes = ring->memory + received_at(ring, round);
    int from = (ring->rank + ring->ranks - 1) % ring->ranks;
    size_t i;
    completed(ring->next->send_cq, round);
    completed(ring->before->recv_cq, round);
    for (i = 0; i < ring->size; i++) {
        if (bytes[i] != content(from, round, i)) {
            fail("a message", "it is not what was sent");
        }
    }
}

static void run(struct ring *ring) {
    long first, round;
    for (first = 0; first < ring->rounds; first += WINDOW) {
        long last = first + WINDOW < ring->rounds ? first + WINDOW : ring->rounds;
        receive(ring, last, last + WINDOW < ring->rounds ? last + WINDOW : ring->rounds);
        for (round = first; round < last; round++) {
            enqueue(ring, round);
        }
        OK(gdsync_stream_synchronize(ring->stream, PATIENCE_MS));
        for (round = first; round < last; round++) {
            check_round(ring, round);
        }
    }
}

static void open_stream(struct ring *ring) {
    if (ring->gpu < 0) {
        ring->stream = gdsync_soft_stream_create();
        check(ring->stream != NULL, "gdsync_soft_stream_create");
        return;
    }
#ifdef GDSYNC_HAVE_CUDA_H
    {
        CUdevice device;
        CUcontext context;
        if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, ring->gpu) != CUDA_SUCCESS ||
            cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
            cuStreamCreate(&ring->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
            fail("--gpu", "there is no stream of such a GPU");
        }
    }
#else
    fail("--gpu", "this program was compiled without cuda.h");
#endif
}

static void close_stream(struct ring *ring) {
    if (ring->gpu < 0) {
        OK(gdsync_soft_stream_destroy(ring->stream));
        return;
    }
#ifdef GDSYNC_HAVE_CUDA_H
    OK(gdsync_stream_forget(ring->stream));
    cuStreamDestroy(ring->stream);
#endif
}

static void options(struct ring *ring, int argc, char **argv) {
    int i;
    ring->gpu = -1;
    ring->rounds = 1000;
    ring->size = 4096;
    for (i = 1; i < argc; i += 2) {
        char *end = NULL;
        long value = i + 1 < argc ? strtol(argv[i + 1], &end, 10) : -1;
        int good = end != NULL && *end == '\0' && end != argv[i + 1] && value >= 0;
        if (good && strcmp(argv[i], "--gpu") == 0 && value < 1024) {
            ring->gpu = (int)value;
        } else if (good && strcmp(argv[i], "--rounds") == 0) {
            ring->rounds = value;
        } else if (good && strcmp(argv[i], "--size") == 0 && value > 0 && value <= 1 << 26) {
            ring->size = (size_t)value;
        } else {
            fail("usage", "ring [--gpu N] [--rounds N] [--size BYTES, at most 64 MiB]");
        }
    }
}

int main(int argc, char **argv) {
    struct ring ring;
    void *memory = NULL;
    double started, time;

    memset(&ring, 0, sizeof(ring));
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS) {
        fprintf(stderr, "ring: MPI_Init failed\n");
        return 1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks);
    own_rank = ring.rank;
    options(&ring, argc, argv);

    open_stream(&ring);
    ring.context = gdsync_soft_open(NULL);
    check(ring.context != NULL, "gdsync_soft_open");
    ring.pd = gdsync_alloc_pd(ring.context);
    check(ring.pd != NULL, "gdsync_alloc_pd");
    check(posix_memalign(&memory, 4096, 3 * WINDOW * ring.size) == 0, "posix_memalign");
    ring.memory = (uint8_t *)memory;
    ring.region = gdsync_reg_mr(ring.pd, ring.memory, 3 * WINDOW * ring.size, IBV_ACCESS_LOCAL_WRITE);
    check(ring.region != NULL, "gdsync_reg_mr");
    ring.next = make_queue_pair(&ring);
    ring.before = make_queue_pair(&ring);

    connect_all(&ring);
    receive(&ring, 0, WINDOW < ring.rounds ? WINDOW : ring.rounds);
    /* No rank sends before all can receive. */
    MPI_Barrier(MPI_COMM_WORLD);

    started = MPI_Wtime();
    run(&ring);
    /* No rank exits while others still send to it. */
    MPI_Barrier(MPI_COMM_WORLD);
    time = MPI_Wtime() - started;

    OK(gds_destroy_qp(ring.next));
    OK(gds_destroy_qp(ring.before));
    close_stream(&ring);
    OK(gdsync_dereg_mr(ring.region));
    free(ring.memory);
    OK(gdsync_dealloc_pd(ring.pd));
    OK(gdsync_soft_close(ring.context));
    if (ring.rank == 0) {
        printf("ring: %d ranks, %ld rounds of %zu bytes on %s, every byte as sent; %.1f us a round\n", ring.ranks, ring.rounds,
               ring.size, ring.gpu < 0 ? "software streams" : "CUDA streams", time * 1e6 / (double)(ring.rounds > 0 ? ring.rounds : 1));
    }
    MPI_Finalize();
    return 0;
}
