/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The processor that a program is built for, under the names that programs of gdrcopy ask for.
 */
#ifndef GDSYNC_GDRCONFIG_H
#define GDSYNC_GDRCONFIG_H

#if defined(__x86_64__) || defined(__i386__)
#define GDRAPI_X86
#elif defined(__aarch64__)
#define GDRAPI_ARM64
#elif defined(__powerpc__)
#define GDRAPI_POWER
#else
#error "gdrconfig.h: this processor has no name in gdrcopy's interface"
#endif

#endif
