/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
  * Teams: ranks that are threads and connect by a shared table, and ranks that are processes, one of which dies.
 */
#include "common.h"

#include <gdsync/team.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, BLOCK = 256, ROUNDS = 50, TEXT = 64 };

/* The table by which ranks that are threads exchange. */
struct table {
    pthread_barrier_t barrier;
    uint8_t *blocks;
    int fails;
};

struct rank {
    struct table *table;
    uint32_t number;
};

static int by_table(void *argument, const void *own, void *all, size_t bytes) {
    struct rank *rank = (struct rank *)argument;
    struct table *table = rank->table;
    if (table->fails) {
        return -5;
    }
    memcpy(table->blocks + rank->number * bytes, own, bytes);
    pthread_barrier_wait(&table->barrier);
    memcpy(all, table->blocks, RANKS * bytes);
    pthread_barrier_wait(&table->barrier);
    return 0;
}

struct card {
    struct ibv_context *context;
    struct ibv_pd *pd;
};

static struct card open_card(void) {
    struct card card;
    card.context = gdsync_soft_open(NULL);
    CHECK(card.context != NULL);
    card.pd = gdsync_alloc_pd(card.context);
    CHECK(card.pd != NULL);
    return card;
}

/* The card closes, so no object is left on it. */
static void close_card(struct card *card) {
    OK(gdsync_dealloc_pd(card->pd));
    OK(gdsync_soft_close(card->context));
}

static gdsync_put_t put_to(uint32_t rank, gdsync_segment_t *segment, size_t from, size_t length, uint64_t to) {
    gdsync_put_t put;
    memset(&put, 0, sizeof(put));
    put.from = segment;
    put.from_offset = from;
    put.length = length;
    put.to = segment;
    put.to_offset = to;
    put.rank = rank;
    return put;
}

/* A neighbour's CPU writes, with and without a notification. */
static void by_the_cpu(gdsync_team_t *team, gdsync_segment_t *segment) {
    uint32_t rank = (uint32_t)gdsync_team_rank(team), next = (rank + 1) % RANKS, id = 99, value = 0;
    uint8_t *data = (uint8_t *)gdsync_segment_data(segment);
    gdsync_put_t puts[2];

    memset(data, (int)(10 + rank), BLOCK);
    puts[0] = put_to(next, segment, 0, BLOCK / 2, BLOCK);
    puts[1] = put_to(next, segment, 0, BLOCK / 2, BLOCK + BLOCK / 2);
    puts[1].notification = 1;
    puts[1].value = 100 + rank;
    OK(gdsync_put(team, 0, 2, puts));
    OK(gdsync_notification_wait(segment, 0, 4, &id, PATIENCE_MS));
    OK(gdsync_notification_reset(segment, id, &value));
    CHECK(id == 1 && value == 100 + (rank + RANKS - 1) % RANKS);
    CHECK(data[BLOCK] == 10 + (rank + RANKS - 1) % RANKS && data[2 * BLOCK - 1] == data[BLOCK]);
    OK(gdsync_notification_reset(segment, id, &value));
    CHECK(value == 0);
    CHECK_STATUS(ETIMEDOUT, gdsync_notification_wait(segment, 0, 4, &id, 1));
    CHECK(strstr(gdsync_error_text(), "no rank has set") == NULL);
    CHECK_STATUS(ETIMEDOUT, gdsync_notification_wait(segment, 0, 4, &id, 20));
    CHECK(strstr(gdsync_error_text(), "within 20 ms: no rank has set one of the notifications 0 to 3") != NULL);
    OK(gdsync_team_flush(team, 0, PATIENCE_MS));
    OK(gdsync_team_barrier(team));
}

struct step {
    uint8_t *out;
    const uint8_t *in;
};

/* Sends the received number plus one next, as a kernel would. */
static void add_one(void *argument) {
    struct step *step = (struct step *)argument;
    size_t i;
    for (i = 0; i < BLOCK; i++) {
        step->out[i] = (uint8_t)(step->in[i] + 1);
    }
}

/* A ring on a stream: in each round, a rank sends a block to the next rank and receives one from the previous. A rank may be ahead of the next by
 * one round less than there are ranks, and uses as many blocks in turn. */
