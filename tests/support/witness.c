/* A module that records, by the server's own clock, when keyspace events happen and when the server runs its timers: a timer of a
 * millisecond "ticks". The number of ticks between two times says for how long the server ran in between, however busy the machine
 * is: while the system does not run the server, the server runs no timers. All times are in microseconds.
 *
 * WITNESS.EVENTS: each event as its time, its name and its key, in their order.
 * WITNESS.TICKS from to: how many ticks there were after `from` and before `to`.
 * WITNESS.STOOD from to longer: for each time span without a tick that is longer than `longer`, by how much it is; the sum. */
#include "redismodule.h"
#include <string.h>
#include <sys/time.h>

typedef struct {
    long long us;
    char event[24];
    char key[72];
} Event;

static Event *events;
static size_t event_count;
static long long *ticks;
static size_t tick_count;

static long long now_us(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return now.tv_sec * 1000000LL + now.tv_usec;
}

/* Makes room for one more element. The size of the array is a power of two. */
static void *room(void *array, size_t count, size_t size) {
    return count & (count - 1) ? array : RedisModule_Realloc(array, (count ? 2 * count : 1) * size);
}

static void tick(RedisModuleCtx *ctx, void *data) {
    REDISMODULE_NOT_USED(data);
    ticks = room(ticks, tick_count, sizeof *ticks);
    ticks[tick_count++] = now_us();
    RedisModule_CreateTimer(ctx, 1, tick, NULL);
}

static int happened(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    REDISMODULE_NOT_USED(ctx);
    REDISMODULE_NOT_USED(type);
    events = room(events, event_count, sizeof *events);
    Event *noted = &events[event_count++];
    memset(noted, 0, sizeof *noted);
    noted->us = now_us();
    strncpy(noted->event, event, sizeof noted->event - 1);
    strncpy(noted->key, RedisModule_StringPtrLen(key, NULL), sizeof noted->key - 1);
    return REDISMODULE_OK;
}

static int tell_events(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    if (argc != 1) return RedisModule_WrongArity(ctx);
    RedisModule_ReplyWithArray(ctx, event_count);
    for (size_t i = 0; i < event_count; i++) {
        RedisModule_ReplyWithArray(ctx, 3);
        RedisModule_ReplyWithLongLong(ctx, events[i].us);
        RedisModule_ReplyWithCString(ctx, events[i].event);
        RedisModule_ReplyWithCString(ctx, events[i].key);
    }
    return REDISMODULE_OK;
}

static int tell_ticks(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long from, to, count = 0;
    if (argc != 3) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &from) || RedisModule_StringToLongLong(argv[2], &to))
        return RedisModule_ReplyWithError(ctx, "ERR two moments");
    for (size_t i = tick_count; i-- && ticks[i] > from;) count += ticks[i] < to;
    return RedisModule_ReplyWithLongLong(ctx, count);
}

static int tell_stood(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    long long from, to, longer, sum = 0;
    if (argc != 4) return RedisModule_WrongArity(ctx);
    if (RedisModule_StringToLongLong(argv[1], &from) || RedisModule_StringToLongLong(argv[2], &to) ||
        RedisModule_StringToLongLong(argv[3], &longer))
        return RedisModule_ReplyWithError(ctx, "ERR two moments and a time");
    for (size_t i = 1; i < tick_count; i++) {
        long long gap = ticks[i] - ticks[i - 1];
        if (ticks[i] > from && ticks[i - 1] < to && gap > longer) sum += gap - longer;
    }
    return RedisModule_ReplyWithLongLong(ctx, sum);
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    REDISMODULE_NOT_USED(argc);
    if (RedisModule_Init(ctx, "witness", 1, REDISMODULE_APIVER_1) == REDISMODULE_ERR ||
        RedisModule_CreateCommand(ctx, "witness.events", tell_events, "readonly", 0, 0, 0) == REDISMODULE_ERR ||
        RedisModule_CreateCommand(ctx, "witness.ticks", tell_ticks, "readonly", 0, 0, 0) == REDISMODULE_ERR ||
        RedisModule_CreateCommand(ctx, "witness.stood", tell_stood, "readonly", 0, 0, 0) == REDISMODULE_ERR)
        return REDISMODULE_ERR;
    tick(ctx, NULL);
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_MODULE, happened);
}
