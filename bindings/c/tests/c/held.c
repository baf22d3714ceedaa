/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Lists of persistent requests that one write of a trigger's word starts, with sends that the card holds back until their receives are
  * posted; and the refusals of a card that does not wait for words (SOFTHCA_WAITS=off).
 */
#include "common.h"

#include <time.h>

enum { PEERS = 3, BYTES = 64, ROUNDS = 24, SHORT_MS = 20, MOST = 4 * DEPTH };

/* A queue pair from the sender to one of the receiver. */
struct peer {
    struct rig rig; /* of one context and domain; the left side sends */
    gdsync_ready_word_t *word;
    gdsync_request_t *send, *receive, *count;
};

/* A sender and a receiver, each with its own stream and trigger. */
struct both {
    struct peer peers[PEERS];
    struct ibv_context *context;
    struct ibv_pd *pd;
    gdsync_trigger_t *triggers[2];
    CUstream streams[2];
};

static gdsync_request_t *send_request(struct side *side) {
    struct ibv_sge sge = sge_of(side, 0, BYTES);
    gds_send_wr wr = send_of(&sge, 1);
    gdsync_request_t *made = gdsync_send_init(side->qp, &wr);
    CHECK(made != NULL);
    return made;
}

static gdsync_request_t *recv_request(struct side *side) {
    struct ibv_sge sge = sge_of(side, 0, BYTES);
    struct ibv_recv_wr wr;
    gdsync_request_t *made;
    memset(&wr, 0, sizeof(wr));
    wr.wr_id = 2;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    made = gdsync_recv_init(side->qp, &wr);
    CHECK(made != NULL);
    return made;
}

static gdsync_request_t *count_request(struct side *side, const gdsync_ready_word_t *word) {
    gdsync_request_t *made = gdsync_count_init(side->qp, (uint64_t)(uintptr_t)word->word, word->rkey);
    CHECK(made != NULL);
    return made;
}

static void open_both(struct both *both) {
    int i, side;

    memset(both, 0, sizeof(*both));
    both->context = gdsync_soft_open(NULL);
    both->pd = gdsync_alloc_pd(both->context);
    CHECK(both->pd != NULL);
    for (side = 0; side < 2; side++) {
        both->triggers[side] = gdsync_trigger_create(both->pd, both->context);
        both->streams[side] = gdsync_soft_stream_create();
        CHECK(both->triggers[side] != NULL && both->streams[side] != NULL);
    }
    for (i = 0; i < PEERS; i++) {
        struct peer *peer = &both->peers[i];
        struct rig *rig = &peer->rig;
        rig->context = both->context;
        rig->pd = both->pd;
        OK(gdsync_query_port(rig->context, 1, &rig->port));
        for (side = 0; side < 2; side++) {
            make_side(rig, &rig->sides[side], IBV_QPT_RC, -1, GDS_CREATE_QP_DEFAULT);
        }
        for (side = 0; side < 2; side++) {
            to_ready(rig, &rig->sides[side], &rig->sides[1 - side], IBV_QPT_RC);
        }
        peer->word = gdsync_ready_word_create(both->pd, both->context);
        CHECK(peer->word != NULL && *peer->word->word == 0);
        peer->send = send_request(&rig->sides[0]);
        OK(gdsync_send_behind(peer->send, peer->word));
        peer->receive = recv_request(&rig->sides[1]);
        peer->count = count_request(&rig->sides[1], peer->word);
    }
}

/* Requests keep their words alive until their queue pairs are destroyed. */
static void close_both(struct both *both) {
    int i, side;

    for (i = 0; i < PEERS; i++) {
        for (side = 0; side < 2; side++) {
            struct side *of = &both->peers[i].rig.sides[side];
            OK(gds_destroy_qp(of->qp));
            OK(gdsync_dereg_mr(of->mr));
            free(of->buffer);
        }
    }
    for (side = 0; side < 2; side++) {
        OK(gdsync_trigger_free(both->triggers[side]));
        OK(gdsync_soft_stream_destroy(both->streams[side]));
    }
    OK(gdsync_dealloc_pd(both->pd));
    OK(gdsync_soft_close(both->context));
}

static void hold(CUstream stream, uint32_t *gate) {
    gds_descriptor_t wait;
    *gate = 0;
    wait.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&wait.wait32, gate, 1, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST));
    OK(gds_stream_post_descriptors(stream, 1, &wait, 0));
}

