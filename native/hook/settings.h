/* The hook's settings, read from the environment once, at the first CUDA call. */
#ifndef BATON_SETTINGS_H
#define BATON_SETTINGS_H

#include "libbaton.h"

enum baton_on_loss { BATON_LOSS_WAIT, BATON_LOSS_CONTINUE, BATON_LOSS_FAIL };

struct baton_settings {
    bool debug;
    bool gang;
    bool oversubscribe;
    bool single_oversubscribe;
    enum baton_on_loss on_loss;
    unsigned cores_percent;
    unsigned weight_milli;
    uint64_t memory_limit_bytes;
    uint64_t reserve_bytes;
    uint64_t daemon_timeout_us;
    uint64_t idle_us;
    uint64_t window_us;
    uint64_t capture_wait_us;
    uint64_t read_us; /* with the pid, identifies the process across pid namespaces, where many have pid 1 */
    char priority[8];
    char tenant[64];
    char run[64];
    char pod_name[254];
    char pod_namespace[254];
    char socket_path[108];
};

const struct baton_settings *baton_settings(void);

#endif
