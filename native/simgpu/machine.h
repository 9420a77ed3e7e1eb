/* The simulated machine: cards in a shared file, updated by every process that maps it.
 *
 * A machine is a directory. `machine` is one memory-mapped file with the cards; of the file `slots` only byte-range
 * locks are used. There is no daemon: a process that accesses a card first advances its timeline to the present
 * (simgpu_card_advance), and a process that finds a dead process cleans up after it (simgpu_reap).
 *
 * Identity. The directory is bind-mounted into containers, so a pid identifies nothing. A process is a *slot*: it holds
 * an open-file-description lock on byte N of `slots`, which the kernel releases however the process ends. The pid in a
 * slot is informational; simgpu_process_pid asks the kernel to translate it for the caller.
 *
 * Survival. Locks are words in shared memory with the slot and generation of the owner. A waiter that finds the owner
 * dead takes over the lock and rebuilds all derived data (totals, lists) from the primary records, which are written
 * one word at a time. A process killed at any instruction therefore leaves only its slot's records, which are cleared
 * when the slot is reaped or reused.
 *
 * Lock order: the machine's lock is never held while a card's lock is taken, and no thread holds two cards' locks.
 */
#ifndef SIMGPU_MACHINE_H
#define SIMGPU_MACHINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SIMGPU_EXPORT __attribute__((visibility("default")))

#define SIMGPU_MAGIC 0x314d53554750474eULL
#define SIMGPU_LAYOUT 2
#define SIMGPU_MAX_CARDS 32
#define SIMGPU_MAX_PROCESSES 2048
#define SIMGPU_MAX_LANES 256
#define SIMGPU_RING 32
#define SIMGPU_MAX_RANGES 4
#define SIMGPU_MAX_EXTENTS 16384
#define SIMGPU_EXTENTS_PER_ALLOCATION 64
#define SIMGPU_MAX_XIDS 64
#define SIMGPU_MAX_UNSUPPORTED 256
#define SIMGPU_MAX_NVLINKS 18
#define SIMGPU_BUSY_BUCKETS 32
#define SIMGPU_BUSY_BUCKET_NS 100000000ULL /* real time */
#define SIMGPU_METER_BUCKETS 16
#define SIMGPU_METER_BUCKET_NS 100e6 /* real time */
#define SIMGPU_NONE UINT32_MAX

#define SIMGPU_MIB (1024ULL * 1024)

/* A lock that survives its owner. Zero is free; otherwise owner slot + 1 in the low 12 bits, generation above. */
typedef struct {
    _Atomic uint64_t owner;
    _Atomic uint32_t wake; /* futex word, incremented at each release */
    _Atomic uint32_t waiters;
} simgpu_lock;

/* A card's fixed properties, set when the machine is created (including the time scale and the clocks). */
typedef struct {
    char name[96];
    char brand[32]; /* Tesla, GeForce, ... */
    uint8_t uuid[16];
    char serial[32];
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t pci_device_id, pci_subsystem_id;
    uint32_t compute_major, compute_minor;
    uint32_t sm_count;
    uint32_t threads_per_sm;
    uint32_t sm_clock_mhz, memory_clock_mhz;
    uint32_t memory_bus_bits;
    uint32_t l2_kib;
    uint32_t shared_kib_per_sm;
    uint32_t link_generation, link_width;
    uint32_t power_limit_mw, power_idle_mw;
    uint32_t temperature_idle_c, temperature_busy_c;
    int32_t numa_node;
    uint32_t nvlink_count;
    int32_t nvlink_peer[SIMGPU_MAX_NVLINKS]; /* card index at the other end, or -1 */
    uint32_t nvlink_version;
    uint32_t mig_capable;
    uint32_t ecc;              /* 1: ECC memory, enabled */
    uint32_t sm_clock_idle_mhz, sm_clock_base_mhz; /* sm_clock_mhz is the boost clock */
    uint32_t power_min_mw, power_max_mw;           /* range of the power limit */
    uint32_t temperature_slowdown_c, temperature_shutdown_c;
    uint32_t cores_per_sm, fan_count;
    double thermal_time_constant_s; /* modelled */
    double nvlink_bytes_per_s;      /* each link, each direction */
    uint64_t memory_bytes;     /* as reported by cuDeviceTotalMem */
    uint64_t context_bytes;    /* device memory used by a context itself */
    double memory_bytes_per_s; /* device memory, for memsets and copies inside the card */
    double link_bytes_per_s;   /* each direction, for copies */
    double paging_bytes_per_s; /* fault-driven migration; both directions share it */
    double kernel_overhead_ns; /* modelled cost of any kernel */
    double wave_ns;            /* modelled cost of one full wave of threads of an unknown kernel */
    double time_scale;         /* modelled seconds per real second */
} simgpu_profile;

