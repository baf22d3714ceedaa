/* The operations of IBGDA with the CUDA driver alone: queues in GPU memory, registered as a dma-buf; doorbells stored by the GPU; writes and
 * atomics on GPU memory. Runs on a GPU, or on fake_cuda.c, whose path is in FAKE_CUDA. */
#define _GNU_SOURCE
#include "devx.h"
#include <dlfcn.h>
#include <unistd.h>

enum { GPU = 1 << 21, CQ_AT = 0, CQ_RECORD_AT = PAGE, QP_AT = 2 * PAGE, QP_BYTES = RECORD_AT + PAGE, DATA_AT = 64 * PAGE, LOG = 6, ROUNDS = 200, LONG = 150000 };

/* From cuda.h. */
static int (*cuInit)(unsigned);
static int (*cuDeviceGet)(int *, int);
static int (*cuDeviceGetAttribute)(int *, int, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuMemcpyDtoH)(void *, uint64_t, size_t);
static int (*cuMemcpyHtoD)(uint64_t, const void *, size_t);
static int (*cuMemGetHandle)(void *, uint64_t, size_t, int, unsigned long long);
static int (*cuMemHostRegister)(void *, size_t, unsigned);
static int (*cuMemHostGetDevicePointer)(uint64_t *, void *, unsigned);
static int (*cuStreamCreate)(void **, unsigned);
static int (*cuStreamWriteValue64)(void *, uint64_t, uint64_t, unsigned);
static int (*cuStreamSynchronize)(void *);
static int (*cuGetProcAddress)(const char *, void **, int, uint64_t, int *);

static int (*fake_direct)(int out);

static uint64_t gpu, registers;
static void *stream;
static uint32_t sender, head;

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fprintf(stderr, "%s is not there\n", name);
    CHECK(found);
    return found;
}

static void open_driver(void)
{
    const char *path = getenv("FAKE_CUDA");
    void *library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW), *context;
    int device, has_exports = 0;
    if (!library) {
        puts("no CUDA driver");
        exit(77);
    }
    cuInit = find(library, "cuInit");
    cuDeviceGet = find(library, "cuDeviceGet");
    cuDeviceGetAttribute = find(library, "cuDeviceGetAttribute");
    cuDevicePrimaryCtxRetain = find(library, "cuDevicePrimaryCtxRetain");
    cuCtxSetCurrent = find(library, "cuCtxSetCurrent");
    cuMemAlloc = find(library, "cuMemAlloc_v2");
    cuMemcpyDtoH = find(library, "cuMemcpyDtoH_v2");
    cuMemcpyHtoD = find(library, "cuMemcpyHtoD_v2");
    cuMemHostGetDevicePointer = find(library, "cuMemHostGetDevicePointer_v2");
    cuStreamCreate = find(library, "cuStreamCreate");
    cuStreamWriteValue64 = find(library, "cuStreamWriteValue64_v2");
    cuStreamSynchronize = find(library, "cuStreamSynchronize");
    cuGetProcAddress = find(library, "cuGetProcAddress_v2");
    if (path)
        fake_direct = find(library, "fake_direct");
    /* Looked up as the CUDA runtime does. */
    CHECK(cuGetProcAddress("cuMemGetHandleForAddressRange", (void **)&cuMemGetHandle, 12040, 0, &has_exports) == 0);
    CHECK(cuGetProcAddress("cuMemHostRegister", (void **)&cuMemHostRegister, 12040, 0, &has_exports) == 0);
    CHECK(cuInit(0) == 0 && cuDeviceGet(&device, 0) == 0);
    CHECK(cuDeviceGetAttribute(&has_exports, 124, device) == 0); /* CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED */
    if (!has_exports) {
        puts("the driver makes no dma-bufs of GPU memory");
        exit(77);
    }
    CHECK(cuDevicePrimaryCtxRetain(&context, device) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuMemAlloc(&gpu, GPU) == 0 && cuStreamCreate(&stream, 1) == 0);
}

static int export_all(void)
{
    int fd = -1;
    CHECK(cuMemGetHandle(&fd, gpu, GPU, 1, 0) == 0 && fd >= 0);
    return fd;
}

static struct mlx5dv_devx_umem *umem_of_gpu(struct ibv_context *context)
{
    struct mlx5dv_devx_umem_in in = {.size = DATA_AT, .access = IBV_ACCESS_LOCAL_WRITE, .pgsz_bitmap = UINT64_MAX & ~(uint64_t)(PAGE - 1),
                                     .comp_mask = MLX5DV_UMEM_MASK_DMABUF, .dmabuf_fd = export_all()};
    struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg_ex(context, &in);
    CHECK(umem && close(in.dmabuf_fd) == 0);
    return umem;
}

