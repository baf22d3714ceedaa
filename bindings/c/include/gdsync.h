/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * libgdsync's interface, version 2.2, on gdsync: link with -lgdsync. docs/c.md has a first program; docs/c-abi.md has the whole list, and the
  * differences from libgdsync, whose programs are recompiled.
  *
  * Every function may be called from any thread. Functions that return an int return 0 or a positive errno; the reason is printed to stderr, and
  * returned by gdsync_error_text() of <gdsync/ext.h>.
  *
  * Work requests and attributes of queue pairs are libibverbs' own structs, as in libgdsync's branch for upstream verbs (pull request 107). Released
  * versions of libgdsync take the types of the old OFED's "exp" verbs: define GDSYNC_EXP_VERBS before the first include for sources of that dialect.
  * Files of both dialects may be linked together, and pass queue pairs and requests to each other.
  *
  * Needs libibverbs' header. Uses the toolkit's cuda.h and gdrcopy's gdrapi.h if they are found, and otherwise declares their few types, as
  * software streams need neither.
 */
#ifndef __GDSYNC_H__
#define __GDSYNC_H__

#if defined(GDSYNC_EXP_VERBS) && defined(GDSYNC_UPSTREAM_VERBS)
#error "GDSYNC_EXP_VERBS and GDSYNC_UPSTREAM_VERBS are both defined: the first is the old dialect, and the second the default"
#endif

#include <infiniband/verbs.h>
#ifdef GDSYNC_EXP_VERBS
#include <infiniband/verbs_exp.h>
#include <infiniband/peer_ops.h>
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__has_include)
#if __has_include(<cuda.h>)
#define GDSYNC_HAVE_CUDA_H 1
#endif
#if __has_include(<gdrapi.h>)
#define GDSYNC_HAVE_GDRAPI_H 1
#endif
#endif

#ifdef GDSYNC_HAVE_CUDA_H
#include <cuda.h>
#else
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
#endif

#ifdef GDSYNC_HAVE_GDRAPI_H
#include <gdrapi.h>
#else
typedef struct gdr_mh_s {
    unsigned long h;
} gdr_mh_t;
#endif

#ifdef __cplusplus
#define GDS_BEGIN_DECLS extern "C" {
#define GDS_END_DECLS }
#else
#define GDS_BEGIN_DECLS
#define GDS_END_DECLS
#endif

GDS_BEGIN_DECLS

#include <gdsync/core.h>

GDS_END_DECLS

#endif
