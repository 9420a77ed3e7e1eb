/* Accounts for virtual memory management by handle and mapping (vmm.c). */
#ifndef BATON_VMM_H
#define BATON_VMM_H

void baton_vmm_reset_in_child(void);

#endif
