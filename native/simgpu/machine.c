/* Attaching to a machine, locks that survive their owners, time, and cleaning up after dead processes. */
#define _GNU_SOURCE
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OWNER_SLOT_BITS 12
/* Beyond the bytes that mark living slots are the bytes that carry pids: classic locks, whose owner the kernel
 * translates into the caller's pid namespace. */
#define PID_BYTES_AT 65536
#define REAP_INTERVAL_NS 20000000ULL

void simgpu_debug(const char *format, ...)
{
    const char *wanted = getenv("BATON_DEBUG");
    if (wanted == NULL || *wanted == 0 || strcmp(wanted, "0") == 0)
        return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "baton: simulated GPU: %s\n", line);
}

void simgpu_directory(char *buffer, size_t size, const char *asked)
{
    const char *set = asked != NULL && *asked ? asked : getenv("BATON_SIMGPU_DIR");
    if (set != NULL && *set) {
        snprintf(buffer, size, "%s", set);
        return;
    }
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && *runtime)
        snprintf(buffer, size, "%s/baton/simgpu", runtime);
    else if (geteuid() == 0)
        snprintf(buffer, size, "/run/baton/simgpu");
    else
        snprintf(buffer, size, "/tmp/baton-%u/simgpu", (unsigned)geteuid());
}

/* Whether `wanted` (a number, or the beginning of a UUID) names this card. */
static bool names_card(const simgpu_profile *profile, uint32_t index, const char *wanted, size_t length)
{
    char text[64], *at = text + sprintf(text, "GPU-");
    for (int byte = 0; byte < 16; byte++)
        at += sprintf(at, "%s%02x", byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", profile->uuid[byte]);
    if (length > 4 && strncasecmp(wanted, "GPU-", 4) == 0)
        return length <= strlen(text) && strncasecmp(text, wanted, length) == 0;
    return (size_t)snprintf(text, sizeof text, "%u", index) == length && strncmp(text, wanted, length) == 0;
}

uint32_t simgpu_select_cards(const simgpu_handle *handle, const char *list, const uint32_t *from, uint32_t from_count,
                             uint32_t *chosen)
{
    uint32_t count = 0;
    while (list != NULL && *list && count < SIMGPU_MAX_CARDS) {
        size_t length = strcspn(list, ",");
        uint32_t position = 0;
        while (position < from_count &&
               !names_card(&handle->shared->cards[from[position]].profile, position, list, length))
            position++;
        if (position == from_count)
            break; /* like the real driver: the list ends at the first unknown name */
        chosen[count++] = from[position];
        list += length + (list[length] == ',');
    }
    return count;
}

/* A container gets its cards through NVIDIA_VISIBLE_DEVICES. With real GPUs the container runtime hides the others;
 * here the libraries do. */
uint32_t simgpu_visible_cards(const simgpu_handle *handle, uint32_t *cards)
{
    uint32_t every[SIMGPU_MAX_CARDS], count = handle->shared->card_count;
    const char *wanted = getenv("NVIDIA_VISIBLE_DEVICES");
    for (uint32_t index = 0; index < count; index++)
        every[index] = index;
    if (wanted != NULL && (strcmp(wanted, "none") == 0 || strcmp(wanted, "void") == 0))
        return 0;
    if (wanted == NULL || *wanted == 0 || *wanted == '/' || strcmp(wanted, "all") == 0) {
        memcpy(cards, every, sizeof every);
        return count;
    }
    return simgpu_select_cards(handle, wanted, every, count, cards);
}

uint64_t simgpu_real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

uint64_t simgpu_modelled_ns(const simgpu_handle *handle, const simgpu_card *card, uint64_t real_ns)
{
    uint64_t epoch = handle->shared->epoch_real_ns;
    return real_ns <= epoch ? 0 : (uint64_t)((double)(real_ns - epoch) * card->profile.time_scale);
}

uint64_t simgpu_real_of(const simgpu_handle *handle, const simgpu_card *card, uint64_t modelled_ns)
{
    return handle->shared->epoch_real_ns + (uint64_t)((double)modelled_ns / card->profile.time_scale);
}

static int byte_lock(int fd, int command, short type, off_t byte, pid_t *owner)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result = fcntl(fd, command, &lock);
    if (owner != NULL)
        *owner = lock.l_type == F_UNLCK ? 0 : lock.l_pid;
    return result;
}

