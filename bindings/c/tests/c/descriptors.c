/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Every kind of descriptor, on a software stream and on the CPU, and every operation of a send.
 */
#include "common.h"

static gds_descriptor_t write32(uint32_t *ptr, uint32_t value, int flags) {
    gds_descriptor_t desc;
    desc.tag = GDS_TAG_WRITE_VALUE32;
    OK(gds_prepare_write_value32(&desc.write32, ptr, value, flags));
    return desc;
}

static gds_descriptor_t wait32(uint32_t *ptr, uint32_t value, gds_wait_cond_flag_t condition, int flags) {
    gds_descriptor_t desc;
    desc.tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&desc.wait32, ptr, value, condition, flags));
    return desc;
}

/* The stream waits for the CPU until each condition is met. */
static void conditions(CUstream stream, uint32_t *word, uint32_t *flag) {
    static const struct {
        gds_wait_cond_flag_t condition;
        uint32_t value, unmet, met;
    } cases[] = {
        {GDS_WAIT_COND_GEQ, 5, 4, 6},
        {GDS_WAIT_COND_GEQ, 2, 0xffffffff, 2},
        {GDS_WAIT_COND_EQ, 5, 6, 5},
        {GDS_WAIT_COND_AND, 6, 9, 12},
        {GDS_WAIT_COND_NOR, 0xfffffffe, 1, 0x10},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gds_descriptor_t descs[2];
        __atomic_store_n(word, cases[i].unmet, __ATOMIC_SEQ_CST);
        *flag = 0;
        descs[0] = wait32(word, cases[i].value, cases[i].condition, GDS_MEMORY_HOST | GDS_WAIT_POST_FLUSH);
        descs[1] = write32(flag, 1, GDS_MEMORY_HOST | GDS_WRITE_PRE_BARRIER);
        OK(gds_stream_post_descriptors(stream, 2, descs, 0));
        CHECK_STATUS(ETIMEDOUT, gdsync_stream_synchronize(stream, 5));
        CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0);
        __atomic_store_n(word, cases[i].met, __ATOMIC_SEQ_CST);
        OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
        CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 1);
    }
}

/* All kinds in one list. */
static void mixed(struct rig *rig, CUstream stream, uint32_t *words) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge sge = sge_of(left, 0, 32);
    gds_send_wr wr = send_of(&sge, 7), *bad = NULL;
    gds_send_request_t send;
    gds_wait_request_t sent, arrived;
    gds_descriptor_t descs[7];
    uint8_t bytes[5000], *target = (uint8_t *)(words + 1024) + 3;
    size_t i;

    for (i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)(i * 7);
    }
    memset(words, 0, 64);
    memcpy(left->buffer, "message in the order of a stream", 32);
    receive(right, 256, 32, 9);
    OK(gds_prepare_send(left->qp, &wr, &bad, &send));
    OK(gds_prepare_wait_cq(SEND_CQ(left->qp), &sent, 0));
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &arrived, 0));
    OK(gds_append_wait_cq(&arrived, &words[2], 77));
#ifdef GDSYNC_EXP_VERBS
    CHECK(arrived.peek.entries == 1);
#endif

    descs[0] = write32(&words[0], 1, GDS_MEMORY_GPU);
    descs[1].tag = GDS_TAG_SEND;
    descs[1].send = &send;
    descs[2].tag = GDS_TAG_WAIT;
    descs[2].wait = &sent;
    descs[3].tag = GDS_TAG_WAIT;
    descs[3].wait = &arrived;
    descs[4] = wait32(&words[2], 77, GDS_WAIT_COND_EQ, GDS_MEMORY_HOST);
    descs[5].tag = GDS_TAG_WRITE_MEMORY;
    OK(gds_prepare_write_memory(&descs[5].writemem, target, bytes, sizeof(bytes),
                                GDS_MEMORY_HOST | GDS_WRITE_MEMORY_PRE_BARRIER_SYS | GDS_WRITE_MEMORY_POST_BARRIER_SYS));
    descs[6] = write32(&words[1], 2, GDS_MEMORY_HOST);
    if (stream) {
        OK(gds_stream_post_descriptors(stream, 7, descs, 0));
        memset(bytes, 0, sizeof(bytes)); /* copied by then */
        OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    } else {
        OK(gds_post_descriptors(7, descs, 0));
    }
    CHECK(words[0] == 1 && words[1] == 2 && words[2] == 77);
    CHECK(memcmp(right->buffer + 256, left->buffer, 32) == 0);
    for (i = 0; i < sizeof(bytes); i++) {
        CHECK(target[i] == (uint8_t)(i * 7));
    }
    poll_success(SEND_CQ(left->qp), 7);
    poll_success(RECV_CQ(right->qp), 9);
}

