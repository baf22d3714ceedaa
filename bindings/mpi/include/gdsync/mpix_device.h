/* The part of mpi-acx.h that kernels use. It includes nothing, so a compiler at run time takes it alone, too. */
#ifndef GDSYNC_MPIX_DEVICE_H
#define GDSYNC_MPIX_DEVICE_H

/* gdsync's own: what an MPIX_Prequest points to. A partition is marked where its word has the number of the round. Kernels
 * mark what is ready, and the library marks what has arrived. */
struct gdsync_mpix_marks {
    unsigned partitions, round;
    unsigned marks[1];
};

#ifdef __CUDACC__
#ifndef __CUDACC_RTC__
/* MPIX_Pready and MPIX_Parrived on the CPU, by names that kernels do not have. */
extern "C" int gdsync_mpix_pready(int partition, void *request);
extern "C" int gdsync_mpix_parrived(void *request, int partition, int *flag);
#endif

/* On the CPU, `request` is the address of an MPIX_Request. In a kernel it is an MPIX_Prequest, of which a null one has no
 * peer; the result is 0, or 1 where there is no such partition. */
static inline __host__ __device__ int MPIX_Pready(int partition, void *request)
{
#ifdef __CUDA_ARCH__
    volatile struct gdsync_mpix_marks *marks = (volatile struct gdsync_mpix_marks *)request;
    if (!marks)
        return 0;
    if (partition < 0 || (unsigned)partition >= marks->partitions)
        return 1;
    /* What this thread has written and seen written is visible before the mark. */
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
    /* What was written before the mark is visible after. */
    __threadfence_system();
    return 0;
#else
    return gdsync_mpix_parrived(request, partition, flag);
#endif
}
#endif

#endif
