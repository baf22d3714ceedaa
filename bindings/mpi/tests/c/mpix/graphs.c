/* Operations in graphs that are launched many times: a ring whose rounds are enqueued ahead, objects that the program may free
 * meanwhile, refusals, and the end of the library during a launch. */
#include "common_mpix.h"
#include "ring_step.h"

#define GRAPH MPIX_QUEUE_GDSYNC_GRAPH
#define ROUNDS 100

static int launch(gdsync_mpix_graph graph)
{
    return gdsync_mpix_graph_launch(graph, SOFTWARE, &stream);
}

static void rounds(void)
{
    gdsync_mpix_graph graphs[3];
    MPIX_Request requests[2];
    MPI_Status statuses[2];
    int round, at, count;

    fill();
    OK(MPIX_Isend_enqueue(sent, LEN, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD, &requests[0], GRAPH, &graphs[0]));
    OK(MPIX_Irecv_enqueue(received, LEN, MPI_INT, (rank + size - 1) % size, 7, MPI_COMM_WORLD, &requests[1], GRAPH,
                          &graphs[1]));
    OK(MPIX_Waitall_enqueue(2, requests, statuses, GRAPH, &graphs[2]));
    CHECK(requests[0] == MPIX_REQUEST_NULL && requests[1] == MPIX_REQUEST_NULL);
    for (round = 0; round < ROUNDS; round++) {
        for (at = 0; at < 3; at++)
            OK(launch(graphs[at]));
        OK(gdsync_mpix_launch(SOFTWARE, &stream, step, NULL));
    }
    OK(synchronize());
    CHECK(right == ROUNDS * LEN && round_number == ROUNDS);
    MPI_Get_count(&statuses[1], MPI_INT, &count);
    CHECK(statuses[1].MPI_SOURCE == (rank + size - 1) % size && statuses[1].MPI_TAG == 7 && count == LEN);
    for (at = 0; at < 3; at++)
        OK(gdsync_mpix_graph_destroy(&graphs[at]));
    CHECK(!graphs[0]);
}

