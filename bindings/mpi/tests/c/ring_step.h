/* A step of a ring: each rank sends to the next one, and checks the message from the previous one. */
#define LEN 1000

static int sent[LEN], received[LEN], right, round_number;

/* The number that is sent first. */
static void fill(void)
{
    int at;

    for (at = 0; at < LEN; at++)
        sent[at] = rank * 1000000 + at;
}

/* Like a kernel: checks the message that has arrived, and writes the next one. */
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
