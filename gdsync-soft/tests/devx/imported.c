/* The objects of a device that another part of the program has opened, by a copy of its descriptor. */
#include "devx.h"
#include <unistd.h>

enum { ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };

int main(void)
{
    struct ibv_context *context = open_device(), *imported;
    struct ibv_alloc_dm_attr attributes = {.length = PAGE};
    struct ibv_pd *pd, *other_pd;
    struct ibv_mr *mr, *other_mr;
    struct ibv_dm *dm, *other_dm;
    struct ibv_device_attr of, of_imported;
    uint8_t *memory = pages(PAGE);
    uint64_t word = 0x0123456789abcdef;
    int copy;

    CHECK(pd = ibv_alloc_pd(context));
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, ACCESS));
    CHECK(dm = ibv_alloc_dm(context, &attributes));
    CHECK(ibv_memcpy_to_dm(dm, 8, &word, 8) == 0);

    CHECK((copy = dup(context->cmd_fd)) >= 0);
    CHECK(imported = ibv_import_device(copy));
    CHECK(ibv_query_device(context, &of) == 0 && ibv_query_device(imported, &of_imported) == 0);
    CHECK(of.node_guid == of_imported.node_guid && of.max_qp_wr == of_imported.max_qp_wr);

    CHECK(other_pd = ibv_import_pd(imported, pd->handle));
    CHECK(other_mr = ibv_import_mr(other_pd, mr->handle));
    CHECK(other_mr->lkey == mr->lkey && other_mr->rkey == mr->rkey && other_mr->length == PAGE);
    CHECK(other_dm = ibv_import_dm(imported, dm->handle));
    word = 0;
    CHECK(ibv_memcpy_from_dm(&word, other_dm, 8, 8) == 0 && word == 0x0123456789abcdef);
    CHECK(!ibv_import_mr(other_pd, mr->handle + 1000) && errno == ENOENT);

    /* Queue pairs of the imported context are used with the region of the first. */
    struct ibv_cq *cq;
    struct ibv_qp *left, *right;
    CHECK(cq = ibv_create_cq(imported, 4, NULL, NULL, 0));
    left = create_rc(other_pd, cq, 1);
    right = create_rc(other_pd, cq, 1);
    struct remote to_left = remote_of(left), to_right = remote_of(right);
    connect_rc(left, &to_right);
    connect_rc(right, &to_left);
    memory[0] = 7;
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;
    int polled;
    wr.wr.rdma.remote_addr = (uintptr_t)memory + 1;
    wr.wr.rdma.rkey = other_mr->rkey;
    CHECK(ibv_post_send(left, &wr, &bad) == 0);
    while ((polled = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS && memory[1] == 7);

    /* Imported objects go first, as they name the others; the device stays open by its copy. */
    CHECK(ibv_destroy_qp(left) == 0 && ibv_destroy_qp(right) == 0 && ibv_destroy_cq(cq) == 0);
    ibv_unimport_dm(other_dm);
    ibv_unimport_mr(other_mr);
    ibv_unimport_pd(other_pd);
    CHECK(ibv_free_dm(dm) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(imported) == 0 && ibv_close_device(context) == 0);
    return 0;
}
