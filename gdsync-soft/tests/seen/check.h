/* Ends the process with the line, the condition and errno if the condition is false. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));                    \
            _exit(1);                                                                                       \
        }                                                                                                   \
    } while (0)