static void release(uint32_t *gate) { __atomic_store_n(gate, 1, __ATOMIC_RELEASE); }

static void sleep_ms(long ms) {
    struct timespec time = {0, ms * 1000000};
    CHECK(nanosleep(&time, NULL) == 0);
}

static void completes(gdsync_request_t *request, uint64_t wr_id, enum ibv_wc_opcode opcode) {
    struct ibv_wc wc;
    OK(gdsync_request_complete(request, &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.opcode == opcode);
}

/* Returns whether all receivers have this byte throughout their buffers. */
static int all_have(const struct both *both, uint8_t byte) {
    int i, at;
    for (i = 0; i < PEERS; i++) {
        for (at = 0; at < BYTES; at++) {
            if (((volatile uint8_t *)both->peers[i].rig.sides[1].buffer)[at] != byte) {
                return 0;
            }
        }
    }
    return 1;
}

/* One write of each side starts all of its requests. No message arrives before the receiver's stream has reached its start. */
static void rounds(struct both *both) {
    gdsync_request_t *sends[PEERS], *receives[2 * PEERS];
    uint32_t gate;
    int i, round;

    for (i = 0; i < PEERS; i++) {
        sends[i] = both->peers[i].send;
        receives[i] = both->peers[i].receive;
        receives[PEERS + i] = both->peers[i].count;
    }
    for (round = 1; round <= ROUNDS; round++) {
        int is_late = round % 4 == 0;
        for (i = 0; i < PEERS; i++) {
            memset(both->peers[i].rig.sides[0].buffer, round, BYTES);
        }
        if (is_late) {
            hold(both->streams[1], &gate);
        }
        OK(gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], PEERS, sends));
        OK(gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], 2 * PEERS, receives));
        OK(gdsync_wait_all(both->streams[0], PEERS, sends));
        OK(gdsync_wait_all(both->streams[1], PEERS, receives));
        if (is_late) {
            sleep_ms(SHORT_MS);
            CHECK(all_have(both, (uint8_t)(round - 1)));
            CHECK(*(volatile uint64_t *)both->triggers[1]->word == gdsync_trigger_word((uint64_t)round - 1));
            release(&gate);
        }
        OK(gdsync_stream_synchronize(both->streams[1], PATIENCE_MS));
        OK(gdsync_stream_synchronize(both->streams[0], PATIENCE_MS));
        CHECK(all_have(both, (uint8_t)round));
        if (round == 1) {
            /* The requests keep the freed words alive. */
            for (i = 1; i < PEERS; i++) {
                gdsync_ready_word_t *word = both->peers[i].word;
                OK(gdsync_ready_word_free(word));
                CHECK_STATUS(EINVAL, gdsync_ready_word_free(word));
                CHECK_STATUS(EINVAL, gdsync_send_behind(both->peers[i].count, word));
            }
        }
    }
    for (i = 0; i < 2; i++) {
        CHECK(*(volatile uint64_t *)both->triggers[i]->word == gdsync_trigger_word(ROUNDS));
    }
    CHECK(*(volatile uint64_t *)both->peers[0].word->word == gdsync_trigger_word(ROUNDS));
    for (i = 0; i < PEERS; i++) {
        completes(both->peers[i].send, 1, IBV_WC_SEND);
        completes(both->peers[i].receive, 2, IBV_WC_RECV);
        completes(both->peers[i].count, 0, IBV_WC_RDMA_WRITE);
    }
}

/* Starts one request of each side. */
static void start_receive(struct both *both, struct peer *peer) {
    gdsync_request_t *list[2] = {peer->receive, peer->count};
    OK(gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], 2, list));
}

static void start_send(struct both *both, struct peer *peer) {
    OK(gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], 1, &peer->send));
}

