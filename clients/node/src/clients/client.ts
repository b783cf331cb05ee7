import { Buffer } from 'node:buffer';
import type { Word } from '../checks.js';

/** A command of the module. `keys`: those among the arguments. */
export interface Call {
  name: string;
  args: Word[];
  keys: Word[];
  /** What is sent instead if the server has none of the policy keys. */
  otherwise?: Call;
}

/** A call for one key. */
export const ofKey = (name: string, key: Word, ...words: Word[]): Call => ({ name, args: [key, ...words], keys: [key] });

/**
 * A connection of this package's own. It sends each call once, and nothing that was given up: it has no queue, and it is never
 * opened again. Errors are those of the client library.
 */
export interface Connection {
  /** `asking`: after the command ASKING. */
  send(words: Word[], key: Word, asking?: boolean): Promise<unknown>;
  /** Whether it is still open, as far as it is known. */
  isOpen(): boolean;
  close(): void;
  /** If `close` leaves a waiting call in its line: takes it from there, by another connection. */
  endWait?(other: Connection, key: Word): Promise<unknown> | undefined;
}

/** A server, as a client knows it. */
export interface Node {
  name: string;
  /** Opens a connection to it; `replyMs` is how long a reply may take. */
  open(connectMs: number, replyMs: number): Promise<Connection>;
}

/** What this package needs of a client, by its public interface. */
export interface Client {
  /** What the client puts before each key. */
  prefix: string;
  /** The server that has the key; undefined if that is not known. */
  locate(key: Word): Node | undefined;
  /** Finds out anew which server has the key. */
  search(key: Word, ms: number): Promise<unknown>;
  /** The server of a cluster with this address. */
  at(address: string): Node | undefined;
  /** Whether the program has closed the client. */
  isClosed(): boolean;
  /** Runs `action` when the program closes the client; returns what ends that. */
  onClose(action: () => void): () => void;
}

/** Runs `action` when a client of ioredis or node-redis ends; returns what ends that. */
export const onEnd = (client: any) => (action: () => void) => {
  client.on('end', action);
  return () => client.off('end', action);
};

/** What a client of one server knows of it. */
export const only = (node: Node) => ({ locate: () => node, at: () => undefined, search: async () => {} });

/** The hash slot of a key: CRC16 of its hash tag, or of the whole key. */
export function slotOf(key: Word) {
  let bytes = Buffer.from(key);
  const open = bytes.indexOf('{');
  const close = open < 0 ? -1 : bytes.indexOf('}', open + 1);
  if (close > open + 1) bytes = bytes.subarray(open + 1, close);
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
  }
  return crc % 16384;
}
