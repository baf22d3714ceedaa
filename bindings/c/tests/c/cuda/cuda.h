/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * A substitute for the CUDA toolkit's header, with the declarations that gdsync's headers may meet.
 */
#ifndef GDSYNC_TEST_CUDA_H
#define GDSYNC_TEST_CUDA_H

#define CUDA_VERSION 13000
typedef unsigned long long CUdeviceptr_v2;
typedef CUdeviceptr_v2 CUdeviceptr;
typedef struct CUstream_st *CUstream;

#endif
