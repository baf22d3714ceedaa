// Tests whether streams of one context block each other. The driver puts the work of streams on a GPU's channels
// (CUDA_DEVICE_MAX_CONNECTIONS, 8 by default); work in one channel is in order, so a stream waits for an earlier one that waits.
//   nvcc -O2 -std=c++17 -o channels channels.cu -lcuda && ./channels
// Each case runs in a separate process. First: one stream works while others wait for words. Then: streams exchange words with each
// other, as ranks do, and launch kernels in between.
#include <cuda.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static const char *PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n";
#define MUST(call) do { CUresult r = (call); if (r != CUDA_SUCCESS) { const char *s = "?"; cuGetErrorName(r, &s); printf("%s: %s\n", #call, s); fflush(stdout); _exit(1); } } while (0)
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec * 1e-6; }

static CUdevice device; static CUcontext context; static CUmodule module; static CUfunction kernel; static CUdeviceptr memory; static volatile unsigned *words;

static void setup() {
    MUST(cuInit(0)); MUST(cuDeviceGet(&device, 0)); MUST(cuDevicePrimaryCtxRetain(&context, device)); MUST(cuCtxSetCurrent(context));
    words = (volatile unsigned *)mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    memset((void *)words, 0, 1 << 20);
    MUST(cuMemHostRegister((void *)words, 1 << 20, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    MUST(cuMemAlloc(&memory, 1 << 20));
    MUST(cuModuleLoadData(&module, PTX)); MUST(cuModuleGetFunction(&kernel, module, "k"));
}
static CUstream stream(bool high = false) {
    int least, greatest; CUstream made;
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    MUST(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, high ? greatest : least));
    return made;
}

enum What { KERNEL, COPY_64K, COPY_8, ROWS, SET, WRITE, WHATS };
static const char *NAMES[] = {"a kernel", "copies of 64 KiB", "copies of 8 bytes", "copies of rows", "a memset", "a write of a word"};

static void work(CUstream on, int what) {
    char *host = (char *)(words + 8192);
    CUDA_MEMCPY2D rows; memset(&rows, 0, sizeof rows);
    switch (what) {
    case KERNEL: MUST(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, on, 0, 0)); break;
    case COPY_64K: MUST(cuMemcpyDtoHAsync(host, memory, 65536, on)); MUST(cuMemcpyHtoDAsync(memory, host, 65536, on)); break;
    case COPY_8: MUST(cuMemcpyDtoHAsync(host, memory, 8, on)); MUST(cuMemcpyHtoDAsync(memory, host, 8, on)); break;
    case ROWS:
        rows.srcMemoryType = CU_MEMORYTYPE_DEVICE; rows.srcDevice = memory; rows.srcPitch = 8192; rows.dstMemoryType = CU_MEMORYTYPE_HOST; rows.dstHost = host;
        rows.dstPitch = 4096; rows.WidthInBytes = 4096; rows.Height = 8;
        MUST(cuMemcpy2DAsync(&rows, on)); break;
    case SET: MUST(cuMemsetD8Async(memory, 0, 4096, on)); break;
    case WRITE: MUST(cuStreamWriteValue32(on, (CUdeviceptr)(words + 4096), 1, 0)); break;
    }
}
// Returns whether the stream becomes idle within a time.
static bool ends(CUstream on, double ms) {
    double start = now();
    while (now() - start < ms) if (cuStreamQuery(on) == CUDA_SUCCESS) return true;
    return false;
}

// `count` streams wait; one created before them does each kind of work 300 times.
static void waiting(int count, bool high) {
    setup();
    CUstream first = stream(high); std::vector<CUstream> others;
    for (int what = 0; what < WHATS; what++) { work(first, what); MUST(cuStreamSynchronize(first)); }
    for (int i = 0; i < count; i++) {
        others.push_back(stream());
        MUST(cuStreamWaitValue32(others[i], (CUdeviceptr)(words + i), 1, CU_STREAM_WAIT_VALUE_EQ));
    }
    usleep(20000);
    for (int what = 0; what < WHATS; what++) {
        int done = 0;
        for (; done < 300; done++) { work(first, what); if (!ends(first, 200)) break; }
        if (done < 300) {
            printf(" [%s held up at %d]", NAMES[what], done);
            for (int i = 0; i < count; i++) words[i] = 1;
            for (auto one : others) MUST(cuStreamSynchronize(one));
            MUST(cuStreamSynchronize(first));
            for (int i = 0; i < count; i++) { words[i] = 0; }
            for (int i = 0; i < count; i++) MUST(cuStreamWaitValue32(others[i], (CUdeviceptr)(words + i), 1, CU_STREAM_WAIT_VALUE_EQ));
            usleep(20000);
        }
    }
    printf(" end\n");
}

// The use of streams before they exchange words: none, a write of a word by each in turn, or a wait for one word by all at once.
enum Warm { COLD, WRITTEN, GATED, WARMS };
static const char *WARM[] = {"new streams", "streams that have written a word each", "streams that have waited for one word together"};
struct Ring { int count, others; bool kernels, contexts, priorities, on_gpu; int depth; Warm warm; };

