/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Descriptors of every kind on CUDA streams, with the driver loaded at run time. Exits with 77 and a reason without a GPU.
 */
#include "common.h"

#include <dlfcn.h>

enum { ROUNDS = 200, NO_GPU = 77, NON_BLOCKING = 1 };

static int (*init)(unsigned);
static int (*retain)(void **context, int device);
static int (*set_current)(void *context);
static int (*stream_create)(CUstream *stream, unsigned flags);
static int (*stream_destroy)(CUstream stream);
static int (*stream_synchronize)(CUstream stream);
static int (*stream_wait_value)(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
static int (*stream_write_value)(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags);
static int (*mem_alloc)(CUdeviceptr *at, size_t size);
static int (*mem_free)(CUdeviceptr at);
static int (*from_device)(void *to, CUdeviceptr from, size_t size);

/* Converts an object pointer to a function pointer, which POSIX allows. */
#define LOAD(library, function, name)                                                                                          \
    do {                                                                                                                       \
        void *found_ = dlsym(library, name);                                                                                   \
        CHECK(found_ != NULL);                                                                                                 \
        memcpy(&(function), &found_, sizeof(found_));                                                                          \
    } while (0)

static int load(void) {
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        return 0;
    }
    LOAD(library, init, "cuInit");
    LOAD(library, retain, "cuDevicePrimaryCtxRetain");
    LOAD(library, set_current, "cuCtxSetCurrent");
    LOAD(library, stream_create, "cuStreamCreate");
    LOAD(library, stream_destroy, "cuStreamDestroy_v2");
    LOAD(library, stream_synchronize, "cuStreamSynchronize");
    LOAD(library, stream_wait_value, "cuStreamWaitValue32_v2");
    LOAD(library, stream_write_value, "cuStreamWriteValue32_v2");
    LOAD(library, mem_alloc, "cuMemAlloc_v2");
    LOAD(library, mem_free, "cuMemFree_v2");
    LOAD(library, from_device, "cuMemcpyDtoH_v2");
    if (init(0) != 0 || retain(&context, 0) != 0) {
        printf("the driver has no GPU\n");
        return 0;
    }
    CHECK(set_current(context) == 0);
    return 1;
}

/* A send, its waits, words of the host and of the GPU, and bytes, in one list. */
static void round_of(struct rig *rig, CUstream stream, uint32_t *words, CUdeviceptr gpu, uint32_t number) {
    struct side *left = &rig->sides[0], *right = &rig->sides[1];
    struct ibv_sge sge = sge_of(left, 0, 64);
    gds_send_wr wr = send_of(&sge, number), *bad = NULL;
    gds_send_request_t send;
    gds_wait_request_t sent, arrived;
    gds_descriptor_t descs[8];
    uint32_t got[3];

    memset(left->buffer, (int)number, 64);
    receive(right, 128, 64, number);
    OK(gds_prepare_send(left->qp, &wr, &bad, &send));
    OK(gds_prepare_wait_cq(SEND_CQ(left->qp), &sent, 0));
    OK(gds_prepare_wait_cq(RECV_CQ(right->qp), &arrived, 0));
    OK(gds_append_wait_cq(&arrived, &words[1], number));
    descs[0].tag = GDS_TAG_WAIT_VALUE32; /* the CPU opens it */
    OK(gds_prepare_wait_value32(&descs[0].wait32, &words[0], number, GDS_WAIT_COND_GEQ, GDS_MEMORY_HOST));
    descs[1].tag = GDS_TAG_WRITE_VALUE32;
    OK(gds_prepare_write_value32(&descs[1].write32, (uint32_t *)(uintptr_t)gpu, number, GDS_MEMORY_GPU));
    descs[2].tag = GDS_TAG_WAIT_VALUE32;
    OK(gds_prepare_wait_value32(&descs[2].wait32, (uint32_t *)(uintptr_t)gpu, number, GDS_WAIT_COND_EQ,
                                GDS_MEMORY_GPU | GDS_WAIT_POST_FLUSH));
    descs[3].tag = GDS_TAG_SEND;
    descs[3].send = &send;
    descs[4].tag = GDS_TAG_WAIT;
    descs[4].wait = &sent;
    descs[5].tag = GDS_TAG_WAIT;
    descs[5].wait = &arrived;
    descs[6].tag = GDS_TAG_WRITE_MEMORY;
    OK(gds_prepare_write_memory(&descs[6].writemem, (uint8_t *)(uintptr_t)(gpu + 4), (const uint8_t *)&number, 4,
                                GDS_MEMORY_GPU));
    descs[7].tag = GDS_TAG_WRITE_VALUE32;
    OK(gds_prepare_write_value32(&descs[7].write32, &words[2], number, GDS_MEMORY_HOST | GDS_WRITE_PRE_BARRIER));
    OK(gds_stream_post_descriptors(stream, 8, descs, 0));
    __atomic_store_n(&words[0], number, __ATOMIC_SEQ_CST);
    CHECK(stream_synchronize(stream) == 0);
    CHECK(words[1] == number && words[2] == number);
    CHECK(from_device(got, gpu, 8) == 0 && got[0] == number && got[1] == number);
    CHECK(memcmp(left->buffer, right->buffer + 128, 64) == 0);
    poll_success(SEND_CQ(left->qp), number);
    poll_success(RECV_CQ(right->qp), number);
}

