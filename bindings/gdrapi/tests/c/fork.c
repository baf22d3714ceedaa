/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * A child cannot use its parent's handles and mappings, can make its own, and does not change the parent's, even if other threads of the parent
  * are inside the library during the fork. The backend is the stand-in.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define ADDRESS 0x7f0000200000UL
#define SIZE GPU_PAGE_SIZE

static atomic_int stop;
static gdr_t g;

static void *busy(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        gdr_mh_t mh;
        void *at;
        char byte = 1;
        DONE(gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, &mh));
        DONE(gdr_map(g, mh, &at, SIZE));
        DONE(gdr_copy_to_mapping(mh, at, &byte, 1));
        DONE(gdr_unmap(g, mh, at, SIZE));
        DONE(gdr_unpin_buffer(g, mh));
    }
    return NULL;
}

static void child(gdr_mh_t mh, void *at)
{
    char byte = 9;
    int value;
    gdr_info_t info;
    alarm(60);
    EQUAL(gdr_copy_to_mapping(mh, at, &byte, 1), EINVAL);
    EQUAL(gdr_copy_from_mapping(mh, &byte, at, 1), EINVAL);
    EQUAL(gdr_get_info(g, mh, &info), EINVAL);
    EQUAL(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value), EINVAL);
    EQUAL(gdr_unmap(g, mh, at, SIZE), EINVAL);
    EQUAL(gdr_unpin_buffer(g, mh), EINVAL);
    EQUAL(gdr_close(g), EINVAL);
    gdr_t own = gdr_open();
    gdr_mh_t own_mh;
    void *own_at;
    TRUE(own && own != g);
    EQUAL(gdr_map(own, mh, &own_at, SIZE), EINVAL);
    DONE(gdr_pin_buffer(own, ADDRESS, SIZE, 0, 0, &own_mh));
    TRUE(own_mh.h != mh.h);
    DONE(gdr_map(own, own_mh, &own_at, SIZE));
    DONE(gdr_copy_to_mapping(own_mh, own_at, &byte, 1));
    EQUAL(*(char *)own_at, 9);
    EQUAL(gdr_close(g), EINVAL);
    DONE(gdr_close(own));
    signal(SIGSEGV, SIG_DFL);
    /* The parent's pages are not mapped here, so this ends the child. */
    *(volatile char *)at = 8;
    _exit(4);
}

int main(void)
{
    pthread_t threads[2];
    gdr_mh_t mh;
    void *at;
    char byte = 7;
    int i, status;
    g = gdr_open();
    TRUE(g);
    DONE(gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, &mh));
    DONE(gdr_map(g, mh, &at, SIZE));
    DONE(gdr_copy_to_mapping(mh, at, &byte, 1));
    for (i = 0; i < 2; i++)
        DONE(pthread_create(&threads[i], NULL, busy, NULL));
    for (i = 0; i < 50; i++) {
        pid_t pid = fork();
        TRUE(pid >= 0);
        if (pid == 0)
            child(mh, at);
        EQUAL(waitpid(pid, &status, 0), pid);
        TRUE(WIFSIGNALED(status));
        EQUAL(WTERMSIG(status), SIGSEGV);
    }
    atomic_store(&stop, 1);
    for (i = 0; i < 2; i++)
        DONE(pthread_join(threads[i], NULL));
    byte = 0;
    DONE(gdr_copy_from_mapping(mh, &byte, at, 1));
    EQUAL(byte, 7);
    EQUAL(*(char *)at, 7);
    DONE(gdr_close(g));
    return 0;
}