/* The program releases a send that the other side does not count. The send is active until then. */
static void by_the_program(struct both *both) {
    struct peer *peer = &both->peers[0];
    struct ibv_wc wc;

    start_send(both, peer);
    CHECK_STATUS(EBUSY, gdsync_send_behind(peer->send, peer->word));
    OK(gdsync_start_all(both->streams[1], 1, &peer->receive));
    CHECK_STATUS(ETIMEDOUT, gdsync_request_complete(peer->send, &wc, SHORT_MS));
    __atomic_store_n(peer->word->word, gdsync_trigger_word(ROUNDS + 1), __ATOMIC_RELEASE);
    completes(peer->send, 1, IBV_WC_SEND);
    completes(peer->receive, 2, IBV_WC_RECV);
    /* The count is now one start behind. */
    OK(gdsync_start_all(both->streams[1], 1, &peer->count));
    completes(peer->count, 0, IBV_WC_RDMA_WRITE);
    CHECK(*(volatile uint64_t *)peer->word->word == gdsync_trigger_word(ROUNDS + 1));
}

/* A refused list starts nothing: the next start of its requests has the next number. */
static void refusals(struct both *both) {
    struct peer *peer = &both->peers[0], *other = &both->peers[1];
    struct ibv_pd *foreign = gdsync_alloc_pd(both->context);
    gdsync_trigger_t *trigger = gdsync_trigger_create(foreign, both->context), *gone;
    gdsync_ready_word_t *word = gdsync_ready_word_create(foreign, both->context);
    gdsync_request_t *twice[2] = {peer->receive, peer->receive}, *own, *count;
    CUstream third = gdsync_soft_stream_create();
    gds_qp_init_attr_t attr;
    struct gds_qp *qp;
    struct rig rig;
    struct side side;
    uint32_t gate;
    int status;

    CHECK(trigger != NULL && word != NULL && third != NULL);
    CHECK_STATUS(EINVAL, gdsync_send_behind(peer->receive, peer->word));
    CHECK(strstr(gdsync_error_text(), "receive") != NULL);
    CHECK_STATUS(EINVAL, gdsync_send_behind(peer->send, word));
    CHECK(strstr(gdsync_error_text(), "domain") != NULL);
    OK(gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], 0, NULL));
    CHECK_STATUS(EINVAL, gdsync_start_all_by_trigger(both->streams[0], trigger, 1, &peer->send));
    CHECK(strstr(gdsync_error_text(), "domain") != NULL);
    CHECK_STATUS(EBUSY, gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], 2, twice));
    gone = trigger;
    OK(gdsync_trigger_free(trigger));
    CHECK_STATUS(EINVAL, gdsync_start_all_by_trigger(both->streams[0], gone, 1, &peer->send));
    /* A domain of another context. */
    rig_open(&rig, IBV_QPT_UD);
    CHECK(gdsync_ready_word_create(rig.pd, both->context) == NULL && errno == EINVAL);
    /* Datagrams. */
    CHECK(gdsync_count_init(rig.sides[0].qp, 8, 1) == NULL && errno == EOPNOTSUPP);
    rig_close(&rig);
    memset(&attr, 0, sizeof(attr));
    attr.cap.max_send_wr = attr.cap.max_recv_wr = attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.qp_type = IBV_QPT_RC;
    qp = gds_create_qp(both->pd, both->context, &attr, -1, GDS_CREATE_QP_DEFAULT);
    CHECK(qp != NULL);
    /* Not connected yet. */
    side = peer->rig.sides[0];
    side.qp = qp;
    own = send_request(&side);
    CHECK_STATUS(EINVAL, gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], 1, &own));
    OK(gds_destroy_qp(qp));
    /* A queue pair with its own trigger, whose sends may wait for a word. */
    attr.cap.max_inline_data = 8;
    qp = gdsync_trigger_create_qp(both->triggers[0], &attr, -1, GDS_CREATE_QP_DEFAULT);
    CHECK(qp != NULL);
    side.qp = qp;
    own = send_request(&side);
    count = count_request(&side, peer->word);
    OK(gdsync_send_behind(own, peer->word));
    CHECK_STATUS(EINVAL, gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], 1, &count));
    CHECK(strstr(gdsync_error_text(), "trigger") != NULL);
    OK(gds_destroy_qp(qp));

    /* An active request; and two streams that are in each other's way until the first has written its ticket. */
    hold(both->streams[1], &gate);
    start_receive(both, other);
    CHECK_STATUS(EBUSY, gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], 1, &other->receive));
    CHECK_STATUS(EBUSY, gdsync_start_all_by_trigger(third, both->triggers[1], 1, &both->peers[2].count));
    CHECK(strstr(gdsync_error_text(), "stream") != NULL);
    start_send(both, other);
    release(&gate);
    completes(other->send, 1, IBV_WC_SEND);
    completes(other->receive, 2, IBV_WC_RECV);
    completes(other->count, 0, IBV_WC_RDMA_WRITE);
    /* The library may not have noticed yet that the first stream has passed. */
    count = count_request(&both->peers[2].rig.sides[1], peer->word);
    while ((status = gdsync_start_all_by_trigger(third, both->triggers[1], 1, &count)) == EBUSY) {
        sched_yield();
    }
    CHECK(status == 0);
    completes(count, 0, IBV_WC_RDMA_WRITE);
    OK(gdsync_request_free(count));
    /* Another stream still has to ring for a send of the queue pair. */
    hold(third, &gate);
    OK(gdsync_start_all(third, 1, &both->peers[2].count));
    CHECK_STATUS(EBUSY, gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], 1, &both->peers[2].count));
    release(&gate);
    completes(both->peers[2].count, 0, IBV_WC_RDMA_WRITE);
    OK(gdsync_stream_synchronize(third, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(third));
    OK(gdsync_ready_word_free(word));
    OK(gdsync_dealloc_pd(foreign));
}

