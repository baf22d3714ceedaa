// The CUDA driver's behaviour in corner cases that gdsync depends on. Each case runs in a separate process with a time limit, so that
// a hang or a crash is a result, too.
//   nvcc -O2 -o driver_facts driver_facts.cu -lcuda && ./driver_facts
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <atomic>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>

static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 + t.tv_nsec * 1e-3; }
static const char *name(CUresult r) { const char *s = "?"; cuGetErrorName(r, &s); return s; }
static CUdevice dev; static CUcontext ctx; static CUstream blocked, other;
static volatile unsigned *word;

static CUstreamBatchMemOpParams wait32(CUdeviceptr at, unsigned value) {
    CUstreamBatchMemOpParams p; memset(&p, 0, sizeof p);
    p.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32; p.waitValue.address = at; p.waitValue.value = value; return p;
}
static CUstreamBatchMemOpParams write32(CUdeviceptr at, unsigned value) {
    CUstreamBatchMemOpParams p; memset(&p, 0, sizeof p);
    p.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32; p.writeValue.address = at; p.writeValue.value = value; return p;
}
static void setup() {
    cuInit(0); cuDeviceGet(&dev, 0); cuDevicePrimaryCtxRetain(&ctx, dev); cuCtxSetCurrent(ctx);
    cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING); cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
    void *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    memset(p, 0, 1 << 20); cuMemHostRegister(p, 1 << 20, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    word = (volatile unsigned *)p;
}
static void block() { CUstreamBatchMemOpParams p = wait32((CUdeviceptr)word, 1); cuStreamBatchMemOp(blocked, 1, &p, 0); usleep(20000); }

template <class F> static void fact(const char *what, F f) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { alarm(8); f(); fflush(stdout); _exit(0); }
    int status; waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) printf("%-58s killed by signal %d%s\n", what, WTERMSIG(status), WTERMSIG(status) == SIGALRM ? " (it hangs)" : "");
}
#define TIMED(what, call) do { double t = now(); CUresult r = (call); printf("%-58s %s, %.0f us\n", what, name(r), now() - t); fflush(stdout); } while (0)

