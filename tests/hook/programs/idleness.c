/* The hook's idle detection alone, in virtual time: one command per line on stdin, one answer per line on stdout. */
#include "gate.h"
#include "gpu.h"

#include <stdio.h>

static struct baton_gpu gpu;
static uint64_t activity;

uint64_t baton_gate_activity(struct baton_gpu *asked) { return asked == &gpu ? activity : 0; }

int main(void)
{
    char word[16];
    unsigned long long number;
    while (scanf("%15s %llu", word, &number) == 2) {
        unsigned long long answer = 0;
        switch (word[0]) {
        case 'c': /* cost */
            baton_idle_set_cost(&gpu.link.idle, number);
            break;
        case 'b': /* begin */
            baton_idle_begin(&gpu, number);
            break;
        case 'n': /* number of calls */
            activity = number;
            break;
        case 'w': /* 0: waiting for work now; otherwise the time when waiting ended */
            gpu.waiting_for_work = number == 0;
            gpu.waited_until_us = number;
            break;
        case 'l': /* look */
            answer = baton_idle_look(&gpu, number);
            break;
        case 'a': /* ask */
            baton_idle_over(&gpu, number);
            break;
        case 'd': /* the drain found work */
            baton_idle_worked(&gpu, number);
            break;
        }
        printf("%llu %llu\n", answer, (unsigned long long)gpu.link.idle.look_us);
        fflush(stdout);
    }
    return 0;
}
