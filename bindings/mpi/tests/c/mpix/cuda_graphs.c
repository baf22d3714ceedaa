/* Operations in captured and built CUDA graphs: a ring whose rounds are launched ahead. A host function checks each round in the
 * stream's order. Prints a message and succeeds without CUDA. */
#include "common_mpix.h"
#include "ring_step.h"

#include <dlfcn.h>

#define ROUNDS 200

typedef void *handle;

static handle driver, cuda_stream;

/* Calls a driver function, given the types of its arguments. */
#define CALL(name, types, ...)                                                                                        \
    do {                                                                                                              \
        int (*call) types = (int (*) types)dlsym(driver, name);                                                       \
        int result = call ? call(__VA_ARGS__) : -1;                                                                   \
        if (result != 0)                                                                                              \
            fprintf(stderr, "%s: %d\n", name, result);                                                                \
        CHECK(result == 0);                                                                                           \
    } while (0)

static int has_cuda(void)
{
    const char *gpu = getenv("GDSYNC_TEST_GPU");
    handle context;
    int device;

    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver || ((int (*)(unsigned))dlsym(driver, "cuInit"))(0) != 0)
        return 0;
    CALL("cuDeviceGet", (int *, int), &device, gpu ? atoi(gpu) : 0);
    CALL("cuDevicePrimaryCtxRetain", (handle *, int), &context, device);
    CALL("cuCtxSetCurrent", (handle), context);
    CALL("cuStreamCreate", (handle *, unsigned), &cuda_stream, 1 /* CU_STREAM_NON_BLOCKING */);
    return 1;
}

static void enqueue(int type, handle queues[3], MPI_Status statuses[2])
{
    MPIX_Request requests[2];

    OK(MPIX_Isend_enqueue(sent, LEN, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD, &requests[0], type, &queues[0]));
    OK(MPIX_Irecv_enqueue(received, LEN, MPI_INT, (rank + size - 1) % size, 7, MPI_COMM_WORLD, &requests[1], type,
                          &queues[1]));
    OK(MPIX_Waitall_enqueue(2, requests, statuses, type, &queues[2]));
}

static void launch_rounds(handle graph, const MPI_Status *status)
{
    handle executable;
    int round, count;

    CALL("cuGraphInstantiateWithFlags", (handle *, handle, unsigned long long), &executable, graph, 0ull);
    /* An executable graph does not need its graph. */
    CALL("cuGraphDestroy", (handle), graph);
    fill();
    right = round_number = 0;
    for (round = 0; round < ROUNDS; round++) {
        CALL("cuGraphLaunch", (handle, handle), executable, cuda_stream);
        CALL("cuLaunchHostFunc", (handle, void (*)(void *), void *), cuda_stream, step, NULL);
    }
    CALL("cuStreamSynchronize", (handle), cuda_stream);
    CHECK(right == ROUNDS * LEN && round_number == ROUNDS);
    MPI_Get_count(status, MPI_INT, &count);
    CHECK(status->MPI_SOURCE == (rank + size - 1) % size && count == LEN);
    CALL("cuGraphExecDestroy", (handle), executable);
}

/* No other stream of the process is captured, so any capture mode works. */
static void captured(int mode)
{
    handle queues[3] = {cuda_stream, cuda_stream, cuda_stream}, graph;
    static MPI_Status statuses[2];

    CALL("cuStreamBeginCapture_v2", (handle, int), cuda_stream, mode);
    enqueue(MPIX_QUEUE_CUDA_STREAM, queues, statuses);
    CALL("cuStreamEndCapture", (handle, handle *), cuda_stream, &graph);
    launch_rounds(graph, &statuses[1]);
}

static void built(void)
{
    handle graphs[3], graph, nodes[3];
    static MPI_Status statuses[2];
    int at;

    enqueue(MPIX_QUEUE_CUDA_GRAPH, graphs, statuses);
    CALL("cuGraphCreate", (handle *, unsigned), &graph, 0);
    for (at = 0; at < 3; at++) {
        CALL("cuGraphAddChildGraphNode", (handle *, handle, const handle *, size_t, handle), &nodes[at], graph,
             at ? &nodes[at - 1] : NULL, at ? 1 : 0, graphs[at]);
        CALL("cuGraphDestroy", (handle), graphs[at]);
    }
    launch_rounds(graph, &statuses[1]);
}

/* Refusals: a graph cannot wait for an operation of a stream, and a stream that is being captured cannot be waited for. */
static void refused(void)
{
    MPIX_Request once;
    handle graph;
    int value = 3, got = 0;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    OK(MPIX_Isend_enqueue(&value, 1, MPI_INT, rank, 3, MPI_COMM_WORLD, &once, MPIX_QUEUE_CUDA_STREAM, &cuda_stream));
    CHECK(failed(MPIX_Wait_enqueue(&once, MPI_STATUS_IGNORE, MPIX_QUEUE_CUDA_GRAPH, &graph), MPI_ERR_REQUEST, "triggered once"));
    OK(MPI_Recv(&got, 1, MPI_INT, rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPIX_Wait(&once, MPI_STATUS_IGNORE));
    CALL("cuStreamBeginCapture_v2", (handle, int), cuda_stream, 2);
    CHECK(failed(gdsync_mpix_synchronize(MPIX_QUEUE_CUDA_STREAM, &cuda_stream), MPI_ERR_UNSUPPORTED_OPERATION, "captured"));
    CALL("cuStreamEndCapture", (handle, handle *), cuda_stream, &graph);
    CALL("cuGraphDestroy", (handle), graph);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

int main(void)
{
    int mode;

    begin_mpix();
    if (has_cuda()) {
        for (mode = 0; mode < 3; mode++)
            captured(mode);
        built();
        refused();
    } else if (rank == 0)
        fprintf(stderr, "SKIPPED cuda_graphs: there is no CUDA driver here\n");
    end_mpix("cuda_graphs ok");
    return 0;
}