static bool byte_held(int fd, uint32_t slot)
{
    pid_t owner = 0;
    if (byte_lock(fd, F_OFD_GETLK, F_WRLCK, (off_t)slot, &owner) != 0)
        return true; /* unknown: assume that it is alive */
    return owner != 0;
}

bool simgpu_process_alive(simgpu_handle *handle, uint32_t slot, uint32_t generation)
{
    if (slot >= SIMGPU_MAX_PROCESSES)
        return false;
    simgpu_process *process = &handle->shared->processes[slot];
    if (atomic_load(&process->generation) != generation)
        return false;
    return slot == handle->slot || byte_held(handle->slots_fd, slot);
}

static uint64_t pid_namespace_of(const char *process)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%.32s/ns/pid", process);
    return stat(path, &about) == 0 ? (uint64_t)about.st_ino : 0;
}

/* The innermost of a process's pids in /proc: the one in its own namespace. */
static int32_t own_pid_of(const char *process)
{
    char path[64], line[256];
    int32_t own = 0;
    snprintf(path, sizeof path, "/proc/%.32s/status", process);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "NSpid:", 6) == 0)
            own = (int32_t)strtol(strrchr(line, '\t') + 1, NULL, 10);
    if (file != NULL)
        fclose(file);
    return own;
}

