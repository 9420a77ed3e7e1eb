/* One connection to the lock daemon: connecting, framing, greeting, reporting. For the client thread only. */
#ifndef BATON_LINK_H
#define BATON_LINK_H

#include "gpu.h"

/* Reads the next whole frame, if one has arrived. Closes a dead connection; it will be reopened. */
bool baton_link_receive(struct baton_gpu *gpu, struct baton_frame *frame);

/* Closes the file descriptor that came with a frame, if any. */
void baton_link_drop_passed(struct baton_gpu *gpu);

/* Advances the connection: tries to connect, or gives up on a silent peer. True if the peer is a daemon without
 * extensions. */
bool baton_link_advance(struct baton_gpu *gpu, uint64_t now_us);

/* The daemon has answered REGISTER; a HELLO within a short time shows that it supports extensions. */
void baton_link_await_hello(struct baton_gpu *gpu);

/* Answers HELLO with IDENTITY, and RESUME after a reconnect; true when it resumed. */
bool baton_link_greet(struct baton_gpu *gpu, const struct baton_frame *hello, uint64_t now_us);

/* Sends REQ_LOCK, preceded by a REPORT if the memory in use has changed. */
void baton_link_ask(struct baton_gpu *gpu, uint64_t now_us);

void baton_link_send_simple(struct baton_gpu *gpu, enum baton_frame_type type);
void baton_link_report(struct baton_gpu *gpu, uint64_t now_us);
void baton_link_flush(struct baton_gpu *gpu);
uint64_t baton_link_next_event_us(struct baton_gpu *gpu);

#endif
