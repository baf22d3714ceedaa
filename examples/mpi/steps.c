/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Cost of a step of message passing along a ring (to the right), or a periodic grid (in four directions). A step sends the data received by the
 * previous step, stamped with its number. It runs with stream-triggered MPI (MPIS_* or MPIX_*), and then with MPI_Isend, MPI_Irecv and
 * MPI_Waitall after a synchronization of the stream. At the end every byte is checked.
 *
 *     mpicc -o steps steps.c $(pkg-config --cflags --libs gdsync-mpis) -ldl
 *     mpicc -DBY_MPIX -o steps steps.c $(pkg-config --cflags --libs gdsync-mpix) -ldl      (instead with a linked communicator, MPIX_*)
 *     mpirun --bind-to none -n 4 ./steps [--gpu N] [--memory host|gpu] [--grid] [--steps N] [--size BYTES]
 *
 * Without --gpu, a software stream replaces a CUDA stream. With it, messages are in GPU memory (--memory gpu, not used with MPI_Isend) or in
 * pinned host memory; libcuda is loaded at run time, so compiling needs nothing of CUDA.
 */
#define _GNU_SOURCE

#ifdef BY_MPIX
#include <mpi-acx.h>
#else
#include <stream-triggering.h>
#endif

#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 4, STAMP = 8, WARM_UP = 100 };

typedef unsigned long long device_pointer;

static int rank, ranks;

/* ---- CUDA's driver, if requested ---- */

static int (*cu_init)(unsigned), (*cu_device_get)(int *, int), (*cu_context_retain)(void **, int), (*cu_context_set)(void *);
static int (*cu_stream_create)(void **, unsigned), (*cu_stream_synchronize)(void *);
static int (*cu_mem_alloc)(device_pointer *, size_t), (*cu_host_alloc)(void **, size_t, unsigned);
static int (*cu_copy)(device_pointer, device_pointer, size_t), (*cu_module_load)(void **, const void *);
static int (*cu_module_function)(void **, void *, const char *);
static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

/* pass_on(out, in, words, step): copies `words` 32-bit words from `in`, if it is not null, to `out`, whose first word becomes the step. The
 * driver's copies between host memory are no alternative: they run on the calling thread, which waits for the stream. */