/* Searches all visible processes for the one with that pid in that namespace. */
static pid_t search_pid(int32_t pid, uint64_t namespace)
{
    pid_t found = 0;
    DIR *directory = namespace == 0 || namespace == pid_namespace_of("self") ? NULL : opendir("/proc");
    struct dirent *entry;
    while (directory != NULL && found == 0 && (entry = readdir(directory)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && own_pid_of(entry->d_name) == pid &&
            pid_namespace_of(entry->d_name) == namespace)
            found = (pid_t)strtol(entry->d_name, NULL, 10);
    if (directory != NULL)
        closedir(directory);
    return found;
}

pid_t simgpu_process_pid(simgpu_handle *handle, uint32_t slot)
{
    pid_t owner = 0;
    if (slot == handle->slot)
        return getpid();
    if (byte_lock(handle->slots_fd, F_GETLK, F_WRLCK, PID_BYTES_AT + (off_t)slot, &owner) == 0 && owner > 0)
        return owner;
    /* A process loses its classic locks on a file when it closes any descriptor of the file. So it loses libcuda's lock
     * when it shuts NVML down. */
    const simgpu_process *process = &handle->shared->processes[slot];
    owner = search_pid(process->pid, process->pid_namespace);
    return owner > 0 ? owner : process->pid;
}

static uint64_t lock_word(uint32_t slot, uint32_t generation)
{
    return ((uint64_t)generation << OWNER_SLOT_BITS) | (slot + 1);
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* True if the last owner died holding the lock, so the data it guards must be rebuilt. */
static bool lock_take(simgpu_handle *handle, simgpu_lock *lock)
{
    uint64_t mine = lock_word(handle->slot, handle->generation);
    for (int spin = 0; spin < 64; spin++) {
        uint64_t free_word = 0;
        if (atomic_compare_exchange_weak_explicit(&lock->owner, &free_word, mine, memory_order_acquire,
                                                  memory_order_relaxed))
            return false;
        relax();
    }
    for (;;) {
        atomic_fetch_add(&lock->waiters, 1);
        uint32_t seen = atomic_load(&lock->wake);
        uint64_t owner = atomic_load(&lock->owner);
        if (owner != 0) {
            struct timespec patience = {.tv_nsec = 2000000};
            syscall(SYS_futex, &lock->wake, FUTEX_WAIT, seen, &patience, NULL, 0);
        }
        atomic_fetch_sub(&lock->waiters, 1);
        uint64_t free_word = 0;
        if (atomic_compare_exchange_strong_explicit(&lock->owner, &free_word, mine, memory_order_acquire,
                                                    memory_order_relaxed))
            return false;
        owner = free_word;
        uint32_t slot = (uint32_t)(owner & ((1U << OWNER_SLOT_BITS) - 1)) - 1;
        if (simgpu_process_alive(handle, slot, (uint32_t)(owner >> OWNER_SLOT_BITS)))
            continue;
        if (atomic_compare_exchange_strong_explicit(&lock->owner, &owner, mine, memory_order_acquire,
                                                    memory_order_relaxed)) {
            atomic_store(&lock->waiters, 0); /* dead waiters may have been counted; living ones wake up by timeout */
            return true;
        }
    }
}

static void lock_give(simgpu_lock *lock)
{
    atomic_store_explicit(&lock->owner, 0, memory_order_release);
    atomic_fetch_add(&lock->wake, 1);
    if (atomic_load(&lock->waiters) != 0)
        syscall(SYS_futex, &lock->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

simgpu_card *simgpu_card_lock(simgpu_handle *handle, uint32_t index)
{
    simgpu_card *card = &handle->shared->cards[index];
    if (lock_take(handle, &card->lock))
        simgpu_card_recover(card);
    simgpu_card_advance(handle, card, simgpu_modelled_ns(handle, card, simgpu_real_ns()));
    return card;
}

void simgpu_card_unlock(simgpu_handle *handle, simgpu_card *card)
{
    lock_give(&card->lock);
}

/* The caller holds the slot's byte, so no other process cleans the same slot. */
static void slot_clear(simgpu_handle *handle, uint32_t slot)
{
    for (uint32_t index = 0; index < handle->shared->card_count; index++) {
        simgpu_card *card = simgpu_card_lock(handle, index);
        simgpu_tenant_clear(card, slot);
        simgpu_card_unlock(handle, card);
    }
}

void simgpu_reap(simgpu_handle *handle)
{
    /* A lock never conflicts within one open file description: threads of one process must not reap at the same
     * time. */
    static pthread_mutex_t reaping = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&reaping);
    atomic_store(&handle->reaped_real_ns, simgpu_real_ns());
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        simgpu_process *process = &handle->shared->processes[slot];
        if (!atomic_load(&process->used) || slot == handle->slot || byte_held(handle->slots_fd, slot))
            continue;
        if (byte_lock(handle->slots_fd, F_OFD_SETLK, F_WRLCK, (off_t)slot, NULL) != 0)
            continue;
        if (atomic_load(&process->used)) {
            atomic_fetch_add(&process->generation, 1);
            slot_clear(handle, slot); /* before the slot counts as free, because a reaper may die too */
            atomic_store(&process->used, 0);
        }
        byte_lock(handle->slots_fd, F_OFD_SETLK, F_UNLCK, (off_t)slot, NULL);
    }
    pthread_mutex_unlock(&reaping);
}

void simgpu_reap_sometimes(simgpu_handle *handle)
{
    if (simgpu_real_ns() - atomic_load(&handle->reaped_real_ns) > REAP_INTERVAL_NS)
        simgpu_reap(handle);
}

void simgpu_record_unsupported(simgpu_handle *handle, const char *name)
{
    lock_take(handle, &handle->shared->lock);
    for (uint32_t index = 0; index < SIMGPU_MAX_UNSUPPORTED; index++) {
        simgpu_unsupported *entry = &handle->shared->unsupported[index];
        if (entry->name[0] == 0)
            snprintf(entry->name, sizeof entry->name, "%s", name);
        if (strncmp(entry->name, name, sizeof entry->name - 1) == 0) {
            atomic_fetch_add(&entry->count, 1);
            break;
        }
    }
    lock_give(&handle->shared->lock);
}

static int fail(char *error, size_t size, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (error != NULL && size > 0)
        vsnprintf(error, size, format, arguments);
    va_end(arguments);
    return code;
}

static int map_machine(simgpu_handle *handle, char *error, size_t error_size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/machine", handle->directory);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return fail(error, error_size, SIMGPU_ABSENT, "no simulated machine in %s (%s)", handle->directory,
                    strerror(errno));
    simgpu_machine header;
    struct stat about;
    ssize_t got = pread(fd, &header, sizeof header, 0);
    if (got != (ssize_t)sizeof header || header.magic != SIMGPU_MAGIC) {
        close(fd);
        return fail(error, error_size, SIMGPU_MISMATCH, "%s is not a simulated machine", path);
    }
    if (header.layout != SIMGPU_LAYOUT || header.card_count > SIMGPU_MAX_CARDS || fstat(fd, &about) != 0 ||
        (uint64_t)about.st_size != header.bytes ||
        header.bytes != sizeof header + header.card_count * sizeof(simgpu_card)) {
        close(fd);
        return fail(error, error_size, SIMGPU_MISMATCH,
                    "%s has layout %u of %llu bytes, this library knows layout %u; stop the machine and start it again",
                    path, header.layout, (unsigned long long)header.bytes, SIMGPU_LAYOUT);
    }
    void *mapping = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapping == MAP_FAILED)
        return fail(error, error_size, SIMGPU_FAILED, "cannot map %s: %s", path, strerror(errno));
    handle->shared = mapping;
    handle->bytes = header.bytes;
    return SIMGPU_OK;
}