/* GPU memory if it can be mapped, otherwise host memory. */
static void mapped(void) {
    gds_mem_desc_t memory;
    uint32_t got[2];

    OK(gds_alloc_mapped_memory(&memory, 20000, GDS_MEMORY_GPU));
    printf("GDS_MEMORY_GPU is the %s's here\n", memory.bar_ptr ? "GPU" : "host");
    CHECK(memory.bar_ptr == NULL || memory.bar_ptr == memory.h_ptr);
    ((volatile uint32_t *)memory.h_ptr)[0] = 4711;
    ((volatile uint32_t *)memory.h_ptr)[4999] = 4712;
    __sync_synchronize();
    CHECK(from_device(got, memory.d_ptr, 4) == 0 && from_device(got + 1, memory.d_ptr + 4 * 4999, 4) == 0);
    CHECK(got[0] == 4711 && got[1] == 4712);
    OK(gds_free_mapped_memory(&memory));
}

/* A kernel's pointers are the GPU's, so the driver reaches the words there. */
static void kernels(struct rig *rig) {
    struct side *left = &rig->sides[0];
    struct ibv_sge sge = sge_of(left, 0, 8);
    gds_send_wr wr = send_of(&sge, 1), *bad = NULL;
    gds_send_request_t send;
    gds_mlx5_send_info_t ring;
    gds_mlx5_dword_wait_info_t info;
    gds_mem_desc_t memory;
    uint32_t got = 0;

    OK(gds_alloc_mapped_memory(&memory, 20000, GDS_MEMORY_HOST));
    CHECK(memory.bar_ptr == NULL);
    *(uint32_t *)memory.h_ptr = 4711;
    OK(gds_mlx5_get_dword_wait_info((uint32_t *)memory.h_ptr, 1, GDS_MEMORY_HOST, &info));
    CHECK(from_device(&got, (CUdeviceptr)(uintptr_t)info.ptr, 4) == 0 && got == 4711);
    CHECK(from_device(&got, memory.d_ptr, 4) == 0 && got == 4711);
    OK(gdsync_forget_memory(memory.h_ptr, memory.alloc_size));
    OK(gds_free_mapped_memory(&memory));
    OK(gds_prepare_send(left->qp, &wr, &bad, &send));
    OK(gds_mlx5_get_send_info(1, &send, &ring));
    CHECK(from_device(&got, (CUdeviceptr)(uintptr_t)ring.dbrec_ptr, 4) == 0);
    CHECK(ring.db_ptr != NULL);
    /* The send is never rung for; destroying the queue pair frees it. */
}

