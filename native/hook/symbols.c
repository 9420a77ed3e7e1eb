/* Interposes dlsym and dlvsym, so that a program that opens the driver by hand gets the wrappers too.
 *
 * The real ones cannot be had through dlvsym, because that is interposed as well; they are read from the symbol table
 * of the loaded C library (libdl before glibc 2.34). RTLD_NEXT and RTLD_DEFAULT depend on who calls, so that everything that is
 * not ours must reach the real function with the program's own return address: the entry points are a few
 * instructions of assembly that ask `baton_pick` and otherwise jump.
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

struct dynamic {
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const ElfW(Word) * hash;
};

static size_t count_symbols(const struct dynamic *object)
{
    if (object->hash)
        return object->hash[1];
    if (!object->gnu_hash)
        return 0;
    /* The GNU table stores no count: the last chain's end is one before it. */
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

static int find_in_libc(struct dl_phdr_info *info, size_t size, void *unused)
{
    const char *name = strrchr(info->dlpi_name, '/');
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libc.so.", 8) != 0 && strncmp(name, "libdl.so.", 9) != 0)
        return 0;
    struct dynamic object = {0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
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
    }
    if (!object.symbols || !object.strings)
        return 0;
    size_t count = count_symbols(&object);
    for (size_t i = 0; i < count; i++) {
        const ElfW(Sym) *symbol = &object.symbols[i];
        if (symbol->st_shndx == SHN_UNDEF || (symbol->st_info & 0xf) != STT_FUNC)
            continue;
        const char *text = object.strings + symbol->st_name;
        void *address = (void *)(info->dlpi_addr + symbol->st_value);
        if (strcmp(text, "dlsym") == 0)
            __atomic_store_n(&baton_libc_dlsym, address, __ATOMIC_RELEASE);
        else if (strcmp(text, "dlvsym") == 0)
            __atomic_store_n(&baton_libc_dlvsym, address, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&baton_libc_dlsym, __ATOMIC_RELAXED) && __atomic_load_n(&baton_libc_dlvsym, __ATOMIC_RELAXED);
}

static void find_real(void)
{
    if (BATON_LIKELY(__atomic_load_n(&baton_libc_dlsym, __ATOMIC_ACQUIRE) &&
                     __atomic_load_n(&baton_libc_dlvsym, __ATOMIC_ACQUIRE)))
        return;
    dl_iterate_phdr(find_in_libc, NULL);
    if (!baton_libc_dlsym || !baton_libc_dlvsym) {
        baton_log("no dlsym in the loaded C library; only glibc is supported");
        __builtin_trap();
    }
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

/* A program must not conclude from our exports that a driver is there: what follows us in the search order counts. */
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

/* What the program gets for a name, or NOT_OURS when the real function should answer. Called by the entry points. */
__attribute__((visibility("hidden"), used)) void *baton_pick(void *handle, const char *name, const char *version)
{
    find_real();
    if (!name || handle == RTLD_NEXT)
        return NOT_OURS;
    bool nvml = strncmp(name, "nvmlDeviceGetMemoryInfo", 23) == 0;
    if (name[0] == 'd' && handle != RTLD_DEFAULT) {
        /* Asked for by name in libdl or libc: a program that looks symbols up through the answer is still ours. */
        if (strcmp(name, "dlsym") == 0)
            return real_lookup(handle, name, version) ? (void *)baton_dlsym_base : NULL;
        if (strcmp(name, "dlvsym") == 0)
            return real_lookup(handle, name, version) ? (void *)baton_dlvsym_base : NULL;
        return NOT_OURS;
    }
    if (!nvml && (name[0] != 'c' || name[1] != 'u' || !baton_wraps(name)))
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
