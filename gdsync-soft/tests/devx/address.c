/* One card, one address: what opens a device sees its LID, its GIDs and its files, before and after fork, and in every process.
 * The numbers of queue pairs tell processes apart. */
#define _GNU_SOURCE
#include "devx.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

struct seen {
    struct remote own;
    char file[16], gid[64];
};

static void read_file(const char *name, char *text, size_t size)
{
    int fd = open(name, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t length = read(fd, text, size - 1);
    CHECK(length > 0 && close(fd) == 0);
    text[length] = 0;
}

static struct seen look(struct ibv_qp *qp)
{
    struct seen seen = {.own = remote_of(qp)};
    read_file("/sys/class/infiniband/mlx5_0/ports/1/lid", seen.file, sizeof(seen.file));
    read_file("/sys/class/infiniband/mlx5_0/ports/1/gids/0", seen.gid, sizeof(seen.gid));
    CHECK(strtoul(seen.file, NULL, 16) == seen.own.lid);
    return seen;
}

static void check_same(const struct seen *one, const struct seen *other)
{
    CHECK(one->own.lid == other->own.lid && memcmp(&one->own.gid, &other->own.gid, sizeof(union ibv_gid)) == 0);
    CHECK(strcmp(one->file, other->file) == 0 && strcmp(one->gid, other->gid) == 0);
    CHECK(one->own.number != other->own.number);
}

/* Writes 8 bytes to the other process's queue pair, at an address that both processes have. */
static void write_to(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, uint64_t *memory, uint32_t key)
{
    struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;
    wr.wr.rdma.remote_addr = (uintptr_t)(memory + 1);
    wr.wr.rdma.rkey = key;
    CHECK(ibv_post_send(qp, &wr, &bad) == 0);
    while (ibv_poll_cq(cq, 1, &wc) == 0) {}
    CHECK(wc.status == IBV_WC_SUCCESS);
}

int main(void)
{
    struct message {
        struct seen seen;
        uint32_t key;
    } own = {0}, peer;
    int to_child[2], to_parent[2];
    uint64_t *memory = pages(PAGE);
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    int in = child ? to_parent[0] : to_child[0], out = child ? to_child[1] : to_parent[1];

    struct ibv_context *context = open_device(), *again = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_port_attr port;
    CHECK(pd && cq && mr && ibv_query_port(again, 1, &port) == 0);
    struct ibv_qp *qp = create_rc(pd, cq, 0);
    own.seen = look(qp);
    CHECK(port.lid == own.seen.own.lid);
    own.key = mr->rkey;
    CHECK(write(out, &own, sizeof(own)) == sizeof(own) && read(in, &peer, sizeof(peer)) == sizeof(peer));
    check_same(&own.seen, &peer.seen);
    connect_rc(qp, &peer.seen.own);
    CHECK(write(out, "", 1) == 1 && read(in, &peer.seen.file, 1) == 1);
    memory[0] = child ? 11 : 22;
    write_to(qp, cq, mr, memory, peer.key);
    while (__atomic_load_n(&memory[1], __ATOMIC_ACQUIRE) == 0) {}
    CHECK(memory[1] == (child ? 22 : 11));
    CHECK(write(out, "", 1) == 1 && read(in, &peer.seen.file, 1) == 1);

    if (child) {
        /* A child that is born with the device open opens it again. */
        int status;
        pid_t late = fork();
        if (late == 0) {
            struct ibv_context *own_context = open_device();
            struct ibv_pd *own_pd = ibv_alloc_pd(own_context);
            struct ibv_cq *own_cq = ibv_create_cq(own_context, 4, NULL, NULL, 0);
            CHECK(own_pd && own_cq);
            struct seen seen = look(create_rc(own_pd, own_cq, 0));
            check_same(&own.seen, &seen);
            _exit(0);
        }
        CHECK(waitpid(late, &status, 0) == late && status == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(again) == 0 && ibv_close_device(context) == 0);
    return 0;
}
