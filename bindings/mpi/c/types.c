/* Translates datatypes and reduction operations of MPI for the Rust part. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* The largest type that is packed to find out the order of its elements. */
#define MAX_PACKED (64 << 20)

/* Packs a pattern to find out whether a type's elements are sent in the order of memory. Returns -1 without memory. */
static int is_in_order(MPI_Datatype datatype, MPI_Aint start, int size)
{
    unsigned char *from = malloc(size), *packed;
    int at = 0, room = 0, in_order = -1, byte;
    uint32_t seed = 1;

    if (from && MPI_Pack_size(1, datatype, MPI_COMM_SELF, &room) == MPI_SUCCESS && (packed = malloc(room))) {
        for (byte = 0; byte < size; byte++) {
            seed = seed * 1664525 + 1013904223;
            from[byte] = seed >> 24;
        }
        in_order = MPI_Pack(from - start, 1, datatype, packed, room, &at, MPI_COMM_SELF) == MPI_SUCCESS &&
                   at == size && memcmp(from, packed, size) == 0;
        free(packed);
    }
    free(from);
    return in_order;
}

/* Returns whether one element of a type is one piece of memory, in order. */
static int is_piece(MPI_Datatype datatype, MPI_Count size)
{
    int integers, addresses, types, combiner, piece = 0;
    int integer[2];
    MPI_Aint address[2];
    MPI_Datatype inner;
    MPI_Count lb, extent, inner_size;

    MPI_Type_get_true_extent_x(datatype, &lb, &extent);
    if (size != extent)
        return 0;
    MPI_Type_get_envelope(datatype, &integers, &addresses, &types, &combiner);
    if (combiner == MPI_COMBINER_NAMED)
        return 1;
    if (size <= MAX_PACKED)
        return is_in_order(datatype, (MPI_Aint)lb, (int)size) == 1;
    /* A large array: its elements are contiguous, as there are no gaps. */
    if ((combiner != MPI_COMBINER_CONTIGUOUS && combiner != MPI_COMBINER_DUP && combiner != MPI_COMBINER_RESIZED) ||
        integers > 2 || addresses > 2 || types != 1)
        return 0;
    MPI_Type_get_contents(datatype, integers, addresses, types, integer, address, &inner);
    MPI_Type_size_x(inner, &inner_size);
    piece = is_piece(inner, inner_size);
    MPI_Type_get_envelope(inner, &integers, &addresses, &types, &combiner);
    if (combiner != MPI_COMBINER_NAMED)
        MPI_Type_free(&inner);
    return piece;
}

int mpis_contiguous(MPI_Comm comm, MPI_Count count, MPI_Datatype datatype, MPI_Aint *start, uint64_t *bytes)
{
    MPI_Count size, lb, extent, true_lb, true_extent;

    if (count < 0)
        return mpis_fail(comm, MPI_ERR_COUNT, "the count is %lld: pass a number from 0 on", (long long)count);
    if (datatype == MPI_DATATYPE_NULL)
        return mpis_fail(comm, MPI_ERR_TYPE, "the datatype is MPI_DATATYPE_NULL");
    MPI_Type_size_x(datatype, &size);
    MPI_Type_get_extent_x(datatype, &lb, &extent);
    MPI_Type_get_true_extent_x(datatype, &true_lb, &true_extent);
    *start = 0;
    *bytes = 0;
    if (count == 0 || size == 0)
        return MPI_SUCCESS;
    if ((count > 1 && extent != size) || !is_piece(datatype, size))
        return mpis_fail(comm, MPI_ERR_TYPE,
                         "the datatype is not contiguous (%lld bytes of data in an extent of %lld) or not in the order "
                         "of its memory: the card sends one piece of memory. Pack it in the stream's order",
                         (long long)size, (long long)extent);
    if ((uint64_t)count > UINT64_MAX / (uint64_t)size)
        return mpis_fail(comm, MPI_ERR_COUNT, "%lld elements of %lld bytes are more than 2^64 bytes", (long long)count,
                         (long long)size);
    *start = (MPI_Aint)true_lb;
    *bytes = (uint64_t)count * (uint64_t)size;
    return MPI_SUCCESS;
}

int mpis_element(MPI_Comm comm, MPI_Datatype datatype, uint32_t *element)
{
    const MPI_Datatype integers[] = {MPI_SIGNED_CHAR, MPI_SHORT,   MPI_INT,     MPI_LONG,  MPI_LONG_LONG,
                                     MPI_INT8_T,      MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_AINT,
                                     MPI_COUNT,       MPI_OFFSET};
    const MPI_Datatype naturals[] = {MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
                                     MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T,
                                     MPI_BYTE, MPI_C_BOOL};
    size_t at;
    int size = 0, known = -1;

    for (at = 0; at < sizeof integers / sizeof *integers; at++)
        if (datatype == integers[at])
            known = GDSYNC_MPI_I8;
    for (at = 0; at < sizeof naturals / sizeof *naturals; at++)
        if (datatype == naturals[at])
            known = GDSYNC_MPI_U8;
    if (datatype == MPI_FLOAT)
        *element = GDSYNC_MPI_F32;
    else if (datatype == MPI_DOUBLE)
        *element = GDSYNC_MPI_F64;
    else if (known < 0)
        return mpis_fail(comm, MPI_ERR_TYPE,
                         "MPIS_Allreduce_init takes MPI's integers of C, MPI_FLOAT and MPI_DOUBLE");
    else {
        /* The enumeration is in the order of sizes. */
        MPI_Type_size(datatype, &size);
        *element = (uint32_t)known + (size == 1 ? 0 : size == 2 ? 2 : size == 4 ? 4 : 6);
    }
    return MPI_SUCCESS;
}

int mpis_operation(MPI_Comm comm, MPI_Op op, uint32_t *operation)
{
    const MPI_Op all[] = {MPI_SUM, MPI_PROD, MPI_MIN,  MPI_MAX, MPI_LAND,
                          MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    uint32_t at;

    for (at = 0; at < sizeof all / sizeof *all; at++)
        if (op == all[at]) {
            *operation = at;
            return MPI_SUCCESS;
        }
    return mpis_fail(comm, MPI_ERR_OP,
                     "MPIS_Allreduce_init takes MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX and the logical and bitwise ones");
}
