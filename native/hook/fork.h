/* fork: the child starts as a process that has not used CUDA. */
#ifndef BATON_FORK_H
#define BATON_FORK_H

void baton_fork_watch(void);

#endif
