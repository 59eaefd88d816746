//! Modules as rows show them, looked up in the registry once.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use probe_proto::encode::StringTable;
use probe_proto::table::Text;

use super::persist::{Persist, PersistedBytes, persist};
use super::symbol_lookup::SymbolLookup;

/// Hashes one integer. Addresses and ids are spread well enough by a multiplication.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct IntHasher(u64);

impl Hasher for IntHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A map from integers.
pub(crate) type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<IntHasher>>;

/// A module, ready for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ResolvedModule {
    pub(crate) name: Option<Text>,
    pub(crate) class: Option<Text>,
    pub(crate) device: Option<Text>,
    /// Whether it computes on the CPU, so that its time is that on the host.
    pub(crate) on_host: bool,
    pub(crate) compiled: bool,
    pub(crate) has_parameters: bool,
    /// Whether the registry knows the module.
    pub(crate) known: bool,
}

/// The largest number of modules that are remembered as not found, so that they are not looked up a third time.
const MAX_UNNAMED: usize = 1 << 14;

/// A module at an address, its class, and the times in which it is there.
#[derive(Debug, Clone, Copy)]
struct ModuleAtAddress {
    id: u32,
    class: u64,
    since: u64,
    until: u64,
}

/// Modules met so far.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    generation: u64,
    by_address: IntMap<u64, ModuleAtAddress>,
    all: Vec<ResolvedModule>,
    ids: HashMap<ResolvedModule, u32>,
    /// Modules that were not found, by address, class and outermost module: another module may come to the address.
    hopeless: HashSet<(u64, u64, u64)>,
    /// Whether a module was met whose parameters are on a device.
    on_device: bool,
}

persist!(ResolvedModule { name, class, device, on_host, compiled, has_parameters, known });
persist!(ModuleAtAddress { id, class, since, until });

/// Leaves `hopeless` out: the modules of a process that has ended cannot be walked again.
impl Persist for Modules {
    fn put(&self, to: &mut Vec<u8>) {
        self.generation.put(to);
        self.by_address.put(to);
        self.all.put(to);
        self.on_device.put(to);
    }
    fn get(from: &mut PersistedBytes<'_>) -> Option<Self> {
        let (generation, by_address) = (u64::get(from)?, Persist::get(from)?);
        let (all, on_device) = (Vec::<ResolvedModule>::get(from)?, bool::get(from)?);
        let ids = all.iter().copied().zip(0..).collect();
        Some(Self { generation, by_address, all, ids, hopeless: HashSet::new(), on_device })
    }
}

impl Modules {
    /// Forgets addresses if the registry has changed. Called where an outermost call begins.
    pub(crate) fn refresh(&mut self, names: &impl SymbolLookup) {
        let generation = names.generation();
        if generation != self.generation {
            self.generation = generation;
            self.by_address.clear();
        }
    }

    /// The module behind an id that [`Modules::find`] gave.
    pub(crate) fn get(&self, id: u32) -> Option<&ResolvedModule> {
        self.all.get(id as usize)
    }

    /// Whether computation outside modules (the loss, the optimizer) is on the host, judged by the modules met so far.
    pub(crate) fn computes_on_host(&self) -> bool {
        !self.on_device
    }

    /// The module at `address`, of the class at `class`, called at the time `at` within the outermost call of `root`.
    pub(crate) fn find(
        &mut self,
        names: &impl SymbolLookup,
        strings: &mut StringTable,
        address: u64,
        class: u64,
        ticks: u64,
        root: u64,
    ) -> u32 {
        // Modules that live for one call follow each other at one address.
        if let Some(known) = self.by_address.get(&address)
            && known.class == class
            && (known.since..known.until).contains(&ticks)
        {
            return known.id;
        }
        let found = names.module(address, ticks);
        let module = match found.info {
            Some(info) => ResolvedModule {
                name: Some(strings.id(&info.name)),
                class: Some(strings.id(&info.class)),
                device: info.device.as_ref().map(|device| strings.id(device)),
                on_host: info.device.as_ref().is_none_or(|device| &**device == "cpu"),
                compiled: info.compiled,
                has_parameters: info.has_parameters,
                known: true,
            },
            None => {
                if self.hopeless.len() < MAX_UNNAMED && self.hopeless.insert((address, class, root)) {
                    names.walk_again(root);
                }
                // The module is in no list of modules that torch knows of, so only its class is known. It is not known where it
                // computes either, so its device time is not known.
                let class = names.class(class).map(|class| strings.id(&class));
                let root = self.by_address.get(&root).and_then(|known| self.all.get(known.id as usize));
                let on_host = root.is_some_and(|root| root.on_host);
                ResolvedModule {
                    name: class,
                    class,
                    device: None,
                    on_host,
                    compiled: false,
                    has_parameters: false,
                    known: false,
                }
            }
        };
        self.on_device |= module.has_parameters && !module.on_host;
        let next = self.all.len() as u32;
        let id = *self.ids.entry(module).or_insert(next);
        if id == next {
            self.all.push(module);
        }
        self.by_address.insert(address, ModuleAtAddress { id, class, since: found.since, until: found.until });
        id
    }
}
