/* CUDA does not survive fork, but a child may use CUDA if its parent never did, and may exec at any time. The child
 * drops all inherited state: the threads do not exist in it, the connections belong to the parent, and a mutex held by
 * another thread at the fork would stay locked. */
#include "fork.h"

#include "capture.h"
#include "client.h"
#include "context.h"
#include "gate.h"
#include "ledger.h"
#include "vmm.h"

#include <pthread.h>

static void in_child(void)
{
    baton_client_reset_in_child();
    baton_gpus_reset_in_child();
    baton_contexts_reset_in_child();
    baton_captures_reset_in_child();
    baton_ledger_reset_in_child();
    baton_vmm_reset_in_child();
    baton_gate_reset_in_child();
}

void baton_fork_watch(void)
{
    static bool watching;
    if (!watching)
        watching = pthread_atfork(NULL, NULL, in_child) == 0;
}
