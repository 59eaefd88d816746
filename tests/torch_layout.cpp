// What the agent takes for granted of torch's C++, asked of the compiler: `make test-layouts` compiles this against the
// headers of each release (with -fno-access-control). Nothing of it is linked or run.
//
// Where a RecordFunction keeps its sequence number and its inputs is not in here: that moves, and is found at run time.

#include <ATen/SequenceNumber.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstddef>
#include <memory>
#include <type_traits>

using Callback = at::RecordFunctionCallback;
using at::RecordFunction;
using at::RecordScope;

template <typename A, typename B>
constexpr bool same = std::is_same<A, B>::value;

// `Callback` of record_function.rs, which is handed over by value: in memory, as it is larger than two registers and has no
// copy or destructor of its own.
static_assert(std::is_trivially_copyable<Callback>::value && std::is_trivially_destructible<Callback>::value, "");
static_assert(std::is_standard_layout<Callback>::value && sizeof(Callback) == 40, "");
static_assert(offsetof(Callback, start_) == 0 && offsetof(Callback, end_) == 8, "");
static_assert(offsetof(Callback, sampling_prob_) == 16 && same<decltype(Callback::sampling_prob_), double>, "");
static_assert(offsetof(Callback, scopes_) == 24 && sizeof(Callback::scopes_) == 10, "");
static_assert(offsetof(Callback, needs_inputs_) == 34 && offsetof(Callback, needs_outputs_) == 35, "");
static_assert(offsetof(Callback, needs_ids_) == 36, "");

static_assert(static_cast<int>(RecordScope::FUNCTION) == 0 && static_cast<int>(RecordScope::BACKWARD_FUNCTION) == 1, "");
static_assert(static_cast<int>(RecordScope::USER_SCOPE) == 7 && static_cast<int>(RecordScope::NUM_SCOPES) == 10, "");

// A unique_ptr is returned in memory, whose address comes before the arguments.
static_assert(same<Callback::StartCallback, std::unique_ptr<at::ObserverContext> (*)(const RecordFunction&)>, "");
static_assert(same<Callback::EndCallback, void (*)(const RecordFunction&, at::ObserverContext*)>, "");
static_assert(!std::is_trivially_copyable<std::unique_ptr<at::ObserverContext>>::value, "");
static_assert(sizeof(std::unique_ptr<at::ObserverContext>) == 8, "");

static_assert(same<at::CallbackHandle, unsigned long>, "");
static_assert(same<decltype(&at::addGlobalCallback), at::CallbackHandle (*)(Callback)>, "");
static_assert(same<decltype(&at::addThreadLocalCallback), at::CallbackHandle (*)(Callback)>, "");
static_assert(same<decltype(&at::removeCallback), void (*)(at::CallbackHandle)>, "");
static_assert(same<decltype(&RecordFunction::name), const char* (RecordFunction::*)() const>, "");
static_assert(same<decltype(&at::sequence_number::peek), unsigned long (*)()>, "");

// operators.rs reads inputs where they are, and calibration as many bytes of a RecordFunction.
static_assert(sizeof(RecordFunction) >= 320 && same<decltype(RecordFunction::sequence_nr_), int64_t>, "");
static_assert(same<decltype(RecordFunction::inputs_), c10::ArrayRef<const c10::IValue>>, "");
static_assert(sizeof(c10::IValue) == 16 && offsetof(c10::IValue, payload) == 0 && offsetof(c10::IValue, tag) == 8, "");
static_assert(sizeof(c10::IValue::tag) == 4 && sizeof(at::Tensor) == 8, "");
static_assert(static_cast<int>(c10::DeviceType::CPU) == 0 && static_cast<int>(c10::DeviceType::CUDA) == 1, "");
static_assert(static_cast<int>(at::kFloat) == 6 && static_cast<int>(at::kUInt64) == 29, "");

// shim.rs.
static_assert(same<AOTITorchError, int32_t>, "");
template <typename T>
using Asked = AOTITorchError (*)(AtenTensorHandle, T*);
static_assert(same<decltype(&aoti_torch_get_numel), Asked<int64_t>>, "");
static_assert(same<decltype(&aoti_torch_get_dtype), Asked<int32_t>>, "");
static_assert(same<decltype(&aoti_torch_get_device_type), Asked<int32_t>>, "");
static_assert(same<decltype(&aoti_torch_get_device_index), Asked<int32_t>>, "");
#ifdef HAS_ELEMENT_SIZE  // torch_layout.py says so: from 2.8 on.
static_assert(same<decltype(&aoti_torch_dtype_element_size), size_t (*)(int32_t)>, "");
static_assert(same<decltype(&aoti_torch_is_contiguous), Asked<bool>>, "");
#else
static_assert(same<decltype(&aoti_torch_get_dim), Asked<int64_t>>, "");
static_assert(same<decltype(&aoti_torch_get_sizes), Asked<int64_t*>>, "");
static_assert(same<decltype(&aoti_torch_get_strides), Asked<int64_t*>>, "");
#endif
