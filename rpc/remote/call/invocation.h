// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_INVOCATION_H_
#define TANDEM_RPC_REMOTE_CALL_INVOCATION_H_

// A call at its callee. Context is what the function sees of it. Invocation carries the arguments and the
// result, over a transport or directly within the process.

#include <memory>
#include <stop_token>
#include <string>
#include <typeindex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rpc/remote/call/codec.h"
#include "rpc/remote/call/tensor.h"
#include "rpc/remote/call/wire.h"

namespace tandem::rpc::remote {

class RpcAgent;

// Describes the C++ type of a stored value at run time. One constant for each type.
struct ValueType {
  // The type's name in signatures.
  std::string name;  // "tensor", "Model"
  std::type_index type;
  // Encodes a value. Null if values of this type are not sent.
  absl::StatusOr<Encoded> (*encode)(const void* value, ReferenceScope* references);
};
template <typename T>
const ValueType& ValueTypeOf();

// A value of any type.
struct StoredValue {
  std::shared_ptr<void> value;
  const ValueType* type = nullptr;
};

// One call. Exactly one of Fail, FinishEncoded and FinishObject finishes it, in any thread. A call that is
// destroyed unfinished ends with Internal. The other methods are thread-safe.
class Invocation {
 public:
  virtual ~Invocation() = default;

  virtual RpcAgent& agent() const = 0;
  virtual const std::string& caller() const = 0;   // "worker/1"
  virtual absl::string_view function() const = 0;  // "matmul"; outlives the call
  virtual absl::Time deadline() const = 0;
  // Returns true if the caller has cancelled the call or has left, or the deadline has passed.
  virtual bool IsCancelled() const = 0;
  // Returns a token that is stopped when the caller cancels the call or leaves.
  virtual std::stop_token stop_token() = 0;
  // Returns the size of the arguments, for the queue's limit.
  virtual size_t bytes() const = 0;

  // Returns the arguments as an object of this type, from which the caller may move; null if they are
  // encoded.
  virtual void* direct_arguments(std::type_index type) { return nullptr; }
  virtual Reader encoded_arguments() = 0;

  // The form in which the caller needs the result.
  enum class Form {
    kEncoded,
    kDirect,  // as a shared object of its type
    kStored,  // as an object that stays in this worker
  };
  virtual Form form(std::type_index result) const = 0;
  virtual ReferenceScope* response_references() = 0;
  // Returns memory for a result that is sent without another copy, or null.
  virtual std::shared_ptr<char> ResponseMemory(size_t bytes) { return nullptr; }
  virtual void Fail(absl::Status why) = 0;
  virtual void FinishEncoded(Encoded result) = 0;
  virtual void FinishObject(StoredValue result) = 0;  // for kDirect and kStored
};

// The call that a function serves. Passed to functions whose first parameter is a `const Context&`. Valid
// while the function runs.
class Context {
 public:
  explicit Context(std::shared_ptr<Invocation> call) : call_(std::move(call)) {}

  // Returns the agent of the worker that runs the function.
  RpcAgent& agent() const { return call_->agent(); }
  const std::string& caller() const { return call_->caller(); }
  absl::Time deadline() const { return call_->deadline(); }
  // Returns true if the result is no longer needed: the caller has cancelled the call or left, the deadline
  // has passed, or this worker shuts down. Long functions should check this now and then and return; their
  // result is then discarded. A function that never checks is not interrupted and delays the worker's
  // shutdown (RpcAgent::ShutdownNow).
  bool IsCancelled() const { return call_->IsCancelled(); }
  // Waits for `at_most`, or until the call is cancelled, instead of a sleep. Returns IsCancelled().
  bool WaitUntilCancelled(absl::Duration at_most) const;
  // Returns a token that is stopped when the call is cancelled. Pass it to further calls
  // (CallSettings::cancel) so that they are cancelled too, or react to it with a std::stop_callback.
  std::stop_token stop_token() const { return call_->stop_token(); }
  // Returns true if the result, of the type T, stays at this worker as an object (RpcAgent::Remote).
  template <typename T>
  bool KeepsResult() const {
    return call_->form(typeid(T)) == Invocation::Form::kStored;
  }
  // Returns a tensor of unspecified contents for the result, in memory that the transport sends without
  // another copy if it has such memory.
  Tensor RespondWithTensor(DType dtype, Tensor::Shape shape) const;

 private:
  const std::shared_ptr<Invocation> call_;
};

template <typename T>
const ValueType& ValueTypeOf() {
  static const ValueType type = {
      TypeName<T>(), typeid(T), []() -> absl::StatusOr<Encoded> (*)(const void*, ReferenceScope*) {
        if constexpr (Sendable<T>) {
          return [](const void* value, ReferenceScope* references) -> absl::StatusOr<Encoded> {
            Writer writer(references);
            Codec<T>::Encode(writer, *static_cast<const T*>(value));
            if (!writer.status().ok()) return writer.status();
            return writer.Take();
          };
        } else {
          return nullptr;
        }
      }()};
  return type;
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_INVOCATION_H_
