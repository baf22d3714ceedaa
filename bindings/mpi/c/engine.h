/* What the Rust part (bindings/mpi/src/api.rs) has for the C part. Functions return 0 or a class. */
#ifndef GDSYNC_MPI_ENGINE_H
#define GDSYNC_MPI_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of an offer, with its zero. */
#define GDSYNC_MPI_OFFER 256

enum gdsync_mpi_class {
    GDSYNC_MPI_ARGUMENT = 1,
    GDSYNC_MPI_BUFFER = 2,
    GDSYNC_MPI_REQUEST = 3,
    GDSYNC_MPI_TRUNCATE = 4,
    GDSYNC_MPI_UNSUPPORTED = 5,
    GDSYNC_MPI_MEMORY = 6,
    GDSYNC_MPI_PEER = 7,
    GDSYNC_MPI_OTHER = 8
};

enum gdsync_mpi_element {
    GDSYNC_MPI_I8,
    GDSYNC_MPI_U8,
    GDSYNC_MPI_I16,
    GDSYNC_MPI_U16,
    GDSYNC_MPI_I32,
    GDSYNC_MPI_U32,
    GDSYNC_MPI_I64,
    GDSYNC_MPI_U64,
    GDSYNC_MPI_F32,
    GDSYNC_MPI_F64
};

enum gdsync_mpi_operation {
    GDSYNC_MPI_SUM,
    GDSYNC_MPI_PRODUCT,
    GDSYNC_MPI_MINIMUM,
    GDSYNC_MPI_MAXIMUM,
    GDSYNC_MPI_LOGICAL_AND,
    GDSYNC_MPI_LOGICAL_OR,
    GDSYNC_MPI_LOGICAL_XOR,
    GDSYNC_MPI_BIT_AND,
    GDSYNC_MPI_BIT_OR,
    GDSYNC_MPI_BIT_XOR
};

struct gdsync_mpi_reduction {
    const void *source;
    void *target;
    uint64_t count;
    uint32_t element;
    uint32_t operation;
    int rank;
    int size;
};

struct gdsync_mpi_counts {
    uint64_t starts;
    uint64_t waits;
    uint64_t batches;
    uint64_t operations;
    uint64_t cpu;
};

void gdsync_mpi_error_text(char *into, size_t len);

int gdsync_mpi_transfer(int sends, void *buffer, uint64_t bytes, const void **made);
int gdsync_mpi_barrier(int rank, int size, const void **made);
int gdsync_mpi_allreduce(const struct gdsync_mpi_reduction *what, const void **made);
int gdsync_mpi_request_free(const void *request);

int gdsync_mpi_legs(const void *request, int *number);
int gdsync_mpi_leg(const void *request, int index, int *peer, int *sends);
int gdsync_mpi_offer(const void *request, int index, char *offer);
int gdsync_mpi_answer(const void *request, int index, const char *theirs, char *refused);
int gdsync_mpi_abandon(const void *request);
int gdsync_mpi_matched(const void *request, uint64_t *bytes);
int gdsync_mpi_wait(const void *request, uint64_t *bytes);

int gdsync_mpi_queue(const void *stream, const void **made);
int gdsync_mpi_queue_free(const void *queue);
int gdsync_mpi_start(const void *queue, size_t number, const void *const *requests);
int gdsync_mpi_enqueue_wait(const void *queue);
int gdsync_mpi_queue_wait(const void *queue);
int gdsync_mpi_launch(const void *queue, void (*function)(void *), void *argument);

/* Called by threads of the program while they wait. */
void gdsync_mpi_meanwhile(void (*matches)(void));

int gdsync_mpi_allocate(uint64_t bytes, int on_gpu, void **made);
int gdsync_mpi_deallocate(const void *memory);

int gdsync_mpi_finish(struct gdsync_mpi_counts *into);

#endif
