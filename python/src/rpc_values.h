// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_RPC_VALUES_H_
#define TANDEM_PYTHON_SRC_RPC_VALUES_H_

// Converts the values of remote functions between C++ and Python. In Python a message is a tuple
// (data: bytes, tensors, references):
//
//   tensors     to Python: [(dtype, shape, array of bytes), ...]
//               from Python: [(dtype, shape, address, size in bytes, owner of the memory), ...]
//   references  [RpcReference, ...]

#include <memory>

#include "absl/status/statusor.h"
#include "base/buffer_pool.h"
#include "nanobind/nanobind.h"
#include "python/src/process.h"
#include "rpc/remote/untyped.h"

namespace tandem::python {

// The functions of tandem.rpc that C++ calls, and the objects that C++ has released. Never destroyed, because
// threads that are not Python's use it until the process ends.
struct RpcHooks {
  nanobind::object serve;        // (number, data, tensors, references, keep, context) -> outcome
  nanobind::object serve_batch;  // (number, [(data, tensors, references), ...]) -> [outcome, ...]
  nanobind::object encode;       // (object) -> outcome
  ReleasedObjects released;
  // The memory of large tensors that have arrived.
  BufferPool memory;
};

// Holds the GIL on a thread that is not Python's. Once the interpreter ends, the constructor never returns.
class GilOfForeignThread {
 public:
  GilOfForeignThread();
  ~GilOfForeignThread() { PyGILState_Release(state_); }
  GilOfForeignThread(const GilOfForeignThread&) = delete;

 private:
  PyGILState_STATE state_;
};

// Calls a Python function. Requires the GIL. If the interpreter ends meanwhile, the call never returns:
// CPython would unwind the thread's stack, which C++ code does not survive. Throws nanobind::python_error.
nanobind::object CallFromForeignThread(const nanobind::object& function, const nanobind::tuple& arguments);

// A reference to a value, as Python holds it. In a forked child it leaks, because its destructor would send.
class RpcReference {
 public:
  explicit RpcReference(rpc::remote::RRef<rpc::remote::Untyped> reference)
      : reference_(
            LeakAfterFork(std::make_unique<rpc::remote::RRef<rpc::remote::Untyped>>(std::move(reference)))) {}
  const rpc::remote::RRef<rpc::remote::Untyped>& get() const { return *reference_; }

 private:
  std::shared_ptr<rpc::remote::RRef<rpc::remote::Untyped>> reference_;
};

// Copies the tensors to memory of their own, which Python may change; that of large ones comes from `pool`,
// because fresh pages would take longer than the copy. Needs no GIL.
void CopyTensors(BufferPool* pool, rpc::remote::UntypedMessage* message);
// Returns the message as a tuple. The arrays use the tensors' memory; they are read-only unless CopyTensors
// was called. Requires the GIL.
nanobind::tuple ToPython(rpc::remote::UntypedMessage message, bool writable);
// Reads a message. Its tensors use Python's memory, which `hooks` releases after the last use. Requires the
// GIL. Throws TandemError if a shape is not that of its bytes.
rpc::remote::UntypedMessage MessageFromPython(RpcHooks* hooks, nanobind::handle data,
                                              nanobind::handle tensors, nanobind::handle references);

// A Python object that a worker keeps for holders of references.
class PythonValue : public rpc::remote::UntypedObject {
 public:
  PythonValue(nanobind::object value, RpcHooks* hooks) : hooks_(hooks), value_(std::move(value)) {}
  ~PythonValue() override;
  // Takes the GIL.
  absl::StatusOr<rpc::remote::UntypedMessage> Encode() const override;
  // Requires the GIL.
  nanobind::object value() const { return value_; }

 private:
  RpcHooks* const hooks_;
  nanobind::object value_;
};

// Reads what a hook returned: (0, data, tensors, references), (-1, object), or (status code > 0, text).
// Requires the GIL.
absl::StatusOr<rpc::remote::Untyped> OutcomeFromPython(RpcHooks* hooks, const nanobind::object& outcome);

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_RPC_VALUES_H_