static void on_a_stream(gdsync_team_t *team, gdsync_segment_t *segment) {
    uint32_t rank = (uint32_t)gdsync_team_rank(team), next = (rank + 1) % RANKS, round, id;
    uint8_t *data = (uint8_t *)gdsync_segment_data(segment);
    CUstream stream = gdsync_soft_stream_create();
    gdsync_put_t put;
    struct step steps[RANKS];

    CHECK(stream != NULL);
    memset(data, 0, BLOCK);
    for (round = 0; round < ROUNDS; round++) {
        id = round % RANKS;
        put = put_to(next, segment, 0, BLOCK, (1 + id) * BLOCK);
        put.notification = id;
        put.value = round + 1;
        steps[id].in = data + (1 + id) * BLOCK;
        steps[id].out = data;
        OK(gdsync_stream_exchange(stream, team, 1, 1, &put, segment, 1, &id));
        OK(gdsync_stream_quiet(stream, team, 1, next));
        OK(gdsync_soft_stream_launch(stream, add_one, &steps[id]));
    }
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(data[0] == ROUNDS && data[BLOCK - 1] == ROUNDS);
    OK(gdsync_notification_check(segment, 0));
    OK(gdsync_team_barrier(team));

    /* The same in two calls, and a notification alone. */
    put = put_to(next, segment, 0, 0, 0);
    put.from = NULL;
    put.notification = 3;
    put.value = 7;
    id = 3;
    OK(gdsync_stream_put(stream, team, 1, 1, &put));
    OK(gdsync_stream_wait_notifications(stream, team, segment, 1, &id));
    OK(gdsync_stream_put(stream, team, 1, 0, NULL));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_team_flush(team, 1, PATIENCE_MS));
    OK(gdsync_team_barrier(team));
    OK(gdsync_soft_stream_destroy(stream));
}

static void refusals(gdsync_team_t *team, gdsync_segment_t *segment) {
    CUstream stream = gdsync_soft_stream_create();
    gdsync_put_t put = put_to(0, segment, 0, 8, 0);
    uint32_t id = 4;

    put.rank = RANKS;
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    put = put_to(0, segment, 0, 8, (uint64_t)1 << 40);
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    put = put_to(0, segment, ~(size_t)0, 8, 0);
    CHECK_STATUS(EINVAL, gdsync_stream_put(stream, team, 0, 1, &put));
    put = put_to(0, segment, 0, 0, 0);
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    put = put_to(0, segment, 0, 8, 0);
    put.reserved = 1;
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    put.reserved = 0;
    put.value = 1;
    put.notification = 4;
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    put.to = NULL;
    CHECK_STATUS(EINVAL, gdsync_put(team, 0, 1, &put));
    CHECK_STATUS(EINVAL, gdsync_put(team, 2, 0, NULL));
    CHECK(strstr(gdsync_error_text(), "queue 2 is none of the 2") != NULL);
    CHECK_STATUS(EINVAL, gdsync_stream_wait_notifications(stream, team, segment, 1, &id));
    CHECK_STATUS(EINVAL, gdsync_stream_exchange(stream, team, 0, 0, NULL, segment, 1, NULL));
    CHECK_STATUS(EINVAL, gdsync_stream_quiet(stream, team, 0, RANKS));
    CHECK_STATUS(EINVAL, gdsync_notification_wait(segment, 0, 0, &id, 0));
    CHECK_STATUS(EINVAL, gdsync_notification_wait(segment, 3, 2, &id, 0));
    CHECK_STATUS(EINVAL, gdsync_notification_wait(segment, ~0u, 2, &id, 0));
    CHECK_STATUS(EINVAL, gdsync_notification_expect_from(segment, 0, 1, RANKS));
    CHECK(gdsync_team_is_dead(team, 0) == 0 && gdsync_team_is_dead(team, RANKS) == -1 && errno == EINVAL);
    OK(gdsync_soft_stream_destroy(stream));
}