enum { SIMGPU_OP_KERNEL = 1, SIMGPU_OP_COPY_IN, SIMGPU_OP_COPY_OUT, SIMGPU_OP_MEMORY, SIMGPU_OP_PAGE, SIMGPU_OP_MARK };
enum { SIMGPU_TOUCH_NONE, SIMGPU_TOUCH_RANGES, SIMGPU_TOUCH_ALL };
enum { SIMGPU_PHASE_QUEUED, SIMGPU_PHASE_PAGING, SIMGPU_PHASE_RUNNING, SIMGPU_PHASE_HUNG, SIMGPU_PHASE_DONE };

/* Part of a managed allocation, as extents of the card's table. */
typedef struct {
    uint32_t first, count;
} simgpu_range;

/* One piece of work in a lane. Times are modelled nanoseconds on the card's clock. */
typedef struct {
    uint32_t kind, phase;
    uint32_t touch, range_count;
    simgpu_range ranges[SIMGPU_MAX_RANGES];
    uint32_t writes;   /* touched extents become dirty */
    uint32_t overlaid; /* touched extents are fully overwritten: nothing has to be brought in first */
    double work_ns;    /* kernels: time at full speed */
    double demand;     /* kernels: fraction of the card's SMs, 0..1 */
    double bytes;      /* copies, memsets */
    double remaining;  /* in the current phase: ns at full speed, or bytes */
    uint64_t earliest_ns, started_ns, ended_ns;
} simgpu_op;

/* The part of a stream that the card knows: a ring of work that any process can advance in time. */
typedef struct {
    uint32_t slot, generation; /* slot SIMGPU_NONE: free */
    uint64_t head, run, tail;  /* retired by the owner <= being run <= submitted */
    uint64_t last_end_ns;
    simgpu_op ops[SIMGPU_RING];
} simgpu_lane;

/* A piece of a managed allocation, which is on the card either completely or not at all. */
typedef struct {
    uint32_t slot, generation; /* slot SIMGPU_NONE: free */
    uint32_t resident, dirty, populated;
    uint32_t newer, older;   /* recency list of resident extents (derived) */
    uint32_t sibling;        /* next extent of the same slot (derived) */
    uint64_t bytes, used_at; /* used_at: value of the card's recency counter */
} simgpu_extent;

/* An amount per tenth of a second of real time, for the recent past only. */
typedef struct {
    uint64_t number[SIMGPU_METER_BUCKETS];
    double amount[SIMGPU_METER_BUCKETS];
} simgpu_meter;

/* State of the card's sensors; see machine_telemetry.c. */
typedef struct {
    double temperature_c;
    double load; /* 0..1, averaged as the power sensor does */
    double energy_mj;
    simgpu_meter memory_busy;    /* ns */
    simgpu_meter received, sent; /* bytes on the link, seen from the card */
} simgpu_sensors;

/* Activity during one step of the clock, for the sensors. */
typedef struct {
    bool kernels;
    uint32_t memory_ops;
    double demand; /* of the kernels, 0..number of processes */
    double in_bytes_per_ns, out_bytes_per_ns;
} simgpu_activity;

/* One process on one card. */
typedef struct {
    uint32_t generation; /* of the slot that these records belong to */
    uint32_t contexts;
    uint64_t device_bytes;  /* plain, pitched, pooled, physical, contexts themselves */
    uint64_t managed_bytes; /* allocated, wherever it is */
    uint64_t resident_bytes;
    uint64_t paged_in_bytes, paged_out_bytes;
    uint64_t copied_in_bytes, copied_out_bytes;
    uint64_t kernels;
    uint64_t fatal_sequence; /* incremented by a fault that kills this process's contexts */
    int32_t fatal_code;
    uint32_t hang_next;    /* the next kernel never ends */
    uint32_t first_extent; /* derived */
    uint32_t running;      /* derived, used while advancing: kernels running now */
    double demand;         /* derived, the same */
    double busy_ns;        /* modelled time in which a kernel of this process ran */
    simgpu_meter used;     /* real ns: its share of the card's busy time */
} simgpu_tenant;

typedef struct {
    uint64_t sequence; /* 1, 2, 3, ... over the card's life; 0: empty entry */
    uint64_t at_real_ns;
    uint32_t number;
    uint32_t slot; /* of the affected process, or SIMGPU_NONE */
} simgpu_xid;

