/* A module that loads the module under test, and stands between it and the server: it makes the server look like Valkey 9.2 while
 * that saves without a fork. Its arguments are the name that the server reports (`valkey` or `redis`), the path of the module under
 * test, and the arguments of that.
 *
 * FORKLESS.USE key...: from now on a thread of the server "reads" these keys. As on Valkey 9.2, a key that is being read cannot be
 * opened for writing if it exists, and the server does not survive that its bytes are accessed by a handle that is open for reading.
 * FORKLESS.FREE: the thread reads no key any more.
 * FORKLESS.EACH n: besides, each n-th opening for writing of an existing key fails; 0: none.
 * FORKLESS.REFUSED: how many openings have failed.
 * FORKLESS.UNANNOUNCED: how many changes of keys were not preceded by a command, or a call of one, that names the key.
 * FORKLESS.OPTIONS: the options that the module under test has declared. */
#include "redismodule.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORKLESS (1 << 6)
#define MOST 64

static int (*server_api)(const char *, void *);
static RedisModuleKey *(*server_open)(RedisModuleCtx *, RedisModuleString *, int);
static void (*server_close)(RedisModuleKey *);
static char *(*server_dma)(RedisModuleKey *, size_t *, int);
static int (*server_signal)(RedisModuleCtx *, RedisModuleString *);
static int (*server_options_all)(void);
static void (*server_set_options)(RedisModuleCtx *, int);
static const char *(*server_info_field)(RedisModuleServerInfoData *, const char *);

static const char *server_name;
static RedisModuleString *in_use[MOST], *named[MOST];
static RedisModuleKey *reading[MOST];
static long long in_use_count, named_count, every, openings, refused, unannounced, options;

static int contains(RedisModuleString **names, long long count, RedisModuleString *name) {
    for (long long i = 0; i < count; i++)
        if (RedisModule_StringCompare(names[i], name) == 0) return 1;
    return 0;
}

static RedisModuleKey *open_key(RedisModuleCtx *ctx, RedisModuleString *name, int mode) {
    RedisModuleKey *key = server_open(ctx, name, mode);
    if (!key || RedisModule_KeyType(key) == REDISMODULE_KEYTYPE_EMPTY) return key;
    int used = contains(in_use, in_use_count, name);
    if (mode & REDISMODULE_WRITE) {
        if (!used && (!every || ++openings % every)) return key;
        refused++;
        server_close(key);
        return NULL;
    }
    for (int i = 0; used && i < MOST; i++) {
        if (reading[i]) continue;
        reading[i] = key;
        break;
    }
    return key;
}

static void close_key(RedisModuleKey *key) {
    for (int i = 0; key && i < MOST; i++)
        if (reading[i] == key) reading[i] = NULL;
    server_close(key);
}

static char *access_bytes(RedisModuleKey *key, size_t *len, int mode) {
    for (int i = 0; i < MOST; i++) {
        if (reading[i] != key) continue;
        fputs("forkless.c: a value was accessed that a thread is reading\n", stderr);
        abort();
    }
    return server_dma(key, len, mode);
}

static int signal_modified(RedisModuleCtx *ctx, RedisModuleString *name) {
    unannounced += !contains(named, named_count, name);
    return server_signal(ctx, name);
}

static int options_all(void) { return FORKLESS | (server_options_all ? server_options_all() : 0); }

static void set_options(RedisModuleCtx *ctx, int declared) {
    options = declared;
    server_set_options(ctx, declared & ~FORKLESS);
}

static const char *info_field(RedisModuleServerInfoData *data, const char *field) {
    return strcmp(field, "server_name") ? server_info_field(data, field) : server_name;
}

/* Notes the words of the last command. */
static void note_command(RedisModuleCommandFilterCtx *command) {
    while (named_count) RedisModule_FreeString(NULL, named[--named_count]);
    for (int i = 1; i < RedisModule_CommandFilterArgsCount(command) && named_count < MOST; i++) {
        RedisModuleString *word = (RedisModuleString *)RedisModule_CommandFilterArgGet(command, i);
        named[named_count++] = RedisModule_CreateStringFromString(NULL, word);
    }
}