/* Each operation, posted by the CPU. */
static void operations(struct rig *rig) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge sges[2], result = sge_of(left, 1024, 8);
    gds_send_wr wr, second, *bad = NULL;
    struct ibv_wc wc;
    uint64_t number = 40;

    /* A list of two, of which only the second is signaled: a gathered write, and an inline write with immediate data. */
    memcpy(left->buffer, "gathered", 8);
    sges[0] = sge_of(left, 0, 4);
    sges[1] = sge_of(left, 4, 4);
    wr = send_of(sges, 1);
    wr.num_sge = 2;
    set_opcode(&wr, IBV_WR_RDMA_WRITE);
    set_flags(&wr, 0);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)(right->buffer + 2048);
    wr.wr.rdma.rkey = right->mr->rkey;
    second = wr;
    second.wr_id = 2;
    set_opcode(&second, IBV_WR_RDMA_WRITE_WITH_IMM);
    set_flags(&second, IBV_SEND_SIGNALED | IBV_SEND_INLINE | IBV_SEND_SOLICITED);
    set_immediate(&second, 0x01020304);
    second.wr.rdma.remote_addr += 8;
    wr.next = &second;
    receive(right, 0, 8, 3);
    OK(gds_post_send(left->qp, &wr, &bad));
    CHECK(poll_success(SEND_CQ(left->qp), 2).opcode == IBV_WC_RDMA_WRITE);
    wc = poll_success(RECV_CQ(right->qp), 3);
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == 0x01020304 && wc.wc_flags == IBV_WC_WITH_IMM);
    CHECK(wc.byte_len == 8 && wc.qp_num == right->qp->qp->qp_num);
    CHECK(memcmp(right->buffer + 2048, "gatheredgathered", 16) == 0);

    /* A read, and a fenced send with immediate data. */
    wr = send_of(sges, 4);
    set_opcode(&wr, IBV_WR_RDMA_READ);
    sges[0] = sge_of(left, 512, 16);
    wr.wr.rdma.remote_addr = (uint64_t)(uintptr_t)(right->buffer + 2048);
    wr.wr.rdma.rkey = right->mr->rkey;
    OK(gds_post_send(left->qp, &wr, &bad));
    sges[1] = sge_of(left, 512, 16);
    second = send_of(&sges[1], 5);
    set_opcode(&second, IBV_WR_SEND_WITH_IMM);
    set_flags(&second, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
    set_immediate(&second, 9);
    receive(right, 4096, 64, 6);
    OK(gds_post_send(left->qp, &second, &bad));
    wc = poll_success(SEND_CQ(left->qp), 4);
    CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 16);
    poll_success(SEND_CQ(left->qp), 5);
    wc = poll_success(RECV_CQ(right->qp), 6);
    CHECK(wc.byte_len == 16 && wc.imm_data == 9 && memcmp(right->buffer + 4096, "gatheredgathered", 16) == 0);

    /* Atomics: 40 + 2, then 42 to 50. */
    memcpy(right->buffer + 3072, &number, 8);
    wr = send_of(&result, 7);
    set_opcode(&wr, IBV_WR_ATOMIC_FETCH_AND_ADD);
    wr.wr.atomic.remote_addr = (uint64_t)(uintptr_t)(right->buffer + 3072);
    wr.wr.atomic.rkey = right->mr->rkey;
    wr.wr.atomic.compare_add = 2;
    OK(gds_post_send(left->qp, &wr, &bad));
    CHECK(poll_success(SEND_CQ(left->qp), 7).opcode == IBV_WC_FETCH_ADD);
    memcpy(&number, left->buffer + 1024, 8);
    CHECK(number == 40);
    set_opcode(&wr, IBV_WR_ATOMIC_CMP_AND_SWP);
    wr.wr.atomic.compare_add = 42;
    wr.wr.atomic.swap = 50;
    OK(gds_post_send(left->qp, &wr, &bad));
    CHECK(poll_success(SEND_CQ(left->qp), 7).opcode == IBV_WC_COMP_SWAP);
    memcpy(&number, right->buffer + 3072, 8);
    CHECK(number == 50);
}

