/* The connection itself. Every frame is sent in one write, because nvshare's daemon treats a short read as a dead
 * client. Input is buffered, because a frame may arrive in pieces. */
#include "link.h"

#include "gate.h"
#include "settings.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const uint64_t first_backoff_us = 1000, last_backoff_us = 250000;
static const uint64_t reply_wait_us = 5000000, hello_wait_us = 200000;
static const uint64_t never_us = UINT64_MAX / 2;

_Static_assert(sizeof((struct sockaddr_un *)0)->sun_path == sizeof((struct baton_settings *)0)->socket_path,
               "the settings check the length of the path");

extern char *program_invocation_short_name;

void baton_link_drop_passed(struct baton_gpu *gpu)
{
    if (gpu->link.passed_fd >= 0)
        close(gpu->link.passed_fd);
    gpu->link.passed_fd = -1;
}

static void lose(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
    baton_link_drop_passed(gpu);
    link->phase = BATON_LINK_DOWN;
    link->received = link->queued = 0;
    if (!link->lost_since_us)
        link->lost_since_us = now_us;
    link->backoff_us = link->backoff_us ? link->backoff_us * 2 : first_backoff_us;
    if (link->backoff_us > last_backoff_us)
        link->backoff_us = last_backoff_us;
    link->retry_at_us = now_us + link->backoff_us;
}

static void send_frame(struct baton_gpu *gpu, const struct baton_frame *frame)
{
    struct baton_link *link = &gpu->link;
    if (link->fd < 0)
        return;
    if (link->queued == BATON_COUNT(link->output)) {
        lose(gpu, baton_now_us()); /* treat a daemon that reads nothing as dead */
        return;
    }
    link->output[link->queued++] = *frame;
    baton_link_flush(gpu);
}

void baton_link_flush(struct baton_gpu *gpu)
{
    struct baton_link *link = &gpu->link;
    size_t sent = 0;
    while (link->fd >= 0 && sent < link->queued) {
        ssize_t written = send(link->fd, &link->output[sent], sizeof link->output[0], MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written == (ssize_t)sizeof link->output[0]) {
            sent++;
        } else if (written < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        } else {
            lose(gpu, baton_now_us());
            return;
        }
    }
    link->queued -= sent;
    memmove(link->output, link->output + sent, link->queued * sizeof link->output[0]);
}

void baton_link_send_simple(struct baton_gpu *gpu, enum baton_frame_type type)
{
    struct baton_frame frame = {.type = (uint8_t)type};
    send_frame(gpu, &frame);
}

static void send_register(struct baton_gpu *gpu)
{
    const struct baton_settings *settings = baton_settings();
    struct baton_frame frame = {.type = BATON_REGISTER};
    memcpy(frame.pod_name, settings->pod_name, sizeof frame.pod_name);
    memcpy(frame.pod_namespace, settings->pod_namespace, sizeof frame.pod_namespace);
    memcpy(frame.data, gpu->uuid.bytes, 16);
    memcpy(frame.data + 16, "BT\1", 4);
    send_frame(gpu, &frame);
}

static void try_connect(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, baton_settings()->socket_path, sizeof address.sun_path);
    link->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0 || connect(link->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        lose(gpu, now_us);
        return;
    }
    link->phase = BATON_LINK_REGISTERING;
    link->extended = false;
    link->deadline_us = now_us + reply_wait_us;
    send_register(gpu);
}

bool baton_link_advance(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->phase == BATON_LINK_DOWN && now_us >= link->retry_at_us)
        try_connect(gpu, now_us);
    else if (link->phase == BATON_LINK_REGISTERING && now_us >= link->deadline_us)
        lose(gpu, now_us);
    return link->phase == BATON_LINK_GREETING && now_us >= link->deadline_us;
}

void baton_link_await_hello(struct baton_gpu *gpu)
{
    gpu->link.phase = BATON_LINK_GREETING;
    gpu->link.deadline_us = baton_now_us() + hello_wait_us;
}

/* Like recv, but keeps a file descriptor that arrives with the data. */
static ssize_t receive_some(struct baton_gpu *gpu, void *bytes, size_t size)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec data = {bytes, size};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(gpu->link.fd, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *first = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (first && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS &&
        first->cmsg_len == CMSG_LEN(sizeof(int))) {
        baton_link_drop_passed(gpu);
        memcpy(&gpu->link.passed_fd, CMSG_DATA(first), sizeof(int));
    }
    return got;
}

bool baton_link_receive(struct baton_gpu *gpu, struct baton_frame *frame)
{
    struct baton_link *link = &gpu->link;
    while (link->fd >= 0) {
        ssize_t got = receive_some(gpu, (char *)&link->input + link->received, sizeof link->input - link->received);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return false;
        if (got <= 0) {
            lose(gpu, baton_now_us());
            return false;
        }
        link->received += (size_t)got;
        if (link->received == sizeof link->input) {
            *frame = link->input;
            link->received = 0;
            return true;
        }
    }
    return false;
}