typedef struct {
    simgpu_lock lock;
    simgpu_profile profile;
    uint64_t advanced_ns; /* modelled time up to which the card has been advanced */

    uint32_t lost;      /* fallen off the bus */
    uint32_t hang_next; /* the next kernel of any process never ends */
    double link_factor; /* 1 healthy, 0.1 a link at a tenth */
    uint64_t fatal_sequence;
    int32_t fatal_code;
    uint64_t ecc_uncorrectable, ecc_corrected;
    uint64_t ecc_uncorrectable_past; /* before the last reset; the aggregate counter is the sum */
    uint32_t reset_xid;              /* the Xid that makes the driver require a reset; 0: none */
    uint64_t xid_count;
    simgpu_xid xids[SIMGPU_MAX_XIDS]; /* entry of number n is (n - 1) % SIMGPU_MAX_XIDS */

    uint64_t paged_in_bytes, paged_out_bytes, copied_in_bytes, copied_out_bytes;
    uint64_t kernels;
    double busy_ns;
    double bucket_busy_ns[SIMGPU_BUSY_BUCKETS]; /* real time busy in each tenth of a second */
    uint64_t bucket_number[SIMGPU_BUSY_BUCKETS];
    simgpu_sensors sensors;

    uint64_t device_bytes, managed_bytes, resident_bytes; /* totals of the tenants (derived) */
    uint64_t recency;
    uint32_t newest, oldest; /* recency list of resident extents (derived) */
    uint32_t extent_hint;
    uint32_t active_count;
    uint32_t active[SIMGPU_MAX_LANES]; /* lanes with work (derived) */
    simgpu_tenant tenants[SIMGPU_MAX_PROCESSES];
    simgpu_lane lanes[SIMGPU_MAX_LANES];
    simgpu_extent extents[SIMGPU_MAX_EXTENTS];
} simgpu_card;

typedef struct {
    _Atomic uint32_t used;
    _Atomic uint32_t generation;
    int32_t pid; /* in the process's own pid namespace */
    uint32_t uid;
    uint64_t pid_namespace; /* inode number of that namespace */
    uint64_t attached_real_ns;
    char name[64];
} simgpu_process;

typedef struct {
    char name[56];
    _Atomic uint64_t count;
} simgpu_unsupported;

typedef struct {
    uint64_t magic;
    uint32_t layout;
    uint32_t card_count;
    uint64_t bytes;
    uint64_t epoch_real_ns; /* CLOCK_MONOTONIC time at which every card's modelled clock was zero */
    _Atomic uint32_t stopped;
    _Atomic uint32_t events; /* futex word, incremented with every Xid */
    char shape[72];          /* what the machine was created from, to recreate the same one */
    uint32_t driver_version; /* 13000 for 13.0 */
    char driver_name[32];
    simgpu_lock lock; /* guards `unsupported` */
    simgpu_unsupported unsupported[SIMGPU_MAX_UNSUPPORTED];
    simgpu_process processes[SIMGPU_MAX_PROCESSES];
    simgpu_card cards[];
} simgpu_machine;

/* A process's attachment to a machine. */
typedef struct {
    simgpu_machine *shared;
    size_t bytes;
    int slots_fd;
    uint32_t slot, generation;
    char directory[256];
    _Atomic uint64_t reaped_real_ns;
} simgpu_handle;

/* Results of the calls below: 0 or one of these. */
enum { SIMGPU_OK = 0, SIMGPU_ABSENT = -1, SIMGPU_MISMATCH = -2, SIMGPU_FULL = -3, SIMGPU_FAILED = -4 };

/* machine.c: attach, locks, time */
void simgpu_directory(char *buffer, size_t size, const char *asked);
int simgpu_attach(simgpu_handle *handle, const char *directory, char *error, size_t error_size);
void simgpu_detach(simgpu_handle *handle);
void simgpu_forget_after_fork(simgpu_handle *handle); /* in the child: drops inherited state, touches no shared data */
uint64_t simgpu_real_ns(void);
uint64_t simgpu_modelled_ns(const simgpu_handle *handle, const simgpu_card *card, uint64_t real_ns);
uint64_t simgpu_real_of(const simgpu_handle *handle, const simgpu_card *card, uint64_t modelled_ns);
simgpu_card *simgpu_card_lock(simgpu_handle *handle, uint32_t index); /* advanced to the present on return */
void simgpu_card_unlock(simgpu_handle *handle, simgpu_card *card);
bool simgpu_process_alive(simgpu_handle *handle, uint32_t slot, uint32_t generation);
pid_t simgpu_process_pid(simgpu_handle *handle, uint32_t slot); /* in the caller's pid namespace */
void simgpu_reap(simgpu_handle *handle);                        /* all slots of dead processes */
void simgpu_reap_sometimes(simgpu_handle *handle);              /* the same, at most every 20 ms */
void simgpu_record_unsupported(simgpu_handle *handle, const char *name);
uint32_t simgpu_visible_cards(const simgpu_handle *handle, uint32_t *cards); /* by NVIDIA_VISIBLE_DEVICES */
uint32_t simgpu_select_cards(const simgpu_handle *handle, const char *list, const uint32_t *from, uint32_t from_count,
                             uint32_t *chosen);
