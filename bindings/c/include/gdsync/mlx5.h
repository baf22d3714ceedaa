/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a kernel has to store to hand a prepared send to the card, and has to look at to see a completion.
 *
 * The pointers are the GPU's, of the context that is current; without a CUDA driver or a context they are the CPU's. They stay valid
 * as long as the queue pair; flag_ptr as long as the process.
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

/* A word of the program, as a kernel sees it. flags: gds_memory_type_t. */
int gds_mlx5_get_dword_wait_info(uint32_t *ptr, uint32_t value, int flags, gds_mlx5_dword_wait_info_t *mlx5_info);

/* The kernel stores dbrec_value, then fences for the system, then stores db_value in one piece. */
typedef struct gds_mlx5_send_info {
    unsigned membar : 1;      /* a fence for the device is enough between the two: never */
    unsigned membar_full : 1; /* a fence for the system is needed between them: always */
    uint32_t *dbrec_ptr;
    uint32_t dbrec_value;
    uint64_t *db_ptr;
    uint64_t db_value;
} gds_mlx5_send_info_t;

/* Hands sends to a kernel. It uses the requests up: they are posted as far as gdsync is concerned. The sends of a queue pair are
 * handed out in the order in which they were prepared, and rung in that order. */
int gds_mlx5_get_send_info(int count, const gds_send_request_t *requests, gds_mlx5_send_info_t *mlx5_infos);

/* The kernel waits until *cqe_ptr meets the condition, and then stores flag_value: from then on the CPU can poll the completion. */
typedef struct gds_mlx5_wait_info {
    gds_wait_cond_flag_t cond; /* AND or NOR */
    uint32_t *cqe_ptr;
    uint32_t cqe_value;
    uint32_t *flag_ptr;
    uint32_t flag_value;
} gds_mlx5_wait_info_t;

/* Hands waits to a kernel. It uses the requests up. */
int gds_mlx5_get_wait_info(int count, const gds_wait_request_t *requests, gds_mlx5_wait_info_t *mlx5_infos);

GDS_END_DECLS

#endif
