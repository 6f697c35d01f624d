// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_UNTYPED_H_
#define TANDEM_RPC_REMOTE_UNTYPED_H_

// Remote functions whose types are known only at run time, for programs in languages without shared headers
// (tandem.rpc for Python). Such a function has the signature `NAME(untyped) -> untyped`. C++ programs can
// serve and call the same functions:
//
//   inline constexpr Function<Untyped(Untyped)> kScale{"scale"};

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "rpc/remote/call/codec.h"
#include "rpc/remote/call/functions.h"
#include "rpc/remote/call/tensor.h"
#include "rpc/remote/rref.h"

namespace tandem::rpc::remote {

class RpcAgent;
class Untyped;

// A value in the form in which it is sent.
struct UntypedMessage {
  std::string data;  // in an encoding on which both programs agree; tandem.rpc uses MessagePack
  // Out of band, so that their elements are not copied into `data`, which refers to them by position.
  std::vector<Tensor> tensors;
  std::vector<RRef<Untyped>> references;  // likewise
};

// A value of the program that lives in its worker and is encoded only when it is sent. Thread-safe.
class UntypedObject {
 public:
  virtual ~UntypedObject() = default;
  // Returns the encoding. May block if holders elsewhere use FetchUntyped: the pool's threads call it then.
  // RRef::ToHere encodes on an RPC thread of the owner.
  virtual absl::StatusOr<UntypedMessage> Encode() const = 0;
};

// A value of any type: a message, or an object of this process. Copies share it. Thread-safe after
// construction.
class Untyped {
 public:
  // Constructs an empty message.
  Untyped() = default;
  Untyped(UntypedMessage message)  // NOLINT: functions return messages
      : message_(std::make_shared<const UntypedMessage>(std::move(message))) {}
  // `object` must not be null.
  explicit Untyped(std::shared_ptr<const UntypedObject> object) : object_(std::move(object)) {}

  // Returns the object, or null if the value is a message.
  const std::shared_ptr<const UntypedObject>& object() const { return object_; }
  // Returns the message, after encoding the object if there is one. Returns the error of the encoding.
  absl::StatusOr<UntypedMessage> message() const;

 private:
  std::shared_ptr<const UntypedMessage> message_;  // both null: an empty message
  std::shared_ptr<const UntypedObject> object_;
};

template <>
struct Codec<Untyped> {
  static std::string Name() { return "untyped"; }
  static void Encode(Writer& writer, const Untyped& value);
  static bool Decode(Reader& reader, Untyped* value);
};

// Declarations of untyped functions whose names come from the program at run time. Thread-safe. Must outlive
// the agents that serve or call its functions.
class UntypedFunctions {
 public:
  // Returns the declaration of the function `name`.
  Function<Untyped(Untyped)> Get(absl::string_view name, FunctionTraits traits = {});

 private:
  absl::Mutex mutex_;
  // Declarations refer to the strings, so they must not move.
  std::set<std::string, std::less<>> names_ ABSL_GUARDED_BY(mutex_);
};

// Adds the function that FetchUntyped calls at owners of untyped values.
void AddUntypedValues(Functions* functions);

// Returns a copy of the value, as RRef::ToHere does, but without blocking. The owner must serve
// AddUntypedValues; it encodes an object on a thread of its pool. `settings` are those of the call to the
// owner. The errors are those of RRef::ToHere.
Future<Untyped> FetchUntyped(RpcAgent& agent, const RRef<Untyped>& reference, const CallSettings& settings);

// Returns the value itself at its owner, as RRef::LocalValue does, but without blocking.
Future<Untyped> LocalUntyped(const RRef<Untyped>& reference);

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_UNTYPED_H_
