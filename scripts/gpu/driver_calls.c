/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Counts and times a program's calls of the CUDA driver. Preloaded:
 *
 *     cc -O2 -shared -fPIC scripts/gpu/driver_calls.c -o libdriver_calls.so -ldl
 *     DRIVER_CALLS=FILE LD_PRELOAD=$PWD/libdriver_calls.so PROGRAM
 *
 * When the program ends, FILE (`-`: stderr) gets one line for each function that was called: how often, the mean and the longest call, and
 * the sum, by the CPU's clock. `%p` in FILE becomes the process' number.
 *
 * It sees calls that are linked, those found by dlsym (as cudarc does), and those found by cuGetProcAddress (as the runtime library does).
 * A library that is preloaded after this one sees them, too. A call that the driver makes itself is not counted. Functions are found by
 * name, so a name that an older driver lacks costs nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* At most six arguments, all integers or pointers, which the calling convention passes in registers. Functions with more are not listed. */
#define FUNCTIONS(X)                                                                                                           \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent) X(cuCtxSetCurrent)  \
    X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetId) X(cuCtxGetDevice) X(cuCtxSynchronize)                           \
    X(cuThreadExchangeStreamCaptureMode) X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamGetId) X(cuStreamGetCtx)            \
    X(cuStreamIsCapturing) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamBatchMemOp_v2)               \
    X(cuStreamWriteValue32_v2) X(cuStreamWriteValue64_v2) X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64_v2)                  \
    X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemCreate)    \
    X(cuMemMap) X(cuMemSetAccess) X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemHostGetDevicePointer_v2)               \
    X(cuMemHostAlloc) X(cuMemGetHandleForAddressRange) X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuMemcpyAsync)     \
    X(cuMemcpyDtoH_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyHtoDAsync_v2) X(cuModuleLoadData)                  \
    X(cuModuleGetFunction) X(cuGraphLaunch) X(cuGraphExecBatchMemOpNodeSetParams) X(cuLaunchKernelEx)

enum {
#define X(name) AT_##name,
    FUNCTIONS(X)
#undef X
        COUNT,
    UNKNOWN = 999 /* CUDA_ERROR_UNKNOWN */
};

static const char *const names[COUNT] = {
#define X(name) #name,
    FUNCTIONS(X)
#undef X
};

/* A name can lead to several functions: cuGetProcAddress returns others than dlsym, depending on its version and flags. Each has a wrapper of
 * its own. The first is exported, and calls the one that the loader finds. */
enum { WRAPPERS = 5 };

struct calls {
    void *_Atomic real[WRAPPERS];
    atomic_ulong count, total_ns, longest_ns;
};

static struct calls calls[COUNT];

typedef long (*any)(long, long, long, long, long, long);

typedef void *(*find)(void *, const char *);

static find real(void) {
    static _Atomic(find) found;
    find call = atomic_load(&found);
    if (!call) {
        /* glibc before 2.34 has it in libdl, under its first version; other architectures under 2.17. */
        const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
        for (size_t i = 0; !call && i < sizeof(versions) / sizeof(*versions); i++) {
            void *address = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
            memcpy(&call, &address, sizeof(call));
        }
        if (!call) {
            fputs("driver_calls: there is no dlsym\n", stderr);
            abort();
        }
        atomic_store(&found, call);
    }
    return call;
}

static void *real_dlsym(void *handle, const char *name) { return real()(handle, name); }

/* Returns the function of a library that is preloaded after this one, which is to see the call, too; otherwise the driver's. */
static void *next(const char *name, void *of_driver) {
    void *found = real_dlsym(RTLD_NEXT, name);
    return found ? found : of_driver;
}

/* Returns the function of the next library or of the loaded driver. */
static void *loaded(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return next(name, library ? real_dlsym(library, name) : NULL);
}

/* Returns the number of calls until now, for programs that find it by dlsym. */
unsigned long driver_calls(void) {
    unsigned long sum = 0;
    for (int at = 0; at < COUNT; at++) {
        sum += atomic_load_explicit(&calls[at].count, memory_order_relaxed);
    }
    return sum;
}

static unsigned long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (unsigned long)at.tv_sec * 1000000000UL + (unsigned long)at.tv_nsec;
}

/* The driver also calls its own functions by name: only the outermost call counts. */
static _Thread_local int depth;

#define ARGUMENTS long a, long b, long c, long d, long e, long f

static long timed(int at, int wrapper, ARGUMENTS) {
    struct calls *one = &calls[at];
    void *address = atomic_load_explicit(&one->real[wrapper], memory_order_acquire);
    any function;
    unsigned long start, took, longest;
    long result;
    if (!address) {
        address = loaded(names[at]);
        if (!address) {
            return UNKNOWN;
        }
        atomic_store_explicit(&one->real[wrapper], address, memory_order_release);
    }
    memcpy(&function, &address, sizeof(function));
    if (depth > 0) {
        return function(a, b, c, d, e, f);
    }
    depth++;
    start = now();
    result = function(a, b, c, d, e, f);
    took = now() - start;
    depth--;
    atomic_fetch_add_explicit(&one->count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&one->total_ns, took, memory_order_relaxed);
    longest = atomic_load_explicit(&one->longest_ns, memory_order_relaxed);
    while (took > longest && !atomic_compare_exchange_weak(&one->longest_ns, &longest, took)) {
    }
    return result;
}

