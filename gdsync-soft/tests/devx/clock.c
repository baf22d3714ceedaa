/* The card's clock: the counter that libmlx5 reads from a page, the times of completion entries, and their conversion to
 * system time. */
#include "devx.h"
#include <fcntl.h>
#include <unistd.h>

enum { CORE_CLOCK = 5 << 8, CLOCK_INFO = 7 << 8, ROUNDS = 50 };
static const int64_t SECOND = 1000000000;

static uint64_t counter(struct ibv_context *context)
{
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    CHECK(ibv_query_rt_values_ex(context, &values) == 0);
    CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
    return (uint64_t)values.raw_clock.tv_sec * SECOND + (uint64_t)values.raw_clock.tv_nsec;
}

static int64_t now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* The counter has the frequency of the capabilities. It may be late by some milliseconds on a busy machine. */
static void grows_at_its_frequency(struct ibv_context *context, uint64_t kilohertz)
{
    int64_t begin = now(CLOCK_MONOTONIC), elapsed, counted;
    uint64_t first = counter(context), last = first, next;

    while ((elapsed = now(CLOCK_MONOTONIC) - begin) < SECOND / 2) {
        CHECK((next = counter(context)) >= last);
        last = next;
        usleep(1000);
    }
    counted = (int64_t)((counter(context) - first) * 1000 / kilohertz * 1000);
    CHECK(counted > elapsed * 8 / 10 && counted < elapsed * 12 / 10);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct ibv_device_attr_ex attributes;
    struct mlx5dv_context dv = {.comp_mask = MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE | MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK};
    struct mlx5dv_clock_info info;
    uint8_t in[16] = {0}, out[16 + 4096] = {0};
    struct ibv_pd *pd = ibv_alloc_pd(context);
    uint8_t *memory = pages(PAGE);
    struct ibv_cq_init_attr_ex asked = {
        .cqe = 15,
        .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    };
    struct ibv_cq_ex *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    void *page;
    unsigned i;

    CHECK(ibv_query_device_ex(context, NULL, &attributes) == 0);
    CHECK(attributes.hca_core_clock > 0 && attributes.completion_timestamp_mask == UINT64_MAX >> 1);
    put(in, 0, 16, 0x100); /* QUERY_HCA_CAP: device_frequency_khz */
    CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) == 0);
    CHECK(get(out, 0x80 + 0x4e0, 32) == attributes.hca_core_clock);
    CHECK(mlx5dv_query_device(context, &dv) == 0);
    CHECK(dv.comp_mask & MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK && dv.hca_core_clock);
    CHECK(dv.comp_mask & MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE && dv.max_clock_info_update_nsec > 0);
    CHECK(mlx5dv_get_clock_info(context, &info) == 0);
    grows_at_its_frequency(context, attributes.hca_core_clock);
    {
        int64_t difference = (int64_t)mlx5dv_ts_to_ns(&info, counter(context)) - now(CLOCK_REALTIME);
        CHECK(difference > -SECOND && difference < SECOND);
    }

    /* Times of entries are between those read before the post and after the poll. */
    CHECK(pd && (mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    CHECK(cq = ibv_create_cq_ex(context, &asked));
    qp = connect_to_itself(pd, ibv_cq_ex_to_cq(cq), 1);
    for (i = 0; i < ROUNDS; i++) {
        struct ibv_sge from = {(uintptr_t)memory, 64, mr->lkey};
        struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
        struct ibv_poll_cq_attr poll = {0};
        uint64_t before = counter(context), of_entry;
        int64_t late;

        send.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
        send.wr.rdma.rkey = mr->rkey;
        CHECK(ibv_post_send(qp, &send, &bad) == 0);
        while (ibv_start_poll(cq, &poll) == ENOENT)
            ;
        CHECK(cq->status == IBV_WC_SUCCESS);
        of_entry = ibv_wc_read_completion_ts(cq);
        CHECK(before <= of_entry && of_entry <= counter(context));
        late = now(CLOCK_REALTIME) - (int64_t)ibv_wc_read_completion_wallclock_ns(cq);
        CHECK(late > -SECOND && late < SECOND);
        CHECK((int64_t)mlx5dv_ts_to_ns(&info, of_entry) == (int64_t)ibv_wc_read_completion_wallclock_ns(cq));
        ibv_end_poll(cq);
    }

    /* The pages can only be mapped for reading, and only whole and singly. */
    page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, context->cmd_fd, (off_t)CORE_CLOCK * PAGE);
    CHECK(page != MAP_FAILED && munmap(page, PAGE) == 0);
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, context->cmd_fd, (off_t)CLOCK_INFO * PAGE);
    CHECK(page == MAP_FAILED && errno == EPERM);
    page = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, context->cmd_fd, (off_t)CORE_CLOCK * PAGE);
    CHECK(page == MAP_FAILED && errno == EINVAL);
    page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, context->cmd_fd, (off_t)(CLOCK_INFO + 1) * PAGE);
    CHECK(page == MAP_FAILED && errno == EINVAL);

    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
