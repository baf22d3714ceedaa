/* Files of a device that stay open: each read at the start finds what a file that is opened now has. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                                    \
    do {                                                                                                    \
        if (!(condition)) {                                                                                 \
            fprintf(stderr, "line %d: %s (%s; %s)\n", __LINE__, #condition, current, strerror(errno));      \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

#define DEVICE "/sys/class/infiniband/mlx5_0"
#define SENT "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
#define MOST 128
#define ROOM 256

static const char *current = "";

/* A file, kept open in several ways. */
struct kept {
    char path[ROOM];
    int fd, relative;
    FILE *stream, *unread, *of_fd;
};
static struct kept files[MOST];
static int count;

static int note(const char *path, const struct stat *facts, int kind, struct FTW *position) {
    (void)facts, (void)position;
    if (kind == FTW_F && count < MOST)
        snprintf(files[count++].path, ROOM, "%s", path);
    return 0;
}

/* The content of a file that is opened now. */
static void now(const char *path, char text[ROOM]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    memset(text, 0, ROOM);
    CHECK(fd >= 0 && read(fd, text, ROOM - 1) > 0 && close(fd) == 0);
}

static void keep(struct kept *file) {
    char text[ROOM] = {0};
    current = file->path;
    /* The second is a file of a folder, the fourth is not read before there is traffic. */
    CHECK((file->fd = open(file->path, O_RDONLY)) >= 0);
    char *name = strrchr(file->path, '/');
    *name = 0;
    int folder = open(file->path, O_RDONLY | O_DIRECTORY);
    *name = '/';
    CHECK(folder >= 0 && (file->relative = openat(folder, name + 1, O_RDONLY)) >= 0 && close(folder) == 0);
    CHECK((file->stream = fopen(file->path, "re")) && (file->unread = fopen(file->path, "r")));
    CHECK((file->of_fd = fdopen(dup(file->fd), "r")) && fileno(file->of_fd) > fileno(file->stream));
    CHECK(read(file->fd, text, ROOM) > 0 && read(file->fd, text, ROOM) == 0);
    CHECK(fgets(text, ROOM, file->stream) && !fgets(text, ROOM, file->stream) && feof(file->stream));
}

