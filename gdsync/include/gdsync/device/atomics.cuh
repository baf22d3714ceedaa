// Memory order, by scope: `gpu` for words that only threads of one GPU access while a kernel drives the queue, `system` for words
// that the card or the CPU reads or writes. On the host there is one scope.
//
// PTX ISA, "Memory Consistency Model": a release pattern orders everything before it, including writes that the thread has acquired
// from others (causality order is transitive). It is a fence and a relaxed store: `st.release` is the same.
//
// All of it is global memory, where generic addresses equal global ones (PTX ISA, "Generic Addressing"). After an atomic operation
// on an address that might be in shared memory, the compiler would insert a branch.
#ifndef GDSYNC_DEVICE_ATOMICS_CUH
#define GDSYNC_DEVICE_ATOMICS_CUH

#include "platform.cuh"

namespace gdsync {
namespace detail {

#if defined(__CUDACC__)

GDSYNC_DEVICE u64 load_relaxed_gpu(const u64 *at) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE u64 load_acquire_gpu(const u64 *at) {
    u64 value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE void store_relaxed_gpu(u64 *at, u64 value) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

// Returns the old value. If that is `expected`, the word is now `desired`.
GDSYNC_DEVICE u64 exchange_relaxed_gpu(u64 *at, u64 expected, u64 desired) {
    u64 found;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(found) : "l"(at), "l"(expected), "l"(desired) : "memory");
    return found;
}

GDSYNC_DEVICE u32 exchange_relaxed_gpu(u32 *at, u32 expected, u32 desired) {
    u32 found;
    asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(found) : "l"(at), "r"(expected), "r"(desired) : "memory");
    return found;
}

GDSYNC_DEVICE u64 exchange_acquire_gpu(u64 *at, u64 expected, u64 desired) {
    u64 found;
    asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(found) : "l"(at), "l"(expected), "l"(desired) : "memory");
    return found;
}

// A release-only fence, if there is one (PTX ISA 8.6): the acquire half of `acq_rel` invalidates the L1 cache.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
#define GDSYNC_DEVICE_RELEASE "fence.release"
#else
#define GDSYNC_DEVICE_RELEASE "fence.acq_rel"
#endif

// The release half of the ..._behind_release_... functions, so that one fence serves several of them.
GDSYNC_DEVICE void release_to_gpu() { asm volatile(GDSYNC_DEVICE_RELEASE ".gpu;" ::: "memory"); }

GDSYNC_DEVICE void release_to_system() { asm volatile(GDSYNC_DEVICE_RELEASE ".sys;" ::: "memory"); }

#undef GDSYNC_DEVICE_RELEASE

// `release_to_system`, plus acquire of the values of earlier relaxed loads.
GDSYNC_DEVICE void acquire_and_release_to_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

GDSYNC_DEVICE void store_release_gpu(u64 *at, u64 value) {
    release_to_gpu();
    store_relaxed_gpu(at, value);
}

// Before an `acquire_and_release_to_system`, which makes it an acquire: the latencies of the access and of the fence overlap.
GDSYNC_DEVICE u64 exchange_before_acquire_gpu(u64 *at, u64 expected, u64 desired) { return exchange_relaxed_gpu(at, expected, desired); }

// The same value, which the compiler cannot use before this point. Otherwise it would wait for the result of an atomic operation
// before a fence, and the two latencies would add up. The highest bit of the clock is 0, which the compiler does not know.
GDSYNC_DEVICE u64 not_before_here(u64 value) {
    u64 clock;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
    return value + (clock >> 63);
}

// Releases the writes before the last `release_to_...`.
GDSYNC_DEVICE void store_behind_release_gpu(u64 *at, u64 value) { store_relaxed_gpu(at, value); }

// Acquire, and release of the writes before the last `release_to_...`.
GDSYNC_DEVICE u64 exchange_behind_release_gpu(u64 *at, u64 expected, u64 desired) { return exchange_acquire_gpu(at, expected, desired); }

// Clears bits of a word, without waiting for its old value.
GDSYNC_DEVICE void clear_release_gpu(u64 *at, u64 bits) {
    release_to_gpu();
    asm volatile("red.relaxed.gpu.global.and.b64 [%0], %1;" ::"l"(at), "l"(~bits) : "memory");
}

