// Makes what the package contains: CommonJS modules, which `import` loads, too, so that both get the same classes; and their types.
// `npm pack` runs it.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
rmSync(here('dist'), { recursive: true, force: true });
execFileSync(process.execPath, [here('node_modules/typescript/bin/tsc'), '-p', here('tsconfig.build.json')], { stdio: 'inherit' });
writeFileSync(here('dist/package.json'), JSON.stringify({ type: 'commonjs' }));

// A comment with @internal, and what it describes: `stripInternal` of TypeScript does nothing for sources in JavaScript.
const INTERNAL = /^( *)\/\*\*(?:(?!\*\/)[^])*?@internal(?:(?!\*\/)[^])*?\*\/\n\1\S.*\n(?:\1(?: .*|\}.*)\n)*/gm;
for (const folder of ['dist', 'dist/clients']) {
  for (const name of readdirSync(here(folder)).filter((name) => name.endsWith('.d.ts'))) {
    const path = join(here(folder), name);
    writeFileSync(path, readFileSync(path, 'utf8').replace(INTERNAL, ''));
  }
}
