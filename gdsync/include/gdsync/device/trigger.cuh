// Words for which cards wait, and words that cards write: one store releases sends of any number of queue pairs, and
// one load shows completions of any number of queues. Plain data, which the library fills in.
#ifndef GDSYNC_DEVICE_TRIGGER_CUH
#define GDSYNC_DEVICE_TRIGGER_CUH

#include "atomics.cuh"
#include "ops.cuh"

// A trigger (`gdsync::device::TriggerData` in Rust; `Trigger::for_kernels` makes it).
struct gdsync_trigger {
    // The word, in memory of the host or of the GPU: 64 bits, big endian.
    unsigned long long word;
};

// A collector (`gdsync::device::CollectorData`; `Collector::for_kernels` makes it).
struct gdsync_collector {
    // The arrival word, in memory of the host: 64 bits.
    unsigned long long word;
};

static_assert(sizeof(gdsync_trigger) == 8 && sizeof(gdsync_collector) == 8, "as the library's");

namespace gdsync {

// Releases the sends of a trigger up to this ticket: a fence of system scope, and a store. The card then reads all that the caller
// has written, or has acquired from others, before.
//
// Any thread may call it, but one at a time, and tickets only grow: a card that waits for a word must not see it go backwards. If
// several threads contribute to a step, each counts (by an atomic operation that releases and acquires), and the last one releases.
GDSYNC_DEVICE void release(const gdsync_trigger &trigger, u64 ticket) {
    detail::store_release_system((u64 *)trigger.word, detail::big_endian(ticket));
}

// Waits until all completions of a number of the collector (`Collector::collect`) are there. The caller then sees the card's writes
// before them (device_verbs.cuh says where). A failed request has a completion, too: the CPU reads each result.
GDSYNC_DEVICE status wait_arrivals(const gdsync_collector &collector, u64 number, u64 timeout_ns) {
    return wait_signal((const u64 *)collector.word, number, timeout_ns);
}

} // namespace gdsync

#endif
