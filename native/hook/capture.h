/* Stream captures: while one is under way, no thread may synchronise, query or record on the hook's behalf. */
#ifndef BATON_CAPTURE_H
#define BATON_CAPTURE_H

#include "cuda_abi.h"
#include "libbaton.h"

/* Excludes captures until baton_capture_allow: a capture that begins meanwhile waits. The first form waits for those
 * under way, and gives up after a while; the second refuses at once. */
bool baton_capture_exclude(uint64_t patience_us);
bool baton_capture_try_exclude(void);
void baton_capture_allow(void);

/* Whether work on the stream is being recorded instead of run. */
bool baton_stream_is_capturing(CUstream stream);

void baton_captures_reset_in_child(void);

#endif