static void send_identity(struct baton_gpu *gpu)
{
    const struct baton_settings *settings = baton_settings();
    struct baton_frame frame = {.type = BATON_IDENTITY};
    char name[64];
    strncpy(name, program_invocation_short_name, sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ')
            *c = '?';
    baton_text_add(&frame, "pid", "%d", (int)getpid());
    baton_text_add(&frame, "weight", "%u.%03u", settings->weight_milli / 1000, settings->weight_milli % 1000);
    baton_text_add(&frame, "priority", "%s", settings->priority);
    baton_text_add(&frame, "cores", "%u", settings->cores_percent);
    baton_text_add(&frame, "memory", "%llu", (unsigned long long)settings->memory_limit_bytes);
    baton_text_add(&frame, "oversubscribe", "%d", settings->oversubscribe);
    if (settings->gang) {
        baton_text_add(&frame, "gang", "%d-%llx", (int)getpid(), (unsigned long long)settings->read_us);
        baton_text_add(&frame, "gang_size", "%u", baton_gpu_count());
    }
    if (*settings->tenant)
        baton_text_add(&frame, "tenant", "%s", settings->tenant);
    if (*settings->run)
        baton_text_add(&frame, "run", "%s", settings->run);
    baton_text_add(&frame, "name", "%s", name);
    send_frame(gpu, &frame);
}

static void send_resume(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    struct baton_frame frame = {.type = BATON_RESUME};
    bool holding = link->turn == BATON_TURN_HELD;
    bool waiting = link->turn == BATON_TURN_ASKED;
    baton_text_add(&frame, "epoch", "%s", link->epoch);
    baton_text_add(&frame, "id", "%s", link->id);
    baton_text_add(&frame, "holding", "%d", holding);
    baton_text_add(&frame, "waiting", "%d", waiting);
    baton_text_add(&frame, "held_us", "%llu", holding ? (unsigned long long)(now_us - link->held_since_us) : 0ull);
    send_frame(gpu, &frame);
}

static void take_stock(struct baton_gpu *gpu, uint64_t values[4])
{
    int64_t allocated = atomic_load(&gpu->allocated_bytes);
    values[0] = allocated > 0 ? (uint64_t)allocated : 0;
    values[1] = baton_gate_activity(gpu);
    values[2] = atomic_load(&gpu->sync_us);
    values[3] = atomic_load(&gpu->wait_us);
}

static void send_report(struct baton_gpu *gpu, uint64_t now_us)
{
    static const char *const keys[4] = {"allocated", "launches", "sync_us", "wait_us"};
    struct baton_link *link = &gpu->link;
    uint64_t values[4];
    take_stock(gpu, values);
    for (size_t i = 1; i < 4; i++)
        values[i] -= link->registered[i];
    link->report_at_us = now_us + link->report_us;
    if (memcmp(values, link->reported, sizeof values) == 0)
        return;
    memcpy(link->reported, values, sizeof values);
    struct baton_frame frame = {.type = BATON_REPORT};
    for (size_t i = 0; i < 4; i++)
        baton_text_add(&frame, keys[i], "%llu", (unsigned long long)values[i]);
    send_frame(gpu, &frame);
}

bool baton_link_greet(struct baton_gpu *gpu, const struct baton_frame *hello, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    uint64_t number;
    bool resumes = link->known && link->phase == BATON_LINK_GREETING;
    if (baton_number_get(hello, "idle_ms", &number) && number > 0 && number <= 86400000)
        baton_idle_set_cost(&link->idle, number * 1000);
    if (baton_number_get(hello, "report_ms", &number) && number <= 86400000)
        link->report_us = number * 1000;
    if (link->extended)
        return false; /* repeated because the time limits changed */
    link->extended = true;
    take_stock(gpu, link->registered);
    memset(link->reported, 0, sizeof link->reported);
    send_identity(gpu);
    send_report(gpu, now_us);
    if (resumes)
        send_resume(gpu, now_us);
    if (!baton_text_get(hello, "epoch", link->epoch, sizeof link->epoch))
        link->epoch[0] = '\0';
    memcpy(link->id, link->new_id, sizeof link->id);
    link->known = true;
    return resumes;
}

void baton_link_report(struct baton_gpu *gpu, uint64_t now_us)
{
    struct baton_link *link = &gpu->link;
    if (link->extended && link->phase == BATON_LINK_READY && link->report_us && now_us >= link->report_at_us)
        send_report(gpu, now_us);
}

void baton_link_ask(struct baton_gpu *gpu, uint64_t now_us)
{
    /* The daemon uses the working set to decide whether we fit beside others, so it has to be current. */
    int64_t allocated = atomic_load(&gpu->allocated_bytes);
    if (gpu->link.extended && allocated >= 0 && (uint64_t)allocated != gpu->link.reported[0])
        send_report(gpu, now_us);
    baton_link_send_simple(gpu, BATON_REQ_LOCK);
}

uint64_t baton_link_next_event_us(struct baton_gpu *gpu)
{
    struct baton_link *link = &gpu->link;
    if (link->phase == BATON_LINK_DOWN)
        return link->retry_at_us;
    if (link->phase != BATON_LINK_READY)
        return link->deadline_us;
    /* Without a turn, the only possible change is that memory is freed. */
    bool changes = link->turn == BATON_TURN_HELD || (uint64_t)atomic_load(&gpu->allocated_bytes) != link->reported[0];
    return link->extended && link->report_us && changes ? link->report_at_us : never_us;
}
