/* GPU memory that the CPU cannot reach: regions of it, by address and as dma-bufs, and queues in it. The driver is fake_cuda.c, whose path
 * is in FAKE_CUDA. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <sys/mman.h>

static uint64_t (*fake_alloc)(size_t);
static char *(*fake_bytes)(uint64_t);
static uint64_t (*fake_address)(const void *);
static int (*export_range)(void *, uint64_t, size_t, int, unsigned long long);

/* The queues of the next program are in GPU memory: the program sees its bytes at the driver's array. */
static struct mlx5dv_devx_umem *umem_of_gpu(struct ibv_context *, void *, size_t, uint32_t);
#define mmap(at, size, ...) ((void)sizeof((int[]){__VA_ARGS__}), (void *)fake_bytes(fake_alloc(size)))
#define munmap(at, size) 0
#define mlx5dv_devx_umem_reg umem_of_gpu
#define mlx5dv_devx_umem_reg_ex umem_of_host
#define main run_traffic
static struct mlx5dv_devx_umem *umem_of_host(struct ibv_context *, struct mlx5dv_devx_umem_in *);
#include "traffic.c"
#undef mmap
#undef munmap
#undef mlx5dv_devx_umem_reg
#undef mlx5dv_devx_umem_reg_ex
#undef main

static struct mlx5dv_devx_umem *umem_of_host(struct ibv_context *it, struct mlx5dv_devx_umem_in *in)
{
    return mlx5dv_devx_umem_reg_ex(it, in);
}

/* Two by address, two as dma-bufs, and so on: a completion queue's ring and records are two. */
static struct mlx5dv_devx_umem *umem_of_gpu(struct ibv_context *it, void *memory, size_t size, uint32_t access)
{
    static unsigned count;
    uint64_t address = fake_address(memory);
    struct mlx5dv_devx_umem_in in = {.addr = (void *)address, .size = size, .access = access, .pgsz_bitmap = UINT64_MAX & ~(uint64_t)(PAGE - 1)};
    struct mlx5dv_devx_umem *umem;
    int fd = -1;
    if (count++ / 2 % 2) {
        CHECK(export_range(&fd, address, size, 1, 0) == 0);
        in.addr = NULL;
        in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
        in.dmabuf_fd = fd;
    }
    umem = mlx5dv_devx_umem_reg_ex(it, &in);
    if (fd >= 0)
        CHECK(close(fd) == 0);
    return umem;
}

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(found);
    return found;
}

static void regions(void *library, struct ibv_context *it)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    int (*direct)(void *, uint64_t, size_t, int, unsigned long long) = find(library, "cuMemGetHandleForAddressRange");
    uint64_t address = fake_alloc(4 * PAGE);
    int fd, again, foreign[2];
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    CHECK(pd = ibv_alloc_pd(it));
    CHECK(direct(&fd, address + PAGE, 2 * PAGE, 1, 0) == 0);
    CHECK((again = dup(fd)) >= 0 && close(fd) == 0);
    CHECK(mr = ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x1000, again, all));
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(!ibv_reg_dmabuf_mr(pd, PAGE, PAGE + 1, 0x1000, again, all) && errno == EINVAL);
    CHECK(close(again) == 0);
    /* A file that this process has not exported. */
    CHECK(pipe(foreign) == 0);
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, foreign[0], all) && errno == EOPNOTSUPP);
    CHECK(close(foreign[0]) == 0 && close(foreign[1]) == 0);
    CHECK(mr = ibv_reg_mr(pd, (void *)address, PAGE, all));
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
}

static void registers(void *library, struct ibv_context *it)
{
    int (*lookup)(const char *, void **, int, uint64_t, int *) = find(library, "cuGetProcAddress_v2");
    int (*registered)(void) = find(library, "fake_registered");
    int (*with_register)(void *, size_t, unsigned), (*direct)(void *, size_t, unsigned) = find(library, "cuMemHostRegister_v2");
    struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(it, MLX5DV_UAR_ALLOC_TYPE_NC);
    uint64_t word = 0;
    void *found;
    CHECK(uar);
    CHECK(lookup("cuGetProcAddress", &found, 12040, 0, NULL) == 0 && found == (void *)lookup);
    CHECK(lookup("cuMemHostRegister", &found, 12040, 0, NULL) == 0 && found == (void *)direct);
    with_register = found;
    CHECK(with_register(uar->reg_addr, 8, 7) == 0 && registered() == 3);
    CHECK(with_register(&word, 8, 7) == 801 && registered() == 7);
    CHECK(lookup("cuNoSuchFunction", &found, 12040, 0, NULL) == 500);
    CHECK(!dlsym(library, "cuNoSuchFunction"));
    mlx5dv_devx_free_uar(uar);
}

int main(void)
{
    void *library = dlopen(getenv("FAKE_CUDA"), RTLD_NOW);
    int (*lookup)(const char *, void **, int, uint64_t);
    struct ibv_context *it;
    void *found;
    CHECK(library);
    fake_alloc = find(library, "fake_alloc");
    fake_bytes = find(library, "fake_bytes");
    fake_address = find(library, "fake_address");
    lookup = find(library, "cuGetProcAddress");
    CHECK(lookup("cuMemGetHandleForAddressRange", &found, 11070, 0) == 0);
    export_range = found;
    it = open_device();
    regions(library, it);
    registers(library, it);
    run(it, MLX5DV_UAR_ALLOC_TYPE_BF, -1);
    run(it, MLX5DV_UAR_ALLOC_TYPE_NC, -1);
    CHECK(ibv_close_device(it) == 0);
    return 0;
}
