/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The interface of a way to exchange blocks between ranks, in the order of a CUDA stream or after the CPU has waited for the stream; and the
 * GPU's part (gpu.c).
 */
#ifndef WAY_H
#define WAY_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_RANKS = 64 };

struct job {
    int rank, ranks, gpu, on_gpu; /* on_gpu: the blocks are in GPU memory, not in pinned memory */
    size_t size;                  /* of a block */
    const char *card;
    void *stream;
    uint8_t *out, *in; /* blocks to each rank and from each rank, for even and for odd steps */
};

/* An exchange is begin, a receive from each other rank, a send to each or none, and end. Later work of the stream finds the received blocks. A block
 * is not written again before the next step's blocks have arrived. */
struct way {
    const char *name;
    int synchronizes; /* the CPU waits for the stream before the sends; the blocks are in pinned memory */
    /* Connects the ranks and calls `allocate`, or sets out and in itself. Returns why this machine lacks the way, or NULL. */
    const char *(*open)(struct job *job);
    void (*begin)(void);
    void (*receive)(const struct job *job, int step, int peer);
    void (*send)(const struct job *job, int step, int peer);
    void (*end)(const struct job *job);
    /* After the stream's end: reports failures that the stream does not show. */
    void (*close)(const struct job *job);
};

extern const struct way by_gdsync, by_mpi, by_nccl, by_ucx;

/* Returns where a rank's block of a step begins in `out` or `in`, which have `half` bytes each. */
static inline size_t block(const struct job *job, int step, int rank) { return (size_t)((step & 1) * job->ranks + rank) * job->size; }
static inline size_t half(const struct job *job) { return 2 * (size_t)job->ranks * job->size; }

_Noreturn void fail(const char *what, const char *why);
_Noreturn void fail_code(const char *what, int code);
#define OK(call)                                                                                                                             \
    do {                                                                                                                                     \
        int code_ = (int)(call);                                                                                                             \
        if (code_ != 0)                                                                                                                      \
            fail_code(#call, code_);                                                                                                         \
    } while (0)

/* Opens the rank's GPU (those of the host in turn), makes its stream and compiles the kernel, which will be launched `kernels` times. */
void gpu_begin(struct job *job, size_t kernels);
/* Sets out and in: memory that the GPU reaches. */
void allocate(struct job *job);
/* Enqueues the kernel of a step: it checks the blocks of step `checked` (-1: of none), works for work_ns, and writes the blocks of step
 * `filled` (-1: of none). */
void gpu_launch(const struct job *job, int checked, int filled, uint64_t work_ns);
/* Waits for the stream as programs do by default: the thread spins. */
void synchronize(const struct job *job);
/* Makes the thread sleep until the stream has reached the mark before this one, or its end. */
void gpu_mark(const struct job *job);
void gpu_finish(const struct job *job);
/* Returns the number of words that were not as sent, of all kernels until now. */
unsigned gpu_wrong(void);
/* Adds up the kernels from number `first` on: the time between a kernel's end and the next one's begin, and that in kernels. Returns their
 * number. */
size_t gpu_times(size_t first, double *idle_ns, double *busy_ns);

#endif
