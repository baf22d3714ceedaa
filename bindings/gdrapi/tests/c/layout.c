/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Prints the sizes, offsets and values of the header, one per line. C11 and C++17.
 */
#include "gdrapi.h"
#include "gdrconfig.h"
#include <stdio.h>
#include <string.h>

#define VALUE(name) printf(#name " %lld\n", (long long)(name))
#define FIELD(type, field) printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))
#define SIZE(type) printf(#type " %zu\n", sizeof(type))

/* Prints the index of the 32-bit word that contains a bit field, and the field's value in it. */
static void bit(const char *name, const gdr_info_v2_t *info)
{
    unsigned words[sizeof(*info) / 4], i;
    memcpy(words, info, sizeof(*info));
    for (i = 0; i < sizeof(*info) / 4; i++)
        if (words[i])
            printf("%s %u %u\n", name, i * 4, words[i]);
}

int main(void)
{
    gdr_info_v2_t info;
    SIZE(gdr_t);
    SIZE(gdr_mh_t);
    FIELD(gdr_mh_t, h);
    SIZE(gdr_info_v2_t);
    SIZE(gdr_info_t);
    FIELD(gdr_info_v2_t, va);
    FIELD(gdr_info_v2_t, mapped_size);
    FIELD(gdr_info_v2_t, page_size);
    FIELD(gdr_info_v2_t, tm_cycles);
    FIELD(gdr_info_v2_t, cycles_per_ms);
    FIELD(gdr_info_v2_t, mapping_type);
    memset(&info, 0, sizeof(info));
    info.mapped = 1;
    bit("mapped", &info);
    memset(&info, 0, sizeof(info));
    info.wc_mapping = 1;
    bit("wc_mapping", &info);
    SIZE(gdr_pin_flags_t);
    SIZE(gdr_map_flags_t);
    SIZE(gdr_mapping_type_t);
    SIZE(gdr_attr_t);
    VALUE(GDR_API_MAJOR_VERSION);
    VALUE(GDR_API_MINOR_VERSION);
    VALUE(GDR_API_VERSION);
    VALUE(MINIMUM_GDRDRV_VERSION);
    VALUE(MAJOR_VERSION_SHIFT);
    VALUE(MINOR_VERSION_MASK);
    VALUE(GPU_PAGE_SHIFT);
    VALUE(GPU_PAGE_SIZE);
    VALUE(GPU_PAGE_OFFSET);
    VALUE(GPU_PAGE_MASK);
    VALUE(GDR_PIN_FLAG_DEFAULT);
    VALUE(GDR_PIN_FLAG_FORCE_PCIE);
    VALUE(GDR_MAPPING_TYPE_NONE);
    VALUE(GDR_MAPPING_TYPE_WC);
    VALUE(GDR_MAPPING_TYPE_CACHING);
    VALUE(GDR_MAPPING_TYPE_DEVICE);
    VALUE(GDR_MAPPING_TYPE_MAX);
    VALUE(GDR_MAP_FLAG_DEFAULT);
    VALUE(GDR_MAP_FLAG_REQ_WC_MAPPING);
    VALUE(GDR_MAP_FLAG_REQ_CACHE_MAPPING);
    VALUE(GDR_MAP_FLAG_REQ_DEVICE_MAPPING);
    VALUE(GDR_ATTR_USE_PERSISTENT_MAPPING);
    VALUE(GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE);
    VALUE(GDR_ATTR_USING_DMA_BUF_MMAP);
    VALUE(GDR_ATTR_MAX);
    return 0;
}
