import type { Server, ServerOptions } from './index.js';

/** A server that starts before the tests of this file, is flushed before each of them, and ends after them. */
export function rlServer(options?: ServerOptions): Server;
