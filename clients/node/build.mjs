// Makes what the package contains: CommonJS modules, which `import` loads, too, so that both get the same classes; and their types.
// `npm pack` runs it.
import { execFileSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = (name) => fileURLToPath(new URL(name, import.meta.url));
rmSync(here('dist'), { recursive: true, force: true });
execFileSync(process.execPath, [here('node_modules/typescript/bin/tsc'), '-p', here('tsconfig.build.json')], { stdio: 'inherit' });
writeFileSync(here('dist/package.json'), JSON.stringify({ type: 'commonjs' }));
