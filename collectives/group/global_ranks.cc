// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/global_ranks.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/ranks.h"

namespace tandem::collectives {
namespace {

constexpr absl::string_view kMark = " (global ranks; the group has ";
// The rest of a message behind this word is the text of the rank that aborts.
constexpr absl::string_view kAborted = " aborted";
// Ranks of a larger group are not listed.
constexpr size_t kMostListed = 16;

bool SameRanks(absl::Span<const int> global_ranks) {
  for (size_t r = 0; r < global_ranks.size(); ++r) {
    if (global_ranks[r] != static_cast<int>(r)) return false;
  }
  return true;
}

class GlobalRanksBackend final : public Backend {
 public:
  GlobalRanksBackend(std::unique_ptr<Backend> backend, std::vector<int> global_ranks)
      : backend_(std::move(backend)), global_ranks_(std::move(global_ranks)) {}

  absl::string_view name() const override { return backend_->name(); }
  absl::Status Supports(const Operation& operation) const override { return backend_->Supports(operation); }
  absl::Status Run(const Operation& operation) override { return Named(backend_->Run(operation)); }
  absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations) override {
    absl::StatusOr<std::shared_ptr<DeviceWork>> work = backend_->Enqueue(operations);
    if (!work.ok()) return Named(work.status());
    return work;
  }
  void StartPointToPoint(const Operation& operation, Done done) override {
    backend_->StartPointToPoint(operation, [this, done = std::move(done)](absl::StatusOr<int> source) {
      done(source.ok() ? std::move(source) : Named(source.status()));
    });
  }
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override {
    absl::StatusOr<int> source = backend_->RunPointToPoint(operation);
    if (!source.ok()) return Named(source.status());
    return source;
  }
  absl::Status RegisterBuffer(TensorView buffer) override { return Named(backend_->RegisterBuffer(buffer)); }
  absl::Status DeregisterBuffer(TensorView buffer) override {
    return Named(backend_->DeregisterBuffer(buffer));
  }
  bool CanSplit() const override { return backend_->CanSplit(); }
  absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options) override {
    absl::StatusOr<BackendFactory> split = backend_->Split(color, key, options);
    if (!split.ok()) return Named(split.status());
    return split;
  }
  void Abort(const absl::Status& reason) override { backend_->Abort(reason); }

 private:
  absl::Status Named(absl::Status status) const {
    if (ABSL_PREDICT_TRUE(status.ok())) return status;
    return NameGlobalRanks(status, global_ranks_);
  }

  const std::unique_ptr<Backend> backend_;
  const std::vector<int> global_ranks_;
};

}  // namespace

absl::Status NameGlobalRanks(const absl::Status& error, absl::Span<const int> global_ranks) {
  if (error.ok() || SameRanks(global_ranks)) return error;
  const absl::string_view message = error.message();
  const absl::string_view head = message.substr(0, message.find(kAborted));
  if (absl::StrContains(head, kMark)) return error;
  const std::string renamed = RenameRanks(head, global_ranks);
  if (renamed == head) return error;
  std::string text = absl::StrCat(renamed, message.substr(head.size()));
  if (!absl::StrContains(message, kMark)) {
    absl::StrAppend(&text, kMark,
                    global_ranks.size() <= kMostListed ? NameRanks(global_ranks)
                                                       : absl::StrCat(global_ranks.size(), " ranks"),
                    ")");
  }
  return absl::Status(error.code(), text);
}

std::unique_ptr<Backend> WithGlobalRanks(std::unique_ptr<Backend> backend, std::vector<int> global_ranks) {
  if (SameRanks(global_ranks)) return backend;
  return std::make_unique<GlobalRanksBackend>(std::move(backend), std::move(global_ranks));
}

}  // namespace tandem::collectives