/* Frees the datatype before the launches, the graph right after them, and the communicator later. The CPU and a stream wait. */
static void lifetimes(void)
{
    int out[6] = {rank, 0, rank + 1, 0, rank + 2, 0}, in[3] = {-1, -1, -1}, from = (rank + size - 1) % size, round;
    gdsync_mpix_graph there, back;
    MPIX_Request requests[2];
    MPI_Datatype every_other;
    MPI_Status status;
    MPI_Comm comm;

    OK(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    OK(MPI_Type_vector(3, 1, 2, MPI_INT, &every_other));
    OK(MPI_Type_commit(&every_other));
    OK(MPIX_Isend_enqueue(out, 1, every_other, (rank + 1) % size, 1, comm, &requests[0], GRAPH, &there));
    OK(MPIX_Irecv_enqueue(in, 3, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &requests[1], GRAPH, &back));
    OK(MPI_Type_free(&every_other));
    for (round = 0; round < 2; round++) {
        in[0] = in[1] = in[2] = -1;
        OK(launch(back));
        OK(launch(there));
        if (round == 0) {
            /* A stream waits for a request that graphs trigger. */
            MPIX_Request again = requests[0];
            OK(wait_for(&again, MPI_STATUS_IGNORE));
            OK(MPIX_Wait(&requests[1], &status));
            CHECK(status.MPI_SOURCE == from && requests[1] == MPIX_REQUEST_NULL);
        } else {
            OK(gdsync_mpix_graph_destroy(&there));
            OK(gdsync_mpix_graph_destroy(&back));
            /* Only the data tells that a message of the last launch has arrived. */
            while (__atomic_load_n(&in[2], __ATOMIC_ACQUIRE) != from + 2)
                ;
        }
        OK(synchronize());
        CHECK(in[0] == from && in[1] == from + 1 && in[2] == from + 2);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_Comm_free(&comm));
}

/* Messages of one peer and tag keep the order of the stream, with any kind of trigger. */
static void order(void)
{
    int out[3] = {0, 1, 2}, in[3], to = (rank + 1) % size, from = (rank + size - 1) % size, round, at;
    gdsync_mpix_graph graphs[3];
    MPIX_Request requests[2], once;

    /* Launched in another order than they were made, after a message of the stream. */
    OK(MPIX_Isend_enqueue(&out[2], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &requests[0], GRAPH, &graphs[0]));
    OK(MPIX_Isend_enqueue(&out[1], 1, MPI_INT, to, 5, MPI_COMM_WORLD, &requests[1], GRAPH, &graphs[1]));
    OK(MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE, GRAPH, &graphs[2]));
    for (round = 0; round < 50; round++) {
        for (at = 0; at < 3; at++)
            out[at] = 10 * round + at;
        OK(send_to(to, 5, &out[0], 1, MPI_INT, MPI_COMM_WORLD, &once));
        OK(launch(graphs[1]));
        OK(launch(graphs[0]));
        OK(wait_for(&once, MPI_STATUS_IGNORE));
        OK(launch(graphs[2]));
        for (at = 0; at < 3; at++) {
            OK(MPI_Recv(&in[at], 1, MPI_INT, from, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
            CHECK(in[at] == 10 * round + at);
        }
        OK(synchronize());
        /* The program writes the sends' buffers again. */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (at = 0; at < 3; at++)
        OK(gdsync_mpix_graph_destroy(&graphs[at]));
}

/* After the wait, the program may reuse the place of a launch's status. */
static void status_of_one_launch(void)
{
    static MPI_Status place, untouched;
    int value = rank, got = -1, launches;
    gdsync_mpix_graph there, back;
    MPIX_Request requests[2];

    OK(MPIX_Isend_enqueue(&value, 1, MPI_INT, rank, 8, MPI_COMM_WORLD, &requests[0], GRAPH, &there));
    OK(MPIX_Irecv_enqueue(&got, 1, MPI_INT, rank, 8, MPI_COMM_WORLD, &requests[1], GRAPH, &back));
    for (launches = 0; launches < 2; launches++) {
        got = -1;
        OK(launch(there));
        OK(launch(back));
        if (launches == 0) {
            MPIX_Request received = requests[1];
            OK(MPIX_Wait(&received, &place));
            CHECK(place.MPI_SOURCE == rank && place.MPI_TAG == 8);
            memset(&place, 0xee, sizeof place);
            untouched = place;
            /* The buffer is received once the stream has passed the launch. */
            OK(MPIX_Isend_enqueue(&value, 1, MPI_INT, MPI_PROC_NULL, 8, MPI_COMM_WORLD, &received, SOFTWARE, &stream));
            OK(wait_for(&received, MPI_STATUS_IGNORE));
            OK(synchronize());
        } else
            while (__atomic_load_n(&got, __ATOMIC_ACQUIRE) != rank)
                ;
    }
    OK(gdsync_mpix_graph_destroy(&there));
    OK(gdsync_mpix_graph_destroy(&back));
    OK(synchronize());
    CHECK(!memcmp(&place, &untouched, sizeof place));
}

static void refused(void)
{
    gdsync_mpix_graph graph = NULL, none = NULL;
    MPIX_Request request, once;
    MPI_Comm linked;
    MPI_Status status;
    int value = 0, got = 0;
    void *cuda = NULL;

    MPI_Comm_dup(MPI_COMM_WORLD, &linked);
    OK(gdsync_mpix_link(linked));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(linked, MPI_ERRORS_RETURN);
    CHECK(failed(MPIX_Isend_enqueue(&value, 1, MPI_INT, rank, 0, linked, &request, GRAPH, &graph),
                 MPI_ERR_UNSUPPORTED_OPERATION, "MPI_Comm_dup"));
    OK(send_to(rank, 3, &value, 1, MPI_INT, MPI_COMM_WORLD, &once));
    CHECK(failed(MPIX_Wait_enqueue(&once, MPI_STATUS_IGNORE, GRAPH, &graph), MPI_ERR_REQUEST, "triggered once"));
    CHECK(once != MPIX_REQUEST_NULL);
    OK(MPI_Recv(&got, 1, MPI_INT, rank, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    OK(MPIX_Wait(&once, MPI_STATUS_IGNORE));
    OK(MPIX_Irecv_enqueue(&got, 1, MPI_INT, rank, 4, MPI_COMM_WORLD, &request, GRAPH, &graph));
    CHECK(failed(MPIX_Waitall_enqueue(1, &request, &status, SOFTWARE, &stream), MPI_ERR_UNSUPPORTED_OPERATION,
                 "MPI_STATUS_IGNORE"));
    OK(MPIX_Request_free(&request));
    OK(gdsync_mpix_graph_destroy(&graph));
    CHECK(failed(launch(none), MPI_ERR_ARG, "null"));
    CHECK(failed(gdsync_mpix_graph_destroy(&none), MPI_ERR_ARG, "null"));
    CHECK(failed(gdsync_mpix_graph_destroy(NULL), MPI_ERR_ARG, "null"));
    CHECK(failed(gdsync_mpix_synchronize(GRAPH, &graph), MPI_ERR_ARG, "is a graph"));
    /* An empty graph does nothing. */
    OK(MPIX_Waitall_enqueue(0, NULL, MPI_STATUSES_IGNORE, GRAPH, &graph));
    OK(launch(graph));
    CHECK(failed(gdsync_mpix_graph_launch(graph, GRAPH, &graph), MPI_ERR_ARG, "is a graph"));
    OK(gdsync_mpix_graph_destroy(&graph));
    /* Without CUDA there are no CUDA graphs. */
    CHECK(failed(MPIX_Isend_enqueue(&value, 1, MPI_INT, rank, 0, MPI_COMM_WORLD, &request, MPIX_QUEUE_CUDA_GRAPH, &cuda),
                 MPI_ERR_UNSUPPORTED_OPERATION, "cudaSetDevice"));
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&linked);
}

int main(void)
{
    gdsync_mpix_graph never, graph, wait;
    MPIX_Request requests[2];
    MPI_Status status;
    int value = 0;

    begin_mpix();
    rounds();
    lifetimes();
    order();
    status_of_one_launch();
    refused();
    /* The end of the library ends a graph that is never launched, and a launch without a message. */
    OK(MPIX_Irecv_enqueue(&value, 1, MPI_INT, rank, 98, MPI_COMM_WORLD, &requests[0], GRAPH, &never));
    OK(MPIX_Irecv_enqueue(&value, 1, MPI_INT, rank, 99, MPI_COMM_WORLD, &requests[1], GRAPH, &graph));
    OK(MPIX_Wait_enqueue(&requests[1], &status, GRAPH, &wait));
    OK(launch(graph));
    /* The library knows launches that have triggered an operation. */
    OK(synchronize());
    OK(launch(wait));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPIX_Finalize());
    OK(synchronize());
    CHECK(status.MPI_ERROR == MPI_ERR_OTHER);
    OK(gdsync_mpix_graph_destroy(&graph));
    OK(gdsync_mpix_graph_destroy(&never));
    OK(gdsync_mpix_stream_destroy(&stream));
    end("graphs ok");
    return 0;
}
