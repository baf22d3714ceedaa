/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The interface of a way to exchange blocks between ranks, in the order of a CUDA stream or after the CPU has waited for the stream.
 */
#ifndef WAY_H
#define WAY_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

struct job {
    int rank, ranks, gpu, on_gpu; /* on_gpu: the blocks are in GPU memory, not in pinned memory */
    size_t size;                  /* of a block */
    const char *card;
    void *stream;
    uint8_t *out, *in; /* blocks to each rank and from each rank, for even and for odd steps */
};

struct way {
    const char *name;
    /* Connects the ranks and sets out and in. Returns why this machine lacks the way, or NULL. */
    const char *(*open)(struct job *job);
    /* Sends a step's blocks to all other ranks, receives theirs, or both. Later work of the stream finds the received blocks. A block is not
     * written again before the step after the next one, whose blocks are written after the next step's blocks have been received. */
    void (*exchange)(struct job *job, int step, int sends, int receives);
    /* After the stream's end: reports failures that the stream does not show. */
    void (*close)(struct job *job);
};

extern const struct way by_gdsync, by_mpi, by_nccl, by_ucx;

/* Where the block to or from a rank begins among those of a step. */
static inline size_t block(const struct job *job, int step, int rank) { return ((size_t)(step & 1) * (size_t)job->ranks + (size_t)rank) * job->size; }

/* The bytes of all blocks to other ranks, and as many are from them. */
static inline size_t half(const struct job *job) { return 2 * (size_t)job->ranks * job->size; }

/* Sets out and in: memory that the GPU reaches. */
void allocate(struct job *job);
void synchronize(struct job *job);
_Noreturn void fail(const char *what, const char *why);

#define OK(call)                                                                                                                             \
    do {                                                                                                                                     \
        int code_ = (int)(call);                                                                                                             \
        if (code_ != 0)                                                                                                                      \
            fail_code(#call, code_);                                                                                                         \
    } while (0)
_Noreturn void fail_code(const char *what, int code);

#endif