/* What the module under test gets instead of the server's functions. */
static int api(const char *name, void *into) {
    static const struct {
        const char *name;
        void *server, *ours;
    } replaced[] = {
        {"RedisModule_OpenKey", &server_open, open_key},
        {"RedisModule_CloseKey", &server_close, close_key},
        {"RedisModule_StringDMA", &server_dma, access_bytes},
        {"RedisModule_SignalModifiedKey", &server_signal, signal_modified},
        {"RedisModule_GetModuleOptionsAll", &server_options_all, options_all},
        {"RedisModule_SetModuleOptions", &server_set_options, set_options},
        {"RedisModule_ServerInfoGetFieldC", &server_info_field, info_field},
    };
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        if (strcmp(name, replaced[i].name)) continue;
        server_api(name, replaced[i].server);
        *(void **)into = replaced[i].ours;
        return REDISMODULE_OK;
    }
    return server_api(name, into);
}

static int use(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    for (int i = 1; i < argc && in_use_count < MOST; i++) {
        in_use[in_use_count++] = RedisModule_CreateStringFromString(NULL, argv[i]);
    }
    return RedisModule_ReplyWithLongLong(ctx, in_use_count);
}

static int release(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    REDISMODULE_NOT_USED(argc);
    while (in_use_count) RedisModule_FreeString(NULL, in_use[--in_use_count]);
    return RedisModule_ReplyWithLongLong(ctx, 0);
}

static int refuse_each(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc != 2 || RedisModule_StringToLongLong(argv[1], &every)) return RedisModule_ReplyWithError(ctx, "ERR a number");
    return RedisModule_ReplyWithLongLong(ctx, every);
}

static int tell_refused(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    REDISMODULE_NOT_USED(argc);
    return RedisModule_ReplyWithLongLong(ctx, refused);
}

static int tell_unannounced(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    REDISMODULE_NOT_USED(argc);
    return RedisModule_ReplyWithLongLong(ctx, unannounced);
}

static int tell_options(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    REDISMODULE_NOT_USED(argv);
    REDISMODULE_NOT_USED(argc);
    return RedisModule_ReplyWithLongLong(ctx, options);
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (argc < 2) return REDISMODULE_ERR;
    /* The server gives a module its functions by this pointer. */
    void **functions = (void **)ctx;
    *(void **)&server_api = *functions;
    const char *(*text)(const RedisModuleString *, size_t *);
    server_api("RedisModule_StringPtrLen", &text);
    server_name = strdup(text(argv[0], NULL));
    void *tested = dlopen(text(argv[1], NULL), RTLD_NOW | RTLD_LOCAL);
    int (*load)(RedisModuleCtx *, RedisModuleString **, int) = NULL;
    if (tested) *(void **)&load = dlsym(tested, "RedisModule_OnLoad");
    if (!load) return REDISMODULE_ERR;
    *functions = api;
    int status = load(ctx, argv + 2, argc - 2);
    *functions = *(void **)&server_api;
    if (status != REDISMODULE_OK) return status;
    /* These commands belong to the module under test, which the server has just got to know. */
    RedisModule_InitAPI(ctx);
    const struct {
        const char *name;
        RedisModuleCmdFunc run;
    } commands[] = {
        {"forkless.use", use},
        {"forkless.free", release},
        {"forkless.each", refuse_each},
        {"forkless.refused", tell_refused},
        {"forkless.unannounced", tell_unannounced},
        {"forkless.options", tell_options},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (RedisModule_CreateCommand(ctx, commands[i].name, commands[i].run, "readonly", 0, 0, 0)) return REDISMODULE_ERR;
    return RedisModule_RegisterCommandFilter(ctx, note_command, 0) ? REDISMODULE_OK : REDISMODULE_ERR;
}
