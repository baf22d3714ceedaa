/* Files of devices by functions whose calls inside the C library no hook sees. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

#define PORT "/sys/class/infiniband/mlx5_0/ports/1"

static int lids, others;

static int plain(const char *path, const struct stat *facts, int kind) {
    (void)facts;
    CHECK(!strncmp(path, PORT, strlen(PORT)));
    lids += kind == FTW_F && !strcmp(path, PORT "/lid");
    others++;
    return 0;
}

static int at(const char *path, const struct stat *facts, int kind, struct FTW *position) {
    (void)facts;
    CHECK(!strncmp(path, "/sys/devices/pci50f7:00", 23));
    lids += kind == FTW_F && !strcmp(path + position->base, "lid") && strstr(path, "/ports/1/lid");
    /* A walk inside of a walk. */
    if (lids == 1 && !strcmp(path + position->base, "lid")) {
        int before = others;
        CHECK(ftw(PORT, plain, 8) == 0 && others > before);
        lids = 1;
    }
    return 0;
}

static void patterns(void) {
    glob_t found = {.gl_offs = 1};
    CHECK(glob("/sys/class/infiniband/mlx5_*", GLOB_DOOFFS, NULL, &found) == 0 && found.gl_pathc == 2);
    CHECK(!strcmp(found.gl_pathv[1], "/sys/class/infiniband/mlx5_0"));
    CHECK(glob("/dev/infiniband/uverbs[01]", GLOB_DOOFFS | GLOB_APPEND, NULL, &found) == 0);
    CHECK(found.gl_pathc == 4 && !strcmp(found.gl_pathv[4], "/dev/infiniband/uverbs1"));
    CHECK(!strcmp(found.gl_pathv[2], "/sys/class/infiniband/mlx5_1"));
    globfree(&found);
    CHECK(glob("/dev/infiniband/uverbs7*", 0, NULL, &found) == GLOB_NOMATCH);
    CHECK(glob("/dev/infiniband/uverbs7*", GLOB_NOCHECK, NULL, &found) == 0);
    CHECK(!strcmp(found.gl_pathv[0], "/dev/infiniband/uverbs7*"));
    globfree(&found);
    CHECK(glob("/dev/nul[l]", 0, NULL, &found) == 0 && !strcmp(found.gl_pathv[0], "/dev/null"));
    globfree(&found);
}

static void read_whole(const char *path, int directory, char text[64]) {
    int fd = openat(directory, path, O_RDONLY);
    memset(text, 0, 64);
    CHECK(fd >= 0 && read(fd, text, 63) > 0 && close(fd) == 0);
}

static void places(void) {
    char whole[64], relative[64], place[PATH_MAX], small[8], found[PATH_MAX];
    read_whole(PORT "/lid", AT_FDCWD, whole);
    CHECK(chdir("/sys/class/infiniband/mlx5_0/ports/1") == 0 && getcwd(place, sizeof(place)));
    CHECK(!strncmp(place, "/sys/devices/pci50f7:00/", 24) && strstr(place, "/infiniband/mlx5_0/ports/1"));
    CHECK(!getcwd(small, sizeof(small)));
    char *allocated = getcwd(NULL, 0);
    CHECK(allocated && !strcmp(allocated, place) && realpath(".", found) && !strcmp(found, place));
    free(allocated);
    read_whole("lid", AT_FDCWD, relative);
    CHECK(!strcmp(relative, whole) && strcmp(whole, "0x0\n"));
    FILE *file = fopen("lid", "r");
    CHECK(file && fgets(relative, sizeof(relative), file) && !strcmp(relative, whole) && fclose(file) == 0);
    int directory = open("/sys/class/infiniband/mlx5_0/ports", O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0);
    read_whole("1/gids/0", directory, relative);
    read_whole(PORT "/gids/0", AT_FDCWD, whole);
    CHECK(!strcmp(relative, whole) && close(directory) == 0);
    CHECK(chdir("/") == 0 && getcwd(place, sizeof(place)) && !strcmp(place, "/"));
}

/* Runs a program by a function of the C library. */
static int start(const char *how, const char *program) {
    char *arguments[] = {(char *)program, NULL};
    if (!strcmp(how, "execl"))
        execl(program, program, "1", "2", "3", "4", "5", "6", (char *)NULL);
    else if (!strcmp(how, "execlp"))
        execlp(program, program, (char *)NULL);
    else if (!strcmp(how, "execle"))
        execle(program, program, (char *)NULL, environ);
    else if (!strcmp(how, "execv"))
        execv(program, arguments);
    else if (!strcmp(how, "execvp"))
        execvp(program, arguments);
    return 1;
}

int main(int count, char **arguments) {
    if (count == 3)
        return start(arguments[1], arguments[2]);
    patterns();
    CHECK(ftw(PORT, plain, 8) == 0 && lids == 1 && others > 10);
    lids = 0;
    CHECK(nftw("/sys/devices/pci50f7:00", at, 8, FTW_PHYS) == 0 && lids >= 1);
    places();
    return 0;
}