/* Exported, so that a program that is linked with the driver calls these. */
#define X(name)                                                                                                                \
    long name(ARGUMENTS) { return timed(AT_##name, 0, a, b, c, d, e, f); }                                                     \
    static long name##_1(ARGUMENTS) { return timed(AT_##name, 1, a, b, c, d, e, f); }                                          \
    static long name##_2(ARGUMENTS) { return timed(AT_##name, 2, a, b, c, d, e, f); }                                          \
    static long name##_3(ARGUMENTS) { return timed(AT_##name, 3, a, b, c, d, e, f); }                                          \
    static long name##_4(ARGUMENTS) { return timed(AT_##name, 4, a, b, c, d, e, f); }
FUNCTIONS(X)
#undef X

static void *const wrappers[COUNT][WRAPPERS] = {
#define X(name) {(void *)name, (void *)name##_1, (void *)name##_2, (void *)name##_3, (void *)name##_4},
    FUNCTIONS(X)
#undef X
};

/* Returns the wrapper of a function that was found, or the function itself: it is a wrapper, or all wrappers have other functions. */
static void *wrapper(int at, void *found) {
    for (int i = 0; i < WRAPPERS; i++) {
        if (found == wrappers[at][i]) {
            return found;
        }
    }
    for (int i = 1; i < WRAPPERS; i++) {
        void *known = NULL;
        if (atomic_compare_exchange_strong(&calls[at].real[i], &known, found) || known == found) {
            return wrappers[at][i];
        }
    }
    return found;
}

typedef int (*find_v1)(const char *, void **, int, unsigned long);
typedef int (*find_v2)(const char *, void **, int, unsigned long, void *);

int cuGetProcAddress(const char *name, void **to, int version, unsigned long flags);
int cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long flags, void *status);

/* Returns this library's cuGetProcAddress of a version and its name, or NULL for another name. */
static void *finder(const char *name, int version) {
    if (strcmp(name, "cuGetProcAddress") == 0 && version < 12000) {
        return (void *)cuGetProcAddress;
    }
    return strcmp(name, "cuGetProcAddress") == 0 || strcmp(name, "cuGetProcAddress_v2") == 0 ? (void *)cuGetProcAddress_v2 : NULL;
}

/* Replaces the function that the next cuGetProcAddress has found. That takes names without a version; functions of all versions count as one. */
static void replace(const char *name, void **to, int version) {
    void *own = finder(name, version);
    size_t length = strlen(name);
    if (own) {
        *to = own;
    }
    for (int at = 0; *to && !own && at < COUNT; at++) {
        if (strncmp(names[at], name, length) == 0 && (names[at][length] == '\0' || names[at][length] == '_')) {
            *to = wrapper(at, *to);
            return;
        }
    }
}

int cuGetProcAddress(const char *name, void **to, int version, unsigned long flags) {
    void *address = loaded("cuGetProcAddress");
    find_v1 find;
    int result;
    memcpy(&find, &address, sizeof(find));
    result = find ? find(name, to, version, flags) : UNKNOWN;
    if (result == 0) {
        replace(name, to, version);
    }
    return result;
}

int cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long flags, void *status) {
    void *address = loaded("cuGetProcAddress_v2");
    find_v2 find;
    int result;
    memcpy(&find, &address, sizeof(find));
    result = find ? find(name, to, version, flags, status) : UNKNOWN;
    if (result == 0) {
        replace(name, to, version);
    }
    return result;
}

void *dlsym(void *handle, const char *name) {
    find call = real();
    void *found;
    if (handle == RTLD_NEXT) {
        /* dlsym depends on its caller: with -O2, the compiler makes this a jump. */
        return call(handle, name);
    }
    found = call(handle, name);
    if (!found || strncmp(name, "cu", 2) != 0) {
        return found;
    }
    if (finder(name, 0)) {
        return finder(name, 0);
    }
    for (int at = 0; at < COUNT; at++) {
        if (strcmp(name, names[at]) == 0) {
            return wrapper(at, next(name, found));
        }
    }
    return found;
}

/* Returns the file that DRIVER_CALLS names, with the process's number for %p. */
static FILE *output(const char *named) {
    const char *place = strstr(named, "%p");
    char path[4096];
    if (strcmp(named, "-") == 0) {
        return stderr;
    }
    if (place) {
        snprintf(path, sizeof(path), "%.*s%d%s", (int)(place - named), named, (int)getpid(), place + 2);
    } else {
        snprintf(path, sizeof(path), "%s", named);
    }
    return fopen(path, "a");
}

__attribute__((destructor)) static void tell(void) {
    const char *named = getenv("DRIVER_CALLS");
    FILE *to = NULL;
    for (int at = 0; named && at < COUNT; at++) {
        unsigned long count = calls[at].count, total = calls[at].total_ns;
        if (count == 0) {
            continue;
        }
        if (!to && !(to = output(named))) {
            return;
        }
        fprintf(to, "%-36s calls %8lu  mean %9.2f us  longest %10.2f us  together %10.2f ms\n", names[at], count,
                (double)total / 1e3 / (double)count, (double)calls[at].longest_ns / 1e3, (double)total / 1e6);
    }
    if (to && to != stderr) {
        fclose(to);
    }
}
