/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * A registration cache: hits, misses, evictions, invalidations, and its keys in work requests.
 */
#include "common.h"

enum { PART = 4096, ALL = 4 * PART };

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

static gdsync_cache_statistics_t statistics_of(gdsync_cache_t *cache) {
    gdsync_cache_statistics_t statistics;
    OK(gdsync_cache_statistics(cache, &statistics));
    return statistics;
}

static void is_cached(struct rig *rig, uint8_t *memory) {
    gdsync_cache_t *cache = gdsync_cache_create(rig->pd, rig->context, 0, 0);
    gdsync_region_t *whole, *part, *more, *longer;
    gdsync_cache_statistics_t statistics;

    CHECK(cache != NULL);
    whole = gdsync_cache_get(cache, memory, 2 * PART, ACCESS);
    CHECK(whole != NULL && whole->addr == (uint64_t)(uintptr_t)memory && whole->length == 2 * PART);
    /* A part of the region, with less access, and the same again. */
    part = gdsync_cache_get(cache, memory + PART, 10, IBV_ACCESS_LOCAL_WRITE);
    CHECK(part != NULL && part->lkey == whole->lkey && part->rkey == whole->rkey);
    OK(gdsync_cache_release(part));
    CHECK_STATUS(EINVAL, gdsync_cache_release(part));
    statistics = statistics_of(cache);
    CHECK(statistics.hits == 1 && statistics.misses == 1 && statistics.entries == 1 && statistics.bytes == 2 * PART);
    /* More access or more bytes need another registration. */
    more = gdsync_cache_get(cache, memory, PART, ACCESS | IBV_ACCESS_REMOTE_READ);
    CHECK(more != NULL && more->rkey != whole->rkey);
    longer = gdsync_cache_get(cache, memory, ALL, ACCESS);
    CHECK(longer != NULL && longer->length == ALL && longer->rkey != whole->rkey);
    CHECK(statistics_of(cache).misses == 3);
    OK(gdsync_cache_release(more));
    OK(gdsync_cache_release(whole));
    OK(gdsync_cache_release(longer));
    /* Invalidated before the memory is freed. */
    CHECK(gdsync_cache_invalidate(cache, memory + ALL, PART) == 0);
    CHECK(gdsync_cache_invalidate(cache, memory + ALL - 1, 1) >= 1);
    CHECK(statistics_of(cache).entries == 0);
    whole = gdsync_cache_get(cache, memory, PART, ACCESS);
    CHECK(whole != NULL && statistics_of(cache).misses == 4);
    OK(gdsync_cache_release(whole));
    OK(gdsync_cache_free(cache));
    CHECK_STATUS(EINVAL, gdsync_cache_free(cache));
}

/* A cache of one registration evicts an unused one, and keeps one in use. */
static void is_limited(struct rig *rig, uint8_t *memory) {
    gdsync_cache_t *cache = gdsync_cache_create(rig->pd, rig->context, 1, PART);
    gdsync_region_t *one, *other;

    CHECK(cache != NULL);
    one = gdsync_cache_get(cache, memory, PART, ACCESS);
    other = gdsync_cache_get(cache, memory + PART, PART, ACCESS);
    CHECK(one != NULL && other != NULL && statistics_of(cache).not_kept == 1);
    OK(gdsync_cache_release(one));
    OK(gdsync_cache_release(other));
    other = gdsync_cache_get(cache, memory + 2 * PART, PART, ACCESS);
    CHECK(other != NULL && statistics_of(cache).evictions == 1 && statistics_of(cache).entries == 1);
    OK(gdsync_cache_release(other));
    OK(gdsync_cache_free(cache));
}

/* The keys are valid for a write from the memory and into it. */
static void is_used(struct rig *rig, uint8_t *memory) {
    gdsync_cache_t *cache = gdsync_cache_create(rig->pd, rig->context, 0, 0);
    gdsync_region_t *region = gdsync_cache_get(cache, memory, ALL, ACCESS);
    struct ibv_sge sge;
    gds_send_wr wr, *bad = NULL;

    CHECK(region != NULL);
    memset(memory, 9, PART);
    memset(memory + PART, 0, PART);
    sge.addr = region->addr;
    sge.length = PART;
    sge.lkey = region->lkey;
    wr = send_of(&sge, 5);
    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    wr.wr.rdma.remote_addr = region->addr + PART;
    wr.wr.rdma.rkey = region->rkey;
    OK(gds_post_send(rig->sides[0].qp, &wr, &bad));
    (void)poll_success(SEND_CQ(rig->sides[0].qp), 5);
    CHECK(memory[PART] == 9 && memory[2 * PART - 1] == 9);
    /* A region in use outlives its cache. */
    OK(gdsync_cache_free(cache));
    OK(gds_post_send(rig->sides[0].qp, &wr, &bad));
    (void)poll_success(SEND_CQ(rig->sides[0].qp), 5);
    OK(gdsync_cache_release(region));
}

int main(void) {
    struct rig rig;
    uint8_t *memory = NULL;

    CHECK(posix_memalign((void **)&memory, PART, ALL) == 0);
    rig_open(&rig, IBV_QPT_RC);
    is_cached(&rig, memory);
    is_limited(&rig, memory);
    is_used(&rig, memory);
    rig_close(&rig);
    free(memory);
    puts("cache ok");
    return 0;
}
