/* Prints the file of the function that ibv_poll_cq calls. */

#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <string.h>

int main(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    CHECK(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_wc completion;
    CHECK(ibv_poll_cq(cq, 1, &completion) == 0);
    Dl_info info;
    CHECK(dladdr((void *)context->ops.poll_cq, &info));
    puts(strrchr(info.dli_fname, '/') + 1);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_close_device(context) == 0);
    ibv_free_device_list(devices);
    return 0;
}