void simgpu_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* machine_memory.c: the ledger and residency; the card is locked */
void simgpu_card_recover(simgpu_card *card);
void simgpu_tenant_clear(simgpu_card *card, uint32_t slot);
simgpu_tenant *simgpu_tenant_of(simgpu_handle *handle, simgpu_card *card);
uint64_t simgpu_card_free_bytes(const simgpu_card *card); /* for plain allocation: managed memory yields */
int simgpu_device_take(simgpu_handle *handle, simgpu_card *card, uint64_t bytes);
void simgpu_device_give(simgpu_handle *handle, simgpu_card *card, uint64_t bytes);
int simgpu_managed_take(simgpu_handle *handle, simgpu_card *card, uint64_t bytes, simgpu_range *range,
                        uint64_t *extent_bytes);
void simgpu_managed_give(simgpu_handle *handle, simgpu_card *card, simgpu_range range);
void simgpu_residency_touch(simgpu_card *card, const simgpu_lane *lane, const simgpu_op *op, uint64_t *in_bytes,
                            uint64_t *out_bytes);
void simgpu_residency_evict(simgpu_card *card, simgpu_range range, uint64_t *out_bytes);

/* machine_timeline.c: lanes and the modelled clock; the card is locked */
void simgpu_card_advance(simgpu_handle *handle, simgpu_card *card, uint64_t modelled_ns);
uint32_t simgpu_lane_take(simgpu_handle *handle, simgpu_card *card); /* SIMGPU_NONE: all lanes are busy */
void simgpu_lane_give(simgpu_card *card, uint32_t lane);
bool simgpu_lane_submit(simgpu_card *card, uint32_t lane, const simgpu_op *op);
void simgpu_active_rebuild(simgpu_card *card);
uint64_t simgpu_lane_expected_ns(simgpu_card *card, uint32_t lane, uint32_t ops_to_finish);
double simgpu_card_busy_fraction(const simgpu_card *card, uint64_t real_ns, uint64_t window_ns);

/* machine_admin.c: for Python through ctypes; both libraries export them. A null or empty `directory` means the
 * default. They return 0, or write one sentence to `error` and return a negative number. */
SIMGPU_EXPORT int simgpu_create(const char *directory, const char *settings, char *error, size_t error_size);
SIMGPU_EXPORT int simgpu_destroy(const char *directory, char *error, size_t error_size);
SIMGPU_EXPORT int simgpu_inject(const char *directory, const char *fault, char *error, size_t error_size);
/* Returns JSON text and its full length; if that is not less than `size`, call again with a larger buffer. */
SIMGPU_EXPORT long simgpu_status(const char *directory, char *buffer, size_t size, char *error, size_t error_size);
SIMGPU_EXPORT const char *simgpu_default_directory(void);

/* machine_telemetry.c; the card is locked */
void simgpu_telemetry_step(simgpu_card *card, const simgpu_activity *activity, uint64_t step_ns);
void simgpu_telemetry_tenant(simgpu_card *card, simgpu_tenant *tenant, double part, uint64_t step_ns);
void simgpu_meter_add(simgpu_meter *meter, double at_real_ns, double length_ns, double amount);
double simgpu_meter_rate(const simgpu_meter *meter, double now_real_ns, double window_ns); /* per ns of the window */
void simgpu_sensors_start(simgpu_card *card);
bool simgpu_sensors_in_use(const simgpu_card *card);
bool simgpu_sensors_too_hot(const simgpu_card *card);
double simgpu_sensors_power_w(const simgpu_card *card);
uint32_t simgpu_sensors_sm_clock_mhz(const simgpu_card *card);

/* machine_fault.c; the card is locked */
void simgpu_fault_xid(simgpu_card *card, uint32_t number, uint32_t slot);
int simgpu_fault_apply(simgpu_handle *handle, simgpu_card *card, const char *fault, uint32_t number, double factor,
                       uint32_t slot, char *error, size_t error_size);

#endif
