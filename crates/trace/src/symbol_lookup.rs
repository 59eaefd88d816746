//! The questions of the analysis to the registry that Python fills: the names of addresses and ids.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use super::persist::persist;

/// A module, as the walk from the outermost one found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Qualified name below the root; the class name for a root or a wrapper.
    pub name: Arc<str>,
    /// Class name.
    pub class: Arc<str>,
    /// Device of its parameters: `cpu`, `cuda:0`. None where it is not known.
    pub device: Option<Arc<str>>,
    /// Whether it runs as a compiled region.
    pub compiled: bool,
    /// Whether it or a module below it has parameters.
    pub has_parameters: bool,
}

/// The module at an address at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleAtAddress {
    /// None where the registry has no module.
    pub info: Option<Arc<ModuleInfo>>,
    /// The answer holds from here on (ticks),
    pub since: u64,
    /// and up to here, exclusive; `u64::MAX` for what still is.
    pub until: u64,
}

/// What collectives of one kind on one group have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectiveOperation {
    /// Name of the operation in torch.distributed.
    pub name: Cow<'static, str>,
    /// Number of the group in this process.
    pub group_id: u32,
    /// Name of the group.
    pub group_name: String,
    /// Number of ranks in the group.
    pub group_size: i32,
    /// Type of the elements, without `torch.`.
    pub dtype: Option<String>,
    /// Whether it is issued asynchronously.
    pub async_op: bool,
    /// The backend: `gloo`, `nccl`.
    pub backend: String,
}

persist!(ModuleInfo { name, class, device, compiled, has_parameters });
persist!(CollectiveOperation { name, group_id, group_name, group_size, dtype, async_op, backend });

/// The registry. Times are in ticks.
pub trait SymbolLookup: Debug + Send {
    /// A number that grows whenever an answer may have changed.
    fn generation(&self) -> u64;
    /// The module that was at `address` at the time `at`, and the times in which that is true.
    fn module(&self, address: u64, ticks: u64) -> ModuleAtAddress;
    /// The class name of the module type at `address`.
    fn class(&self, address: u64) -> Option<Arc<str>>;
    /// Asks for another walk below the outermost module at `root`.
    fn walk_again(&self, root: u64);
    /// The optimizer class behind an id.
    fn optimizer(&self, id: u64) -> Option<String>;
    /// The kind of collective behind an id.
    fn operation(&self, id: u64) -> Option<CollectiveOperation>;
    /// The name of a range (`is_span`) or of a logged number.
    fn named(&self, is_span: bool, id: u64) -> Option<String>;
    /// The text behind a number of a save: the name of its file, or of the class of the exception that ended it.
    fn saved(&self, id: u64) -> Option<String>;
    /// The operator behind a number.
    fn operator(&self, id: u64) -> Option<String>;
    /// The line of the program behind a number, as `file:line`.
    fn line(&self, id: u64) -> Option<String>;
    /// Allows the registry to forget names of times before `ticks`, which are not asked for any more.
    fn forget_before(&self, ticks: u64);
}
