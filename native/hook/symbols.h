/* dlsym and dlvsym: the program's, which are ours, and the C library's. */
#ifndef BATON_SYMBOLS_H
#define BATON_SYMBOLS_H

/* The C library's dlsym, whatever this library exports under that name. */
void *baton_real_dlsym(void *handle, const char *name);

#endif