static void read_own_name(char *name, size_t size)
{
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, name, size - 1);
    if (fd >= 0)
        close(fd);
    name[got < 0 ? 0 : got] = 0; /* ends at the first argument's NUL */
}

static int take_slot(simgpu_handle *handle, char *error, size_t error_size)
{
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++) {
        if (byte_lock(handle->slots_fd, F_OFD_SETLK, F_WRLCK, (off_t)slot, NULL) != 0)
            continue;
        simgpu_process *process = &handle->shared->processes[slot];
        uint32_t generation = atomic_fetch_add(&process->generation, 1) + 1;
        handle->slot = slot;
        handle->generation = generation;
        process->pid = getpid();
        process->pid_namespace = pid_namespace_of("self");
        process->uid = geteuid();
        process->attached_real_ns = simgpu_real_ns();
        read_own_name(process->name, sizeof process->name);
        if (atomic_exchange(&process->used, 1)) /* a previous owner died and was not reaped yet */
            slot_clear(handle, slot);
        byte_lock(handle->slots_fd, F_SETLK, F_WRLCK, PID_BYTES_AT + (off_t)slot, NULL);
        return SIMGPU_OK;
    }
    return fail(error, error_size, SIMGPU_FULL, "the simulated machine in %s already serves %d processes",
                handle->directory, SIMGPU_MAX_PROCESSES);
}

int simgpu_attach(simgpu_handle *handle, const char *directory, char *error, size_t error_size)
{
    memset(handle, 0, sizeof *handle);
    handle->slots_fd = -1;
    simgpu_directory(handle->directory, sizeof handle->directory, directory);
    int result = map_machine(handle, error, error_size);
    if (result != SIMGPU_OK)
        return result;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/slots", handle->directory);
    handle->slots_fd = open(path, O_RDWR | O_CLOEXEC);
    if (handle->slots_fd < 0)
        result = fail(error, error_size, SIMGPU_FAILED, "cannot open %s: %s", path, strerror(errno));
    else if (atomic_load(&handle->shared->stopped))
        result = fail(error, error_size, SIMGPU_ABSENT, "the simulated machine in %s was stopped", handle->directory);
    else
        result = take_slot(handle, error, error_size);
    if (result != SIMGPU_OK) {
        if (handle->slots_fd >= 0)
            close(handle->slots_fd);
        munmap(handle->shared, handle->bytes);
        handle->shared = NULL;
        return result;
    }
    simgpu_reap(handle);
    return SIMGPU_OK;
}

void simgpu_detach(simgpu_handle *handle)
{
    if (handle->shared == NULL)
        return;
    slot_clear(handle, handle->slot);
    atomic_store(&handle->shared->processes[handle->slot].used, 0);
    close(handle->slots_fd);
    munmap(handle->shared, handle->bytes);
    handle->shared = NULL;
}

void simgpu_forget_after_fork(simgpu_handle *handle)
{
    if (handle->shared != NULL)
        close(handle->slots_fd); /* otherwise the child would keep its parent's slot alive */
    handle->shared = NULL;
}
