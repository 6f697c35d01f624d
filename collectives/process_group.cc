#include "collectives/process_group.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/backends/gloo/gloo_group.h"

namespace tandem::collectives {
namespace {

// A world of one: every operation has what it needs.
class SoloGroup final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::Status AllReduce(absl::Span<float>, ReduceOp) override { return absl::OkStatus(); }
  absl::Status AllReduce(absl::Span<double>, ReduceOp) override { return absl::OkStatus(); }
  absl::Status AllReduce(absl::Span<int64_t>, ReduceOp) override { return absl::OkStatus(); }
  absl::Status Broadcast(void*, size_t, int root) override {
    if (root == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("broadcast: the root must be rank 0, the only one, not ", root));
  }
  absl::Status AllGather(const void* in, size_t bytes, void* out) override {
    if (bytes > 0) std::memmove(out, in, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Barrier(absl::Duration) override { return absl::OkStatus(); }
};

absl::Status Validate(const ProcessGroupOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " of a world of ",
                                                   options.world_size,
                                                   ": ranks go from 0 to the world's size less one"));
  }
  if (options.name.empty() || options.name.size() > 200) {
    return absl::InvalidArgumentError("a group's name must have 1 to 200 bytes");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group's timeout must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  if (options.backend != "gloo") {
    return absl::InvalidArgumentError(absl::StrCat("no backend '", options.backend, "'; there is: gloo"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(Store* store,
                                                               const ProcessGroupOptions& options) {
  const std::string context = absl::StrCat("process group '", options.name, "'");
  if (absl::Status valid = Validate(options); !valid.ok()) return Annotate(valid, context);
  if (options.world_size == 1) return std::make_unique<SoloGroup>();
  absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ConnectGlooGroup(store, options);
  if (!group.ok()) return Annotate(group.status(), context);
  return group;
}

}  // namespace tandem::collectives
