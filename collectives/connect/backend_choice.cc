// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/backend_choice.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/suggest.h"

namespace tandem::collectives {
namespace {

constexpr absl::string_view kAuto = "auto";

// The backends that a build may lack, and what to install for them.
struct Optional {
  absl::string_view name, packages;
};
constexpr Optional kOptional[] = {{"gloo", "libgloo-dev"}, {"mpi", "libopenmpi-dev and openmpi-bin"}};

absl::string_view Name(Device::Kind device) { return device == Device::Kind::kCpu ? "cpu" : "cuda"; }

absl::Status Unknown(absl::string_view name, absl::Span<const BackendFactory> factories) {
  for (const Optional& optional : kOptional) {
    if (name != optional.name) continue;
    return absl::FailedPreconditionError(absl::StrCat("this build has no backend '", name, "': install ",
                                                      optional.packages, " and build again"));
  }
  std::vector<absl::string_view> known = {kAuto};
  for (const BackendFactory& factory : factories) known.push_back(factory.name);
  return absl::InvalidArgumentError(absl::StrCat("no backend '", name, "'", DidYouMean(name, known)));
}

}  // namespace

const BackendFactory* FindBackend(absl::string_view name, absl::Span<const BackendFactory> factories) {
  auto found = std::find_if(factories.begin(), factories.end(),
                            [&](const BackendFactory& factory) { return factory.name == name; });
  return found == factories.end() ? nullptr : &*found;
}

absl::StatusOr<std::vector<BackendRequest>> ParseBackends(absl::string_view text,
                                                          absl::Span<const BackendFactory> factories) {
  std::vector<BackendRequest> requests;
  for (absl::string_view item : absl::StrSplit(text, ',')) {
    item = absl::StripAsciiWhitespace(item);
    BackendRequest request;
    const size_t colon = item.find(':');
    const absl::string_view name = colon == item.npos ? item : item.substr(colon + 1);
    const BackendFactory* factory = FindBackend(name, factories);
    if (name != kAuto && factory == nullptr) return Unknown(name, factories);
    if (colon == item.npos) {
      if (factory != nullptr) request.device = factory->device;
    } else if (item.substr(0, colon) == "cuda") {
      request.device = Device::Kind::kCuda;
    } else if (item.substr(0, colon) != "cpu") {
      return absl::InvalidArgumentError(absl::StrCat("no device '", item.substr(0, colon), "' in backend '",
                                                     text,
                                                     "'; write cpu:NAME or cuda:NAME, separated by commas"));
    }
    if (factory != nullptr && factory->device != request.device) {
      return absl::InvalidArgumentError(absl::StrCat("backend '", name, "' serves ", Name(factory->device),
                                                     " tensors, not ", Name(request.device), " ones"));
    }
    request.name = name == kAuto && request.device == Device::Kind::kCuda ? "nccl" : std::string(name);
    if (FindBackend(request.name, factories) == nullptr && request.name != kAuto) {
      return Unknown(request.name, factories);
    }
    for (const BackendRequest& other : requests) {
      if (other.device == request.device) {
        return absl::InvalidArgumentError(absl::StrCat("backend '", text, "' names two for ",
                                                       Name(request.device), " tensors: '", other.name,
                                                       "' and '", request.name, "'"));
      }
    }
    requests.push_back(std::move(request));
  }
  std::sort(requests.begin(), requests.end(),
            [](const BackendRequest& a, const BackendRequest& b) { return a.device < b.device; });
  return requests;
}

std::vector<std::string> AutoCandidates(absl::Span<const RankEndpoint> peers) {
  std::map<std::string, int> ranks_on;
  for (const RankEndpoint& peer : peers) ++ranks_on[peer.host];
  if (ranks_on.size() == 1) return {"shm", "tcp"};
  if (ranks_on.size() == peers.size()) return {"tcp"};
  return {"shm+tcp", "tcp"};
}

}  // namespace tandem::collectives
