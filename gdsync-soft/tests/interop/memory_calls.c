/* Preloaded: counts and reports the calls to the C library's memory functions by all threads but the program's first. Libraries that track
 * memory patch the code of these functions while they start and end, to call their own code. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static atomic_int taken, given, unmapped;

static void count(atomic_int *calls)
{
    if (syscall(SYS_gettid) != getpid())
        ++*calls;
}

void *malloc(size_t size)
{
    count(&taken);
    return __libc_malloc(size);
}

void *calloc(size_t count_of, size_t size)
{
    count(&taken);
    return __libc_calloc(count_of, size);
}

void *realloc(void *memory, size_t size)
{
    count(&taken);
    return __libc_realloc(memory, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
    count(&taken);
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    count(&given);
    __libc_free(memory);
}

int munmap(void *memory, size_t size)
{
    count(&unmapped);
    return (int)syscall(SYS_munmap, memory, size);
}

__attribute__((destructor)) static void say(void)
{
    fprintf(stderr, "%s: taken %d given %d unmapped %d\n", program_invocation_short_name, taken, given, unmapped);
}
