/* The Rust part's functions for the C part (bindings/mpi/src/api). They return 0 or a class. */
#ifndef GDSYNC_MPI_ENGINE_H
#define GDSYNC_MPI_ENGINE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a line of connection info or a refusal, with its zero. */
#define GDSYNC_MPI_INFO_BYTES 320

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
    uint64_t partitions;
    uint64_t by_stream;
    uint64_t by_thread;
};

void gdsync_mpi_error_text(char *into, size_t len);

int gdsync_mpi_transfer(int sends, void *buffer, uint64_t bytes, const void **made);
int gdsync_mpi_barrier(int rank, int size, const void **made);
int gdsync_mpi_allreduce(const struct gdsync_mpi_reduction *what, const void **made);
int gdsync_mpi_request_free(const void *request);

int gdsync_mpi_peers(const void *request, int *number);
int gdsync_mpi_peer(const void *request, int index, int *peer, int *sends);
int gdsync_mpi_connection_info(const void *request, int index, char *info);
int gdsync_mpi_connect(const void *request, int index, const char *theirs, char *refused);
int gdsync_mpi_abandon_match(const void *request);
int gdsync_mpi_complete_match(const void *request, uint64_t *bytes);
int gdsync_mpi_wait(const void *request, uint64_t *bytes);

/* Partitioned requests. The functions above take them, too; queues cannot start them. */
int gdsync_mpi_partitioned(int sends, void *buffer, int partitions, uint64_t bytes, const void **made);
int gdsync_mpi_partitions_start(const void *request);
int gdsync_mpi_partition_ready(const void *request, int partition);
int gdsync_mpi_partition_arrived(const void *request, int partition, int *arrived);
/* Returns the address of the partition flags, which kernels write and read. */
int gdsync_mpi_partition_flags(const void *request, uint64_t *address);
int gdsync_mpi_poll_partition_flags(int *rounds);

int gdsync_mpi_queue(const void *stream, const void **made);
int gdsync_mpi_queue_free(const void *queue);
int gdsync_mpi_start(const void *queue, size_t number, const void *const *requests);
int gdsync_mpi_enqueue_wait(const void *queue);
int gdsync_mpi_queue_wait(const void *queue);
int gdsync_mpi_launch(const void *queue, void (*function)(void *), void *argument);

/* Operations of MPI that streams trigger, and the thread that starts them in MPI. `stream` points to a handle. */
enum gdsync_mpi_stream {
    GDSYNC_MPI_CUDA = 0,
    GDSYNC_MPI_SOFTWARE = 1,
    /* `stream` is the place for a graph that the call makes. */
    GDSYNC_MPI_CUDA_GRAPH = 2,
    GDSYNC_MPI_SOFTWARE_GRAPH = 3
};

struct gdsync_mpi_calls {
    /* Starts an operation that a stream has triggered, or gives it up. */
    void (*start)(void *operation, int is_given_up);
    /* Ends an operation that no graph triggers any more and that is not outstanding. */
    void (*retire)(void *operation);
    /* Progresses MPI. Returns the number of outstanding operations. */
    int (*progress)(void);
};

int gdsync_mpi_thread_start(const struct gdsync_mpi_calls *calls);
int gdsync_mpi_thread_stop(void);
int gdsync_mpi_thread_wake(void);
int gdsync_mpi_operation(void *operation, int is_in_graph, const void **made);
int gdsync_mpi_operation_completed(const void *operation);
int gdsync_mpi_operation_wait(const void *operation);
int gdsync_mpi_operation_free(const void *operation);
/* Returns whether an operation goes into a graph, which triggers it any number of times. */
int gdsync_mpi_is_graph(int kind, void *const *stream, int *is_graph);
int gdsync_mpi_graph_launch(const void *graph, int kind, void *const *stream);
int gdsync_mpi_graph_free(const void *graph);
/* Ends the operations in graphs, and gives up what launches still trigger; after the thread and all outstanding operations. */
int gdsync_mpi_graphs_end(void);
int gdsync_mpi_enqueue(int kind, void *const *stream, const void *operation);
int gdsync_mpi_enqueue_waits(int kind, void *const *stream, size_t number, const void *const *operations);
int gdsync_mpi_stream_wait(int kind, void *const *stream);
int gdsync_mpi_stream_launch(int kind, void *const *stream, void (*function)(void *), void *argument);

/* Links are requests that match as transfers do, and then carry messages of any buffers. Each message also has an operation, for
 * its flag and, if it is deferred to the thread, its trigger. */
int gdsync_mpi_link(int sends, const void **made);
int gdsync_mpi_message(const void *link, void *operation, void *buffer, uint64_t bytes, const void **made);
int gdsync_mpi_message_free(const void *message);
/* `by_stream` is 1 if the stream and the card do everything. If it is 0, the message is deferred to the thread: its operation is
 * enqueued, and the message is triggered or withdrawn. */
int gdsync_mpi_message_enqueue(const void *link, int kind, void *const *stream, const void *message, int *by_stream);
int gdsync_mpi_message_trigger(const void *link, const void *message);
int gdsync_mpi_message_withdraw(const void *link, const void *message);
/* Requests a report of the message's end. */
int gdsync_mpi_message_watch(const void *link, const void *message);
/* Waits on the CPU for a message that a stream has posted. */
int gdsync_mpi_message_wait(const void *link, const void *message, uint64_t *bytes);
int gdsync_mpi_enqueue_message_waits(int kind, void *const *stream, size_t number, const void *const *messages);
/* Does the thread's work for all links. Calls `ended` for the messages that were triggered or are watched. */
typedef void gdsync_mpi_ended(void *operation, int gdsync_class, const char *text, uint64_t bytes);
int gdsync_mpi_links_progress(gdsync_mpi_ended *ended, int *outstanding);
/* Gives messages a second to complete, and then ends them; after the thread has ended. */
int gdsync_mpi_links_finish(gdsync_mpi_ended *ended);

/* Sets the function that threads of the program call while they wait. */
void gdsync_mpi_set_match_progress(void (*matches)(void));

int gdsync_mpi_allocate(uint64_t bytes, int on_gpu, void **made);
int gdsync_mpi_deallocate(const void *memory);

int gdsync_mpi_counts(struct gdsync_mpi_counts *into);
int gdsync_mpi_finish(struct gdsync_mpi_counts *into);

#endif
