//! What the tools share. Each tool is a program in `src/bin`; `scripts/tool.sh` builds and runs them.

pub mod chart;
pub mod ids;
