/* The time of an all-reduce: of short buffers, the longest that is reduced by doubling, the shortest that goes round a ring, and a long
 * one. Checks each result. The argument is the number of timed all-reduces of each length. */
#include "queue.h"

#include <time.h>

static double now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static void measure(MPIS_Queue queue, int numbers, int times)
{
    float *in = malloc(numbers * sizeof *in), *out = calloc(numbers, sizeof *out);
    MPIS_Request request;
    double began = 0, took = 0;
    int at, number;

    for (at = 0; at < numbers; at++)
        in[at] = rank + at % 1000;
    OK(MPIS_Allreduce_init(in, out, numbers, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request));
    OK(MPIS_Match(&request, MPI_STATUS_IGNORE));
    /* The first one is a warm-up. */
    for (number = 0; number < 2; number++) {
        MPI_Barrier(MPI_COMM_WORLD);
        began = now_us();
        for (at = 0; at < times; at++) {
            OK(MPIS_Enqueue_start(queue, &request));
            OK(MPIS_Enqueue_waitall(queue));
        }
        OK(MPIS_Queue_wait(queue));
        took = now_us() - began;
    }
    for (at = 0; at < numbers; at++)
        CHECK(out[at] == size * (at % 1000) + size * (size - 1) / 2);
    if (rank == 0)
        printf("%d ranks, %d bytes: %.1f us\n", size, (int)(numbers * sizeof *in), took / times);
    OK(MPIS_Request_free(&request));
    free(in);
    free(out);
}

int main(int count, char **arguments)
{
    int numbers[] = {2, 1024, 8192, 8194, 65536}, times = count > 1 ? atoi(arguments[1]) : 500;
    MPIS_Queue queue;
    size_t at;

    begin();
    queue_init(&queue);
    for (at = 0; at < sizeof numbers / sizeof *numbers; at++)
        measure(queue, numbers[at], times);
    OK(MPIS_Queue_free(&queue));
    end("reductions ok");
    return 0;
}
