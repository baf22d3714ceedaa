/* Closes a device with all its objects while a second device of the same card stays open. */
#include "devx.h"

static uint32_t domain(struct ibv_context *context)
{
    uint8_t in[16] = {0}, out[16] = {0};
    put(in, 0, 16, 0x800);
    CHECK(mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    return number_of(out);
}

int main(void)
{
    struct ibv_context *stays = open_device(), *goes = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(stays, MLX5DV_UAR_ALLOC_TYPE_BF);
    struct mlx5dv_devx_uar *other_uar = mlx5dv_devx_alloc_uar(goes, MLX5DV_UAR_ALLOC_TYPE_BF);
    struct cq cq = create_cq(stays, uar, 4), other_cq = create_cq(goes, other_uar, 4);
    struct qp qp = create_qp(stays, uar, domain(stays), cq.number);
    uint32_t other_domain = domain(goes);
    struct qp other = create_qp(goes, other_uar, other_domain, other_cq.number);
    uint64_t *target = pages(PAGE);
    struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(goes, target, PAGE, IBV_ACCESS_LOCAL_WRITE);
    uint8_t in[COMMAND] = {0}, out[16] = {0};
    const uint8_t *entry;
    uint32_t key;

    CHECK(umem);
    put(in, 0, 16, 0x200); /* CREATE_MKEY */
    put(in, 0x80 + 0x12, 1, 1);
    put(in, 0x80 + 0x14, 1, 1);
    put(in, 0x80 + 0x16, 2, 1);
    put(in, 0x80 + 0x68, 24, other_domain);
    put(in, 0x80 + 0xc0, 64, PAGE);
    put(in, 0x320, 32, umem->umem_id);
    CHECK(mlx5dv_devx_obj_create(goes, in, sizeof(in), out, sizeof(out)));
    key = number_of(out) << 8;
    connect_qp(stays, &qp, other.number);
    connect_qp(goes, &other, qp.number);
    post_write(&qp, 42, 0, key);
    entry = next_entry(&cq);
    CHECK(entry[63] >> 4 == 0 && target[0] == 42);
    give_back(&cq);

    ibv_close_device(goes);
    CHECK(munmap(other.memory, other.size) == 0);
    CHECK(munmap(other_cq.memory, other_cq.size) == 0);
    CHECK(munmap(target, PAGE) == 0);
    post_write(&qp, 43, 8, key);
    entry = next_entry(&cq);
    CHECK(entry[63] >> 4 == 0xd && entry[55] == 0x15); /* nobody answers: transport retries exceeded */
    give_back(&cq);

    ibv_close_device(stays);
    stays = open_device();
    CHECK(ibv_close_device(stays) == 0);
    return 0;
}
