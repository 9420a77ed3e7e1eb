/* Modules, libraries and functions. Any image is accepted and any name is found in it: the name decides whether the
 * kernel computes something or only takes time. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GLOBAL_BYTES 4096

static struct module *libraries;

bool function_valid(const struct function *function)
{
    return function != NULL && function->magic == MAGIC_FUNCTION;
}

static bool module_valid(const struct module *module)
{
    return module != NULL && module->magic == MAGIC_MODULE;
}

static CUresult module_make(struct context *context, struct module **made)
{
    struct module *module = calloc(1, sizeof *module);
    if (module == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->magic = MAGIC_MODULE;
    module->context = context;
    struct module **list = context != NULL ? &context->modules : &libraries;
    module->next = *list;
    *list = module;
    *made = module;
    return CUDA_SUCCESS;
}

/* Unloaded modules and their functions are kept, marked as unloaded, because work in flight may still refer to them. */
static void module_end(struct module *module)
{
    module->magic = 0;
    for (struct function *function = module->functions; function != NULL; function = function->next)
        function->magic = 0;
    for (struct global *global = module->globals; global != NULL; global = global->next) {
        block *found = block_find(global->address);
        if (found != NULL && found->base == global->address)
            memory_free_block(found);
    }
}

void module_forget_context(struct context *context)
{
    for (struct module *module = context->modules; module != NULL; module = module->next)
        if (module->magic == MAGIC_MODULE)
            module_end(module);
}

static CUresult find_function(struct module *module, const char *name, struct function **found)
{
    if (!module_valid(module) || name == NULL || *name == 0 || found == NULL)
        return module_valid(module) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    for (struct function *function = module->functions; function != NULL; function = function->next)
        if (strcmp(function->name, name) == 0) {
            *found = function;
            return CUDA_SUCCESS;
        }
    struct function *function = calloc(1, sizeof *function);
    if (function == NULL || (function->name = strdup(name)) == NULL) {
        free(function);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    function->magic = MAGIC_FUNCTION;
    function->module = module;
    function->model = kernel_find(name);
    function->max_dynamic_shared = 48 * 1024;
    function->carveout = -1;
    function->next = module->functions;
    module->functions = function;
    *found = function;
    return CUDA_SUCCESS;
}

/* A variable of a module: its size is unknown, so it gets a page. */
static CUresult find_global(struct module *module, struct context *context, const char *name, CUdeviceptr *address,
                            size_t *bytes)
{
    if (!module_valid(module) || name == NULL)
        return module_valid(module) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    struct global *global = module->globals;
    while (global != NULL && strcmp(global->name, name) != 0)
        global = global->next;
    if (global == NULL) {
        block fresh = {.kind = BLOCK_DEVICE};
        CUresult taken = memory_take(context, GLOBAL_BYTES, &fresh);
        if (taken != CUDA_SUCCESS)
            return taken;
        global = calloc(1, sizeof *global);
        if (global == NULL || (global->name = strdup(name)) == NULL) {
            free(global);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memset((void *)(uintptr_t)fresh.base, 0, GLOBAL_BYTES);
        global->address = fresh.base;
        global->next = module->globals;
        module->globals = global;
    }
    if (address != NULL)
        *address = global->address;
    if (bytes != NULL)
        *bytes = GLOBAL_BYTES;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(context);
    if (module == NULL || image == NULL)
        LEAVE(CUDA_ERROR_INVALID_VALUE);
    LEAVE(module_make(context, module));
}

CUDA_API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, void *options,
                                     void **values)
{
    return cuModuleLoadData(module, image);
}

CUDA_API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return cuModuleLoadData(module, image);
}

CUDA_API CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    if (path != NULL && access(path, R_OK) != 0)
        return driver_ready() == CUDA_SUCCESS ? CUDA_ERROR_FILE_NOT_FOUND : driver_ready();
    return cuModuleLoadData(module, path);
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
    ENTER(context);
    if (!module_valid(module))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    CUresult result = context_wait(context);
    module_end(module);
    LEAVE(result);
}

CUDA_API CUresult cuModuleGetLoadingMode(int *mode)
{
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* lazy */
    return driver_ready();
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(context);
    LEAVE(find_function(module, name, function));
}

CUDA_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    ENTER(context);
    LEAVE(find_global(module, context, name, address, bytes));
}

static unsigned int count_functions(const struct module *module)
{
    unsigned int count = 0;
    for (const struct function *function = module->functions; function != NULL; function = function->next)
        count++;
    return count;
}

