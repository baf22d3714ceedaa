// Vectors of 32 times a matrix of 32 by 32: launched for a whole batch, or as a persistent kernel, whose blocks wait for their
// pieces of each batch, multiply, and send the results. One source for a GPU's blocks and, for the persistent kernel, the CPU's
// threads.
#include "gdsync/device_verbs.cuh"

using namespace gdsync;

static const u64 LONG = 20000000000ull;
static const u32 SIDE = 32;

// As `Service` of matvec/work.rs, the arguments of the persistent kernel: each block has a piece of every batch, or shares one.
struct service {
    const float *matrix;
    const float *inputs;
    float *results;
    // For each piece, a word with the last round whose inputs have arrived.
    const u64 *arrived;
    // Memory of the client: its results, and a word for each piece like those of `arrived`.
    u64 client_results;
    u64 client_arrived;
    // First failure of a call: its status, and the error of the queue pair.
    u64 *failure;
    // For each piece, a word that counts blocks that have multiplied, initially 0.
    u64 *joined;
    u64 first_round;
    u64 rounds;
    // Vectors of a piece.
    u32 vectors;
    u32 lkey;
    u32 results_rkey;
    u32 arrived_rkey;
    // Blocks that share a piece.
    u32 sharers;
    u32 unused;
};

#if defined(__CUDACC__)

// A warp takes a vector at a time; lane n has the n-th row of the matrix. A card writes `inputs` while the kernel runs: these are
// ordinary loads, never loads of read-only memory.
__device__ void multiply_part(const float (&row)[SIDE], const float *inputs, float *results, u32 vectors, u32 warp, u32 warps) {
    const u32 lane = threadIdx.x % SIDE;
    for (u32 vector = warp; vector < vectors; vector += warps) {
        const float mine = inputs[vector * SIDE + lane];
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < SIDE; i++) {
            sum += row[i] * __shfl_sync(0xffffffff, mine, i);
        }
        results[vector * SIDE + lane] = sum;
    }
}

__device__ void load_row(const float *matrix, float (&row)[SIDE]) {
#pragma unroll
    for (u32 i = 0; i < SIDE; i++) {
        row[i] = matrix[threadIdx.x % SIDE * SIDE + i];
    }
}

extern "C" __global__ void multiply(const float *matrix, const float *inputs, float *results, u32 vectors) {
    float row[SIDE];
    load_row(matrix, row);
    const u32 warps = blockDim.x / SIDE;
    multiply_part(row, inputs, results, vectors, blockIdx.x * warps + threadIdx.x / SIDE, gridDim.x * warps);
}

#else

static void multiply_part(const float *matrix, const float *inputs, float *results, u32 vectors) {
    for (u32 vector = 0; vector < vectors; vector++) {
        for (u32 line = 0; line < SIDE; line++) {
            float sum = 0;
            for (u32 i = 0; i < SIDE; i++) {
                sum += matrix[line * SIDE + i] * inputs[vector * SIDE + i];
            }
            results[vector * SIDE + line] = sum;
        }
    }
}

#endif

// The work of a block's first thread before and after the block multiplies.
GDSYNC_DEVICE status await_piece(const service &work, u32 piece, u64 round) {
    return wait_signal(work.arrived + piece, round, LONG);
}

GDSYNC_DEVICE status send_piece(const gdsync_device_qp &qp, const service &work, u32 piece, u64 round) {
    const u64 bytes = (u64)work.vectors * SIDE * sizeof(float), at = bytes * piece;
    post_options patient;
    patient.timeout(LONG);
    // A reader that sees the round in the word sees the results. The card has read the previous ones: the client asks for another
    // round only after it has received this one.
    return put_signal(qp, {work.client_results + at, work.results_rkey}, {(u64)work.results + at, work.lkey}, bytes,
                      {work.client_arrived + 8 * piece, work.arrived_rkey}, round, patient);
}

GDSYNC_DEVICE void finish(const gdsync_device_qp &qp, const service &work, status result) {
    result = result == status::ok ? quiet(qp, LONG) : result;
    if (result != status::ok && detail::exchange_relaxed_gpu(&work.failure[0], 0, (u64)result)) {
        work.failure[1] = error(qp);
    }
}

#if defined(__CUDACC__)

// Returns true if this block is the last of its piece to have multiplied.
__device__ bool is_last(const service &work, u32 piece) {
    if (work.sharers == 1) {
        return true;
    }
    // The writes of this block (of all its threads, by the barrier before) precede the count; the writes of the others precede the
    // further work of this block, if it is the last: for the card, too, as posting releases all acquired writes.
    __threadfence();
    const u64 before = atomicAdd(&work.joined[piece], 1ull);
    __threadfence();
    return (before + 1) % work.sharers == 0;
}

extern "C" __global__ void serve(const gdsync_device_qp *qps, service work) {
    const u32 piece = blockIdx.x / work.sharers, part = blockIdx.x % work.sharers, begin = piece * work.vectors * SIDE;
    const u32 warps = blockDim.x / SIDE;
    const gdsync_device_qp qp = qps[piece];
    float row[SIDE];
    load_row(work.matrix, row);
    __shared__ status said;
    status result = status::ok;
    GDSYNC_DEVICE_LOOP
    for (u64 round = work.first_round; round < work.first_round + work.rounds; round++) {
        if (threadIdx.x == 0) {
            said = result = result == status::ok ? await_piece(work, piece, round) : result;
        }
        // The writes that the first thread has acquired precede the reads of the others.
        __syncthreads();
        if (said != status::ok) {
            break;
        }
        multiply_part(row, work.inputs + begin, work.results + begin, work.vectors, part * warps + threadIdx.x / SIDE,
                      work.sharers * warps);
        // The writes of the others precede the release of the first thread.
        __syncthreads();
        if (threadIdx.x == 0 && is_last(work, piece)) {
            result = send_piece(qp, work, piece, round);
        }
    }
    if (threadIdx.x == 0) {
        finish(qp, work, result);
    }
}

#else

extern "C" void serve(const gdsync_device_qp *qps, const service *work, u32 piece) {
    const u32 begin = piece * work->vectors * SIDE;
    status result = status::ok;
    for (u64 round = work->first_round; round < work->first_round + work->rounds && result == status::ok; round++) {
        result = await_piece(*work, piece, round);
        if (result == status::ok) {
            multiply_part(work->matrix, work->inputs + begin, work->results + begin, work->vectors);
            result = send_piece(qps[piece], *work, piece, round);
        }
    }
    finish(qps[piece], *work, result);
}

#endif