static void *of_table(void *argument) {
    struct rank *rank = (struct rank *)argument;
    gdsync_bootstrap_t *bootstrap = gdsync_bootstrap_with(rank->number, RANKS, by_table, rank, PATIENCE_MS), *gone;
    struct card card = open_card();
    gdsync_team_attr_t attr;
    gdsync_team_t *team, *other_team;
    gdsync_segment_t *segment, *registered;
    gdsync_put_t put;
    uint32_t numbers[RANKS], own, i, id = 0;
    uint8_t *memory = (uint8_t *)malloc(BLOCK);

    CHECK(bootstrap != NULL && memory != NULL);
    CHECK(gdsync_bootstrap_rank(bootstrap) == (int)rank->number && gdsync_bootstrap_size(bootstrap) == RANKS);
    /* A transport with its own queue pairs exchanges their numbers. */
    own = 1000 + rank->number;
    OK(gdsync_bootstrap_all_gather(bootstrap, &own, sizeof(own), numbers));
    for (i = 0; i < RANKS; i++) {
        CHECK(numbers[i] == 1000 + i);
    }
    CHECK_STATUS(EINVAL, gdsync_bootstrap_all_gather(bootstrap, &own, rank->number == 0 ? 4 : 2, numbers));
    OK(gdsync_bootstrap_barrier(bootstrap));

    memset(&attr, 0, sizeof(attr));
    attr.connections = 3;
    CHECK(gdsync_team_create(bootstrap, card.pd, card.context, &attr) == NULL && errno == EINVAL);
    attr.connections = GDSYNC_CONNECTIONS_EACH;
    attr.reserved = 1;
    CHECK(gdsync_team_create(bootstrap, card.pd, card.context, &attr) == NULL && errno == EINVAL);
    attr.reserved = 0;
    attr.queues = 2;
    attr.post_timeout_ms = PATIENCE_MS;
    gone = bootstrap;
    team = gdsync_team_create(bootstrap, card.pd, card.context, &attr);
    CHECK(team != NULL && gdsync_team_rank(team) == (int)rank->number && gdsync_team_size(team) == RANKS);
    CHECK_STATUS(EINVAL, gdsync_bootstrap_barrier(gone));

    segment = gdsync_segment_allocate(team, (1 + RANKS) * BLOCK, 4);
    CHECK(segment != NULL);
    by_the_cpu(team, segment);
    on_a_stream(team, segment);
    refusals(team, segment);

    /* Memory of the program; and another team with defaults and its own segments. */
    memset(memory, (int)rank->number, BLOCK);
    registered = gdsync_segment_register(team, memory, BLOCK, 1);
    CHECK(registered != NULL && gdsync_segment_data(registered) == memory);
    put = put_to((rank->number + 1) % RANKS, registered, 0, 8, 8);
    put.value = 1;
    OK(gdsync_put(team, 0, 1, &put));
    OK(gdsync_notification_wait(registered, 0, 1, &id, PATIENCE_MS));
    CHECK(memory[8] == (rank->number + RANKS - 1) % RANKS && memory[7] == rank->number);
    OK(gdsync_team_flush(team, 0, PATIENCE_MS));
    OK(gdsync_team_barrier(team));
    other_team = gdsync_team_create(gdsync_bootstrap_with(rank->number, RANKS, by_table, rank, PATIENCE_MS), card.pd,
                                    card.context, NULL);
    CHECK(other_team != NULL);
    CHECK_STATUS(EINVAL, gdsync_put(other_team, 0, 1, &put));
    CHECK(strstr(gdsync_error_text(), "another team") != NULL);
    CHECK(gdsync_team_shrink(team) == 0);
    OK(gdsync_team_barrier(team));
    OK(gdsync_segment_free(registered));
    free(memory);
    OK(gdsync_segment_free(segment));
    CHECK_STATUS(EINVAL, gdsync_segment_free(segment));
    OK(gdsync_team_free(other_team));
    OK(gdsync_team_free(team));
    CHECK_STATUS(EINVAL, gdsync_team_barrier(team));
    close_card(&card);
    return NULL;
}

static void threads(void) {
    struct table table;
    struct rank ranks[RANKS];
    pthread_t all[RANKS];
    gdsync_bootstrap_t *bootstrap;
    struct card card = open_card();
    uint32_t i;

    memset(&table, 0, sizeof(table));
    CHECK(pthread_barrier_init(&table.barrier, NULL, RANKS) == 0);
    table.blocks = (uint8_t *)malloc((1 << 20) * RANKS);
    for (i = 0; i < RANKS; i++) {
        ranks[i].table = &table;
        ranks[i].number = i;
        CHECK(pthread_create(&all[i], NULL, of_table, &ranks[i]) == 0);
    }
    for (i = 0; i < RANKS; i++) {
        CHECK(pthread_join(all[i], NULL) == 0);
    }
    /* An all-gather that fails: the team has used up the bootstrap. */
    table.fails = 1;
    bootstrap = gdsync_bootstrap_with(0, RANKS, by_table, &ranks[0], PATIENCE_MS);
    CHECK(gdsync_team_create(bootstrap, card.pd, card.context, NULL) == NULL && errno == EPROTO);
    CHECK(strstr(gdsync_error_text(), "it returned -5") != NULL);
    CHECK_STATUS(EINVAL, gdsync_bootstrap_free(bootstrap));
    bootstrap = gdsync_bootstrap_with(0, RANKS, by_table, &ranks[0], PATIENCE_MS);
    CHECK_STATUS(EPROTO, gdsync_bootstrap_barrier(bootstrap));
    OK(gdsync_bootstrap_free(bootstrap));
    close_card(&card);
    free(table.blocks);
    CHECK(pthread_barrier_destroy(&table.barrier) == 0);
}

