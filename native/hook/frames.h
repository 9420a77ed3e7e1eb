/* The lock's wire protocol (docs/reference/wire.md): 537-byte frames. */
#ifndef BATON_FRAMES_H
#define BATON_FRAMES_H

#include "libbaton.h"

#include <stddef.h>

enum baton_frame_type {
    BATON_REGISTER = 1,
    BATON_SCHED_ON = 2,
    BATON_SCHED_OFF = 3,
    BATON_REQ_LOCK = 4,
    BATON_LOCK_OK = 5,
    BATON_DROP_LOCK = 6,
    BATON_LOCK_RELEASED = 7,
    BATON_HELLO = 64,
    BATON_LIMITS = 65,
    BATON_IDENTITY = 66,
    BATON_REPORT = 67,
    BATON_NOTICE = 68,
    BATON_RESUME = 69,
    BATON_ALLOWANCE = 70,
};

#define BATON_TEXT_SIZE 508

/* Little-endian on the wire, as both supported architectures are. */
struct baton_frame {
    uint8_t type;
    union {
        struct {
            char pod_name[254];
            char pod_namespace[254];
        };
        char text[BATON_TEXT_SIZE];
    };
    uint64_t id;
    char data[20];
} __attribute__((packed));

_Static_assert(sizeof(struct baton_frame) == 537, "the frame is 537 bytes, packed");

/* Appends "key=value\n"; a pair that does not fit is left out entirely. */
void baton_text_add(struct baton_frame *frame, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Copies the value of `key` into `value`; false if the key is absent or its value is longer than `size`. */
bool baton_text_get(const struct baton_frame *frame, const char *key, char *value, size_t size);

/* The same for a decimal number. */
bool baton_number_get(const struct baton_frame *frame, const char *key, uint64_t *number);

#endif
