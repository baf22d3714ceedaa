/* Two sides that queue pairs connect: setup, requests and waits of the programs in this folder. A side that sees something
   wrong writes one line and ends both. */

#define _GNU_SOURCE
#include "../seen/check.h"
#include <infiniband/verbs.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

/* Receives of a queue pair. */
enum { RECEIVES = 8 };
/* Memory that a card writes, apart from other such memory. */
#define OWN_PAGE _Alignas(4096)

/* The round, for messages. */
static uint64_t turn;
/* Seconds after which a message does not come any more. */
static int patience = 3;

#define WRONG(format, ...)                                                                                  \
    do {                                                                                                    \
        fprintf(stderr, "round %lu: " format "\n", turn, __VA_ARGS__);                                      \
        _exit(1);                                                                                           \
    } while (0)

/* Polls until the condition is true. */
#define UNTIL(condition)                                                                                    \
    for (time_t end = time(NULL) + patience; !(condition); sched_yield())                                   \
        if (time(NULL) > end)                                                                               \
    WRONG("%s has not come", #condition)

/* A process: the first, which checks, or its peer. A single process is its own peer. */
struct side {
    int is_peer, socket;
    struct ibv_context *context;
    struct ibv_pd *pd;
};

/* A connected queue pair. */
struct rail {
    struct ibv_qp *qp;
    struct ibv_cq *sends, *receives;
    uint32_t depth;
};

/* Registered memory. Static memory has the same address on both sides. */
struct area {
    uint32_t lkey, rkey;
};

static pid_t child;

static void child_has_ended(int number) {
    int status;
    (void)number;
    if (waitpid(child, &status, WNOHANG) == child && status != 0)
        _exit(1);
}

/* Begins with one process or two. */
static inline struct side begin(int processes) {
    struct side side = {.socket = -1};
    int ends[2];
    if (processes == 2) {
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        signal(SIGCHLD, child_has_ended);
        CHECK((child = fork()) >= 0);
        side.is_peer = child == 0;
        if (side.is_peer) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
            /* If both wait, the first says so. */
            patience *= 2;
        }
        side.socket = ends[side.is_peer];
        CHECK(close(ends[!side.is_peer]) == 0);
    }
    struct ibv_device **devices = ibv_get_device_list(NULL);
    CHECK(devices && devices[0] && (side.context = ibv_open_device(devices[0])));
    CHECK(side.pd = ibv_alloc_pd(side.context));
    ibv_free_device_list(devices);
    return side;
}

/* Gives `own` to the peer, and takes the peer's. */
static inline void exchange(const struct side *side, const void *own, void *peers, size_t size) {
    if (side->socket < 0) {
        memcpy(peers, own, size);
        return;
    }
    CHECK(write(side->socket, own, size) == (ssize_t)size);
    CHECK(recv(side->socket, peers, size, MSG_WAITALL) == (ssize_t)size);
}

/* Waits for the peer to come here. */
static inline void meet(const struct side *side) {
    char own = 0, peers;
    exchange(side, &own, &peers, 1);
}

/* Waits for the peer to come here, and ends. */
static inline int finish(const struct side *side) {
    int status = 0;
    meet(side);
    signal(SIGCHLD, SIG_DFL);
    return !side->is_peer && child && waitpid(child, &status, 0) == child && status != 0;
}

static inline struct area area(const struct side *side, void *memory, size_t size, int access) {
    access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_mr *mr = ibv_reg_mr(side->pd, memory, size, access);
    CHECK(mr);
    struct area area = {.lkey = mr->lkey};
    exchange(side, &mr->rkey, &area.rkey, sizeof(area.rkey));
    return area;
}

/* Posts a receive without memory, for an immediate or an empty message. */
static inline void post_receive(struct ibv_qp *qp) {
    struct ibv_recv_wr receive = {.num_sge = 0}, *bad;
    CHECK(ibv_post_recv(qp, &receive, &bad) == 0);
}

