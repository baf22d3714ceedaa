/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Calls every function with every wrong argument, and checks its result. The backend is the stand-in.
 */
#include "common.h"

#define ADDRESS 0x7f0000200000UL
#define SIZE (2 * GPU_PAGE_SIZE)

static int failed;

/* Reports a call with an unexpected result. */
static void expect(int line, const char *call, int found, int wanted)
{
    if (found != wanted) {
        fprintf(stderr, "line %d: %s returned %d, not %d\n", line, call, found, wanted);
        failed = 1;
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, call, wanted)

int main(void)
{
    gdr_t g = gdr_open(), other = gdr_open(), gone = gdr_open();
    TRUE(g && other && gone && g != other);
    EXPECT(0, gdr_close(gone));
    gdr_t none = NULL, wild = (gdr_t)(uintptr_t)0xdeadbeefUL;
    gdr_mh_t mh = { 0 }, freed = { 0 }, null = { 0 }, odd = { ~0UL }, unaligned = { 0 };
    void *at = NULL;
    char bytes[64] = { 0 };
    int major = -1, minor = -1, value = -1;
    gdr_info_t info;
    const char *text = NULL;

    /* Open and close. */
    EXPECT(EINVAL, gdr_close(none));
    EXPECT(EINVAL, gdr_close(gone));
    EXPECT(EINVAL, gdr_close(wild));

    /* Pin. */
    EXPECT(EINVAL, gdr_pin_buffer(none, ADDRESS, SIZE, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(gone, ADDRESS, SIZE, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(wild, ADDRESS, SIZE, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, NULL));
    EXPECT(EINVAL, gdr_pin_buffer(g, ADDRESS, 0, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(g, ADDRESS, SIZE, 1, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(g, ADDRESS, SIZE, 0, 1, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(g, ~0UL, 2, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer(g, ADDRESS, SIZE_MAX, 0, 0, &mh));
    EXPECT(ENOMEM, gdr_pin_buffer(g, 0, (size_t)1 << 61, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(g, ADDRESS, SIZE, GDR_PIN_FLAG_FORCE_PCIE, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(g, ADDRESS, SIZE, 2, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(g, ADDRESS, SIZE, ~0u, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(none, ADDRESS, SIZE, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(g, ADDRESS, 0, 0, &mh));
    EXPECT(EINVAL, gdr_pin_buffer_v2(g, ADDRESS, SIZE, 0, NULL));
    EQUAL(mh.h, 0);
    EXPECT(0, gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, &mh));
    EXPECT(0, gdr_pin_buffer_v2(g, ADDRESS + 4096, 4, GDR_PIN_FLAG_DEFAULT, &unaligned));
    EXPECT(0, gdr_pin_buffer(g, ADDRESS, SIZE, 0, 0, &freed));
    TRUE(mh.h && unaligned.h && freed.h && mh.h != freed.h);

    /* Unpin. */
    EXPECT(0, gdr_unpin_buffer(g, freed));
    EXPECT(EINVAL, gdr_unpin_buffer(g, freed));
    EXPECT(EINVAL, gdr_unpin_buffer(g, null));
    EXPECT(EINVAL, gdr_unpin_buffer(g, odd));
    EXPECT(EINVAL, gdr_unpin_buffer(none, mh));
    EXPECT(EINVAL, gdr_unpin_buffer(other, mh));
    EXPECT(EINVAL, gdr_unpin_buffer(gone, mh));

    /* Not mapped yet. */
    EXPECT(EINVAL, gdr_unmap(g, mh, bytes, SIZE));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, bytes, bytes, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, bytes, bytes, 0));

    /* Map. */
    EXPECT(EINVAL, gdr_map(none, mh, &at, SIZE));
    EXPECT(EINVAL, gdr_map(other, mh, &at, SIZE));
    EXPECT(EINVAL, gdr_map(g, null, &at, SIZE));
    EXPECT(EINVAL, gdr_map(g, freed, &at, SIZE));
    EXPECT(EINVAL, gdr_map(g, mh, NULL, SIZE));
    EXPECT(EINVAL, gdr_map(g, mh, &at, 0));
    EXPECT(EINVAL, gdr_map(g, mh, &at, SIZE + 1));
    EXPECT(EINVAL, gdr_map(g, mh, &at, SIZE_MAX));
    EXPECT(EINVAL, gdr_map(g, unaligned, &at, 4));
    EXPECT(EINVAL, gdr_map_v2(g, mh, &at, SIZE, -1));
    EXPECT(EINVAL, gdr_map_v2(g, mh, &at, SIZE, 4));
    EXPECT(EINVAL, gdr_map_v2(g, mh, &at, SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING));
    EXPECT(EINVAL, gdr_map_v2(g, mh, &at, SIZE, GDR_MAP_FLAG_REQ_DEVICE_MAPPING));
    TRUE(at == NULL);
    EXPECT(0, gdr_map_v2(g, mh, &at, SIZE, GDR_MAP_FLAG_REQ_WC_MAPPING));
    TRUE(at != NULL);
    EXPECT(EAGAIN, gdr_map(g, mh, &at, SIZE));
    EXPECT(EAGAIN, gdr_map_v2(g, mh, &at, SIZE, GDR_MAP_FLAG_REQ_CACHE_MAPPING));

    /* Copies. */
    char *map = (char *)at;
    EXPECT(EINVAL, gdr_copy_to_mapping(null, map, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(freed, map, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(odd, map, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map, NULL, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, NULL, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map - 1, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map + SIZE - 7, bytes, 8));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map + SIZE, bytes, 1));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map + 8, bytes, SIZE_MAX - 4));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, bytes, bytes, 8));
    EXPECT(0, gdr_copy_to_mapping(mh, map + SIZE - 8, bytes, 8));
    EXPECT(0, gdr_copy_to_mapping(mh, NULL, NULL, 0));
    EXPECT(EINVAL, gdr_copy_from_mapping(null, bytes, map, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(freed, bytes, map, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, NULL, map, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, bytes, NULL, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, bytes, map - 1, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, bytes, map + SIZE - 7, 8));
    EXPECT(EINVAL, gdr_copy_from_mapping(mh, bytes, map + 8, SIZE_MAX - 4));
    EXPECT(0, gdr_copy_from_mapping(mh, bytes, map + SIZE - 8, 8));
    EXPECT(0, gdr_copy_from_mapping(mh, NULL, NULL, 0));

    /* Queries. */
    EXPECT(EINVAL, gdr_get_info(none, mh, &info));
    EXPECT(EINVAL, gdr_get_info(other, mh, &info));
    EXPECT(EINVAL, gdr_get_info(g, freed, &info));
    EXPECT(EINVAL, gdr_get_info(g, mh, NULL));
    EXPECT(EINVAL, gdr_get_callback_flag(none, mh, &value));
    EXPECT(EINVAL, gdr_get_callback_flag(g, freed, &value));
    EXPECT(EINVAL, gdr_get_callback_flag(g, mh, NULL));
    EXPECT(EINVAL, gdr_get_attribute(none, GDR_ATTR_USE_PERSISTENT_MAPPING, &value));
    EXPECT(EINVAL, gdr_get_attribute(gone, GDR_ATTR_USE_PERSISTENT_MAPPING, &value));
    EXPECT(EINVAL, gdr_get_attribute(g, GDR_ATTR_USE_PERSISTENT_MAPPING, NULL));
    EXPECT(EINVAL, gdr_get_attribute(g, (gdr_attr_t)0, &value));
    EXPECT(EINVAL, gdr_get_attribute(g, GDR_ATTR_MAX, &value));
    EXPECT(EINVAL, gdr_driver_get_version(none, &major, &minor));
    EXPECT(EINVAL, gdr_driver_get_version(gone, &major, &minor));
    EXPECT(EINVAL, gdr_driver_get_version(g, NULL, &minor));
    EXPECT(EINVAL, gdr_driver_get_version(g, &major, NULL));
    EXPECT(EINVAL, gdr_get_mapping_type_string(GDR_MAPPING_TYPE_MAX, &text));
    EXPECT(EINVAL, gdr_get_mapping_type_string((gdr_mapping_type_t)99, &text));
    EXPECT(EINVAL, gdr_get_mapping_type_string(GDR_MAPPING_TYPE_WC, NULL));
    EQUAL(value, -1);
    EQUAL(major, -1);
    EQUAL(minor, -1);
    TRUE(text == NULL);
    gdr_runtime_get_version(NULL, NULL);
    gdr_runtime_get_version(NULL, &minor);
    EQUAL(minor, GDR_API_MINOR_VERSION);

    /* Unmap. */
    EXPECT(EINVAL, gdr_unmap(none, mh, at, SIZE));
    EXPECT(EINVAL, gdr_unmap(other, mh, at, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, null, at, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, freed, at, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, mh, NULL, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, mh, map + 4096, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, mh, at, 0));
    EXPECT(EINVAL, gdr_unmap(g, mh, at, SIZE + 1));
    EXPECT(0, gdr_unmap(g, mh, at, SIZE));
    EXPECT(EINVAL, gdr_unmap(g, mh, at, SIZE));
    EXPECT(0, gdr_unpin_buffer(g, mh));
    EXPECT(EINVAL, gdr_unmap(g, mh, at, SIZE));
    EXPECT(EINVAL, gdr_copy_to_mapping(mh, map, bytes, 8));

    /* Closing the library unpins the rest. */
    EXPECT(0, gdr_close(g));
    EXPECT(EINVAL, gdr_unpin_buffer(g, unaligned));
    EXPECT(EINVAL, gdr_copy_to_mapping(unaligned, map, bytes, 8));
    EXPECT(EINVAL, gdr_close(g));
    EXPECT(0, gdr_close(other));
    return failed;
}
