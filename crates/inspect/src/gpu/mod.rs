//! Reads GPUs through NVIDIA's driver (NVML). The library is loaded at run time: without it there are no GPUs.

mod visible;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::{Device, EventSet, Nvml};

pub use visible::VisibleGpus;

/// The driver's number for an error that it does not know.
const UNKNOWN_XID: u64 = 999;

/// The GPUs of this node.
pub struct Gpus {
    nvml: &'static Nvml,
    /// The event set of each GPU whose errors the driver reports, by UUID.
    errors: HashMap<String, EventSet<'static>>,
}

/// The state of a GPU. What the driver does not tell is None.
#[derive(Debug, Default)]
pub struct GpuReading {
    pub index: u32,
    pub uuid: String,
    pub name: Option<String>,
    /// Processes that compute on the GPU, by the driver's word.
    pub pids: Option<Vec<u32>>,
    /// Percent.
    pub utilization: Option<f64>,
    pub memory_utilization: Option<f64>,
    /// Bytes.
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    /// Milliwatts.
    pub power: Option<u32>,
    pub power_limit: Option<u32>,
    /// Degrees Celsius.
    pub temperature: Option<u32>,
    /// Megahertz.
    pub sm_clock: Option<u32>,
    pub memory_clock: Option<u32>,
    pub throttle_reasons: Option<String>,
    pub ecc_corrected: Option<u64>,
    pub ecc_uncorrected: Option<u64>,
    /// Errors (Xid) since the last reading.
    pub xids: Vec<u64>,
}

impl Gpus {
    /// Opens the driver; None if the machine has no driver, or it does not answer.
    pub fn open() -> Option<Self> {
        let nvml = match Nvml::init() {
            Ok(nvml) => nvml,
            Err(error) => {
                tracing::debug!("no GPUs are read: {error}");
                return None;
            }
        };
        // Devices and event sets borrow the library. It is never freed, because a collector opens it once, for its whole life.
        Some(Self { nvml: Box::leak(Box::new(nvml)), errors: HashMap::new() })
    }

    /// Reads the GPUs that are visible. Takes milliseconds, and longer where a GPU is in trouble.
    pub fn read(&mut self, visible: &VisibleGpus) -> Vec<GpuReading> {
        let nvml = self.nvml;
        let all: Vec<Device<'static>> =
            (0..nvml.device_count().unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok()).collect();
        let named = |device: &Device<'static>| Some((device.index().ok()?, device.uuid().ok()?));
        let names: Vec<Option<(u32, String)>> = all.iter().map(named).collect();
        let known: Vec<(u32, String)> = names.iter().flatten().cloned().collect();
        let models = || all.iter().map(|device| device.name().ok());
        let alike = models().all(|name| Some(name) == models().next());
        let chosen = visible.choose(&known, alike);
        let mut readings = Vec::new();
        for (device, named) in all.iter().zip(names) {
            let Some((index, uuid)) = named else { continue };
            if !chosen.contains(&uuid) {
                continue;
            }
            let xids = self.xids(device, &uuid);
            readings.push(GpuReading { xids, ..read(device, index, uuid) });
        }
        readings
    }

    /// Errors that the driver has reported since the last call.
    fn xids(&mut self, device: &Device<'static>, uuid: &str) -> Vec<u64> {
        if !self.errors.contains_key(uuid) {
            let set = self.nvml.create_event_set().ok();
            let set = set.and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
            let Some(set) = set else { return Vec::new() };
            self.errors.insert(uuid.to_owned(), set);
        }
        let Some(set) = self.errors.get(uuid) else { return Vec::new() };
        // At most 16, so that a GPU that fails for ever does not keep the loop for ever.
        let events = (0..16).map_while(|_| set.wait(0).ok());
        events
            .filter(|event| event.event_type.contains(EventTypes::CRITICAL_XID_ERROR))
            .filter_map(|event| match event.event_data? {
                XidError::Value(xid) => Some(xid),
                XidError::Unknown => Some(UNKNOWN_XID),
            })
            .collect()
    }
}

/// The GPUs that each process computes on, as nvidia-smi numbers them; empty where the driver does not tell, as in most
/// containers.
pub fn by_process() -> BTreeMap<u32, BTreeSet<u32>> {
    let mut found: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let Ok(nvml) = Nvml::init() else { return found };
    for index in 0..nvml.device_count().unwrap_or(0) {
        let processes = nvml.device_by_index(index).and_then(|device| device.running_compute_processes());
        for process in processes.unwrap_or_default() {
            found.entry(process.pid).or_default().insert(index);
        }
    }
    found
}

fn read(device: &Device<'_>, index: u32, uuid: String) -> GpuReading {
    let utilization = device.utilization_rates().ok();
    let memory = device.memory_info().ok();
    let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
    GpuReading {
        index,
        uuid,
        name: device.name().ok(),
        pids: device.running_compute_processes().ok().map(|all| all.iter().map(|process| process.pid).collect()),
        utilization: utilization.as_ref().map(|rates| f64::from(rates.gpu)),
        memory_utilization: utilization.as_ref().map(|rates| f64::from(rates.memory)),
        memory_used: memory.as_ref().map(|memory| memory.used),
        memory_total: memory.as_ref().map(|memory| memory.total),
        power: device.power_usage().ok(),
        power_limit: device.enforced_power_limit().ok(),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        sm_clock: device.clock_info(Clock::SM).ok(),
        memory_clock: device.clock_info(Clock::Memory).ok(),
        throttle_reasons: device.current_throttle_reasons().ok().map(names),
        ecc_corrected: ecc(MemoryError::Corrected),
        ecc_uncorrected: ecc(MemoryError::Uncorrected),
        xids: Vec::new(),
    }
}

/// The driver's names of throttle reasons, in lower case.
fn names(reasons: ThrottleReasons) -> String {
    let name = |name: &str| if name == "GPU_IDLE" { "idle".to_owned() } else { name.to_ascii_lowercase() };
    let names: Vec<String> =
        reasons.iter_names().filter(|(_, one)| !one.is_empty()).map(|(each, _)| name(each)).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_drivers_names() {
        assert_eq!(names(ThrottleReasons::empty()), "none");
        assert_eq!(names(ThrottleReasons::GPU_IDLE), "idle");
        let both = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(names(both), "sw_power_cap,hw_thermal_slowdown");
    }
}
