// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/world_ranks.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "collectives/ranks.h"

namespace tandem::collectives {
namespace {

constexpr absl::string_view kEnd = " of the world)";

bool SameRanks(absl::Span<const int> global_ranks) {
  for (size_t r = 0; r < global_ranks.size(); ++r) {
    if (global_ranks[r] != static_cast<int>(r)) return false;
  }
  return true;
}

// Takes a number of at most 6 digits from the front of `text`.
bool ConsumeNumber(absl::string_view* text, int* number) {
  size_t digits = 0;
  *number = 0;
  while (digits < text->size() && digits < 6 && absl::ascii_isdigit((*text)[digits])) {
    *number = 10 * *number + ((*text)[digits++] - '0');
  }
  text->remove_prefix(digits);
  return digits > 0;
}

// Returns the ranks below `world_size` that a message names, as NameRanks writes them.
std::vector<int> RanksIn(absl::string_view text, int world_size) {
  std::set<int> ranks;
  while (true) {
    const size_t at = text.find("rank");
    if (at == text.npos) break;
    const bool word = at == 0 || !absl::ascii_isalnum(text[at - 1]);
    text.remove_prefix(at + 4);
    if (!word) continue;
    (void)absl::ConsumePrefix(&text, "s");
    if (!absl::ConsumePrefix(&text, " ")) continue;
    int rank;
    while (ConsumeNumber(&text, &rank)) {
      if (rank < world_size) ranks.insert(rank);
      absl::string_view rest = text;
      const bool more = absl::ConsumePrefix(&rest, ", ") || absl::ConsumePrefix(&rest, " and ");
      if (!more || rest.empty() || !absl::ascii_isdigit(rest.front())) break;
      text = rest;
    }
  }
  return {ranks.begin(), ranks.end()};
}

class WorldRanksBackend final : public Backend {
 public:
  WorldRanksBackend(std::unique_ptr<Backend> backend, std::vector<int> global_ranks)
      : backend_(std::move(backend)), global_ranks_(std::move(global_ranks)) {}

  absl::string_view name() const override { return backend_->name(); }
  absl::Status Supports(const Operation& operation) const override { return backend_->Supports(operation); }
  absl::Status Run(const Operation& operation) override { return Add(backend_->Run(operation)); }
  absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations) override {
    absl::StatusOr<std::shared_ptr<DeviceWork>> work = backend_->Enqueue(operations);
    if (!work.ok()) return Add(work.status());
    return work;
  }
  void StartPointToPoint(const Operation& operation, Done done) override {
    backend_->StartPointToPoint(operation, [this, done = std::move(done)](absl::StatusOr<int> source) {
      done(source.ok() ? std::move(source) : Add(source.status()));
    });
  }
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override {
    absl::StatusOr<int> source = backend_->RunPointToPoint(operation);
    if (!source.ok()) return Add(source.status());
    return source;
  }
  absl::Status RegisterBuffer(TensorView buffer) override { return Add(backend_->RegisterBuffer(buffer)); }
  absl::Status DeregisterBuffer(TensorView buffer) override {
    return Add(backend_->DeregisterBuffer(buffer));
  }
  bool CanSplit() const override { return backend_->CanSplit(); }
  absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options) override {
    absl::StatusOr<BackendFactory> split = backend_->Split(color, key, options);
    if (!split.ok()) return Add(split.status());
    return split;
  }
  void Abort(const absl::Status& reason) override { backend_->Abort(reason); }

 private:
  absl::Status Add(absl::Status status) const {
    if (ABSL_PREDICT_TRUE(status.ok())) return status;
    return AddWorldRanks(status, global_ranks_);
  }

  const std::unique_ptr<Backend> backend_;
  const std::vector<int> global_ranks_;
};

}  // namespace

absl::Status AddWorldRanks(const absl::Status& error, absl::Span<const int> global_ranks) {
  if (error.ok() || SameRanks(global_ranks) || absl::StrContains(error.message(), kEnd)) return error;
  const std::vector<int> ranks = RanksIn(error.message(), static_cast<int>(global_ranks.size()));
  if (ranks.empty()) return error;
  std::vector<int> of_world;
  for (const int rank : ranks) of_world.push_back(global_ranks[rank]);
  return absl::Status(error.code(),
                      absl::StrCat(error.message(), " (", NameRanks(ranks), " of this group ",
                                   ranks.size() == 1 ? "is " : "are ", NameRanks(of_world), kEnd));
}

std::unique_ptr<Backend> WithWorldRanks(std::unique_ptr<Backend> backend, std::vector<int> global_ranks) {
  if (SameRanks(global_ranks)) return backend;
  return std::make_unique<WorldRanksBackend>(std::move(backend), std::move(global_ranks));
}

}  // namespace tandem::collectives
