/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Pins, maps, copies, reads through the pointer, unmaps and unpins. The backend is the stand-in.
 */
#include "common.h"
#include <sys/wait.h>
#include <unistd.h>

#define ADDRESS 0x7f0000200000UL
#define SIZE (4 * GPU_PAGE_SIZE)

static unsigned char source[SIZE + 64], seen[SIZE + 64];

/* Every pair of offsets with a different alignment, in the mapping and in host memory. */
static void copies(gdr_mh_t mh, unsigned char *map)
{
    static const size_t offsets[] = { 0, 1, 2, 3, 4, 7, 8, 11, 15, 16, 17, 31, 32, 33, 63, 64, 129, 4095 };
    static const size_t sizes[] = { 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 63, 64, 65, 255, 4096, 70001 };
    size_t i, j, k;
    for (i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
        for (j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++)
            for (k = 0; k < 5; k++) {
                unsigned char *to = map + offsets[i], *from = source + k;
                size_t size = sizes[j];
                memset(map, 0xa5, offsets[i] + size + 64);
                DONE(gdr_copy_to_mapping(mh, to, from, size));
                DONE(memcmp(to, from, size));
                EQUAL(offsets[i] ? to[-1] : 0xa5, 0xa5);
                EQUAL(to[size], 0xa5);
                memset(seen, 0x5a, size + 64);
                DONE(gdr_copy_from_mapping(mh, seen + k, to, size));
                DONE(memcmp(seen + k, from, size));
                EQUAL(k ? seen[k - 1] : 0x5a, 0x5a);
                EQUAL(seen[k + size], 0x5a);
            }
}

/* Returns the signal that ends a child that loads from an address, or 0. */
static int signal_of_load(const volatile unsigned char *at)
{
    int status = 0;
    pid_t child = fork();
    TRUE(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*at == 0x11 ? 0 : 3);
    }
    EQUAL(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* Old programs call the symbol that the header's macro hides. */
#undef gdr_get_info
struct info_v1 {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t tm_cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1;
    unsigned wc_mapping : 1;
};
#ifdef __cplusplus
extern "C"
#endif
int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *info);

int main(void)
{
    size_t i;
    for (i = 0; i < sizeof(source); i++)
        source[i] = (unsigned char)(i * 31 + (i >> 8));
    gdr_t g = gdr_open();
    TRUE(g);
    int major = 0, minor = 0, value = -1;
    gdr_runtime_get_version(&major, &minor);
    EQUAL(((uint32_t)major << MAJOR_VERSION_SHIFT) | (uint32_t)minor, GDR_API_VERSION);
    DONE(gdr_driver_get_version(g, &major, &minor));
    EQUAL(major, 2);
    EQUAL(minor, 6);
    DONE(gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, &value));
    EQUAL(value, 1);
    DONE(gdr_get_attribute(g, GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE, &value));
    EQUAL(value, 0);
    DONE(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &value));
    EQUAL(value, 0);
    const char *name;
    static const char *const names[] = { "None", "Write Combining", "Caching", "Device" };
    for (i = 0; i < GDR_MAPPING_TYPE_MAX; i++) {
        DONE(gdr_get_mapping_type_string((gdr_mapping_type_t)i, &name));
        DONE(strcmp(name, names[i]));
    }

    /* Unaligned memory: pinned with its pages, but not mappable. */
    gdr_mh_t mh;
    gdr_info_v2_t info;
    DONE(gdr_pin_buffer_v2(g, ADDRESS + GPU_PAGE_SIZE - 1, 2, 0, &mh));
    DONE(gdr_get_info_v2(g, mh, &info));
    EQUAL(info.va, ADDRESS);
    EQUAL(info.mapped_size, 2 * GPU_PAGE_SIZE);
    DONE(gdr_unpin_buffer(g, mh));

    DONE(gdr_pin_buffer(g, ADDRESS, SIZE - 5, 0, 0, &mh));
    DONE(gdr_get_info_v2(g, mh, &info));
    EQUAL(info.va, ADDRESS);
    EQUAL(info.mapped_size, SIZE);
    EQUAL(info.page_size, GPU_PAGE_SIZE);
    EQUAL(info.tm_cycles + info.cycles_per_ms, 0);
    EQUAL(info.mapped, 0);
    EQUAL(info.wc_mapping, 0);
    EQUAL(info.mapping_type, GDR_MAPPING_TYPE_NONE);
    DONE(gdr_get_callback_flag(g, mh, &value));
    EQUAL(value, 0);

    void *at = NULL;
    DONE(gdr_map(g, mh, &at, SIZE));
    EQUAL((uintptr_t)at % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    DONE(gdr_get_info_v2(g, mh, &info));
    EQUAL(info.mapped, 1);
    EQUAL(info.wc_mapping, 1);
    EQUAL(info.mapping_type, GDR_MAPPING_TYPE_WC);
    struct info_v1 old;
    memset(&old, 0xff, sizeof(old));
    DONE(gdr_get_info(g, mh, &old));
    EQUAL(old.va, ADDRESS);
    EQUAL(old.mapped_size, SIZE);
    EQUAL(old.page_size, GPU_PAGE_SIZE);
    EQUAL(old.tm_cycles + old.cycles_per_ms, 0);
    EQUAL(old.mapped, 1);
    EQUAL(old.wc_mapping, 1);
    unsigned char *map = (unsigned char *)at;
    for (i = 0; i < SIZE; i++)
        EQUAL(map[i], 0);
    copies(mh, map);
    DONE(gdr_copy_to_mapping(mh, map, source, SIZE));
    DONE(memcmp(map, source, SIZE));
    DONE(gdr_unmap(g, mh, at, SIZE));
    EQUAL(signal_of_load(map), SIGSEGV);

    /* Maps a part of it again, rounded up to host pages; no byte beyond it is copied. */
    DONE(gdr_map(g, mh, &at, 4097));
    map = (unsigned char *)at;
    DONE(gdr_copy_to_mapping(mh, map + 8191, source, 1));
    EQUAL(gdr_copy_to_mapping(mh, map + 8192, source, 1), EINVAL);
    DONE(gdr_unmap(g, mh, at, 4097));
    DONE(gdr_map(g, mh, &at, SIZE));

    /* Several independent mappings at once. */
    gdr_mh_t second;
    void *second_at = NULL;
    DONE(gdr_pin_buffer(g, ADDRESS + SIZE, 1, 0, 0, &second));
    DONE(gdr_map(g, second, &second_at, 1));
    DONE(gdr_copy_to_mapping(second, second_at, "22", 2));
    DONE(gdr_copy_to_mapping(mh, at, "1", 1));
    EQUAL(gdr_copy_to_mapping(mh, second_at, "3", 1), EINVAL);
    EQUAL(*(char *)second_at, '2');

    /* Unpinning unmaps; closing does both. */
    DONE(gdr_unpin_buffer(g, mh));
    EQUAL(signal_of_load((unsigned char *)at), SIGSEGV);
    EQUAL(*(char *)second_at, '2');
    DONE(gdr_close(g));
    EQUAL(signal_of_load((unsigned char *)second_at), SIGSEGV);
    return 0;
}
