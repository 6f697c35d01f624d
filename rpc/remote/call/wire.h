// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_WIRE_H_
#define TANDEM_RPC_REMOTE_CALL_WIRE_H_

// Writes and reads encoded values (proto/tandem/v1/remote_function.proto defines the encoding). Small values
// go into one string, bulk values into separate slices.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "rpc/remote/call/tensor.h"

namespace tandem::rpc::remote {

class ReferenceHandle;
class OwnedValue;

// Strings, messages and lists of numbers of this size or more are sent as bulk.
inline constexpr size_t kBulkBytes = 1024;
inline constexpr size_t kBulkAlignment = 8;

// Encodes and decodes the references of one message.
class ReferenceScope {
 public:
  virtual ~ReferenceScope() = default;
  // Returns the encoding of a reference: a serialized v1::RemoteReference.
  virtual absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle) = 0;
  // Decodes a reference.
  virtual absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire) = 0;
};

// An encoded value, or several in a row.
struct Encoded {
  std::string small;
  Bytes bulk;

  size_t size() const { return small.size() + bulk.size(); }
};

// The advice in errors about arguments and results that are too large.
inline constexpr absl::string_view kTooLargeRemedy =
    "raise RpcAgentOptions::max_message_bytes at both workers, give it in pieces (a stream), or leave it "
    "where "
    "it is "
    "and pass an RRef";
// Returns ResourceExhausted if `encoded` exceeds max_bytes, the limit of the worker `whose` ("worker/1"), or
// if its small values exceed 1 GiB. `what` names it in the message ("a result").
absl::Status CheckSize(const Encoded& encoded, absl::string_view what, size_t max_bytes,
                       absl::string_view whose);

// Encodes values one after the other. Not thread-safe.
class Writer {
 public:
  // `references` may be null if no value contains references.
  explicit Writer(ReferenceScope* references = nullptr) : references_(references) {}

  void Varint(uint64_t value);
  void Signed(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Raw(const void* data, size_t size) { encoded_.small.append(static_cast<const char*>(data), size); }
  // Writes the length and the bytes.
  void String(absl::string_view text);
  void String(std::string&& text);
  // Writes at least kBulkBytes bytes whose number the reader knows.
  void Bulk(Bytes bytes);
  void WriteTensor(const Tensor& tensor);
  void Reference(const std::shared_ptr<ReferenceHandle>& handle);

  // Records an error; the first one counts. The encoding is then of no use.
  void Fail(absl::Status why) { status_.Update(why); }
  const absl::Status& status() const { return status_; }
  // Returns what was written. The writer must not be used afterwards.
  Encoded Take() { return std::move(encoded_); }

 private:
  ReferenceScope* const references_;
  Encoded encoded_;
  absl::Status status_;
};

// Decodes values one after the other. Accepts any bytes: after the first error every read returns false, and
// status() is that error. `small` must outlive the reader. Not thread-safe.
class Reader {
 public:
  Reader(absl::string_view small, Bytes bulk, ReferenceScope* references = nullptr)
      : small_(small), bulk_(std::move(bulk)), references_(references) {}

  bool Varint(uint64_t* value);
  bool Signed(int64_t* value);
  bool Raw(void* out, size_t size);
  bool String(std::string* text);
  // Reads a count of elements, each of which takes at least `element_bytes`. Fails if the rest of the message
  // cannot contain that many.
  bool Count(size_t element_bytes, size_t* count);
  bool Bulk(size_t size, Bytes* bytes);
  bool ReadTensor(Tensor* tensor);
  bool Reference(std::shared_ptr<ReferenceHandle>* handle);

  // Returns true if there was no error and everything was read.
  bool Finish();
  // Records an error and returns false.
  bool Fail(absl::Status why);
  const absl::Status& status() const { return status_; }

 private:
  absl::string_view small_;
  Bytes bulk_;
  size_t bulk_offset_ = 0;
  ReferenceScope* const references_;
  absl::Status status_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_WIRE_H_
