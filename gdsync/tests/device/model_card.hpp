// A card that is a thread of the same program, for ThreadSanitizer: it reads the blocks and writes the entries by plain copies, so that
// every order that the protocol leaves open is a race that the sanitizer sees.
#pragma once

#include "gdsync/device_verbs.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace gdsync;

static const u32 BLOCKS = 64, ENTRIES = 64, QPN = 0x123456, SLOTS = 16, MOST_THREADS = 32;
static const u64 LONG = 60000000000ull;

struct Card {
    alignas(64) u8 ring[BLOCKS * 64] = {};
    alignas(64) u8 completions[ENTRIES * 64] = {};
    alignas(64) u32 send_record = 0;
    alignas(64) u32 completion_record = 0;
    alignas(64) u64 doorbell = 0;
    gdsync_device_state state = {};
    u64 target[MOST_THREADS * SLOTS] = {};
    u64 counter = 0;
    // The block that fails, and all after it.
    u64 fails_at = ~0ull;
    bool stop = false;
    bool uses_mailbox = false;
};

static u32 at32(const u8 *at) { return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3]; }
static u64 at64(const u8 *at) { return (u64)at32(at) << 32 | at32(at + 4); }

static void check(bool right, const char *what, u64 value) {
    if (!right) {
        std::fprintf(stderr, "%s: %llu\n", what, value);
        std::exit(1);
    }
}

static void write_entry(Card &card, u64 &produced, u64 index, u32 opcode, u32 syndrome) {
    // Acquire: who gave the entries back has read them.
    const u32 consumed = __builtin_bswap32(__atomic_load_n(&card.completion_record, __ATOMIC_ACQUIRE));
    check((((u32)produced - consumed) & 0xffffff) < ENTRIES, "the completion queue overruns", produced);
    u8 *entry = card.completions + produced % ENTRIES * 64;
    std::memset(entry, 0x5a, 52);
    const u32 errors = syndrome << 24 | 0x88u << 16;
    // Other threads may be looking at these two words.
    __atomic_store_n((u32 *)(entry + 52), errors, __ATOMIC_RELAXED);
    const u32 owner = produced / ENTRIES % 2;
    const u32 last = (opcode << 4 | owner) << 24 | __builtin_bswap32((u32)index << 16);
    __atomic_store_n((u32 *)(entry + 60), last, __ATOMIC_RELEASE);
    produced++;
}

// Data of memory or of the request. Short words of the request are written whole, and those that notify after all that was written before.
static void write(const u8 *block, u32 units, u64 slot) {
    const u32 count = units > 2 ? at32(block + 32) & 0x7fffffff : 0;
    const bool is_inline = units > 2 && (at32(block + 32) & 0x80000000) != 0;
    if (is_inline && count == 8) {
        u64 value;
        std::memcpy(&value, block + 36, 8);
        __atomic_store_n((u64 *)slot, value, __ATOMIC_RELAXED);
    } else if (is_inline && count == 4) {
        u32 value;
        std::memcpy(&value, block + 36, 4);
        __atomic_store_n((u32 *)slot, value, __ATOMIC_RELEASE);
    } else {
        check(!is_inline && units == (count != 0 ? 3 : 2), "the segments of a write", units);
        std::memcpy((void *)slot, count != 0 ? (const void *)at64(block + 40) : block, count);
    }
}

static void run(Card &card) {
    u64 performed = 0, produced = 0;
    while (!__atomic_load_n(&card.stop, __ATOMIC_ACQUIRE)) {
        u64 bell = __atomic_exchange_n(&card.doorbell, 0, __ATOMIC_ACQUIRE);
        if (bell == 0) {
            sched_yield();
            continue;
        }
        u64 end;
        if (card.uses_mailbox) {
            end = bell;
        } else {
            const u32 record = __builtin_bswap32(__atomic_load_n(&card.send_record, __ATOMIC_ACQUIRE));
            end = performed + (u16)(record - (u16)performed);
            u8 bytes[8];
            std::memcpy(bytes, &bell, 8);
            const u16 rung = (u16)(at32(bytes) >> 8);
            check(at32(bytes + 4) >> 8 == QPN, "another queue pair is rung", bell);
            check((u16)((u16)end - rung - 1) < BLOCKS, "the record is behind the doorbell", rung);
        }
        check(end - performed <= BLOCKS, "the send queue overruns", end);
        for (; performed < end; performed++) {
            u8 block[64];
            std::memcpy(block, card.ring + performed % BLOCKS * 64, 64);
            check((u16)(at32(block) >> 8) == (u16)performed, "a block of another lap", performed);
            const u32 units = block[7] & 0x3f, opcode = block[3];
            const bool signaled = (block[11] & 8) != 0;
            if (performed >= card.fails_at) {
                write_entry(card, produced, performed, 0xd, performed == card.fails_at ? 0x13 : 0x05);
                continue;
            }
            const u64 slot = at64(block + 16);
            if (opcode == 0x08) {
                write(block, units, slot);
            } else {
                check(opcode == 0x12 && units == 4, "no known request", opcode);
                __atomic_fetch_add((u64 *)slot, at64(block + 32), __ATOMIC_RELAXED);
            }
            if (signaled) {
                write_entry(card, produced, performed, 0, 0);
            }
        }
    }
}

static gdsync_device_qp describe(Card &card) {
    for (u32 i = 0; i < ENTRIES; i++) {
        card.completions[i * 64 + 63] = 0xf1;
    }
    gdsync_device_qp qp = {};
    qp.send_ring = (u64)card.ring;
    qp.send_record = (u64)&card.send_record;
    qp.doorbell = (u64)&card.doorbell;
    qp.completion_ring = (u64)card.completions;
    qp.completion_record = (u64)&card.completion_record;
    qp.state = (u64)&card.state;
    qp.send_mask = BLOCKS - 1;
    qp.completion_mask = ENTRIES - 1;
    qp.qpn = QPN;
    qp.limit = BLOCKS;
    qp.flags = card.uses_mailbox ? GDSYNC_DEVICE_QP_MAILBOX : 0;
    qp.version = GDSYNC_DEVICE_QP_VERSION;
    qp.stall_ns = LONG;
    return qp;
}
