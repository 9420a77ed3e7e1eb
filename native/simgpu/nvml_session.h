/* What every NVML call of the simulated driver does first: is NVML initialised, which card is meant, is it still there.
 *
 * A session is the hold of this process on a machine, from the first nvmlInit to the last nvmlShutdown. Calls run
 * side by side; only nvmlInit and nvmlShutdown keep the others out.
 */
#ifndef BATON_SIMGPU_NVML_SESSION_H
#define BATON_SIMGPU_NVML_SESSION_H

#include "machine.h"
#include "nvml_abi.h"

/* A visible card: its number for this process, and its number in the machine. They differ when the environment hides
 * some of the machine's cards. */
struct nvml_device {
    uint32_t index, card;
};

/* Everything between `session_enter` (when it returns NVML_SUCCESS) and `session_leave` may use `session_handle`. */
nvmlReturn_t session_enter(void);
void session_leave(void);
simgpu_handle *session_handle(void);
uint32_t session_card_count(void); /* visible ones */

nvmlDevice_t session_device(uint32_t index);
const simgpu_profile *session_profile(uint32_t index);
/* The whole prologue for a call about one card: entered, handle checked, card locked, advanced to now, and not lost. */
nvmlReturn_t card_enter(nvmlDevice_t device, simgpu_card **card);
void card_leave(simgpu_card *card);
/* The same by the card's number in the machine, visible or not. */
nvmlReturn_t machine_card_enter(uint32_t number, simgpu_card **card);

/* The body of a call that fills in a few numbers from a locked card. */
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
