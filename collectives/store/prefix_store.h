#ifndef TANDEM_COLLECTIVES_STORE_PREFIX_STORE_H_
#define TANDEM_COLLECTIVES_STORE_PREFIX_STORE_H_

// A view of another store: key `k` here is that store's key "<prefix>/k".

#include <string>
#include <vector>

#include "collectives/store/store.h"

namespace tandem::collectives {

// Thread-safe. `base` is borrowed and must outlive this object. Errors name keys as `base` knows them, prefix
// included. The prefix counts towards the limit of a key's length.
class PrefixStore final : public Store {
 public:
  PrefixStore(Store* base, absl::string_view prefix);

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  // Returns keys without the prefix.
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;  // of this view; costs a List
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  std::string address() const override { return base_->address(); }

 private:
  // Returns "<prefix>/<key>". An empty key is InvalidArgument.
  absl::StatusOr<std::string> Full(absl::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Full(absl::Span<const std::string> keys) const;

  Store* const base_;
  const std::string prefix_;  // with its trailing slash
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_PREFIX_STORE_H_
