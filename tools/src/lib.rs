//! What the tools share. Each tool is a program in `src/bin`; `scripts/tool.sh` builds and runs them.

pub mod chart;
pub mod ids;
/// The pure core of the module: the same source file, for simulations. The tools do not depend on the module's package, because
/// building them would then also build the module.
/// Its own unit tests belong to that package.
#[cfg(not(test))]
#[path = "../../src/limiter/mod.rs"]
pub mod limiter;
pub mod load;
pub mod results;
pub mod statistics;
