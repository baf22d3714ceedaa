/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A ping-pong or an all-to-all of MPI's ranks by one way, with a kernel of each rank in every step. Started by scripts/gpu/ways:
 *
 *     mpirun -n RANKS way gdsync|mpi|nccl|ucx ping-pong|all-to-all CARD host|gpu BYTES STEPS WORK_NS
 *
 * Rank 0 prints a JSON object. Every received word is checked by the next kernel; a wrong one fails the run.
 */
#define _GNU_SOURCE
#include "way.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The CPU is at most two batches ahead of the stream. */
enum { WARM_UP = 64, BATCH = 32 };

static const struct way *const WAYS[] = {&by_gdsync, &by_mpi, &by_nccl, &by_ucx};
static int own_rank;

void fail(const char *what, const char *why) {
    fprintf(stderr, "way: rank %d: %s: %s\n", own_rank, what, why ? why : "not found");
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void fail_code(const char *what, int code) {
    char number[16];
    snprintf(number, sizeof(number), "%d", code);
    fail(what, number);
}

static double at(clockid_t clock) {
    struct timespec now = {0, 0};
    clock_gettime(clock, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* The CPU time of a software card's own threads in this process, in ns: a real card has none. */
static double card_ns(void) {
    DIR *tasks = opendir("/proc/self/task");
    double sum = 0;
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[300], name[32] = "";
        FILE *file;
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        if ((file = fopen(path, "r"))) {
            if (fgets(name, sizeof(name), file) && (strncmp(name, "gdsync-softhca", 14) == 0 || strncmp(name, "softhca", 7) == 0)) {
                /* The clock of a thread: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED of the kernel. */
                sum += at((clockid_t)(~(unsigned)atoi(task->d_name) << 3 | 6));
            }
            fclose(file);
        }
    }
    if (tasks) {
        closedir(tasks);
    }
    return sum;
}

static double calls(void) {
    void *found = dlsym(RTLD_DEFAULT, "driver_calls");
    unsigned long (*count)(void);
    memcpy(&count, &found, sizeof(count));
    return found ? (double)count() : 0;
}

static void exchange(const struct job *job, const struct way *way, int step, int sends, int receives) {
    way->begin();
    for (int peer = 0; peer < job->ranks; peer++) {
        if (receives && peer != job->rank) {
            way->receive(job, step, peer);
        }
    }
    /* After the receives are posted: the kernel that has read their blocks has ended, as an earlier step has waited for it. */
    if (sends && way->synchronizes) {
        synchronize(job);
    }
    for (int peer = 0; peer < job->ranks; peer++) {
        if (sends && peer != job->rank) {
            way->send(job, step, peer);
        }
    }
    way->end(job);
}

/* Enqueues steps, each with the kernel that uses what the step before has received. In a ping-pong, rank 1 answers. */
static void steps(const struct job *job, const struct way *way, int answers, int from, int to, uint64_t work_ns) {
    for (int step = from; step < to; step++) {
        if (answers) {
            exchange(job, way, step, 0, 1);
            gpu_launch(job, step, step, work_ns);
            exchange(job, way, step, 1, 0);
        } else {
            gpu_launch(job, step - 1, step, work_ns);
            exchange(job, way, step, 1, 1);
        }
        if (step % BATCH == BATCH - 1) {
            gpu_mark(job);
        }
    }
}

int main(int argc, char **argv) {
    enum { TIME, CPU, CALLS, IDLE, BUSY, WRONG, VALUES };
    struct job job = {0};
    const struct way *way = NULL;
    const char *absent;
    double values[VALUES], sums[VALUES], slowest;
    size_t kernels;
    int count, ping_pong, is_absent, gpus;
    uint64_t work_ns;

    OK(MPI_Init(&argc, &argv));
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    own_rank = job.rank;
    for (size_t i = 0; argc == 8 && i < sizeof(WAYS) / sizeof(*WAYS); i++) {
        way = strcmp(argv[1], WAYS[i]->name) == 0 ? WAYS[i] : way;
    }
    if (!way) {
        fail("usage", "way gdsync|mpi|nccl|ucx ping-pong|all-to-all CARD host|gpu BYTES STEPS WORK_NS");
    }
    ping_pong = strcmp(argv[2], "ping-pong") == 0;
    job.card = argv[3];
    job.on_gpu = strcmp(argv[4], "gpu") == 0;
    job.size = strtoul(argv[5], NULL, 10) / 4 * 4;
    count = atoi(argv[6]);
    work_ns = strtoul(argv[7], NULL, 10);
    if (job.size == 0 || job.size > 1 << 30 || count < 1 || job.ranks < 2 || job.ranks > MOST_RANKS || (ping_pong && job.ranks != 2)) {
        fail("usage", "blocks of 4 bytes to 1 GiB, at least one step, two ranks or, for all-to-all, up to 64");
    }

    gpu_begin(&job, (size_t)WARM_UP + (size_t)count + 2);
    absent = way->synchronizes && job.on_gpu ? "its messages are in host memory" : way->open(&job);
    is_absent = absent != NULL;
    OK(MPI_Allreduce(MPI_IN_PLACE, &is_absent, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    if (is_absent) {
        if (absent) {
            fprintf(stderr, "way: rank %d: %s is absent: %s\n", job.rank, way->name, absent);
        }
        if (job.rank == 0) {
            printf("{\"absent\": \"%s\"}\n", absent ? absent : "another rank lacks it");
        }
        OK(MPI_Finalize());
        return 0;
    }
    /* The kernel's code is loaded before the stream waits. */
    gpu_launch(&job, -1, -1, 0);
    gpu_finish(&job);
    OK(MPI_Barrier(MPI_COMM_WORLD));
    steps(&job, way, ping_pong && job.rank == 1, 0, WARM_UP, work_ns);
    gpu_finish(&job);
    OK(MPI_Barrier(MPI_COMM_WORLD));

    values[TIME] = at(CLOCK_MONOTONIC);
    values[CPU] = at(CLOCK_PROCESS_CPUTIME_ID) - card_ns();
    values[CALLS] = calls();
    steps(&job, way, ping_pong && job.rank == 1, WARM_UP, WARM_UP + count, work_ns);
    if (!ping_pong || job.rank == 0) {
        gpu_launch(&job, WARM_UP + count - 1, -1, work_ns);
    }
    gpu_finish(&job);
    values[TIME] = at(CLOCK_MONOTONIC) - values[TIME];
    values[CPU] = at(CLOCK_PROCESS_CPUTIME_ID) - card_ns() - values[CPU];
    values[CALLS] = calls() - values[CALLS];

    way->close(&job);
    kernels = gpu_times((size_t)WARM_UP + 1, &values[IDLE], &values[BUSY]);
    values[IDLE] /= kernels > 1 ? (double)kernels - 1 : 1;
    values[BUSY] /= (double)kernels;
    values[WRONG] = gpu_wrong();
    OK(MPI_Reduce(values, sums, VALUES, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD));
    OK(MPI_Reduce(&values[TIME], &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD));
    OK(MPI_Allreduce(&job.gpu, &gpus, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
    if (job.rank == 0) {
        double each = 1e-3 / job.ranks, of_step = each / count;
        /* In a ping-pong a GPU also waits for the other one's kernel, which no way could save. */
        printf("{\"step_us\": %.3f, \"idle_us\": %.3f, \"kernel_us\": %.3f, \"cpu_us\": %.3f, \"calls\": %.3f, \"gpus\": %d}\n", 1e-3 * slowest / count,
               (sums[IDLE] - (ping_pong ? sums[BUSY] : 0)) * each, sums[BUSY] * each, sums[CPU] * of_step, 1e3 * sums[CALLS] * of_step, gpus + 1);
        fflush(stdout);
        if (sums[WRONG] > 0) {
            fail_code("words that are not as sent", (int)sums[WRONG]);
        }
    }
    OK(MPI_Finalize());
    return 0;
}