/* Sends over a queue pair that is connected to itself. */
static void traffic(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices ? ibv_open_device(devices[0]) : NULL;
    CHECK(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    static char memory[1 << 16];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp_init_attr asked = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
    asked.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp *qp = ibv_create_qp(pd, &asked);
    struct ibv_port_attr port;
    union ibv_gid gid;
    CHECK(mr && qp && ibv_query_port(context, 1, &port) == 0 && ibv_query_gid(context, 1, 0, &gid) == 0);
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(qp, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num};
    to.ah_attr = (struct ibv_ah_attr){.dlid = port.lid, .port_num = 1, .is_global = 1, .grh.dgid = gid};
    to.max_dest_rd_atomic = 1;
    CHECK(ibv_modify_qp(qp, &to,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qp, &to,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC) == 0);
    struct ibv_sge part = {.addr = (uintptr_t)memory, .length = sizeof(memory) / 2, .lkey = mr->lkey};
    struct ibv_send_wr write = {.sg_list = &part, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    write.wr.rdma.remote_addr = part.addr + part.length;
    write.wr.rdma.rkey = mr->rkey;
    struct ibv_wc done;
    CHECK(ibv_post_send(qp, &write, &bad) == 0);
    while (ibv_poll_cq(cq, 1, &done) == 0)
        ;
    CHECK(done.status == IBV_WC_SUCCESS && ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    ibv_free_device_list(devices);
}

/* Compares the bytes of a call with the content of now. */
#define GIVES(call)                                                                                         \
    do {                                                                                                    \
        memset(text, 0, ROOM);                                                                              \
        CHECK((call) == (ssize_t)strlen(expected) && !strcmp(text, expected));                              \
    } while (0)

static void descriptors(const char *path, int fd) {
    char expected[ROOM], text[ROOM];
    struct iovec parts[2] = {{text, 1}, {text + 1, ROOM - 1}};
    current = path;
    now(path, expected);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    GIVES(read(fd, text, ROOM));
    CHECK(read(fd, text, ROOM) == 0 && lseek(fd, 0, SEEK_CUR) == (off_t)strlen(expected));
    GIVES(pread(fd, text, ROOM, 0));
    GIVES(preadv(fd, parts, 2, 0));
    GIVES(preadv2(fd, parts, 2, 0, 0));
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    GIVES(readv(fd, parts, 2));
    /* Byte by byte, as shells read. */
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    for (size_t i = 0; i < strlen(expected); i++)
        CHECK(read(fd, text, 1) == 1 && text[0] == expected[i]);
    CHECK(read(fd, text, 1) == 0);
    int ends[2];
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && pipe(ends) == 0);
    CHECK(sendfile(ends[1], fd, NULL, ROOM) == (ssize_t)strlen(expected));
    GIVES(read(ends[0], text, ROOM));
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    void *volatile nowhere = NULL;
    CHECK(pread(fd, nowhere, ROOM, 0) == -1 && errno == EFAULT);
}

static void stream(const char *path, FILE *file) {
    char expected[ROOM], text[ROOM];
    current = path;
    now(path, expected);
    CHECK(fgets(text, ROOM, file) && !strcmp(text, expected));
    CHECK(fseek(file, 0, SEEK_SET) == 0 && ftell(file) == 0 && fread(text, 1, 1, file) == 1);
    rewind(file);
    CHECK(fgets(text, ROOM, file) && !strcmp(text, expected) && !ferror(file));
}

static void all_ways(struct kept *file) {
    descriptors(file->path, file->fd);
    descriptors(file->path, file->relative);
    int other = dup(file->fd), far = fcntl(file->relative, F_DUPFD_CLOEXEC, 500);
    descriptors(file->path, other);
    descriptors(file->path, far);
    CHECK(dup2(far, other) == other);
    descriptors(file->path, other);
    CHECK(close(other) == 0 && close(far) == 0);
    rewind(file->stream);
    stream(file->path, file->stream);
    rewind(file->unread);
    stream(file->path, file->unread);
    rewind(file->of_fd);
    stream(file->path, file->of_fd);
}

/* Its attributes are those of its path, and nothing changes it. */
static void is_only_read(const char *path) {
    char before[ROOM], after[ROOM];
    current = path;
    now(path, before);
    struct stat named, opened;
    int fd = open(path, O_RDONLY);
    CHECK(stat(path, &named) == 0 && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino);
    CHECK(fstatat(fd, "", &opened, AT_EMPTY_PATH) == 0 && named.st_dev == opened.st_dev && close(fd) == 0);
    CHECK(open(path, O_WRONLY) == -1 && errno == EACCES);
    CHECK(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) == -1 && errno == EACCES);
    CHECK(!fopen(path, "w") && errno == EACCES && !fopen(path, "r+") && errno == EACCES);
    CHECK(open(path, O_RDONLY | O_DIRECTORY) == -1 && errno == ENOTDIR);
    CHECK((fd = open(path, O_RDONLY)) >= 0);
    CHECK(write(fd, "7", 1) == -1 && errno == EBADF && ftruncate(fd, 0) == -1);
    CHECK(!fdopen(fd, "w") && errno == EINVAL && close(fd) == 0);
    now(path, after);
    CHECK(!strcmp(before, after));
}

static void *reads(void *end) {
    char byte;
    return read(*(int *)end, &byte, 1) == 1 ? NULL : end;
}

/* A read that waits can be cancelled, and a number of a file that has gone is another's. */
static void others(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    CHECK(pipe(ends) == 0 && pthread_create(&thread, NULL, reads, &ends[0]) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    int fd = open(SENT, O_RDONLY);
    char text[ROOM] = {0};
    CHECK(write(ends[1], "pipe", 4) == 4 && dup2(ends[0], fd) == fd && read(fd, text, ROOM) == 4);
    CHECK(!strcmp(text, "pipe") && dup2(files[0].fd, fd) == fd);
    descriptors(files[0].path, fd);
    CHECK(close(fd) == 0);
}

int main(int arguments, char **argument) {
    if (arguments == 3) {
        descriptors(argument[2], atoi(argument[1]));
        return 0;
    }
    char before[ROOM], after[ROOM];
    CHECK(nftw(DEVICE "/ports/1", note, 8, FTW_PHYS) == 0 && count > 40);
    CHECK(nftw(DEVICE "/device", note, 8, FTW_PHYS) == 0 && count < MOST);
    for (int i = 0; i < count; i++)
        keep(&files[i]);
    now(SENT, before);
    traffic();
    now(SENT, after);
    CHECK(!strcmp(before, "0\n") && atoi(after) >= (1 << 15) / 4);
    for (int i = 0; i < count; i++) {
        current = files[i].path;
        stream(files[i].path, files[i].unread);
        all_ways(&files[i]);
        is_only_read(files[i].path);
    }
    others();
    int status;
    pid_t child = fork();
    if (child == 0) {
        traffic();
        for (int i = 0; i < count; i++)
            all_ways(&files[i]);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* The child's counts, in this process and in a program that inherits the file. */
    now(SENT, before);
    CHECK(atoi(before) > atoi(after));
    for (int i = 0; i < count; i++) {
        all_ways(&files[i]);
        if (strcmp(strrchr(files[i].path, '/'), "/port_xmit_data"))
            continue;
        char fd[16];
        snprintf(fd, sizeof(fd), "%d", files[i].fd);
        if ((child = fork()) == 0)
            execl("/proc/self/exe", "kept", fd, files[i].path, (char *)NULL);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < count; i++)
        CHECK(fclose(files[i].stream) == 0 && fclose(files[i].unread) == 0 && fclose(files[i].of_fd) == 0);
    return 0;
}