/* Posts an entry with the given segments after the control segment, waits for its completion, and checks that it is the only one. */
static void post(unsigned opcode, unsigned modifier, const void *segments, unsigned size)
{
    uint8_t entry[128] = {0}, cqe[64];
    uint32_t blocks = (16 + size + 63) / 64, record;
    uint64_t doorbell;
    time_t end = time(NULL) + 10;
    put(entry, 0, 8, modifier);
    put(entry, 8, 16, head & 0xffff);
    put(entry, 24, 8, opcode);
    put(entry, 32, 24, sender);
    put(entry, 56, 8, (16 + size) / 16);
    entry[11] = 8; /* an entry in the completion queue */
    memcpy(entry + 16, segments, size);
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t place = (head + i) & ((1u << LOG) - 1);
        CHECK(cuMemcpyHtoD(gpu + QP_AT + RECEIVE_BYTES + place * 64, entry + i * 64, 64) == 0);
    }
    record = htobe32((head + blocks) & 0xffff);
    CHECK(cuMemcpyHtoD(gpu + QP_AT + RECORD_AT + 4, &record, 4) == 0);
    memcpy(&doorbell, entry, 8);
    CHECK(cuStreamWriteValue64(stream, registers, doorbell, 0) == 0 && cuStreamSynchronize(stream) == 0);
    /* A collapsed queue always uses the first entry. */
    do {
        CHECK(time(NULL) < end);
        CHECK(cuMemcpyDtoH(cqe, gpu + CQ_AT, sizeof(cqe)) == 0);
    } while (cqe[63] >> 4 == 0xf || get(cqe, 60 * 8, 16) != (head & 0xffff));
    CHECK(cqe[63] >> 4 == 0);
    head += blocks;
}

static void atomic(uint64_t remote, uint32_t rkey, unsigned opcode, unsigned modifier, const uint64_t *operands, unsigned words, const struct ibv_mr *result, unsigned bytes)
{
    uint8_t segments[80] = {0};
    put(segments, 0, 64, remote);
    put(segments, 64, 32, rkey);
    for (unsigned i = 0; i < words; i++)
        put(segments, 128 + i * 64, 64, operands[i]);
    put(segments + 16 + words * 8, 0, 32, bytes);
    put(segments + 16 + words * 8, 32, 32, result->lkey);
    put(segments + 16 + words * 8, 64, 64, (uintptr_t)result->addr);
    post(opcode, modifier, segments, 32 + words * 8);
}

/* A write of several packets within GPU memory: the card has the driver copy all but the last to its own memory and back. */
static void write_long(const struct ibv_mr *region)
{
    static uint8_t sent[LONG], got[LONG];
    uint8_t segments[32] = {0};
    for (unsigned i = 0; i < LONG; i++)
        sent[i] = (uint8_t)(i * 7 + i / 251);
    CHECK(cuMemcpyHtoD(gpu + DATA_AT + PAGE, sent, LONG) == 0);
    put(segments, 0, 64, 0x1000 + 2 * LONG);
    put(segments, 64, 32, region->rkey);
    put(segments, 128, 32, LONG);
    put(segments, 160, 32, region->lkey);
    put(segments, 192, 64, 0x1000 + PAGE);
    post(8, 0, segments, sizeof(segments));
    CHECK(cuMemcpyDtoH(got, gpu + DATA_AT + 2 * LONG, LONG) == 0 && memcmp(got, sent, LONG) == 0);
    if (fake_direct)
        CHECK(fake_direct(1) >= 2 && fake_direct(0) >= 2);
}

