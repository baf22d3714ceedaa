/* Everything by commands: a domain, a memory key, two connected queue pairs with their queues, and 1,000 writes. */
#define _GNU_SOURCE
#include "devx.h"
#include <unistd.h>

enum { WRITES = 1000, WINDOW = 32 };

/* The target of the writes is in private memory, or in a file, which the device reaches by its own mapping. */
static void run(struct ibv_context *context, unsigned uar_type, int file)
{
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, uar_type);
    uint8_t in[COMMAND] = {0}, out[COMMAND] = {0};
    uint64_t *target = file < 0 ? pages(2 * PAGE) : mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, 0);
    struct mlx5dv_devx_umem_in umem_in = {.size = 2 * PAGE, .access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                          .pgsz_bitmap = UINT64_MAX & ~(uint64_t)(PAGE - 1),
                                          .comp_mask = file < 0 ? 0 : MLX5DV_UMEM_MASK_DMABUF, .dmabuf_fd = file};
    const uint64_t iova = 0x7000000000;
    struct mlx5dv_devx_umem *umem;
    struct mlx5dv_devx_obj *pd, *mkey;
    struct cq near, far;
    struct qp sender, receiver;
    uint32_t pdn, key;

    CHECK(uar && target != MAP_FAILED);
    put(in, 0, 16, 0x800); /* ALLOC_PD */
    CHECK(pd = mlx5dv_devx_obj_create(context, in, 16, out, 16));
    pdn = number_of(out);
    umem_in.addr = file < 0 ? target : NULL; /* the offset, in a file */
    CHECK(umem = mlx5dv_devx_umem_reg_ex(context, &umem_in));
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x200); /* CREATE_MKEY */
    put(in, 0x80 + 0x12, 1, 1); /* rw */
    put(in, 0x80 + 0x14, 1, 1); /* lw */
    put(in, 0x80 + 0x16, 2, 1); /* access mode MTT */
    put(in, 0x80 + 0x38, 8, 0x5a);
    put(in, 0x80 + 0x68, 24, pdn);
    put(in, 0x80 + 0x80, 64, iova);
    put(in, 0x80 + 0xc0, 64, 2 * PAGE);
    put(in, 0x320, 32, umem->umem_id);
    CHECK(mkey = mlx5dv_devx_obj_create(context, in, sizeof(in), out, 16));
    key = number_of(out) << 8 | 0x5a;

    near = create_cq(context, uar, 6);
    far = create_cq(context, uar, 6);
    sender = create_qp(context, uar, pdn, near.number);
    receiver = create_qp(context, uar, pdn, far.number);
    connect_qp(context, &sender, receiver.number);
    connect_qp(context, &receiver, sender.number);

    for (unsigned done = 0, posted = 0; done < WRITES;) {
        const uint8_t *entry;
        while (posted < WRITES && posted - done < WINDOW) {
            post_write(&sender, 0x1234567800000000u + posted, iova + posted * 8, key);
            posted++;
        }
        entry = next_entry(&near);
        CHECK(entry[63] >> 4 == 0);                       /* a request, done */
        CHECK(get(entry, 60 * 8, 16) == (done & 0xffff)); /* wqe_counter */
        CHECK(get(entry, 32 * 8 + 8, 24) == 0xabc);       /* srqn_uidx */
        CHECK(get(entry, 56 * 8 + 8, 24) == sender.number);
        CHECK(target[done] == 0x1234567800000000u + done);
        give_back(&near);
        done++;
    }
    CHECK(target[WRITES] == 0);

    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x402); /* QUERY_CQ */
    put(in, 0x48, 24, near.number);
    CHECK(mlx5dv_devx_obj_query(near.object, in, 16, out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x148, 24) == WRITES && get(out, 0x80 + 0x168, 24) == WRITES);
    CHECK(get(out, 0x80 + 0x63, 5) == 6);
    put(in, 0, 16, 0x50b); /* QUERY_QP */
    put(in, 0x48, 24, sender.number);
    CHECK(mlx5dv_devx_obj_query(sender.object, in, 16, out, sizeof(out)) == 0);
    CHECK(get(out, 0xc0, 4) == 3);                          /* RTS */
    CHECK(get(out, 0xc0 + 0xa8, 24) == receiver.number);
    CHECK(get(out, 0xc0 + 0x28, 24) == pdn && get(out, 0xc0 + 0x3e8, 24) == near.number);
    CHECK(get(out, 0xc0 + 0x3c8, 24) == 0x123 + WRITES);    /* next_send_psn */
    CHECK(get(out, 0xc0 + 0x720, 32) == sender.umem->umem_id);

    destroy_qp(&sender);
    destroy_qp(&receiver);
    destroy_cq(&near);
    destroy_cq(&far);
    CHECK(mlx5dv_devx_obj_destroy(mkey) == 0);
    CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
    CHECK(mlx5dv_devx_obj_destroy(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(munmap(target, 2 * PAGE) == 0);
}

int main(void)
{
    struct ibv_context *context = open_device();
    int file = memfd_create("target", 0);
    CHECK(file >= 0 && ftruncate(file, 2 * PAGE) == 0);
    run(context, MLX5DV_UAR_ALLOC_TYPE_BF, -1);
    run(context, MLX5DV_UAR_ALLOC_TYPE_NC, file);
#ifdef NC_DEDICATED
    run(context, MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED, -1);
#endif
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
