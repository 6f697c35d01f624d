#ifndef TANDEM_RPC_REMOTE_CALL_INVOCATION_H_
#define TANDEM_RPC_REMOTE_CALL_INVOCATION_H_

// A call as its callee sees it: what the function gets (Context), and below that what carries arguments and
// results, over a transport or directly within the process (Invocation).

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

// What is known of a value whose C++ type is not: constants of a type.
struct ValueType {
  std::string name;  // "tensor", "Model"
  std::type_index type;
  // Null: its values are not sent.
  absl::StatusOr<Encoded> (*encode)(const void* value, ReferenceScope* references);
};
template <typename T>
const ValueType& ValueTypeOf();

struct StoredValue {
  std::shared_ptr<void> value;
  const ValueType* type = nullptr;
};

// One call. Finished once, by any thread; one that is dropped unfinished ends with Internal. All else
// thread-safe.
class Invocation {
 public:
  virtual ~Invocation() = default;

  virtual RpcAgent& agent() const = 0;
  virtual const std::string& caller() const = 0;   // "worker/1"
  virtual absl::string_view function() const = 0;  // "matmul"; outlives the call
  virtual absl::Time deadline() const = 0;
  // The caller cancelled it or is gone, or its deadline has passed.
  virtual bool IsCancelled() const = 0;
  // Stopped when the caller cancels or goes.
  virtual std::stop_token stop_token() = 0;
  // Of arguments, for the queue's limit.
  virtual size_t bytes() const = 0;

  // The arguments lie in this process as an object of this type (to be moved from), or null: then they are
  // encoded.
  virtual void* direct_arguments(std::type_index type) { return nullptr; }
  virtual Reader encoded_arguments() = 0;

  // How the result is wanted.
  enum class Form {
    kEncoded,
    kDirect,  // as a shared object of its type
    kKept,    // as an object that stays here
  };
  virtual Form form(std::type_index result) const = 0;
  virtual ReferenceScope* response_references() = 0;
  virtual std::shared_ptr<char> ResponseMemory(size_t bytes) { return nullptr; }
  virtual void Fail(absl::Status why) = 0;
  virtual void FinishEncoded(Encoded result) = 0;
  virtual void FinishObject(StoredValue result) = 0;  // of kDirect and kKept
};

// What a function that asks for it (its first parameter) learns of its call. Valid while the function runs.
class Context {
 public:
  explicit Context(std::shared_ptr<Invocation> call) : call_(std::move(call)) {}

  // The worker that the function runs in.
  RpcAgent& agent() const { return call_->agent(); }
  const std::string& caller() const { return call_->caller(); }
  absl::Time deadline() const { return call_->deadline(); }
  // Nobody waits for the result any more: the caller cancelled the call or is gone, its deadline has passed,
  // or this worker shuts down. Long functions look now and then, and return: whatever they return then goes
  // nowhere. One that never looks is not interrupted, and holds up its worker's end (Agent::ShutdownNow).
  bool IsCancelled() const { return call_->IsCancelled(); }
  // For functions that wait, instead of a sleep: returns after `at_most`, or as soon as the call is
  // cancelled. IsCancelled().
  bool WaitUntilCancelled(absl::Duration at_most) const;
  // Pass it on with further calls (CallSettings::cancel), so that they are cancelled with this one; or do
  // something of your own then (std::stop_callback).
  std::stop_token stop_token() const { return call_->stop_token(); }
  // For a result that is filled in where the transport sends it from, without another copy.
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
