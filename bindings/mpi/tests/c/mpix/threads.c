/* MPIX_Init refuses MPI without MPI_THREAD_MULTIPLE. */
#include "common.h"
#include "mpi-acx.h"

int main(void)
{
    begin();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    CHECK(failed(MPIX_Init(), MPI_ERR_OTHER, "MPI_THREAD_MULTIPLE"));
    end("threads ok");
    return 0;
}
