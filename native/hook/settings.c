/* Reads and validates the settings. An invalid value never ends the program: the hook logs one sentence that says what
 * is wrong and which default applies. Numbers are parsed by hand, because the C library's parsers have new symbol
 * versions.
 */
#include "settings.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char service_account_namespace[] = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

static struct baton_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Control characters in a value must not reach a terminal or break the lines of a frame. */
static void report(const char *name, const char *value, const char *allowed, const char *taken)
{
    char shown[80];
    size_t used = 0;
    for (; *value && used < sizeof shown - 4; value++)
        shown[used++] = isprint((unsigned char)*value) ? *value : '?';
    shown[used] = '\0';
    baton_log("%s is '%s%s', but must be %s; using %s", name, shown, *value ? "..." : "", allowed, taken);
}

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Reads the digits at the start of *text; false if there are none or the number overflows. */
static bool read_digits(const char **text, uint64_t *number)
{
    const char *start = *text;
    uint64_t sum = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        if (__builtin_mul_overflow(sum, 10u, &sum) || __builtin_add_overflow(sum, (uint64_t)(**text - '0'), &sum))
            return false;
    *number = sum;
    return *text != start;
}

struct unit {
    const char *suffix;
    uint64_t factor;
};

static bool read_quantity(const char *text, const struct unit *units, size_t count, uint64_t *result)
{
    uint64_t number;
    if (!read_digits(&text, &number))
        return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(text, units[i].suffix) == 0)
            return !__builtin_mul_overflow(number, units[i].factor, result) && *result <= INT64_MAX;
    return false;
}

