// SPDX-License-Identifier: Apache-2.0
#include "python/src/rpc_values.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nanobind/ndarray.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {

using rpc::remote::Tensor;
using rpc::remote::Untyped;
using rpc::remote::UntypedMessage;

namespace {

// Smaller tensors are allocated by malloc, which does not return their pages to the system.
constexpr size_t kPooledBytes = 64 << 10;

// Keeps this thread's Python state between calls: making it anew takes longer than an empty function.
void KeepThreadState() {
  thread_local bool kept = false;
  if (kept) return;
  kept = true;
  UntilInterpreterEnds([] { (void)PyGILState_Ensure(); });
  (void)PyEval_SaveThread();
}

template <typename Element>
nb::object ArrayOver(Tensor tensor, void* data) {
  const size_t size = tensor.bytes();
  auto held = std::make_unique<Tensor>(std::move(tensor));
  nb::capsule owner(held.get(), [](void* pointer) noexcept { delete static_cast<Tensor*>(pointer); });
  (void)held.release();
  return nb::cast(nb::ndarray<nb::numpy, Element, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace

GilOfForeignThread::GilOfForeignThread() {
  KeepThreadState();
  state_ = UntilInterpreterEnds([] { return PyGILState_Ensure(); });
}

nb::object CallFromForeignThread(const nb::object& function, const nb::tuple& arguments) {
  PyObject* const result =
      UntilInterpreterEnds([&] { return PyObject_CallObject(function.ptr(), arguments.ptr()); });
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

void CopyTensors(BufferPool* pool, UntypedMessage* message) {
  for (Tensor& tensor : message->tensors) {
    Tensor copy = tensor.bytes() < kPooledBytes
                      ? Tensor::Allocate(tensor.dtype(), tensor.shape())
                      : Tensor::Over(pool->Get(tensor.bytes()), tensor.dtype(), tensor.shape());
    if (copy.bytes() > 0) {
      const Bytes chunks = tensor.Chunks();
      BytesReader(chunks).Copy(copy.mutable_data(), copy.bytes());
    }
    tensor = std::move(copy);
  }
}

nb::tuple ToPython(UntypedMessage message, bool writable) {
  nb::list tensors;
  for (Tensor& tensor : message.tensors) {
    const int dtype = static_cast<int>(tensor.dtype());
    const nb::object shape = nb::tuple(nb::cast(tensor.shape()));
    if (writable) {
      void* const data = tensor.mutable_data();
      tensors.append(nb::make_tuple(dtype, shape, ArrayOver<uint8_t>(std::move(tensor), data)));
    } else {
      void* const data = const_cast<void*>(tensor.data());
      tensors.append(nb::make_tuple(dtype, shape, ArrayOver<const uint8_t>(std::move(tensor), data)));
    }
  }
  nb::list references;
  for (rpc::remote::RRef<Untyped>& reference : message.references) {
    references.append(nb::cast(RpcReference(std::move(reference))));
  }
  return nb::make_tuple(nb::bytes(message.data.data(), message.data.size()), tensors, references);
}

UntypedMessage MessageFromPython(RpcHooks* hooks, nb::handle data, nb::handle tensors,
                                 nb::handle references) {
  UntypedMessage message;
  const auto bytes = nb::borrow<nb::bytes>(data);
  message.data.assign(static_cast<const char*>(bytes.data()), bytes.size());
  for (nb::handle item : nb::borrow<nb::list>(tensors)) {
    const auto part = nb::borrow<nb::tuple>(item);
    const auto* const memory = reinterpret_cast<const char*>(nb::cast<uint64_t>(part[2]));
    // The object travels as a plain pointer: threads without the GIL copy and destroy the owner.
    PyObject* const object = nb::borrow(part[4]).release().ptr();
    const std::shared_ptr<const void> owner(memory, [hooks, object](const void*) {
      std::vector<nb::object> released;
      released.push_back(nb::steal(object));
      hooks->released.Add(std::move(released));
    });
    message.tensors.push_back(ValueOrRaise(
        Tensor::FromBytes(static_cast<DType>(nb::cast<int>(part[0])), nb::cast<std::vector<int64_t>>(part[1]),
                          Bytes(Slice(owner, memory, nb::cast<size_t>(part[3]))))));
  }
  for (nb::handle item : nb::borrow<nb::list>(references)) {
    message.references.push_back(nb::cast<const RpcReference&>(item).get());
  }
  return message;
}

PythonValue::~PythonValue() {
  std::vector<nb::object> released;
  released.push_back(std::move(value_));
  hooks_->released.Add(std::move(released));
  // The main thread drops it soon, also if no call comes.
  const auto clear = [](void* argument) {
    static_cast<RpcHooks*>(argument)->released.Clear();
    return 0;
  };
  (void)Py_AddPendingCall(clear, hooks_);
}

absl::StatusOr<UntypedMessage> PythonValue::Encode() const {
  const GilOfForeignThread gil;
  try {
    TANDEM_ASSIGN_OR_RETURN(
        const Untyped encoded,
        OutcomeFromPython(hooks_, CallFromForeignThread(hooks_->encode, nb::make_tuple(value_))));
    return encoded.message();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

absl::StatusOr<Untyped> OutcomeFromPython(RpcHooks* hooks, const nb::object& outcome) {
  const auto parts = nb::borrow<nb::tuple>(outcome);
  const int code = nb::cast<int>(parts[0]);
  if (code > 0) return absl::Status(static_cast<absl::StatusCode>(code), nb::cast<std::string>(parts[1]));
  if (code < 0) return Untyped(std::make_shared<const PythonValue>(nb::borrow(parts[1]), hooks));
  return Untyped(MessageFromPython(hooks, parts[1], parts[2], parts[3]));
}

}  // namespace tandem::python
