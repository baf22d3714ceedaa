/* The part of mpi-acx.h that kernels use. It includes no headers, so a runtime compiler takes it alone, too. */
#ifndef GDSYNC_MPIX_DEVICE_H
#define GDSYNC_MPIX_DEVICE_H

/* An addition of gdsync: the memory to which an MPIX_Prequest points. A partition is marked if its word has the number of the round.
 * Kernels mark ready partitions, and the library marks arrived ones. */
struct gdsync_mpix_marks {
    unsigned partitions, round;
    unsigned marks[1];
};

/* A request of the CPU, and the request for kernels that is made of it: different types, so that the compiler refuses one for the other. */
typedef struct gdsync_mpix_request *MPIX_Request;
typedef struct gdsync_mpix_marks *MPIX_Prequest;

#ifdef __CUDACC__
#ifndef __CUDACC_RTC__
/* MPIX_Pready and MPIX_Parrived for the CPU, with names that kernels do not define. */
extern "C" int gdsync_mpix_pready(int partition, void *request);
extern "C" int gdsync_mpix_parrived(void *request, int partition, int *flag);
#endif

/* On the CPU, `request` is the address of an MPIX_Request. In a kernel it is an MPIX_Prequest, which is null without a peer; the result
 * is 0, or 1 for a partition that does not exist. */
static inline __host__ __device__ int MPIX_Pready(int partition, void *request)
{
#ifdef __CUDA_ARCH__
    volatile struct gdsync_mpix_marks *marks = (volatile struct gdsync_mpix_marks *)request;
    if (!marks)
        return 0;
    if (partition < 0 || (unsigned)partition >= marks->partitions)
        return 1;
    /* Writes that this thread has made or seen are visible before the mark. */
    __threadfence_system();
    marks->marks[partition] = marks->round;
    return 0;
#else
    return gdsync_mpix_pready(partition, request);
#endif
}

static inline __host__ __device__ int MPIX_Parrived(void *request, int partition, int *flag)
{
#ifdef __CUDA_ARCH__
    volatile struct gdsync_mpix_marks *marks = (volatile struct gdsync_mpix_marks *)request;
    *flag = 1;
    if (!marks)
        return 0;
    if (partition < 0 || (unsigned)partition >= marks->partitions)
        return 1;
    *flag = marks->marks[partition] == marks->round;
    /* Writes before the mark are visible after this. */
    __threadfence_system();
    return 0;
#else
    return gdsync_mpix_parrived(request, partition, flag);
#endif
}

/* An MPIX_Request itself, its address in a kernel, and an MPIX_Prequest on the CPU do not compile. */
__host__ __device__ int MPIX_Pready(int partition, MPIX_Request request) = delete;
__host__ __device__ int MPIX_Parrived(MPIX_Request request, int partition, int *flag) = delete;

static inline __device__ int MPIX_Pready(int partition, MPIX_Prequest request)
{
    return MPIX_Pready(partition, (void *)request);
}

static inline __device__ int MPIX_Parrived(MPIX_Prequest request, int partition, int *flag)
{
    return MPIX_Parrived((void *)request, partition, flag);
}

/* nvcc refuses a call of the other side's function. clang would take the void pointer. */
#ifdef __clang__
__host__ int MPIX_Pready(int partition, MPIX_Prequest request) = delete;
__host__ int MPIX_Parrived(MPIX_Prequest request, int partition, int *flag) = delete;
#endif
#if defined(__clang__) || defined(__CUDACC_RTC__)
__device__ int MPIX_Pready(int partition, MPIX_Request *request) = delete;
__device__ int MPIX_Parrived(MPIX_Request *request, int partition, int *flag) = delete;
#endif

#ifndef __CUDACC_RTC__
static inline __host__ int MPIX_Pready(int partition, MPIX_Request *request)
{
    return MPIX_Pready(partition, (void *)request);
}

static inline __host__ int MPIX_Parrived(MPIX_Request *request, int partition, int *flag)
{
    return MPIX_Parrived((void *)request, partition, flag);
}
#endif
#endif

#endif
