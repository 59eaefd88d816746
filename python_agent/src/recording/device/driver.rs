//! The functions of libcuda that are needed, and the one of torch that returns the current stream. Both libraries must be loaded
//! already: this file loads and initialises nothing.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

use crate::shared::{self, LOADER};

/// `CUevent`, `CUstream` and `CUcontext`.
pub(super) type CudaEvent = *mut c_void;
pub(super) type CudaStream = *mut c_void;
type CudaContext = *mut c_void;

const SUCCESS: c_int = 0;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Whether a device has finished work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum EventState<T> {
    Done(T),
    NotYet,
    /// The context is broken or gone.
    Failed,
}

impl<T> EventState<T> {
    fn of(status: c_int, value: T) -> Self {
        match status {
            SUCCESS => Self::Done(value),
            NOT_READY => Self::NotYet,
            _ => Self::Failed,
        }
    }
}

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*);)*) => {
        /// Functions of libcuda by their names in cuda.h.
        struct CudaFunctions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl CudaFunctions {
            fn find(library: *mut c_void) -> Option<Self> {
                Some(Self { $($field: {
                    let found = lookup(library, $symbol)?;
                    // SAFETY: the symbol of this name has this signature, in all versions that have it.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(found) }
                },)* })
            }
        }
    };
}

functions! {
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    current_device = c"cuCtxGetDevice": fn(*mut c_int);
    primary_state = c"cuDevicePrimaryCtxGetState": fn(c_int, *mut c_uint, *mut c_int);
    primary_retain = c"cuDevicePrimaryCtxRetain": fn(*mut CudaContext, c_int);
    primary_release = c"cuDevicePrimaryCtxRelease_v2": fn(c_int);
    push = c"cuCtxPushCurrent_v2": fn(CudaContext);
    pop = c"cuCtxPopCurrent_v2": fn(*mut CudaContext);
    event_create = c"cuEventCreate": fn(*mut CudaEvent, c_uint);
    event_record = c"cuEventRecord": fn(CudaEvent, CudaStream);
    event_query = c"cuEventQuery": fn(CudaEvent);
    event_elapsed = c"cuEventElapsedTime": fn(*mut f32, CudaEvent, CudaEvent);
    stream_capturing = c"cuStreamIsCapturing": fn(CudaStream, *mut c_int);
    exchange_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
}

/// The functions of libcuda and torch that device times need.
pub(super) struct CudaDriver {
    functions: CudaFunctions,
    /// `aoti_torch_get_current_cuda_stream`, part of torch's stable C interface: 0 where it worked.
    current_stream: unsafe extern "C" fn(i32, *mut CudaStream) -> i32,
}

static DRIVER: OnceLock<CudaDriver> = OnceLock::new();

/// The driver, once [`find`] has found it.
#[inline(always)]
pub(super) fn loaded() -> Option<&'static CudaDriver> {
    DRIVER.get()
}

/// Finds the driver, if CUDA is in use by now.
pub(super) fn find() -> Option<&'static CudaDriver> {
    if let Some(driver) = DRIVER.get() {
        return Some(driver);
    }
    // Where the loader is at work for another thread of ours, the next call finds the driver.
    let searching = shared::try_lock(&LOADER)?;
    let cuda = loaded_library(c"libcuda.so.1")?;
    let functions = CudaFunctions::find(cuda)?;
    // The driver may wait for the program's cuInit, which may fork.
    drop(searching);
    let mut count = 0;
    // SAFETY: `count` is ours. Before the program calls cuInit this only fails.
    if unsafe { (functions.device_count)(&mut count) } != SUCCESS || count == 0 {
        return None;
    }
    let _searching = shared::try_lock(&LOADER)?;
    const STREAM: &CStr = c"aoti_torch_get_current_cuda_stream";
    let torch = || lookup(loaded_library(c"libtorch_cuda.so")?, STREAM);
    let found = lookup(libc::RTLD_DEFAULT, STREAM).or_else(torch)?;
    // SAFETY: torch's function of this name has this signature.
    let current_stream =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32, *mut CudaStream) -> i32>(found) };
    Some(DRIVER.get_or_init(|| CudaDriver { functions, current_stream }))
}