int main() {
    fact("free under a blocked stream", [] { setup(); CUdeviceptr p; cuMemAlloc(&p, 1 << 20); block(); TIMED("cuMemFree while a stream waits", cuMemFree(p)); });
    fact("alloc under a blocked stream", [] { setup(); block(); CUdeviceptr p; TIMED("cuMemAlloc while a stream waits", cuMemAlloc(&p, 1 << 20)); });
    fact("host register under a blocked stream", [] {
        setup(); block(); void *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0); memset(p, 1, 4096);
        TIMED("cuMemHostRegister while a stream waits", cuMemHostRegister(p, 4096, 3)); TIMED("cuMemHostUnregister while a stream waits", cuMemHostUnregister(p)); });
    fact("copy under a blocked stream", [] {
        setup(); CUdeviceptr p; cuMemAlloc(&p, 1 << 20); block(); char buf[64] = {1};
        TIMED("cuMemcpyHtoDAsync + synchronize while another waits", (cuMemcpyHtoDAsync(p, buf, 64, other), cuStreamSynchronize(other)));
        for (int i = 0; i < 3; i++) {
            double t = now(); for (int k = 0; k < 200; k++) { cuMemcpyHtoDAsync(p, buf, 8, other); cuStreamSynchronize(other); }
            double t1 = now(); for (int k = 0; k < 200; k++) { cuMemcpyDtoHAsync(buf, p, 8, other); cuStreamSynchronize(other); }
            double t2 = now(); for (int k = 0; k < 200; k++) { cuMemcpyDtoHAsync((void *)(word + 1024), p, 8, other); cuStreamSynchronize(other); }
            double t3 = now(); for (int k = 0; k < 200; k++) { cuMemcpyHtoDAsync(p, (void *)(word + 1024), 8, other); cuStreamSynchronize(other); }
            double t4 = now(); for (int k = 0; k < 200; k++) { cuMemcpyDtoHAsync((void *)(word + 1024), p, 65536, other); cuStreamSynchronize(other); }
            double t5 = now(); printf("copy 8 B: HtoD pageable %.1f us, DtoH pageable %.1f, DtoH pinned %.1f, HtoD pinned %.1f, DtoH 64 KiB pinned %.1f\n", (t1 - t) / 200, (t2 - t1) / 200, (t3 - t2) / 200, (t4 - t3) / 200, (t5 - t4) / 200);
        } });
    fact("module load under a blocked stream", [] {
        setup(); block(); const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"; CUmodule m; CUfunction f;
        TIMED("cuModuleLoadData while a stream waits", cuModuleLoadData(&m, ptx)); cuModuleGetFunction(&f, m, "k");
        TIMED("first launch of a kernel while another waits", (cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, 0, 0), cuStreamSynchronize(other))); });
    fact("post to a destroyed stream", [] { setup(); cuStreamDestroy(other); CUstreamBatchMemOpParams p = write32((CUdeviceptr)word, 1); TIMED("cuStreamBatchMemOp on a destroyed stream", cuStreamBatchMemOp(other, 1, &p, 0)); });
    fact("query a destroyed stream", [] { setup(); cuStreamDestroy(other); TIMED("cuStreamQuery on a destroyed stream", cuStreamQuery(other)); });
    fact("post after the context is destroyed", [] {
        cuInit(0); cuDeviceGet(&dev, 0);
#if CUDA_VERSION >= 13000
        cuCtxCreate(&ctx, 0, 0, dev);
#else
        cuCtxCreate(&ctx, 0, dev);
#endif
        cuStreamCreate(&other, CU_STREAM_NON_BLOCKING); void *p = mmap(0, 4096, 3, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0); memset(p, 0, 4096); cuMemHostRegister(p, 4096, 3);
        cuCtxDestroy(ctx); CUstreamBatchMemOpParams q = write32((CUdeviceptr)p, 1);
        TIMED("cuStreamBatchMemOp after cuCtxDestroy", cuStreamBatchMemOp(other, 1, &q, 0));
        TIMED("cuCtxPushCurrent of a destroyed context", cuCtxPushCurrent(ctx));
        unsigned long long id; TIMED("cuCtxGetId of a destroyed context", cuCtxGetId(ctx, &id));
        TIMED("cuMemHostUnregister after cuCtxDestroy", cuMemHostUnregister(p)); });
    fact("a lost context", [] {
        setup(); const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { trap; }\n"; CUmodule m; CUfunction f;
        cuModuleLoadData(&m, ptx); cuModuleGetFunction(&f, m, "k"); cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, 0, 0);
        TIMED("cuStreamSynchronize after a trap", cuStreamSynchronize(other)); CUstreamBatchMemOpParams q = write32((CUdeviceptr)word, 1);
        TIMED("cuStreamBatchMemOp after a trap", cuStreamBatchMemOp(other, 1, &q, 0)); TIMED("cuStreamQuery after a trap", cuStreamQuery(other));
        TIMED("cuMemHostUnregister after a trap", cuMemHostUnregister((void *)word)); });
    fact("other thread while a submit blocks", [] {
        setup(); static std::atomic<int> n{0}; std::thread th([] { cuCtxSetCurrent(ctx); for (int i = 0; i < 1100; i++) { CUstreamBatchMemOpParams p = wait32((CUdeviceptr)word, i + 1); cuStreamBatchMemOp(blocked, 1, &p, 0); n++; } });
        int last = -1; while (n != last) { last = n; usleep(300000); } printf("a thread is stuck in submission %d\n", last + 1); CUdeviceptr p; fflush(stdout);
        CUstreamBatchMemOpParams q = write32((CUdeviceptr)(word + 8), 7); TIMED("cuStreamBatchMemOp elsewhere meanwhile", cuStreamBatchMemOp(other, 1, &q, 0));
        TIMED("cuMemAlloc meanwhile", cuMemAlloc(&p, 4096)); char b[8]; TIMED("copy meanwhile", (cuMemcpyDtoHAsync(b, p, 8, other), cuStreamSynchronize(other)));
        word[0] = 0x7fffffff; th.join(); });
    for (int which = 0; which < 3; which++) {
        static const char *const names[] = {"cuMemHostUnregister", "cuMemFree", "cuModuleLoadData"}; static int k; k = which;
        fact(names[which], [] {
            setup(); CUdeviceptr p, mem; cuMemAlloc(&p, 1 << 20); cuMemAlloc(&mem, 1 << 20); void *host = mmap(0, 4096, 3, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0); memset(host, 1, 4096); cuMemHostRegister(host, 4096, 3);
            const char *nop = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"; CUmodule m; CUfunction f; cuModuleLoadData(&m, nop); cuModuleGetFunction(&f, m, "k"); cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, 0, 0); cuStreamSynchronize(other);
            CUevent known; cuEventCreate(&known, CU_EVENT_DISABLE_TIMING); cuEventRecord(known, other); block(); static std::atomic<int> done{0};
            std::thread th([=] { cuCtxSetCurrent(ctx); CUmodule m2; if (k == 0) cuMemHostUnregister(host); else if (k == 1) cuMemFree(mem); else cuModuleLoadData(&m2, nop); done = 1; });
            usleep(300000); printf("a thread is %s in %s\n", done ? "done" : "stuck", names[k]); fflush(stdout);
            CUstreamBatchMemOpParams q = write32((CUdeviceptr)(word + 8), 7); TIMED("  cuStreamBatchMemOp meanwhile", cuStreamBatchMemOp(other, 1, &q, 0));
            static std::atomic<int> recorded{0}; TIMED("  cuEventQuery meanwhile", cuEventQuery(known)); std::thread marks([=] { cuCtxSetCurrent(ctx); cuEventRecord(known, other); recorded = 1; });
            usleep(100000); printf("  cuEventRecord meanwhile: %s\n", recorded ? "done" : "it waits"); fflush(stdout);
            TIMED("  kernel launch meanwhile", cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, 0, 0)); TIMED("  cuStreamQuery meanwhile", cuStreamQuery(blocked));
            usleep(100000); TIMED("  cuStreamQuery of the other", cuStreamQuery(other));
            char b[8]; TIMED("  copy meanwhile", cuMemcpyDtoHAsync(b, p, 8, other));
            TIMED("  synchronize meanwhile", cuStreamSynchronize(other)); void *host2 = mmap(0, 4096, 3, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0); memset(host2, 1, 4096); TIMED("  cuMemHostRegister meanwhile", cuMemHostRegister(host2, 4096, 3));
            word[0] = 1; double t = now(); th.join(); marks.join(); printf("  the thread comes back %.0f us after the wait is satisfied\n", now() - t); });
    }
    fact("async free", [] { setup(); CUdeviceptr p; cuMemAllocAsync(&p, 1 << 20, other); cuStreamSynchronize(other); block(); TIMED("cuMemFreeAsync while another waits", cuMemFreeAsync(p, other)); TIMED("  and synchronize", cuStreamSynchronize(other)); TIMED("cuMemAllocAsync while another waits", cuMemAllocAsync(&p, 1 << 20, other)); TIMED("cuStreamDestroy of the waiting stream", cuStreamDestroy(blocked)); TIMED("cuStreamCreate meanwhile", cuStreamCreate(&blocked, CU_STREAM_NON_BLOCKING)); });
    fact("costs", [] {
        setup(); CUcontext c; CUstreamCaptureStatus st; CUstreamBatchMemOpParams q[2] = {write32((CUdeviceptr)word, 1), write32((CUdeviceptr)word + 4, 1)}; const int N = 100000;
        double t = now(); for (int i = 0; i < N; i++) cuCtxGetCurrent(&c); double t1 = now(); for (int i = 0; i < N; i++) cuStreamIsCapturing(other, &st); double t2 = now();
        for (int i = 0; i < N; i++) cuStreamQuery(other); double t3 = now(); double sum = 0; for (int i = 0; i < 2000; i++) { double a = now(); cuStreamBatchMemOp(other, 2, q, 0); sum += now() - a; if (i % 16 == 15) cuStreamSynchronize(other); }
        printf("cuCtxGetCurrent %.1f ns, cuStreamIsCapturing %.1f ns, cuStreamQuery %.1f ns, pair of writes %.1f ns\n", (t1 - t) * 1e3 / N, (t2 - t1) * 1e3 / N, (t3 - t2) * 1e3 / N, sum * 1e3 / 2000); });
    // An event without a time after each post, beside one more write. Posts behind a wait, so that the GPU performs them without the CPU.
    fact("costs of marks", [] {
        setup(); CUevent e; cuEventCreate(&e, CU_EVENT_DISABLE_TIMING); const int N = 300; CUstreamBatchMemOpParams q[3], hold = wait32((CUdeviceptr)word, 1), end = write32((CUdeviceptr)(word + 40), 1);
        for (int i = 0; i < 3; i++) q[i] = write32((CUdeviceptr)(word + 16 + i), 1);
        for (int way = 0; way < 3; way++) {
            double gpu = 1e9, cpu = 1e9;
            for (int r = 0; r < 20; r++) {
                word[0] = word[40] = 0; cuStreamBatchMemOp(other, 1, &hold, 0); double t = now();
                for (int i = 0; i < N; i++) { cuStreamBatchMemOp(other, way == 1 ? 3 : 2, q, 0); if (way == 2) cuEventRecord(e, other); }
                double t1 = now(); cuStreamBatchMemOp(other, 1, &end, 0); usleep(1000); double t2 = now(); word[0] = 1; while (!word[40]); double t3 = now(); cuStreamSynchronize(other);
                if (t1 - t < cpu) cpu = t1 - t; if (t3 - t2 < gpu) gpu = t3 - t2;
            }
            printf("%-58s GPU %.2f us, CPU %.2f us a post\n", (const char *[]){"two writes", "three writes", "two writes and an event"}[way], gpu / N, cpu / N);
        } });
    fact("an event of a destroyed stream", [] {
        setup(); CUevent e; cuEventCreate(&e, CU_EVENT_DISABLE_TIMING); block(); cuEventRecord(e, blocked); cuStreamDestroy(blocked);
        TIMED("cuEventQuery after cuStreamDestroy, while it waits", cuEventQuery(e)); word[0] = 1; usleep(2000); TIMED("cuEventQuery once it has ended", cuEventQuery(e)); });
    for (int context = 0; context < 2; context++) {
        static int of_context; of_context = context;
        fact("an event while another stream is captured", [] {
            setup(); CUevent e; CUgraph g; cuEventCreate(&e, CU_EVENT_DISABLE_TIMING); cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
            if (of_context) TIMED("cuCtxRecordEvent during a capture", cuCtxRecordEvent(ctx, e)); else TIMED("cuEventRecord on another stream during a capture", cuEventRecord(e, blocked));
            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED; cuThreadExchangeStreamCaptureMode(&mode); TIMED("  cuEventQuery in relaxed mode", cuEventQuery(e)); TIMED("  cuStreamEndCapture", cuStreamEndCapture(other, &g)); });
    }
    // Does an enqueued launch keep the parameters that its batch node had at that time?
    for (int kernel = 0; kernel < 2; kernel++) for (int blocked_first = 0; blocked_first < 2; blocked_first++) {
        static int with_kernel, hold; with_kernel = kernel; hold = blocked_first;
        fact("graph parameters", [] {
            setup(); const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"; CUmodule m; CUfunction f;
            cuModuleLoadData(&m, ptx); cuModuleGetFunction(&f, m, "k"); cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, other, 0, 0); cuStreamSynchronize(other);
            CUgraph g; CUgraphExec e; CUgraphNode first, node; cuGraphCreate(&g, 0);
            CUDA_KERNEL_NODE_PARAMS kp; memset(&kp, 0, sizeof kp); kp.func = f; kp.gridDimX = kp.gridDimY = kp.gridDimZ = kp.blockDimX = kp.blockDimY = kp.blockDimZ = 1;
            if (with_kernel) cuGraphAddKernelNode(&first, g, 0, 0, &kp);
            CUstreamBatchMemOpParams ops[2] = {write32((CUdeviceptr)(word + 512), 1), write32((CUdeviceptr)(word + 513), 1)};
            CUDA_BATCH_MEM_OP_NODE_PARAMS bp; memset(&bp, 0, sizeof bp); bp.ctx = ctx; bp.count = 2; bp.paramArray = ops;
            cuGraphAddBatchMemOpNode(&node, g, with_kernel ? &first : 0, with_kernel, &bp); cuGraphInstantiateWithFlags(&e, g, 0);
            int lost = 0; const int ROUNDS = 200, N = 8;
            for (int r = 0; r < ROUNDS; r++) {
                for (int i = 0; i < 2 * N; i++) word[1024 + i] = 0; word[0] = 0; CUstreamBatchMemOpParams w = wait32((CUdeviceptr)word, 1); if (hold) cuStreamBatchMemOp(other, 1, &w, 0);
                for (int i = 0; i < N; i++) { ops[0] = write32((CUdeviceptr)(word + 1024 + 2 * i), i + 1); ops[1] = write32((CUdeviceptr)(word + 1025 + 2 * i), i + 1); cuGraphExecBatchMemOpNodeSetParams(e, node, &bp); cuGraphLaunch(e, other); }
                word[0] = 1; cuStreamSynchronize(other); for (int i = 0; i < 2 * N; i++) if (word[1024 + i] != i / 2 + 1) lost++;
            }
            printf("graph %s, stream %s: %d of %d writes of updated launches went elsewhere\n", with_kernel ? "kernel + batch node" : "batch node", hold ? "held" : "running", lost, ROUNDS * N * 2); });
    }
    // Two processes on one GPU, each of which wakes the stream of the other.
    {
        volatile unsigned *shared = (volatile unsigned *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
        memset((void *)shared, 0, 4096); fflush(stdout); pid_t pids[2];
        for (int side = 0; side < 2; side++) if ((pids[side] = fork()) == 0) {
            alarm(30); cuInit(0); cuDeviceGet(&dev, 0); cuDevicePrimaryCtxRetain(&ctx, dev); cuCtxSetCurrent(ctx); cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
            cuMemHostRegister((void *)shared, 4096, 3); CUdeviceptr mine = (CUdeviceptr)(shared + side * 16), theirs = (CUdeviceptr)(shared + (1 - side) * 16);
            __sync_fetch_and_add((unsigned *)(shared + 64), 1); while (shared[64] < 2);
            for (int round = 0; round < 2; round++) { const int N = 2000; double t = now();
                for (int i = 1; i <= N; i++) { CUstreamBatchMemOpParams q[2]; unsigned v = round * N + i; if (side == 0) { q[0] = write32(theirs, v); q[1] = wait32(mine, v); } else { q[0] = wait32(mine, v); q[1] = write32(theirs, v); } cuStreamBatchMemOp(other, 2, q, 0); if (i % 64 == 0) cuStreamSynchronize(other); }
                cuStreamSynchronize(other); if (side == 0) { printf("two processes, stream wakes stream: %.1f us a round trip\n", (now() - t) / N); fflush(stdout); } }
            _exit(0);
        }
        for (int side = 0; side < 2; side++) { int status; waitpid(pids[side], &status, 0); if (WIFSIGNALED(status)) printf("two processes: side %d killed by signal %d\n", side, WTERMSIG(status)); }
    }
    return 0;
}
