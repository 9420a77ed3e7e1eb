/* dlsym and dlvsym: the ones that the program sees, which are ours, and the C library's. */
#ifndef BATON_SYMBOLS_H
#define BATON_SYMBOLS_H

/* The C library's dlsym, bypassing the one that this library exports. */
void *baton_real_dlsym(void *handle, const char *name);

#endif
