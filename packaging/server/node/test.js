// A server for the tests of a file that node:test runs.
import { after, before, beforeEach } from 'node:test';
import { Server } from './index.js';

/** A server that starts before the tests of this file, is flushed before each of them, and ends after them. */
export function rlServer(options) {
  const server = new Server(options);
  before(() => server.start());
  beforeEach(() => server.flush());
  after(() => server.stop());
  return server;
}
