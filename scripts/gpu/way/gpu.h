/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The CUDA driver and NVRTC, loaded at run time, and the kernel of a step.
 */
#ifndef GPU_H
#define GPU_H

#include "way.h"

/* Opens the rank's GPU (those of the host in turn), makes its stream and compiles the kernel. kernels: how many will be launched. */
void gpu_begin(struct job *job, size_t kernels);

/* Enqueues the kernel of a step: it checks the blocks of step `checked` (-1: of none), works for work_ns, and writes the blocks of step
 * `filled` (-1: of none). */
void gpu_launch(const struct job *job, int checked, int filled, uint64_t work_ns);

/* Makes the CPU sleep until the stream has done what it had been given at the mark before the last one. */
void gpu_mark(const struct job *job);
/* Makes the CPU sleep until the stream's end. */
void gpu_finish(const struct job *job);

/* Returns the number of words that were not as sent, of all kernels until now. */
unsigned gpu_wrong(void);
/* Adds up the kernels from number `first` on: the time between a kernel's end and the next one's begin, and that in kernels. Returns their
 * number. */
size_t gpu_times(size_t first, double *idle_ns, double *busy_ns);

#endif