/* Datagrams, with an address handle of the program. */
static void datagrams(void) {
    struct rig rig;
    struct side *left = &rig.sides[0], *right = &rig.sides[1];
    struct ibv_ah_attr path;
    struct ibv_ah *ah;
    struct ibv_sge sge;
    gds_send_wr wr, *bad = NULL;
    struct ibv_wc wc;

    rig_open(&rig, IBV_QPT_UD);
    memset(&path, 0, sizeof(path));
    path.dlid = rig.port.lid;
    path.port_num = 1;
    path.is_global = rig.port.link_layer == IBV_LINK_LAYER_ETHERNET;
    OK(gdsync_query_gid(rig.context, 1, 0, &path.grh.dgid));
    path.grh.hop_limit = 1;
    ah = gdsync_create_ah(rig.pd, &path);
    CHECK(ah != NULL);
    memcpy(left->buffer, "datagram", 8);
    sge = sge_of(left, 0, 8);
    wr = send_of(&sge, 1);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = right->qp->qp->qp_num;
    wr.wr.ud.remote_qkey = 0x1234;
    receive(right, 0, 48, 2);
    OK(gds_post_send(left->qp, &wr, &bad));
    poll_success(SEND_CQ(left->qp), 1);
    wc = poll_success(RECV_CQ(right->qp), 2);
    CHECK(wc.byte_len == 48 && wc.src_qp == left->qp->qp->qp_num);
    CHECK(memcmp(right->buffer + 40, "datagram", 8) == 0);
    wr.wr.ud.ah = NULL;
    bad = NULL;
    CHECK_STATUS(EINVAL, gds_post_send(left->qp, &wr, &bad));
    CHECK(bad == &wr);
    OK(gdsync_destroy_ah(ah));
    rig_close(&rig);
}

int main(void) {
    struct rig rig;
    CUstream stream;
    gds_mem_desc_t memory;

    rig_open(&rig, IBV_QPT_RC);
    stream = gdsync_soft_stream_create();
    CHECK(stream != NULL);
    OK(gds_alloc_mapped_memory(&memory, 16384, GDS_MEMORY_HOST));
    CHECK(memory.h_ptr != NULL && memory.d_ptr != 0 && memory.alloc_size == 16384);
    conditions(stream, (uint32_t *)memory.h_ptr, (uint32_t *)memory.h_ptr + 1);
    mixed(&rig, stream, (uint32_t *)memory.h_ptr);
    mixed(&rig, NULL, (uint32_t *)memory.h_ptr);
    operations(&rig);
    OK(gds_stream_post_descriptors(stream, 0, NULL, 0));
    OK(gds_post_descriptors(0, NULL, 0));
    OK(gdsync_forget_memory(memory.h_ptr, memory.alloc_size));
    OK(gds_free_mapped_memory(&memory));
    CHECK_STATUS(EINVAL, gds_free_mapped_memory(&memory));
    OK(gdsync_soft_stream_destroy(stream));
    rig_close(&rig);
    datagrams();
    puts("descriptors ok");
    return 0;
}
