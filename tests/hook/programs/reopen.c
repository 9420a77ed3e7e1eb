/* Repeatedly opens the driver, launches and closes it, as plugins do. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    for (int turn = 0; turn < 100; turn++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
        int (*retain)(void **, int) = (int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
        int (*set)(void *) = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
        int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **) = dlsym(driver, "cuLaunchKernel");
        if (retain(&context, 0) || set(context) || launch((void *)0xf0, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
            return 1;
        if (dlclose(driver))
            return 2;
    }
    puts("done");
    return 0;
}
