/* The beginning of every simulated NVML call: is NVML initialised, which card is meant, is it still present.
 *
 * A session is this process's attachment to a machine, from the first nvmlInit to the last nvmlShutdown. Calls run
 * concurrently; only nvmlInit and nvmlShutdown exclude the others.
 */
#ifndef BATON_SIMGPU_NVML_SESSION_H
#define BATON_SIMGPU_NVML_SESSION_H

#include "machine.h"
#include "nvml_abi.h"

/* A visible card: its number in this process and its number in the machine. They differ if the environment hides some
 * of the machine's cards. */
struct nvml_device {
    uint32_t index, card;
};

/* `session_handle` may be used between a `session_enter` that returned NVML_SUCCESS and `session_leave`. */
nvmlReturn_t session_enter(void);
void session_leave(void);
simgpu_handle *session_handle(void);
uint32_t session_card_count(void); /* visible ones */

nvmlDevice_t session_device(uint32_t index);
const simgpu_profile *session_profile(uint32_t index);
/* The complete prologue of a call about one card: enter, check the handle, lock the card, advance it, check for
 * loss. */
nvmlReturn_t card_enter(nvmlDevice_t device, simgpu_card **card);
void card_leave(simgpu_card *card);
/* The same for a card's number in the machine, visible or not. */
nvmlReturn_t machine_card_enter(uint32_t number, simgpu_card **card);

/* The body of a call that fills in a few values from a locked card. */
#define WITH_CARD(device, card, ...)                                                                                   \
    do {                                                                                                               \
        simgpu_card *card;                                                                                             \
        nvmlReturn_t entered = card_enter(device, &card);                                                              \
        if (entered != NVML_SUCCESS)                                                                                   \
            return entered;                                                                                            \
        nvmlReturn_t result = NVML_SUCCESS;                                                                            \
        __VA_ARGS__;                                                                                                   \
        card_leave(card);                                                                                              \
        return result;                                                                                                 \
    } while (0)

#define NEED(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
    } while (0)

nvmlReturn_t copy_text(const char *text, char *buffer, unsigned length);

#endif
