/* A request without a completion is given up as lost, as the answer has come; the two have different completion queues.
   https://github.com/ofiwg/libfabric/pull/3153 */

#include "peer.h"

enum { TURNS = 50 };

static void asks(const struct rail *rail) {
    for (turn = 1; turn <= TURNS; turn++) {
        struct area none = {0, 0};
        CHECK(post(rail, IBV_WR_SEND, IBV_SEND_SIGNALED, &none, NULL, NULL, 0) == 0);
        /* The answer. */
        receive(rail);
#ifdef ORDERED
        completion(rail->sends);
#else
        struct ibv_wc done;
        if (ibv_poll_cq(rail->sends, 1, &done) != 1)
            WRONG("the request is %s, though the answer has come", "lost");
#endif
    }
}

static void answers(const struct rail *rail) {
    for (turn = 1; turn <= TURNS; turn++) {
        receive(rail);
        send_empty(rail);
    }
}

int main(void) {
    struct side side = begin(2);
    struct rail between = rail(&side, 8);
    meet(&side);
    if (side.is_peer)
        answers(&between);
    else
        asks(&between);
    return finish(&side);
}
