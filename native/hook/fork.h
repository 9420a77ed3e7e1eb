/* fork: the child starts as a process that has not used CUDA yet. */
#ifndef BATON_FORK_H
#define BATON_FORK_H

void baton_fork_watch(void);

#endif
