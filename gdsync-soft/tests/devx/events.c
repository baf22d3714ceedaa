/* Events of queues made by commands: channels with cookies, with the device's entries, an eventfd; and asynchronous queries. */
#include "devx.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { COMPLETION = 0, COMM_EST = 2, ACCESS_ERROR = 0x11, PORT_CHANGE = 9, COOKIE = 0x5eed };

struct entry_event {
    struct mlx5dv_devx_async_event_hdr header;
    uint8_t entry[64];
};

/* Arms a completion queue, which was armed `sequence` times before, for its next entry. */
static void arm(struct cq *cq, struct mlx5dv_devx_uar *uar, unsigned sequence)
{
    size_t ring = (size_t)64 << cq->log_size;
    uint32_t *records = (uint32_t *)(cq->memory + ring + PAGE - ring % PAGE);
    uint32_t word = (sequence & 3) << 28 | (cq->consumed & 0xffffff);
    __atomic_store_n(&records[1], htobe32(word), __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    *(volatile uint64_t *)((uint8_t *)uar->base_addr + 0x20) = htobe64((uint64_t)word << 32 | cq->number);
}

static int is_ready(int fd, int milliseconds)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN};
    return poll(&poller, 1, milliseconds) == 1 && (poller.revents & POLLIN);
}

int main(void)
{
    struct ibv_context *context = open_device();
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_BF);
    struct mlx5dv_devx_event_channel *cookies, *entries;
    struct mlx5dv_devx_cmd_comp *answers;
    struct mlx5dv_devx_obj *pd;
    uint8_t in[COMMAND] = {0}, out[COMMAND] = {0};
    uint16_t completion[] = {COMPLETION}, of_qp[] = {COMM_EST, ACCESS_ERROR}, wrong[] = {0x77}, port[] = {PORT_CHANGE};
    struct cq near, far;
    struct qp sender, receiver;
    int counter = eventfd(0, EFD_NONBLOCK), duplicate;
    uint64_t cookie, count;
    uint32_t pdn;

    CHECK(uar && counter >= 0);
    put(in, 0, 16, 0x800); /* ALLOC_PD */
    CHECK(pd = mlx5dv_devx_obj_create(context, in, 16, out, 16));
    pdn = number_of(out);
    near = create_cq(context, uar, 6);
    far = create_cq(context, uar, 6);
    sender = create_qp(context, uar, pdn, near.number);
    receiver = create_qp(context, uar, pdn, far.number);

    CHECK(cookies = mlx5dv_devx_create_event_channel(context, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA));
    CHECK(entries = mlx5dv_devx_create_event_channel(context, 0));
    CHECK(mlx5dv_devx_subscribe_devx_event(cookies, near.object, sizeof(completion), completion, COOKIE) == 0);
    CHECK(mlx5dv_devx_subscribe_devx_event(entries, receiver.object, sizeof(of_qp), of_qp, COOKIE + 1) == 0);
    CHECK(mlx5dv_devx_subscribe_devx_event_fd(entries, counter, near.object, COMPLETION) == 0);
    CHECK(mlx5dv_devx_subscribe_devx_event(cookies, NULL, sizeof(port), port, 0) == 0);
    CHECK(mlx5dv_devx_subscribe_devx_event(cookies, near.object, sizeof(wrong), wrong, 0) == EINVAL);
    CHECK(mlx5dv_devx_subscribe_devx_event(cookies, NULL, sizeof(completion), completion, 0) == EINVAL);
    CHECK(mlx5dv_devx_subscribe_devx_event_fd(entries, 12345, near.object, COMPLETION) == EBADF);

    connect_qp(context, &sender, receiver.number);
    connect_qp(context, &receiver, sender.number);

    /* An invalid key: an error on both sides, and a completion in the armed queue. */
    arm(&near, uar, 0);
    CHECK(!is_ready(cookies->fd, 0) && !is_ready(counter, 0));
    post_write(&sender, 1, 4096, 0x12345678);
    CHECK(next_entry(&near)[63] >> 4 == 13);
    CHECK(is_ready(cookies->fd, 10000));
    CHECK(mlx5dv_devx_get_event(cookies, (void *)&cookie, sizeof(cookie)) == sizeof(cookie));
    CHECK(cookie == COOKIE);
    /* The card reports them one by one. */
    CHECK(is_ready(counter, 10000));
    CHECK(read(counter, &count, sizeof(count)) == sizeof(count) && count == 1);
    for (int failed = 0; !failed;) {
        struct entry_event event;
        CHECK(is_ready(entries->fd, 10000));
        /* An event without room stays. */
        errno = 0;
        CHECK(mlx5dv_devx_get_event(entries, &event.header, sizeof(event) - 1) == -1 && errno == EINVAL);
        /* One event despite the room for more. */
        CHECK(mlx5dv_devx_get_event(entries, &event.header, sizeof(event)) == sizeof(event));
        CHECK(event.header.cookie == COOKIE + 1);
        CHECK(get(event.entry, 56 * 8 + 8, 24) == receiver.number);
        failed = event.entry[1] == ACCESS_ERROR;
        CHECK(failed || event.entry[1] == COMM_EST);
    }
    CHECK(!is_ready(entries->fd, 0) && !is_ready(cookies->fd, 0));

    /* A duplicate is the same file; a non-blocking channel does not block. */
    CHECK((duplicate = fcntl(cookies->fd, F_DUPFD_CLOEXEC, 100)) >= 100);
    CHECK(fcntl(duplicate, F_SETFL, O_NONBLOCK) == 0);
    CHECK(read(duplicate, &cookie, sizeof(cookie)) == -1 && errno == EAGAIN);
    CHECK(close(duplicate) == 0);

    /* Queries with answers in a file. */
    CHECK(answers = mlx5dv_devx_create_cmd_comp(context));
    memset(in, 0, sizeof(in));
    put(in, 0, 16, 0x402); /* QUERY_CQ */
    put(in, 0x48, 24, near.number);
    CHECK(mlx5dv_devx_obj_query_async(near.object, in, 16, sizeof(out), 71, answers) == 0);
    CHECK(mlx5dv_devx_obj_query_async(near.object, in, 16, 16, 72, answers) == 0);
    {
        uint8_t room[sizeof(struct mlx5dv_devx_async_cmd_hdr) + sizeof(out)];
        struct mlx5dv_devx_async_cmd_hdr *header = (void *)room;
        CHECK(mlx5dv_devx_get_async_cmd_comp(answers, header, sizeof(room)) == 0);
        CHECK(header->wr_id == 71 && status_of(header->out_data) == 0);
        CHECK(get(header->out_data, 0x80 + 0x63, 5) == 6); /* log_cq_size */
        CHECK(mlx5dv_devx_get_async_cmd_comp(answers, header, sizeof(room)) == 0 && header->wr_id == 72);
    }
    put(in, 0x48, 24, near.number + 1);
    CHECK(mlx5dv_devx_obj_query_async(near.object, in, 16, sizeof(out), 73, answers) == EINVAL);
    CHECK(!is_ready(answers->fd, 0));

    mlx5dv_devx_destroy_cmd_comp(answers);
    destroy_qp(&sender);
    destroy_qp(&receiver);
    destroy_cq(&near);
    destroy_cq(&far);
    mlx5dv_devx_destroy_event_channel(cookies);
    mlx5dv_devx_destroy_event_channel(entries);
    CHECK(mlx5dv_devx_obj_destroy(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(close(counter) == 0 && ibv_close_device(context) == 0);
    return 0;
}
