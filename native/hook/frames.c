/* Writes and reads the key=value text of extension frames. Input comes from another process and is not trusted:
 * the text may lack its NUL, and keys may be missing, repeated or unknown. */
#include "frames.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void baton_text_add(struct baton_frame *frame, const char *key, const char *format, ...)
{
    char pair[256];
    size_t used = strnlen(frame->text, BATON_TEXT_SIZE);
    int start = snprintf(pair, sizeof pair, "%s=", key);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(pair + start, sizeof pair - (size_t)start, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)(start + length) + 1 >= sizeof pair)
        return;
    size_t total = (size_t)(start + length);
    pair[total++] = '\n';
    if (used + total <= BATON_TEXT_SIZE)
        memcpy(frame->text + used, pair, total);
}

bool baton_text_get(const struct baton_frame *frame, const char *key, char *value, size_t size)
{
    const char *line = frame->text;
    const char *end = line + strnlen(line, BATON_TEXT_SIZE);
    size_t key_length = strlen(key);
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        size_t length = (size_t)(stop - line);
        if (length > key_length && memcmp(line, key, key_length) == 0 && line[key_length] == '=') {
            size_t value_length = length - key_length - 1;
            if (value_length >= size)
                return false;
            memcpy(value, line + key_length + 1, value_length);
            value[value_length] = '\0';
            return true;
        }
        line = stop + 1;
    }
    return false;
}

bool baton_number_get(const struct baton_frame *frame, const char *key, uint64_t *number)
{
    char text[24];
    uint64_t sum = 0;
    if (!baton_text_get(frame, key, text, sizeof text) || !*text)
        return false;
    for (const char *digit = text; *digit; digit++) {
        if (*digit < '0' || *digit > '9' || __builtin_mul_overflow(sum, 10u, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)(*digit - '0'), &sum))
            return false;
    }
    *number = sum;
    return true;
}
