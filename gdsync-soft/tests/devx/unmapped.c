/* Registered memory that the program unmaps, protects, moves or truncates: the card has pinned the pages. */
#define _GNU_SOURCE
#include "devx.h"
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 16 * PAGE, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static enum ibv_wc_status complete(struct ibv_qp *qp, enum ibv_wr_opcode opcode, void *local, uint32_t lkey, uint64_t remote,
                                   uint32_t rkey)
{
    struct ibv_sge sge = {(uintptr_t)local, LENGTH, lkey};
    struct ibv_send_wr wr = {.opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = {remote, rkey}}, *bad;
    struct ibv_wc wc;
    int count;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
        ;
    CHECK(count == 1);
    return wc.status;
}

/* Transfers between two new queue pairs, as an error ends them. */
static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, void *local, uint32_t lkey, void *remote, uint32_t rkey)
{
    struct ibv_qp *qp = create_rc(pd, cq, 1), *peer = create_rc(pd, cq, 1);
    struct remote ends[] = {remote_of(qp), remote_of(peer)};
    enum ibv_wc_status status;
    connect_rc(qp, &ends[1]);
    connect_rc(peer, &ends[0]);
    status = complete(qp, opcode, local, lkey, (uintptr_t)remote, rkey);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
    return status;
}

static struct ibv_mr *reg(void *memory)
{
    struct ibv_mr *region = ibv_reg_mr(pd, memory, LENGTH, ALL);
    CHECK(region);
    return region;
}

static void open_all(void)
{
    CHECK((context = open_device()) && (pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 4, NULL, NULL, 0)));
}

static void close_all(void)
{
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* Replaces pages by a system call that the card does not see. An empty file keeps other mappings away. */
static void lose(void *memory)
{
    int file = memfd_create("empty", 0);
    CHECK(file >= 0);
    CHECK(syscall(SYS_mmap, memory, LENGTH, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == (long)memory);
}

/* A process whose registered memory is gone outlives a READ by its peer. */
static void two_processes(void)
{
    struct end {
        struct remote remote;
        uint64_t address;
        uint32_t rkey;
    } own = {0}, other;
    int to_child[2], to_parent[2], status;
    pid_t child;
    char *memory;
    struct ibv_mr *region;
    struct ibv_qp *qp;
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0 && (child = fork()) >= 0);
    int in = child ? to_parent[0] : to_child[0], out = child ? to_child[1] : to_parent[1];
    open_all();
    region = reg(memory = pages(LENGTH));
    qp = create_rc(pd, cq, 1);
    own = (struct end){remote_of(qp), (uintptr_t)memory, region->rkey};
    if (!child)
        lose(memory);
    CHECK(write(out, &own, sizeof own) == sizeof own && read(in, &other, sizeof other) == sizeof other);
    connect_rc(qp, &other.remote);
    /* Both are connected. */
    CHECK(write(out, "", 1) == 1 && read(in, &status, 1) == 1);
    if (child)
        CHECK(complete(qp, IBV_WR_RDMA_READ, memory, region->lkey, other.address, other.rkey) == IBV_WC_REM_ACCESS_ERR);
    /* The child stays until the parent is done. */
    CHECK(child ? write(out, "", 1) == 1 : read(in, &status, 1) == 1);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(region) == 0);
    close_all();
    if (!child)
        exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
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
    two_processes();
    open_all();
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

    /* A mapping that the system refuses leaves the memory as it is. */
    region = reg(memory = pages(LENGTH));
    memset(memory, 4, LENGTH);
    CHECK(mmap(memory, LENGTH, PROT_READ, MAP_SHARED | MAP_FIXED, 9999, 0) == MAP_FAILED && errno == EBADF);
    CHECK(is_all(memory, 4));
    /* Shrunk to a part of a page. */
    CHECK(mremap(memory, LENGTH, LENGTH / 2 - 100, 0) == memory);
    CHECK(transfer(IBV_WR_RDMA_READ, back, into->lkey, memory, region->rkey) == IBV_WC_SUCCESS && is_all(back, 4));
    CHECK(ibv_dereg_mr(region) == 0 && munmap(memory, LENGTH / 2) == 0);

    /* Gone. */
    region = reg(memory = pages(LENGTH));
    lose(memory);
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

    CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(into) == 0);
    close_all();
    return 0;
}
