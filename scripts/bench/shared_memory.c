/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The speed of two processes that poll shared memory, without a card: the reference of scripts/bench/cores.
 *
 *     shared_memory rate BYTES COUNT   messages a second that a process copies into memory that another polls
 *     shared_memory latency COUNT      P50, P99, P99.9 and maximum of half a round trip, in µs
 *     shared_memory adds COUNT         requests a second that another process answers with the former value of a word
 *     shared_memory naps               sleeps for 1 ms again and again, until it is ended
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Slots of a ring: perftest's send queue has as many entries. */
enum { SLOTS = 128, LINE = 64, WARM_UP = 1000 };

/* A counter alone in a cache line. */
struct counter {
    _Alignas(LINE) atomic_ulong value;
};

/* A process writes message i, then its number i + 1; the other stores how many it has seen. */
static struct ring {
    struct counter seen, word;
    struct counter numbers[SLOTS], answers[SLOTS];
} *ring;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void *shared(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static unsigned long load(struct counter *counter) { return atomic_load_explicit(&counter->value, memory_order_acquire); }
static void store(struct counter *counter, unsigned long value) { atomic_store_explicit(&counter->value, value, memory_order_release); }

/* Starts the other process, which polls for `count` messages. With `adds`, each adds to the word, and the word's former value is the answer. */
static void start_receiver(unsigned long count, int adds) {
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    for (unsigned long i = 0; child == 0; i++) {
        if (i == count) {
            _exit(0);
        }
        while (load(&ring->numbers[i % SLOTS]) != i + 1) {
        }
        if (adds) {
            store(&ring->answers[i % SLOTS], atomic_fetch_add(&ring->word.value, 1));
        }
        store(&ring->seen, i + 1);
    }
}

static void rate(size_t size, unsigned long count, int adds) {
    char *from = malloc(size), *to = shared(size * SLOTS);
    double start;
    memset(from, 1, size);
    start_receiver(count, adds);
    start = now();
    for (unsigned long i = 0; i < count; i++) {
        while (i >= SLOTS + load(&ring->seen)) {
        }
        if (adds && i >= SLOTS && load(&ring->answers[i % SLOTS]) != i - SLOTS) {
            fputs("shared_memory: a wrong answer\n", stderr);
            exit(1);
        }
        memcpy(to + i % SLOTS * size, from, size);
        store(&ring->numbers[i % SLOTS], i + 1);
    }
    while (load(&ring->seen) != count) {
    }
    printf("%.0f\n", (double)count / (now() - start));
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void latency(unsigned long count) {
    double *half = malloc(count * sizeof(*half));
    start_receiver(count + WARM_UP, 0);
    for (unsigned long i = 0; i < count + WARM_UP; i++) {
        double start = now();
        store(&ring->numbers[i % SLOTS], i + 1);
        while (load(&ring->seen) != i + 1) {
        }
        if (i >= WARM_UP) {
            half[i - WARM_UP] = 1e6 * (now() - start) / 2;
        }
    }
    qsort(half, count, sizeof(*half), compare);
    printf("%.3f %.3f %.3f %.3f\n", half[count / 2], half[count * 99 / 100], half[count * 999 / 1000], half[count - 1]);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    ring = shared(sizeof(*ring));
    if (strcmp(mode, "rate") == 0 && argc == 4) {
        rate(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10), 0);
    } else if (strcmp(mode, "latency") == 0 && argc == 3) {
        latency(strtoul(argv[2], NULL, 10));
    } else if (strcmp(mode, "adds") == 0 && argc == 3) {
        rate(sizeof(uint64_t), strtoul(argv[2], NULL, 10), 1);
    } else if (strcmp(mode, "naps") == 0) {
        for (;;) {
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    } else {
        fputs("usage: shared_memory rate BYTES COUNT | latency COUNT | adds COUNT | naps\n", stderr);
        return 2;
    }
    while (wait(NULL) > 0) {
    }
    return 0;
}