GDSYNC_DEVICE u32 load_relaxed_system(const u32 *at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE u32 load_acquire_system(const u32 *at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE u64 load_relaxed_system(const u64 *at) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE u64 load_acquire_system(const u64 *at) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
}

GDSYNC_DEVICE u8 load_relaxed_system(const u8 *at) {
    u32 value;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return (u8)value;
}

// Releases the writes before the last `release_to_system`.
GDSYNC_DEVICE void store_behind_release_system(u32 *at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

GDSYNC_DEVICE void store_behind_release_system(u64 *at, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

GDSYNC_DEVICE void store_release_system(u64 *at, u64 value) {
    release_to_system();
    store_behind_release_system(at, value);
}

// Exchanges a word; atomic for the card, too. Acquire and release.
GDSYNC_DEVICE u32 exchange_system(u32 *at, u32 value) {
    u32 found;
    asm volatile("atom.acq_rel.sys.global.exch.b32 %0, [%1], %2;" : "=r"(found) : "l"(at), "r"(value) : "memory");
    return found;
}

// A store that must not overtake the loads before it, all of which were acquires: these order it, so the store needs
// no fence (which would wait for every store of the thread to arrive).
GDSYNC_DEVICE void store_behind_acquires_system(u32 *at, u32 value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

// 16 bytes at once. Ordered by a later release only.
GDSYNC_DEVICE void store_16_bytes(void *at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

#else

GDSYNC_DEVICE u64 load_relaxed_gpu(const u64 *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

GDSYNC_DEVICE u64 load_acquire_gpu(const u64 *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

GDSYNC_DEVICE void store_relaxed_gpu(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }

GDSYNC_DEVICE void store_release_gpu(u64 *at, u64 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

GDSYNC_DEVICE u64 exchange_relaxed_gpu(u64 *at, u64 expected, u64 desired) {
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

// Between fences that order it, which ThreadSanitizer does not model.
GDSYNC_DEVICE u32 exchange_relaxed_gpu(u32 *at, u32 expected, u32 desired) {
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return expected;
}

GDSYNC_DEVICE u64 exchange_acquire_gpu(u64 *at, u64 expected, u64 desired) {
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
    return expected;
}

// ThreadSanitizer does not model fences: here each operation before or after one acquires or releases itself.
GDSYNC_DEVICE void release_to_gpu() {}

GDSYNC_DEVICE void release_to_system() {}

GDSYNC_DEVICE void acquire_and_release_to_system() {}

GDSYNC_DEVICE u64 exchange_before_acquire_gpu(u64 *at, u64 expected, u64 desired) { return exchange_acquire_gpu(at, expected, desired); }

GDSYNC_DEVICE u64 not_before_here(u64 value) { return value; }

GDSYNC_DEVICE void store_behind_release_gpu(u64 *at, u64 value) { store_release_gpu(at, value); }

GDSYNC_DEVICE u64 exchange_behind_release_gpu(u64 *at, u64 expected, u64 desired) {
    __atomic_compare_exchange_n(at, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    return expected;
}

GDSYNC_DEVICE void clear_release_gpu(u64 *at, u64 bits) { __atomic_fetch_and(at, ~bits, __ATOMIC_RELEASE); }

template <class Word> GDSYNC_DEVICE void store_behind_release_system(Word *at, Word value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

template <class Word> GDSYNC_DEVICE Word load_relaxed_system(const Word *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }

template <class Word> GDSYNC_DEVICE Word load_acquire_system(const Word *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

template <class Word> GDSYNC_DEVICE void store_release_system(Word *at, Word value) {
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

GDSYNC_DEVICE u32 exchange_system(u32 *at, u32 value) { return __atomic_exchange_n(at, value, __ATOMIC_ACQ_REL); }

// The C++ model has no store that only acquires order: a release.
GDSYNC_DEVICE void store_behind_acquires_system(u32 *at, u32 value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

// Plain stores, so that ThreadSanitizer sees whether they are ordered.
GDSYNC_DEVICE void store_16_bytes(void *at, u32 a, u32 b, u32 c, u32 d) {
    const u32 words[4] = {a, b, c, d};
    __builtin_memcpy(at, words, sizeof words);
}

#endif

// A lock that is only tried. Acquire: sees the writes of its last holder.
GDSYNC_DEVICE bool try_lock(u64 *lock) {
    return load_relaxed_gpu(lock) == 0 && exchange_acquire_gpu(lock, 0, 1) == 0;
}

// Release: the next holder sees the writes of this one.
GDSYNC_DEVICE void unlock(u64 *lock) { store_release_gpu(lock, 0); }

} // namespace detail
} // namespace gdsync

#endif
