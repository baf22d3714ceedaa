/* Registered memory that the program unmaps, protects, moves or truncates: the card has pinned the pages. */
#define _GNU_SOURCE
#include "devx.h"
#include <sys/syscall.h>
#include <unistd.h>

enum { LENGTH = 16 * PAGE, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* Transfers by two queue pairs of its own, as an error ends them. */
static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, void *local, uint32_t lkey, void *remote, uint32_t rkey)
{
    struct ibv_qp *qp = create_rc(pd, cq, 1), *peer = create_rc(pd, cq, 1);
    struct ibv_sge sge = {(uintptr_t)local, LENGTH, lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = {(uintptr_t)remote, rkey}}, *bad;
    struct ibv_wc wc;
    int count;
    connect_rc(qp, peer->qp_num);
    connect_rc(peer, qp->qp_num);
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(count == 1 && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
    return wc.status;
}

static struct ibv_mr *reg(void *memory)
{
    struct ibv_mr *region = ibv_reg_mr(pd, memory, LENGTH, ALL);
    CHECK(region);
    return region;
}

static int is_all(const char *memory, char value)
{
    for (size_t i = 0; i < LENGTH; i++)
        if (memory[i] != value)
            return 0;
    return 1;
}

int main(void)
{
    char *own = pages(LENGTH), *back = pages(LENGTH), *memory, *moved;
    struct ibv_mr *from, *into, *region;
    int file;
    CHECK((context = open_device()) && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 4, NULL, NULL, 0)));
    from = reg(own), into = reg(back);
    memset(own, 5, LENGTH);

    /* Protected. */
    region = reg(memory = pages(LENGTH));
    CHECK(mprotect(memory, LENGTH, PROT_READ) == 0);
    CHECK(transfer(IBV_WR_RDMA_WRITE, own, from->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(memory, 5));
    CHECK(mprotect(memory, LENGTH, PROT_NONE) == 0);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(back, 5));

    /* Moved, then unmapped: the card still reads what was there. */
    CHECK(mprotect(memory, LENGTH, PROT_READ | PROT_WRITE) == 0);
    memset(memory, 6, LENGTH);
    CHECK((moved = mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, pages(LENGTH))) != MAP_FAILED);
    CHECK(moved != memory);
    memset(moved, 7, LENGTH);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(back, 7));
    CHECK(munmap(moved, LENGTH) == 0);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(back, 7));

    /* Other memory at the same place is not the region's. */
    CHECK(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
    CHECK(transfer(IBV_WR_RDMA_WRITE, own, from->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(memory, 0));
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(back, 5));
    CHECK(ibv_dereg_mr(region) == 0 && munmap(memory, LENGTH) == 0);

    /* Replaced by a system call that nobody sees: gone. An empty file keeps other mappings away. */
    region = reg(memory = pages(LENGTH));
    CHECK((file = memfd_create("empty", 0)) >= 0);
    CHECK(syscall(SYS_mmap, memory, LENGTH, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == (long)memory);
    CHECK(transfer(IBV_WR_RDMA_WRITE, own, from->lkey, memory, region->rkey) == IBV_WC_SUCCESS);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(transfer(IBV_WR_RDMA_WRITE, memory, region->lkey, back, into->rkey) == IBV_WC_LOC_PROT_ERR);
    CHECK(ibv_dereg_mr(region) == 0);

    /* Beyond the end of its file. */
    CHECK((file = memfd_create("shrinks", 0)) >= 0 && ftruncate(file, LENGTH) == 0);
    CHECK((memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) != MAP_FAILED);
    region = reg(memory);
    CHECK(ftruncate(file, PAGE) == 0);
    CHECK(transfer(IBV_WR_RDMA_WRITE, own, from->lkey, memory, region->rkey) == IBV_WC_SUCCESS);
    CHECK(memory[0] == 5 && memory[PAGE - 1] == 5);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dereg_mr(region) == 0 && munmap(memory, LENGTH) == 0);

    CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(into) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