// A ring of streams, each driven by a thread: a stream writes the next one's word and waits for its own, and may launch a kernel, for
// some rounds. Returns false if no stream makes progress for a second; then the words let all of them pass.
static bool ring(const Ring &of, int rounds_of) {
    int least, greatest;
    MUST(cuCtxGetStreamPriorityRange(&least, &greatest));
    std::vector<CUstream> behind, streams; std::vector<CUcontext> contexts;
    for (int i = 0; i < of.others; i++) { behind.push_back(stream()); work(behind[i], KERNEL); MUST(cuStreamSynchronize(behind[i])); }
    for (int i = 0; i < of.count; i++) {
        if (of.contexts) {
            CUcontext own;
#if CUDA_VERSION >= 13000
            MUST(cuCtxCreate(&own, 0, 0, device));
#else
            MUST(cuCtxCreate(&own, 0, device));
#endif
            contexts.push_back(own);
        } else contexts.push_back(context);
        MUST(cuCtxSetCurrent(contexts[i]));
        CUstream made; MUST(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, of.priorities ? -(i % (least - greatest + 1)) : 0));
        streams.push_back(made);
    }
    MUST(cuCtxSetCurrent(context));
    volatile unsigned *gate = words + 32768; *gate = 0;
    for (int i = 0; i < of.count && of.warm != COLD; i++) {
        if (of.warm == WRITTEN) { work(streams[i], WRITE); MUST(cuStreamSynchronize(streams[i])); }
        else MUST(cuStreamWaitValue32(streams[i], (CUdeviceptr)gate, 1, CU_STREAM_WAIT_VALUE_EQ));
    }
    *gate = 1;
    for (auto one : streams) MUST(cuStreamSynchronize(one));
    volatile unsigned *rounds = words + 65536;
    for (int i = 0; i < of.count; i++) rounds[32 * i] = words[32 * i] = 0;
    MUST(cuMemsetD32(memory, 0, 4096));
    CUdeviceptr base = of.on_gpu ? memory : (CUdeviceptr)words;
    std::vector<std::thread> threads; std::atomic<int> ready{0}, left{of.count}; std::atomic<bool> stop{false};
    for (int i = 0; i < of.count; i++) threads.emplace_back([&, i] {
        MUST(cuCtxSetCurrent(contexts[i]));
        ready++; while (ready < of.count) {}
        for (unsigned round = 1; round <= (unsigned)rounds_of && !stop; round++) {
            CUstreamBatchMemOpParams p[3]; memset(p, 0, sizeof p);
            p[0].operation = p[2].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32; p[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
            p[0].writeValue.address = base + 128 * ((i + 1) % of.count); p[0].writeValue.value = round;
            p[1].waitValue.address = base + 128 * i; p[1].waitValue.value = round; p[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
            p[2].writeValue.address = (CUdeviceptr)(rounds + 32 * i); p[2].writeValue.value = round;
            MUST(cuStreamBatchMemOp(streams[i], 3, p, 0));
            if (of.kernels && round % 4 == 0) work(streams[i], KERNEL);
            while (round - rounds[32 * i] >= (unsigned)of.depth && !stop) {}
        }
        left--;
    });
    unsigned long before = 0; double since = now(); bool passed = true;
    while (left > 0) {
        usleep(10000);
        unsigned long sum = 0; for (int i = 0; i < of.count; i++) sum += rounds[32 * i];
        if (sum != before) { before = sum; since = now(); }
        if (now() - since > 1000) {
            passed = false; stop = true;
            printf(" [stands:"); for (int i = 0; i < of.count; i++) printf(" %u", rounds[32 * i]); printf("]"); fflush(stdout);
            break;
        }
    }
    stop = true;
    for (auto &one : threads) one.join();
    // Lets every wait pass. The store is repeated, as pending work of the streams writes the words, too.
    for (double start = now(); !passed && now() - start < 5000;) {
        int idle = 0;
        for (int i = 0; i < of.count; i++) { if (of.on_gpu) break; words[32 * i] = 1 << 30; idle += cuStreamQuery(streams[i]) == CUDA_SUCCESS; }
        if (idle == of.count) break;
    }
    if (!passed && cuStreamQuery(streams[0]) != CUDA_SUCCESS) { printf(" [no way out]\n"); fflush(stdout); _exit(0); }
    for (int i = 0; i < of.count; i++) { MUST(cuCtxSetCurrent(contexts[i])); MUST(cuStreamSynchronize(streams[i])); MUST(cuStreamDestroy(streams[i])); if (of.contexts) MUST(cuCtxDestroy(contexts[i])); }
    MUST(cuCtxSetCurrent(context));
    for (auto one : behind) MUST(cuStreamDestroy(one));
    return passed;
}

template <class F> static bool in_process(const char *channels, unsigned seconds, F run) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { if (*channels) setenv("CUDA_DEVICE_MAX_CONNECTIONS", channels, 1); alarm(seconds); run(); fflush(stdout); _exit(0); }
    int status; waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) { printf(" HANGS (signal %d)\n", WTERMSIG(status)); fflush(stdout); }
    return !WIFSIGNALED(status);
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "rings") != 0)
    for (const char *channels : {"", "32"}) for (int count : {1, 7, 8, 31, 32}) for (int high = 0; high < 2; high++) {
        printf("%-2s channels, %d streams wait, one of %s priority works:", *channels ? channels : "-", count, high ? "high" : "default");
        in_process(channels, 10, [&] { waiting(count, high); });
    }
    for (const char *channels : {"32", "8"}) for (int count : {4, 7, 17, 31}) for (int warm = 0; warm < WARMS; warm++) for (int depth : {1, 64}) {
        if (*channels == '8' && count > 7) continue;
        Ring of = {count, 0, false, false, false, false, depth, (Warm)warm};
        printf("%-2s channels, a ring of %d %s, up to %d rounds in flight:", channels, count, WARM[warm], depth);
        in_process(channels, 25, [&] {
            setup(); int passed = 0, runs = 8; double start = now();
            for (int i = 0; i < runs; i++) passed += ring(of, 300);
            printf(" %d of %d ended, %.0f ms each\n", passed, runs, (now() - start) / runs);
        });
    }
}
