#ifndef TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_
#define TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_

// A store that one node can be cut off from, as by a broken cable: its calls fail, the others' go on.

#include <atomic>
#include <string>
#include <vector>

#include "base/status.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

class CuttableStore : public Store {
 public:
  explicit CuttableStore(Store* base) : base_(base) {}
  void Cut() { cut_ = true; }
  void Mend() { cut_ = false; }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Add(key, delta);
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->CompareSet(key, expected, desired);
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Wait(keys, timeout);
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Check(keys);
  }
  absl::StatusOr<int64_t> Append(absl::string_view key, absl::string_view value) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Append(key, value);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->MultiGet(keys, timeout);
  }
  absl::Status MultiSet(absl::Span<const std::string> keys, absl::Span<const std::string> values) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->MultiSet(keys, values);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Delete(key);
  }
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->List(prefix);
  }
  absl::StatusOr<int64_t> NumKeys() override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->NumKeys();
  }
  absl::Status Push(absl::string_view queue, absl::string_view value) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Push(queue, value);
  }
  absl::StatusOr<std::string> Pop(absl::string_view queue, absl::Duration timeout) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Pop(queue, timeout);
  }
  absl::StatusOr<int64_t> Length(absl::string_view queue) override {
    TANDEM_RETURN_IF_ERROR(Reached());
    return base_->Length(queue);
  }

 private:
  absl::Status Reached() const {
    return cut_ ? absl::UnavailableError("the store cannot be reached (cut off by the test)")
                : absl::OkStatus();
  }

  Store* const base_;
  std::atomic<bool> cut_{false};
};

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_RENDEZVOUS_CUTTABLE_STORE_H_