static const struct unit sizes[] = {
    {"", 1},           {"Ki", 1ull << 10}, {"Mi", 1ull << 20}, {"Gi", 1ull << 30},        {"Ti", 1ull << 40},
    {"K", 1000},       {"k", 1000},        {"M", 1000000},     {"G", 1000000000},         {"T", 1000000000000},
};
static const struct unit durations[] = {{"", 1000000}, {"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}};

static void read_size(const char *name, uint64_t *result, const char *taken)
{
    const char *value = value_of(name);
    uint64_t parsed;
    if (!value)
        return;
    if (read_quantity(value, sizes, BATON_COUNT(sizes), &parsed))
        *result = parsed;
    else
        report(name, value, "a size such as 8Gi, 512Mi or a number of bytes", taken);
}

static void read_duration(const char *name, uint64_t *result, const char *taken)
{
    const char *value = value_of(name);
    uint64_t parsed;
    if (!value)
        return;
    if (read_quantity(value, durations, BATON_COUNT(durations), &parsed) && parsed <= 86400ull * 1000000)
        *result = parsed;
    else
        report(name, value, "a duration of up to one day such as 30s, 500ms or 2m", taken);
}

static void read_number(const char *name, unsigned low, unsigned high, unsigned *result, const char *taken)
{
    const char *value = value_of(name), *rest = value;
    uint64_t number;
    if (!value)
        return;
    if (read_digits(&rest, &number) && !*rest && number >= low && number <= high) {
        *result = (unsigned)number;
        return;
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a whole number from %u to %u", low, high);
    report(name, value, allowed, taken);
}

/* Reads a decimal number as thousandths: the daemon accepts weights such as 0.5. */
static void read_weight(unsigned *milli)
{
    const char *value = value_of("BATON_WEIGHT"), *rest = value;
    uint64_t whole, part = 0, scale = 1000;
    if (!value)
        return;
    bool valid = read_digits(&rest, &whole) && whole <= 1000;
    if (valid && *rest == '.') {
        for (rest++; *rest >= '0' && *rest <= '9' && scale > 1; rest++) {
            scale /= 10;
            part += scale * (uint64_t)(*rest - '0');
        }
        valid = rest[-1] != '.';
    }
    uint64_t sum = valid ? whole * 1000 + part : 0;
    if (valid && !*rest && sum >= 1 && sum <= 1000000)
        *milli = (unsigned)sum;
    else
        report("BATON_WEIGHT", value, "a number from 0.001 to 1000", "1");
}

static void read_switch(const char *name, bool *result)
{
    const char *value = value_of(name);
    if (!value)
        return;
    if (strcmp(value, "1") == 0 || strcmp(value, "true") == 0 || strcmp(value, "on") == 0)
        *result = true;
    else if (strcmp(value, "0") == 0 || strcmp(value, "false") == 0 || strcmp(value, "off") == 0)
        *result = false;
    else
        report(name, value, "1, true, on, 0, false or off", *result ? "1" : "0");
}

static int read_choice(const char *name, const char *const *choices, size_t count, int fallback, const char *allowed)
{
    const char *value = value_of(name);
    if (!value)
        return fallback;
    for (size_t i = 0; i < count; i++)
        if (strcmp(value, choices[i]) == 0)
            return (int)i;
    report(name, value, allowed, choices[fallback]);
    return fallback;
}

/* Reads text that is sent in the key=value lines or name fields of a frame. */
static void read_text(const char *name, char *result, size_t size, const char *taken)
{
    const char *value = value_of(name);
    if (!value)
        return;
    size_t length = strlen(value);
    bool printable = true;
    for (size_t i = 0; i < length; i++)
        printable = printable && isprint((unsigned char)value[i]);
    if (length < size && printable) {
        memcpy(result, value, length + 1);
        return;
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "at most %zu printable characters", size - 1);
    report(name, value, allowed, taken);
}

static void read_socket_path(void)
{
    char fallback[sizeof settings.socket_path];
    const char *runtime = value_of("XDG_RUNTIME_DIR");
    static const char file[] = "/scheduler.sock";
    int length;
    if (geteuid() == 0)
        length = snprintf(fallback, sizeof fallback, "/run/baton/lock");
    else if (runtime && runtime[0] == '/' && strlen(runtime) + sizeof "/baton/lock" + sizeof file < sizeof fallback)
        length = snprintf(fallback, sizeof fallback, "%s/baton/lock", runtime);
    else
        length = snprintf(fallback, sizeof fallback, "/tmp/baton-%u/lock", (unsigned)geteuid());
    const char *directory = value_of("BATON_SOCKET_DIR");
    if (directory && (directory[0] != '/' || strlen(directory) + sizeof file > sizeof settings.socket_path)) {
        report("BATON_SOCKET_DIR", directory, "an absolute path of at most 92 characters", fallback);
        directory = NULL;
    }
    if (!directory) {
        memcpy(settings.socket_path, fallback, (size_t)length);
        memcpy(settings.socket_path + length, file, sizeof file);
    } else {
        snprintf(settings.socket_path, sizeof settings.socket_path, "%s%s", directory, file);
    }
}

/* Like nvshare: outside Kubernetes, both names are "none". */
static void read_pod(void)
{
    strcpy(settings.pod_name, "none");
    strcpy(settings.pod_namespace, "none");
    if (value_of("KUBERNETES_SERVICE_HOST")) {
        read_text("HOSTNAME", settings.pod_name, sizeof settings.pod_name, "none");
        FILE *file = fopen(service_account_namespace, "re");
        if (file) {
            char line[sizeof settings.pod_namespace];
            if (fgets(line, sizeof line, file)) {
                line[strcspn(line, "\r\n")] = '\0';
                if (*line)
                    strcpy(settings.pod_namespace, line);
            }
            fclose(file);
        }
    }
    read_text("BATON_POD_NAME", settings.pod_name, sizeof settings.pod_name, settings.pod_name);
    read_text("BATON_POD_NAMESPACE", settings.pod_namespace, sizeof settings.pod_namespace, settings.pod_namespace);
}

static const char *const loss_names[] = {"wait", "continue", "fail"};

static void print_all(void)
{
    const struct baton_settings *s = &settings;
    baton_log("hook %s, pid %d, socket %s", BATON_HOOK_VERSION, (int)getpid(), s->socket_path);
    baton_log("pod %s/%s, tenant '%s', run '%s', weight %u.%03u, priority %s, cores %u %%, gang %s", s->pod_namespace,
              s->pod_name, s->tenant, s->run, s->weight_milli / 1000, s->weight_milli % 1000, s->priority, s->cores_percent, s->gang ? "on" : "off");
    baton_log("memory limit %llu bytes (0 = none), oversubscription %s, beyond one card %s, reserve %llu bytes",
              (unsigned long long)s->memory_limit_bytes, s->oversubscribe ? "on" : "off",
              s->single_oversubscribe ? "on" : "off", (unsigned long long)s->reserve_bytes);
    baton_log("on daemon loss %s after %llu ms, idle %llu ms, window %llu ms, capture wait %llu ms", loss_names[s->on_loss],
              (unsigned long long)s->daemon_timeout_us / 1000, (unsigned long long)s->idle_us / 1000,
              (unsigned long long)s->window_us / 1000, (unsigned long long)s->capture_wait_us / 1000);
}

static void read_all(void)
{
    static const char *const priorities[] = {"low", "normal", "high"};
    settings.debug = getenv("NVSHARE_DEBUG") != NULL;
    settings.single_oversubscribe = getenv("NVSHARE_ENABLE_SINGLE_OVERSUB") != NULL;
    settings.oversubscribe = true;
    settings.weight_milli = 1000;
    settings.reserve_bytes = 1536ull << 20;
    settings.daemon_timeout_us = 30000000;
    settings.idle_us = 5000000;
    settings.window_us = 100000;
    settings.capture_wait_us = 5000000;
    settings.read_us = baton_now_us();
    read_switch("BATON_DEBUG", &settings.debug);
    read_switch("BATON_GANG", &settings.gang);
    read_switch("BATON_OVERSUBSCRIBE", &settings.oversubscribe);
    read_switch("BATON_SINGLE_OVERSUBSCRIBE", &settings.single_oversubscribe);
    read_number("BATON_CORES", 0, 100, &settings.cores_percent, "0 (no limit)");
    read_weight(&settings.weight_milli);
    read_size("BATON_MEMORY_LIMIT", &settings.memory_limit_bytes, "no limit");
    read_size("BATON_RESERVE", &settings.reserve_bytes, "1536Mi");
    read_duration("BATON_DAEMON_TIMEOUT", &settings.daemon_timeout_us, "30s");
    read_duration("BATON_IDLE", &settings.idle_us, "5s");
    read_duration("BATON_WINDOW", &settings.window_us, "100ms");
    read_duration("BATON_CAPTURE_WAIT", &settings.capture_wait_us, "5s");
    read_text("BATON_TENANT", settings.tenant, sizeof settings.tenant, "no tenant");
    read_text("BATON_RUN_ID", settings.run, sizeof settings.run, "no run");
    strcpy(settings.priority, priorities[read_choice("BATON_PRIORITY", priorities, 3, 1, "low, normal or high")]);
    settings.on_loss = (enum baton_on_loss)read_choice("BATON_ON_DAEMON_LOSS", loss_names, 3, BATON_LOSS_CONTINUE,
                                                       "wait, continue or fail");
    read_socket_path();
    read_pod();
    if (settings.debug)
        print_all();
}

const struct baton_settings *baton_settings(void)
{
    pthread_once(&once, read_all);
    return &settings;
}
