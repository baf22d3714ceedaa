/* A device that is open across a fork: parent and children use it at once, each with other objects. */
#define _GNU_SOURCE
#include "devx.h"
#include <sys/wait.h>
#include <unistd.h>

/* libmlx5 shares its first doorbell registers among 16 queue pairs; these need more of them than the parent has. */
enum { CHILDREN = 3, PAIRS = 12, ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

struct objects {
    struct ibv_comp_channel *channel;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_dm *dm;
    struct ibv_mr *mr, *dm_mr;
    struct ibv_qp *left[PAIRS], *right[PAIRS];
    uint64_t *memory;
    int pairs;
};

static struct objects make(struct ibv_context *context, int pairs)
{
    struct objects made = {.memory = pages(PAGE), .pairs = pairs};
    struct ibv_alloc_dm_attr attributes = {.length = PAGE};
    CHECK(made.pd = ibv_alloc_pd(context));
    CHECK(made.channel = ibv_create_comp_channel(context));
    CHECK(made.cq = ibv_create_cq(context, 4, NULL, made.channel, 0));
    CHECK(made.mr = ibv_reg_mr(made.pd, made.memory, PAGE, ACCESS));
    CHECK(made.dm = ibv_alloc_dm(context, &attributes));
    CHECK(made.dm_mr = ibv_reg_dm_mr(made.pd, made.dm, 0, PAGE, ACCESS | IBV_ACCESS_ZERO_BASED));
    for (int i = 0; i < pairs; i++) {
        made.left[i] = create_rc(made.pd, made.cq, 1);
        made.right[i] = create_rc(made.pd, made.cq, 1);
        struct remote left = remote_of(made.left[i]), right = remote_of(made.right[i]);
        connect_rc(made.left[i], &right);
        connect_rc(made.right[i], &left);
    }
    return made;
}

static void writes(struct objects *of, struct ibv_qp *qp, struct ibv_mr *to, uint64_t address)
{
    struct ibv_sge sge = {.addr = (uintptr_t)of->memory, .length = 8, .lkey = of->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    struct ibv_cq *of_event;
    struct ibv_wc wc;
    void *context;
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = to->rkey;
    CHECK(ibv_req_notify_cq(of->cq, 0) == 0 && ibv_post_send(qp, &wr, &bad) == 0);
    CHECK(ibv_get_cq_event(of->channel, &of_event, &context) == 0 && of_event == of->cq);
    ibv_ack_cq_events(of->cq, 1);
    CHECK(ibv_poll_cq(of->cq, 1, &wc) == 1);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == qp->qp_num);
}

/* Moves values of this process through device memory and every queue pair. */
static void use(struct objects *of, uint64_t value)
{
    uint64_t word = value;
    CHECK(ibv_memcpy_to_dm(of->dm, 64, &word, 8) == 0);
    for (int i = 0; i < of->pairs; i++) {
        of->memory[0] = ++value;
        writes(of, of->left[i], of->mr, (uintptr_t)(of->memory + 1));
        CHECK(of->memory[1] == value);
        writes(of, of->right[i], of->dm_mr, 8);
        CHECK(ibv_memcpy_from_dm(&word, of->dm, 8, 8) == 0 && word == value);
    }
    CHECK(ibv_memcpy_from_dm(&word, of->dm, 64, 8) == 0 && word == value - of->pairs);
}

static void destroy(struct objects *of)
{
    for (int i = 0; i < of->pairs; i++)
        CHECK(ibv_destroy_qp(of->left[i]) == 0 && ibv_destroy_qp(of->right[i]) == 0);
    CHECK(ibv_dereg_mr(of->dm_mr) == 0 && ibv_free_dm(of->dm) == 0 && ibv_dereg_mr(of->mr) == 0);
    CHECK(ibv_destroy_cq(of->cq) == 0 && ibv_destroy_comp_channel(of->channel) == 0 && ibv_dealloc_pd(of->pd) == 0);
}

/* The parent's objects are none of the child's, which cannot harm them. */
static void spares(const struct objects *parents)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    struct ibv_qp_init_attr initial;
    struct ibv_sge sge = {.addr = (uintptr_t)parents->memory, .length = 8, .lkey = parents->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    CHECK(!ibv_reg_mr(parents->pd, parents->memory, PAGE, ACCESS) && errno == EINVAL);
    CHECK(!ibv_reg_dm_mr(parents->pd, parents->dm, 0, PAGE, ACCESS | IBV_ACCESS_ZERO_BASED) && errno == ENOENT);
    CHECK(!ibv_create_cq(parents->cq->context, 4, NULL, parents->channel, 0));
    CHECK(ibv_modify_qp(parents->left[0], &attributes, IBV_QP_STATE) == EINVAL);
    CHECK(ibv_query_qp(parents->left[0], &attributes, IBV_QP_STATE, &initial) == EINVAL);
    CHECK(ibv_destroy_qp(parents->right[0]) == ENOENT);
    /* It only writes to the child's copy of the queue. */
    wr.wr.rdma.remote_addr = (uintptr_t)(parents->memory + 1);
    wr.wr.rdma.rkey = parents->mr->rkey;
    CHECK(ibv_post_send(parents->left[0], &wr, &bad) == 0);
}

static void child(struct ibv_context *context, const struct objects *parents, uint64_t value, int ready[2], int go[2])
{
    char byte;
    CHECK(close(ready[0]) == 0 && close(go[1]) == 0);
    struct objects own = make(context, PAIRS);
    use(&own, value);
    CHECK(write(ready[1], "", 1) == 1 && close(ready[1]) == 0 && read(go[0], &byte, 1) == 1);
    spares(parents);
    use(&own, value);
    destroy(&own);
    CHECK(ibv_close_device(context) == 0);
    exit(0);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct objects own = make(context, 1);
    int ready[2], go[2], status;
    pid_t children[CHILDREN];
    char byte;
    use(&own, 7);
    CHECK(pipe(ready) == 0 && pipe(go) == 0);
    for (int i = 0; i < CHILDREN; i++)
        if ((children[i] = fork()) == 0)
            child(context, &own, 1000 * (i + 1), ready, go);
    /* A process that ends without writing causes an end of file. */
    CHECK(close(ready[1]) == 0 && close(go[0]) == 0);
    /* All cards run at once. */
    for (int i = 0; i < CHILDREN; i++)
        CHECK(read(ready[0], &byte, 1) == 1);
    use(&own, 70);
    CHECK(write(go[1], "abc", CHILDREN) == CHILDREN);
    use(&own, 700);
    for (int i = 0; i < CHILDREN; i++)
        CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
    use(&own, 7000);
    struct objects more = make(context, PAIRS);
    use(&more, 70000);
    destroy(&more);
    destroy(&own);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
