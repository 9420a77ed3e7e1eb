/* One physical GPU as this process uses it: its gate, its memory accounting, its connection to the lock daemon. */
#ifndef BATON_GPU_H
#define BATON_GPU_H

#include "allowance.h"
#include "cuda_abi.h"
#include "frames.h"
#include "idle.h"
#include "libbaton.h"

#include <pthread.h>
#include <stdatomic.h>

#define BATON_MAX_GPUS 64

/* What the drain thread does with a GPU's turn. */
enum baton_job {
    BATON_JOB_NONE,
    BATON_JOB_DROP,     /* stop, wait for the work, release the turn */
    BATON_JOB_IDLE,     /* release the turn if nothing has been submitted since `job_activity` */
    BATON_JOB_WITHDRAW, /* stop and wait for the work; the turn is no longer ours */
};

enum baton_phase {
    BATON_LINK_DOWN,        /* no connection; retry at `retry_at_us` */
    BATON_LINK_REGISTERING, /* REGISTER sent */
    BATON_LINK_GREETING,    /* reply received; a Baton daemon sends HELLO at once, nvshare's never */
    BATON_LINK_READY,
};

enum baton_turn { BATON_TURN_NONE, BATON_TURN_ASKED, BATON_TURN_HELD };

/* Accessed only by the client thread. */
struct baton_link {
    enum baton_phase phase;
    enum baton_turn turn;
    int fd;
    bool extended;      /* the daemon sent HELLO */
    bool known;         /* registered with a Baton daemon before: RESUME applies */
    bool scheduling_off;
    bool unscheduled;   /* the daemon has been gone for too long and the settings say to continue */
    bool drop_pending;
    bool refused;       /* the daemon refused to serve us, and this was logged */
    bool loss_reported;
    bool loss_settled;
    char id[17];     /* assigned by the daemon with the epoch below */
    char new_id[17]; /* assigned on this connection; becomes `id` with its HELLO */
    char epoch[33];
    uint64_t lost_since_us;
    uint64_t retry_at_us;
    uint64_t backoff_us;
    uint64_t deadline_us;
    uint64_t held_since_us;
    int passed_fd; /* received with the current frame; -1: none */
    struct baton_idle idle;
    uint64_t report_us;
    uint64_t report_at_us;
    uint64_t reported[4]; /* last sent: bytes, launches, sync_us, wait_us */
    uint64_t registered[4]; /* at registration; the last three are counted from there */
    size_t received;
    size_t queued;
    struct baton_frame input;
    struct baton_frame output[16];
};

struct baton_gpu {
    _Atomic int open; /* whether gated calls may pass; the only word that the fast path reads */
    unsigned index;
    CUdevice device;
    CUuuid uuid;
    char uuid_text[41];

    pthread_mutex_t mutex; /* guards the gate's slow side and the drain's job */
    pthread_cond_t changed;
    pthread_cond_t job_set;
    _Atomic unsigned waiters;
    bool failed;
    _Atomic bool limits_settled;
    enum baton_job job;
    bool job_done;
    bool job_released;
    bool drain_started;
    uint64_t job_activity;

    bool managed_works;
    size_t total_bytes;
    struct baton_allowance allowance;
    _Atomic int64_t allocated_bytes;
    _Atomic int64_t substituted_bytes;
    _Atomic uint64_t daemon_limit_bytes;
    _Atomic int daemon_oversubscribe; /* -1: not set by the daemon */

    _Atomic uint64_t wait_us; /* time that threads waited for a turn */
    _Atomic uint64_t sync_us; /* time that threads waited for the GPU */
    _Atomic unsigned waiting_for_work; /* threads waiting for the GPU now */
    _Atomic uint64_t waited_until_us;  /* when such a wait last ended */

    struct baton_link link;
};

/* The GPU with a device ordinal; starts connecting it to the daemon. NULL if the driver does not know the device. */
struct baton_gpu *baton_gpu_of_device(CUdevice device);

/* The GPUs used so far. */
unsigned baton_gpu_count(void);
struct baton_gpu *baton_gpu_at(unsigned index);

/* The GPU with this UUID if it is in use, otherwise NULL. */
struct baton_gpu *baton_gpu_of_uuid(const char *uuid_text);

void baton_gpus_reset_in_child(void);

#endif
