/* Creating, faulting, describing and removing a machine: the functions that Python calls through ctypes. */
#define _GNU_SOURCE
#include "machine.h"
#include "machine_settings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SIMGPU_EXPORT const char *simgpu_default_directory(void)
{
    static __thread char directory[256];
    simgpu_directory(directory, sizeof directory, NULL);
    return directory;
}

static int sentence(char *error, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (error != NULL && size > 0)
        vsnprintf(error, size, format, arguments);
    va_end(arguments);
    return SIMGPU_FAILED;
}

static int make_directories(const char *directory)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", directory);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return mkdir(path, 0755) != 0 && errno != EEXIST ? -1 : 0;
}

static void fill(simgpu_machine *machine, const simgpu_settings *settings, size_t bytes)
{
    machine->layout = SIMGPU_LAYOUT;
    machine->card_count = settings->card_count;
    machine->bytes = bytes;
    machine->epoch_real_ns = simgpu_real_ns();
    machine->driver_version = settings->driver_version;
    memcpy(machine->driver_name, settings->driver_name, sizeof machine->driver_name);
    memcpy(machine->shape, settings->shape, sizeof machine->shape);
    for (uint32_t index = 0; index < settings->card_count; index++) {
        simgpu_card *card = &machine->cards[index];
        card->profile = settings->cards[index];
        card->link_factor = 1;
        simgpu_sensors_start(card);
        card->newest = card->oldest = SIMGPU_NONE;
        for (uint32_t lane = 0; lane < SIMGPU_MAX_LANES; lane++)
            card->lanes[lane].slot = SIMGPU_NONE;
        for (uint32_t extent = 0; extent < SIMGPU_MAX_EXTENTS; extent++)
            card->extents[extent].slot = SIMGPU_NONE;
        for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++)
            card->tenants[slot].first_extent = SIMGPU_NONE;
    }
    machine->magic = SIMGPU_MAGIC;
}

/* Sets the mode explicitly: a container's user is rarely the one who created the machine, and the parent directory
 * decides who has access. */
static int open_shared(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0)
        (void)!fchmod(fd, 0666);
    return fd;
}