static const char PASS_ON[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry pass_on(.param .u64 out, .param .u64 in, .param .u32 words, .param .u32 step) {\n"
    "  .reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<6>;\n"
    "  ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [in]; ld.param.u32 %r1, [words]; ld.param.u32 %r2, [step];\n"
    "  mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x; mov.u32 %r5, %tid.x; mov.u32 %r7, %nctaid.x;\n"
    "  mad.lo.u32 %r3, %r3, %r4, %r5; mul.lo.u32 %r7, %r7, %r4;\n"
    "WORD:\n"
    "  setp.ge.u32 %p1, %r3, %r1; @%p1 ret;\n"
    "  mul.wide.u32 %rd3, %r3, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;\n"
    "  setp.eq.u32 %p2, %r3, 0; setp.eq.u64 %p3, %rd2, 0;\n"
    "  @%p2 bra FIRST; @%p3 bra NEXT;\n"
    "  ld.global.u32 %r6, [%rd5]; st.global.u32 [%rd4], %r6; bra NEXT;\n"
    "FIRST: st.global.u32 [%rd4], %r2;\n"
    "NEXT: add.u32 %r3, %r3, %r7; bra WORD;\n"
    "}\n";
static void *pass_on_gpu;

static void fail(const char *what, long code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (strstr(what, "MPI") && code != MPI_SUCCESS) {
        MPI_Error_string((int)code, text, &length);
    }
    fprintf(stderr, "steps: rank %d: %s: %ld %s\n", rank, what, code, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int code_ = (call);                                                                                            \
        if (code_ != 0)                                                                                                \
            fail(#call, code_);                                                                                        \
    } while (0)

static void *cuda_library;

static void *cuda(const char *name) {
    void *function = dlsym(cuda_library, name);
    if (!function) {
        fail(name, 0);
    }
    return function;
}

#define LOAD(function, name) (*(void **)&(function) = cuda(name))

static void cuda_begin(int gpu, void **stream) {
    void *context, *module;
    int device;
    cuda_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!cuda_library) {
        fail(dlerror(), 0);
    }
    LOAD(cu_init, "cuInit");
    LOAD(cu_device_get, "cuDeviceGet");
    LOAD(cu_context_retain, "cuDevicePrimaryCtxRetain");
    LOAD(cu_context_set, "cuCtxSetCurrent");
    LOAD(cu_stream_create, "cuStreamCreate");
    LOAD(cu_stream_synchronize, "cuStreamSynchronize");
    LOAD(cu_mem_alloc, "cuMemAlloc_v2");
    LOAD(cu_host_alloc, "cuMemHostAlloc");
    LOAD(cu_copy, "cuMemcpy");
    LOAD(cu_module_load, "cuModuleLoadData");
    LOAD(cu_module_function, "cuModuleGetFunction");
    LOAD(cu_launch, "cuLaunchKernel");
    OK(cu_init(0));
    OK(cu_device_get(&device, gpu));
    OK(cu_context_retain(&context, device));
    OK(cu_context_set(context));
    OK(cu_stream_create(stream, 1 /* CU_STREAM_NON_BLOCKING */));
    OK(cu_module_load(&module, PASS_ON));
    OK(cu_module_function(&pass_on_gpu, module, "pass_on"));
}

/* ---- The work of a step besides messages ---- */

struct job {
    int gpu, on_gpu, is_grid, directions;
    long steps;
    size_t size;
    void *stream;
    uint8_t *out[MOST], *in[MOST];
    int to[MOST], from[MOST];
#ifdef BY_MPIX
    gdsync_mpix_stream queue;
#else
    MPIS_Queue queue;
    MPIS_Request requests[2 * MOST];
#endif
};

static void launch(struct job *job, void (*function)(void *), void *argument);
static void synchronize(struct job *job);

/* The work of a software stream: copies the received data to the data to send, with the step's stamp. */
struct work {
    struct job *job;
    uint32_t step;
};

static void pass_on(void *argument) {
    struct work *work = argument;
    struct job *job = work->job;
    for (int i = 0; i < job->directions; i++) {
        if (work->step > 0) {
            memcpy(job->out[i], job->in[i], job->size);
        }
        memcpy(job->out[i], &work->step, sizeof(work->step));
    }
}

/* Enqueues the step's work before its messages. `works` has an entry for each step. */
static void compute(struct job *job, struct work *works, long step) {
    if (job->gpu < 0) {
        works[step] = (struct work){job, (uint32_t)step};
        launch(job, pass_on, &works[step]);
        return;
    }
    for (int i = 0; i < job->directions; i++) {
        device_pointer out = (uintptr_t)job->out[i], in = step > 0 ? (uintptr_t)job->in[i] : 0;
        uint32_t words = (uint32_t)(job->size / 4), number = (uint32_t)step, blocks = (words + 255) / 256;
        void *arguments[] = {&out, &in, &words, &number};
        OK(cu_launch(pass_on_gpu, blocks < 1024 ? blocks : 1024, 1, 1, 256, 1, 1, 0, job->stream, arguments, NULL));
    }
}

static uint8_t *allocate(const struct job *job) {
    void *memory = NULL;
    device_pointer device;
    if (job->gpu < 0) {
        OK(posix_memalign(&memory, 64, job->size));
    } else if (job->on_gpu) {
        OK(cu_mem_alloc(&device, job->size));
        memory = (void *)(uintptr_t)device;
    } else {
        OK(cu_host_alloc(&memory, job->size, 1 /* CU_MEMHOSTALLOC_PORTABLE */));
    }
    return memory;
}

/* Returns a rank's first data in a direction, after the stamp. */
static uint8_t content(int of, int direction, size_t at) { return (uint8_t)(of * 37 + direction * 11 + at * 7 + 3); }

static void move(const struct job *job, void *to, const void *from) {
    if (job->gpu < 0) {
        memcpy(to, from, job->size);
    } else {
        OK(cu_copy((uintptr_t)to, (uintptr_t)from, job->size));
    }
}

static void fill(const struct job *job) {
    uint8_t *bytes = malloc(job->size);
    for (int i = 0; i < job->directions; i++) {
        for (size_t at = 0; at < job->size; at++) {
            bytes[at] = content(rank, i, at);
        }
        move(job, job->out[i], bytes);
    }
    free(bytes);
}

/* Returns the rank whose message arrived here after `hops` steps in a direction. */
static int origin(const struct job *job, int direction, long hops) {
    int dims[2] = {0, 0};
    if (!job->is_grid) {
        return (int)(((rank - hops) % ranks + ranks) % ranks);
    }
    MPI_Dims_create(ranks, 2, dims);
    int row = rank / dims[1], column = rank % dims[1], sign = direction % 2 ? -1 : 1;
    if (direction < 2) {
        column = (int)(((column - sign * hops) % dims[1] + dims[1]) % dims[1]);
    } else {
        row = (int)(((row - sign * hops) % dims[0] + dims[0]) % dims[0]);
    }
    return row * dims[1] + column;
}

static void check(const struct job *job, long steps) {
    uint8_t *bytes = malloc(job->size);
    uint32_t stamp;
    for (int i = 0; i < job->directions; i++) {
        int of = origin(job, i, steps);
        move(job, bytes, job->in[i]);
        memcpy(&stamp, bytes, sizeof(stamp));
        if (stamp != (uint32_t)(steps - 1)) {
            fail("the last message has the stamp of another step", stamp);
        }
        for (size_t at = STAMP; at < job->size; at++) {
            if (bytes[at] != content(of, i, at)) {
                fail("a message is not as it was sent, at byte", (long)at);
            }
        }
    }
    free(bytes);
}

/* ---- The two variants ---- */

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef void (*way)(struct job *job, struct work *works, long from, long to);

#ifdef BY_MPIX
static const char *const OURS = "MPIX, linked";

static int kind(const struct job *job) { return job->gpu < 0 ? MPIX_QUEUE_GDSYNC_SOFTWARE : MPIX_QUEUE_CUDA_STREAM; }

static void *stream_of(struct job *job) { return job->gpu < 0 ? (void *)&job->queue : (void *)&job->stream; }

static void launch(struct job *job, void (*function)(void *), void *argument) {
    OK(gdsync_mpix_launch(kind(job), stream_of(job), function, argument));
}

static void synchronize(struct job *job) { OK(gdsync_mpix_synchronize(kind(job), stream_of(job))); }

static void begin(struct job *job) {
    OK(MPIX_Init());
    OK(gdsync_mpix_link(MPI_COMM_WORLD));
    OK(gdsync_mpix_stream_create(&job->queue));
}

static void end(struct job *job) {
    OK(gdsync_mpix_stream_destroy(&job->queue));
    OK(MPIX_Finalize());
}

static void by_stream(struct job *job, struct work *works, long from, long to) {
    MPIX_Request requests[2 * MOST];
    int size = (int)job->size, of = kind(job);
    void *stream = stream_of(job);
    for (long step = from; step < to; step++) {
        compute(job, works, step);
        for (int i = 0; i < job->directions; i++) {
            OK(MPIX_Irecv_enqueue(job->in[i], size, MPI_BYTE, job->from[i], i, MPI_COMM_WORLD, &requests[2 * i], of, stream));
            OK(MPIX_Isend_enqueue(job->out[i], size, MPI_BYTE, job->to[i], i, MPI_COMM_WORLD, &requests[2 * i + 1], of, stream));
        }
        OK(MPIX_Waitall_enqueue(2 * job->directions, requests, MPI_STATUSES_IGNORE, of, stream));
    }
    synchronize(job);
}
#else
static const char *const OURS = "MPIS";

static void launch(struct job *job, void (*function)(void *), void *argument) {
    OK(gdsync_mpis_launch(job->queue, function, argument));
}

static void synchronize(struct job *job) { OK(MPIS_Queue_wait(job->queue)); }

static void begin(struct job *job) {
    MPI_Count size = (MPI_Count)job->size;
    OK(MPIS_Queue_init(&job->queue, job->gpu < 0 ? THREAD : GPU_MEM_OPS, &job->stream));
    for (int i = 0; i < job->directions; i++) {
        MPIS_Request *pair = &job->requests[2 * i];
        OK(MPIS_Recv_init(job->in[i], size, MPI_BYTE, job->from[i], i, MPI_COMM_WORLD, MPI_INFO_NULL, &pair[0]));
        OK(MPIS_Send_init(job->out[i], size, MPI_BYTE, job->to[i], i, MPI_COMM_WORLD, MPI_INFO_NULL, &pair[1]));
    }
    OK(MPIS_Matchall(2 * job->directions, job->requests, MPI_STATUSES_IGNORE));
}

static void end(struct job *job) {
    OK(MPIS_Request_freeall(2 * job->directions, job->requests));
    OK(MPIS_Queue_free(&job->queue));
}

static void by_stream(struct job *job, struct work *works, long from, long to) {
    for (long step = from; step < to; step++) {
        compute(job, works, step);
        OK(MPIS_Enqueue_startall(job->queue, 2 * job->directions, job->requests));
        OK(MPIS_Enqueue_waitall(job->queue));
    }
    synchronize(job);
}
#endif

static void by_mpi(struct job *job, struct work *works, long from, long to) {
    MPI_Request requests[2 * MOST];
    for (long step = from; step < to; step++) {
        compute(job, works, step);
        if (job->gpu < 0) {
            synchronize(job);
        } else {
            OK(cu_stream_synchronize(job->stream));
        }
        for (int i = 0; i < job->directions; i++) {
            OK(MPI_Irecv(job->in[i], (int)job->size, MPI_BYTE, job->from[i], i, MPI_COMM_WORLD, &requests[2 * i]));
            OK(MPI_Isend(job->out[i], (int)job->size, MPI_BYTE, job->to[i], i, MPI_COMM_WORLD, &requests[2 * i + 1]));
        }
        OK(MPI_Waitall(2 * job->directions, requests, MPI_STATUSES_IGNORE));
    }
}

/* Runs a variant, checks every byte, and makes rank 0 print the cost of a step: the slowest rank's time, and the mean CPU time of the ranks'
 * main threads and of their processes. */
static double measure(struct job *job, const char *name, way way) {
    struct work *works = calloc((size_t)job->steps + WARM_UP, sizeof(*works));
    double times[3], slowest, sums[3];
    fill(job);
    MPI_Barrier(MPI_COMM_WORLD);
    way(job, works, 0, WARM_UP);
    MPI_Barrier(MPI_COMM_WORLD);
    times[0] = seconds(CLOCK_MONOTONIC);
    times[1] = seconds(CLOCK_THREAD_CPUTIME_ID);
    times[2] = seconds(CLOCK_PROCESS_CPUTIME_ID);
    way(job, works, WARM_UP, WARM_UP + job->steps);
    times[0] = seconds(CLOCK_MONOTONIC) - times[0];
    times[1] = seconds(CLOCK_THREAD_CPUTIME_ID) - times[1];
    times[2] = seconds(CLOCK_PROCESS_CPUTIME_ID) - times[2];
    check(job, WARM_UP + job->steps);
    MPI_Reduce(&times[0], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(times, sums, 3, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        double each = 1e6 / (double)job->steps;
        printf("%-24s %10.2f %14.2f %16.2f\n", name, slowest * each, sums[1] / ranks * each, sums[2] / ranks * each);
    }
    free(works);
    return slowest;
}

static void place(struct job *job) {
    MPI_Comm grid;
    int dims[2] = {0, 0}, periods[2] = {1, 1};
    if (!job->is_grid) {
        job->directions = 1;
        job->to[0] = (rank + 1) % ranks;
        job->from[0] = (rank + ranks - 1) % ranks;
        return;
    }
    job->directions = MOST;
    MPI_Dims_create(ranks, 2, dims);
    OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid));
    for (int i = 0; i < MOST; i++) {
        OK(MPI_Cart_shift(grid, i < 2 ? 1 : 0, i % 2 ? -1 : 1, &job->from[i], &job->to[i]));
    }
    OK(MPI_Comm_free(&grid));
}

static long number(const char *option, const char *text, long least) {
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || *end || value < least) {
        fprintf(stderr, "steps: %s takes a number from %ld on, not %s\n", option, least, text ? text : "nothing");
        MPI_Abort(MPI_COMM_WORLD, 2);
        exit(2);
    }
    return value;
}

static void parse(struct job *job, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--grid") == 0) {
            job->is_grid = 1;
        } else if (strcmp(option, "--gpu") == 0) {
            job->gpu = (int)number(option, argv[++i], 0);
        } else if (strcmp(option, "--steps") == 0) {
            job->steps = number(option, argv[++i], 1);
        } else if (strcmp(option, "--size") == 0) {
            /* Whole words, like the kernel's copies. */
            job->size = (size_t)number(option, argv[++i], STAMP) / 4 * 4;
        } else if (strcmp(option, "--memory") == 0 && argv[i + 1]) {
            job->on_gpu = strcmp(argv[++i], "gpu") == 0;
        } else {
            fprintf(stderr, "steps: no option %s\n", option);
            MPI_Abort(MPI_COMM_WORLD, 2);
            exit(2);
        }
    }
}

