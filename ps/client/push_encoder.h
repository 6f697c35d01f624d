#ifndef TANDEM_PS_CLIENT_PUSH_ENCODER_H_
#define TANDEM_PS_CLIENT_PUSH_ENCODER_H_

// Turns the parts of a push into one request per server.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

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

// What goes to one server: the caller adds worker, epoch, sequence and step to the header.
struct EncodedPush {
  v1::PushRequest header;
  Bytes payload;
};

// Scales the gradients of tables whose L2 norm, over all of a table's parts, is above norms[p] (0: no bound)
// down to it. Parts then point into `scaled`.
void ClipGlobalNorms(const std::vector<uint32_t>& dims, const std::vector<float>& norms,
                     std::vector<PushPart>* parts, std::vector<std::vector<float>>* scaled);

// A part of a push with what the client knows about its table.
struct SerializedPush {
  PushPart part;
  uint32_t dim = 0;
  WireOptions wire;
  std::shared_ptr<ErrorFeedback> feedback;  // where the wire wants it
};

// Used for one push, by one thread. The parts' arrays must stay unchanged until the last Encode.
class PushEncoder {
 public:
  // Adds up the gradients of ids that repeat, where that saves bytes, in memory of `pool`, and deals the ids
  // out to servers. `deduper` is free again afterwards.
  PushEncoder(const ShardMap& map, std::vector<SerializedPush> parts, Deduper* deduper, BufferPool* pool);

  // The request for one server, with a slice for every part (an empty one when the server owns none of its
  // ids). Everything is copied to memory of `route`, but for gradients that are sent as they are, have an
  // owner and lie together. MEAN bags are turned into SUM bags whose gradient is divided by the size of the
  // whole bag. To be called once for each server: it changes the residuals of error feedback.
  EncodedPush Encode(uint32_t server, const RequestRoute& route);

 private:
  struct Part {
    SerializedPush push;
    std::vector<uint64_t> ids;        // distinct ones, where they were merged
    std::shared_ptr<char> gradients;  // floats: of those, or those of bags divided by their sizes
    std::vector<ServerIds> split;     // by server; empty when there is one
  };
  static void Merge(Part* part, Deduper* deduper, BufferPool* pool);
  // Gradients that need not be copied.
  static std::optional<Slice> InPlace(const Part& part, uint32_t server, const RequestRoute& route);
  static void DivideMeans(Part* part, BufferPool* pool);

  std::vector<Part> parts_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_ENCODER_H_