CUDA_API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    ENTER(context);
    if (count == NULL || !module_valid(module))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    *count = count_functions(module);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module)
{
    ENTER(context);
    if (functions == NULL || !module_valid(module))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    struct function *function = module->functions;
    for (unsigned int index = 0; index < room && function != NULL; index++, function = function->next)
        functions[index] = function;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, void *options, void **values,
                                    unsigned int count, void *library_options, void **library_values,
                                    unsigned int library_count)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS || library == NULL || code == NULL)
        return ready != CUDA_SUCCESS ? ready : CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    LEAVE(module_make(NULL, library));
}

CUDA_API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, void *options, void **values,
                                        unsigned int count, void *library_options, void **library_values,
                                        unsigned int library_count)
{
    if (path != NULL && access(path, R_OK) != 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLibraryLoadData(library, path, options, values, count, library_options, library_values, library_count);
}

CUDA_API CUresult cuLibraryUnload(CUlibrary library)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    if (!module_valid(library))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    module_end(library);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUresult ready = driver_ready();
    if (ready != CUDA_SUCCESS)
        return ready;
    driver_lock();
    LEAVE(find_function(library, name, kernel));
}

CUDA_API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    if (count == NULL || !module_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    *count = count_functions(library);
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library)
{
    if (kernels == NULL || !module_valid(library))
        return CUDA_ERROR_INVALID_HANDLE;
    driver_lock();
    struct function *function = library->functions;
    for (unsigned int index = 0; index < room && function != NULL; index++, function = function->next)
        kernels[index] = function;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER(context);
    if (module == NULL || !module_valid(library))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    *module = library;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    ENTER(context);
    LEAVE(find_global(library, context, name, address, bytes));
}

CUDA_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER(context);
    if (function == NULL || !function_valid(kernel))
        LEAVE(CUDA_ERROR_INVALID_HANDLE);
    *function = kernel;
    LEAVE(CUDA_SUCCESS);
}

CUDA_API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    if (library == NULL || !function_valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *library = kernel->module;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    if (name == NULL || !function_valid(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = kernel->name;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetName(const char **name, CUfunction function)
{
    return cuKernelGetName(name, function);
}

CUDA_API CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    return cuKernelGetLibrary(module, function);
}

CUDA_API CUresult cuFuncIsLoaded(int *state, CUfunction function)
{
    if (state == NULL || !function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *state = 1;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncLoad(CUfunction function)
{
    return function_valid(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (function->model == NULL)
        return driver_unsupported("cuFuncGetParamInfo");
    size_t at = 0;
    for (size_t parameter = 0; parameter < sizeof function->model->sizes; parameter++) {
        size_t bytes = function->model->sizes[parameter];
        if (bytes == 0)
            break;
        at = (at + bytes - 1) / bytes * bytes;
        if (parameter == index) {
            if (offset != NULL)
                *offset = at;
            if (size != NULL)
                *size = bytes;
            return CUDA_SUCCESS;
        }
        at += bytes;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    return cuFuncGetParamInfo(kernel, index, offset, size);
}

CUDA_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    if (value == NULL || !function_valid(function))
        return value == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    const simgpu_profile *profile = &driver_card(driver.cards[0])->profile;
    int binary = (int)(profile->compute_major * 10 + profile->compute_minor);
    const int values[] = {1024, 0, 0, 0, 32, binary, binary, 0, function->max_dynamic_shared, function->carveout,
                          0,    0, 0, 0, 0,  0};
    if (attribute < 0 || attribute >= (int)(sizeof values / sizeof values[0]))
        return CUDA_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    if (!function_valid(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == 8)
        function->max_dynamic_shared = value;
    else if (attribute == 9)
        function->carveout = value;
    else if (attribute < 8 || attribute > 15)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
    CUresult checked = device_check(device);
    return checked != CUDA_SUCCESS ? checked : cuFuncGetAttribute(value, attribute, kernel);
}

CUDA_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    CUresult checked = device_check(device);
    return checked != CUDA_SUCCESS ? checked : cuFuncSetAttribute(kernel, attribute, value);
}

CUDA_API CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
    return function_valid(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
    return cuFuncSetCacheConfig(kernel, config);
}

CUDA_API CUresult cuFuncSetSharedMemConfig(CUfunction function, int config)
{
    return cuFuncSetCacheConfig(function, config);
}
