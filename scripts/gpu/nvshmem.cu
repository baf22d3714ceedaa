// Puts, signals, waits and atomics of NVSHMEM between two GPUs (with MPS, two processes on one) over the software card, checked. scripts/gpu/field builds and starts it, once for each
// rank. Arguments: rank, ranks, a file through which the ranks find each other, and `fetching` or `adding`: whether atomics answer. (NVSHMEM's transport
// ibrc has those only with GDRCopy's driver.)
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#define CUDA(call)                                                                     \
    do {                                                                               \
        cudaError_t error_ = (call);                                                   \
        if (error_ != cudaSuccess) {                                                   \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));       \
            std::exit(1);                                                              \
        }                                                                              \
    } while (0)

constexpr int ROUNDS = 20;
constexpr size_t WORDS = 1 << 16;
constexpr int THREADS = 128;
constexpr int TOKENS = 32;
constexpr size_t TOKEN = 4096;

__host__ __device__ unsigned long long said(unsigned long long rank, unsigned long long round, unsigned long long i) {
    return (rank * 1000003 + round) * 0x9e3779b97f4a7c15ull + i;
}

// Puts data and then a signal to the peer, waits for the peer's signal, and counts wrong words in the received data.
__global__ void exchange(unsigned long long *outgoing, unsigned long long *incoming, uint64_t *signal, int rank, int peer,
                         unsigned long long round, unsigned long long *wrong) {
    for (size_t i = threadIdx.x; i < WORDS; i += blockDim.x) outgoing[i] = said(rank, round, i);
    __syncthreads();
    nvshmemx_putmem_signal_block(incoming, outgoing, WORDS * sizeof *outgoing, signal, round, NVSHMEM_SIGNAL_SET, peer);
    if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, round);
    __syncthreads();
    for (size_t i = threadIdx.x; i < WORDS; i += blockDim.x)
        if (incoming[i] != said(peer, round, i)) atomicAdd(wrong, 1ull);
    __syncthreads();
    if (threadIdx.x == 0) nvshmem_quiet();
}

// The dispatch of experts: each block sends one token of TOKEN bytes; a rank that has all tokens of the peer sends them back.
__global__ void dispatch(char *tokens, char *arrived, char *back, uint64_t *signals, int peer, uint64_t expected) {
    char *own = arrived + blockIdx.x * TOKEN;
    nvshmemx_putmem_signal_nbi_block(own, tokens + blockIdx.x * TOKEN, TOKEN, signals, 1, NVSHMEM_SIGNAL_ADD, peer);
    if (threadIdx.x == 0) nvshmem_signal_wait_until(signals, NVSHMEM_CMP_GE, expected);
    __syncthreads();
    nvshmemx_putmem_signal_nbi_block(back + blockIdx.x * TOKEN, own, TOKEN, signals + 1, 1, NVSHMEM_SIGNAL_ADD, peer);
    if (threadIdx.x == 0) {
        nvshmem_signal_wait_until(signals + 1, NVSHMEM_CMP_GE, expected);
        nvshmem_quiet();
    }
}

// Every thread adds to the peer's counter; all get what the peer holds.
__global__ void adds(unsigned long long *counter, unsigned long long *held, unsigned long long *got, int peer) {
    nvshmem_ulonglong_atomic_add(counter, threadIdx.x + 1, peer);
    nvshmemx_ulonglong_get_block(got, held, THREADS, peer);
    if (threadIdx.x == 0) nvshmem_quiet();
}