/* A full queue starts nothing, and keeps room for as many starts as before. */
static void full(struct both *both) {
    gdsync_request_t *counts[MOST];
    struct peer *peer = &both->peers[0];
    int i;

    for (i = 0; i < MOST; i++) {
        counts[i] = count_request(&peer->rig.sides[1], peer->word);
    }
    CHECK_STATUS(ENOMEM, gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], MOST, counts));
    OK(gdsync_start_all_by_trigger(both->streams[1], both->triggers[1], DEPTH / 4, counts));
    for (i = 0; i < MOST; i++) {
        if (i < DEPTH / 4) {
            completes(counts[i], 0, IBV_WC_RDMA_WRITE);
        }
        OK(gdsync_request_free(counts[i]));
    }
}

/* A failed queue pair refuses starts, and the stream goes on. */
static void failures(struct both *both) {
    struct peer *peer = &both->peers[2];
    struct ibv_wc wc;

    start_send(both, peer);
    OK(gdsync_wait_all(both->streams[0], 1, &peer->send));
    OK(gdsync_abort_qp(peer->rig.sides[0].qp));
    OK(gdsync_stream_synchronize(both->streams[0], PATIENCE_MS));
    OK(gdsync_request_complete(peer->send, &wc, PATIENCE_MS));
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK_STATUS(EIO, gdsync_start_all_by_trigger(both->streams[0], both->triggers[0], 1, &peer->send));
}

/* Without card waits there are no triggers and held sends, but words and counts for the other side. */
static void without_waits(void) {
    struct rig rig;
    gdsync_ready_word_t *word;
    gdsync_request_t *send, *count;
    CUstream stream = gdsync_soft_stream_create();

    rig_open(&rig, IBV_QPT_RC);
    CHECK(gdsync_trigger_create(rig.pd, rig.context) == NULL && errno == EOPNOTSUPP);
    word = gdsync_ready_word_create(rig.pd, rig.context);
    CHECK(word != NULL);
    send = send_request(&rig.sides[0]);
    CHECK_STATUS(EOPNOTSUPP, gdsync_send_behind(send, word));
    CHECK(strstr(gdsync_error_text(), "does not wait") != NULL);
    count = count_request(&rig.sides[1], word);
    OK(gdsync_start_all(stream, 1, &count));
    completes(count, 0, IBV_WC_RDMA_WRITE);
    CHECK(*(volatile uint64_t *)word->word == gdsync_trigger_word(1));
    /* The send is unchanged. */
    receive(&rig.sides[1], 0, BYTES, 5);
    OK(gdsync_start_all(stream, 1, &send));
    completes(send, 1, IBV_WC_SEND);
    (void)poll_success(RECV_CQ(rig.sides[1].qp), 5);
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(stream));
    OK(gdsync_ready_word_free(word));
    rig_close(&rig);
}

int main(void) {
    struct both both;

    if (getenv("SOFTHCA_WAITS") != NULL) {
        without_waits();
        puts("held: no waits ok");
        return 0;
    }
    open_both(&both);
    rounds(&both);
    by_the_program(&both);
    refusals(&both);
    full(&both);
    failures(&both);
    OK(gdsync_ready_word_free(both.peers[0].word));
    close_both(&both);
    puts("held ok");
    return 0;
}
