// At most five attempts to log in at once for each name, then one every 12 seconds.
export async function mayTry(client, name) {
  const [granted] = await client.sendCommand(['RL.GCRA', `login:${name}`, '5', '60']);
  return granted === 1;
}
