/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Threads copy through a handle while another maps, unmaps and unpins it: each call does all of its work, or returns the reason. The backend is
  * the stand-in.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

#define ADDRESS 0x7f0000200000UL
#define SIZE GPU_PAGE_SIZE

static atomic_ulong handle;
static atomic_uintptr_t place;
static atomic_long done, refused;
static atomic_int stop;

static void *copy(void *unused)
{
    char bytes[256] = { 0 };
    (void)unused;
    while (!atomic_load(&stop)) {
        gdr_mh_t mh = { atomic_load(&handle) };
        char *at = (char *)atomic_load(&place);
        int to = gdr_copy_to_mapping(mh, at + 100, bytes, sizeof(bytes));
        int from = gdr_copy_from_mapping(mh, bytes, at + 100, sizeof(bytes));
        TRUE(to == 0 || to == EINVAL);
        TRUE(from == 0 || from == EINVAL);
        atomic_fetch_add(to == 0 ? &done : &refused, 1);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[3];
    gdr_t g = gdr_open();
    int i;
    TRUE(g);
    for (i = 0; i < 3; i++)
        DONE(pthread_create(&threads[i], NULL, copy, NULL));
    for (i = 0; i < 300 || !atomic_load(&done) || !atomic_load(&refused); i++) {
        gdr_mh_t mh;
        void *at;
        DONE(gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, &mh));
        atomic_store(&handle, mh.h);
        DONE(gdr_map(g, mh, &at, SIZE));
        atomic_store(&place, (uintptr_t)at);
        long before = atomic_load(&done);
        while (i % 16 == 0 && atomic_load(&done) < before + 3) { }
        DONE(gdr_unmap(g, mh, at, SIZE));
        if (i % 2)
            DONE(gdr_unpin_buffer(g, mh));
    }
    atomic_store(&stop, 1);
    for (i = 0; i < 3; i++)
        DONE(pthread_join(threads[i], NULL));
    DONE(gdr_close(g));
    return 0;
}