static void note(void *argument) { __atomic_store_n((int *)argument, 1, __ATOMIC_SEQ_CST); }

/* One of two processes exits without a message. */
static void process(uint32_t rank, const char *name) {
    gdsync_bootstrap_t *bootstrap = gdsync_bootstrap_join(rank, 2, name, PATIENCE_MS);
    struct card card = open_card();
    gdsync_team_t *team;
    gdsync_segment_t *segment;
    CUstream stream;
    gdsync_put_t put;
    uint32_t id = 0;
    int noted = 0;

    CHECK(bootstrap != NULL);
    team = gdsync_team_create(bootstrap, card.pd, card.context, NULL);
    CHECK(team != NULL);
    segment = gdsync_segment_allocate(team, BLOCK, 2);
    CHECK(segment != NULL);
    OK(gdsync_notification_expect_from(segment, 0, 2, 1 - rank));
    OK(gdsync_team_barrier(team));
    if (rank == 1) {
        _exit(0);
    }
    stream = gdsync_soft_stream_create();
    id = 1;
    OK(gdsync_stream_wait_notifications(stream, team, segment, 1, &id));
    OK(gdsync_soft_stream_launch(stream, note, &noted));
    CHECK_STATUS(EHOSTDOWN, gdsync_notification_wait(segment, 0, 1, &id, PATIENCE_MS));
    CHECK(strstr(gdsync_error_text(), "rank 1 is dead") != NULL);
    CHECK(strstr(gdsync_error_text(), "go on without it (gdsync_team_shrink)") != NULL);
    /* The stream stops, and goes on when it is told to. The check returns the reason. */
    CHECK_STATUS(EHOSTDOWN, gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(strstr(gdsync_error_text(), "the stream has stopped") != NULL && strstr(gdsync_error_text(), "rank 1 is dead") != NULL);
    CHECK(strstr(gdsync_error_text(), "(gdsync_stream_go_on lets it go on") != NULL);
    CHECK(__atomic_load_n(&noted, __ATOMIC_SEQ_CST) == 0);
    OK(gdsync_stream_go_on(stream));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    CHECK(__atomic_load_n(&noted, __ATOMIC_SEQ_CST) == 1);
    CHECK_STATUS(EHOSTDOWN, gdsync_notification_check(segment, 1));
    CHECK(gdsync_team_is_dead(team, 1) == 1);
    put = put_to(0, segment, 0, 8, 8);
    CHECK_STATUS(EHOSTDOWN, gdsync_stream_put(stream, team, 0, 1, &put));
    CHECK(gdsync_team_shrink(team) == 1);
    OK(gdsync_stream_put(stream, team, 0, 1, &put));
    OK(gdsync_stream_synchronize(stream, PATIENCE_MS));
    OK(gdsync_team_flush(team, 0, PATIENCE_MS));
    OK(gdsync_soft_stream_destroy(stream));
    OK(gdsync_segment_free(segment));
    OK(gdsync_team_free(team));
    close_card(&card);
}

static void processes(void) {
    char name[TEXT];
    pid_t child;
    int status;

    snprintf(name, sizeof(name), "gdsync test %ld", (long)getpid());
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        process(1, name);
    }
    process(0, name);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A job of one rank, by the environment. */
static void environment(void) {
    gdsync_bootstrap_t *bootstrap;

    unsetenv("GDSYNC_RANK");
    if (getenv("OMPI_COMM_WORLD_RANK") == NULL && getenv("PMI_RANK") == NULL && getenv("PMIX_RANK") == NULL &&
        getenv("SLURM_PROCID") == NULL && getenv("RANK") == NULL) {
        CHECK(gdsync_bootstrap_from_env(1) == NULL && errno == EINVAL);
        CHECK(strstr(gdsync_error_text(), "mpirun") != NULL);
    }
    setenv("GDSYNC_RANK", "0", 1);
    setenv("GDSYNC_SIZE", "1", 1);
    bootstrap = gdsync_bootstrap_from_env(PATIENCE_MS);
    CHECK(bootstrap != NULL && gdsync_bootstrap_size(bootstrap) == 1);
    OK(gdsync_bootstrap_barrier(bootstrap));
    OK(gdsync_bootstrap_free(bootstrap));
    setenv("GDSYNC_SIZE", "2", 1);
    setenv("GDSYNC_JOB", "a job of which one comes", 1);
    CHECK(gdsync_bootstrap_from_env(1) == NULL && errno == ETIMEDOUT);
}

int main(void) {
    processes(); /* first: a process that forks has one thread */
    environment();
    threads();
    puts("teams ok");
    return 0;
}
