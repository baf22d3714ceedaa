/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * The types of the old "peer direct" verbs in structs of <gdsync.h>, so that code that uses them compiles. gdsync never asks a program for
  * them, and reads only its own numbers in rollback_id and peek_id.
 */
#ifndef GDSYNC_INFINIBAND_PEER_OPS_H
#define GDSYNC_INFINIBAND_PEER_OPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of memory operations. */
enum ibv_exp_peer_op {
    IBV_EXP_PEER_OP_RESERVED1 = 1,
    IBV_EXP_PEER_OP_FENCE = 0,
    IBV_EXP_PEER_OP_STORE_DWORD = 4,
    IBV_EXP_PEER_OP_STORE_QWORD = 2,
    IBV_EXP_PEER_OP_COPY_BLOCK = 3,
    IBV_EXP_PEER_OP_POLL_AND_DWORD = 12,
    IBV_EXP_PEER_OP_POLL_NOR_DWORD = 13,
    IBV_EXP_PEER_OP_POLL_GEQ_DWORD = 14
};

/* One memory operation of a list. */
struct peer_op_wr {
    struct peer_op_wr *next;
    enum ibv_exp_peer_op type;
    union {
        struct {
            uint64_t fence_flags;
        } fence;
        struct {
            uint32_t data;
            uint64_t target_id;
            size_t offset;
        } dword_va;
        struct {
            uint64_t data;
            uint64_t target_id;
            size_t offset;
        } qword_va;
        struct {
            void *src;
            uint64_t target_id;
            size_t offset;
            size_t len;
        } copy_op;
    } wr;
    uint32_t comp_mask;
};

/* Prepared work. */
struct ibv_exp_peer_commit {
    struct peer_op_wr *storage; /* NULL: the operations stay in the library */
    uint32_t entries;           /* 0 */
    uint64_t rollback_id;       /* gdsync's number of it */
    uint32_t comp_mask;
};

/* A prepared wait. */
struct ibv_exp_peer_peek {
    struct peer_op_wr *storage; /* NULL, as above */
    uint32_t entries;           /* words added by gds_append_wait_cq */
    uint32_t whence;
    uint32_t offset;  /* index of the completion in its queue */
    uint64_t peek_id; /* gdsync's number of it */
    uint32_t comp_mask;
};

#ifdef __cplusplus
}
#endif

#endif
