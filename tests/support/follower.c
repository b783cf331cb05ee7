/* A module that makes a call whenever a key expires, as any module may. Its arguments are the call. */
#include "redismodule.h"
#include <string.h>

static const char *command;
static RedisModuleString **arguments;
static size_t count;

static int expired(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    REDISMODULE_NOT_USED(type);
    REDISMODULE_NOT_USED(event);
    REDISMODULE_NOT_USED(key);
    RedisModuleCallReply *reply = RedisModule_Call(ctx, command, "!v", arguments, count);
    if (reply) RedisModule_FreeCallReply(reply);
    return REDISMODULE_OK;
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    if (RedisModule_Init(ctx, "follower", 1, REDISMODULE_APIVER_1) == REDISMODULE_ERR || argc < 1) return REDISMODULE_ERR;
    command = strdup(RedisModule_StringPtrLen(argv[0], NULL));
    count = argc - 1;
    arguments = RedisModule_Alloc(argc * sizeof *arguments);
    for (size_t i = 0; i < count; i++) arguments[i] = RedisModule_CreateStringFromString(NULL, argv[i + 1]);
    return RedisModule_SubscribeToKeyspaceEvents(ctx, REDISMODULE_NOTIFY_EXPIRED, expired);
}
