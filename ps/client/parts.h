#ifndef TANDEM_PS_CLIENT_PARTS_H_
#define TANDEM_PS_CLIENT_PARTS_H_

// What a caller of ps/client/client.h pulls and pushes, table by table, and how it is told of the end.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Rows of one table asked for in a pull. `ids` and `offsets` must stay alive and unchanged until the pull is
// done. Without pooling rows is [ids.size() x dim]. With pooling: offsets has bags + 1 entries, bag b is
// ids[offsets[b], offsets[b+1]), rows is [bags x dim] (an empty bag gives zeros).
struct PullPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  float* rows = nullptr;  // written before the pull is done; owned by the caller
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
  // Without pooling: ids repeat, so that each is asked for once and its row copied to the other places. What
  // callers can do themselves (ps/dedupe.h). When false, an id that repeats is sent as often.
  bool repeats = false;
};

// Gradients of one table to be applied. Same shapes as PullPart. An id may repeat; its gradients add up.
// `ids`, `gradients` and `offsets` are copied before PushAsync returns, but for gradients with an `owner`.
struct PushPart {
  std::string table;
  absl::Span<const uint64_t> ids;
  const float* gradients = nullptr;
  v1::Pooling pooling = v1::NONE;
  absl::Span<const uint32_t> offsets;
  // From PullVersions of the pull the gradients come from: one version per server.
  absl::Span<const uint64_t> pulled_versions;
  // Multiplies the learning rate for these ids (> 0, at most 2^20): a feature with a rate of its own is a
  // part of its own.
  float learning_rate_factor = 1.0f;
  // Without pooling: ids may repeat, and the gradients of one that does are added up before they are sent,
  // where that saves bytes. False: the caller has seen to it that none does, which spares the search.
  bool repeats = true;
  // Keeps `gradients` alive, and unchanged: they may then go to the socket from where they lie, which spares
  // a copy. Held until the last byte is sent, which may be after the push is done (when its deadline passes
  // meanwhile).
  std::shared_ptr<const void> owner = nullptr;
};

// Per part, per server: the table's version when its rows were read.
using PullVersions = std::vector<std::vector<uint64_t>>;

using PullDone = absl::AnyInvocable<void(absl::StatusOr<PullVersions>) &&>;
using PushDone = absl::AnyInvocable<void(absl::Status) &&>;

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PARTS_H_
