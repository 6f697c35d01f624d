// SPDX-License-Identifier: Apache-2.0
// Byte strings of any size: an operation on their sizes, then one of uneven parts on their bytes.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/group/group.h"
#include "collectives/group/validation.h"

namespace tandem::collectives {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 30;  // of one rank's string

absl::Status CheckSize(int64_t size, int rank) {
  if (size >= 0 && size <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the byte string of rank ", rank, " has ", size,
                                                 " bytes; it may have at most ", kMaxBytes));
}

std::vector<TensorView> Views(std::vector<std::string>* strings) {
  std::vector<TensorView> views;
  for (std::string& one : *strings) views.emplace_back(one.data(), one.size(), DType::kU8);
  return views;
}

ConstTensorView View(absl::string_view bytes) { return {bytes.data(), bytes.size(), DType::kU8}; }

}  // namespace

absl::StatusOr<std::string> Group::BroadcastBytes(absl::string_view bytes, const RootOptions& options) {
  TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kBroadcast, CheckRoot(options.root, world_size())));
  const RootOptions now{.root = options.root, .timeout = options.timeout};
  int64_t size = static_cast<int64_t>(bytes.size());
  TANDEM_RETURN_IF_ERROR(Broadcast(absl::MakeSpan(&size, 1), now).status());
  TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kBroadcast, CheckSize(size, options.root)));
  std::string result = rank() == options.root ? std::string(bytes) : std::string(size, '\0');
  TANDEM_RETURN_IF_ERROR(Broadcast(TensorView(result.data(), result.size(), DType::kU8), now).status());
  return result;
}

absl::StatusOr<std::vector<std::string>> Group::AllGatherBytes(absl::string_view bytes,
                                                               const CallOptions& options) {
  const CallOptions now{.timeout = options.timeout};
  const int64_t size = static_cast<int64_t>(bytes.size());
  std::vector<int64_t> sizes(world_size());
  TANDEM_RETURN_IF_ERROR(AllGather(absl::MakeConstSpan(&size, 1), absl::MakeSpan(sizes), now).status());
  // All ranks see the same sizes, so all refuse together.
  std::vector<std::string> result(world_size());
  for (int r = 0; r < world_size(); ++r) {
    TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kAllGather, CheckSize(sizes[r], r)));
    result[r].resize(sizes[r]);
  }
  if (std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s == 0; })) return result;
  TANDEM_RETURN_IF_ERROR(AllGather(View(bytes), Views(&result), now).status());
  return result;
}

absl::StatusOr<std::vector<std::string>> Group::GatherBytes(absl::string_view bytes,
                                                            const RootOptions& options) {
  TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kGather, CheckRoot(options.root, world_size())));
  const CallOptions now{.timeout = options.timeout};
  const int64_t size = static_cast<int64_t>(bytes.size());
  // The sizes go to all ranks, not only to the root, so that all know when one is refused.
  std::vector<int64_t> sizes(world_size());
  TANDEM_RETURN_IF_ERROR(AllGather(absl::MakeConstSpan(&size, 1), absl::MakeSpan(sizes), now).status());
  std::vector<std::string> result(rank() == options.root ? world_size() : 0);
  for (int r = 0; r < world_size(); ++r) {
    TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kGather, CheckSize(sizes[r], r)));
    if (!result.empty()) result[r].resize(sizes[r]);
  }
  TANDEM_RETURN_IF_ERROR(
      Gather(View(bytes), Views(&result), {.root = options.root, .timeout = options.timeout}).status());
  return result;
}

absl::StatusOr<std::string> Group::ScatterBytes(absl::Span<const std::string> all,
                                                const RootOptions& options) {
  TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kScatter, CheckRoot(options.root, world_size())));
  const bool is_root = rank() == options.root;
  if (is_root && all.size() != static_cast<size_t>(world_size())) {
    return Refuse(OpKind::kScatter,
                  absl::InvalidArgumentError(absl::StrCat("the root gives ", all.size(),
                                                          " byte strings; it must give one for each of the ",
                                                          world_size(), " ranks")));
  }
  const RootOptions now{.root = options.root, .timeout = options.timeout};
  std::vector<int64_t> sizes(world_size());
  for (size_t r = 0; is_root && r < all.size(); ++r) sizes[r] = static_cast<int64_t>(all[r].size());
  TANDEM_RETURN_IF_ERROR(Broadcast(absl::MakeSpan(sizes), now).status());
  for (int r = 0; r < world_size(); ++r) {
    TANDEM_RETURN_IF_ERROR(Refuse(OpKind::kScatter, CheckSize(sizes[r], r)));
  }
  std::vector<ConstTensorView> ins;
  for (size_t r = 0; is_root && r < all.size(); ++r) ins.push_back(View(all[r]));
  std::string result(sizes[rank()], '\0');
  TANDEM_RETURN_IF_ERROR(Scatter(ins, TensorView(result.data(), result.size(), DType::kU8), now).status());
  return result;
}

}  // namespace tandem::collectives