fn loaded_library(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: NOLOAD only finds a library that is loaded; the handle is kept, as neither library is ever unloaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!library.is_null()).then_some(library)
}

fn lookup(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle that dlopen gave, or RTLD_DEFAULT.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

// SAFETY of all calls below: pointers given are to locals, events are those that `create` made and are never destroyed,
// and the driver's functions may be called from any thread.
impl CudaDriver {
    /// The device of the calling thread's context.
    pub(super) fn current_device(&self) -> Option<usize> {
        let mut device = 0;
        // SAFETY: see above.
        let status = unsafe { (self.functions.current_device)(&mut device) };
        (status == SUCCESS).then_some(usize::try_from(device).ok()?)
    }

    /// The stream on which torch launches work now.
    pub(super) fn current_stream(&self, device: usize) -> Option<CudaStream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: see above; the device has a context, so torch knows it.
        let status = unsafe { (self.current_stream)(device as i32, &mut stream) };
        (status == 0).then_some(stream)
    }

    /// Whether work launched on the stream becomes part of a graph, or would break one.
    pub(super) fn may_be_capturing(&self, stream: CudaStream) -> bool {
        let mut capturing = 0;
        // SAFETY: see above.
        let status = unsafe { (self.functions.stream_capturing)(stream, &mut capturing) };
        status != SUCCESS || capturing != 0
    }

    /// Records an event. Returns whether that worked.
    pub(super) fn record(&self, event: CudaEvent, stream: CudaStream) -> bool {
        // SAFETY: see above.
        unsafe { (self.functions.event_record)(event, stream) == SUCCESS }
    }

    /// Whether an event has occurred.
    pub(super) fn query(&self, event: CudaEvent) -> EventState<()> {
        // SAFETY: see above.
        EventState::of(unsafe { (self.functions.event_query)(event) }, ())
    }

    /// Milliseconds between two events.
    pub(super) fn elapsed(&self, from: CudaEvent, to: CudaEvent) -> EventState<f64> {
        let mut milliseconds = 0.0_f32;
        // SAFETY: see above.
        let status = unsafe { (self.functions.event_elapsed)(&mut milliseconds, from, to) };
        EventState::of(status, f64::from(milliseconds))
    }

    /// Runs `work` so that its queries of events break no graph that another thread captures meanwhile.
    pub(super) fn relaxed<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut mode = RELAXED;
        // SAFETY: see above; the mode is this thread's alone.
        let changed = unsafe { (self.functions.exchange_mode)(&mut mode) } == SUCCESS;
        let result = work();
        if changed {
            // SAFETY: as before.
            unsafe { (self.functions.exchange_mode)(&mut mode) };
        }
        result
    }

    /// Devices whose context the program has made.
    pub(super) fn active_devices(&self) -> impl Iterator<Item = usize> {
        let mut count = 0;
        // SAFETY: see above.
        let status = unsafe { (self.functions.device_count)(&mut count) };
        (0..if status == SUCCESS { count } else { 0 }).filter_map(|device| {
            let (mut flags, mut active) = (0, 0);
            // SAFETY: see above.
            let status = unsafe { (self.functions.primary_state)(device, &mut flags, &mut active) };
            usize::try_from(device).ok().filter(|_| status == SUCCESS && active != 0)
        })
    }

    /// Makes up to `count` events on a device whose context is active, as many as the driver can.
    pub(super) fn create(&self, device: usize, count: usize, mut made: impl FnMut(CudaEvent)) {
        let mut context = std::ptr::null_mut();
        // SAFETY: see above. The context is released below, and this thread's own context is restored.
        unsafe {
            if (self.functions.primary_retain)(&mut context, device as c_int) != SUCCESS {
                return;
            }
            if (self.functions.push)(context) == SUCCESS {
                for _ in 0..count {
                    let mut event = std::ptr::null_mut();
                    if (self.functions.event_create)(&mut event, 0) != SUCCESS {
                        break;
                    }
                    made(event);
                }
                (self.functions.pop)(&mut context);
            }
            (self.functions.primary_release)(device as c_int);
        }
    }
}