/* A synchronization waits for what the program has enqueued by itself, too, whoever keeps the stream. */
static void work_of_the_program(void) {
    CUstream stream, other;
    CUdeviceptr gpu;
    gds_descriptor_t desc;
    uint32_t *word, got = 0;
    int kept;

    CHECK(posix_memalign((void **)&word, 4096, 4096) == 0);
    CHECK(mem_alloc(&gpu, 4096) == 0);
    CHECK(stream_create(&other, NON_BLOCKING) == 0);
    for (kept = 0; kept < 2; kept++) {
        CHECK(stream_create(&stream, NON_BLOCKING) == 0);
        if (kept) {
            OK(gdsync_stream_keep(stream, 0));
        }
        desc.tag = GDS_TAG_WRITE_VALUE32;
        OK(gds_prepare_write_value32(&desc.write32, word, 1, GDS_MEMORY_HOST));
        OK(gds_stream_post_descriptors(stream, 1, &desc, 0));
        OK(gdsync_stream_synchronize(stream, 10000));
        CHECK(stream_write_value(other, gpu, 0, 0) == 0 && stream_synchronize(other) == 0);
        CHECK(stream_wait_value(stream, gpu, 1, 0) == 0);
        CHECK_STATUS(ETIMEDOUT, gdsync_stream_synchronize(stream, 50));
        CHECK(stream_write_value(other, gpu, 1, 0) == 0 && stream_synchronize(other) == 0);
        OK(gdsync_stream_synchronize(stream, 10000));
        OK(gdsync_stream_forget(stream));
        CHECK(stream_destroy(stream) == 0);
    }
    CHECK(from_device(&got, gpu, 4) == 0 && got == 1);
    CHECK(stream_destroy(other) == 0 && mem_free(gpu) == 0);
    OK(gdsync_forget_memory(word, 4096));
    free(word);
}

static void everything(int gpu_id, int flags) {
    struct rig rig;
    CUstream streams[2];
    CUdeviceptr gpu;
    uint32_t *words, number = 1;
    int i;

    rig_open_on(&rig, IBV_QPT_RC, gpu_id, flags);
    CHECK(posix_memalign((void **)&words, 4096, 4096) == 0);
    memset(words, 0, 4096);
    CHECK(mem_alloc(&gpu, 4096) == 0);
    /* Streams that are destroyed and made again at the same addresses, and the default stream. */
    for (i = 0; i < 10; i++) {
        CHECK(stream_create(&streams[0], NON_BLOCKING) == 0 && stream_create(&streams[1], NON_BLOCKING) == 0);
        /* The program keeps every other stream. */
        if (i % 2 == 1) {
            OK(gdsync_stream_keep(streams[0], i % 4 == 1 ? GDSYNC_STREAM_NEVER_CAPTURED : 0));
        }
        for (; number < (uint32_t)(i + 1) * ROUNDS / 10; number++) {
            round_of(&rig, number % 5 == 0 ? NULL : streams[number % 2], words, gpu, number);
        }
        OK(gdsync_stream_forget(streams[0]));
        CHECK(stream_destroy(streams[0]) == 0 && stream_destroy(streams[1]) == 0);
    }
    kernels(&rig);
    OK(gdsync_forget_memory(words, 4096));
    rig_close(&rig);
    free(words);
    CHECK(mem_free(gpu) == 0);
}

int main(void) {
    if (!load()) {
        return NO_GPU;
    }
    mapped();
    work_of_the_program();
    everything(-1, GDS_CREATE_QP_DEFAULT);
    everything(0, GDS_CREATE_QP_TX_CQ_ON_GPU | GDS_CREATE_QP_RX_CQ_ON_GPU);
    everything(0, GDS_CREATE_QP_TX_CQ_ON_GPU | GDS_CREATE_QP_WQ_DBREC_ON_GPU);
    puts("cuda ok");
    return 0;
}