static inline void connect_rail(const struct side *side, struct ibv_qp *qp) {
    struct place {
        uint32_t number, lid;
        union ibv_gid gid;
    } own = {.number = qp->qp_num}, peers;
    struct ibv_port_attr port;
    CHECK(ibv_query_port(side->context, 1, &port) == 0 && ibv_query_gid(side->context, 1, 0, &own.gid) == 0);
    own.lid = port.lid;
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    for (int i = 0; i < RECEIVES; i++)
        post_receive(qp);
    exchange(side, &own, &peers, sizeof(own));
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peers.number};
    to.ah_attr = (struct ibv_ah_attr){.dlid = peers.lid, .port_num = 1, .is_global = 1, .grh.dgid = peers.gid};
    to.max_dest_rd_atomic = 1;
    to.min_rnr_timer = 1;
    CHECK(ibv_modify_qp(qp, &to,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .max_rd_atomic = 1};
    to.rnr_retry = 7;
    CHECK(ibv_modify_qp(qp, &to,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* A queue pair to the peer, with at least `depth` requests, and a completion queue for each direction. */
static inline struct rail rail(const struct side *side, uint32_t depth) {
    struct rail rail = {.sends = ibv_create_cq(side->context, 64, NULL, NULL, 0),
                        .receives = ibv_create_cq(side->context, 64, NULL, NULL, 0)};
    CHECK(rail.sends && rail.receives);
    struct ibv_qp_init_attr asked = {.send_cq = rail.sends, .recv_cq = rail.receives, .qp_type = IBV_QPT_RC};
    asked.cap = (struct ibv_qp_cap){.max_send_wr = depth, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1,
                                    .max_inline_data = sizeof(uint64_t)};
    CHECK(rail.qp = ibv_create_qp(side->pd, &asked));
    rail.depth = asked.cap.max_send_wr;
    connect_rail(side, rail.qp);
    return rail;
}

/* Posts a request: `own` is memory of this side, `peers` of the peer. Returns an error number. */
static inline int post(const struct rail *rail, enum ibv_wr_opcode opcode, int flags, const struct area *area, void *own,
                       void *peers, size_t size) {
    struct ibv_sge part = {.addr = (uintptr_t)own, .length = size, .lkey = area->lkey};
    struct ibv_send_wr request = {.opcode = opcode, .send_flags = flags, .sg_list = &part, .num_sge = size > 0}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = (uintptr_t)peers;
        request.wr.atomic.rkey = area->rkey;
        request.wr.atomic.compare_add = 1;
    } else {
        request.wr.rdma.remote_addr = (uintptr_t)peers;
        request.wr.rdma.rkey = area->rkey;
    }
    return ibv_post_send(rail->qp, &request, &bad);
}

/* Waits for a completion. */
static inline void completion(struct ibv_cq *cq) {
    struct ibv_wc done;
    int count;
    UNTIL((count = ibv_poll_cq(cq, 1, &done)));
    if (count < 0 || done.status != IBV_WC_SUCCESS)
        WRONG("%s", count < 0 ? "no completion can be polled" : ibv_wc_status_str(done.status));
}

/* Waits for an immediate or an empty message. */
static inline void receive(const struct rail *rail) {
    completion(rail->receives);
    post_receive(rail->qp);
}

/* Sends an empty message, and waits for the completion. */
static inline void send_empty(const struct rail *rail) {
    struct area none = {0, 0};
    CHECK(post(rail, IBV_WR_SEND, IBV_SEND_SIGNALED, &none, NULL, NULL, 0) == 0);
    completion(rail->sends);
}

/* Posts a write of a word to the peer's memory, with a completion. */
static inline void post_word(const struct rail *rail, const struct area *area, uint64_t *word, uint64_t value) {
    CHECK(post(rail, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE | IBV_SEND_SIGNALED, area, &value, word, sizeof(value)) == 0);
}

/* Writes a word to the peer's memory, and waits for the completion. */
static inline void write_word(const struct rail *rail, const struct area *area, uint64_t *word, uint64_t value) {
    post_word(rail, area, word, value);
    completion(rail->sends);
}

/* Reads a word that the peer writes. */
static inline uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void fill(uint64_t *words, size_t count, uint64_t value) {
    for (size_t i = 0; i < count; i++)
        __atomic_store_n(&words[i], value, __ATOMIC_RELAXED);
}

/* Ends the program unless all words have the value. */
static inline void expect(const uint64_t *words, size_t count, uint64_t value) {
    for (size_t i = 0; i < count; i++) {
        uint64_t found = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
        if (found != value)
            WRONG("word %zu of %zu is %lu instead of %lu", i, count, found, value);
    }
}

/* What a side does. */
typedef void part(const struct rail *rails, const struct area *area);

/* Connects `count` queue pairs of `depth` requests between two processes that have the same memory, of which each does its
   part. NULL: nothing. Returns the exit status. */
static inline int two_sides(int count, uint32_t depth, void *memory, size_t size, part *first, part *peer) {
    struct side side = begin(2);
    struct rail rails[2];
    CHECK(count <= 2);
    for (int i = 0; i < count; i++)
        rails[i] = rail(&side, depth);
    struct area all = area(&side, memory, size, 0);
    part *own = side.is_peer ? peer : first;
    if (own)
        own(rails, &all);
    return finish(&side);
}
