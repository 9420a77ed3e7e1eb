/* Interposes dlsym and dlvsym, so that a program that opens the driver with dlopen gets the wrappers too.
 *
 * The real functions cannot be found with dlvsym, which is interposed as well; the hook reads them from the symbol
 * table of the loaded C library (libdl before glibc 2.34). RTLD_NEXT and RTLD_DEFAULT depend on the caller, so every
 * lookup that is not ours must reach the real function with the program's own return address: the entry points are a
 * few assembly instructions that call `baton_pick` and otherwise jump to the real function.
 *
 * Other libraries, such as the runtimes of sanitizers and allocators, call dlsym before this process is initialised.
 * Until it is decided that a name is ours, this code calls no other library and is not instrumented.
 */
#include "symbols.h"

#include "driver.h"
#include "nvml.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);

/* Read by the assembly below. */
__attribute__((visibility("hidden"))) void *baton_libc_dlsym, *baton_libc_dlvsym;

extern char baton_dlsym_base[], baton_dlvsym_base[];

#define NOT_OURS ((void *)-1)

#define EARLY __attribute__((no_sanitize_address, no_sanitize_thread, no_sanitize_undefined))

struct dynamic {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const ElfW(Word) * hash;
};

EARLY static bool starts_with(const char *text, const char *prefix)
{
    while (*prefix)
        if (*text++ != *prefix++)
            return false;
    return true;
}

EARLY static bool equal(const char *text, const char *other)
{
    while (*text && *text == *other)
        text++, other++;
    return *text == *other;
}

EARLY static size_t count_symbols(const struct dynamic *object)
{
    if (object->hash)
        return object->hash[1];
    if (!object->gnu_hash)
        return 0;
    /* The GNU hash table stores no symbol count: compute it from the end of the last chain. */
    uint32_t buckets = object->gnu_hash[0], first = object->gnu_hash[1], bloom = object->gnu_hash[2];
    const uint32_t *bucket = object->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last)
            last = bucket[i];
    if (last < first)
        return 0;
    while (!(chain[last - first] & 1))
        last++;
    return last + 1;
}

EARLY static void find_in(const struct link_map *loaded)
{
    struct dynamic object = {0};
    for (const ElfW(Dyn) *entry = loaded->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *address = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            object.symbols = address;
        else if (entry->d_tag == DT_STRTAB)
            object.strings = address;
        else if (entry->d_tag == DT_GNU_HASH)
            object.gnu_hash = address;
        else if (entry->d_tag == DT_HASH)
            object.hash = address;
    }
    if (!object.symbols || !object.strings)
        return;
    size_t count = count_symbols(&object);
    for (size_t i = 0; i < count; i++) {
        const ElfW(Sym) *symbol = &object.symbols[i];
        if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 0xf) != STT_FUNC)
            continue;
        const char *text = object.strings + symbol->st_name;
        void *address = (void *)(loaded->l_addr + symbol->st_value);
        if (equal(text, "dlsym"))
            __atomic_store_n(&baton_libc_dlsym, address, __ATOMIC_RELEASE);
        else if (equal(text, "dlvsym"))
            __atomic_store_n(&baton_libc_dlvsym, address, __ATOMIC_RELEASE);
    }
}

/* The C library was loaded before any code could call us, so its place in the list does not change. */
EARLY static void find_real(void)
{
    if (BATON_LIKELY(__atomic_load_n(&baton_libc_dlsym, __ATOMIC_ACQUIRE) &&
                     __atomic_load_n(&baton_libc_dlvsym, __ATOMIC_ACQUIRE)))
        return;
    for (const struct link_map *loaded = _r_debug.r_map; loaded; loaded = loaded->l_next) {
        const char *file = loaded->l_name;
        for (const char *c = loaded->l_name; *c; c++)
            if (*c == '/')
                file = c + 1;
        if (starts_with(file, "libc.so.") || starts_with(file, "libdl.so."))
            find_in(loaded);
    }
    if (!baton_libc_dlsym || !baton_libc_dlvsym)
        __builtin_trap(); /* not glibc, which is required */
}

void *baton_real_dlsym(void *handle, const char *name)
{
    find_real();
    return ((dlsym_function *)__atomic_load_n(&baton_libc_dlsym, __ATOMIC_RELAXED))(handle, name);
}

static void *real_lookup(void *handle, const char *name, const char *version)
{
    if (!version)
        return baton_real_dlsym(handle, name);
    return ((dlvsym_function *)__atomic_load_n(&baton_libc_dlvsym, __ATOMIC_RELAXED))(handle, name, version);
}

/* Our exports must not make a program believe that a driver is present: only libraries after us in the search order
 * count. */