int main(void)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, fd;
    uint8_t in[COMMAND], out[16] = {0}, ring[64 << 4], *local = pages(PAGE);
    struct qp gpu_qp = {.log_size = LOG}, receiver;
    struct mlx5dv_devx_obj *queue;
    struct mlx5dv_devx_umem *umem;
    struct mlx5dv_devx_uar *uar;
    struct ibv_context *context;
    struct mlx5dv_obj obj;
    struct mlx5dv_pd domain;
    struct ibv_mr *target, *result;
    struct ibv_pd *pd;
    struct cq far;
    uint64_t words[2];
    uint32_t halves[2];

    open_driver();
    context = open_device();
    CHECK(pd = ibv_alloc_pd(context));
    obj.pd.in = pd;
    obj.pd.out = &domain;
    CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == 0);
    CHECK(uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC));
    CHECK(cuMemHostRegister(uar->reg_addr, 8, 7) == 0); /* portable, mapped, device memory */
    CHECK(cuMemHostGetDevicePointer(&registers, uar->reg_addr, 0) == 0);
    fd = export_all();
    CHECK(target = ibv_reg_dmabuf_mr(pd, DATA_AT, GPU - DATA_AT, 0x1000, fd, all));
    CHECK(close(fd) == 0);
    CHECK(result = ibv_reg_mr(pd, local, PAGE, all));

    /* A collapsed completion queue of 16 entries and a queue pair, in GPU memory. */
    umem = umem_of_gpu(context);
    memset(ring, 0xff, sizeof(ring));
    CHECK(cuMemcpyHtoD(gpu + CQ_AT, ring, sizeof(ring)) == 0);
    memset(ring, 0, sizeof(ring));
    CHECK(cuMemcpyHtoD(gpu + CQ_RECORD_AT, ring, 8) == 0 && cuMemcpyHtoD(gpu + QP_AT + RECORD_AT, ring, 8) == 0);
    fill_create_cq(in, context, uar, umem->umem_id, 4);
    put(in, 0x80 + 0xb, 1, 1);           /* cc */
    put(in, 0x80 + 0xe, 1, 1);           /* oi */
    put(in, 0x80 + 0x1c0, 64, CQ_RECORD_AT);
    CHECK(queue = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    fill_create_qp(in, uar, domain.pdn, number_of(out), umem->umem_id, LOG);
    put(in, 0xc0 + 0x500, 64, QP_AT + RECORD_AT); /* dbr_addr */
    put(in, 0x800, 64, QP_AT);                    /* wq_umem_offset */
    CHECK(gpu_qp.object = mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
    sender = gpu_qp.number = number_of(out);
    far = create_cq(context, uar, 4);
    receiver = create_qp(context, uar, domain.pdn, far.number);
    connect_qp(context, &gpu_qp, receiver.number);
    connect_qp(context, &receiver, sender);

    for (uint64_t i = 0; i < ROUNDS; i++) {
        uint8_t segments[32] = {0};
        uint64_t value = 0x1234567800000000u + i, found;
        put(segments, 0, 64, 0x1000 + i * 8);
        put(segments, 64, 32, target->rkey);
        put(segments, 128, 32, 0x80000008); /* 8 bytes inline */
        memcpy(segments + 20, &value, 8);
        post(8, 0, segments, sizeof(segments));
        CHECK(cuMemcpyDtoH(&found, gpu + DATA_AT + i * 8, 8) == 0 && found == value);
    }
    write_long(target);
    /* Fetch and add; masked compare and swap; masked fetch and add of 4 bytes, whose result is big endian. */
    words[0] = 5;
    words[1] = UINT64_MAX;
    CHECK(cuMemcpyHtoD(gpu + DATA_AT, words, 16) == 0);
    atomic(0x1000, target->rkey, 0x12, 0, (uint64_t[]){3, 0}, 2, result, 8);
    CHECK(*(uint64_t *)local == 5);
    atomic(0x1008, target->rkey, 0x14, 9, (uint64_t[]){0, 0, 0xff, 0}, 4, result, 8);
    CHECK(*(uint64_t *)local == UINT64_MAX);
    CHECK(cuMemcpyDtoH(words, gpu + DATA_AT, 16) == 0 && words[0] == 8 && words[1] == (UINT64_MAX & ~(uint64_t)0xff));
    atomic(0x1004, target->rkey, 0x15, 8, (uint64_t[]){(uint64_t)7 << 32, 0}, 2, result, 4);
    atomic(0x1004, target->rkey, 0x15, 8, (uint64_t[]){(uint64_t)1 << 32, 0}, 2, result, 4);
    CHECK(cuMemcpyDtoH(halves, gpu + DATA_AT, 8) == 0 && halves[0] == 8 && halves[1] == 8);
    CHECK(be32toh(*(uint32_t *)local) == 7);

    CHECK(mlx5dv_devx_obj_destroy(gpu_qp.object) == 0 && mlx5dv_devx_obj_destroy(queue) == 0);
    destroy_qp(&receiver);
    destroy_cq(&far);
    CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
    CHECK(ibv_dereg_mr(target) == 0 && ibv_dereg_mr(result) == 0 && ibv_dealloc_pd(pd) == 0);
    mlx5dv_devx_free_uar(uar);
    CHECK(ibv_close_device(context) == 0);
    puts("201 writes and 4 atomics on GPU memory, by queues in GPU memory, rung by the GPU: verified");
    return 0;
}