SIMGPU_EXPORT int simgpu_create(const char *asked, const char *text, char *error, size_t error_size)
{
    char directory[256], path[PATH_MAX], fresh[PATH_MAX];
    simgpu_settings *settings = malloc(sizeof *settings);
    if (settings == NULL)
        return sentence(error, error_size, "out of memory");
    if (simgpu_settings_parse(settings, text, error, error_size) != SIMGPU_OK) {
        free(settings);
        return SIMGPU_FAILED;
    }
    simgpu_directory(directory, sizeof directory, asked);
    snprintf(path, sizeof path, "%s/machine", directory);
    snprintf(fresh, sizeof fresh, "%s/.machine.%d", directory, (int)getpid());
    int fd = -1, result = SIMGPU_FAILED;
    size_t bytes = sizeof(simgpu_machine) + settings->card_count * sizeof(simgpu_card);
    void *mapping = MAP_FAILED;
    if (make_directories(directory) != 0)
        sentence(error, error_size, "cannot create the directory %s: %s", directory, strerror(errno));
    else if (access(path, F_OK) == 0)
        sentence(error, error_size, "there is already a simulated machine in %s; stop it first", directory);
    else if ((fd = open_shared(fresh)) < 0)
        sentence(error, error_size, "cannot write %s: %s", fresh, strerror(errno));
    else if ((errno = posix_fallocate(fd, 0, (off_t)bytes)) != 0) /* on a full disk, a hole would cause a SIGBUS later */
        sentence(error, error_size, "no room for %zu bytes in %s: %s", bytes, directory, strerror(errno));
    else if ((mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        sentence(error, error_size, "cannot map %s: %s", fresh, strerror(errno));
    else
        result = SIMGPU_OK;
    if (result == SIMGPU_OK) {
        char slots[PATH_MAX];
        snprintf(slots, sizeof slots, "%s/slots", directory);
        fill(mapping, settings, bytes);
        munmap(mapping, bytes);
        int slots_fd = open_shared(slots);
        /* link() refuses an existing name, so if two processes create a machine at once, only one succeeds. */
        if (slots_fd < 0 || link(fresh, path) != 0)
            result = sentence(error, error_size, "cannot create %s: %s", path, strerror(errno));
        if (slots_fd >= 0)
            close(slots_fd);
    }
    if (fd >= 0) {
        close(fd);
        unlink(fresh);
    }
    free(settings);
    return result;
}

SIMGPU_EXPORT int simgpu_destroy(const char *asked, char *error, size_t error_size)
{
    char directory[256], path[PATH_MAX];
    simgpu_directory(directory, sizeof directory, asked);
    snprintf(path, sizeof path, "%s/machine", directory);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return sentence(error, error_size, "no simulated machine in %s (%s)", directory, strerror(errno));
    simgpu_machine *machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (machine != MAP_FAILED) {
        atomic_store(&machine->stopped, 1); /* for processes that are still attached, the cards are now lost */
        munmap(machine, sizeof *machine);
    }
    if (unlink(path) != 0)
        return sentence(error, error_size, "cannot remove %s: %s", path, strerror(errno));
    snprintf(path, sizeof path, "%s/slots", directory);
    unlink(path);
    return SIMGPU_OK;
}

static bool word_of(const char *line, const char *name, char *value, size_t size)
{
    size_t length = strlen(name);
    while (*line) {
        size_t word = strcspn(line, " \n");
        if (word > length && strncmp(line, name, length) == 0 && line[length] == '=') {
            snprintf(value, size, "%.*s", (int)(word - length - 1), line + length + 1);
            return true;
        }
        line += word + (line[word] != 0);
    }
    return false;
}

static uint32_t slot_of_pid(simgpu_handle *handle, long pid)
{
    for (uint32_t slot = 0; slot < SIMGPU_MAX_PROCESSES; slot++)
        if (atomic_load(&handle->shared->processes[slot].used) && slot != handle->slot &&
            simgpu_process_pid(handle, slot) == pid)
            return slot;
    return SIMGPU_NONE;
}

/* `fault` is a list of words `key=value`: card (number, required), fault, xid, factor, pid. */
SIMGPU_EXPORT int simgpu_inject(const char *asked, const char *words, char *error, size_t error_size)
{
    simgpu_handle handle;
    char card_text[16] = "", fault[32] = "", number[32] = "";
    if (!word_of(words, "card", card_text, sizeof card_text) || !word_of(words, "fault", fault, sizeof fault))
        return sentence(error, error_size, "a fault needs card=NUMBER and fault=NAME, got '%s'", words);
    uint32_t xid = word_of(words, "xid", number, sizeof number) ? (uint32_t)strtoul(number, NULL, 0) : 0;
    double factor = word_of(words, "factor", number, sizeof number) ? strtod(number, NULL) : 1;
    long pid = word_of(words, "pid", number, sizeof number) ? strtol(number, NULL, 0) : 0;
    int result = simgpu_attach(&handle, asked, error, error_size);
    if (result != SIMGPU_OK)
        return result;
    char *end;
    unsigned long index = strtoul(card_text, &end, 10);
    uint32_t slot = pid > 0 ? slot_of_pid(&handle, pid) : SIMGPU_NONE;
    if (end == card_text || *end != 0 || index >= handle.shared->card_count) {
        result = sentence(error, error_size, "card=%s: the machine has cards 0 to %u", card_text,
                          handle.shared->card_count - 1);
    } else if (pid > 0 && slot == SIMGPU_NONE) {
        result = sentence(error, error_size, "pid=%ld does not use this simulated machine", pid);
    } else {
        simgpu_card *card = simgpu_card_lock(&handle, (uint32_t)index);
        result = simgpu_fault_apply(&handle, card, fault, xid, factor, slot, error, error_size);
        simgpu_card_unlock(&handle, card);
    }
    simgpu_detach(&handle);
    return result;
}
