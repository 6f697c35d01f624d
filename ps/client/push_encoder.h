// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PUSH_ENCODER_H_
#define TANDEM_PS_CLIENT_PUSH_ENCODER_H_

// Turns the parts of a push into one request per server.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/bytes.h"
#include "ps/client/error_feedback.h"
#include "ps/client/parts.h"
#include "ps/client/payload_writer.h"
#include "ps/client/splitter.h"
#include "ps/dedupe.h"
#include "ps/shard_map.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

// The request to one server. The caller adds worker, epoch, sequence and step to the header.
struct EncodedPush {
  v1::PushRequest header;
  Bytes payload;
};

// Scales the gradients of each table whose L2 norm, over all of its parts, exceeds norms[p] down to that
// norm. 0: no bound. Scaled parts then point into `scaled`.
void ClipGlobalNorms(const std::vector<uint32_t>& dims, const std::vector<float>& norms,
                     std::vector<PushPart>* parts, std::vector<std::vector<float>>* scaled);

// A part of a push, and what the client knows about its table.
struct ResolvedPushPart {
  PushPart part;
  uint32_t dim = 0;
  WireOptions wire;
  std::shared_ptr<ErrorFeedback> feedback;  // null: none
  bool sums = false;                        // the gradients are sums, which a cache has made
  bool counts_occurrences = false;          // the table's eviction does
};

// Encodes one push. Used by one thread. The parts' arrays must stay unchanged until the last Encode.
class PushEncoder {
 public:
  // Adds up the gradients of repeated ids, in memory of `pool`, if that saves bytes, and splits the ids over
  // the servers. Uses `deduper` only during the call.
  PushEncoder(const ShardMap& map, std::vector<ResolvedPushPart> parts, Deduper* deduper, BufferPool* pool);

  // Returns InvalidArgument if the sum of an id's gradients is too large to be sent (ps/client/
  // check_gradients.h), though each of them is not. Must be called before the first Encode.
  absl::Status CheckSums(uint32_t worker) const;

  // Returns the request to one server, with a slice for every part (an empty one if the server owns none of
  // its ids). Everything is copied to memory of `route`, except gradients that are sent unchanged, have an
  // owner and are contiguous. MEAN bags become SUM bags whose gradient is divided by the size of the whole
  // bag. Must be called once per server, because it changes the residuals of error feedback.
  EncodedPush Encode(uint32_t server, const RequestRoute& route);

 private:
  struct Part {
    ResolvedPushPart push;
    std::vector<uint64_t> ids;       // distinct ones, if repeated ids were merged
    std::vector<uint32_t> segments;  // ends of the segments of the ids that are sent
    // How often each id that is sent occurred. Empty: once each, or the table does not count it.
    std::vector<uint32_t> occurrences;
    // Floats: the merged gradients, or those of bags divided by the bags' sizes. Null: those of the push.
    std::shared_ptr<char> gradients;
    std::vector<ServerIds> split;  // by server; empty if there is one
  };
  // Adds up the gradients of repeated ids.
  static void Merge(Part* part, Deduper* deduper, BufferPool* pool);
  // Returns the gradients for `server` if they can be sent from where they lie.
  static std::optional<Slice> InPlace(const Part& part, uint32_t server, const RequestRoute& route);
  // Returns the occurrences of the ids for `server`; empty if they need not be sent.
  static std::vector<uint32_t> OccurrencesFor(const Part& part, uint32_t server);
  // Divides the gradients of MEAN bags by the bags' sizes.
  static void DivideMeans(Part* part, BufferPool* pool);

  std::vector<Part> parts_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_ENCODER_H_
