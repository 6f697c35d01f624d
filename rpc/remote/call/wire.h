#ifndef TANDEM_RPC_REMOTE_CALL_WIRE_H_
#define TANDEM_RPC_REMOTE_CALL_WIRE_H_

// Writes and reads encoded values (proto/tandem/v1/remote_function.proto has the rules). Small parts go into
// one string, bulk into slices beside it.

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

inline constexpr size_t kBulkBytes =
    1024;  // strings, messages and lists of numbers from here on travel as bulk
inline constexpr size_t kBulkAlignment = 8;

// The way of references into messages and out of them. Of one message.
class ReferenceScope {
 public:
  virtual ~ReferenceScope() = default;
  // What to send of a reference: a serialised v1::RemoteReference.
  virtual absl::StatusOr<std::string> Send(const std::shared_ptr<ReferenceHandle>& handle) = 0;
  virtual absl::StatusOr<std::shared_ptr<ReferenceHandle>> Receive(absl::string_view wire) = 0;
};

struct Encoded {
  std::string small;
  Bytes bulk;

  size_t size() const { return small.size() + bulk.size(); }
};

// What can be done about arguments or results that are too large.
inline constexpr absl::string_view kTooLargeRemedy =
    "raise AgentOptions::max_message_bytes at both workers, give it in pieces (a stream), or leave it where "
    "it is "
    "and pass an RRef";
// ResourceExhausted if `encoded`, which is `what` ("a result"), is larger than the limit of `whose`
// ("worker/1").
absl::Status CheckSize(const Encoded& encoded, absl::string_view what, size_t max_bytes,
                       absl::string_view whose);

// Not thread-safe.
class Writer {
 public:
  // `references` may be null where no value has any.
  explicit Writer(ReferenceScope* references = nullptr) : references_(references) {}

  void Varint(uint64_t value);
  void Signed(int64_t value) {
    Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Raw(const void* data, size_t size) { encoded_.small.append(static_cast<const char*>(data), size); }
  // The length, then the bytes.
  void String(absl::string_view text);
  void String(std::string&& text);
  // `size` bytes whose length the reader knows, 1024 or more of them.
  void Bulk(Bytes bytes);
  void WriteTensor(const Tensor& tensor);
  void Reference(const std::shared_ptr<ReferenceHandle>& handle);

  // The first failure counts: what was written is of no use then.
  void Fail(absl::Status why) { status_.Update(why); }
  const absl::Status& status() const { return status_; }
  Encoded Take() { return std::move(encoded_); }

 private:
  ReferenceScope* const references_;
  Encoded encoded_;
  absl::Status status_;
};

// Reads any bytes: after the first that are wrong, every read fails. Not thread-safe; `small` outlives it.
class Reader {
 public:
  Reader(absl::string_view small, Bytes bulk, ReferenceScope* references = nullptr)
      : small_(small), bulk_(std::move(bulk)), references_(references) {}

  bool Varint(uint64_t* value);
  bool Signed(int64_t* value);
  bool Raw(void* out, size_t size);
  bool String(std::string* text);
  // A count of elements of which each takes `element_bytes` at least: refused if so many cannot be there.
  bool Count(size_t element_bytes, size_t* count);
  bool Bulk(size_t size, Bytes* bytes);
  bool ReadTensor(Tensor* tensor);
  bool Reference(std::shared_ptr<ReferenceHandle>* handle);

  // Everything was read, and nothing is left.
  bool Finish();
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
