// The kernels of `gdsync pingpong`.
//
// A message is 64-bit words of the sequence of pattern.rs, then the first bytes of the next word. Buffers are GPU allocations, so
// words are aligned. Every thread takes every stride-th word: neighbours in a warp are neighbours in memory.

typedef unsigned long long u64;

#define STEP 0x9e3779b97f4a7c15ull
#define NONE 0xffffffffffffffffull

// Both belong to the module, which one stream uses: kernels that change them follow one another. The number of blocks of the check
// that have ended; reset to 0 by the last.
__device__ unsigned int blocks_done = 0;
// The smallest offset of a wrong word. Never reset: the first wrong message ends the run.
__device__ u64 first_wrong = NONE;

static __device__ u64 word_at(u64 seed, u64 index) {
    u64 word = seed + index * STEP;
    return word ^ word >> 31;
}

static __device__ u64 nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Writes a message.
extern "C" __global__ void fill(u64 *words, u64 len, u64 seed) {
    const u64 count = len / 8, stride = (u64)gridDim.x * blockDim.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 4
    for (u64 i = first; i < count; i += stride) {
        words[i] = word_at(seed, i);
    }
    if (first == 0) {
        unsigned char *bytes = (unsigned char *)words;
        for (u64 at = count * 8; at < len; at++) {
            bytes[at] = (unsigned char)(word_at(seed, count) >> 8 * (at & 7));
        }
    }
}

// Compares message `sequence` with the expected one. If it is the first wrong message, `mismatch`, two words of pinned host memory,
// becomes {sequence + 1, offset of the first wrong word, or byte of the tail}. When the last block has finished, `time`, a word of
// pinned host memory, gets the time, unless it is null.
//
// The card or the CPU has written the message, during an earlier operation of the stream. Plain loads see it: a kernel begins with
// empty L1 caches, and such writes pass through the L2 cache.
extern "C" __global__ void check(const u64 *words, u64 len, u64 seed, u64 sequence, volatile u64 *mismatch, volatile u64 *time) {
    const u64 count = len / 8, stride = (u64)gridDim.x * blockDim.x;
    const u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    // A thread keeps the first wrong offset, and four loads in flight: wrong words are handled at the end.
    u64 wrong = NONE, i = first;
    for (; i + 3 * stride < count; i += 4 * stride) {
        u64 found[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            found[k] = words[i + k * stride];
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            wrong = wrong == NONE && found[k] != word_at(seed, i + k * stride) ? (i + k * stride) * 8 : wrong;
        }
    }
    for (; i < count; i += stride) {
        wrong = wrong == NONE && words[i] != word_at(seed, i) ? i * 8 : wrong;
    }
    if (first == 0) {
        const unsigned char *bytes = (const unsigned char *)words;
        for (u64 at = count * 8; at < len; at++) {
            if (wrong == NONE && bytes[at] != (unsigned char)(word_at(seed, count) >> 8 * (at & 7))) {
                wrong = at;
            }
        }
    }
    if (wrong != NONE) {
        atomicMin(&first_wrong, wrong);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    // The counter starts again at 0 for the next launch.
    if (atomicInc(&blocks_done, gridDim.x - 1) != gridDim.x - 1) {
        return;
    }
    __threadfence();
    // Messages after the first wrong one find the word taken.
    u64 least = *(volatile u64 *)&first_wrong;
    if (least != NONE && mismatch[0] == 0) {
        mismatch[1] = least;
        __threadfence_system();
        mismatch[0] = sequence + 1;
    }
    if (time) {
        *time = nanoseconds();
    }
}

// Takes the time. One thread.
extern "C" __global__ void stamp(volatile u64 *time) {
    *time = nanoseconds();
}
