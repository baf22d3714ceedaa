/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef COMMON_H
#define COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "gdrapi.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the line and the value if they differ. */
#define EQUAL(expression, expected)                                                                          \
    do {                                                                                                     \
        long long found_ = (long long)(expression), wanted_ = (long long)(expected);                        \
        if (found_ != wanted_) {                                                                             \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #expression, found_, wanted_); \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define TRUE(expression) EQUAL(!!(expression), 1)
#define DONE(expression) EQUAL(expression, 0)

#endif
