/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Includes every header, and uses it as programs of libgdsync do.
 */
#include <gdsync.h>
#include <gdsync/tools.h>
#include <gdsync/mlx5.h>
#include <gdsync/ext.h>
#include <gdsync/team.h>
#include <gdsync/device.cuh>

int main(void) {
    int version = 0;
    gds_qp_init_attr_t attr = {};
    gds_send_wr wr = {};
    (void)attr;
    (void)wr;
    if (gds_query_param(GDS_PARAM_VERSION, &version) != 0 || !GDS_API_VERSION_COMPATIBLE(version)) {
        return 1;
    }
    return (unsigned)version == GDS_API_VERSION ? 0 : 1;
}

static_assert(sizeof(gdsync::isem32_t) >= sizeof(uint32_t *), "a pointer and a value");
static_assert(gdsync::ERROR_TIMEOUT == 11 && gdsync::ERROR_INVALID == 22, "libgdsync's numbers");
static_assert(sizeof(gdsync_device_qp) > 0 && gdsync::status::ok != gdsync::status::failed, "the verbs are there, too");