// Every thread adds to the peer's counter and records the old value; thread 0 swaps the peer's word if it is still `expected`; all get
// the peer's values.
__global__ void atomics(unsigned long long *counter, unsigned long long *word, unsigned long long *found, unsigned long long *held,
                        unsigned long long *got, int peer, unsigned long long expected) {
    found[threadIdx.x] = nvshmem_ulonglong_atomic_fetch_add(counter, 1, peer);
    if (threadIdx.x == 0) {
        found[THREADS] = nvshmem_ulonglong_atomic_compare_swap(word, expected, expected + 1, peer);
        found[THREADS + 1] = nvshmem_ulonglong_atomic_fetch(word, peer);
    }
    __syncthreads();
    nvshmemx_ulonglong_get_block(got, held, THREADS, peer);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    bool fetching = !std::strcmp(argv[4], "fetching");
    int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
    int gpus;
    CUDA(cudaGetDeviceCount(&gpus));
    CUDA(cudaSetDevice(rank % gpus));
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    char part[4096];
    std::snprintf(part, sizeof part, "%s.part", argv[3]);
    if (rank == 0) {
        if (nvshmemx_get_uniqueid(&id)) return 1;
        FILE *file = std::fopen(part, "wb");
        if (!file || std::fwrite(&id, sizeof id, 1, file) != 1 || std::fclose(file) || std::rename(part, argv[3])) return 1;
    } else {
        FILE *file;
        while (!(file = std::fopen(argv[3], "rb"))) usleep(10000);
        if (std::fread(&id, sizeof id, 1, file) != 1) return 1;
        std::fclose(file);
    }
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    if (nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes)) return 1;
    if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes)) return 1;
    int peer = (nvshmem_my_pe() + 1) % nvshmem_n_pes();

    auto *outgoing = static_cast<unsigned long long *>(nvshmem_malloc(WORDS * 8));
    auto *incoming = static_cast<unsigned long long *>(nvshmem_malloc(WORDS * 8));
    auto *signal = static_cast<uint64_t *>(nvshmem_calloc(1, 8));
    auto *counter = static_cast<unsigned long long *>(nvshmem_calloc(1, 8));
    auto *word = static_cast<unsigned long long *>(nvshmem_calloc(1, 8));
    auto *held = static_cast<unsigned long long *>(nvshmem_malloc(THREADS * 8));
    auto *got = static_cast<unsigned long long *>(nvshmem_malloc(THREADS * 8));
    unsigned long long *wrong, *found;
    CUDA(cudaHostAlloc(&wrong, 8, cudaHostAllocMapped));
    CUDA(cudaMalloc(&found, (THREADS + 2) * 8));
    unsigned long long values[THREADS], results[THREADS + 2];
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    nvshmem_barrier_all();

    for (unsigned long long round = 1; round <= ROUNDS; round++) {
        *wrong = 0;
        exchange<<<1, THREADS, 0, stream>>>(outgoing, incoming, signal, rank, peer, round, wrong);
        CUDA(cudaStreamSynchronize(stream));
        if (*wrong) {
            std::fprintf(stderr, "rank %d, round %llu: %llu of %zu words are wrong\n", rank, round, *wrong, WORDS);
            return 1;
        }
        nvshmem_barrier_all();
    }
    std::printf("rank %d: %d rounds of %zu bytes with a signal behind them: right\n", rank, ROUNDS, WORDS * 8);

    auto *tokens = static_cast<char *>(nvshmem_malloc(3 * TOKENS * TOKEN));
    auto *signals = static_cast<uint64_t *>(nvshmem_calloc(2, 8));
    char sent[TOKENS * TOKEN], came[TOKENS * TOKEN];
    float shortest = 1e9f;
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        std::memset(sent, static_cast<int>(round + 100 * rank), sizeof sent);
        CUDA(cudaMemcpy(tokens, sent, sizeof sent, cudaMemcpyHostToDevice));
        nvshmem_barrier_all();
        CUDA(cudaEventRecord(begin, stream));
        dispatch<<<TOKENS, THREADS, 0, stream>>>(tokens, tokens + sizeof sent, tokens + 2 * sizeof sent, signals, peer, round * TOKENS);
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaStreamSynchronize(stream));
        float time;
        CUDA(cudaEventElapsedTime(&time, begin, end));
        shortest = std::fmin(shortest, time);
        nvshmem_barrier_all();
        CUDA(cudaMemcpy(came, tokens + 2 * sizeof sent, sizeof came, cudaMemcpyDeviceToHost));
        if (std::memcmp(came, sent, sizeof came)) {
            std::fprintf(stderr, "rank %d, round %llu: tokens came back wrong\n", rank, static_cast<unsigned long long>(round));
            return 1;
        }
    }
    std::printf("rank %d: %d tokens of %zu bytes there and back, at least %.0f us: right\n", rank, TOKENS, TOKEN, 1000 * shortest);

    for (unsigned long long round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++) values[i] = said(rank, round, i);
        CUDA(cudaMemcpy(held, values, sizeof values, cudaMemcpyHostToDevice));
        nvshmem_barrier_all();
        if (fetching)
            atomics<<<1, THREADS, 0, stream>>>(counter, word, found, held, got, peer, round);
        else
            adds<<<1, THREADS, 0, stream>>>(counter, held, got, peer);
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(results, found, sizeof results, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(values, got, sizeof values, cudaMemcpyDeviceToHost));
        bool seen[THREADS] = {};
        for (int i = 0; i < THREADS; i++) {
            unsigned long long place = fetching ? results[i] - round * THREADS : i;
            if (place >= THREADS || seen[place] || values[i] != said(peer, round, i)) {
                std::fprintf(stderr, "rank %d, round %llu, thread %d: added to %llu, got %llx\n", rank, round, i, results[i], values[i]);
                return 1;
            }
            seen[place] = true;
        }
        if (fetching && (results[THREADS] != round || results[THREADS + 1] != round + 1)) {
            std::fprintf(stderr, "rank %d, round %llu: swapped %llu, then %llu\n", rank, round, results[THREADS], results[THREADS + 1]);
            return 1;
        }
        nvshmem_barrier_all();
        unsigned long long sum, each = fetching ? THREADS : THREADS * (THREADS + 1) / 2;
        CUDA(cudaMemcpy(&sum, counter, sizeof sum, cudaMemcpyDeviceToHost));
        if (sum != (round + 1) * each) {
            std::fprintf(stderr, "rank %d, round %llu: the counter is %llu, not %llu\n", rank, round, sum, (round + 1) * each);
            return 1;
        }
        nvshmem_barrier_all();
    }
    std::printf("rank %d: %d rounds of %d atomics and a get, %s: right\n", rank, ROUNDS, THREADS, argv[4]);
    nvshmem_finalize();
    return 0;
}