int main(int argc, char **argv) {
    struct job job = {.gpu = -1, .steps = 10000, .size = 4096};
    double ours;
    int level;

    /* libgdsync-mpix calls MPI on a separate thread. */
    OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    parse(&job, argc, argv);
    place(&job);
    if (job.gpu >= 0) {
        cuda_begin(job.gpu, &job.stream);
    }
    for (int i = 0; i < job.directions; i++) {
        job.out[i] = allocate(&job);
        job.in[i] = allocate(&job);
    }
    begin(&job);
    if (rank == 0) {
        const char *stream = job.gpu < 0 ? "a software stream" : job.on_gpu ? "a CUDA stream, GPU memory" : "a CUDA stream, pinned memory";
        printf("%d ranks, %s, %ld steps of %zu bytes in %d direction(s), every byte verified, %s\n", ranks, job.is_grid ? "a grid" : "a ring",
               job.steps, job.size, job.directions, stream);
        printf("%-24s %10s %14s %16s\n", "A STEP", "TIME us", "ITS THREAD us", "ITS PROCESS us");
    }
    ours = measure(&job, OURS, by_stream);
    if (!job.on_gpu) {
        double reference = measure(&job, "MPI_Isend, MPI_Irecv", by_mpi);
        if (rank == 0) {
            printf("%-24s %10.2f\n", "the first : MPI", ours / reference);
        }
    }
    end(&job);
    OK(MPI_Finalize());
    return 0;
}