static void *pick_global(const char *name, const char *version, bool nvml)
{
    void *first = real_lookup(RTLD_DEFAULT, name, version);
    if (first && !(nvml ? baton_nvml_is_wrapper(name, first) : baton_is_wrapper(name, first)))
        return first;
    void *behind = real_lookup(RTLD_NEXT, name, version);
    if (!behind)
        return NULL;
    if (nvml)
        return baton_nvml_wrap(NULL, name, behind);
    baton_driver_adopt(NULL, NULL);
    return baton_wrap_symbol(name, behind);
}

/* What to return for a name, or NOT_OURS if the real function should answer. Called by the entry points. */
EARLY __attribute__((visibility("hidden"), used)) void *baton_pick(void *handle, const char *name, const char *version)
{
    find_real();
    if (!name || handle == RTLD_NEXT)
        return NOT_OURS;
    bool nvml = starts_with(name, "nvmlDeviceGetMemoryInfo");
    if (name[0] == 'd' && handle != RTLD_DEFAULT) {
        /* A lookup of dlsym itself in libdl or libc: lookups through the result must reach us too. */
        if (equal(name, "dlsym"))
            return real_lookup(handle, name, version) ? (void *)baton_dlsym_base : NULL;
        if (equal(name, "dlvsym"))
            return real_lookup(handle, name, version) ? (void *)baton_dlvsym_base : NULL;
        return NOT_OURS;
    }
    if (!nvml && (!starts_with(name, "cu") || !baton_wraps(name)))
        return NOT_OURS;
    if (handle == RTLD_DEFAULT)
        return pick_global(name, version, nvml);
    void *found = real_lookup(handle, name, version);
    if (!found)
        return NULL;
    if (nvml)
        return baton_nvml_wrap(handle, name, found);
    if (baton_is_wrapper(name, found))
        return pick_global(name, version, false);
    baton_driver_adopt(handle, found);
    return baton_wrap_symbol(name, found);
}

#if defined(__x86_64__)
#define DLSYM_BASE "GLIBC_2.2.5"
#define ENTRY(label, real, clear_version)                                           \
    __asm__(".text\n.p2align 4\n.globl " label "\n.type " label ",@function\n"      \
            label ":\n.cfi_startproc\nendbr64\n"                                    \
            "pushq %rdi\n.cfi_adjust_cfa_offset 8\n"                                \
            "pushq %rsi\n.cfi_adjust_cfa_offset 8\n"                                \
            "pushq %rdx\n.cfi_adjust_cfa_offset 8\n"                                \
            clear_version                                                           \
            "call baton_pick\n"                                                     \
            "popq %rdx\n.cfi_adjust_cfa_offset -8\n"                                \
            "popq %rsi\n.cfi_adjust_cfa_offset -8\n"                                \
            "popq %rdi\n.cfi_adjust_cfa_offset -8\n"                                \
            "cmpq $-1, %rax\nje 1f\nret\n"                                          \
            "1: movq " real "(%rip), %rax\njmp *%rax\n"                             \
            ".cfi_endproc\n.size " label ", .-" label "\n")
#define NO_VERSION "xorl %edx, %edx\n"
#else
#define DLSYM_BASE "GLIBC_2.17"
#define ENTRY(label, real, clear_version)                                           \
    __asm__(".text\n.p2align 4\n.globl " label "\n.type " label ",%function\n"      \
            label ":\n.cfi_startproc\n"                                             \
            "stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n"                \
            ".cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"                      \
            "mov x29, sp\n"                                                         \
            "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\n"                            \
            clear_version                                                           \
            "bl baton_pick\n"                                                       \
            "mov x16, x0\n"                                                         \
            "ldp x0, x1, [sp, #16]\nldr x2, [sp, #32]\n"                            \
            "ldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\n"                 \
            ".cfi_restore x29\n.cfi_restore x30\n"                                  \
            "cmn x16, #1\nb.eq 1f\nmov x0, x16\nret\n"                              \
            "1: adrp x16, " real "\nldr x16, [x16, :lo12:" real "]\nbr x16\n"       \
            ".cfi_endproc\n.size " label ", .-" label "\n")
#define NO_VERSION "mov x2, xzr\n"
#endif

ENTRY("baton_dlsym_base", "baton_libc_dlsym", NO_VERSION);
ENTRY("baton_dlvsym_base", "baton_libc_dlvsym", "");

__asm__(".globl baton_dlsym_234\n.set baton_dlsym_234, baton_dlsym_base\n"
        ".globl baton_dlvsym_234\n.set baton_dlvsym_234, baton_dlvsym_base\n"
        ".symver baton_dlsym_base, dlsym@" DLSYM_BASE "\n"
        ".symver baton_dlsym_234, dlsym@@GLIBC_2.34\n"
        ".symver baton_dlvsym_base, dlvsym@" DLSYM_BASE "\n"
        ".symver baton_dlvsym_234, dlvsym@@GLIBC_2.34\n");
