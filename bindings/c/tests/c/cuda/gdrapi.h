/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * A substitute for gdrcopy's header.
 */
#ifndef GDSYNC_TEST_GDRAPI_H
#define GDSYNC_TEST_GDRAPI_H

typedef struct gdr_mh_s {
    unsigned long h;
} gdr_mh_t;

#endif
