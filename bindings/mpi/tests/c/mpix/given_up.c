/* The end with outstanding work, with and without links: a receive without a message, for which a stream waits; operations after it that
 * the stream never triggers; a partitioned request whose other side is never made; and one that is never waited for. */
#include "common_mpix.h"

int main(void)
{
    static int value = 7, in, other;
    static MPI_Status statuses[3];
    MPIX_Request requests[8];

    begin();
    OK(MPIX_Init());
    OK(MPIX_Finalize());
    /* Once more. */
    OK(MPIX_Init());
    OK(gdsync_mpix_stream_create(&stream));
    OK(receive_from(rank, 1, &in, 1, MPI_INT, MPI_COMM_WORLD, &requests[0]));
    OK(wait_for(&requests[0], &statuses[0]));
    OK(receive_from(rank, 2, &in, 1, MPI_INT, MPI_COMM_WORLD, &requests[1]));
    OK(send_to(rank, 1, &value, 1, MPI_INT, MPI_COMM_WORLD, &requests[2]));
    OK(wait_for(&requests[1], &statuses[1]));
    OK(receive_from(rank, 3, &in, 1, MPI_INT, MPI_COMM_WORLD, &requests[3]));
    OK(receive_from(0, 3, &in, 1, MPI_INT, MPI_COMM_SELF, &requests[7]));
    OK(MPIX_Psend_init(&value, 1, 1, MPI_INT, rank, 4, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[4]));
    OK(MPIX_Start(&requests[4]));
    OK(MPIX_Pready(0, &requests[4]));
    OK(MPIX_Psend_init(&value, 1, 1, MPI_INT, rank, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[5]));
    OK(MPIX_Precv_init(&other, 1, 1, MPI_INT, rank, 5, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[6]));
    OK(MPIX_Startall(2, &requests[5]));
    OK(MPIX_Pready(0, &requests[5]));
    if (rank % 2 == 0) {
        OK(MPIX_Finalize());
        /* The stream passes its waits, and the statuses have errors. */
        OK(synchronize());
        CHECK(failed(statuses[0].MPI_ERROR, MPI_ERR_OTHER, "") && failed(statuses[1].MPI_ERROR, MPI_ERR_OTHER, ""));
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        CHECK(failed(MPIX_Wait(&requests[3], MPI_STATUS_IGNORE), MPI_ERR_OTHER, "MPIX_Init"));
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    }
    /* The other ranks leave the end to MPI_Finalize. */
    end("given_up ok");
    CHECK(in == 0 && MPIX_Wait(&requests[3], MPI_STATUS_IGNORE) == MPI_ERR_OTHER);
    CHECK(MPIX_Init() == MPI_ERR_OTHER);
    return 0;
}
