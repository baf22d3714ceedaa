/* A ring's step, for programs that pass numbers on: each rank sends to the next one, and a step checks what has come from the one before. */
#define LEN 1000

static int sent[LEN], received[LEN], right, round_number;

/* What is sent first. */
static void fill(void)
{
    int at;

    for (at = 0; at < LEN; at++)
        sent[at] = rank * 1000000 + at;
}

/* As a kernel would: checks what has arrived, and writes what is sent next. */
static void step(void *argument)
{
    int at, before = (rank + size - 1) % size;

    (void)argument;
    for (at = 0; at < LEN; at++) {
        right += received[at] == before * 1000000 + round_number * 1000 + at;
        sent[at] = rank * 1000000 + (round_number + 1) * 1000 + at;
    }
    round_number++;
}
