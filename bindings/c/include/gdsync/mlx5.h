/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * The stores by which a kernel rings for a prepared send, and the word in which it sees a completion.
  *
  * The pointers are for the current context's GPU, or for the CPU without a CUDA driver or a context. They stay valid as long as the queue pair,
  * flag_ptr as long as the process.
 */
#ifndef GDSYNC_MLX5_H
#define GDSYNC_MLX5_H

#ifndef __GDSYNC_H__
#error "include gdsync.h before this header"
#endif

GDS_BEGIN_DECLS

typedef struct gds_mlx5_dword_wait_info {
    uint32_t *ptr;
    uint32_t value;
} gds_mlx5_dword_wait_info_t;

/* Returns a word of the program as a kernel's pointer. flags: gds_memory_type_t. */
int gds_mlx5_get_dword_wait_info(uint32_t *ptr, uint32_t value, int flags, gds_mlx5_dword_wait_info_t *mlx5_info);

/* The kernel stores dbrec_value, then fences for the system, then stores db_value in one piece. */
typedef struct gds_mlx5_send_info {
    unsigned membar : 1;      /* true if a device fence between the two suffices: never */
    unsigned membar_full : 1; /* true if a system fence between them is needed: always */
    uint32_t *dbrec_ptr;
    uint32_t dbrec_value;
    uint64_t *db_ptr;
    uint64_t db_value;
} gds_mlx5_send_info_t;

/* Hands sends to a kernel. This uses up the requests: for gdsync they are posted. The sends of a queue pair are handed out in the order in which
 * they were prepared, and must be rung in that order. */
int gds_mlx5_get_send_info(int count, const gds_send_request_t *requests, gds_mlx5_send_info_t *mlx5_infos);

/* The kernel waits until *cqe_ptr meets the condition, and then stores flag_value, after which the CPU can poll the completion. */
typedef struct gds_mlx5_wait_info {
    gds_wait_cond_flag_t cond; /* AND or NOR */
    uint32_t *cqe_ptr;
    uint32_t cqe_value;
    uint32_t *flag_ptr;
    uint32_t flag_value;
} gds_mlx5_wait_info_t;

/* Hands waits to a kernel. This uses up the requests. */
int gds_mlx5_get_wait_info(int count, const gds_wait_request_t *requests, gds_mlx5_wait_info_t *mlx5_infos);

GDS_END_DECLS

#endif
