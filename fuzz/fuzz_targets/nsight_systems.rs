#![no_main]

#[path = "../targets/nsight_systems.rs"]
mod target;

libfuzzer_sys::fuzz_target!(|data: &[u8]| target::nsight_systems(data));
