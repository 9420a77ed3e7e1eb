/* Stream captures: while one is in progress, the hook must not synchronise, query or record on any thread. */
#ifndef BATON_CAPTURE_H
#define BATON_CAPTURE_H

#include "cuda_abi.h"
#include "libbaton.h"

/* Exclude captures until baton_capture_allow: a capture that begins in between waits. The first form waits up to
 * `patience_us` for captures in progress; the second returns false at once if there are any. */
bool baton_capture_exclude(uint64_t patience_us);
bool baton_capture_try_exclude(void);
void baton_capture_allow(void);

/* Whether work on the stream is being recorded instead of run. */
bool baton_stream_is_capturing(CUstream stream);

void baton_captures_reset_in_child(void);

#endif
