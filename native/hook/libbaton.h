#ifndef BATON_LIBBATON_H
#define BATON_LIBBATON_H

#define BATON_HOOK_VERSION "0.1.0"
#define BATON_EXPORT __attribute__((visibility("default")))

/* Lets `baton doctor` and a debugger tell which hook a process carries. */
BATON_EXPORT const char *baton_hook_version(void);

#endif
