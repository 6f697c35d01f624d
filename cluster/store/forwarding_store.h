// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_FORWARDING_STORE_H_
#define TANDEM_CLUSTER_STORE_FORWARDING_STORE_H_

// The base class of stores that decorate another store.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "cluster/store/store.h"

namespace tandem::cluster {

// Forwards every call to another store. A derived class changes the keys, or what happens around the calls,
// by overriding the hooks below; a call that needs more is overridden itself. As thread-safe as the hooks
// are.
class ForwardingStore : public Store {
 public:
  // `base` is borrowed and must outlive this object.
  explicit ForwardingStore(Store* base) : base_(base) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::string> GetIfPresent(absl::string_view key, absl::Duration timeout) override;
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
  // List does not map its prefix, and NumKeys counts all keys of the base store.
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;
  absl::Status Push(absl::string_view queue, absl::string_view value) override;
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Length(absl::string_view queue) override;
  absl::Status Beat(absl::string_view key, absl::Duration lease) override;
  bool BeatsExpire(absl::Duration lease) const override { return base_->BeatsExpire(lease); }
  std::string address() const override { return base_->address(); }

 protected:
  Store* base() const { return base_; }

  // Return the base store's names of a key or queue, and of several keys. The result may point into
  // `*buffer`. The default is the names themselves.
  virtual absl::StatusOr<absl::string_view> BaseKey(absl::string_view key, std::string* buffer);
  virtual absl::StatusOr<absl::Span<const std::string>> BaseKeys(absl::Span<const std::string> keys,
                                                                 std::vector<std::string>* buffer);
  // Makes a call of the base store, or refuses it; returns the call's status or another error. The default
  // makes it.
  virtual absl::Status Forward(absl::FunctionRef<absl::Status()> call);
  // Makes a call that waits at most `timeout`. The default makes one call with the whole time-out through
  // Forward; an override may make several with parts of it.
  virtual absl::Status ForwardWait(absl::Duration timeout,
                                   absl::FunctionRef<absl::Status(absl::Duration)> call);

 private:
  template <typename Result, typename Call>
  absl::StatusOr<Result> ForwardFor(Call call);
  template <typename Result, typename Call>
  absl::StatusOr<Result> ForwardWaitFor(absl::Duration timeout, Call call);

  Store* const base_;
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_FORWARDING_STORE_H_
