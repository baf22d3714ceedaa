/* Small data inside completion entries: libmlx5 asks for it, and copies it where the work request says. */
#include "devx.h"

/* Waits for entry `index` of a queue, and returns whether it has data inside. */
static int has_data(const struct mlx5dv_cq *cq, unsigned index)
{
    /* The second half of an entry of 128 bytes. */
    const uint8_t *end = (const uint8_t *)cq->buf + (index % cq->cqe_cnt + 1) * cq->cqe_size;
    const struct mlx5_cqe64 *cqe = (const struct mlx5_cqe64 *)end - 1;
    volatile const uint8_t *op_own = &cqe->op_own;

    while (*op_own >> 4 == MLX5_CQE_INVALID || (*op_own & 1) != (index / cq->cqe_cnt & 1))
        ;
    CHECK((*op_own >> 2 & 3) != (cq->cqe_size == 128 ? 1 : 2));
    return (*op_own >> 2 & 3) != 0;
}

/* Expects the next completion, with data inside the entry or without. */
static void expect(struct ibv_cq *cq, const struct mlx5dv_cq *ring, unsigned index, int inside)
{
    struct ibv_wc completion;

    CHECK(has_data(ring, index) == inside);
    CHECK(ibv_poll_cq(cq, 1, &completion) == 1);
    CHECK(completion.status == IBV_WC_SUCCESS);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    uint8_t *memory = pages(PAGE);
    struct ibv_mr *mr;
    int signal_all;

    CHECK(pd);
    CHECK(mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                                IBV_ACCESS_REMOTE_WRITE));
    for (signal_all = 0; signal_all < 2; signal_all++) {
        struct ibv_cq *cq = ibv_create_cq(context, 15, NULL, NULL, 0);
        struct ibv_qp *qp = connect_to_itself(pd, cq, signal_all);
        struct mlx5dv_cq ring;
        struct mlx5dv_obj object = {.cq = {.in = cq, .out = &ring}};
        /* Two pieces, so that libmlx5 has to find both. */
        struct ibv_sge into[2] = {{(uintptr_t)memory, 5, mr->lkey}, {(uintptr_t)memory + 64, 200, mr->lkey}};
        struct ibv_sge from = {(uintptr_t)memory + 1024, 32, mr->lkey};
        struct ibv_recv_wr receive = {.sg_list = into, .num_sge = 2}, *bad_receive;
        struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
        struct ibv_send_wr *bad;
        uint64_t *counter = (uint64_t *)(memory + 2048), one = 1;
        unsigned index = 0, room, i;

        CHECK(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ) == 0);
        room = ring.cqe_size == 128 ? 64 : 32;
        for (i = 0; i < 128; i++)
            memory[1024 + i] = (uint8_t)(i + 1 + signal_all);
        for (from.length = room - 1; from.length <= room + 1; from.length++) {
            memset(memory, 0, 512);
            CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0);
            CHECK(ibv_post_send(qp, &send, &bad) == 0);
            expect(cq, &ring, index++, from.length <= room);
            expect(cq, &ring, index++, 0);
            CHECK(memcmp(memory, memory + 1024, 5) == 0);
            CHECK(memcmp(memory + 64, memory + 1024 + 5, from.length - 5) == 0);
            CHECK(memory[64 + from.length - 5] == 0);
        }
        /* Results are inside only if every send writes an entry, and not in entries of 128 bytes, in which libmlx5 reads
         * them at the wrong place. */
        memset(memory, 0, 512);
        send.opcode = IBV_WR_RDMA_READ;
        send.sg_list = into;
        send.num_sge = 2;
        into[1].length = 11;
        send.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
        send.wr.rdma.rkey = mr->rkey;
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
        expect(cq, &ring, index++, signal_all && ring.cqe_size == 64);
        CHECK(memcmp(memory, memory + 1024, 5) == 0 && memcmp(memory + 64, memory + 1024 + 5, 11) == 0);
        *counter = 41;
        from.addr = (uintptr_t)memory + 256;
        from.length = 8;
        send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        send.sg_list = &from;
        send.num_sge = 1;
        send.wr.atomic.remote_addr = (uintptr_t)counter;
        send.wr.atomic.compare_add = one;
        send.wr.atomic.rkey = mr->rkey;
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
        expect(cq, &ring, index++, signal_all && ring.cqe_size == 64);
        CHECK(*counter == 42 && *(uint64_t *)(memory + 256) == 41);
        CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
    }
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
